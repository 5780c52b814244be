"""What is odd is counted, by column, and said; nothing is counted twice or left out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noisewise.data.tables.counts import Counts
from noisewise.data.tables.dates import Date
from noisewise.data.tables.encode import counted_parts, encoded_inputs, input_parts
from noisewise.data.tables.kinds import Boolean, Category, Classes, Hashed, Ignore, Number, Target
from noisewise.data.tables.schema import Schema
from noisewise.data.tables.words import Words
from noisewise.errors import DataError

SCHEMA = Schema(
    label="y",
    target=Classes(("no", "yes")),
    groups={"sex": Category(("f", "m"))},
    missing=("", "?"),
    columns={
        "age": Number(0, 100, fill=50, indicator=True, invalid="missing"),
        "when": Date("2020-01-01", "2020-12-31", indicator=True, invalid="missing"),
        "ok": Boolean(indicator=True, invalid="missing"),
        "town": Category(("Ulm", "Bonn")),
        "job": Hashed(8),
        "note": Words(8),
        "key": Ignore(),
    },
)
ROWS = {
    "age": ["17", "120", "-1", "12 %", "?"],
    "when": ["2020-05-31", "1999-01-01", "soon", "", "2021-01-01"],
    "ok": ["yes", "No", "perhaps", "", "1"],
    "town": ["Ulm", "Rome", "?", "", "Bonn"],
    "job": ["a", "b", "", "a", "b"],
    "note": ["a b", "", "c", "?", "d"],
    "key": ["1", "2", "3", "4", "5"],
    "sex": ["f", "x", "m", "?", "f"],
    "y": ["no", "yes", "yes", "no", "yes"],
}
EXPECTED = Counts(
    rows=5,
    missing={"sex": 1, "age": 1, "when": 1, "ok": 1, "town": 2, "job": 1, "note": 2},
    invalid={"age": 1, "when": 1, "ok": 1},
    outside={"age": 2, "when": 2},
    unseen={"sex": 1, "town": 1},
)


def counted(table, **more):
    parts = list(counted_parts(SCHEMA, table, **more))
    return sum((counts for _, counts in parts), Counts())


def test_every_odd_value_by_hand() -> None:
    assert counted(ROWS) == EXPECTED
    assert counted(ROWS, rows=2) == EXPECTED
    features = encoded_inputs(SCHEMA, {name: values for name, values in ROWS.items() if name not in ("sex", "y")})
    without_group = {
        name: {k: n for k, n in of.items() if k != "sex"} for name, of in vars(EXPECTED).items() if type(of) is dict
    }
    assert features.counts == Counts(rows=5, **without_group)


def test_a_group_that_is_a_feature_too_is_counted_once() -> None:
    schema = Schema.from_dict(
        {**SCHEMA.to_dict(), "columns": [*SCHEMA.to_dict()["columns"], SCHEMA.to_dict()["groups"][0]]}
    )
    (_, counts), = counted_parts(schema, ROWS)  # fmt: skip
    assert (counts.missing["sex"], counts.unseen["sex"]) == (1, 1)


def test_sentences_name_each_column_and_each_oddity() -> None:
    lines = EXPECTED.sentences()
    assert (
        "Column 'age', of 5 values: 1 missing, 1 unreadable and taken as missing, 2 outside the declared range and clipped "
        "to it."
    ) in lines
    assert "Column 'town', of 5 values: 2 missing, 1 not in the schema's list and taken as other." in lines
    assert len(lines) == 7
    assert Counts(rows=9).sentences() == []
    assert Counts(rows=97, dropped=3).sentences() == ["3 of 100 rows have no label and are left out."]


def test_labels_outside_their_range_are_counted() -> None:
    schema = Schema(label="y", target=Target(0, 10, scale=5, offset=5), columns={"a": Number(0, 1)})
    ((data, counts),) = counted_parts(schema, {"a": [0, 1, 1], "y": [-3, 5, 11]})
    assert data.y.tolist() == [-1, 0, 1]
    assert counts.outside == {"y": 2}


def test_rows_without_a_label_stop_or_are_dropped_and_counted() -> None:
    rows = {**ROWS, "y": ["no", "", "?", "yes", "no"]}
    with pytest.raises(DataError, match=r"row 2, column 'y': '': a label is missing.*--drop-unlabelled"):
        counted(rows)
    found = list(counted_parts(SCHEMA, rows, drop_unlabelled=True, rows=2))
    assert [len(data) for data, _ in found] == [1, 1, 1]
    assert sum(counts.dropped for _, counts in found) == 2
    whole = SCHEMA.encode(ROWS).x
    assert torch.equal(torch.cat([data.x for data, _ in found]), whole[[0, 3, 4]])
    wrong = {**rows, "y": ["no", "", "?", "yes", "perhaps"]}
    with pytest.raises(DataError, match=r"row 5, column 'y': 'perhaps': not one of"):  # the row's number in the table
        list(counted_parts(SCHEMA, wrong, drop_unlabelled=True))


def test_a_class_that_is_called_like_a_gap_is_a_class() -> None:
    schema = Schema(label="y", target=Classes(("NA", "DE")), columns={"a": Number(0, 1)}, missing=("", "NA"))
    ((data, counts),) = counted_parts(schema, {"a": [0, 1], "y": ["NA", "DE"]}, drop_unlabelled=True)
    assert data.y.tolist() == [0, 1]
    assert counts.dropped == 0


def test_columns_that_are_not_there_count_as_missing_where_there_is_a_way() -> None:
    few = {name: ROWS[name] for name in ("age", "job")}
    x, counts = encoded_inputs(SCHEMA, few)
    assert counts.absent == ("when", "ok", "town", "note")
    assert counts.missing["when"] == 5
    assert "Column 'when' is not in the table: it counts as missing in every row." in counts.sentences()
    blank = {name: [""] * 5 for name in ("when", "ok", "town", "note")}
    assert torch.equal(x, encoded_inputs(SCHEMA, {**few, **blank}).x)
    strict = Schema.from_dict(
        {
            **SCHEMA.to_dict(),
            "columns": [{"name": "age", "kind": "boolean", "indicator": False}, *SCHEMA.to_dict()["columns"][1:]],
        }
    )
    with pytest.raises(DataError, match="no column 'age'"):
        encoded_inputs(strict, {"job": ["a"]})
    with pytest.raises(DataError, match="no column 'age', 'when', 'ok'"):  # not one is there: another table
        encoded_inputs(SCHEMA, {"else": ["1"]})


def test_inputs_come_in_parts() -> None:
    parts = list(input_parts(SCHEMA, ROWS, rows=2))
    whole = encoded_inputs(SCHEMA, ROWS)
    assert [len(part.x) for part in parts] == [2, 2, 1]
    assert torch.equal(torch.cat([part.x for part in parts]), whole.x)
    assert sum((part.counts for part in parts), Counts()) == whole.counts


def test_nobody_owns_rows_whose_owner_is_missing() -> None:
    schema = Schema(label="y", target=Target(0, 1), columns={"a": Number(0, 1)}, unit="who", missing=("", "NA"))
    with pytest.raises(DataError, match=r"row 2, column 'who': 'NA': nobody owns this row"):
        schema.encode({"a": [0, 1], "who": ["p", "NA"], "y": [0, 1]})


VALUE = st.sampled_from(["1", "2020-05-31", "yes", "Ulm", "", "?", "12 %", "no", "a b c", "1e99", "2019-01-01"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(VALUE, min_size=6, max_size=6), min_size=1, max_size=6), st.randoms())
def test_a_row_is_encoded_and_counted_by_itself(rows, random) -> None:
    """The guarantee: neither the other rows nor their order change a row, and counts add up."""
    names = [name for name, kind in SCHEMA.columns.items() if not isinstance(kind, Ignore)]

    def table(chosen):
        return {name: [row[place] for row in chosen] for place, name in enumerate(names)}

    whole = encoded_inputs(SCHEMA, table(rows))
    order = list(range(len(rows)))
    random.shuffle(order)
    assert torch.equal(encoded_inputs(SCHEMA, table([rows[k] for k in order])).x, whole.x[order])
    alone = [encoded_inputs(SCHEMA, table([row])) for row in rows]
    assert torch.equal(torch.cat([one.x for one in alone]), whole.x)
    assert sum((one.counts for one in alone), Counts()) == whole.counts
