"""The noised choice is the Gaussian mechanism that it says it is."""

from __future__ import annotations

import math
import tomllib
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from helpers import tiny
from helpers.people_table import people, written
from noisewise.accounting.defaults import default_delta
from noisewise.bounded import Bounded, release
from noisewise.data import Splits
from noisewise.data.tables import noised as noised_choice
from noisewise.data.tables.kinds import BUCKETS, Category, Classes, Hashed, Number, bucket
from noisewise.data.tables.noised import (
    CELLS,
    FIRST,
    MAGNITUDES,
    PUBLIC_BUCKETS,
    _counted,
    _equal_cells,
    _first_cells,
    _magnitude_range,
)
from noisewise.data.tables.propose import RELEASED, propose
from noisewise.data.tables.schema import MISSING, Schema
from noisewise.errors import DataError
from noisewise.losses import cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.randomness import Entropy
from noisewise.recipe import Recipe, at_epsilon, fit
from noisewise.sampling import FullBatch, Poisson

FUZZ = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

DECLARED = {"hired": Classes(("no", "yes")), "sex": Category(("f", "m"))}

FALSE_ALARM = 1e-6


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)


# --- released with noise
@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return written(tmp_path_factory.mktemp("people") / "people.csv", people())


@cache
def noised(path, epsilon=2.0, seed=0, **more):
    return propose(
        path, label="hired", groups=["sex"], columns=DECLARED, epsilon=epsilon, entropy=Entropy.insecure(seed), **more
    )


def test_kinds_ranges_and_common_texts_are_found(file) -> None:
    found = noised(file)
    columns = found.schema.columns
    age, born, pay = columns["age"], columns["born"], columns["pay"]
    assert isinstance(age, Number)
    assert 16 <= age.low <= 20
    assert 76 <= age.high <= 82
    assert isinstance(born, Number)
    assert 1920 <= born.low <= 1945  # within [1024, 2048], by the second look
    assert 1990 <= born.high <= 2000
    assert isinstance(pay, Number)
    assert -1600 <= pay.low <= -1400
    assert 2900 <= pay.high <= 3100
    assert pay.indicator
    assert not age.indicator
    town = columns["town"]
    assert isinstance(town, Hashed)
    assert town.kept is not None
    common = {bucket(name, PUBLIC_BUCKETS) for name in ("Ulm", "Bonn", "Köln")}
    assert common <= set(town.kept)
    assert bucket("Secret", PUBLIC_BUCKETS) not in town.kept
    assert columns["name"] == Hashed(BUCKETS)  # nothing common: the public default
    assert found.remarks["age"] == RELEASED
    assert len(found.schema.encode(file)) == 4000  # not refused: the ledger covers it


def test_the_schema_holds_no_text_of_the_rows(file) -> None:
    text = noised(file).to_toml()
    assert not any(name in text for name in ("Ulm", "Bonn", "Köln", "Secret", "person"))


def test_the_ledger_is_the_plan_and_costs_what_was_allowed(file) -> None:
    schema = noised(file, epsilon=0.7, delta=1e-6).schema
    plan = Mechanism(sampler=FullBatch(4000), steps=2, noise_multiplier=schema.ledger.lines[0].event.noise_multiplier)
    assert [event for event, _ in schema.ledger.events()] == [plan.events()[0][0]] * 2
    assert 0.69 < schema.ledger.epsilon(1e-6) <= 0.7
    assert [line.first_step for line in schema.ledger.lines] == [0, 1]
    raw = tomllib.loads(schema.to_toml())
    assert Schema.from_dict(raw).ledger == schema.ledger
    assert f"at delta {default_delta(4000):g}" in noised(file).notes[0]


def test_what_is_spent_does_not_depend_on_what_is_found(tmp_path) -> None:
    """Texts only: nothing is left to ask, which is known from a noised answer."""
    path = written(tmp_path / "t.csv", {"a": ["x", "y"] * 150, "hired": ["no", "yes"] * 150, "sex": ["f", "m"] * 150})
    schema = noised(path, delta=1e-6).schema
    assert isinstance(schema.columns["a"], Hashed)
    assert schema.ledger.releases == 2
    assert 1.99 < schema.ledger.epsilon(1e-6) <= 2.0


