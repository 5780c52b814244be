"""Two second phases from one first phase, and the loss between their ends."""

import pytest

from noisewise.reproduce.two_phases import two_phases

GIVEN = {
    "seed": 0,
    "device": "cpu",
    "data": "digits",
    "model": "logistic",
    "ways": {"SGD": {"batch": 50, "lr": 0.5}, "DP": {"batch": 100, "lr": 0.5, "sigma": 3.0}},
    "rows": 150,
    "points": 5,
}


@pytest.fixture(scope="module")
def mixed():
    return two_phases(first="SGD", seconds=["SGD", "DP"], first_epochs=4, epochs=8, directions=3, curve=True, **GIVEN)


def test_segments_end_at_the_models_that_were_scored(mixed):
    ends = {"a to b": "ab", "start to a": ("start", "a"), "start to b": ("start", "b")}
    for name, (first, second) in ends.items():
        losses = mixed["segments"][name]["losses"]
        assert losses[0] == pytest.approx(mixed[first]["train_loss"], rel=1e-4)
        assert losses[-1] == pytest.approx(mixed[second]["train_loss"], rel=1e-4)
        assert mixed["segments"][name]["highest"] == max(losses)
        assert len(losses) == 5
        highest = max(losses) - (losses[0] + losses[-1]) / 2
        assert mixed["segments"][name]["instability"] == pytest.approx(highest, abs=1e-6)


def test_the_first_phase_is_shared_and_the_second_goes_on_from_it(mixed):
    assert mixed["a"]["train_loss"] < mixed["start"]["train_loss"]  # SGD goes on down
    assert mixed["b"]["train_loss"] > mixed["a"]["train_loss"]  # DP-SGD does not
    assert mixed["curves"]["start"][-1]["loss"] == pytest.approx(mixed["start"]["loss"])
    assert mixed["curves"]["b"][-1]["loss"] == pytest.approx(mixed["b"]["loss"])
    assert len(mixed["random"]["a to b"]["losses"]) == 3


def test_copies_are_nearer_than_runs_from_two_starts():
    copies = two_phases(first="SGD", seconds=["SGD", "SGD"], first_epochs=4, epochs=5, **GIVEN)
    apart = two_phases(first="SGD", seconds=["SGD", "SGD"], first_epochs=0, epochs=5, other_start=True, **GIVEN)
    assert 0 < copies["segments"]["a to b"]["length"] < 0.2 * apart["segments"]["a to b"]["length"]


def test_a_convex_loss_has_no_barrier(mixed):
    """Between any two weights of a linear model the loss lies below the line."""
    for segment in mixed["segments"].values():
        assert segment["barrier"] <= 1e-6
