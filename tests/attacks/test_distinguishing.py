"""Tests between two outcomes: what they show about epsilon, with exact intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.stats import binomtest, norm

from noisewise.attacks.distinguishing import (
    Errors,
    best_threshold,
    epsilon_of,
    mu_bounds,
)


# Bounds
@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_epsilon_of_mu_is_the_gaussian_mechanisms(mu, delta):
    """Closed form, and dp-accounting's own PLD of the same Gaussian."""
    found = epsilon_of(mu, delta)
    assert norm.cdf(mu / 2 - found / mu) - math.exp(found) * norm.cdf(-mu / 2 - found / mu) == pytest.approx(delta)
    assert found == pytest.approx(
        PLDAccountant().compose(GaussianDpEvent(1 / mu)).get_epsilon(delta), rel=2e-3, abs=2e-4
    )


def test_no_separation_is_no_epsilon():
    assert epsilon_of(0.0, 1e-5) == epsilon_of(-1.0, 1e-5) == 0.0
    assert epsilon_of(math.inf, 1e-5) == math.inf


def test_clopper_pearson_is_scipys():
    errors = Errors(31, 200, 17, 150)
    _, low, high = mu_bounds(errors, 0.9)
    alarms = binomtest(31, 200).proportion_ci(0.9, "exact")
    misses = binomtest(17, 150).proportion_ci(0.9, "exact")
    assert low == pytest.approx(norm.ppf(1 - alarms.high) - norm.ppf(misses.high))
    assert high == pytest.approx(norm.ppf(1 - alarms.low) - norm.ppf(misses.low))


def test_a_test_without_errors_bounds_mu_from_below_only():
    value, low, high = mu_bounds(Errors(0, 1000, 0, 1000), 0.999)
    assert 2 < low < value < high == math.inf
    assert mu_bounds(Errors(1000, 1000, 0, 1000), 0.999)[1] == -math.inf


def test_the_bound_holds_as_often_as_it_says_and_the_estimate_alone_does_not():
    """Seed 0. 400 audits of exact Gaussians at 90 %: the lower end is too high in at most 10 % of them."""
    rng, true = np.random.default_rng(0), 1.0
    above = {"low": 0, "value": 0}
    for _ in range(400):
        inside, outside = rng.normal(true, 1, (2, 100)), rng.normal(0, 1, (2, 100))
        threshold = best_threshold(inside[0], outside[0], 0.9)
        value, low, _ = mu_bounds(Errors.counted(inside[1], outside[1], threshold), 0.9)
        above["low"] += low > true
        above["value"] += value > true
    assert binomtest(above["low"], 400, 0.1, "greater").pvalue > 0.01
    assert binomtest(above["value"], 400, 0.1, "greater").pvalue < 1e-9


def test_a_threshold_tested_on_the_trials_it_was_chosen_on_would_be_caught():
    """Seed 1. No canary effect at all, 50 % bounds: above 0 in half of the audits at most, but not done the wrong way."""
    rng, above = np.random.default_rng(1), {"right": 0, "wrong": 0}
    for _ in range(200):
        inside, outside = rng.normal(0, 1, (2, 2, 100))
        threshold = best_threshold(inside[0], outside[0], 0.5)
        for way, half in (("right", 1), ("wrong", 0)):
            above[way] += mu_bounds(Errors.counted(inside[half], outside[half], threshold), 0.5)[1] > 0
    assert binomtest(above["right"], 200, 0.5, "greater").pvalue > 0.01
    assert binomtest(above["wrong"], 200, 0.5, "greater").pvalue < 1e-6


def test_the_threshold_lies_in_the_gap_if_there_is_one():
    assert best_threshold(np.array([4.0, 5.0]), np.array([0.0, 1.0]), 0.99) == pytest.approx(2.5)


@pytest.mark.parametrize("seed", range(5))
def test_only_what_is_above_a_threshold_counts_as_there(seed):
    """Scores of few values, many of them on the threshold itself: the same counts as `best_threshold` goes by."""
    generator = np.random.default_rng(seed)
    inside, outside = generator.integers(0, 4, 30).astype(float), generator.integers(0, 4, 20).astype(float)
    for threshold in (0.0, 1.0, 2.0, 3.0):
        found = Errors.counted(inside, outside, threshold)
        assert found.false_alarms == sum(score > threshold for score in outside)
        assert found.misses == sum(not score > threshold for score in inside)
        assert (found.inside, found.outside) == (30, 20)
