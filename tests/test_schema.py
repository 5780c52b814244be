"""A schema: what rows become, that it is read back as it was written, and what is refused."""

from __future__ import annotations

import copy
import csv
import hashlib
import json
import math
import tomllib

import dp_accounting
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noisewise.accounting import Ledger
from noisewise.data.tables.kinds import Category, Classes, Hashed, Ignore, Number, Target, bucket
from noisewise.data.tables.rows import CHUNK
from noisewise.data.tables.schema import Schema, read
from noisewise.errors import ConfigError, DataError, PrivacyError

FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
PEOPLE = {
    "id": ["p1", "p2", "p1", "p3"],
    "age": ["17", "90", "120", ""],
    "income": ["0", "1", "3", "-7"],
    "colour": ["red", "blue", "green", ""],
    "town": ["Ulm", "Köln", "Ulm", "東京"],
    "note": ["x", "y", "z", "w"],
    "sex": ["f", "m", "f", "?"],
    "hired": ["no", "yes", "yes", "no"],
}
SCHEMA = Schema(
    label="hired",
    target=Classes(("no", "yes")),
    groups={"sex": Category(("m", "f"))},
    unit="id",
    columns={
        "age": Number(10, 90, fill=50, indicator=True),
        "income": Number(-3, 3, log=True),
        "colour": Category(("red", "blue")),
        "town": Hashed(16),
        "note": Ignore(),
    },
)


def written(path, table, separator=","):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([list(table), *zip(*table.values(), strict=True)])
    return path


def ledger() -> dict:
    spent = Ledger()
    spent.record(dp_accounting.GaussianDpEvent(3.0), "schema", 0)
    return spent.to_dict()


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


def test_the_public_hash_is_fixed_for_good() -> None:
    assert [bucket(text, 64) for text in ("", "Ulm", "東京")] == [36, 25, 46]  # coreutils: b2sum -l 64


def test_kept_buckets_have_a_place_each_and_the_rest_share_one() -> None:
    kept = (bucket("b", 1024), bucket("a", 1024))
    schema = Schema(label="y", target=Target(0, 1), columns={"t": Hashed(1024, kept)})
    x = schema.encode({"t": ["a", "b", "c"], "y": [0, 0, 1]}).x
    assert x.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert schema.feature_names == (f"t#{kept[0]}", f"t#{kept[1]}", "t=other")


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


@FUZZ
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
    st.tuples(st.floats(-1e308, 1e308), st.floats(-1e308, 1e308)).filter(lambda r: r[0] < r[1]),
    st.booleans(),
)
def test_numbers_keep_their_order_and_stay_in_range(values, limits, log) -> None:
    message = "too narrow"
    try:
        kind = Number(*limits, log=log)
    except ConfigError as error:
        kind, message = Number(-1, 1, log=log), str(error)
    assert "too narrow" in message
    schema = Schema(label="y", target=Target(0, 1), columns={"a": kind})
    x = schema.inputs({"a": sorted(values)})[:, 0]
    assert torch.isfinite(x).all()
    assert ((x >= -1) & (x <= 1)).all()
    assert (x.diff() >= 0).all()


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


def test_huge_numbers_are_clipped() -> None:
    schema = Schema(label="y", target=Target(0, 1), columns={"a": Number(-1, 1), "b": Number(-1, 1, log=True)})
    data = schema.encode({"a": ["1e999", "-" + "9" * 400], "b": ["-1e308", "1e400"], "y": ["1e99", "-5"]})
    assert data.x.tolist() == [[1, -1], [-1, 1]]
    assert data.y.tolist() == [1, 0]


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


# --- private rows


