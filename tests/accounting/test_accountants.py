"""Our readings against dp-accounting called by hand, and against closed forms."""

import math

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from noisewise.accounting import ADJACENCIES, Ledger, gdp_epsilon, pld_epsilon, rdp_epsilon, spent
from noisewise.accounting.accountants import FINEST
from noisewise.accounting.events import MOST_RELEASES
from noisewise.errors import ConfigError

DELTA = 1e-5
NOT_PRIVATE = dp.NonPrivateDpEvent()


def gaussian(sigma):
    return dp.GaussianDpEvent(sigma)


def poisson(rate, sigma):
    return dp.PoissonSampledDpEvent(rate, gaussian(sigma))


def by_hand(accountant, events):
    for event, count in events:
        accountant.compose(event, count)
    return accountant.get_epsilon(DELTA)


EVENTS = {
    "poisson": [(poisson(0.05, 3.0), 300)],
    "full batch": [(gaussian(8.0), 20)],
    "schedule": [(poisson(0.02, 4.0), 100), (poisson(0.02, 3.0), 50)],
    "two samplers": [(poisson(0.05, 4.0), 20), (gaussian(8.0), 3)],
    "large epsilon": [(gaussian(3.0), 40)],
    "tiny epsilon": [(poisson(0.001, 5.0), 10)],
}


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("events", EVENTS.values(), ids=EVENTS)
def test_pld_is_dp_accounting_with_its_neighbouring_relation(events, adjacency):
    relation = dp.NeighboringRelation[ADJACENCIES[adjacency]]
    finest = by_hand(PLDAccountant(relation, FINEST), events)
    ours = pld_epsilon(events, DELTA, adjacency)
    assert finest * (1 - 1e-9) <= ours <= finest * (1 + 2e-4)


def test_rdp_of_what_was_asked_before_is_remembered(monkeypatch):
    """By plan, delta and relation: each of them changes the reading."""
    composed, real = [], RdpAccountant.compose
    monkeypatch.setattr(RdpAccountant, "compose", lambda *given: composed.append(given[1:]) or real(*given))
    plan = [(dp.PoissonSampledDpEvent(0.0203, dp.GaussianDpEvent(1.1)), 100)]
    longer = [(plan[0][0], 200)]
    asked = [(plan, 1e-5, "add-remove"), (plan, 1e-6, "add-remove"), (longer, 1e-5, "add-remove")]
    first = [rdp_epsilon(*question) for question in asked]
    assert len(composed) == len(set(first)) == 3
    assert [rdp_epsilon(*question) for question in asked] == first
    assert rdp_epsilon(plan, 1e-5, "replace-one")[0] is None
    assert len(composed) == 3


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out"])
@pytest.mark.parametrize("events", EVENTS.values(), ids=EVENTS)
def test_rdp_is_dp_accounting_with_its_neighbouring_relation(events, adjacency):
    relation = dp.NeighboringRelation[ADJACENCIES[adjacency]]
    assert rdp_epsilon(events, DELTA, adjacency) == (
        by_hand(RdpAccountant(neighboring_relation=relation), events),
        None,
    )


def test_a_ledger_reads_like_the_same_events_by_hand():
    ledger = Ledger("add-remove")
    for step in range(40):
        ledger.record(poisson(0.02, 1.3), "gradient", step)
    finest = by_hand(PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE), [(poisson(0.02, 1.3), 40)])
    assert ledger.epsilon(DELTA) == pytest.approx(finest, rel=2e-4)


@pytest.mark.parametrize(("sigma", "count"), [(4.0, 1), (4.0, 25), (20.0, 100), (0.2, 50), (0.05, 50)])
@pytest.mark.parametrize(("adjacency", "sensitivity"), [("add-remove", 1), ("zero-out", 1), ("replace-one", 2)])
def test_full_batch_is_the_exact_gaussian_within_one_percent_above(sigma, count, adjacency, sensitivity):
    """k Gaussian releases are one with sigma / sqrt(k); replacing a unit moves an unsampled sum by 2 C."""
    exact = dp.get_epsilon_gaussian(sigma / sensitivity / math.sqrt(count), DELTA)
    assert exact * (1 - 1e-6) <= pld_epsilon([(gaussian(sigma), count)], DELTA, adjacency) <= exact * 1.01


@pytest.mark.parametrize(("sigma", "count"), [(4.0, 1), (4.0, 25), (20.0, 100), (0.5, 10)])
def test_gdp_is_exact_without_sampling(sigma, count):
    exact = dp.get_epsilon_gaussian(sigma / math.sqrt(count), DELTA)
    assert gdp_epsilon([(gaussian(sigma), count)], DELTA, "add-remove")[0] == pytest.approx(exact, rel=1e-6)


