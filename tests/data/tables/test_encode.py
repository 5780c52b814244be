"""Rows become numbers: each by itself, in any order of columns, with the place of a wrong value."""

from __future__ import annotations

import copy
import hashlib

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.people_schema import FUZZ, PEOPLE, SCHEMA, written
from noisewise.data.tables.kinds import Category, Number, Target
from noisewise.data.tables.rows import CHUNK
from noisewise.data.tables.schema import Schema
from noisewise.errors import DataError


# --- rows to tensors
def test_every_kind_by_hand() -> None:
    data = SCHEMA.encode(PEOPLE, public=True)
    towns = [int.from_bytes(hashlib.blake2b(t.encode(), digest_size=8).digest(), "little") % 16 for t in PEOPLE["town"]]
    expected = np.zeros((4, 2 + 1 + 3 + 16), np.float32)
    expected[:, 0] = [2 * 7 / 80 - 1, 1, 1, 0]  # 120 is clipped, the missing one stands at 50
    expected[:, 1] = [0, 0, 0, 1]
    expected[:, 2] = [0, 1 / 2, 1, -1]  # log2(1 + v) / log2(1 + 3)
    expected[range(4), [3, 4, 5, 5]] = 1
    expected[range(4), [6 + town for town in towns]] = 1
    torch.testing.assert_close(data.x, torch.from_numpy(expected))
    assert data.y.tolist() == [0, 1, 1, 0]
    assert (data.classes, data.task, data.public) == (("no", "yes"), "classification", True)
    assert data.groups["sex"].tolist() == [1, 0, 1, 2]
    assert data.group_names == {"sex": ("m", "f", "other")}
    assert data.units == 3
    assert data.unit is not None
    assert data.unit[0] == data.unit[2]
    assert data.schema is SCHEMA
    names = ("age", "age missing", "income", "colour=red", "colour=blue", "colour=other")
    assert SCHEMA.feature_names == (*names, *(f"town#{k}" for k in range(16)))


