from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
from scipy.stats import chi2

from noisewise.errors import ConfigError
from noisewise.theory.xu2026 import (
    ASSUMPTIONS,
    FeatureRatio,
    Limits,
    checked,
    expected_noise,
    expected_signal,
    feature_to_noise,
    longest_gradient,
    longest_patch,
    noise_norm,
    norm_exponent,
    ordered_pairs,
    step_noise,
    usual_gradient,
)


def test_ratio_by_hand() -> None:
    sigma_n = step_noise(4.0, 0.5, 100)
    assert sigma_n == pytest.approx(0.02)
    assert feature_to_noise(5.0, sigma_n) == pytest.approx(250)
    assert feature_to_noise(5.0, 0.0) == math.inf
    ratio = FeatureRatio("u", 0, 5.0, 0.4, 250.0, 0.2, 0.3, 0.5, 0.25, 0.1, "proxy")
    assert (ratio.effective, ratio.effective_mean) == pytest.approx((20.0, 50.0))


def test_lengths_of_gradients_by_hand() -> None:
    assert usual_gradient(3.0, 0.2, 100, 8) == pytest.approx(math.sqrt((9 + 4) / 8))
    assert longest_patch(0.2, 96) == pytest.approx(0.2 * math.sqrt(chi2.ppf(1 - 1e-6, 96)))
    assert longest_patch(0.2, 0) == 0.0
    assert longest_gradient(3.0, 2.0, 8) == pytest.approx(2.5)


@pytest.mark.parametrize("filters", [4, 16])
def test_no_gradient_of_the_network_is_longer_than_the_bound(filters: int) -> None:
    """Two classes, every weight drawn: `||g||^2 = sum_k (p_k - 1[y=k])^2 / m^2 sum_r |a1 x1 + a2 x2|^2`, term by term."""
    draw = np.random.default_rng(0)
    longest = 0.0
    for _ in range(200):
        u, xi = draw.normal(size=5), draw.normal(size=5)
        weights = draw.normal(size=(2, filters, 5)) * 10 ** draw.uniform(-2, 1)
        outputs = np.array([np.maximum(w @ u, 0).sum() + np.maximum(w @ xi, 0).sum() for w in weights]) / filters
        shares = np.exp(outputs - outputs.max()) / np.exp(outputs - outputs.max()).sum()
        rows = [
            (share - (k == 0)) / filters * ((w @ u > 0)[:, None] * u + (w @ xi > 0)[:, None] * xi)
            for k, (share, w) in enumerate(zip(shares, weights, strict=True))
        ]
        length = float(np.linalg.norm(np.concatenate(rows)))
        relative = length / longest_gradient(float(np.linalg.norm(u)), float(np.linalg.norm(xi)), filters)
        longest = max(longest, relative)
    assert 0.5 < longest <= 1


def test_signal_and_noise_of_a_step_by_hand() -> None:
    assert expected_signal(0.5, 0.4, 0.6, 0.25, 10, 3.0) == pytest.approx(0.5 * 0.4 * 0.6 * 0.025 * 9)
    assert expected_noise(0.5, 0.2, 3.0, 0.4, 10) == pytest.approx(0.5 * 0.2 * 3 * 0.2)


def test_noise_of_an_output_is_that_of_drawn_noise() -> None:
    """The output moves by `-(eta/m) sum over active filters of <noise_r, u>`."""
    draw, u = np.random.default_rng(1), np.array([1.0, 2.0, 2.0])
    moves = [-(0.5 / 8) * float((0.3 * draw.normal(size=(2, 3)) @ u).sum()) for _ in range(4000)]
    assert np.std(moves) == pytest.approx(expected_noise(0.5, 0.3, 3.0, 2 / 8, 8), rel=0.05)


def test_variances_of_steps_add() -> None:
    assert noise_norm(0.5, [0.2] * 100, 60) == pytest.approx(0.5 * 0.2 * math.sqrt(100 * 60))
    assert noise_norm(0.5, [0.3, 0.4], 4) == pytest.approx(0.5)
    assert noise_norm(0.5, [0.0, 0.0], 4) == 0.0


def test_exponent_by_another_fit() -> None:
    draw = np.random.default_rng(0)
    steps = [0, 1, 3, 10, 30]
    norms = draw.uniform(1, 5, size=(5, 4))
    slopes = [np.polyfit(np.log(steps[1:]), np.log(norms[1:, k]), 1)[0] for k in range(4)]
    assert norm_exponent(steps, norms.tolist()).value == pytest.approx(np.mean(slopes))
    with pytest.raises(ConfigError, match="at least two"):
        norm_exponent([0, 5], [[1.0], [2.0]])


@pytest.mark.parametrize(
    ("effective", "losses", "expected"),
    [
        ([3.0, 2.0, 1.0], [0.1, 0.2, 0.3], (3, 3)),
        ([3.0, 2.0, 1.0], [0.3, 0.2, 0.1], (0, 3)),
        ([3.0, 2.0, 1.0], [0.1, 0.1, 0.3], (2, 3)),
        ([2.0, 2.0, 1.0], [0.1, 0.2, 0.3], (2, 3)),
    ],
)
def test_pairs_are_ordered_where_more_signal_has_less_loss(effective, losses, expected):
    """Equal ones are not."""
    assert ordered_pairs(effective, losses) == expected


@pytest.mark.parametrize(
    ("kind", "limit", "held", "worst"), [("at least", 0.5, 3, 0.4), ("at most", 0.5, 2, 2.0), ("1 ±", 0.5, 2, 2.0)]
)
def test_an_assumption_is_checked_value_by_value(kind, limit, held, worst):
    found = checked("batch", [0.4, 0.5, 1.2, 2.0], limit, kind)
    assert (found.held, found.checks, found.worst) == (held, 4, worst)
    assert (found.statement, found.limit) == (ASSUMPTIONS["batch"], f"{kind} 0.5")


def test_limits_are_numbers_that_can_be_changed() -> None:
    assert all(isinstance(field.default, float) for field in fields(Limits))
    assert checked("batch", [0.4], Limits(batch=0.3).batch, "at least").held == 1
