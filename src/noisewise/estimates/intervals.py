"""Intervals for shares and means, one model or two models on the same people. All in closed form or by root finding.

`owner` says whose row each is. Rows of one person are not independent: then people are counted, not rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from noisewise.errors import ConfigError, DataError
from noisewise.estimates.estimate import LEVEL, Estimate


def z_score(level: float) -> float:
    """How many standard deviations either side of a normal variable's mean hold the share `level` of it."""
    from scipy.stats import norm

    return float(norm.ppf((1 + level) / 2))


def share(hits: ArrayLike, level: float = LEVEL, owner: ArrayLike | None = None) -> Estimate:
    """Share of true entries, with the Wilson score interval.

    `(p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)`; with several rows of one person n is what the rows are
    `_worth`, seldom a whole number, which scipy's `binomtest` asks for. Reference: Wilson 1927; Dean, Pagano 2015, Journal
    of Survey Statistics and Methodology 3:484.
    """
    flags = _column(hits).astype(bool)
    owners = _owners(owner, len(flags))
    n, p, z = _worth(flags.astype(np.float64), owners, level), float(flags.mean()), z_score(level)
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    # at p = 0 and p = 1 one end is exactly p; rounding must not push it past
    low, high = max(min(centre - half, p), 0.0), min(max(centre + half, p), 1.0)
    return Estimate(p, low, high, _people(owners, len(flags)), level, _method("Wilson", owners))


def mean(values: ArrayLike, level: float = LEVEL, floor: float = -math.inf, owner: ArrayLike | None = None) -> Estimate:
    """Mean with Student's t interval, no lower than `floor`, below which no value can be.

    Without end for a single person or values that are not finite. With several rows of one person the variance is that
    of sums over people: `G/(G-1) sum_g (sum_{i in g} (x_i - mean))^2 / n^2`, G people, G - 1 degrees of freedom.
    Reference: Liang, Zeger 1986.
    """
    estimate = _mean(_column(values), owner, level, "Student t")
    return replace(estimate, low=max(estimate.low, floor))


def mean_difference(
    first: ArrayLike, second: ArrayLike, level: float = LEVEL, owner: ArrayLike | None = None
) -> Estimate:
    """Mean of first - second over the same people, with the paired t interval (see `mean`)."""
    a, b = _columns(first, second)
    return _mean(a - b, owner, level, "paired t")


def share_difference(
    first: ArrayLike, second: ArrayLike, level: float = LEVEL, owner: ArrayLike | None = None
) -> Estimate:
    """Share of `first` minus share of `second` over the same people, with Tango's score interval.

    Inverts the score test of `p1 - p2 = d`, with b and c the people that only the first and only the second gets:
    `(b - c - n d)^2 = z^2 n (2 q + d (1 - d))`, q the likeliest share of the latter under d. At d = 0 this is
    McNemar's test, so the interval leaves 0 out exactly when that test rejects; it never shrinks to a point. With several
    rows of one person b, c and n shrink to what the rows are `_worth`.
    Reference: Tango 1998, Statistics in Medicine 17:891-908. Deviation: none.
    """
    from scipy.optimize import brentq

    a, b = (column.astype(bool) for column in _columns(first, second))
    owners = _owners(owner, len(a))
    n = _worth(a.astype(np.float64) - b, owners, level)
    only_first, only_second = (n * float(only.mean()) for only in (a & ~b, ~a & b))
    value, z = (float(a.sum()) - float(b.sum())) / len(a), z_score(level)

    def score(d: float) -> float:
        linear = (2 * n - only_first + only_second) * d - only_first - only_second
        root = math.sqrt(max(linear**2 + 8 * n * only_second * d * (1 - d), 0.0))
        q = (root - linear) / (4 * n)
        variance = n * (2 * q + d * (1 - d))
        gap = only_first - only_second - n * d
        return gap / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, gap) if gap else 0.0

    def end(edge: float, sign: int) -> float:
        if value == edge:
            return edge
        inside = edge + (value - edge) * 1e-12
        return inside if abs(score(inside)) <= z else float(brentq(lambda d: score(d) + sign * z, inside, value))

    people, method = _people(owners, len(a)), _method("Tango score, paired", owners)
    return Estimate(value, end(-1.0, -1), end(1.0, 1), people, level, method)


def smallest(estimates: Sequence[Estimate], level: float) -> Estimate:
    """The smallest of several values, from intervals that hold together (see `each`)."""
    low = min(estimates, key=lambda e: e.value)
    return Estimate(
        low.value, min(e.low for e in estimates), min(e.high for e in estimates), low.n, level, _together(estimates)
    )


def largest(estimates: Sequence[Estimate], level: float) -> Estimate:
    """The largest of several values, from intervals that hold together (see `each`)."""
    high = max(estimates, key=lambda e: e.value)
    return Estimate(
        high.value, max(e.low for e in estimates), max(e.high for e in estimates), high.n, level, _together(estimates)
    )


