"""How long a mean vector is, from a sample of vectors."""

from __future__ import annotations

import math

import numpy as np

from noisewise.errors import DataError
from noisewise.estimates.estimate import LEVEL, Estimate


def squared_mean(squares: np.ndarray, along: np.ndarray, level: float = LEVEL) -> Estimate:
    """`||E x||^2` from a sample of b vectors, without the excess that chance adds to the norm of a mean.

    `U = sum_{i != j} x_i . x_j / (b (b - 1))`, with Student's t interval of the jackknife over people.

    Args:
        squares: `x_i . x_i`.
        along: `x_i . xbar`.
        level: of the interval.

    Guarantee: U has no bias; it can be below 0 where the mean cannot be told from 0, and is not cut there.
    Reference: Hoeffding 1948 (U-statistics); Arvesen 1969 (their jackknife).
    """
    from scipy.stats import t

    b = len(squares)
    if b < 3:
        raise DataError(f"the length of a mean of {b} vectors: needs at least 3 people.")
    square, total = b * float(along.sum()), float(squares.sum())  # of the sum; of all lengths
    value = (square - total) / (b * (b - 1))
    without = (square - 2 * b * along + 2 * squares - total) / ((b - 1) * (b - 2))
    spread = math.sqrt((b - 1) / b * float(((without - without.mean()) ** 2).sum()))
    half = float(t.ppf((1 + level) / 2, b - 1)) * spread
    return Estimate(value, value - half, value + half, b, level, "debiased, jackknife")


def mean_length(squares: np.ndarray, along: np.ndarray, scale: float = 1.0, level: float = LEVEL) -> Estimate:
    """`scale ||E x||`: the root of `squared_mean`, 0 where that is below 0."""
    square = squared_mean(squares, along, level)
    value, low, high = (scale * math.sqrt(max(end, 0.0)) for end in (square.value, square.low, square.high))
    return Estimate(value, low, high, square.n, level, square.method)
