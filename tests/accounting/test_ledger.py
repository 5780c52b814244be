"""The ledger: run lengths, JSON, and damage that never becomes a wrong epsilon."""

import itertools
import json
import math

import dp_accounting as dp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.damage import changed, damaged, without
from noisewise.accounting import ADJACENCIES, Identity, Ledger, Line, pld_epsilon, spent
from noisewise.accounting.ledger import joined
from noisewise.errors import ConfigError, RunError
from noisewise.schedule import Schedule

DELTA = 1e-5

GAUSSIAN = dp.GaussianDpEvent(4.0)

POISSON = dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(2.0))

NOT_PRIVATE = dp.NonPrivateDpEvent()

sigmas = st.floats(1e-3, 1e6)

events = st.one_of(
    st.just(NOT_PRIVATE),
    sigmas.map(dp.GaussianDpEvent),
    st.builds(
        lambda rate, sigma: dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)), st.floats(1e-9, 1), sigmas
    ),
    st.builds(
        dp.TruncatedSubsampledGaussianDpEvent, st.integers(1, 10**9), st.floats(1e-9, 1), st.integers(1, 10**9), sigmas
    ),
)

lines = st.builds(Line, events, st.sampled_from(["gradient", "gradient + clip"]), st.integers(1, 10**6), st.integers(0))

units = st.sampled_from([None, "row", "person"])

ledgers = st.builds(Ledger, st.sampled_from(sorted(ADJACENCIES)), st.lists(lines, max_size=4), units, st.booleans())

quick = settings(max_examples=60, deadline=None, derandomize=True)


def through_json(ledger):
    return json.loads(json.dumps(ledger.to_dict()))


def two_lines():
    ledger = Ledger("add-remove")
    for step in range(3):
        ledger.record(POISSON, "gradient", step)
    ledger.record(GAUSSIAN, "count", 3)
    return ledger


def test_equal_releases_in_a_row_share_a_line():
    ledger = two_lines()
    ledger.record(POISSON, "gradient", 4)
    assert ledger.lines == [
        Line(POISSON, "gradient", 3, 0),
        Line(GAUSSIAN, "count", 1, 3),
        Line(POISSON, "gradient", 1, 4),
    ]
    assert ledger.releases == 5


@quick
@given(st.lists(st.tuples(events, st.sampled_from(["a", "b"])), max_size=12))
def test_recording_only_appends(releases):
    ledger, unrolled = Ledger(), []
    for step, (event, purpose) in enumerate(releases):
        ledger.record(event, purpose, step)
        unrolled.append((event, purpose, step))
        assert ledger.releases == len(unrolled)
        told = [(line.event, line.purpose, line.first_step + i) for line in ledger.lines for i in range(line.count)]
        assert told == unrolled


@quick
@given(ledgers)
def test_json_round_trip(ledger):
    assert Ledger.from_dict(through_json(ledger)) == ledger


@quick
@given(ledgers, units)
def test_what_the_reader_knows_of_the_unit_counts_where_the_file_says_nothing(ledger, known):
    read = Ledger.from_dict(through_json(ledger), unit=known)
    assert read.unit == (known if ledger.unit is None else ledger.unit)
    first = {key: value for key, value in through_json(ledger).items() if key in ("adjacency", "lines")} | {"format": 1}
    assert Ledger.from_dict(first, unit=known) == Ledger(ledger.adjacency, ledger.lines, known)


@quick
@given(ledgers, st.lists(lines, max_size=4), st.booleans(), st.booleans())
def test_two_ledgers_together_hold_all_that_either_holds(one, more, reproducible, known):
    other = Ledger(one.adjacency, more, one.unit, reproducible, Identity.of(b"data", b"key") if known else None)
    for first, second in ((one, other), (other, one)):
        both = first.composed(second)
        assert both.lines == [*first.lines, *second.lines]
        assert (both.adjacency, both.unit) == (one.adjacency, one.unit)
        assert both.reproducible == (one.reproducible or reproducible)
        assert both.identity == other.identity
        assert both.holds(first)
        assert both.holds(second)


@quick
@given(st.lists(lines, max_size=6))
def test_joining_keeps_every_release_and_leaves_no_equal_neighbours(some):
    short = joined(some)
    assert sum(line.count for line in short) == sum(line.count for line in some)
    assert joined(short) == short
    assert all((a.event, a.purpose) != (b.event, b.purpose) for a, b in itertools.pairwise(short))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(damaged(through_json(two_lines())))