def ratio(estimates: Sequence[Estimate], level: float) -> Estimate | None:
    """Smallest over largest of several values that are at least 0, from intervals that hold together (see `each`).

    If every true value is in its interval, the true ratio is between `min low / max high` and `min high / max low` (at
    most 1). None where the largest value is 0: nothing can be divided by it.
    """
    values = [e.value for e in estimates]
    if not max(values) > 0 or not math.isfinite(max(values)):
        return None
    best_low, best_high = max(e.low for e in estimates), max(e.high for e in estimates)
    low = max(min(e.low for e in estimates), 0.0) / best_high
    high = min(min(e.high for e in estimates) / best_low, 1.0) if best_low > 0 else 1.0
    return Estimate(min(values) / max(values), low, high, min(e.n for e in estimates), level, _together(estimates))


def spread(estimates: Sequence[Estimate], level: float) -> Estimate:
    """Largest minus smallest value, from intervals that hold together (see `each`).

    If every true value is in its interval, their spread is between `max low - min high` (at least 0) and
    `max high - min low`. A bootstrap would not do: the sample's spread is too large when the true values are close.
    """
    values = [e.value for e in estimates]
    low = max(e.low for e in estimates) - min(e.high for e in estimates)
    high = max(e.high for e in estimates) - min(e.low for e in estimates)
    n = min(e.n for e in estimates)
    return Estimate(max(values) - min(values), max(low, 0.0), high, n, level, _together(estimates))


def _together(estimates: Sequence[Estimate]) -> str:
    method = estimates[0].method
    return method if method.endswith("Bonferroni") else f"{method}, Bonferroni"


def each(level: float, count: int) -> float:
    """Level of each of `count` intervals that hold together at `level` (Bonferroni)."""
    return 1 - (1 - level) / count


def one_of(estimate: Estimate, level: float, count: int) -> Estimate:
    """One of `count` intervals, made at the level that `each` gives: together they hold at `level`."""
    return estimate if count == 1 else replace(estimate, level=level, method=_together([estimate]))


def difference(first: Estimate, second: Estimate, level: float) -> Estimate:
    """first - second from two intervals that hold together, whatever dependence there is between them."""
    low, high = first.low - second.high, first.high - second.low
    return Estimate(first.value - second.value, low, high, min(first.n, second.n), level, first.method)


def independent_difference(first: Estimate, second: Estimate) -> Estimate:
    """first - second of two values on *different* people, both intervals of one level.

    `d - sqrt((a - a_low)^2 + (b_high - b)^2)` and so on. Reference: Zou, Donner 2008, Statistics in Medicine 27:1693.
    """
    if first.level != second.level:
        raise ConfigError(f"intervals of level {first.level} and {second.level}: only equal levels can be compared.")
    value = first.value - second.value
    low = value - math.hypot(first.value - first.low, second.high - second.value)
    high = value + math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(value, low, high, min(first.n, second.n), first.level, "independent difference")


def _mean(values: np.ndarray, owner: ArrayLike | None, level: float, method: str) -> Estimate:
    owners, value = _owners(owner, len(values)), float(values.mean())
    people, half = _people(owners, len(values)), math.inf
    if people > 1 and math.isfinite(value):
        half = _t(level, people) * math.sqrt(_variance(values, owners))
    return Estimate(value, value - half, value + half, people, level, _method(method, owners))


def _owners(owner: ArrayLike | None, rows: int) -> np.ndarray | None:
    """People numbered from 0; None if every row is another person's."""
    if owner is None:
        return None
    known, numbers = np.unique(np.asarray(owner), return_inverse=True)
    if numbers.shape != (rows,):
        raise DataError(f"owners of {len(numbers)} rows for {rows} values: needs one for each.")
    return None if len(known) == rows else numbers


def _people(owners: np.ndarray | None, rows: int) -> int:
    return rows if owners is None else int(owners.max()) + 1


def _method(name: str, owners: np.ndarray | None) -> str:
    return name if owners is None else f"{name}, by person"


def _t(level: float, people: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, people - 1))


def _variance(values: np.ndarray, owners: np.ndarray | None) -> float:
    """Of the mean of all rows, if people are independent (at least two)."""
    off = values - values.mean()
    sums = off if owners is None else np.bincount(owners, off)
    return len(sums) / (len(sums) - 1) * float(np.square(sums).sum()) / len(values) ** 2


def _worth(values: np.ndarray, owners: np.ndarray | None, level: float) -> float:
    """How many independent rows say as much as these: `n` over the design effect, less what few people leave unknown.

    The design effect is the variance of the mean over what it were with independent rows; rows that all say the same do
    not show it, so they count as one for each person. Times `(z/t)^2`, t with a degree of freedom less than people; never
    more than the rows. Reference: Korn, Graubard 1998, Survey Methodology 24:193.
    """
    rows = len(values)
    people = _people(owners, rows)
    if owners is None or people == 1:
        return float(people)
    alone, together = float(values.var()) / rows, _variance(values, owners)
    worth = rows * alone / together if together > 0 and alone > 0 else float(rows if alone > 0 else people)
    return min(worth * (z_score(level) / _t(level, people)) ** 2, rows)


def _column(values: ArrayLike) -> np.ndarray:
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1 or not len(column):
        raise DataError(
            f"an interval over values of shape {list(column.shape)}: give one value per person, at least one."
        )
    return column


def _columns(first: ArrayLike, second: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    a, b = _column(first), _column(second)
    if len(a) != len(b):
        raise DataError(f"paired values of {len(a)} and {len(b)} people: both must be of the same people.")
    return a, b
