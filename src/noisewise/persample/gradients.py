"""Per-unit gradients of one parameter in factored form: measure their norms, then add them up with weights.

Each class stands for a batch of gradients `[batch, *parameter]` that is formed only where that is the cheaper way.

    squares, rest = gradient.measure(mask)     # ||mask * g_i||^2 for every unit in float64, and what the sum needs
    total = rest.weighted_sum(factors)         # sum_i factors_i * (mask * g_i), factors in float64

Guarantee: norms are rounded up, never down: `||weighted_sum(f)|| <= f * norm` for a lone unit, whatever rounding, TF32,
under- and overflow did to either computation, up to one rounding of the sum's type. Where positions cancel, the bound on
rounding (see `rounding`) may be large against the norm; gradients are then formed, and the same numbers serve norm and sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from noisewise._moved import old_names
from noisewise.persample import kernels, positions
from noisewise.persample.bounds import SLACK, Bounds, dot_bounds, in_range
from noisewise.persample.formed import (
    CUDA_FORMED,
    TRAFFIC,
    Formed,
    Narrow,
    PerSample,
    RecentSquares,
    Summable,
    masked,
    measure_formed,
    room_for,
    slices_of,
    zero_rows,
)
from noisewise.persample.rounding import (
    SAFETY,
    exponents,
    lengths,
    longer_squares,
    magnitudes,
    roundoff,
    scaled,
    shortened,
    squared,
    squared_lengths,
    toward_zero,
)
from noisewise.persample.steady import is_steady, most_units

NARROW = 64  # rows and columns of a gradient that fill a kernel's tiles
LONGEST = 2048  # positions over which sums of float16 are formed whatever the scale of their factors is

T = TypeVar("T")

KNOWN = ("_squares", "_lengths", "_count")  # of both factors, whatever the mask


class Last(Generic[T]):
    """What was made of the tensor that was asked for last. Holds it, so that no other comes to lie in its place."""

    def __init__(self, make: Callable[[Tensor], T]) -> None:
        self._make = make
        self._known: tuple[Any, T, Tensor] | None = None

    def of(self, tensor: Tensor) -> T:
        """Made, or remembered."""
        memory = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)
        if self._known is None or self._known[0] != memory:
            self._known = (memory, self._make(tensor), tensor)
        return self._known[1]

    def clear(self) -> None:
        """Nobody asks any more."""
        self._known = None


class Recent:
    """What was made of factors that others may have too: queries, keys and values have their input in common.

    grams: `f f^T` of each unit. narrowed: in float16, for kernels. squares: of the lengths of rows.
    """

    def __init__(self) -> None:
        self.grams = Last(lambda factor: torch.bmm(factor, factor.transpose(1, 2)))
        self.narrowed = Last(kernels.narrowed)
        self.squares = RecentSquares()

    def clear(self) -> None:
        """Nobody asks any more."""
        for one in (self.grams, self.narrowed, self.squares):
            one.clear()


@dataclass(frozen=True)
class Outer:
    """`g_i = sum_t left_it right_it^T`: linear layers. left `[batch, time, rows]`, right `[batch, time, columns]`."""

    left: Tensor
    right: Tensor
    mask: Tensor | None = None  # laid on the sum
    recent: Recent | None = None  # of the factor on the right, if others may have it too

    def measure(self, mask: Tensor | None) -> tuple[Tensor, Summable]:
        """One position: a product of norms. Several: Gram matrices or formed gradients, whichever is cheaper."""
        _, time, rows = self.left.shape
        columns = self.right.shape[2]
        if time == 1 and mask is None:
            longer = 1 + roundoff(self.left, 1)
            if kernels.usable(self.left, self.right):  # squares of float32 neither vanish nor overflow in float64
                return (self._squares[0] * self._squares[1]).mul_(longer**2 + 2.0**-50), self
            return squared(self._lengths[0] * self._lengths[1] * longer), self
        if self._narrows:
            return self._narrowed(mask)
        bounds = None
        if time == 1 and mask is not None and is_steady() and kernels.usable(self.left, self.right):
            return self._one_masked_roughly(mask), self.with_mask(mask)
        if time == 1 and mask is not None:
            bounds = self._one_masked(mask)
        elif mask is None and self._few_positions:
            bounds = self._gram_of_few(roundoff(self.left, time))
        if bounds is not None and bounds.certain():
            return squared(bounds.most), self if mask is None else self.with_mask(mask)
        squares, gradients = measure_formed(self, mask, rows * columns)
        return (squares if bounds is None else bounds.or_else(squares)), gradients

    @property
    def _few_positions(self) -> bool:
        """Are Gram matrices of positions cheaper than gradients that are formed?

        On a GPU a captured step forms more: writing and reading costs less than many small operations. The number of units
        is not asked: norms would follow it.
        """
        _, time, rows = self.left.shape
        size = rows * self.right.shape[2]
        if is_steady() and kernels.usable(self.left, self.right) and size <= CUDA_FORMED:
            return False
        return time * time * (rows + self.right.shape[2]) < (time + TRAFFIC) * size

    @property
    def _narrows(self) -> bool:
        """In a captured step: are gradients formed in float16, and kept so, whoever is drawn?

        Where products may be cut to the ten bits of TF32, which is what float16 has, and fill a kernel's tiles. Half as much is
        written and read, and norms are measured by the way.
        """
        _, time, rows = self.left.shape
        columns = self.right.shape[2]
        wide = (
            1 < time <= LONGEST
            and min(rows, columns) >= NARROW
            and is_steady()
            and kernels.usable(self.left, self.right)
        )
        fits = wide and not self._few_positions and most_units() * rows * columns <= room_for(self)
        return fits and shortened(self.left) > 0

    def _narrowed(self, mask: Tensor | None) -> tuple[Tensor, Summable]:
        """Norms of gradients that are kept in float16."""
        right = kernels.narrowed(self.right) if self.recent is None else self.recent.narrowed.of(self.right)
        grads, scales, squares = kernels.outers(kernels.narrowed(self.left), right, mask)
        return squares, Narrow(grads, scales)

    def with_mask(self, mask: Tensor | None) -> Outer:
        """The mask is laid on the sum; lengths that are known stay known."""
        masked = replace(self, mask=mask)
        masked.__dict__.update({name: known for name, known in vars(self).items() if name in KNOWN})
        return masked

    @property
    def units(self) -> int:
        """Size of the batch."""
        return self.left.shape[0]

    @property
    def on_gpu(self) -> bool:
        """Is it computed there?"""
        return self.left.is_cuda

    def rounding(self) -> Tensor:
        """How far the sum, in float64 and for each unit, may be from what it should be: norms are off by as much."""
        return roundoff(self.left, self.left.shape[1]) * self._lengths[0] * self._lengths[1]

    @cached_property
    def _lengths(self) -> tuple[Tensor, Tensor]:
        return lengths(self.left.flatten(1)), lengths(self.right.flatten(1))

    @cached_property
    def _squares(self) -> tuple[Tensor, Tensor]:
        of = squared_lengths if self.recent is None else self.recent.squares.of
        return of(self.left.flatten(1)), of(self.right.flatten(1))

    @cached_property
    def _entries(self) -> tuple[Tensor, Tensor]:
        """How large the entries of both factors are: norms, where they are known anyway (one position, Gram matrices)."""
        return (magnitudes(self.left), magnitudes(self.right)) if self.left.shape[1] > 1 else self._lengths

    def _weighted(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Both factors of the sum; the narrow one takes the weights."""
        swapped = self.left.shape[2] > self.right.shape[2]
        light, heavy = (self.right, self.left) if swapped else (self.left, self.right)
        heavier = 0 if swapped else 1
        if "_squares" in vars(self):  # of one position, by kernels
            turned = is_steady() and shortened(light) > 0  # which products of TF32 want
            size = self._squares[heavier]
            light, heavy = kernels.weighted_pair(light, heavy, size, factors, squared=True, turned=turned)
        else:
            light, heavy = weighted(light, heavy, self._entries[heavier], factors)
        return (heavy, light) if swapped else (light, heavy)

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

        return in_range(bounds, self.left, self.right)

    def _one_masked_roughly(self, mask: Tensor) -> Tensor:
        """The same by one product in float16, where no norm is asked whether it is known well enough.

        Squares of the left, scaled to 2^14 at most, are rounded up; their sums over `rows` terms are off by 2^-11 and by
        the rounding of sums in float32; below the range of float16, 2^-37 of the whole may vanish in each of them.
        """
        left, right = (one.squeeze(1) for one in (self.left, self.right))
        rows = left.shape[1]
        known = RecentSquares() if self.recent is None else self.recent.squares
        halves = known.halved(left)
        size = known.of(left)
        sums = (1 + roundoff(self.left, 1)) ** 2
        longer, lost = sums * (1 + 2.0**-10 + (rows + SAFETY) * 2.0**-21), sums * (rows + 1) * 2.0**-37
        more = longer_squares(right)
        squares, other = kernels.masked_squares(halves, right, mask.view(rows, -1), size, more, longer, lost)
        self.__dict__["_squares"] = (size, other)
        return squares

    def _gram_of_few(self, rounding: float) -> Bounds:
        """`gram`, where units with few positions that count have matrices of these alone; `weighted_sum` takes no others."""
        if self._count is None:
            return self.gram(rounding)
        units, places = positions.in_front(self._count)
        few = self._taken(units.unsqueeze(1), places).gram(rounding)
        if len(units) == self.units:
            return few
        others = self._count.all(1).nonzero().flatten()
        pairs = zip(few, Outer(self.left[others], self.right[others]).gram(rounding), strict=True)
        back = torch.cat([units, others]).argsort()
        return Bounds(*(torch.cat(pair)[back] for pair in pairs))

    @cached_property
    def _count(self) -> Tensor | None:
        """`positions.that_count`; the gradient of an output is on the left of linear layers."""
        return positions.that_count(self.left, self.right)

    def _taken(self, units: Tensor, places: Tensor) -> Outer:
        """Some positions of some units."""
        return Outer(self.left[units, places], self.right[units, places], self.mask)

    def gram(self, rounding: float) -> Bounds:
        """||sum_t l_t r_t^T||^2 = sum_ts <l_t, l_s> <r_t, r_s>, in chunks that fit; for `rounding` see `dot_bounds`."""
        lengths: list[tuple[Tensor, Tensor]] = []

        def bounds(left: Tensor, right: Tensor) -> Bounds:
            lefts, rights = torch.bmm(left, left.transpose(1, 2)), self._right_gram(right)
            lengths.append((_length_of(lefts), _length_of(rights)))
            return dot_bounds(lefts, rights, left.shape[2], right.shape[2], rounding)

        chunks = slices_of(self.left, self.left.shape[1] ** 2)
        parts = [in_range(bounds, self.left[chunk], self.right[chunk]) for chunk in chunks]
        if len(lengths) == len(chunks):  # no factor had to be scaled
            self.__dict__["_entries"] = tuple(map(torch.cat, zip(*lengths, strict=True)))
        return Bounds(*map(torch.cat, zip(*parts, strict=True)))

    def _right_gram(self, right: Tensor) -> Tensor:
        """`right right^T` of some units: of the factor itself remembered, for others that share it; of a scaled one not."""
        if self.recent is None or right.untyped_storage()._cdata != self.right.untyped_storage()._cdata:
            return torch.bmm(right, right.transpose(1, 2))
        return self.recent.grams.of(right)

    def slices(self) -> list[slice]:
        """Units in chunks whose formed gradients fit."""
        return slices_of(self.left, self.left.shape[2] * self.right.shape[2])

    def form(self, chunk: slice, mask: Tensor | None) -> Formed:
        """Batched product."""
        return Formed.masked(torch.bmm(self.left[chunk].transpose(1, 2), self.right[chunk]).flatten(1), mask)

    def weighted_sum(self, factors: Tensor, into: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """One matrix product over units and positions together, as in an ordinary backward pass.

        One factor is scaled to entries near 1, the other takes the weights: neither can vanish against the other.
        `into`: a sum over other units, in whose memory this one is added to it. `out`: else the memory that it is to lie in.
        Positions that do not count are in no norm, so they must not be here either: a huge input at one of them would decide
        how the others are scaled.
        """
        if self._count is not None:
            units, places = self._count.nonzero(as_tuple=True)
            return self._taken(units.unsqueeze(1), places.unsqueeze(1)).weighted_sum(factors[units], into, out)
        left, right = self._weighted(factors)
        if left.stride(0) < left.stride(1):  # time first in memory: in that order nothing is copied
            left, right = left.transpose(0, 1), right.transpose(0, 1)
        left, right = left.flatten(0, 1).T, right.flatten(0, 1)
        if into is not None:
            total = into.view(len(left), -1).addmm_(left, right)
        else:
            total = torch.mm(left, right, out=None if out is None else out.view(len(left), -1))
        return masked(total, self.mask)

    def formed(self) -> Tensor:
        """Batched product."""
        return torch.bmm(self.left.transpose(1, 2), self.right)

    def where(self, keep: Tensor) -> Outer:
        """Both factors zero: 0 times infinity must not come up."""
        if kernels.usable(self.left, self.right):
            return self
        return Outer(zero_rows(self.left, keep), zero_rows(self.right, keep), self.mask)

    def by_unit(self, views: int) -> PerSample:
        """A unit's rows are more positions."""
        left, right = (factor.unflatten(0, (-1, views)).flatten(1, 2) for factor in (self.left, self.right))
        return Outer(left, right, self.mask)


def _length_of(grams: Tensor) -> Tensor:
    """Norms of the factors of Gram matrices."""
    return grams.diagonal(dim1=1, dim2=2).sum(1).sqrt_()


def weighted(light: Tensor, heavy: Tensor, sizes: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Two factors of weighted gradients: the heavy one with entries in range, the light one with weights and scale."""
    if kernels.usable(light, heavy):
        return kernels.weighted_pair(light, heavy, sizes, factors)
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
        return replace(self, rows=zero_rows(self.rows, keep[self.unit]))


@dataclass(frozen=True)
class Rows:
    """`g_i = sum_t e_index(it) rows_it^T`: embeddings, never dense. index `[batch, time]`, rows `[batch, time, columns]`."""

    index: Tensor
    rows: Tensor
    size: int

    def measure(self, mask: Tensor | None) -> tuple[Tensor, Summable]:
        """Add up the rows that a unit sends to the same token, then square; the same rows make the sum."""
        units = self.index.shape[0]
        if is_steady():
            return self._measure_steadily(mask)
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

    def _measure_steadily(self, mask: Tensor | None) -> tuple[Tensor, Summable]:
        """The same in fixed shapes: every position keeps a row, which is zero where its token stood earlier."""
        units, time = self.index.shape
        same = self.index.unsqueeze(2) == self.index.unsqueeze(1)  # [batch, time, time]
        first = ~same.tril(-1).any(2)
        sums = torch.bmm((same & first.unsqueeze(2)).to(self.rows.dtype), self.rows)
        if mask is not None:
            sums = sums * mask[self.index]
        unit = torch.arange(units, device=self.index.device).repeat_interleave(time)
        tokens = Tokens(unit, self.index.flatten(), sums.flatten(0, 1), units, self.size)
        return squared_lengths(sums.flatten(1)), tokens

    def as_outer(self) -> Outer:
        """With one-hot vectors on the left: for a table that is also used as a matrix."""
        return Outer(F.one_hot(self.index, self.size).to(self.rows.dtype), self.rows)

    def where(self, keep: Tensor) -> Rows:
        """Zero rows."""
        return Rows(self.index, zero_rows(self.rows, keep), self.size)

    def by_unit(self, views: int) -> PerSample:
        """A unit's rows are more positions."""
        index, rows = (part.unflatten(0, (-1, views)).flatten(1, 2) for part in (self.index, self.rows))
        return Rows(index, rows, self.size)


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


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
