"""Epsilon along a run: read on the way where somebody looks, else when somebody asks."""

import pickle
import threading

import pytest

from helpers import tiny
from helpers.loops import DELTA
from noisewise.accounting import Ledger
from noisewise.errors import ConfigError
from noisewise.progress import Bar
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


@pytest.fixture
def slow(monkeypatch):
    """Readings that are not computed before `go` is set, and what the bar says meanwhile, step by step."""
    go, said, along, advance = threading.Event(), [], readings.epsilons_along, Bar.advance
    monkeypatch.setattr(readings, "epsilons_along", lambda *args: go.wait(60) and along(*args))
    monkeypatch.setattr(Bar, "__enter__", lambda bar: bar)
    monkeypatch.setattr(Bar, "advance", lambda bar, *args, extra=None: said.append(extra) or advance(bar, *args))
    return go, said


def test_steps_do_not_wait_for_an_epsilon_that_is_only_shown(slow):
    """The accountant may go on only when half of the steps are done; the last word is the epsilon of the run."""
    go, said = slow
    steps, done = tiny.mechanism().steps, []

    def record(_):
        done.append(None)
        if len(done) == steps // 2:
            go.set()

    trained = tiny.run(delta=DELTA, progress=True, recorders=[record])
    assert said[: steps // 2 - 1] == [None] * (steps // 2 - 1)
    assert said[-1].startswith("epsilon ")
    assert float(said[-1].split()[1]) >= trained.ledger.epsilon(DELTA)


def test_a_reading_that_is_told_is_waited_for(slow, monkeypatch):
    """The accountant goes on only when a reading is asked for, which is that of a run with nothing to wait for."""
    go, seen, after = slow[0], [], readings.Beside.after
    monkeypatch.setattr(readings.Beside, "after", lambda beside, step: go.set() or after(beside, step))
    tiny.run(delta=DELTA, callbacks=[seen.append])
    assert [told.epsilon for told in seen] == [line["epsilon"] for line in tiny.run(delta=DELTA).history]


def test_an_error_of_the_accountant_is_raised_where_a_reading_is_needed(monkeypatch):
    def refuse(*_):
        raise ConfigError("no reading")

    monkeypatch.setattr(readings, "epsilons_along", refuse)
    with pytest.raises(ConfigError, match="no reading"):
        tiny.run(delta=DELTA, callbacks=[lambda told: None])


def test_no_thread_outlives_a_run(tmp_path):
    tiny.run(delta=DELTA, out=tmp_path)
    assert "epsilon" not in {thread.name for thread in threading.enumerate()}