def test_a_schema_read_off_private_rows_is_refused_until_it_is_confirmed() -> None:
    raw = {**SCHEMA.to_dict(), "origin": "rows"}
    unconfirmed = Schema.from_dict(raw)
    with pytest.raises(PrivacyError, match=r"read off the rows.*confirmed = true.*--header-only.*--epsilon") as caught:
        unconfirmed.encode(PEOPLE)
    assert caught.value.exit_code == 3
    with pytest.raises(PrivacyError):
        next(unconfirmed.parts(PEOPLE))
    assert len(unconfirmed.encode(PEOPLE, public=True)) == 4
    assert not Schema.from_dict({**raw, "confirmed": True}).encode(PEOPLE).public


def test_a_noised_schema_carries_its_ledger_and_never_changes_it() -> None:
    schema = Schema.from_dict({**SCHEMA.to_dict(), "origin": "noised", "counted": "id", "ledger": ledger()})
    first = schema.ledger
    assert first is not None
    first.record(dp_accounting.GaussianDpEvent(1.0), "gradient", 1)
    assert schema.ledger is not None
    assert schema.ledger.to_dict() == {**ledger(), "unit": "person"}
    assert SCHEMA.ledger is None
    assert len(schema.encode(PEOPLE)) == 4
    for wrong in ({"origin": "noised"}, {"ledger": ledger()}, {"origin": "noised", "ledger": Ledger().to_dict()}):
        with pytest.raises(ConfigError, match="ledger"):
            Schema.from_dict({**SCHEMA.to_dict(), **wrong})


def test_the_ledger_of_a_noised_schema_says_whom_it_counted() -> None:
    noised = {**SCHEMA.to_dict(), "origin": "noised", "counted": "id"}
    old = {key: value for key, value in ledger().items() if key not in ("unit", "reproducible")} | {"format": 1}
    for written in (ledger(), old, {**ledger(), "unit": "person"}):
        read = Schema.from_dict({**noised, "ledger": written}).ledger
        assert read is not None
        assert (read.unit, read.reproducible) == ("person", False)
    with pytest.raises(PrivacyError, match="counted people by 'id' with a ledger that protects one row"):
        Schema.from_dict({**noised, "ledger": {**ledger(), "unit": "row"}})


# --- files

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(lambda t: t == t.strip())
VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6).filter(lambda t: t == t.strip())
FINITE = st.floats(-1e300, 1e300)
LIMITS = st.tuples(FINITE, FINITE).filter(lambda r: r[0] < 0 < r[1] and r[1] > 1e-9)
CATEGORIES = st.builds(Category, st.lists(VALUES, min_size=1, max_size=4, unique=True).map(tuple), st.booleans())


@st.composite
def numbers(draw):
    low, high = draw(LIMITS)
    fill = draw(st.none() | st.floats(low, high))
    return Number(low, high, draw(st.booleans()), fill, fill is not None and draw(st.booleans()))


@st.composite
def hashes(draw):
    buckets = draw(st.integers(2, 1 << 20))
    kept = draw(st.none() | st.lists(st.integers(0, buckets - 1), min_size=1, max_size=4, unique=True).map(tuple))
    return Hashed(buckets if kept is not None else min(buckets, 64), kept)


@st.composite
def schemas(draw):
    names = draw(st.lists(NAMES, min_size=4, max_size=9, unique=True))
    label, unit, group, *rest = names
    kinds = st.one_of(numbers(), CATEGORIES, hashes(), st.just(Ignore()))
    classes = st.builds(Classes, st.lists(VALUES, min_size=2, max_size=4, unique=True).map(tuple))
    targets = st.builds(lambda r, s: Target(*r, s), LIMITS, st.floats(1e-3, 1e3))
    origin = draw(st.sampled_from(["declared", "rows", "noised"]))
    columns = {name: draw(kinds) for name in rest}
    unit = draw(st.sampled_from([None, unit]))
    return Schema(
        label=label,
        target=draw(st.one_of(classes, targets)),
        columns={**columns, rest[0]: draw(st.one_of(numbers(), CATEGORIES, hashes()))},
        groups=draw(st.sampled_from([{}, {group: draw(CATEGORIES)}])),
        unit=unit,
        separator=draw(st.sampled_from([",", ";", "\t", "|"])),
        missing=draw(st.lists(VALUES, max_size=3, unique=True)),
        origin=origin,
        confirmed=draw(st.booleans()),
        spent=ledger() if origin == "noised" else None,
        counted=unit if origin == "noised" else None,
    )


