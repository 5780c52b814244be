"""Per-unit gradients that are formed: kept for the sum, or formed once more and held to the norms that were promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from noisewise.persample import kernels, sparing
from noisewise.persample.bounds import Bounds
from noisewise.persample.rounding import (
    SAFETY,
    lengths,
    longer_squares,
    shortened,
    squared,
    squared_lengths,
    toward_zero,
)
from noisewise.persample.steady import is_steady, most_units

KEPT = 1 << 24  # floats of formed gradients that a parameter may keep between its norm and its sum
CUDA_KEPT = 1 << 28  # and in a captured step on a GPU
CUDA_FORMED = 1 << 22  # floats of a gradient up to which a captured step forms it rather than ask Gram matrices
CHUNK = 1 << 20  # floats of intermediate results at a time on a CPU: stays in cache
CUDA_CHUNK = 1 << 26  # and on a GPU, where every chunk costs a launch
TRAFFIC = 64  # multiply-adds that writing and reading one formed float is worth


class Summable(Protocol):
    """Gradients of one parameter that were measured: all that is left to do is to add them up."""

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """`sum_i factors_i g_i` with as many elements as the parameter, in its order; factors in float64."""
        ...

    def where(self, keep: Tensor) -> Summable:
        """The same with the gradients of all units not in `keep [batch]` exactly zero, whatever they were.

        Their factors will be 0: where sums leave out what has such a factor, there is nothing to do.
        """
        ...

    def formed(self) -> Tensor:
        """The gradients themselves, `[batch, ...]`, in the parameter's order."""
        ...


class PerSample(Summable, Protocol):
    """A batch of gradients of one parameter."""

    def measure(self, mask: Tensor | None) -> tuple[Tensor, Summable]:
        """Squared norms `[batch]` of the masked gradients in float64, rounded up, and what is needed to sum them."""
        ...

    def by_unit(self, views: int) -> PerSample:
        """The gradients of units that own `views` consecutive rows each: the sum over their rows."""
        ...


class Formable(Protocol):
    """Gradients that can be formed chunk by chunk, and summed without forming them."""

    @property
    def units(self) -> int:
        """Size of the batch."""
        ...

    @property
    def on_gpu(self) -> bool:
        """Is it computed there?"""
        ...

    def slices(self) -> list[slice]:
        """Units in chunks whose formed gradients fit."""
        ...

    def form(self, chunk: slice, mask: Tensor | None) -> Formed | ByTap:
        """The masked gradients of a chunk."""
        ...

    def formed(self) -> Tensor:
        """All gradients, `[batch, ...]`, in the parameter's order."""
        ...

    def rounding(self) -> Tensor:
        """How far the sum may be from what it should be, in float64 and for each unit."""
        ...

    def with_mask(self, mask: Tensor | None) -> Summable:
        """The same with a mask laid on the sum."""
        ...

    def where(self, keep: Tensor) -> Formable:
        """The same with the gradients of all units not in `keep [batch]` exactly zero."""
        ...


def zero_rows(tensor: Tensor, keep: Tensor) -> Tensor:
    """Rows not in `keep` exactly zero, whatever they were."""
    return torch.where(keep.view(-1, *[1] * (tensor.dim() - 1)), tensor, tensor.new_zeros(()))


