"""Kinds of columns in files: read back as they were written, by hand too, and what makes no sense is refused."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisewise.data.tables.dates import FORMATS, PARTS, Date
from noisewise.data.tables.kinds import KINDS, NO, YES, Boolean, Feature, Kind, Number, Target, centred, filled
from noisewise.data.tables.schema import Schema, read
from noisewise.data.tables.words import Words
from noisewise.errors import ConfigError, DataError

NEW = st.one_of(
    st.builds(Words, st.integers(2, 64), st.booleans()),
    st.builds(
        Date, st.just("1999-01-01"), st.sampled_from(["2001-05-31", "2020-12-31T23:59:00"]), st.sampled_from(FORMATS),
        st.lists(st.sampled_from(PARTS), min_size=1, unique=True).map(tuple), st.just(True), st.sampled_from([None, "missing"]),
    ),
    st.builds(Boolean, st.just(True), st.sampled_from([None, "missing"])),
    st.builds(Boolean),
    st.builds(Number, st.just(0.0), st.just(9.0), st.booleans(), st.just(3.0), st.booleans(), st.just("missing")),
)  # fmt: skip
TARGETS = st.builds(Target, st.just(0.0), st.just(9.0), st.just(4.5), st.none() | st.floats(-1e6, 1e6))


@settings(max_examples=60, deadline=None)
@given(NEW, TARGETS)
def test_new_kinds_are_read_back_as_they_were_written(tmp_path_factory, kind, target) -> None:
    schema = Schema(label="y", target=target, columns={"a": kind})
    path = tmp_path_factory.mktemp("schemas") / "s.toml"
    path.write_text(schema.to_toml(), "utf-8")
    for again in (read(path), Schema.from_dict(json.loads(json.dumps(schema.to_dict())))):
        assert again == schema
        assert (again.columns["a"], again.target) == (kind, target)


def test_a_schema_of_the_first_kind_is_still_read() -> None:
    """What is new may be left out."""
    entry = {"name": "a", "kind": "number", "low": 0.0, "high": 1.0, "log": False, "indicator": False}
    raw = {
        "format": 1, "origin": "declared", "confirmed": False, "separator": ",", "missing": [""],
        "label": {"name": "y", "kind": "target", "low": 0.0, "high": 1.0, "scale": 1.0}, "groups": [], "columns": [entry],
    }  # fmt: skip
    schema = Schema.from_dict(raw)
    assert schema.to_dict() == raw
    assert (schema.encoding, schema.columns["a"], schema.target) == ("utf-8", Number(0, 1), Target(0, 1))


def test_dates_may_be_written_as_toml_has_them(tmp_path) -> None:
    schema = Schema(label="y", target=Target(0, 1), columns={"a": Date("2020-01-01", "2020-12-31")})
    path = tmp_path / "s.toml"
    path.write_text(schema.to_toml().replace('"2020-01-01"', "2020-01-01").replace('"2020-12-31"', "2020-12-31"))
    assert read(path) == schema


def test_every_kind_has_a_word_in_files_and_words_for_people() -> None:
    assert set(KINDS.values()) == set(get_args(Kind)) >= set(get_args(Feature))
    examples = [filled(0, 1, invalid="missing"), Date("2020-01-01", "2021-01-01"), Words(8), Boolean(indicator=True)]
    assert all(0 < len(kind.words()) < 80 for kind in examples)
    assert all(len(fields(kind)) for kind in examples)


def test_yes_and_no() -> None:
    texts = [*YES, *NO, "TRUE", "No", "perhaps"]
    assert Boolean().read(texts)[:-1].tolist() == [1] * 5 + [-1] * 5 + [1, -1]
    assert np.isnan(Boolean().read(["perhaps"])[0])
    schema = Schema(label="y", target=Target(0, 1), columns={"a": Boolean(indicator=True, invalid="missing")})
    assert schema.inputs({"a": ["yes", "F", "", "perhaps"]}).tolist() == [[1, 0], [-1, 0], [0, 1], [0, 1]]
    with pytest.raises(DataError, match=r"'perhaps': not yes or no\. Write it as yes or no, true or false"):
        Schema(label="y", target=Target(0, 1), columns={"a": Boolean()}).inputs({"a": ["perhaps"]})


def test_what_is_no_number_stops_or_is_filled() -> None:
    strict, lenient = (
        Schema(label="y", target=Target(0, 1), columns={"a": Number(0, 8, fill=4, indicator=True, invalid=how)})
        for how in (None, "missing")
    )
    assert lenient.inputs({"a": ["8", "12 %", "n/a", "unknown", ""]}).tolist() == [[1, 0], *[[0, 1]] * 4]
    with pytest.raises(
        DataError, match=r"row 2, column 'a': '12 %': not a decimal number.*a=LOW:HIGH:gaps, .*invalid = \"missing\""
    ):
        strict.inputs({"a": ["8", "12 %"]})


@given(st.floats(-1e6, 1e6), st.floats(1, 1e9), st.floats(0, 1))
def test_a_label_comes_back_from_its_scale(low, span, share) -> None:
    target = centred(low, low + span)
    value = np.array([low + share * span])
    scaled = target.scaled(value)
    assert abs(float(scaled[0])) <= 1 + 1e-6
    np.testing.assert_allclose(
        target.unscaled(scaled), np.clip(value, target.low, target.high), atol=1e-9 * (abs(low) + span)
    )


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Number(0, 1, invalid="missing"),
        lambda: Number(0, 1, fill=0, invalid="zero"),
        lambda: Boolean(invalid="missing"),
        lambda: Boolean(indicator=1),  # type: ignore[arg-type]
        lambda: Target(0, 1, offset=float("nan")),
        lambda: Target(0, 1, offset="0"),  # type: ignore[arg-type]
        lambda: centred(1, 1),
    ],
)
def test_impossible_kinds_are_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        wrong()
