"""Privacy losses computed at once are dp-accounting's, which asks for them one by one."""

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.special import log_ndtr

from noisewise.accounting.accountants import FINEST, SEVERAL, pld_epsilon
from noisewise.accounting.losses import composed, epsilon_of, once, repeated

RELATIONS = {name: dp.NeighboringRelation[name] for name in ("ADD_OR_REMOVE_ONE", "REPLACE_SPECIAL", "REPLACE_ONE")}


def event(rate, sigma):
    gaussian = dp.GaussianDpEvent(sigma)
    return gaussian if rate == 1 else dp.PoissonSampledDpEvent(rate, gaussian)


def by_the_library(releases, relation, grid):
    accountant = PLDAccountant(relation, grid)
    for rate, sigma, count in releases:
        accountant.compose(event(rate, sigma), count)
    return accountant.get_epsilon


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "rate", [1e-4, 0.02, 0.3, 0.99, pytest.param(1.0, marks=pytest.mark.slow)]
)  # the library's own time
@pytest.mark.parametrize("sigma", [0.3, 1.1, 20.0])
def test_epsilons_are_those_of_the_library(relation, rate, sigma):
    """Up to rounding: a delta of 1e-8 is the difference of sums of 3000 times as many numbers."""
    grid = 1e-3 if sigma > 0.3 else 1e-2
    for count in (1, 3000):
        expected = by_the_library([(rate, sigma, count)], RELATIONS[relation], grid)
        total = composed([(rate, sigma, count)], RELATIONS[relation], grid)
        for delta in (1e-3, 1e-5, 1e-8):
            assert epsilon_of(total, delta) == pytest.approx(expected(delta), rel=1e-5, abs=1e-9)


def test_several_releases_are_composed():
    releases = [(0.02, 1.1, 100), (0.1, 2.0, 50), (1.0, 30.0, 9), (0.02, 1.1, 7)]
    relation = RELATIONS["ADD_OR_REMOVE_ONE"]
    expected = by_the_library(releases, relation, 1e-3)(1e-5)
    assert epsilon_of(composed(releases, relation, 1e-3), 1e-5) == pytest.approx(expected, rel=1e-8)
    assert epsilon_of(composed([], relation, 1e-3), 1e-5) == 0


@pytest.mark.parametrize("count", [2, 3, 7, 140, 3000])
def test_equal_releases_are_composed_as_by_the_library(count):
    """Point by point: the same grid, cut at the same places, and probabilities that differ by rounding."""
    one = once(0.2, 1.5, RELATIONS["ADD_OR_REMOVE_ONE"], 1e-3)
    assert repeated(one, 1) is one
    ours, theirs = repeated(one, count), one.self_compose(count)
    for way in ("_pmf_remove", "_pmf_add"):
        mine, library = getattr(ours, way).to_dense_pmf(), getattr(theirs, way).to_dense_pmf()
        assert (mine._lower_loss, mine.size, mine._discretization) == (library._lower_loss, library.size, 1e-3)
        assert mine._infinity_mass == pytest.approx(library._infinity_mass, rel=1e-9, abs=0) != 0
        assert np.allclose(mine._probs, library._probs, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("relation", ["ADD_OR_REMOVE_ONE", "REPLACE_ONE"])
@pytest.mark.parametrize(("rate", "sigma"), [(1e-3, 0.5), (0.2, 1.5), (1.0, 3.0), (0.05, 0.01), (0.5, 400.0)])
def test_epsilon_is_read_as_by_the_library(relation, rate, sigma):
    """From deltas that no loss reaches to those above all of them, where epsilon is infinite or 0."""
    loss = once(rate, sigma, RELATIONS[relation], 1.0 if sigma < 0.1 else 1e-2)
    for delta in (1e-30, 1e-16, 1e-10, 1e-5, 1e-2, 0.3, 0.999):
        assert epsilon_of(loss, delta) == pytest.approx(loss.get_epsilon_for_delta(delta), rel=1e-9, abs=1e-12)


def test_infinite_losses_count_for_epsilon():
    loss = PrivacyLossDistribution(DensePLDPmf(0.5, -1, np.array([0.2, 0.3, 0.3, 0.19]), 0.01, True))
    found = {delta: epsilon_of(loss, delta) for delta in (0.005, 0.01, 0.02, 0.1, 0.5)}
    assert found == pytest.approx({delta: loss.get_epsilon_for_delta(delta) for delta in found})
    assert found[0.005] == np.inf


@pytest.mark.parametrize("rate", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_no_delta_is_below_the_true_one(rate, sigma):
    """By the integral of P - e^epsilon Q over a fine grid of outputs, either way."""
    x = np.linspace(-12 * sigma - 1, 12 * sigma + 1, 2_000_001)
    alone = np.exp(-(x**2) / (2 * sigma**2)) / (sigma * np.sqrt(2 * np.pi))
    moved = np.exp(-((x - 1) ** 2) / (2 * sigma**2)) / (sigma * np.sqrt(2 * np.pi))
    with_unit = (1 - rate) * alone + rate * moved
    losses = once(rate, sigma, RELATIONS["ADD_OR_REMOVE_ONE"], 1e-3)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 3.0):
        true = max(
            np.trapezoid(np.maximum(p - np.exp(epsilon) * q, 0), x) for p, q in ((with_unit, alone), (alone, with_unit))
        )
        got = losses.get_delta_for_epsilon(epsilon)
        assert true * (1 - 1e-6) - 1e-12 <= got <= true * 1.01 + 1e-9


def test_hardly_any_noise_stays_in_range():
    """Losses of thousands: e to their power is no number."""
    losses = once(0.05, 0.01, RELATIONS["ADD_OR_REMOVE_ONE"], 1.0)
    epsilon = epsilon_of(losses, 1e-5)
    lower = 0.5 / 0.01**2  # the loss at the unit's own mean, where half of the drawn releases lie
    assert lower < epsilon < 2 * lower
    assert np.isfinite(log_ndtr(-100.0))


def test_long_schedules_stop_within_a_permille_of_the_finest():
    plan = [(dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(1 + k / 24)), 100) for k in range(24)]
    assert len(plan) > SEVERAL
    finest = composed([(0.02, 1 + k / 24, 100) for k in range(24)], RELATIONS["ADD_OR_REMOVE_ONE"], FINEST)
    exact = epsilon_of(finest, 1e-5)
    assert exact * (1 - 1e-6) <= pld_epsilon(plan, 1e-5, "add-remove") <= exact * 1.001
