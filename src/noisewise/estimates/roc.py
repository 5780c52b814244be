"""How well scores tell two kinds of people apart: area under the ROC curve, rates at a threshold, and their intervals."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from noisewise.errors import DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate

CURVE = 81  # points of a saved ROC curve


def auc(inside: ArrayLike, outside: ArrayLike, level: float = LEVEL) -> Estimate:
    """Share of pairs (member, other) in which the member scores higher, ties half, with DeLong's interval.

    `var = var(V10)/m + var(V01)/n`, V10 and V01 the shares of others (members) that each member (other) beats (that beat
    it); on the logit scale, so that it stays in (0, 1). Where the scores leave no variance (complete separation, all
    equal), Newcombe's interval, which does not shrink to a point.
    Reference: DeLong, DeLong, Clarke-Pearson 1988; Newcombe 2006, Statistics in Medicine 25:559 (method 5).
    """
    from scipy.special import expit

    a, b = _column(inside), _column(outside)
    above, below = _placements(a, b)
    value, error = float(above.mean()), math.sqrt(_variance(above, below))
    if error < 1e-10:
        low, high = _newcombe(value, len(a), len(b), level)
        return Estimate(value, low, high, len(a) + len(b), level, "Newcombe")
    centre = math.log(value / (1 - value))
    half = intervals.z_score(level) * error / (value * (1 - value))
    low, high = (float(expit(end)) for end in (centre - half, centre + half))
    return Estimate(value, low, high, len(a) + len(b), level, "DeLong, logit")


def auc_difference(
    first: tuple[ArrayLike, ArrayLike], second: tuple[ArrayLike, ArrayLike], level: float = LEVEL
) -> Estimate:
    """AUC of `first` (inside, outside) minus that of `second` on the same people, with DeLong's paired interval.

    Where the scores leave no variance, the difference of two single intervals that hold together.
    Reference: DeLong, DeLong, Clarke-Pearson 1988.
    """
    (a, b), (c, d) = (tuple(_column(side) for side in pair) for pair in (first, second))
    if (len(a), len(b)) != (len(c), len(d)):
        raise DataError(f"{len(a)} + {len(b)} and {len(c)} + {len(d)} scores: both must be of the same people.")
    one, two = _placements(a, b), _placements(c, d)
    value = float(one[0].mean() - two[0].mean())
    error = math.sqrt(_variance(one[0] - two[0], one[1] - two[1]))
    if error < 1e-10:
        both = intervals.each(level, 2)
        return intervals.difference(auc(a, b, both), auc(c, d, both), level)
    half = intervals.z_score(level) * error
    return Estimate(value, max(value - half, -1.0), min(value + half, 1.0), len(a) + len(b), level, "DeLong, paired")


def threshold(calibration: ArrayLike, rate: float) -> float | None:
    """Score above which a row is taken for a member, at most `rate` of new non-members on average; None: too few.

    The `floor(rate (k + 1))`-th highest of k non-members' scores: a new one exceeds it with probability at most
    `floor(rate (k + 1)) / (k + 1)`, whatever the distribution.
    """
    scores = np.sort(_column(calibration))[::-1]
    place = math.floor(rate * (len(scores) + 1) + 1e-9)
    return float(scores[place - 1]) if place else None


def exact_share(hits: ArrayLike, level: float = LEVEL) -> Estimate:
    """Share of true entries, with the exact binomial interval. Reference: Clopper, Pearson 1934."""
    from scipy.stats import binomtest

    flags = np.asarray(hits, dtype=bool)
    ends = binomtest(int(flags.sum()), len(flags)).proportion_ci(level, "exact")
    return Estimate(float(flags.mean()), float(ends.low), float(ends.high), len(flags), level, "Clopper-Pearson")


def roc(inside: np.ndarray, outside: np.ndarray, points: int = CURVE) -> list[list[float]]:
    """Largest true-positive rate at false-positive rates of at most `1/n ... 1`, evenly spaced on a logarithmic scale."""
    from sklearn.metrics import roc_curve

    labels = np.repeat([1, 0], [len(inside), len(outside)])
    false, true, _ = roc_curve(labels, np.concatenate([inside, outside]), drop_intermediate=False)
    aims = np.geomspace(1 / len(outside), 1, points)
    aims[-1] = 1.0
    return [[float(aim), float(true[np.searchsorted(false, aim + 1e-12, side="right") - 1])] for aim in aims]


def _column(scores: ArrayLike) -> np.ndarray:
    column = np.asarray(scores, dtype=np.float64)
    if column.ndim != 1 or not len(column) or np.isnan(column).any():
        raise DataError(f"scores of shape {list(column.shape)}: one number per row, none of them missing.")
    return column


def _placements(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Share of others below each member, share of members above each other; ties half. By ranks: Sun, Xu 2014."""
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([inside, outside]))
    above = (ranks[: len(inside)] - rankdata(inside)) / len(outside)
    return above, 1 - (ranks[len(inside) :] - rankdata(outside)) / len(inside)


def _variance(above: np.ndarray, below: np.ndarray) -> float:
    return sum(float(side.var(ddof=1)) / len(side) if len(side) > 1 else 0.0 for side in (above, below))


def _newcombe(value: float, m: int, n: int, level: float) -> tuple[float, float]:
    """Ends t of `|value - t| = z sd(t)`, with the standard deviation of an AUC of t as Hanley and McNeil model it."""
    from scipy.optimize import brentq

    mean, z = (m + n) / 2 - 1, intervals.z_score(level)

    def gap(t: float) -> float:
        variance = t * (1 - t) * (1 + mean * (1 - t) / (2 - t) + mean * t / (1 + t)) / (m * n)
        return abs(value - t) - z * math.sqrt(max(variance, 0.0))

    low = 0.0 if value == 0 else float(brentq(gap, 0.0, value - 1e-9))
    high = 1.0 if value == 1 else float(brentq(gap, value + 1e-9, 1.0))
    return low, high