def test_training_adds_up_with_the_choice(file) -> None:
    schema = noised(file).schema
    assert schema.ledger is not None
    trained = tiny.run(ledger=schema.ledger, insecure_seed=0)
    assert trained.ledger.events() == [*schema.ledger.events(), *tiny.mechanism().events()]


def test_a_recipe_plans_what_choosing_ranges_has_spent(file) -> None:
    schema = noised(file).schema
    rows = schema.encode(file)
    layers = torch.nn.Sequential(torch.nn.Linear(rows.x.shape[1], 2))
    made = Recipe(
        model=layers, data=Splits(rows, rows, rows), loss_fn=cross_entropy,
        mechanism=Mechanism(sampler=Poisson(len(rows), 200), steps=2, noise_multiplier=4.0),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )  # fmt: skip
    assert made.lines()[: len(schema.ledger.lines)] == schema.ledger.lines
    calibrated = at_epsilon(made, 4.0, 1e-5)
    assert calibrated.epsilon(1e-5) <= 4.0
    assert fit(calibrated, progress=False).ledger.epsilon(1e-5) == pytest.approx(calibrated.epsilon(1e-5))


class Spy:
    """What goes through the door, and what comes out."""

    def __init__(self):
        self.noise, self.sensitivity = [], []

    def __call__(self, parts, **settings_):
        answers = release(parts, **settings_)
        for purpose, (bounded, _) in parts.items():
            self.sensitivity.append(bounded.sensitivity)
            self.noise.append(
                torch.cat([answers[purpose][key] - value for key, value in bounded._values.items()]).numpy()
            )
        return answers


def has_std(noise, std):
    """Two-sided chi-square test of the scale; false alarms 1e-6."""
    statistic = float(np.square(noise / std).sum())
    return 2 * min(stats.chi2.cdf(statistic, noise.size), stats.chi2.sf(statistic, noise.size)) > FALSE_ALARM


def test_the_noise_is_the_ledgers_times_the_sensitivity_of_all_columns(file, monkeypatch) -> None:
    spy = Spy()
    monkeypatch.setattr(noised_choice, "release", spy)
    ledger = noised.__wrapped__(file, epsilon=0.5).schema.ledger
    assert ledger is not None
    sigma = ledger.lines[0].event.noise_multiplier
    for noise, columns in zip(spy.noise, (5, 3), strict=True):  # five undeclared columns, three of them numbers
        assert has_std(noise, sigma * math.sqrt(columns))
        assert stats.kstest(noise / (sigma * math.sqrt(columns)), "norm").pvalue > FALSE_ALARM


def test_a_forgotten_column_is_found_out(file, monkeypatch) -> None:
    """The planted fault: sensitivity 1, as if a row had one column."""
    spy = Spy()
    monkeypatch.setattr(noised_choice, "release", spy)
    monkeypatch.setattr(noised_choice, "Bounded", lambda counts, sensitivity: Bounded(counts, 1.0))
    ledger = noised.__wrapped__(file, epsilon=0.5).schema.ledger
    assert ledger is not None
    sigma = ledger.lines[0].event.noise_multiplier
    assert not has_std(spy.noise[0], sigma * math.sqrt(5))


VALUE = TEXT | st.floats(allow_nan=False).map(str) | st.sampled_from(["0", "1e999", *MISSING])

ROWS = st.lists(st.tuples(st.sampled_from("pqr"), VALUE, VALUE, VALUE), max_size=6)


@FUZZ
@given(ROWS, st.tuples(VALUE, VALUE, VALUE), st.booleans())
def test_one_row_moves_the_counts_by_the_root_of_the_columns(tmp_path, rows, added, first) -> None:
    """The definition of sensitivity, on neighbours: with units, the added person has five rows."""
    names = ["who", "a", "b", "c"]
    cells = {
        "first": dict.fromkeys("abc", (_first_cells, FIRST + PUBLIC_BUCKETS)),
        "second": dict.fromkeys("abc", (_equal_cells(-1.0, 1000.0), CELLS)),
    }[("second", "first")[first]]
    for unit, more in ((None, 1), ("who", 5)):
        tables = [rows, [*rows[:2], *[("new", *added)] * more, *rows[2:]]]
        counts = []
        for index, table in enumerate(tables):
            path = written(tmp_path / f"{index}.csv", {name: [row[k] for row in table] for k, name in enumerate(names)})
            counts.append(torch.cat(list(_counted(path, ",", unit, cells).values())))
        distance = float((counts[1] - counts[0]).norm())
        assert distance <= math.sqrt(3) + 1e-9
        if first:
            assert distance == pytest.approx(math.sqrt(3))