@FUZZ
@given(schemas())
def test_schemas_are_read_back_as_they_were_written(tmp_path, schema) -> None:
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict(), allow_nan=False))) == schema
    for name, text in (
        ("s.json", json.dumps(schema.to_dict())),
        ("s.toml", schema.to_toml({schema.label: "a remark"})),
    ):
        path = tmp_path / name
        path.write_bytes(text.encode())
        again = read(path)
        assert again == schema
        assert {**vars(again), **vars(schema)} == vars(again)  # entry by entry: == itself goes by what is written
        assert hash(again) == hash(schema)
        assert again.feature_names == schema.feature_names


def entries(raw, path=()):
    """Every place in a nest."""
    yield path
    for key, value in raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ():
        yield from entries(value, (*path, key))


ANYTHING = st.sampled_from(
    [None, True, 0, -1, 10**400, 1.5, math.nan, math.inf, "", "x", " x", [], [1], ["a", "a"], {}]
)


@FUZZ
@given(schemas(), st.data())
def test_a_damaged_schema_is_refused_or_valid(schema, data) -> None:
    raw = copy.deepcopy(schema.to_dict())
    place = data.draw(st.sampled_from([p for p in entries(raw) if p]))
    inner = raw
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = data.draw(ANYTHING)
    message = ""
    try:
        found = Schema.from_dict(raw)
    except (ConfigError, PrivacyError) as error:
        found, message = schema, str(error)
    assert message.startswith("schema: ") == bool(message)
    assert Schema.from_dict(found.to_dict()) == found


@pytest.mark.parametrize(
    "place", [place for place in entries(SCHEMA.to_dict()) if place and isinstance(place[-1], str)]
)
def test_every_missing_entry_stops(place) -> None:
    raw = copy.deepcopy(SCHEMA.to_dict())
    inner = raw
    for key in place[:-1]:
        inner = inner[key]
    del inner[place[-1]]
    if place == ("unit",):  # may be left out: another schema, since a unit is all rows of a person
        assert Schema.from_dict(raw) != SCHEMA
        return
    message = "indicator without fill" if place[-1] == "fill" else f"lacks '{place[-1]}'"
    with pytest.raises(ConfigError, match=message):
        Schema.from_dict(raw)


@pytest.mark.parametrize("place", [(), ("label",), ("groups", 0), ("columns", 0), ("columns", 4)])
def test_every_unknown_entry_stops(place) -> None:
    raw = copy.deepcopy(SCHEMA.to_dict())
    inner = raw
    for key in place:
        inner = inner[key]
    inner["surprise"] = 1
    with pytest.raises(ConfigError, match=r"unknown entries 'surprise'"):
        Schema.from_dict(raw)


def test_the_order_of_columns_makes_a_difference() -> None:
    turned = Schema.from_dict({**SCHEMA.to_dict(), "columns": SCHEMA.to_dict()["columns"][::-1]})
    assert turned != SCHEMA
    assert turned.feature_names != SCHEMA.feature_names


def test_the_file_for_people_has_a_remark_for_each_column() -> None:
    text = SCHEMA.to_toml({"age": "from the data: confirm", "sex": "declared"})
    lines = text.splitlines()
    assert lines[lines.index("[[columns]]  # from the data: confirm") + 1] == 'name = "age"'
    assert lines[lines.index("[[groups]]  # declared") + 1] == 'name = "sex"'
    assert tomllib.loads(text) == SCHEMA.to_dict()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("s.toml", "a = ", "s.toml is not valid TOML"),
        ("s.json", "{", "s.json is not valid JSON"),
        ("s.json", "[]", "s.json: the schema is .*must be a table"),
        ("s.toml", "format = 2", "s.toml: the schema lacks"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, text, message) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read(tmp_path / name)


