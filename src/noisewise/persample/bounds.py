"""What is known of norms that were rounded: they lie between two bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from noisewise.persample.rounding import (
    ENOUGH,
    exponents,
    lengths,
    magnitudes,
    restored,
    roundoff,
    scaled,
    squared,
)
from noisewise.persample.steady import is_steady

PRECISE = 1.002  # norms known so well need no finer bound: at most a thousandth is added
SLACK = 2.0**20  # of the smallest ordinary number that a term may lose: entries may exceed 1, and taps add up


class Bounds(NamedTuple):
    """What is known of norms `[batch]`, in float64: they lie between `least` and `most`."""

    least: Tensor
    most: Tensor

    def known(self) -> Tensor:
        """Of each unit `[batch]`: is its norm known well enough to use the most that it can be?"""
        return self.most <= ENOUGH * self.least

    def certain(self) -> bool:
        """Is every norm known so? Not asked where nothing may be."""
        return is_steady() or bool(self.known().all())

    def or_else(self, squares: Tensor) -> Tensor:
        """Squares of norms: the most that they can be, where that is known well, else the given ones.

        Unit by unit: what one counts with must not depend on who else is there, or all others would move with it.
        """
        return torch.where(self.known(), squared(self.most), squares)

    def moved(self, rounding: Tensor) -> Bounds:
        """With room for another rounding on either side."""
        return Bounds((self.least - rounding).clamp(min=0), self.most + rounding)


def dot_bounds(lefts: Tensor, rights: Tensor, rows: int, columns: int, rounding: float) -> Bounds:
    """sqrt(<L, R>) for Gram matrices of `rows` and `columns` terms each, with what the later sum may be off by.

    The entry (t, s) of L is off by at most `roundoff |l_t| |l_s|`, and the same holds for R; so the product is off by at
    most `roundoff (|l|^T |R| |l| + |r|^T |L| |r|)`, where |l_t|^2 and |r_t|^2 are the diagonals, plus the product of both
    errors, plus what vanished below the smallest ordinary number; the sum is off by `rounding |l| |r|`.
    Neither form is more than `(sum_t |l_t| |r_t|)^2` (Cauchy and Schwarz), which is asked first: for units whose norm it
    leaves known to `PRECISE`, the forms themselves could tell no more.
    """
    time, tiny = lefts.shape[1], SLACK * torch.finfo(lefts.dtype).tiny
    by_left, by_right = roundoff(lefts, rows), roundoff(rights, columns)
    left = lefts.diagonal(dim1=1, dim2=2).clamp(min=tiny * rows).sqrt_()
    right = rights.diagonal(dim1=1, dim2=2).clamp(min=tiny * columns).sqrt_()
    sizes = lengths(left), lengths(right)
    product = sizes[0] * sizes[1]
    rest = (by_left * product).square_().mul_(by_right / by_left)
    rest += (sizes[0].square() + sizes[1].square() + time).mul_(tiny * time * (rows + columns))
    later = rounding * product
    dot = (lefts * rights).sum((1, 2), dtype=torch.float64)
    slack = 1 + 2 * (roundoff(lefts, 2 * time) + by_left + by_right)  # the error was rounded itself

    def within(error: Tensor) -> Bounds:
        error = error.mul_(slack).add_(rest)
        return Bounds((dot - error).clamp_(min=0).sqrt_(), (dot + error).clamp_(min=0).sqrt_())

    def fine() -> Bounds:
        by_forms = _form(rights, left.unsqueeze(2)).double().mul_(by_left)
        return within(by_forms.add_(_form(lefts, right.unsqueeze(2)).double(), alpha=by_right))

    if is_steady():
        return fine().moved(later)
    rough = within((left * right).sum(1, dtype=torch.float64).square_().mul_(by_left + by_right))
    good = rough.most <= PRECISE * rough.least
    if bool(good.all()):
        return rough.moved(later)
    return Bounds(*(torch.where(good, *pair) for pair in zip(rough, fine(), strict=True))).moved(later)


def _form(grams: Tensor, sizes: Tensor) -> Tensor:
    """`s^T |G| s` for `[batch, time, time]` and `[batch, time, 1]`: sums of `time` terms, twice."""
    if grams.is_cuda:
        return (sizes.transpose(1, 2) @ (grams.abs() @ sizes)).flatten()
    rows = grams.abs().mul_(sizes.transpose(1, 2)).sum(2)  # a product with one column is slower than this
    return rows.mul_(sizes[:, :, 0]).sum(1)


def in_range(compute: Callable[[Tensor, Tensor], Bounds], left: Tensor, right: Tensor) -> Bounds:
    """What is known of norms from two factors of each unit; once more from scaled ones where squares left their range."""
    if not is_steady():
        bounds = compute(left, right)
        known = bounds.known()
        if bool(known.all()):
            return bounds
    sizes = magnitudes(left), magnitudes(right)
    up, across = exponents(sizes[0], left.dtype), exponents(sizes[1], right.dtype)
    some = (sizes[0] != 0) & (sizes[1] != 0)  # of nothing, nothing can vanish
    unscaled = (restored(restored(bound, up), across) for bound in compute(scaled(left, up), scaled(right, across)))
    again = Bounds(*(torch.where(some, bound, torch.zeros_like(bound)) for bound in unscaled))
    return again if is_steady() else Bounds(*(torch.where(known, *pair) for pair in zip(bounds, again, strict=True)))