def test_damage_is_an_error_or_another_ledger_that_says_what_the_file_says(raw):
    try:
        read = Ledger.from_dict(raw)
    except RunError:
        return
    assert through_json(read) == raw


def with_entry(*path, to):
    return changed(through_json(two_lines()), *path, to=to)


def lacking(*path):
    return without(through_json(two_lines()), *path)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        "",
        {},
        with_entry("format", to=1),  # which knows neither unit nor reproducible
        with_entry("format", to=3),
        with_entry("format", to=True),
        lacking("format"),
        with_entry("adjacency", to="neighbours"),
        with_entry("adjacency", to=["add-remove"]),
        lacking("adjacency"),
        lacking("lines"),
        with_entry("lines", to=""),
        with_entry("lines", to={}),
        with_entry("lines", to=None),
        with_entry("lines", 0, to=None),
        with_entry("lines", 0, to=[]),
        with_entry("note", to=1),
        with_entry("lines", 0, "count", to=-1),
        with_entry("lines", 0, "count", to=0),
        with_entry("lines", 0, "count", to=3.0),
        with_entry("lines", 0, "count", to="3"),
        with_entry("lines", 0, "count", to=True),
        lacking("lines", 0, "count"),
        with_entry("lines", 0, "first_step", to=-1),
        lacking("lines", 0, "first_step"),
        with_entry("lines", 0, "purpose", to=7),
        lacking("lines", 0, "purpose"),
        with_entry("lines", 0, "note", to=1),
        with_entry("lines", 0, "event", to=None),
        with_entry("lines", 0, "event", to="gaussian"),
        lacking("lines", 0, "event"),
        with_entry("lines", 0, "event", "kind", to="laplace"),
        with_entry("lines", 0, "event", "kind", to="gaussian"),  # would forget the sampling rate
        lacking("lines", 0, "event", "kind"),
        with_entry("lines", 0, "event", "note", to=1),
        with_entry("lines", 0, "event", "rate", to=1.5),
        with_entry("lines", 0, "event", "rate", to=0),
        with_entry("lines", 0, "event", "rate", to=-0.1),
        with_entry("lines", 0, "event", "rate", to="0.02"),
        lacking("lines", 0, "event", "rate"),
        with_entry("lines", 0, "event", "noise_multiplier", to=0),
        with_entry("lines", 0, "event", "noise_multiplier", to=-1.0),
        with_entry("lines", 0, "event", "noise_multiplier", to=math.nan),
        with_entry("lines", 0, "event", "noise_multiplier", to=math.inf),
        with_entry("lines", 0, "event", "noise_multiplier", to=None),
        lacking("lines", 1, "event", "noise_multiplier"),
    ],
    ids=repr,
)
def test_damaged_ledgers_are_refused(raw):
    with pytest.raises(RunError, match="ledger"):
        Ledger.from_dict(raw)


def test_unknown_adjacency_is_refused():
    with pytest.raises(ConfigError, match="must be one of"):
        Ledger("neighbours")


def test_one_release_without_noise_makes_epsilon_infinite():
    ledger = two_lines()
    assert ledger.epsilon(DELTA) < 10
    ledger.record(NOT_PRIVATE, "plain (not private)", 4)
    assert ledger.epsilon(DELTA) == math.inf
    assert Ledger.from_dict(through_json(ledger)).epsilon(DELTA) == math.inf


def test_lines_compose():
    ledger = two_lines()
    together = pld_epsilon([(POISSON, 3), (GAUSSIAN, 1)], DELTA, "add-remove")
    apart = [pld_epsilon([part], DELTA, "add-remove") for part in ((POISSON, 3), (GAUSSIAN, 1))]
    assert ledger.epsilon(DELTA) == together
    assert max(apart) < together < sum(apart)


def test_what_is_no_event_and_no_adjacency_is_named():
    with pytest.raises(ConfigError, match=r"event 'x': must be a dp_accounting\.DpEvent"):
        Ledger("add-remove").record("x", "gradient", 0)
    with pytest.raises(ConfigError, match="adjacency='swap': must be one of add-remove"):
        spent([(dp.GaussianDpEvent(1.0), 1)], 1e-5, "swap")
    with pytest.raises(ConfigError, match="must be pairs of a first step and a value"):
        Schedule({0: 1.0})