def test_a_file_that_is_not_there_or_not_text(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"does not exist: `noisewise schema"):
        read(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Number(1, 1),
        lambda: Number(0, math.inf),
        lambda: Number("0", 1),
        lambda: Number(0, 1, fill=2),
        lambda: Number(0, 1, indicator=True),
        lambda: Category(()),
        lambda: Category("ab"),
        lambda: Category(("a", "a")),
        lambda: Category((" a",)),
        lambda: Category(("\ud800",)),
        lambda: Classes(("a",)),
        lambda: Target(0, 1, scale=0),
        lambda: Hashed(1),
        lambda: Hashed(8, (8,)),
        lambda: Hashed(8, ()),
        lambda: Schema(label="y", target=Target(0, 1), columns={}),
        lambda: Schema(label="y", target=Target(0, 1), columns={"a": Ignore()}),
        lambda: Schema(label="y", target=Target(0, 1), columns={"y": Number(0, 1)}),
        lambda: Schema(label="y", target=Number(0, 1), columns={"a": Number(0, 1)}),  # type: ignore[arg-type]
        lambda: Schema(label="y", target=Target(0, 1), columns={"a": Number(0, 1)}, unit="a"),
        lambda: Schema(label="y", target=Target(0, 1), columns={"a": Number(0, 1)}, separator=", "),
        lambda: Schema(label="y", target=Target(0, 1), columns={"a": Number(0, 1)}, origin="guess"),
        lambda: Schema(label="y", target=Target(0, 1), columns={"a": Number(0, 1)}, groups={"g": Hashed(4)}),
        lambda: Schema(label="y", target=Target(0, 1), columns={" a": Number(0, 1)}),
    ],
)
def test_impossible_schemas_are_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        wrong()


def test_a_group_is_a_feature_only_if_asked() -> None:
    assert not any(name.startswith("sex") for name in SCHEMA.feature_names)
    asked = Schema.from_dict(
        {**SCHEMA.to_dict(), "columns": [*SCHEMA.to_dict()["columns"], SCHEMA.to_dict()["groups"][0]]}
    )
    assert asked.feature_names[-3:] == ("sex=m", "sex=f", "sex=other")
    assert asked.encode(PEOPLE).x[:, -3:].argmax(1).tolist() == [1, 0, 1, 2]


def test_everything_else_has_a_name_of_its_own() -> None:
    kind = Category(("other", "any other"))
    assert kind.names == ("other", "any other", "any any other")
    assert len(set(kind.labels("sex"))) == 3
    schema = Schema(
        label="y", target=Classes(("0", "1")), columns={"a": Number(0, 1)}, groups={"sex": Category(("m", "other"))}
    )
    names = schema.encode({"a": [0, 1], "y": [0, 1], "sex": ["x", "other"]}).group_names["sex"]
    assert names == ("m", "other", "any other")


def test_a_noised_choice_holds_for_those_it_counted() -> None:
    """Each row was counted, so a person of many rows has spent more than the ledger says; and the other way round."""
    about = {"label": "y", "target": Classes(("0", "1")), "columns": {"a": Number(0, 1)}, "origin": "noised"}
    rows = Schema(**about, spent=ledger())
    people = Schema(**about, spent=ledger(), unit="who", counted="who")
    for raw in (rows.to_dict() | {"unit": "who"}, people.to_dict() | {"unit": "whom"}):
        with pytest.raises(PrivacyError, match="Choose anew with this unit"):
            Schema.from_dict(raw)
    without = people.to_dict()
    del without["unit"]
    with pytest.raises(PrivacyError, match="counted people by 'who': its ledger does not hold for single rows"):
        Schema.from_dict(without)
    with pytest.raises(ConfigError, match="counted='who' without a noised choice"):
        Schema(**about | {"origin": "declared"}, unit="who", counted="who")


def test_whole_numbers_beyond_every_float_are_refused():
    with pytest.raises(ConfigError, match="number"):
        Number(0, 10**400)