def test_pandas_says_the_same() -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "a": generator.normal(0, 3, 200),
            "k": generator.integers(0, 5, 200),
            "c": generator.choice(["u", "v", "w"], 200),
            "y": generator.normal(size=200),
        }
    )
    kinds = {
        "a": Number(-4, 4),
        "k": Category(tuple("01234"), other=False),
        "c": Category(("u", "v", "w"), other=False),
    }
    data = Schema(label="y", target=Target(-1, 1, scale=2), columns=kinds).encode(frame)
    scaled = frame["a"].clip(-4, 4) / 4
    expected = pd.concat([scaled, pd.get_dummies(frame["k"]), pd.get_dummies(frame["c"])], axis=1).to_numpy(np.float32)
    np.testing.assert_allclose(data.x.numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(data.y.numpy(), frame["y"].clip(-1, 1).to_numpy(np.float32) / 2, atol=1e-6)
    assert data.task == "regression"


@pytest.mark.parametrize("rows", [1, 3, 4, 100])
def test_parts_of_a_file_are_the_whole(tmp_path, rows) -> None:
    path = written(tmp_path / "people.csv", PEOPLE)
    whole, parts = SCHEMA.encode(PEOPLE), list(SCHEMA.parts(path, rows=rows))
    assert [len(part) for part in parts] == [min(rows, 4 - first) for first in range(0, 4, rows)]
    for name in ("x", "y", "unit"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
    assert torch.equal(torch.cat([part.groups["sex"] for part in parts]), whole.groups["sex"])


def test_a_long_file_is_joined(tmp_path, monkeypatch) -> None:
    path = written(tmp_path / "people.csv", {name: values * 30 for name, values in PEOPLE.items()})
    monkeypatch.setattr(Schema.parts, "__kwdefaults__", {"rows": 7, "public": False})
    data = SCHEMA.encode(path)
    assert torch.equal(data.x, SCHEMA.encode(PEOPLE).x.repeat(30, 1))
    assert (len(data), data.units) == (120, 3)
    whole = SCHEMA.encode(PEOPLE)
    assert torch.equal(data.groups["sex"], whole.groups["sex"].repeat(30))
    assert torch.equal(data.unit, whole.unit.repeat(30))
    assert (data.classes, data.group_names, data.schema) == (whole.classes, whole.group_names, SCHEMA)
    assert (data.public, SCHEMA.encode(path, public=True).public) == (False, True)


def test_the_order_of_columns_in_the_file_does_not_matter(tmp_path) -> None:
    path = written(tmp_path / "people.csv", dict(reversed(PEOPLE.items())))
    assert torch.equal(SCHEMA.encode(path).x, SCHEMA.encode(PEOPLE).x)


@FUZZ
@given(st.permutations(range(4)))
def test_a_row_is_encoded_by_itself(order) -> None:
    shuffled = {name: [values[k] for k in order] for name, values in PEOPLE.items()}
    assert torch.equal(SCHEMA.encode(shuffled).x, SCHEMA.encode(PEOPLE).x[list(order)])


def test_inputs_need_neither_label_nor_groups_nor_ignored_columns() -> None:
    few = {name: PEOPLE[name] for name in ("town", "colour", "income", "age")}
    assert torch.equal(SCHEMA.inputs(few | {"more": list("abcd")}), SCHEMA.encode(PEOPLE).x)
    with pytest.raises(DataError, match="no column 'income'"):
        SCHEMA.inputs({name: few[name] for name in ("town", "colour", "age")})


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("age", "old", r"row 2 \(line 3\), column 'age': 'old': not a decimal number"),
        ("age", "nan", r"column 'age': 'nan': not a decimal number"),
        ("income", "inf", r"column 'income': 'inf': not a decimal number"),
        ("income", "1,5", r"column 'income': '1,5': not a decimal number"),
        ("income", "", r"row 2 \(line 3\), column 'income': '': a number is missing.*fill"),
        ("hired", "perhaps", r"column 'hired': 'perhaps': not one of 'no', 'yes'"),
        ("hired", "", r"column 'hired': '': a label is missing.*drop_unlabelled"),
        ("id", "", r"column 'id': '': nobody owns this row"),
        ("age", "x" * 500, r"column 'age': 'x{50,60}\.\.\.: not"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(tmp_path, column, value, message) -> None:
    rows = copy.deepcopy(PEOPLE)
    rows[column][1] = value
    with pytest.raises(DataError, match=message) as caught:
        SCHEMA.encode(written(tmp_path / "people.csv", rows))
    assert str(caught.value).startswith("people.csv, row 2")


def test_the_row_is_named_in_later_parts_too(tmp_path) -> None:
    rows = copy.deepcopy(PEOPLE)
    rows["age"][3] = "old"
    with pytest.raises(DataError, match=r"row 4 \(line 5\)"):
        list(SCHEMA.parts(written(tmp_path / "people.csv", rows), rows=2))


def test_a_real_valued_label_must_be_there() -> None:
    schema = Schema(label="y", target=Target(0, 1), columns={"a": Number(0, 1)})
    with pytest.raises(DataError, match=r"row 2, column 'y': '': a label is missing"):
        schema.encode({"a": [0, 1], "y": [1, None]})


@pytest.mark.parametrize("change", [{"lost": None}, {"extra": ["1"] * 4}])
def test_wrong_headers(change) -> None:
    rows = {**PEOPLE, **change} if "extra" in change else {k: v for k, v in PEOPLE.items() if k != "note"}
    with pytest.raises(DataError, match=r"no column 'note'|'extra' is not in the schema.*ignore"):
        SCHEMA.encode(rows)


def test_another_separator_is_declared(tmp_path) -> None:
    path = written(tmp_path / "people.csv", PEOPLE, ";")
    with pytest.raises(DataError, match="separates columns by ','"):
        SCHEMA.encode(path)
    schema = Schema.from_dict({**SCHEMA.to_dict(), "separator": ";"})
    assert torch.equal(schema.encode(path).x, SCHEMA.encode(PEOPLE).x)
    assert torch.equal(schema.inputs(path), SCHEMA.encode(PEOPLE).x)


def test_inputs_of_a_long_file_keep_the_order_of_its_rows(tmp_path) -> None:
    schema = Schema(label="y", target=Target(0, 1), columns={"a": Number(0, CHUNK + 2)})
    path = tmp_path / "long.csv"
    path.write_text("a\n" + "".join(f"{k}\n" for k in range(CHUNK + 3)))
    x = schema.inputs(path)[:, 0]
    assert len(x) == CHUNK + 3
    assert bool((x.diff() > 0).all())


def test_no_rows_are_refused(tmp_path) -> None:
    with pytest.raises(DataError, match="no rows"):
        SCHEMA.encode(written(tmp_path / "people.csv", {name: [] for name in PEOPLE}))
    assert SCHEMA.inputs({name: [] for name in PEOPLE}).shape == (0, SCHEMA.width)


def test_a_group_is_a_feature_only_if_asked() -> None:
    assert not any(name.startswith("sex") for name in SCHEMA.feature_names)
    asked = Schema.from_dict(
        {**SCHEMA.to_dict(), "columns": [*SCHEMA.to_dict()["columns"], SCHEMA.to_dict()["groups"][0]]}
    )
    assert asked.feature_names[-3:] == ("sex=m", "sex=f", "sex=other")
    assert asked.encode(PEOPLE).x[:, -3:].argmax(1).tolist() == [1, 0, 1, 2]
