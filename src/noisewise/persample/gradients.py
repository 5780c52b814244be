"""Per-unit gradients of one parameter in factored form: measure their norms, then add them up with weights.

Each class stands for a batch of gradients `[batch, *parameter]` that is formed only where that is the cheaper way.

    squares, rest = gradient.measure(mask)     # ||mask * g_i||^2 for every unit in float64, and what the sum needs
    total = rest.weighted_sum(factors)         # sum_i factors_i * (mask * g_i), factors in float64

Guarantee: norms are rounded up, never down: `||weighted_sum(f)|| <= f * norm` for a lone unit, whatever rounding, TF32,
under- and overflow did to either computation, up to one rounding of the sum's type. Where positions cancel, the bound on
rounding (see `rounding`) may be large against the norm; gradients are then formed, and the same numbers serve norm and sum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from noisewise.persample.rounding import (
    ENOUGH,
    SAFETY,
    exponents,
    lengths,
    magnitudes,
    restored,
    roundoff,
    scaled,
    shortened,
    squared,
    toward_zero,
)

KEPT = 1 << 24  # floats of formed gradients that a parameter may keep between its norm and its sum
CHUNK = 1 << 20  # floats of intermediate results at a time on a CPU: stays in cache
CUDA_CHUNK = 1 << 26  # and on a GPU, where every chunk costs a launch
SLACK = 2.0**20  # of the smallest ordinary number that a term may lose: entries may exceed 1, and taps add up
TRAFFIC = 64  # multiply-adds that writing and reading one formed float is worth


class Summable(Protocol):
    """Gradients of one parameter that were measured: all that is left to do is to add them up."""

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """`sum_i factors_i g_i` with as many elements as the parameter, in its order; factors in float64."""
        ...

    def where(self, keep: Tensor) -> Summable:
        """The same with the gradients of all units not in `keep [batch]` exactly zero, whatever they were."""
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


def join(parts: Sequence[PerSample]) -> PerSample:
    """The gradients of a parameter that several calls used: positions side by side, so that cross terms count."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Rows) for part in parts):
        rows = [part for part in parts if isinstance(part, Rows)]
        return Rows(torch.cat([r.index for r in rows], 1), torch.cat([r.rows for r in rows], 1), rows[0].size)
    outers = [part.as_outer() if isinstance(part, Rows) else part for part in parts]
    if all(isinstance(part, Outer) for part in outers):
        pairs = [part for part in outers if isinstance(part, Outer)]
        return Outer(torch.cat([o.left for o in pairs], 1), torch.cat([o.right for o in pairs], 1))
    units = len(parts[0].formed())
    total = parts[0].formed().reshape(units, -1)
    for part in parts[1:]:
        total = total + part.formed().reshape(units, -1)
    return Formed(total)


def _zero_rows(tensor: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep.view(-1, *[1] * (tensor.dim() - 1)), tensor, tensor.new_zeros(()))


