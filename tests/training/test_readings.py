"""Epsilon along a run: read on the way where somebody looks, else when somebody asks."""

import pickle

import pytest

from helpers import tiny
from helpers.loops import DELTA
from noisewise.accounting import Ledger
from noisewise.training import readings


@pytest.fixture
def asked(monkeypatch):
    """Counts how often epsilon is computed."""
    times = []
    along, whole = readings.epsilons_along, Ledger.epsilon
    monkeypatch.setattr(readings, "epsilons_along", lambda *args: times.append("along") or along(*args))
    monkeypatch.setattr(Ledger, "epsilon", lambda *args: times.append("whole") or whole(*args))
    return times


def test_a_run_that_nobody_watches_computes_no_epsilon(asked):
    trained = tiny.run(delta=DELTA)
    assert not asked
    assert trained.history is trained.history
    assert asked == ["along", "whole"]


@pytest.mark.parametrize("watched", ["folder", "callback"])
def test_later_readings_are_those_of_a_run_that_is_watched(watched, tmp_path, asked):
    seen = []
    how = {"folder": {"out": tmp_path}, "callback": {"callbacks": [seen.append]}}[watched]
    there = tiny.run(delta=DELTA, **how)
    assert asked
    assert there.later is None
    alone = tiny.run(delta=DELTA)
    assert alone.history == there.history
    assert [line.epsilon for line in seen] == [line["epsilon"] for line in alone.history if watched == "callback"]


def test_later_readings_do_not_count_what_came_after_the_run():
    ledger = Ledger()
    first = tiny.run(delta=DELTA, ledger=ledger)
    second = tiny.run(tiny.model(), delta=DELTA, ledger=ledger)
    assert first.history[-1]["epsilon"] == tiny.mechanism().epsilon(DELTA)
    assert second.history[-1]["epsilon"] == ledger.epsilon(DELTA) > 1.2 * first.history[-1]["epsilon"]
    assert second.history[0]["epsilon"] > first.history[-1]["epsilon"]


def test_a_run_can_be_kept_before_its_readings_are_asked_for():
    trained = tiny.run(delta=DELTA)
    later = pickle.loads(pickle.dumps(trained.later))
    assert later.ledger.identity is None
    assert later.filled(trained.lines) == trained.history