def slices_of(tensor: Tensor, floats: int) -> list[slice]:
    """Units in chunks whose intermediate results, `floats` each, fit."""
    size, units = max(1, (CUDA_CHUNK if tensor.is_cuda else CHUNK) // max(floats, 1)), tensor.shape[0]
    return [slice(i, min(i + size, units)) for i in range(0, units, size)]


def masked(total: Tensor, mask: Tensor | None) -> Tensor:
    """Exactly zero where the mask is, whatever was there; in a captured step that is done for all sums at once, later."""
    return total if mask is None or is_steady() else total.masked_fill_(~mask.to(total.device).view(total.shape), 0)


class RecentSquares:
    """Squared lengths of rows that were asked for in a captured step: a bias and its weight have a factor in common.

    Holds the rows too, and masks, so that no others come to lie in their place.
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Tensor, Tensor, Tensor | None]] = {}
        self._expected: dict[Any, tuple[Tensor, Tensor]] = {}

    def of(self, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """`squared_lengths`."""
        if not is_steady():
            return squared_lengths(rows, mask)
        key = (_memory(rows), None if mask is None else _memory(mask))
        if key not in self._known:
            self._known[key] = (squared_lengths(rows, mask), rows, mask)
        return self._known[key][0]

    def expect(self, rows: Tensor, mask: Tensor) -> None:
        """Lengths under this mask will be asked for too: who measures the rows takes both."""
        self._expected[_memory(rows)] = (mask, rows)

    def halved(self, rows: Tensor) -> Tensor:
        """`kernels.halved`; what it measures by the way is remembered."""
        mask, _ = self._expected.get(_memory(rows), (None, rows))
        total, under, halves = kernels.halved(rows, longer_squares(rows), mask)
        self._known[_memory(rows), None] = (total, rows, None)
        if mask is not None:
            self._known[_memory(rows), _memory(mask)] = (under, rows, mask)
        return halves

    def clear(self) -> None:
        """Nobody asks any more."""
        self._known.clear()
        self._expected.clear()


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)


@dataclass(frozen=True)
class Formed:
    """Gradients `[batch, *parameter]`, of which only what the mask leaves counts."""

    grads: Tensor
    mask: Tensor | None = None
    recent: RecentSquares | None = None  # lengths of rows that others may have too

    @classmethod
    def masked(cls, grads: Tensor, mask: Tensor | None) -> Formed:
        """Gradients under a mask: laid on norms and sums where kernels do that by the way, else on the gradients, in place."""
        if mask is None or kernels.usable(grads):
            return cls(grads, None if mask is None else mask.flatten())
        return cls(grads.view(len(grads), -1).mul_(mask.flatten()))

    def measure(self, mask: Tensor | None) -> tuple[Tensor, Summable]:
        """Square and add, in float64; the same numbers make the sum."""
        if mask is None:
            return self.squared_lengths(), self
        laid = Formed.masked(self.rows if kernels.usable(self.rows) else self.rows.clone(), mask)
        known = self.recent is not None and laid.mask is not None
        return (replace(laid, recent=self.recent) if known else laid).squared_lengths(), laid

    @property
    def rows(self) -> Tensor:
        """`[batch, width]`."""
        return self.grads.reshape(self.grads.shape[0], -1)

    @property
    def width(self) -> int:
        """Entries of a gradient."""
        return self.grads[:1].numel()

    def lengths(self) -> Tensor:
        """Norms."""
        return lengths(self.rows) if self.mask is None else self.squared_lengths().sqrt()

    def squared_lengths(self) -> Tensor:
        """Squares of the norms, rounded up."""
        if self.recent is not None:
            return self.recent.of(self.rows, self.mask)
        return squared_lengths(self.rows, self.mask)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """One product of a matrix and a vector, which no setting cuts to fewer bits."""
        if kernels.usable(self.rows):
            return masked(kernels.weighted_sum(self.rows.unsqueeze(0), factors)[0], self.mask)
        return torch.mv(self.rows.T, toward_zero(factors, self.grads.dtype))

    def formed(self) -> Tensor:
        """Themselves."""
        return self.grads if self.mask is None else self.grads * self.mask.view(self.grads.shape[1:])

    def where(self, keep: Tensor) -> Formed:
        """Zero rows, unless sums leave rows of factor 0 out anyway."""
        return self if kernels.usable(self.rows) else Formed(zero_rows(self.grads, keep))

    def by_unit(self, views: int) -> PerSample:
        """Add up."""
        return Formed(self.grads.unflatten(0, (-1, views)).sum(1))


@dataclass(frozen=True)
class ByTap:
    """Formed gradients of a convolution, `[taps, batch, out, in]`; `squares [batch]`: those of their norms, if known.

    Of kernels with two axes the first may stand for the taps, and the second in front of the inputs: `[rows, batch, out,
    columns * in]`; several rows may be one stretch of columns. In bfloat16 they are what was measured and is summed.
    """

    grads: Tensor
    squares: Tensor | None = None
    columns: int = 1

    def lengths(self) -> Tensor:
        """Norms."""
        if self.squares is not None:
            return self.squared_lengths().sqrt()
        flat = self.grads.flatten(2)
        norms: Tensor = torch.linalg.vector_norm(lengths(flat.flatten(0, 1)).view(flat.shape[:2]), dim=0)
        return norms

    def squared_lengths(self) -> Tensor:
        """Squares of the norms, rounded up."""
        if self.squares is None:
            return squared(self.lengths())
        entries = self.grads.numel() // self.grads.shape[1]
        return self.squares * (1 + 2 * (entries + SAFETY) * 2.0**-53)  # of float32, which do not vanish in float64

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """A product of a matrix and a vector per tap."""
        taps, _, out, channels = self.grads.shape
        if self._added_by_kernel:
            return kernels.weighted_sum(self.grads.flatten(2), factors).view(taps, out, channels).permute(1, 2, 0)
        flat = self._wide.flatten(2)
        weights = toward_zero(factors, flat.dtype)
        cut = shortened(flat) > 0  # which a product with several matrices at once would be
        total = torch.stack([torch.mv(grads.T, weights) for grads in flat]) if cut else weights @ flat
        return total.view(taps, out, self.columns, -1).permute(1, 3, 0, 2)

    def formed(self) -> Tensor:
        """In the parameter's order."""
        by_column: Tensor = self._wide.unflatten(3, (self.columns, -1))
        return by_column.permute(1, 2, 4, 0, 3).flatten(1)

    def where(self, keep: Tensor) -> ByTap:
        """Zero rows, unless sums leave rows of factor 0 out anyway."""
        if self._added_by_kernel:
            return self
        grads = torch.where(keep.view(1, -1, 1, 1), self.grads, self.grads.new_zeros(()))
        return ByTap(grads, columns=self.columns)

    @property
    def _added_by_kernel(self) -> bool:
        return self.columns == 1 and kernels.adds(self.grads)

    @property
    def _wide(self) -> Tensor:
        return self.grads.float() if self.grads.dtype == torch.bfloat16 else self.grads


@dataclass(frozen=True)
class Narrow:
    """Formed gradients in float16, each unit's divided by its own power of two: `g_i = scales_i grads_i`, made by kernels.

    The numbers that were measured are those that are summed, so how they were rounded does not matter to the guarantee.
    """

    grads: Tensor  # [batch, entries]
    scales: Tensor  # [batch] in float64

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Powers of two go into the factors, exactly; sums are in float32."""
        return kernels.weighted_sum(self.grads.unsqueeze(0), factors * self.scales)[0]

    def formed(self) -> Tensor:
        """In float32."""
        return (self.grads * self.scales.unsqueeze(1)).float()

    def where(self, _: Tensor) -> Narrow:
        """Sums leave rows of factor 0 out."""
        return self


@dataclass(frozen=True)
class Kept:
    """Formed gradients in chunks of units: the numbers that were measured are those that are summed."""

    chunks: Sequence[Formed | ByTap]
    sizes: Sequence[int]

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Chunk by chunk."""
        parts = factors.split(self.sizes)
        total = self.chunks[0].weighted_sum(parts[0])
        for chunk, part in zip(self.chunks[1:], parts[1:], strict=True):
            total = total.add_(chunk.weighted_sum(part))
        return total

    def formed(self) -> Tensor:
        """All chunks."""
        return torch.cat([chunk.formed() for chunk in self.chunks])

    def where(self, keep: Tensor) -> Kept:
        """Zero rows."""
        parts = zip(self.chunks, keep.split(self.sizes), strict=True)
        return Kept([chunk.where(part) for chunk, part in parts], self.sizes)


@dataclass(frozen=True)
class Again:
    """Gradients too large to keep that are formed once more, chunk by chunk, and held to the norms that were promised.

    Whatever the second rounding did: `||f g'|| min(1, norm / ||g'||) <= f norm`.
    """

    gradient: Formable
    mask: Tensor | None
    norms: Tensor

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Chunk by chunk."""
        total: Tensor | None = None
        for chunk in self.gradient.slices():
            part, promised = self.gradient.form(chunk, self.mask), self.norms[chunk]
            lengths = part.lengths()
            held = torch.where(lengths > promised, promised / lengths, torch.ones_like(lengths))
            more = part.weighted_sum(factors[chunk] * held)
            total = more if total is None else total.add_(more)
        assert total is not None  # a batch has units
        return total

    def formed(self) -> Tensor:
        """All at once, for those who have the memory."""
        return self.gradient.formed()

    def where(self, keep: Tensor) -> Again:
        """Zero rows."""
        return Again(self.gradient.where(keep), self.mask, self.norms)


@dataclass(frozen=True)
class Grouped:
    """Gradients of units that were measured in groups: `(units of the group, their gradients)`."""

    parts: tuple[tuple[Tensor, Summable], ...]

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Group by group."""
        sums = [gradients.weighted_sum(factors[index]).flatten() for index, gradients in self.parts]
        return torch.stack(sums).sum(0)

    def where(self, keep: Tensor) -> Grouped:
        """Group by group."""
        return Grouped(tuple((index, gradients.where(keep[index])) for index, gradients in self.parts))

    def formed(self) -> Tensor:
        """In the order of the units."""
        grads = torch.cat([gradients.formed().flatten(1) for _, gradients in self.parts])
        return torch.empty_like(grads).index_copy_(0, torch.cat([index for index, _ in self.parts]), grads)


def measure_formed(gradient: Formable, mask: Tensor | None, size: int) -> tuple[Tensor, Summable]:
    """Norms of formed gradients of `size` floats each: kept for the sum, or computed once more for it.

    Computed anew by the fastest way where rounding either way cannot matter, else formed anew and held to these norms.
    """
    if is_steady() and most_units() * size <= room_for(gradient):
        return keep_formed(gradient, mask)
    keep = not is_steady() and gradient.units * size <= room_for(gradient)
    norms, kept, sizes = [], [], []
    for chunk in gradient.slices():
        part = gradient.form(chunk, mask)
        norms.append(part.lengths())
        if keep:
            kept.append(part)
            sizes.append(chunk.stop - chunk.start)
    lengths = torch.cat(norms)
    bounds = Bounds(lengths, lengths).moved(2 * gradient.rounding())
    known = bounds.known()
    lengths = torch.where(known, bounds.most, lengths)  # of each unit by itself: neither company nor number decides
    if keep:
        return squared(lengths), Kept(kept, sizes)
    if not is_steady() and bool(known.all()):
        return squared(lengths), gradient.with_mask(mask)
    return squared(lengths), Again(gradient, mask, lengths)


def room_for(gradient: Formable) -> int:
    """Floats of formed gradients that a parameter may keep between its norm and its sum."""
    room = CUDA_KEPT if gradient.on_gpu and is_steady() else KEPT
    return min(room, sparing.KEPT) if sparing.is_sparing() else room


def keep_formed(gradient: Formable, mask: Tensor | None) -> tuple[Tensor, Summable]:
    """Norms of gradients that are kept whoever is drawn: what was measured is what is summed, so nothing is added."""
    chunks = gradient.slices()
    kept = [gradient.form(chunk, mask) for chunk in chunks]
    squares = [part.squared_lengths() for part in kept]
    sizes = [chunk.stop - chunk.start for chunk in chunks]
    return squares[0] if len(squares) == 1 else torch.cat(squares), Kept(kept, sizes)
