"""Epsilon along a run: one composition on a coarse grid that grows from reading to reading, instead of one per reading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from noisewise.accounting import losses
from noisewise.accounting.accountants import FINEST, Events, _gaussians, _relation, _typical_loss, pld_epsilon

if TYPE_CHECKING:
    from dp_accounting import DpEvent

SLACK = 0.02  # by which a reading may exceed the finest one, relative, at the end of the plan
COARSEST = 100 * FINEST  # grid that readings begin with, or a thousandth of a larger loss


def epsilons_along(before: Events, planned: Events, counts: Sequence[int], delta: float, adjacency: str) -> list[float]:
    """Upper bounds on epsilon after `before` and the first `counts` (ascending) releases of a plan.

    Each is a pessimistic PLD like `pld_epsilon`, on the coarsest grid that is within `SLACK` of it at the end of the plan.
    Guarantee: never below the true epsilon, ascending, never above that of the whole plan; a function of the arguments alone.
    """
    whole = pld_epsilon([*before, *planned], delta, adjacency)
    if whole in (0.0, float("inf")) or _gaussians([*before, *planned]) is None:
        steps = _prefixes(planned, counts)
        return [min(pld_epsilon([*before, *part], delta, adjacency), whole) for part in steps]
    grid = min(max(COARSEST, _typical_loss([*before, *planned]) / 1e3), 1e6 * FINEST)  # e^grid must stay in range
    while True:
        readings = list(_composed(before, planned, [*counts, _length(planned)], delta, adjacency, grid))
        if readings[-1] <= (1 + SLACK) * whole or grid <= FINEST:
            break
        grid = max(grid / 3, FINEST)
    return [min(reading, whole) for reading in readings[:-1]]


def _composed(
    before: Events, planned: Events, counts: Sequence[int], delta: float, adjacency: str, grid: float
) -> Iterator[float]:
    """Epsilon at each count, by adding what came since the one before."""
    relation = _relation(adjacency)

    @cache
    def several(rate: float, sigma: float, count: int) -> Any:  # intervals are alike
        return losses.several(rate, sigma, count, relation, grid)

    total = losses.composed(_gaussians(before) or (), relation, grid)
    for part, count in zip(_between(planned, counts), counts, strict=True):
        for event in _gaussians(part) or ():
            total = total.compose(several(*event))
        yield losses.epsilon_of(total, delta) if before or count else 0.0


def _length(events: Events) -> int:
    return sum(count for _, count in events)


def _prefixes(events: Events, counts: Sequence[int]) -> list[list[tuple[DpEvent, int]]]:
    """The first releases of a plan, for each count."""
    return [_cut(events, 0, count) for count in counts]


def _between(events: Events, counts: Sequence[int]) -> list[list[tuple[DpEvent, int]]]:
    """The releases between one count and the next."""
    return [_cut(events, first, last) for first, last in zip([0, *counts[:-1]], counts, strict=True)]


def _cut(events: Events, first: int, last: int) -> list[tuple[DpEvent, int]]:
    """Releases first .. last - 1 of a plan."""
    parts, start = [], 0
    for event, count in events:
        inside = min(start + count, last) - max(start, first)
        if inside > 0:
            parts.append((event, inside))
        start += count
    return parts
