"""Proposals: what is read, what is not looked at, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.people_table import people, written
from noisewise.data.tables.dates import Date
from noisewise.data.tables.guess import rounded
from noisewise.data.tables.kinds import (
    BUCKETS,
    WIDE,
    WORD_BUCKETS,
    Boolean,
    Category,
    Classes,
    Hashed,
    Ignore,
    Number,
    Target,
)
from noisewise.data.tables.propose import READ, declared, propose
from noisewise.data.tables.schema import MISSING, read
from noisewise.data.tables.words import Words
from noisewise.errors import ConfigError, DataError, PrivacyError

FUZZ = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

DECLARED = {"hired": Classes(("no", "yes")), "sex": Category(("f", "m"))}

DECLARED_PARTS = ("position", "month", "weekday")


# --- read off the rows
@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return written(tmp_path_factory.mktemp("people") / "people.csv", people())


def test_what_the_rows_have_is_proposed_and_marked(file, tmp_path) -> None:
    found = propose(file, label="hired", groups=["sex"])
    schema, table = found.schema, people()
    assert schema.target == Classes(("no", "yes"))
    assert schema.groups == {"sex": Category(("f", "m"))}
    assert schema.columns["age"] == Number(10, 80, fill=45)
    assert schema.columns["born"] == Number(1930, 2000, fill=1965)
    assert schema.columns["pay"] == Number(-2000, 3000, fill=500, indicator=True)
    assert schema.columns["town"] == Category(tuple(sorted(set(table["town"]))))
    assert schema.columns["name"] == Ignore()  # an identifier
    assert (schema.origin, schema.confirmed, schema.ledger) == ("rows", False, None)
    assert set(found.remarks.values()) == {READ, f"an identifier; {READ}"}
    assert "do not pass it on" in found.notes[0]
    text = found.to_toml()
    assert text.count(READ) == len(table)
    with pytest.raises(PrivacyError, match="confirmed"):
        schema.encode(file)
    path = tmp_path / "schema.toml"
    path.write_text(text.replace("confirmed = false", "confirmed = true"), "utf-8")
    data = read(path).encode(file)
    assert (len(data), data.x.shape[1]) == (4000, schema.width)


def test_declared_columns_are_kept_and_not_marked(file) -> None:
    found = propose(file, label="hired", columns={"age": Number(0, 120), "name": Ignore(), **DECLARED})
    assert found.schema.columns["age"] == Number(0, 120)
    assert found.schema.columns["sex"] == DECLARED["sex"]  # not a group here, so a feature
    assert found.remarks == {
        **dict.fromkeys(("age", "name", "sex", "hired"), "declared"),
        **dict.fromkeys(("born", "pay", "town"), READ),
    }
    assert found.schema.origin == "rows"


def test_a_label_of_numbers(tmp_path) -> None:
    many = written(tmp_path / "many.csv", {"a": range(30), "y": [k / 7 for k in range(30)]})
    assert propose(many, label="y").schema.target == Target(0, 5, scale=2.5, offset=2.5)
    few = written(tmp_path / "few.csv", {"a": range(30), "y": [k % 12 for k in range(30)]})
    assert propose(few, label="y").schema.target == Classes(tuple(str(k) for k in range(12)))


def test_numbers_with_commas_are_mentioned(tmp_path) -> None:
    table = {"size": ["1,75", "NA", "2"], "pay": ["1,000", "2,000", "7"], "list": ["1,2,3", "1,2", "4"], "a": [1, 2, 3]}
    found = propose(written(tmp_path / "rows.csv", {**table, "y": ["a", "b", "a"]}), label="y")
    assert "no comma: 'size', 'pay'. Write 1.75" in found.odd[-1]
    assert isinstance(found.schema.columns["size"], Category)
    plain = written(tmp_path / "plain.csv", {"a": [1, 2, 3], "b": ["x", "1,2", ""], "y": ["a", "b", "a"]})
    assert not any("comma" in note for note in propose(plain, label="y").odd)


def test_nobody_learns_from_one_label_or_too_many(tmp_path) -> None:
    same = written(tmp_path / "same.csv", {"a": range(3), "y": ["x", "x", ""]})
    with pytest.raises(ConfigError, match="nothing to learn"):
        propose(same, label="y")
    names = written(tmp_path / "names.csv", {"a": range(60), "y": [f"n{k}" for k in range(60)]})
    with pytest.raises(ConfigError, match="more than 50 different texts"):
        propose(names, label="y")
    with pytest.raises(ConfigError, match="more than 50 different texts"):
        propose(names, label="a", groups=["y"])
    empty = written(tmp_path / "empty.csv", {"a": [], "y": []})
    with pytest.raises(DataError, match="no rows"):
        propose(empty, label="y")


@FUZZ
@given(st.floats(-1e308, 1e308), st.floats(-1e308, 1e308))
def test_rounding_goes_outwards(one, other) -> None:
    low, high = rounded(min(one, other), max(one, other))
    assert low <= min(one, other) <= max(one, other) <= high
    assert low < high


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)


@FUZZ
@given(st.lists(st.tuples(TEXT | st.sampled_from(["1", "2.5", "-3e7", *MISSING]), TEXT), min_size=2, max_size=12))
def test_whatever_is_proposed_encodes_the_file(tmp_path, rows) -> None:
    labels = ["a", "b"] * len(rows)
    table = {"one": [row[0] for row in rows], "two": [row[1] for row in rows], "y": labels[: len(rows)]}
    table["number"] = range(len(rows))  # a column without any value is left out, and one must be left
    path = written(tmp_path / "rows.csv", table)
    for ways in ({}, {"header_only": True}):
        found = propose(path, label="y", columns={"y": Classes(("a", "b"))}, **ways)
        assert len(found.schema.encode(path, public=True)) == len(rows)


# --- public defaults
def test_header_only_reads_no_row(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"age;name;y\n" + b"\xff\xfe no text at all \x00")
    found = propose(path, label="y", columns={"y": Classes(("a", "b")), "age": WIDE}, header_only=True)
    assert found.schema.columns == {"age": WIDE, "name": Hashed(BUCKETS)}
    assert (found.schema.origin, found.schema.separator) == ("declared", ";")
    assert found.remarks["name"].startswith("public default")
    assert found.schema.encode({"age": [1], "name": ["x"], "y": ["a"]}).x.shape == (1, 1 + BUCKETS)


def test_all_declared_reads_no_row(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"age,y\n\xff")
    kinds = {"y": Classes(("a", "b")), "age": WIDE}
    for ways in ({}, {"header_only": True}, {"epsilon": 1.0}):
        found = propose(path, label="y", columns=kinds, **ways)
        assert (found.schema.origin, found.schema.ledger) == ("declared", None)
        assert "nothing below the header" in found.notes[0]


def test_the_wide_default_tells_magnitudes_apart() -> None:
    x = WIDE.scaled(np.array([-1e4, -1.0, 0.0, 1.0, 100.0, 1e4, 1e9]))
    assert (np.diff(x) > 0.04).all()
    assert x[-1] == 1


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"header_only": True}, "'hired': the values of label and groups must be declared"),
        ({"epsilon": 1.0, "columns": {"hired": DECLARED["hired"]}, "groups": ["sex"]}, "'sex': the values"),
        ({"header_only": True, "epsilon": 1.0, "columns": DECLARED}, "Choose one"),
        ({"delta": 1e-5}, "without an epsilon"),
        ({"groups": ["gender"]}, "'gender': no such column"),
        ({"unit": "who"}, "'who': no such column"),
        ({"columns": {"agee": WIDE}}, "'agee': no such column"),
        ({"groups": ["age"], "columns": {"age": WIDE}}, "must be categories"),
        ({"columns": {"hired": Ignore()}}, "must be classes"),
        ({"columns": {"age": Target(0, 1), **DECLARED}}, "are for the label"),
        ({"unit": "name", "columns": {"name": Ignore()}}, "is the unit"),
        ({"unit": "hired"}, "'hired': named as two of label, group and unit"),
        ({"unit": "sex", "groups": ["sex"]}, "'sex': named as two"),
        ({"groups": ["hired"]}, "'hired': named as two"),
        ({"groups": ["sex", "sex"]}, "'sex': named as two"),
        ({"epsilon": -1.0, "columns": DECLARED}, "epsilon"),
    ],
)
def test_impossible_wishes_are_refused(file, settings_, message) -> None:
    with pytest.raises(ConfigError, match=message):
        propose(file, label="hired", **settings_)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("age", ("age", None)),
        ("age=number", ("age", WIDE)),
        ("age=-1.5:2", ("age", Number(-1.5, 2, fill=0.25))),
        ("age=0:1e6:log", ("age", Number(0, 1e6, log=True, fill=999))),
        ("age=0:9:gaps", ("age", Number(0, 9, fill=4.5, indicator=True, invalid="missing"))),
        ("age=0:1e6:log:gaps", ("age", Number(0, 1e6, log=True, fill=999, indicator=True, invalid="missing"))),
        ("age=boolean", ("age", Boolean(indicator=True))),
        ("town=words", ("town", Words(WORD_BUCKETS))),
        ("town=words:32", ("town", Words(32))),
        ("age=date:2020-01-01:2021-01-01", ("age", Date("2020-01-01", "2021-01-01", "iso", DECLARED_PARTS, True))),
        (
            "age=date:2020-01-01:2021-01-01:%d.%m.%Y %H:%M",
            ("age", Date("2020-01-01", "2021-01-01", "%d.%m.%Y %H:%M", DECLARED_PARTS, True)),
        ),
        ("town=text", ("town", Hashed(BUCKETS))),
        ("town=hash:8", ("town", Hashed(8))),
        ("town=ignore", ("town", Ignore())),
        ("town=Ulm", ("town", Category(("Ulm",)))),
        ('town="a, b", c', ("town", Category(("a, b", "c")))),
        ("a=b=1:2", ("a=b", Number(1, 2, fill=1.5))),
        ("a=b", ("a=b", None)),
        ("a=c,d", ("a", Category(("c", "d")))),
    ],
)
def test_declarations_on_the_command_line(text, expected) -> None:
    assert declared(text, ["age", "town", "a", "a=b"]) == expected


@pytest.mark.parametrize(
    "text",
    ["size", "size=1:2", "age=2:1", "age=", "age=x,x", "age=hash:1", "age=words:1", "age=date:2020", "age=date:x:y"],
)
def test_declarations_that_make_no_sense(text) -> None:
    with pytest.raises(ConfigError):
        declared(text, ["age"])
