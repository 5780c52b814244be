from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t

from noisewise.errors import DataError
from noisewise.estimates.lengths import mean_length, squared_mean


def pairwise(rows: np.ndarray) -> float:
    """Mean of all inner products of two different rows."""
    products = rows @ rows.T
    return float(products[~np.eye(len(rows), dtype=bool)].mean())


def test_squared_mean_is_the_mean_of_all_pairs_and_its_jackknife() -> None:
    rows = np.random.default_rng(0).normal(size=(25, 7)) + 0.3
    found = squared_mean((rows**2).sum(1), rows @ rows.mean(0))
    assert found.value == pytest.approx(pairwise(rows))
    without = np.array([pairwise(np.delete(rows, k, 0)) for k in range(25)])
    deviation = math.sqrt(24 / 25 * ((without - without.mean()) ** 2).sum())
    assert found.high - found.value == pytest.approx(t.ppf(0.975, 24) * deviation)
    assert found.value - found.low == pytest.approx(t.ppf(0.975, 24) * deviation)
    with pytest.raises(DataError, match="at least 3"):
        squared_mean(np.ones(2), np.ones(2))


@pytest.mark.parametrize("length", [0.0, 0.2, 1.0])
def test_squared_mean_has_no_bias_and_its_interval_covers(length: float) -> None:
    draw, dimension, people, runs = np.random.default_rng(1), 20, 60, 600
    values, naive, covered = [], [], 0
    for _ in range(runs):
        rows = draw.normal(size=(people, dimension)) * np.geomspace(0.3, 2, dimension)
        rows[:, 0] += length
        mean = rows.mean(0)
        found = squared_mean((rows**2).sum(1), rows @ mean)
        values.append(found.value)
        naive.append(float(mean @ mean))
        covered += found.low <= length**2 <= found.high
    error = 4 * np.std(values) / math.sqrt(runs)
    assert abs(np.mean(values) - length**2) < error
    assert abs(np.mean(naive) - length**2) > error  # the squared norm of the mean itself is too long
    assert covered / runs > 0.92


def test_the_length_of_a_mean_is_the_root_and_never_below_nothing() -> None:
    rows = np.random.default_rng(0).normal(size=(25, 7)) + 0.3
    squares, along = (rows**2).sum(1), rows @ rows.mean(0)
    square, length = squared_mean(squares, along, 0.9), mean_length(squares, along, 3.0, 0.9)
    assert length.value == pytest.approx(3 * math.sqrt(square.value))
    assert length.high == pytest.approx(3 * math.sqrt(square.high))
    assert (length.n, length.level, length.method) == (25, 0.9, square.method)
    opposite = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    assert squared_mean((opposite**2).sum(1), opposite @ opposite.mean(0)).value < 0
    assert mean_length((opposite**2).sum(1), opposite @ opposite.mean(0)).value == 0
