"""From a file to parts: shares of people, other files, unlabelled rows, and tables that do not fit into memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from noisewise.data import disk
from noisewise.data import table_parts as loading
from noisewise.data.base import Splits
from noisewise.data.cut import marks_of, parts_of
from noisewise.data.tables import Counts, encode, load_table
from noisewise.data.tables.encode import rows_at_once
from noisewise.data.tables.kinds import Category, Classes, Hashed, Number, Target
from noisewise.data.tables.rows import CHUNK
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, DataError, PrivacyError

N = 200
SCHEMA = Schema(
    label="y",
    target=Classes(("no", "yes")),
    groups={"sex": Category(("f", "m"))},
    columns={"a": Number(0, N, fill=0), "town": Hashed(8)},
)
PEOPLE = Schema.from_dict({**SCHEMA.to_dict(), "unit": "who"})


def table(n=N, *, unlabelled=0, who=None):
    rows = {
        "a": list(range(n)),
        "town": [f"t{k % 11}" for k in range(n)],
        "sex": [("f", "m")[k % 2] for k in range(n)],
        "y": ["" if k < unlabelled else ("no", "yes")[k % 3 > 1] for k in range(n)],
    }
    return {**rows, "who": [f"p{k % who}" for k in range(n)]} if who else rows


def rows_of(data) -> set[int]:
    """Which rows: `a` is their number."""
    return set(((data.x[:, 0].double() + 1) / 2 * N).round().int().tolist())


def test_numbers_are_exact_and_shares_nearly() -> None:
    exact = load_table(table(), SCHEMA, seed=3, test=40, valid=58)
    assert [len(part) for part in exact.splits] == [102, 58, 40]
    assert (exact.counts, exact.sentences()) == (Counts(rows=N), [])
    shared = load_table(table(), SCHEMA, seed=3, test=0.2, valid=0.3)
    for found in (exact, shared):
        assert sum(map(len, found.splits)) == N
        assert set.union(*map(rows_of, found.splits)) == set(range(N))
    for part, share in zip(shared.splits, (0.5, 0.3, 0.2), strict=True):
        assert abs(len(part) - share * N) < 4 * (N * share * (1 - share)) ** 0.5
    again, other = (load_table(table(), SCHEMA, seed=seed, test=0.2, valid=0.3) for seed in (3, 4))
    assert torch.equal(again.test.x, shared.test.x)
    assert rows_of(other.test) != rows_of(shared.test)


def test_sizes_count_people() -> None:
    found = load_table(table(who=50), PEOPLE, test=10, valid=5)
    assert [part.units for part in found.splits] == [35, 5, 10]
    assert [len(part) for part in found.splits] == [140, 20, 40]
    shared = load_table(table(who=50), PEOPLE, test=0.2, valid=0.1)
    assert sum(part.units for part in shared.splits) == 50
    assert all(len(part) == 4 * part.units for part in shared.splits)


SIZES = [(0.2, 0.1), (40, 20), (0.2, 20), (40, 0.1), (0.5, 0), (1, 1)]


@pytest.mark.parametrize(("test", "valid"), SIZES)
@pytest.mark.parametrize("who", [None, 67])
@pytest.mark.parametrize("at", [0, 100, N])
def test_one_unit_more_moves_nobody_else(test, valid, who, at) -> None:
    """Neighbours stay neighbours after the cut; a permutation of all rows fails this."""
    before, schema = table(who=who), SCHEMA if who is None else PEOPLE
    new = {"a": [17.5], "town": ["t3"], "sex": ["f"], "y": ["no"], "who": ["new"]}
    after = {name: [*rows[:at], *new[name], *rows[at:]] for name, rows in before.items()}
    for seed in range(5):
        one, two = (load_table(t, schema, seed=seed, test=test, valid=valid).train for t in (before, after))
        if who is None:
            known, now = set(one.x[:, 0].tolist()), set(two.x[:, 0].tolist())
        else:
            known, now = set(one.unit.tolist()), set(two.unit.tolist())
        assert known <= now
        assert len(now - known) <= 1
        assert two.units <= one.units + 1


def test_equal_rows_are_units_of_their_own() -> None:
    rows = {"a": [5] * 300, "town": ["t1"] * 300, "sex": ["f"] * 300, "y": ["no", "yes"] * 150}
    one = load_table(rows, SCHEMA, test=0.5)
    assert abs(len(one.test) - 150) < 4 * 75**0.5
    two = load_table({name: [*values, values[0]] for name, values in rows.items()}, SCHEMA, test=0.5)
    assert len(two.train) - len(one.train) in (0, 1)
    assert sum(map(len, two.splits)) == 301


def test_an_empty_part_is_said() -> None:
    marks = marks_of(SCHEMA.encode(table(5)))
    empty = next(seed for seed in range(100) if not len(parts_of(marks, seed, 0.2)[0]))
    with pytest.raises(DataError, match=r"none of 5 rows fell into the test part.* e\.g\. 1, or give another file"):
        load_table(table(5), SCHEMA, seed=empty, test=0.2)


def test_the_test_part_may_be_another_file(tmp_path) -> None:
    path = tmp_path / "later.csv"
    path.write_text("a,town,sex,y,who\n1,t1,f,no,other\n999,t2,x,yes,new\n")
    found = load_table(table(who=50), PEOPLE, test=path, valid=5)
    assert [part.units for part in found.splits] == [45, 5, 2]
    assert found.test_counts == Counts(rows=2, outside={"a": 1}, unseen={"sex": 1})
    assert found.sentences() == [
        "In the test file: Column 'a', of 2 values: 1 outside the declared range and clipped to it.",
        "In the test file: Column 'sex', of 2 values: 1 not in the schema's list and taken as other.",
    ]
    assert len(load_table(table(), SCHEMA, test=table(7)).test) == 7


@pytest.mark.parametrize(
    ("people", "said"), [(("p1",), "1 person (by 'who') is"), (("p1", "p49"), "2 people (by 'who') are")]
)
def test_whoever_is_trained_on_is_no_test(tmp_path, people, said) -> None:
    path, folder = tmp_path / "later.csv", tmp_path / "kept"
    path.write_text("a,town,sex,y,who\n" + "".join(f"1,t1,f,no,{name}\n" for name in (*people, "new", people[0])))
    with pytest.raises(DataError) as error:
        load_table(table(who=50), PEOPLE, test=path, valid=5, folder=folder, limit=1)
    assert f"{said} in the table, to train on, and in later.csv, to test on" in str(error.value)
    assert "Leave them out of one of the two" in str(error.value)
    assert not folder.exists()


def test_a_file_to_test_on_may_be_written_in_another_encoding(tmp_path) -> None:
    path = tmp_path / "later.csv"
    path.write_text("a,town,sex,y\n1,t1,ä,no\n", "utf-8")
    raw = {
        **SCHEMA.to_dict(),
        "encoding": "windows-1252",
        "groups": [{"name": "sex", "kind": "category", "other": False}],
    }
    raw["groups"][0]["values"] = ["f", "m", "ä"]
    assert len(load_table(table(), Schema.from_dict({**raw, "encoding_seen": True}), test=path).test) == 1
    with pytest.raises(DataError, match="column 'sex': 'Ã¤'"):
        load_table(table(), Schema.from_dict(raw), test=path)


def test_the_table_to_train_on_is_no_test(tmp_path, monkeypatch) -> None:
    """Also without people, where equal rows may be of two."""
    path = tmp_path / "rows.csv"
    path.write_text("a,town,sex,y\n1,t1,f,no\n2,t2,m,yes\n")
    monkeypatch.chdir(tmp_path)
    rows = table()
    for source, test in ((path, "rows.csv"), (rows, rows)):
        with pytest.raises(DataError, match="is the table to train on: whoever is trained on is no test"):
            load_table(source, SCHEMA, test=test)


def test_unlabelled_rows_stop_or_are_counted() -> None:
    with pytest.raises(DataError, match="a label is missing"):
        load_table(table(unlabelled=3), SCHEMA)
    found = load_table(table(unlabelled=3), SCHEMA, drop_unlabelled=True, test=0.5)
    assert sum(map(len, found.splits)) == N - 3
    assert found.sentences() == ["3 of 200 rows have no label and are left out."]
    with pytest.raises(DataError, match="no row has a label"):
        load_table(table(unlabelled=N), SCHEMA, drop_unlabelled=True)


@pytest.mark.parametrize(
    ("rows", "more", "error", "message"),
    [
        (table(3), {}, DataError, r"3 rows: a share of 0\.2 for the test part is less than one"),
        (table(), {"test": 1.0}, ConfigError, "a share must be below 1"),
        (table(), {"test": -0.1}, ConfigError, "test=-0.1: must be a share"),
        (table(), {"valid": 200}, ConfigError, "valid=200: must be a share below 1, or a number of rows below the 200"),
        (table(), {"valid": True}, ConfigError, "valid=True"),
        (table(), {"valid": "x.csv"}, ConfigError, "valid='x.csv'"),
        (table(), {"test": 150, "valid": 50}, ConfigError, "leave none of 200 rows for training"),
        (table(), {"test": "none.csv"}, DataError, "none.csv does not exist"),
        (table(), {"seed": None}, ConfigError, "seed=None"),
        (table(), {"limit": 0}, ConfigError, "limit=0"),
        (
            {**table(), "y": ["no"] * N},
            {},
            DataError,
            "every row to train on has the label 'no': there is nothing to learn",
        ),
        (table(0), {}, DataError, "no rows"),
        (table(who=50), {"test": 60}, ConfigError, "a number of people below the 50 there are"),
        (table(who=50), {"test": 40, "valid": 0.3}, ConfigError, "leave none of 50 people for training"),
    ],
)
def test_impossible_tables_are_refused_at_once(rows, more, error, message) -> None:
    start = time.process_time()
    with pytest.raises(error, match=message):
        load_table(rows, PEOPLE if "who" in rows else SCHEMA, **more)
    assert time.process_time() - start < 1


def test_private_rows_by_an_unconfirmed_schema_are_refused() -> None:
    unconfirmed = Schema.from_dict({**SCHEMA.to_dict(), "origin": "rows"})
    with pytest.raises(PrivacyError, match="not confirmed"):
        load_table(table(), unconfirmed)
    assert load_table(table(), unconfirmed, public=True).train.public
    assert not load_table(table(), SCHEMA).train.public


# --- larger than memory


def same_rows(one: Splits, other: Splits) -> None:
    for left, right in zip(one, other, strict=True):
        order = torch.argsort(left.x[:, 0]), torch.argsort(right.x[:, 0])
        for name in ("x", "y"):
            assert torch.equal(getattr(left, name)[order[0]], getattr(right, name)[order[1]])
        assert torch.equal(left.groups["sex"][order[0]], right.groups["sex"][order[1]])
        assert (left.units, left.public, left.schema, left.classes) == (
            right.units, right.public, right.schema, right.classes,
        )  # fmt: skip


@pytest.mark.parametrize("who", [None, 50])
@pytest.mark.parametrize("kept", [True, False])
def test_a_table_above_the_limit_has_the_same_parts(tmp_path, monkeypatch, who, kept) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    settings = {"test": 0.25, "valid": 0.1, "drop_unlabelled": True, "seed": 5}
    rows, schema = table(unlabelled=6, who=who), SCHEMA if who is None else PEOPLE
    folder = tmp_path / "stored" if kept else None
    found = load_table(rows, schema, **settings, limit=100, folder=folder)
    expected = load_table(rows, schema, **settings)
    same_rows(found.splits, expected.splits)
    assert found.counts == expected.counts
    assert found.counts.dropped == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == (["stored"] if kept else [])
    if kept:
        assert os.stat(tmp_path / "stored").st_mode & 0o777 == 0o700
        stored = disk.open(tmp_path / "stored")
        assert isinstance(stored, Splits)
        same_rows(stored, expected.splits)


def test_below_the_limit_nothing_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(disk, "write", lambda *_: pytest.fail("written"))
    assert len(load_table(table(), SCHEMA, folder=tmp_path / "stored", test=40).train) == 160
    assert not (tmp_path / "stored").exists()


def test_a_long_file_is_never_held_whole(tmp_path, monkeypatch) -> None:
    path = tmp_path / "long.csv"
    n = 2 * CHUNK + 10
    with path.open("w") as file:
        file.write("a,y\n")
        file.writelines(f"{k},{k % 2}\n" for k in range(n))
    schema = Schema(label="y", target=Target(0, 1), columns={"a": Number(0, n)})
    monkeypatch.setattr(loading, "joined", lambda _: pytest.fail("held whole"))
    found = load_table(path, schema, limit=1000, test=n // 10)
    assert [len(part) for part in found.splits] == [n - n // 10, 0, n // 10]
    assert not [path for path in Path(tmp_path).iterdir() if path.name != "long.csv"]


def test_ten_thousand_listed_categories_come_in_small_parts(monkeypatch) -> None:
    wide = Schema(label="y", target=Target(0, 1), columns={"town": Category(tuple(f"t{k}" for k in range(10_000)))})
    assert rows_at_once(wide) == (1 << 28) // (4 * 10_001)
    assert rows_at_once(SCHEMA) == CHUNK
    monkeypatch.setattr(encode, "AT_ONCE", 7 * 4 * 10_001)
    assert rows_at_once(wide) == 7
    rows = {"town": [f"t{k * 271 % 10_100}" for k in range(50)], "y": [k % 2 for k in range(50)]}
    found = load_table(rows, wide, test=10)
    assert found.train.x.shape == (40, 10_001)
    unlisted = sum(k * 271 % 10_100 >= 10_000 for k in range(50))
    assert found.counts == Counts(rows=50, unseen={"town": unlisted} if unlisted else {})
    assert bool((found.train.x.sum(1) == 1).all())


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path, monkeypatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,y\n" + "".join(f"{k},{k % 2}\n" for k in range(50)))
    schema = Schema(label="y", target=Target(0, 1), columns={"a": Number(0, 50)})
    real = loading._on_disk

    def after_a_change(*arguments):
        path.write_text("a,y\n" + "".join(f"{k},{k % 2}\n" for k in range(40)))
        return real(*arguments)

    monkeypatch.setattr(loading, "_on_disk", after_a_change)
    with pytest.raises(DataError, match="has changed while it was read"):
        load_table(path, schema, limit=10)
