"""What the rows look like, what is proposed for it, what is said of it and what must be confirmed."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from noisewise.data.tables import survey as surveys
from noisewise.data.tables.dates import Date
from noisewise.data.tables.kinds import (
    BUCKETS,
    WORD_BUCKETS,
    Boolean,
    Category,
    Classes,
    Hashed,
    Ignore,
    Number,
    Target,
    filled,
)
from noisewise.data.tables.propose import Proposal, ToConfirm, propose
from noisewise.data.tables.rows import parts_of
from noisewise.data.tables.survey import survey
from noisewise.data.tables.words import Words
from noisewise.errors import ConfigError, PrivacyError

N = 400
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def column(values, *, name="a", missing=("", "NA")):
    return survey(parts_of({name: [str(value) for value in values]}, ",", 90), [name], missing)[name]


def proposed(tmp_path, table, **more) -> Proposal:
    path = tmp_path / "t.csv"
    rows = len(next(iter(table.values())))
    table = {**table, "size": [k % 97 / 7 for k in range(rows)], "y": [("no", "yes")[k % 3 > 0] for k in range(rows)]}
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([list(table), *zip(*table.values(), strict=True)])
    return propose(path, label="y", **more)


def note(lines, word: str) -> str:
    (line,) = [line for line in lines if word in line]
    return line


KINDS = {
    "numbers": ([k % 60 for k in range(N)], Number(0, 60, fill=30)),
    "gaps": (["" if k % 5 else k % 60 for k in range(N)], Number(0, 60, fill=30, indicator=True)),
    "one number": ([7] * N, Number(6, 8, fill=7)),
    "bad": (
        ["12 %" if k % 33 == 5 else k % 60 for k in range(N)],
        Number(0, 60, fill=30, indicator=True, invalid="missing"),
    ),
    "mostly text": (["many" if k % 3 else k % 7 for k in range(N)], Category((*"0123456", "many"))),
    "zero one": ([k % 2 for k in range(N)], Number(0, 1, fill=0.5)),
    "booleans": ([("Yes", "no")[k % 2] for k in range(N)], Boolean()),
    "booleans with gaps": ([("TRUE", "False", "NA")[k % 3] for k in range(N)], Boolean(indicator=True)),
    "only yes": (["yes"] * N, Category(("yes",))),
    "sexes": ([("f", "m")[k % 2] for k in range(N)], Category(("f", "m"))),
    "iso": (
        [f"20{10 + k % 5}-0{1 + k % 9}-1{k % 9}" for k in range(N)],
        Date("2010-01-01", "2014-12-31", parts=("position", "month", "weekday")),
    ),
    "births": (
        [f"{1 + k % 28}.{1 + k % 12}.{1930 + k % 70}" for k in range(N)],
        Date("1930-01-01", "1999-12-31", "%d.%m.%Y"),
    ),
    "times": (
        [f"2020-01-{1 + k % 28:02}T{k % 24:02}:30:00" for k in range(N)],
        Date("2020-01-01", "2020-12-31", parts=("position", "month", "weekday", "hour")),
    ),
    "compact": (
        [f"2020{1 + k % 12:02}{1 + k % 28:02}" for k in range(N)],
        Date("2020-01-01", "2020-12-31", "%Y%m%d", ("position", "month", "weekday")),
    ),
    "bad dates": (
        ["soon" if k % 50 == 7 else f"2020-01-{1 + k % 28:02}" for k in range(N)],
        Date("2020-01-01", "2020-12-31", parts=("position", "month", "weekday"), indicator=True, invalid="missing"),
    ),
    "free text": (
        [f"the patient {LETTERS[k % 26]} came with pain number {k} again" for k in range(N)],
        Words(BUCKETS),
    ),
    "much free text": (
        [f"the patient {LETTERS[k % 26]} came with pain number {k} again" for k in range(12 * N)],
        Words(WORD_BUCKETS),
    ),
    "row numbers": (range(1, N + 1), Ignore()),
    "keys": ([f"x-{k * 7919 % 10007}" for k in range(N)], Ignore()),
    "empty": (["", "NA"] * (N // 2), Ignore()),
    "300 levels": ([f"town {k % 300}" for k in range(12 * N)], Hashed(256)),
    "60 levels": ([f"t{k % 60}" for k in range(N)], Hashed(BUCKETS)),
    "10,000 levels": ([f"t{k * 7919 % 10_000}" for k in range(20_000)], Hashed(512)),
}


@pytest.mark.parametrize("case", KINDS)
def test_kinds_are_recognised_and_encode_their_rows(tmp_path, case) -> None:
    values, kind = KINDS[case]
    found = proposed(tmp_path, {"a": list(values)})
    assert found.schema.columns["a"] == kind
    data = found.confirmed().encode(tmp_path / "t.csv")
    assert len(data) == len(list(values))
    assert bool(data.x.isfinite().all())
    assert float(data.x.abs().max()) <= 1


def test_what_is_odd_is_said(tmp_path) -> None:
    table = {
        "pay": ["12 %" if k % 33 == 5 else k % 60 for k in range(N)],
        "when": ["soon" if k % 50 == 7 else f"2020-01-{1 + k % 28:02}" for k in range(N)],
        "key": [f"x-{k * 7919 % 10007}" for k in range(N)],
        "patient_id": [k % 40 for k in range(N)],
        "day": [f"0{1 + k % 9}/0{1 + k % 7}/2020" for k in range(N)],
        "town": [f"town {k % 70}" for k in range(N)],
        "nothing": [""] * N,
    }
    notes = proposed(tmp_path, table).odd
    assert "'pay': 12 of 400 values are no numbers, the first is '12 %'. They count as missing" in note(notes, "'pay'")
    assert "'when': 8 of 400 values are no dates" in note(notes, "'when'")
    assert "Identifiers, left out: 'key', 'patient_id'." in notes
    assert (
        "'patient_id' names 40 in 400 rows. If these are people, protect each as a whole: --unit patient_id." in notes
    )
    assert "day or month may come first. Taken as %d/%m/%Y" in note(notes, "'day'")
    assert "70 different texts share 64 buckets" in note(notes, "'town'")
    assert "Without any value, left out: 'nothing'." in notes


def test_numbers_in_other_clothes_are_no_identifiers(tmp_path) -> None:
    table = {
        "comma": [f"{k},{k % 10}5" for k in range(N)],
        "percent": [f"{k / 7:.3f} %" for k in range(N)],
        "money": [f"${k},{k % 1000:03}" for k in range(N)],
        "weight": [f"{k / 3:.2f}kg" for k in range(N)],
        "key": [f"P{k:04}" for k in range(N)],
    }
    found = proposed(tmp_path, table)
    kinds = found.schema.columns
    assert {name for name in table if kinds[name] == Ignore()} == {"key"}
    assert "a point and no comma: 'comma'." in note(found.odd, "no comma")
    assert "since a number stands alone: 'percent', 'money', 'weight'." in note(found.odd, "stands alone")


def test_labels_that_are_missing_or_wrong_are_said(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "a,y\n" + "".join(f"{k % 9},{'' if k % 10 == 0 else 'no' if k % 3 else 'yes'}\n" for k in range(60))
    )
    found = propose(path, label="y")
    assert found.schema.target == Classes(("no", "yes"))
    assert "6 of 60 rows have no label" in note(found.odd, "--drop-unlabelled")
    path.write_text("a,y\n" + "".join(f"{k % 9},{'often' if k == 7 else k / 7}\n" for k in range(100)))
    with pytest.raises(ConfigError, match="more than 50 different texts, and not all are numbers: 'often'"):
        propose(path, label="y")


def test_nothing_is_left_to_learn_from(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,y\n" + "".join(f"{k},{('no', 'yes')[k % 2]}\n" for k in range(50)))
    with pytest.raises(ConfigError, match=r"no column is left to learn from\. Identifiers, left out: 'id'"):
        propose(path, label="y")


def test_what_was_read_off_the_rows_must_be_confirmed_column_by_column(tmp_path) -> None:
    table = {
        "age": [20 + k % 60 for k in range(N)],
        "town": ["Ulm", "Bonn"] * (N // 2),
        "when": [f"2020-01-{1 + k % 28:02}" for k in range(N)],
        "sex": ["f", "m"] * (N // 2),
    }
    found = proposed(tmp_path, table, groups=["sex"], columns={"size": Number(0, 20)})
    items = {item.column: item for item in found.to_confirm}
    assert set(items) == {"age", "town", "when", "sex", "y"}  # size is declared
    assert items["age"] == ToConfirm(
        "age", "the range [20, 80]", "The smallest and the largest value belong to somebody.", "--column age=LOW:HIGH"
    )
    assert items["town"].read == "the 2 texts 'Bonn', 'Ulm'"
    assert items["when"].instead == "--column when=date:FIRST:LAST"
    assert items["sex"].instead == "--group sex=A,B,C"
    assert items["y"].instead == "--label y=A,B,C"
    assert items["age"].sentence().startswith("'age': the range [20, 80]. The smallest")
    with pytest.raises(PrivacyError, match="not confirmed"):
        found.schema.encode(tmp_path / "t.csv")
    assert not found.schema.confirmed
    assert found.confirmed().confirmed
    assert len(found.confirmed().encode(tmp_path / "t.csv")) == N


@pytest.mark.parametrize("ways", [{"header_only": True}, {"epsilon": 8.0}])
def test_nothing_is_to_be_confirmed_where_no_row_was_read_as_it_is(tmp_path, ways) -> None:
    found = proposed(tmp_path, {"a": range(N)}, columns={"y": Classes(("no", "yes"))}, **ways)
    assert found.to_confirm == ()
    assert found.confirmed() == found.schema
    assert not found.confirmed().confirmed


def test_a_real_valued_label_is_learnt_between_minus_one_and_one(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,price\n" + "".join(f"{k % 9},{100_000 + 37 * k * k}\n" for k in range(90)))
    found = propose(path, label="price")
    assert found.schema.target == Target(100_000, 400_000, scale=150_000, offset=250_000)
    data = found.confirmed().encode(path)
    assert -1 <= float(data.y.min()) < float(data.y.max()) <= 1
    prices = [100_000 + 37 * k * k for k in range(90)]
    np.testing.assert_allclose(found.schema.target.unscaled(data.y.double().numpy()), prices, rtol=1e-6)
    assert data.label_scale == 150_000
    declared = propose(path, label="price", columns={"price": Number(0, 1e6), "a": Number(0, 9)}).schema
    assert declared.target == Target(0, 1e6, scale=5e5, offset=5e5)


def test_a_gap_in_the_middle_of_a_logarithmic_scale() -> None:
    assert filled(0, 1e6, log=True).fill == 999
    assert filled(-1e6, 1e6, log=True).fill == 0
    for limits in ((0.5, 3.0), (-7.0, 90.0), (1e-5, 1e12)):
        kind = filled(*limits, log=True)
        assert abs(float(kind.scaled(np.array([kind.fill]))[0])) < 0.01


def test_parts_of_a_survey_are_one(monkeypatch) -> None:
    values = [f"k{k}" for k in range(300)]
    assert column(values).is_identifier
    assert column([*values, *values]).is_identifier is False
    assert column(range(5, 305)).steps
    assert not column([*range(5, 305), 3]).steps
    assert column([*[""] * 200, *range(100)]).is_numeric
    assert column([*["2020-05-31"] * 95, *["?"] * 5]).date_formats == ("iso",)
    assert column([*["2020-05-31"] * 80, *["?"] * 20]).date_formats == ()
    monkeypatch.setattr(surveys, "KNOWN_TEXTS", 100)
    many = column([f"k{k}" for k in range(1000)])
    assert many.is_identifier
    assert len(many.texts) < 1000


@pytest.mark.parametrize("name", ["id", "patient_id", "customerId", "Kunden-ID", "uuid", "row index"])
def test_names_of_identifiers(name) -> None:
    assert column([k % 60 for k in range(200)], name=name).is_identifier


@pytest.mark.parametrize("name", ["idea", "paid", "valid", "grid", "kids"])
def test_names_of_something_else(name) -> None:
    assert not column([k % 60 for k in range(200)], name=name).is_identifier
