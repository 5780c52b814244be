"""Guesses about canaries: the p-value of one run is its definition and holds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binomtest

from noisewise.attacks.distinguishing import (
    guess,
    one_run_bound,
    one_run_p_value,
)
from noisewise.errors import ConfigError


# One run
def slow_p_value(m, r, v, epsilon, delta):
    """The formula, term by term."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    tail = [sum(mass[max(k, 0) :]) for k in range(-1, r + 2)]  # tail[k + 1] = P[W >= k]
    beta = tail[v + 1]
    alpha = max(((tail[v - i + 1] - beta) / i for i in range(1, v + 1)), default=0.0)
    return min(1.0, beta + 2 * m * delta * alpha)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-2])
@pytest.mark.parametrize(("m", "r", "v"), [(10, 10, 9), (50, 20, 20), (40, 30, 17), (100, 7, 0), (5, 0, 0)])
def test_the_p_value_is_its_definition(m, r, v, delta):
    for epsilon in (0.0, 0.5, 2.0, 6.0):
        assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(
            slow_p_value(m, r, v, epsilon, delta), abs=1e-12
        )


def test_at_delta_0_the_p_value_is_a_binomial_test():
    for right in (0, 12, 25, 30):
        q = 1 / (1 + math.exp(-1.0))
        expected = binomtest(right, 30, q, "greater").pvalue
        assert one_run_p_value(60, 30, right, 1.0, 0.0) == pytest.approx(expected)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (0.5, 0.02), (2.0, 0.05)])
def test_the_p_value_covers_a_mechanism_that_spends_all_it_may(epsilon, delta):
    """Seed 0. Randomised response that shows its bit with probability delta: 200,000 runs of 20 canaries."""
    rng, m, runs = np.random.default_rng(0), 20, 200_000
    honest = rng.random((runs, m)) < math.exp(epsilon) / (1 + math.exp(epsilon))
    right = (honest | (rng.random((runs, m)) < delta)).sum(1)
    for v in range(10, m + 1):
        seen = (right >= v).mean()
        assert seen <= one_run_p_value(m, m, v, epsilon, delta) + 4 * math.sqrt(seen / runs) + 1e-5
    chances = [((right >= v).mean(), one_run_p_value(m, m, v, epsilon, 0.0)) for v in range(10, m + 1)]
    broken = any(seen > chance + 5 * math.sqrt(seen / runs) for seen, chance in chances)
    assert broken == (delta > 0)  # without its second term the formula would not cover it


def test_the_p_value_covers_a_mechanism_that_shows_everything_at_once():
    """With probability delta all bits are shown: P[V >= v] = (1 - delta) beta + delta, in closed form."""
    for m, epsilon, delta in ((20, 1.0, 0.01), (500, 3.0, 1e-3)):
        for right in range(1, m + 1):
            beta = one_run_p_value(m, m, right, epsilon, 0.0)
            assert (1 - delta) * beta + delta <= one_run_p_value(m, m, right, epsilon, delta) + 1e-12


def test_the_bound_is_where_the_p_value_crosses_and_grows_with_the_guesses():
    bound = one_run_bound(1000, 200, 180, 1e-5, 0.95)
    assert one_run_p_value(1000, 200, 180, bound, 1e-5) == pytest.approx(0.05, abs=1e-4)
    assert one_run_bound(1000, 200, 180, 0.0, 0.95) > bound > one_run_bound(1000, 200, 170, 1e-5, 0.95) > 0
    assert one_run_bound(1000, 200, 100, 1e-5, 0.95) == one_run_bound(10, 0, 0, 1e-5, 0.95) == 0.0
    assert one_run_bound(1000, 200, 200, 0.0, 0.95) == pytest.approx(-math.log(0.05 ** (-1 / 200) - 1), abs=1e-5)


def test_the_p_value_grows_with_epsilon():
    values = [one_run_p_value(500, 100, 85, epsilon, 1e-5) for epsilon in np.linspace(0, 8, 100)]
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(values))


def test_impossible_counts_are_refused():
    with pytest.raises(ConfigError, match="must ascend"):
        one_run_p_value(10, 5, 6, 1.0, 0.0)


def test_the_bound_is_that_of_canaries_which_did_not_choose_the_guesses():
    """Seed 0: either half of 400 canaries is shown by the model, the other is not."""
    rng = np.random.default_rng(0)
    coins, blind = rng.integers(0, 2, 400).astype(bool), rng.random(400)
    first, second = (np.where((np.arange(400) < 200) == shown, coins + 0.1 * blind, blind) for shown in (True, False))
    assert guess(first, coins, 1e-5, 0.95).bound < 0.5
    assert guess(second, coins, 1e-5, 0.95).bound > 1
    assert guess(second, coins, 1e-5, 0.95).tested == 200