def test_a_person_of_many_rows_counts_once(tmp_path) -> None:
    rows = people(600)
    extra = {name: values + [values[0]] * 5000 for name, values in rows.items()}
    extra["town"] = rows["town"] + ["Secret"] * 5000
    schema = noised(written(tmp_path / "p.csv", extra), epsilon=5.0, unit="name").schema
    town = schema.columns["town"]
    assert isinstance(town, Hashed)
    assert town.kept is not None
    assert bucket("Secret", PUBLIC_BUCKETS) not in town.kept
    assert schema.unit == schema.counted == "name"
    assert Schema.from_dict(tomllib.loads(schema.to_toml())) == schema


def test_empty_cells_are_filled_as_often_as_the_normal_distribution_says(tmp_path, monkeypatch) -> None:
    """With FALSE_CELL = 300 each of the 65,536 empty buckets is kept with probability 300 / 65,536."""
    monkeypatch.setattr(noised_choice, "FALSE_CELL", 300.0)
    table = {name: [f"{name}{k}" for k in range(50)] for name in "abcd"}
    path = written(tmp_path / "t.csv", {**table, "hired": ["no", "yes"] * 25, "sex": ["f", "m"] * 25})
    kept = 0
    chance = 300.0 / PUBLIC_BUCKETS
    trials = 0
    for seed in range(2):
        # The declared n makes sure that no column is taken for numbers, which have no buckets.
        for kind in noised(path, epsilon=0.3, seed=seed, n=10**6).schema.columns.values():
            assert isinstance(kind, Hashed)
            kept += len(kind.kept or ())
            trials += PUBLIC_BUCKETS
    assert stats.binomtest(kept, trials, chance).pvalue > FALSE_ALARM
    assert stats.binomtest(2 * kept, trials, chance).pvalue < FALSE_ALARM


@FUZZ
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_lies_in_the_range_of_its_cell(value) -> None:
    (cell,) = _first_cells([repr(value)]) - 1
    low, high = _magnitude_range(np.array([cell]))
    assert 0 <= cell <= 2 * MAGNITUDES
    if value == 0:
        assert (low, high) == (0, 1)
    elif abs(value) < 2.0**41:
        assert low <= value <= high
        assert abs(value) < 2.0**-10 or max(abs(low), abs(high)) <= 2 * abs(value) * (1 + 1e-15)
    else:
        assert abs(value) >= max(abs(low), abs(high))


def test_numbers_and_texts_and_gaps_have_cells_of_their_own() -> None:
    cells = _first_cells(["", "?", "0", "x", "1", "-1", "nan", "1e999"])
    assert cells.tolist() == [
        0, 0, 1 + MAGNITUDES, FIRST + bucket("x", PUBLIC_BUCKETS), 1 + MAGNITUDES + 11, 1 + MAGNITUDES - 11, 0,
        2 * MAGNITUDES + 1,
    ]  # fmt: skip
    assert _equal_cells(0.0, 64.0)(["-5", "0", "0.99", "63.5", "64", "1e9", "x", ""]).tolist() == [
        0, 0, 0, 63, 63, 63, -1, -1,
    ]  # fmt: skip


def test_noise_is_fresh_each_time_unless_asked_otherwise(file, monkeypatch) -> None:
    spy = Spy()
    monkeypatch.setattr(noised_choice, "release", spy)
    settings_ = {"label": "hired", "groups": ["sex"], "columns": DECLARED, "epsilon": 0.2}
    first, _ = (propose(file, **settings_).schema for _ in range(2))
    assert np.isclose(spy.noise[0], spy.noise[2]).mean() < 0.01
    again = propose(file, **settings_ | {"epsilon": 2.0}, entropy=Entropy.insecure(0))
    assert again.schema == noised(file).schema
    assert all("reproducible: do not publish" in line.purpose for line in again.schema.ledger.lines)
    assert not any("reproducible" in line.purpose for line in first.ledger.lines)


def test_an_empty_file_is_refused(tmp_path) -> None:
    with pytest.raises(DataError, match="no rows"):
        noised(written(tmp_path / "e.csv", {"a": [], "sex": [], "hired": []}))