def _slices(tensor: Tensor, floats: int) -> list[slice]:
    """Units in chunks whose intermediate results, `floats` each, fit."""
    size, units = max(1, (CUDA_CHUNK if tensor.is_cuda else CHUNK) // max(floats, 1)), tensor.shape[0]
    return [slice(i, min(i + size, units)) for i in range(0, units, size)]


def _masked(total: Tensor, mask: Tensor | None) -> Tensor:
    """Exactly zero where the mask is, whatever was there."""
    return total if mask is None else total.masked_fill_(~mask.to(total.device).view(total.shape), 0)


class Bounds(NamedTuple):
    """What is known of norms `[batch]`, in float64: they lie between `least` and `most`."""

    least: Tensor
    most: Tensor

    def certain(self) -> bool:
        """Is every norm known well enough to use the most that it can be?"""
        return bool((self.most <= ENOUGH * self.least).all())

    def moved(self, rounding: Tensor) -> Bounds:
        """With room for another rounding on either side."""
        return Bounds((self.least - rounding).clamp(min=0), self.most + rounding)


def _dot(lefts: Tensor, rights: Tensor, rows: int, columns: int, rounding: float) -> Bounds:
    """sqrt(<L, R>) for Gram matrices of `rows` and `columns` terms each, with what the later sum may be off by.

    The entry (t, s) of L is off by at most `roundoff |l_t| |l_s|`, and the same holds for R; so the product is off by at
    most `roundoff (|l|^T |R| |l| + |r|^T |L| |r|)`, where |l_t|^2 and |r_t|^2 are the diagonals, plus the product of both
    errors, plus what vanished below the smallest ordinary number; the sum is off by `rounding |l| |r|`.
    """
    time, tiny = lefts.shape[1], SLACK * torch.finfo(lefts.dtype).tiny
    by_left, by_right = roundoff(lefts, rows), roundoff(rights, columns)
    left = lefts.diagonal(dim1=1, dim2=2).clamp(min=tiny * rows).sqrt_().unsqueeze(2)
    right = rights.diagonal(dim1=1, dim2=2).clamp(min=tiny * columns).sqrt_().unsqueeze(2)
    error = (left.transpose(1, 2) @ (rights.abs() @ left)).flatten().double().mul_(by_left)
    error += (right.transpose(1, 2) @ (lefts.abs() @ right)).flatten().double().mul_(by_right)
    error *= 1 + 2 * roundoff(lefts, 2 * time)  # it was rounded itself
    sizes = lengths(left[:, :, 0]), lengths(right[:, :, 0])
    error += (by_left * sizes[0] * sizes[1]).square_().mul_(by_right / by_left)
    error += (sizes[0].square() + sizes[1].square() + time).mul_(tiny * time * (rows + columns))
    dot = (lefts * rights).sum((1, 2), dtype=torch.float64)
    most = (dot + error).clamp_(min=0).sqrt_()
    return Bounds((dot - error).clamp_(min=0).sqrt_(), most).moved(rounding * sizes[0] * sizes[1])


def _in_range(compute: Callable[[Tensor, Tensor], Bounds], left: Tensor, right: Tensor) -> Bounds:
    """What is known of norms from two factors of each unit; once more from scaled ones where squares left their range."""
    bounds = compute(left, right)
    if bounds.certain():
        return bounds
    up, across = exponents(magnitudes(left), left.dtype), exponents(magnitudes(right), right.dtype)
    some = (left != 0).flatten(1).any(1) & (right != 0).flatten(1).any(1)  # of nothing, nothing can vanish
    found = (restored(restored(bound, up), across) for bound in compute(scaled(left, up), scaled(right, across)))
    return Bounds(*(torch.where(some, bound, torch.zeros_like(bound)) for bound in found))


@dataclass(frozen=True)
class Formed:
    """Gradients as they are, `[batch, *parameter]`."""

    grads: Tensor

    def measure(self, mask: Tensor | None) -> tuple[Tensor, Summable]:
        """Square and add, in float64; the same numbers make the sum."""
        masked = Formed(self._flat if mask is None else self._flat * mask.flatten())
        return squared(masked.lengths()), masked

    @property
    def _flat(self) -> Tensor:
        return self.grads.reshape(self.grads.shape[0], -1)

    def lengths(self) -> Tensor:
        """Norms."""
        return lengths(self._flat)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """One product of a matrix and a vector, which no setting cuts to fewer bits."""
        return torch.mv(self._flat.T, toward_zero(factors, self.grads.dtype))

    def formed(self) -> Tensor:
        """Themselves."""
        return self.grads

    def where(self, keep: Tensor) -> Formed:
        """Zero rows."""
        return Formed(_zero_rows(self.grads, keep))

    def by_unit(self, views: int) -> PerSample:
        """Add up."""
        return Formed(self.grads.unflatten(0, (-1, views)).sum(1))


@dataclass(frozen=True)
class ByTap:
    """Formed gradients of a convolution, `[taps, batch, out, in]`."""

    grads: Tensor

    def lengths(self) -> Tensor:
        """Norms."""
        flat = self.grads.flatten(2)
        return torch.linalg.vector_norm(lengths(flat.flatten(0, 1)).view(flat.shape[:2]), dim=0)

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """A product of a matrix and a vector per tap."""
        taps, _, out, channels = self.grads.shape
        weights, flat = toward_zero(factors, self.grads.dtype), self.grads.flatten(2)
        cut = shortened(flat) > 0  # which a product with several matrices at once would be
        total = torch.stack([torch.mv(grads.T, weights) for grads in flat]) if cut else weights @ flat
        return total.view(taps, out, channels).permute(1, 2, 0)

    def formed(self) -> Tensor:
        """In the parameter's order."""
        return self.grads.permute(1, 2, 3, 0).flatten(1)

    def where(self, keep: Tensor) -> ByTap:
        """Zero rows."""
        return ByTap(torch.where(keep.view(1, -1, 1, 1), self.grads, self.grads.new_zeros(())))


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

    gradient: Outer | Convolution
    mask: Tensor | None
    norms: Tensor

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Chunk by chunk."""
        total: Tensor | None = None
        for chunk in self.gradient.slices():
            part, promised = self.gradient.form(chunk, self.mask), self.norms[chunk]
            found = part.lengths()
            held = torch.where(found > promised, promised / found, torch.ones_like(found))
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


def _measure_formed(gradient: Outer | Convolution, mask: Tensor | None, size: int) -> tuple[Tensor, Summable]:
    """Norms of formed gradients of `size` floats each: kept for the sum, or computed once more for it.

    Computed anew by the fastest way where rounding either way cannot matter, else formed anew and held to these norms.
    """
    units = gradient.units
    keep = units * size <= KEPT
    norms, kept, sizes = [], [], []
    for chunk in gradient.slices():
        part = gradient.form(chunk, mask)
        norms.append(part.lengths())
        if keep:
            kept.append(part)
            sizes.append(chunk.stop - chunk.start)
    found = torch.cat(norms)
    if keep:
        return squared(found), Kept(kept, sizes)
    bounds = Bounds(found, found).moved(2 * gradient.rounding())
    if bounds.certain():
        return squared(bounds.most), replace(gradient, mask=mask)
    return squared(found), Again(gradient, mask, found)


@dataclass(frozen=True)
class Outer:
    """`g_i = sum_t left_it right_it^T`: linear layers. left `[batch, time, rows]`, right `[batch, time, columns]`."""

    left: Tensor
    right: Tensor
    mask: Tensor | None = None  # laid on the sum

    def measure(self, mask: Tensor | None) -> tuple[Tensor, Summable]:
        """One position: a product of norms. Several: Gram matrices or formed gradients, whichever is cheaper."""
        _, time, rows = self.left.shape
        columns = self.right.shape[2]
        if time == 1 and mask is None:
            return squared(self._lengths[0] * self._lengths[1] * (1 + roundoff(self.left, 1))), self
        bounds = None
        if time == 1 and mask is not None:
            bounds = self._one_masked(mask)
        elif time * time * (rows + columns) < (time + TRAFFIC) * rows * columns and mask is None:
            bounds = self.gram(roundoff(self.left, time))
        if bounds is not None and bounds.certain():
            return squared(bounds.most), self if mask is None else replace(self, mask=mask)
        return _measure_formed(self, mask, rows * columns)

    @property
    def units(self) -> int:
        """Size of the batch."""
        return self.left.shape[0]

    def rounding(self) -> Tensor:
        """How far the sum, in float64 and for each unit, may be from what it should be: norms are off by as much."""
        return roundoff(self.left, self.left.shape[1]) * self._lengths[0] * self._lengths[1]

    @cached_property
    def _lengths(self) -> tuple[Tensor, Tensor]:
        return lengths(self.left.flatten(1)), lengths(self.right.flatten(1))

    @cached_property
    def _entries(self) -> tuple[Tensor, Tensor]:
        """How large the entries of both factors are: for one position, whose norms are needed anyway, those."""
        return self._lengths if self.left.shape[1] == 1 else (magnitudes(self.left), magnitudes(self.right))

    def _one_masked(self, mask: Tensor) -> Bounds:
        """||m * l r^T||^2 = sum_jk l_j^2 m_jk r_k^2: all terms have one sign, so that rounding is relative."""
        rows, columns = self.left.shape[2], self.right.shape[2]
        shaped = mask.reshape(rows, columns).to(self.left.dtype)

        def bounds(left: Tensor, right: Tensor) -> Bounds:
            left, right = left[:, 0].square(), right[:, 0].square()
            squares = ((left @ shaped) * right).sum(1, dtype=torch.float64)
            error = 2 * roundoff(left, rows + 2)
            sizes = left.sum(1, dtype=torch.float64) + right.sum(1, dtype=torch.float64)
            lost = (1 + sizes) * SLACK * torch.finfo(left.dtype).tiny * (rows + columns)
            least = (squares - lost).clamp(min=0).sqrt() * (1 - error)
            return Bounds(least, (squares + lost).sqrt() * (1 + error))

        return _in_range(bounds, self.left, self.right)

    def gram(self, rounding: float) -> Bounds:
        """||sum_t l_t r_t^T||^2 = sum_ts <l_t, l_s> <r_t, r_s>, in chunks whose matrices fit; for `rounding` see `_dot`."""

        def bounds(left: Tensor, right: Tensor) -> Bounds:
            lefts, rights = torch.bmm(left, left.transpose(1, 2)), torch.bmm(right, right.transpose(1, 2))
            return _dot(lefts, rights, left.shape[2], right.shape[2], rounding)

        chunks = _slices(self.left, self.left.shape[1] ** 2)
        found = [_in_range(bounds, self.left[chunk], self.right[chunk]) for chunk in chunks]
        return Bounds(*map(torch.cat, zip(*found, strict=True)))

    def slices(self) -> list[slice]:
        """Units in chunks whose formed gradients fit."""
        return _slices(self.left, self.left.shape[2] * self.right.shape[2])

    def form(self, chunk: slice, mask: Tensor | None) -> Formed:
        """Batched product."""
        grads = torch.bmm(self.left[chunk].transpose(1, 2), self.right[chunk]).flatten(1)
        return Formed(grads if mask is None else grads.mul_(mask.flatten()))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """One matrix product over units and positions together, as in an ordinary backward pass.

        One factor is scaled to entries near 1, the other takes the weights: neither can vanish against the other.
        """
        if self.left.shape[2] <= self.right.shape[2]:
            left, right = _weighted(self.left, self.right, self._entries[1], factors)
        else:
            right, left = _weighted(self.right, self.left, self._entries[0], factors)
        return _masked(left.flatten(0, 1).T @ right.flatten(0, 1), self.mask)

    def formed(self) -> Tensor:
        """Batched product."""
        return torch.bmm(self.left.transpose(1, 2), self.right)

    def where(self, keep: Tensor) -> Outer:
        """Both factors zero: 0 times infinity must not come up."""
        return Outer(_zero_rows(self.left, keep), _zero_rows(self.right, keep), self.mask)

    def by_unit(self, views: int) -> PerSample:
        """A unit's rows are more positions."""
        left, right = (factor.unflatten(0, (-1, views)).flatten(1, 2) for factor in (self.left, self.right))
        return Outer(left, right, self.mask)


def _weighted(light: Tensor, heavy: Tensor, sizes: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Two factors of weighted gradients: the heavy one with entries in range, the light one with weights and scale."""
    exponent = exponents(sizes, heavy.dtype)
    weights = toward_zero(factors, light.dtype, exponent).view(-1, *[1] * (light.dim() - 1))
    return light * weights, scaled(heavy, exponent)


@dataclass(frozen=True)
class Tokens:
    """Rows of embeddings with one entry for each unit and token: unit, token `[entries]`, rows `[entries, columns]`."""

    unit: Tensor
    token: Tensor
    rows: Tensor
    units: int
    size: int

    def lengths(self) -> Tensor:
        """Norms: a unit's entries do not overlap."""
        squares = squared(lengths(self.rows))
        total = squares.new_zeros(self.units).index_add_(0, self.unit, squares)
        return (total * (1 + (len(squares) + SAFETY) * 2.0**-53)).sqrt()

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """One scatter."""
        weights = toward_zero(factors, self.rows.dtype)[self.unit]
        total = self.rows.new_zeros(self.size, self.rows.shape[1])
        return total.index_add_(0, self.token, self.rows * weights.unsqueeze(1))

    def formed(self) -> Tensor:
        """Scatter."""
        grads = self.rows.new_zeros(self.units, self.size, self.rows.shape[1])
        return grads.index_put_((self.unit, self.token), self.rows)

    def where(self, keep: Tensor) -> Tokens:
        """Zero rows."""
        return replace(self, rows=_zero_rows(self.rows, keep[self.unit]))


@dataclass(frozen=True)
class Rows:
    """`g_i = sum_t e_index(it) rows_it^T`: embeddings, never dense. index `[batch, time]`, rows `[batch, time, columns]`."""

    index: Tensor
    rows: Tensor
    size: int

    def measure(self, mask: Tensor | None) -> tuple[Tensor, Summable]:
        """Add up the rows that a unit sends to the same token, then square; the same rows make the sum."""
        units = self.index.shape[0]
        unit = torch.arange(units, device=self.index.device).unsqueeze(1)
        keys, inverse = torch.unique((unit * self.size + self.index).flatten(), return_inverse=True)
        sums = self.rows.new_zeros(keys.numel(), self.rows.shape[2]).index_add_(0, inverse, self.rows.flatten(0, 1))
        tokens = Tokens(keys // self.size, keys % self.size, sums, units, self.size)
        if mask is not None:
            tokens = replace(tokens, rows=sums * mask[tokens.token])
        return squared(tokens.lengths()), tokens

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """One scatter."""
        weighted = self.rows * toward_zero(factors, self.rows.dtype).view(-1, 1, 1)
        total = self.rows.new_zeros(self.size, self.rows.shape[2])
        return total.index_add_(0, self.index.flatten(), weighted.flatten(0, 1))

    def formed(self) -> Tensor:
        """Scatter per unit."""
        grads = self.rows.new_zeros(self.index.shape[0], self.size, self.rows.shape[2])
        return grads.scatter_add_(1, self.index.unsqueeze(2).expand_as(self.rows), self.rows)

    def as_outer(self) -> Outer:
        """With one-hot vectors on the left: for a table that is also used as a matrix."""
        return Outer(F.one_hot(self.index, self.size).to(self.rows.dtype), self.rows)

    def where(self, keep: Tensor) -> Rows:
        """Zero rows."""
        return Rows(self.index, _zero_rows(self.rows, keep), self.size)

    def by_unit(self, views: int) -> PerSample:
        """A unit's rows are more positions."""
        index, rows = (part.unflatten(0, (-1, views)).flatten(1, 2) for part in (self.index, self.rows))
        return Rows(index, rows, self.size)


@dataclass(frozen=True)
class Convolution:
    """Gradients of a convolution's weight, over any number of axes: the padded input correlated with the output's gradient.

    `g_i[o, c, u] = sum_t grad_i[o, t] padded_i[c, stride t + dilation u]`, without unfolding where it can be helped: with
    stride 1, and the output's gradient widened to the padded size, tap u is an offset into the flattened input.
    input `[batch, in, *axes]`, grad `[batch, out, *axes']`, padding ((before, after), ...) per axis.
    """

    input: Tensor
    grad: Tensor
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    mask: Tensor | None = None

    def measure(self, mask: Tensor | None) -> tuple[Tensor, Summable]:
        """The cheapest exact way for this shape: Gram matrices or formed gradients, by shifting or by unfolding."""
        out, channels = self.grad.shape[1], self.input.shape[1]
        time, taps = math.prod(self.grad.shape[2:]), math.prod(self.kernel)
        size = taps * channels * out // self.groups
        bounds = None
        if mask is None and self._shifts:
            area, wide = math.prod(self._sizes()), self.grad.shape[2] * math.prod(self._sizes()[1:])
            if area * area * channels + wide * wide * (out + TRAFFIC / 8 * taps) < (time + TRAFFIC) * size:
                bounds = self._shifted_gram(self._roundoff)
        elif mask is None and self.groups == 1 and time * time * (taps * channels + out) < (time + TRAFFIC) * size:
            columns = self._columns(slice(None))[:, 0].transpose(1, 2)
            bounds = Outer(self.grad.flatten(2).transpose(1, 2), columns).gram(self._roundoff)
        if bounds is not None and bounds.certain():
            return squared(bounds.most), self
        return _measure_formed(self, mask, size)

    @property
    def units(self) -> int:
        """Size of the batch."""
        return self.grad.shape[0]

    def rounding(self) -> Tensor:
        """How far the sum, in float64 and for each unit, may be from what it should be: norms are off by as much."""
        return (
            self._roundoff
            * math.sqrt(math.prod(self.kernel))
            * lengths(self.input.flatten(1))
            * lengths(self.grad.flatten(1))
        )

    @property
    def _roundoff(self) -> float:
        return roundoff(self.grad, math.prod(self.grad.shape[2:]), convolution=True)

    @property
    def _shifts(self) -> bool:
        """Is a tap an offset into the flattened input, and are there channels enough for products over them?"""
        return set(self.stride) == {1} and self.groups == 1 and self.input.shape[1] >= 8

    def _sizes(self) -> list[int]:
        """Size of each axis of the padded input."""
        return [size + sum(pads) for size, pads in zip(self.input.shape[2:], self.padding, strict=True)]

    def _padded(self, chunk: slice) -> Tensor:
        pads = [pad for pair in reversed(self.padding) for pad in pair]
        return F.pad(self.input[chunk], pads) if any(pads) else self.input[chunk]

    def _flat(self, chunk: slice) -> tuple[Tensor, Tensor]:
        """Gradient and input of some units with all positions in one axis."""
        sizes = self._sizes()
        spare = [size - have for size, have in zip(sizes, self.grad.shape[2:], strict=True)]
        grad = F.pad(self.grad[chunk], [pad for gap in reversed(spare[1:]) for pad in (0, gap)]).flatten(2)
        reach = sum(gap * math.prod(sizes[axis + 1 :]) for axis, gap in enumerate(spare) if axis)
        grad = grad[:, :, : grad.shape[2] - reach]  # behind the last position nothing needs widening
        return grad, self._padded(chunk).flatten(2)

    def _offsets(self) -> list[int]:
        """Where each tap is on the one axis."""
        sizes = self._sizes()
        steps = [d * math.prod(sizes[axis + 1 :]) for axis, d in enumerate(self.dilation)]
        taps = itertools.product(*(range(k) for k in self.kernel))
        return [sum(u * step for u, step in zip(tap, steps, strict=True)) for tap in taps]

    def _shifted_gram(self, rounding: float) -> Bounds:
        """Sum over taps of <X^T X shifted along its diagonal, G^T G>."""
        area, offsets = math.prod(self._sizes()), self._offsets()

        def bounds(grad: Tensor, inputs: Tensor) -> Bounds:
            time = grad.shape[2]
            grams, grads = torch.bmm(inputs.transpose(1, 2), inputs), torch.bmm(grad.transpose(1, 2), grad)
            shifted = grams[:, :time, :time].clone()
            for offset in offsets[1:]:
                shifted += grams[:, offset : offset + time, offset : offset + time]
            return _dot(shifted, grads, inputs.shape[1] + len(offsets), grad.shape[1], rounding)

        chunks = _slices(self.grad, 2 * area**2 + area * self.input.shape[1])
        found = [_in_range(bounds, *self._flat(chunk)) for chunk in chunks]
        return Bounds(*map(torch.cat, zip(*found, strict=True)))

    def slices(self) -> list[slice]:
        """Units in chunks whose formed gradients, and what they are formed from, fit."""
        out, channels = self.grad.shape[1], self.input.shape[1]
        time, taps = math.prod(self.grad.shape[2:]), math.prod(self.kernel)
        floats = taps * out * channels // self.groups
        if self._shifts:
            return _slices(self.grad, floats + math.prod(self._sizes()) * (channels + out))
        return _slices(self.grad, floats + channels * taps * time)

    def form(self, chunk: slice, mask: Tensor | None) -> Formed | ByTap:
        """By shifting, one batched product per tap, or by unfolding."""
        if self._shifts:
            (grad, inputs), offsets = self._flat(chunk), self._offsets()
            time = grad.shape[2]
            grads = grad.new_empty(len(offsets), grad.shape[0], grad.shape[1], inputs.shape[1])
            for tap, offset in enumerate(offsets):
                torch.bmm(grad, inputs[:, :, offset : offset + time].transpose(1, 2), out=grads[tap])
            if mask is not None:
                grads.mul_(mask.flatten(2).permute(2, 0, 1).unsqueeze(1))
            return ByTap(grads)
        grads = self._unfolded(chunk)
        return Formed(grads if mask is None else grads.mul_(mask.flatten()))

    def _unfolded(self, chunk: slice) -> Tensor:
        """Gradients `[batch, out * in / groups * taps]` from unfolded inputs."""
        grad = self.grad[chunk].flatten(2).unflatten(1, (self.groups, -1))
        return (grad @ self._columns(chunk).transpose(2, 3)).flatten(1)

    def _columns(self, chunk: slice) -> Tensor:
        """Unfolded input `[batch, groups, in / groups * taps, time]`; a strided copy is faster than `F.unfold`."""
        padded = self._padded(chunk)
        sizes = self.grad.shape[2:]
        steps = padded.stride()
        taps = tuple(d * step for d, step in zip(self.dilation, steps[2:], strict=True))
        moves = tuple(s * step for s, step in zip(self.stride, steps[2:], strict=True))
        view = padded.as_strided((*padded.shape[:2], *self.kernel, *sizes), (*steps[:2], *taps, *moves))
        return view.reshape(padded.shape[0], self.groups, -1, math.prod(sizes))

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """The ordinary weight gradient of the weighted output gradient."""
        even = all(before == after for before, after in self.padding)
        axes = len(self.kernel)
        input = self.input if even else self._padded(slice(None))
        grad, input = _weighted(self.grad, input, magnitudes(self.input), factors)
        weight = grad.new_empty(1).expand(grad.shape[1], self.input.shape[1] // self.groups, *self.kernel)
        total = torch.ops.aten.convolution_backward(
            grad,
            input,
            weight,
            None,
            self.stride,
            [before if even else 0 for before, _ in self.padding],
            self.dilation,
            False,
            [0] * axes,
            self.groups,
            (False, True, False),
        )[1]
        return _masked(total, self.mask)

    def formed(self) -> Tensor:
        """By unfolding."""
        return self._unfolded(slice(None))

    def where(self, keep: Tensor) -> Convolution:
        """Both factors zero."""
        return replace(self, input=_zero_rows(self.input, keep), grad=_zero_rows(self.grad, keep))

    def by_unit(self, views: int) -> PerSample:
        """A unit's rows are one more axis, along which the kernel has size 1."""
        if len(self.kernel) == 3:  # PyTorch has no convolution over four axes
            return Formed(self.formed()).by_unit(views)
        input, grad = (part.unflatten(0, (-1, views)).transpose(1, 2) for part in (self.input, self.grad))
        return Convolution(
            input.contiguous(),
            grad.contiguous(),
            (1, *self.kernel),
            (1, *self.stride),
            ((0, 0), *self.padding),
            (1, *self.dilation),
            self.groups,
            self.mask,
        )