def test_sampling_everybody_is_a_full_batch():
    everybody, full = [(poisson(1.0, 5.0), 10)], [(gaussian(5.0), 10)]
    assert gdp_epsilon(everybody, DELTA, "add-remove") == gdp_epsilon(full, DELTA, "add-remove")
    assert pld_epsilon(everybody, DELTA, "add-remove") == pytest.approx(
        pld_epsilon(full, DELTA, "add-remove"), rel=1e-3
    )


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.floats(0.01, 0.2), st.floats(2.0, 6.0), st.integers(1, 100))
def test_rdp_is_never_below_pld(rate, sigma, count):
    readings = spent([(poisson(rate, sigma), count)], DELTA, "add-remove")
    assert readings.rdp_epsilon >= readings.epsilon * (1 - 1e-3)


def test_rdp_refuses_replace_one_because_its_number_would_be_too_small():
    events = [(gaussian(8.0), 20)]
    replace_one, add_remove = (
        by_hand(RdpAccountant(neighboring_relation=relation), events)
        for relation in (dp.NeighboringRelation.REPLACE_ONE, dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    )
    assert replace_one == add_remove  # it takes the multiplier as noise / 2C, ours is noise / C
    assert pld_epsilon(events, DELTA, "replace-one") > 1.5 * replace_one
    epsilon, reason = rdp_epsilon(events, DELTA, "replace-one")
    assert epsilon is None
    assert "replace-one" in reason


def test_gdp_refuses_replace_one_with_a_reason():
    epsilon, reason = gdp_epsilon([(gaussian(8.0), 20)], DELTA, "replace-one")
    assert epsilon is None
    assert "add/remove" in reason


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out"])
def test_one_release_without_noise_makes_every_reading_infinite(adjacency):
    readings = spent([(poisson(0.01, 1.0), 10), (NOT_PRIVATE, 1)], DELTA, adjacency)
    assert (readings.epsilon, readings.rdp_epsilon, readings.gdp_epsilon) == (math.inf, math.inf, math.inf)


def test_one_release_without_noise_is_infinite_for_replace_one_too():
    assert pld_epsilon([(gaussian(1.0), 10), (NOT_PRIVATE, 1)], DELTA, "replace-one") == math.inf


def test_no_release_costs_nothing():
    readings = spent([], DELTA, "add-remove")
    assert (readings.epsilon, readings.rdp_epsilon, readings.gdp_epsilon) == (0.0, 0.0, 0.0)


def test_events_that_an_approximation_does_not_know_have_no_reading_and_a_reason():
    laplace = [(dp.LaplaceDpEvent(2.0), 3)]
    epsilon, reason = gdp_epsilon(laplace, DELTA, "add-remove")
    assert epsilon is None
    assert "Gaussian" in reason
    assert pld_epsilon(laplace, DELTA, "add-remove") == pytest.approx(1.5, rel=1e-2)
    epsilon, reason = rdp_epsilon([(dp.UnsupportedDpEvent(), 1)], DELTA, "add-remove")
    assert epsilon is None
    assert "does not cover" in reason


@pytest.mark.parametrize("sigma", [1e-3, 1e-9])
def test_hardly_any_noise_is_read_in_bounded_memory_and_time(sigma):
    events = [(poisson(0.004, sigma), 100)]
    epsilon = pld_epsilon(events, DELTA, "add-remove")
    assert epsilon > 1e6
    assert gdp_epsilon(events, DELTA, "add-remove")[0] > epsilon or epsilon == math.inf


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 1.5, math.nan, math.inf, "1e-5", None])
@pytest.mark.parametrize("reading", [pld_epsilon, rdp_epsilon, gdp_epsilon])
def test_delta_must_be_a_probability(reading, delta):
    with pytest.raises(ConfigError, match=r"delta=.*\(0, 1\)"):
        reading([(gaussian(1.0), 1)], delta, "add-remove")


@pytest.mark.parametrize(("rate", "sigma", "steps"), [(0.05, 0.7, 300), (1.0, 5.0, 50)])
def test_coarse_readings_end_where_the_finest_would(rate, sigma, steps):
    """Stages of discretisation save time, not more than a ten-thousandth of epsilon; and each is an upper bound."""
    events = [(gaussian(sigma) if rate == 1 else poisson(rate, sigma), steps)]
    finest = by_hand(PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, FINEST), events)
    assert finest <= pld_epsilon(events, DELTA, "add-remove") <= finest * (1 + 1e-4)


def test_more_releases_than_can_be_composed_are_refused():
    events = [(dp.GaussianDpEvent(1000.0), MOST_RELEASES)]
    assert 4 < pld_epsilon(events, 1e-5, "add-remove") < 8
    with pytest.raises(ConfigError, match=r"1,000,001 releases: more than 1,000,000 .* Train for fewer steps"):
        pld_epsilon([*events, (dp.GaussianDpEvent(1000.0), 1)], 1e-5, "add-remove")
