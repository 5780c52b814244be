"""Areas and rates of a curve: other software's numbers, intervals that hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm
from sklearn.metrics import roc_auc_score, roc_curve

from helpers.membership import rng
from noisewise.errors import DataError
from noisewise.estimates.roc import auc, auc_difference, exact_share, roc, threshold


# ROC
def slow_delong(inside, outside):
    """DeLong's definition, pair by pair."""
    wins = np.array([[1.0 if a > b else 0.5 if a == b else 0.0 for b in outside] for a in inside])
    v10, v01 = wins.mean(1), wins.mean(0)
    return wins.mean(), v10.var(ddof=1) / len(v10) + v01.var(ddof=1) / len(v01)


def width(e) -> float:
    return e.high - e.low


@pytest.mark.parametrize("ties", [False, True])
def test_auc_is_scikit_learns_and_its_interval_delongs(ties) -> None:
    inside, outside = rng(1).normal(0.5, 1, 60), rng(2).normal(0, 1, 45)
    if ties:
        inside, outside = inside.round(), outside.round()
    found = auc(inside, outside)
    labels = np.repeat([1, 0], [60, 45])
    assert found.value == pytest.approx(roc_auc_score(labels, np.concatenate([inside, outside])), abs=1e-12)
    value, variance = slow_delong(inside, outside)
    half = 1.959964 * math.sqrt(variance) / (value * (1 - value))
    ends = [1 / (1 + math.exp(-(math.log(value / (1 - value)) + sign * half))) for sign in (-1, 1)]
    assert [found.low, found.high] == pytest.approx(ends, abs=1e-7)
    assert (found.n, found.method) == (105, "DeLong, logit")


def test_interval_covers_the_gaussians_closed_form_as_often_as_it_says() -> None:
    """Scores N(mu, 1) and N(0, 1) have AUC Phi(mu / sqrt 2); an interval with half the width would not do."""
    generator, mu, repeats = rng(3), 0.7, 600
    truth = norm.cdf(mu / math.sqrt(2))
    found = [auc(generator.normal(mu, 1, 80), generator.normal(0, 1, 120)) for _ in range(repeats)]
    covered = sum(e.low <= truth <= e.high for e in found)
    narrow = sum(abs(e.value - truth) <= width(e) / 4 for e in found)
    lowest, highest = binom.ppf([1e-4, 1 - 1e-4], repeats, 0.95)
    assert lowest <= covered <= highest
    assert narrow < lowest
    assert np.mean([e.value for e in found]) == pytest.approx(truth, abs=4 * 0.036 / math.sqrt(repeats))


def test_intervals_agree_with_the_bootstrap() -> None:
    generator = rng(4)
    shared_in, shared_out = generator.normal(0.6, 1, 150), generator.normal(0, 1, 150)
    first = shared_in + generator.normal(0.4, 0.5, 150), shared_out + generator.normal(0, 0.5, 150)
    second = shared_in + generator.normal(0, 0.5, 150), shared_out + generator.normal(0, 0.5, 150)
    labels = np.repeat([1, 0], 150)

    def drawn() -> tuple[float, float]:
        rows, others = generator.integers(0, 150, 150), generator.integers(0, 150, 150)
        values = [roc_auc_score(labels, np.concatenate([a[rows], b[others]])) for a, b in (first, second)]
        return values[0], values[0] - values[1]

    draws = np.array([drawn() for _ in range(400)])
    single, paired = auc(*first), auc_difference(first, second)
    z = norm.ppf(0.975)
    assert width(single) / (2 * z) == pytest.approx(draws[:, 0].std(), rel=0.12)
    assert width(paired) / (2 * z) == pytest.approx(draws[:, 1].std(), rel=0.12)
    assert paired.value == pytest.approx(auc(*first).value - auc(*second).value)
    unpaired = math.hypot(width(auc(*first)), width(auc(*second)))
    assert width(paired) < 0.7 * unpaired  # the pairing is used


def test_separated_scores_do_not_give_a_point() -> None:
    found = auc(np.arange(30) + 100, np.arange(20))
    assert (found.value, found.high, found.method) == (1.0, 1.0, "Newcombe")

    def within(t):  # Hanley and McNeil's standard deviation, with the mean size in place of each
        size = (30 + 20) / 2 - 1
        q = t * (1 - t) * (1 + size * (1 - t) / (2 - t) + size * t / (1 + t)) / 600
        return 1 - t <= 1.959964 * np.sqrt(q)

    grid = np.linspace(0.5, 0.99999, 200_001)
    assert found.low == pytest.approx(grid[within(grid)].min(), abs=1e-5)
    assert auc(np.arange(300) + 1000, np.arange(300)).low > found.low
    below = auc(np.arange(30), np.arange(20) + 100)
    assert (below.value, below.low) == (0.0, 0.0)
    assert below.high == pytest.approx(1 - found.low, abs=1e-6)
    equal = auc(np.ones(30), np.ones(20))
    assert equal.low < 0.4 < equal.value == 0.5 < 0.6 < equal.high
    same = auc_difference((np.arange(30) + 100, np.arange(20)), (np.arange(30) + 50, np.arange(20)))
    assert same.low < -0.05 < same.value == 0 < 0.05 < same.high


def test_scores_that_cannot_be_ranked_are_refused() -> None:
    with pytest.raises(DataError, match="none of them missing"):
        auc([0.1, math.nan], [0.2])
    with pytest.raises(DataError, match="same people"):
        auc_difference(([1.0, 2.0], [0.0]), ([1.0], [0.0]))


def test_thresholds_keep_the_false_positive_rate_on_new_people() -> None:
    """Of uniform scores, 1 - t exceed t. One score further down, as a naive quantile is, would be too many."""
    generator, k, rate, repeats = rng(5), 199, 0.01, 4000
    draws = generator.random((repeats, k))
    met = np.mean([1 - threshold(draw, rate) for draw in draws])
    naive = np.mean([1 - np.sort(draw)[::-1][math.floor(rate * (k + 1))] for draw in draws])
    error = 4 * math.sqrt(0.01 * 0.99 / 200 / repeats)
    assert met == pytest.approx(rate, abs=error)
    assert naive > rate + error
    assert threshold(np.arange(999), 0.001) == 998
    assert threshold(np.arange(998), 0.001) is None


@pytest.mark.parametrize(("hits", "n"), [(0, 40), (1, 40), (17, 40), (40, 40)])
def test_exact_share_is_clopper_and_pearsons(hits, n) -> None:
    found = exact_share(np.arange(n) < hits)
    assert found.value == hits / n
    assert found.low == 0 if hits == 0 else binom.sf(hits - 1, n, found.low) == pytest.approx(0.025)
    assert found.high == 1 if hits == n else binom.cdf(hits, n, found.high) == pytest.approx(0.025)


def test_the_saved_curve_is_on_scikit_learns() -> None:
    inside, outside = rng(6).normal(1, 1, 300), rng(7).normal(0, 1, 200)
    false, true, _ = roc_curve(np.repeat([1, 0], [300, 200]), np.concatenate([inside, outside]))
    points = roc(inside, outside)
    assert points[0][0] == pytest.approx(1 / 200)
    assert points[-1] == [1.0, 1.0]
    for aim, found in points:
        count = math.floor(aim * 200 + 1e-6)
        limit = np.sort(outside)[::-1][count] if count < 200 else -math.inf
        assert found == pytest.approx((inside > limit).mean())
    for rate, hit in zip(false, true, strict=True):
        assert all(found <= hit + 1e-12 for aim, found in points if aim <= rate - 1e-9)


# audits
