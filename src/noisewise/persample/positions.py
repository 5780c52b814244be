"""Positions of a unit that add something to its gradient, where these are few: products leave the others out.

Of a text that is judged by its first token, or padded with what no loss looks at, the gradients of most positions are exactly
zero, and with them what these positions add to norms and sums.
"""

from __future__ import annotations

from torch import Tensor

from noisewise.persample.steady import is_steady

FEW = 4  # a unit has few positions that count where they are at most one in so many
GLANCE = 8  # entries of a position that are looked at first


def that_count(factor: Tensor, other: Tensor) -> Tensor | None:
    """`[batch, time]` for two factors `[batch, time, width]`: all but zeros of the first in units with few other positions.

    None if no unit has few. Asked of each unit by itself: how its norm is taken must not depend on who else is there. Most
    factors have no zeros, which a glance at some entries tells. On a GPU nobody waits for the answer. A unit whose other
    factor is not finite keeps all its positions: zero times infinity must show in its norm, since it may in the sum.
    """
    most = factor.shape[1] // FEW
    if most == 0 or is_steady() or factor.is_cuda or factor.numel() == 0:
        return None
    few = factor[:, :, :GLANCE].any(2).sum(1) <= most
    if not bool(few.any()):
        return None
    count = (factor.amax(2) != 0) | (factor.amin(2) != 0)  # what is not a number is not zero
    few &= (count.sum(1) <= most) & other.sum((1, 2)).isfinite()
    return count | ~few.unsqueeze(1) if bool(few.any()) else None


def in_front(count: Tensor) -> tuple[Tensor, Tensor]:
    """Units `[few]` with few positions that count, and their places `[few, time // FEW]`, which hold all of these."""
    most = count.shape[1] // FEW
    units = (count.sum(1) <= most).nonzero().flatten()
    return units, count[units].argsort(dim=1, descending=True, stable=True)[:, :most]
