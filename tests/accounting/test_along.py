"""Readings along a run: upper bounds close to the exact epsilon, cheaper than asking for each."""

import dp_accounting as dp
import pytest

from noisewise.accounting import losses, pld_epsilon
from noisewise.accounting.along import SLACK, epsilons_along

PLANS = {
    "sampled": [(dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(1.1)), 1000)],
    "full batch": [(dp.GaussianDpEvent(30.0), 100)],
    "next to no noise": [(dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(0.001)), 4)],
    "little noise": [(dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(0.1)), 40)],
    "schedule": [(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(s)), 50) for s in (2.0, 1.5)],
}
EARLIER = [(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(3.0)), 20)]


@pytest.mark.parametrize("before", [[], EARLIER], ids=["first", "after another phase"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_readings_bound_the_exact_epsilon_closely(plan, before):
    total = sum(count for _, count in plan)
    counts = [total // 4, total // 2, total]
    readings = epsilons_along(before, plan, counts, 1e-5, "add-remove")
    for count, reading in zip(counts, readings, strict=True):
        first = min(count, plan[0][1])
        part = [(plan[0][0], first), *[(event, count - first) for event, _ in plan[1:] if count > first]]
        exact = pld_epsilon([*before, *part], 1e-5, "add-remove")
        assert exact * (1 - 1e-3) <= reading <= exact * (1 + 3 * SLACK)
    assert readings == sorted(readings)
    assert readings[-1] <= pld_epsilon([*before, *plan], 1e-5, "add-remove")


def test_other_releases_are_read_exactly():
    plan = [(dp.TruncatedSubsampledGaussianDpEvent(100, 0.05, 20, 2.0), 4)]
    readings = epsilons_along([], plan, [2, 4], 1e-5, "add-remove")
    assert readings == [pld_epsilon([(plan[0][0], count)], 1e-5, "add-remove") for count in (2, 4)]


def test_all_readings_of_a_run_are_taken_on_a_coarser_grid(monkeypatch):
    """Asking for each of them costs twenty exact ones."""
    grids = []
    real = losses.once
    monkeypatch.setattr(losses, "once", lambda *given: grids.append(given[-1]) or real(*given))
    plan = [(dp.PoissonSampledDpEvent(0.0201, dp.GaussianDpEvent(1.1)), 1000)]
    whole = pld_epsilon(plan, 1e-5, "add-remove")
    finest = min(grids)
    grids.clear()
    readings = epsilons_along([], plan, range(50, 1001, 50), 1e-5, "add-remove")
    assert readings[-1] <= whole
    assert finest < min(grids)
    assert sum(finest / grid for grid in grids) < 1  # points, against those of one exact epsilon


def test_what_was_asked_before_is_remembered(monkeypatch):
    grids, real = [], losses.once
    monkeypatch.setattr(losses, "once", lambda *given: grids.append(given[-1]) or real(*given))
    plan = [(dp.PoissonSampledDpEvent(0.0203, dp.GaussianDpEvent(1.1)), 1000)]
    first = pld_epsilon(plan, 1e-5, "add-remove")
    assert grids
    grids.clear()
    assert pld_epsilon(plan, 1e-5, "add-remove") == first
    assert not grids
