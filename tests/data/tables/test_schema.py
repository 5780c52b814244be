"""A schema: read back as it was written, and what is refused."""

from __future__ import annotations

import copy
import json
import math
import tomllib

import dp_accounting
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.people_schema import FUZZ, PEOPLE, SCHEMA
from noisewise.accounting import Ledger
from noisewise.data.tables.kinds import Category, Classes, Hashed, Ignore, Number, Target
from noisewise.data.tables.schema import Schema, read
from noisewise.errors import ConfigError, PrivacyError


def ledger() -> dict:
    spent = Ledger()
    spent.record(dp_accounting.GaussianDpEvent(3.0), "schema", 0)
    return spent.to_dict()


# --- private rows
def test_a_schema_read_off_private_rows_is_refused_until_it_is_confirmed() -> None:
    raw = {**SCHEMA.to_dict(), "origin": "rows"}
    unconfirmed = Schema.from_dict(raw)
    with pytest.raises(
        PrivacyError, match=r"read off the rows.*confirmed = true.*--header-only.*--epsilon.*--public, public=True"
    ) as caught:
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
