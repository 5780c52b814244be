"""Parquet by the same words: the same rows give the same tensors as CSV, read by row groups."""

from __future__ import annotations

import builtins
import datetime
import decimal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from noisewise.data.table_parts import load_table
from noisewise.data.tables import encoded_inputs
from noisewise.data.tables.header import look
from noisewise.data.tables.kinds import Boolean, Category, Classes, Number
from noisewise.data.tables.propose import propose
from noisewise.data.tables.rows import parts_of
from noisewise.errors import ConfigError, DataError

N = 300
FRAME = pd.DataFrame(
    {
        "age": [20 + k % 50 for k in range(N)],
        "pay": [None if k % 9 == 0 else 1000.5 + k for k in range(N)],
        "town": [("Ulm", "Köln", None)[k % 3] for k in range(N)],
        "seen": pd.to_datetime([f"2020-{1 + k % 12:02}-{1 + k % 28:02}" for k in range(N)]),
        "member": [k % 2 == 0 for k in range(N)],
        "hired": [("no", "yes")[k % 7 > 3] for k in range(N)],
    }
)


@pytest.fixture
def files(tmp_path):
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    pq.write_table(pa.Table.from_pandas(FRAME), tmp_path / "t.parquet", row_group_size=64)
    return tmp_path / "t.csv", tmp_path / "t.parquet"


def test_parquet_and_csv_are_the_same_table(files) -> None:
    of_csv, of_parquet = (propose(path, label="hired") for path in files)
    assert of_csv.schema == of_parquet.schema
    assert of_csv.schema.columns["member"] == Boolean()
    assert isinstance(of_csv.schema.columns["pay"], Number)
    schema = of_parquet.confirmed()
    one, other = (load_table(path, schema) for path in files)
    for name in ("train", "test"):
        assert torch.equal(getattr(one, name).x, getattr(other, name).x)
        assert torch.equal(getattr(one, name).y, getattr(other, name).y)
    assert one.counts == other.counts
    assert torch.equal(encoded_inputs(schema, files[0]).x, encoded_inputs(schema, files[1]).x)


def test_noise_and_header_only_take_parquet_too(files) -> None:
    known = {"hired": Classes(("no", "yes"))}
    assert propose(files[1], label="hired", columns=known, header_only=True).schema.origin == "declared"
    noised = propose(files[1], label="hired", columns=known, epsilon=8.0).schema
    assert noised.origin == "noised"
    assert len(noised.encode(files[1])) == N


@pytest.mark.parametrize("rows", [1, 50, 64, 1000])
def test_parts_are_of_at_most_so_many_rows_and_numbered_on(files, rows) -> None:
    parts = list(parts_of(files[1], ",", rows))
    assert max(map(len, parts)) <= rows
    assert [part.first for part in parts] == [1 + sum(map(len, parts[:k])) for k in range(len(parts))]
    assert [text for part in parts for text in part.columns["age"]] == [str(age) for age in FRAME["age"]]


def test_values_are_what_a_csv_file_would_hold(tmp_path) -> None:
    table = pa.table(
        {
            "d": [datetime.date(2020, 5, 31), None],
            "n": [decimal.Decimal("1.50"), None],
            "c": pa.array(["a", None]).dictionary_encode(),
            "f": pa.array([2.0, float("nan")], pa.float32()),
        }
    )
    pq.write_table(table, tmp_path / "named_otherwise.dat")
    (part,) = parts_of(tmp_path / "named_otherwise.dat", ",", 9)
    assert part.columns == {"d": ["2020-05-31", ""], "n": ["1.50", ""], "c": ["a", ""], "f": ["2", ""]}


def test_what_is_no_single_value_is_refused(tmp_path) -> None:
    pq.write_table(pa.table({"a": [[1, 2], [3]], "y": [0, 1]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t\.parquet, column 'a' holds list.*without it"):
        look(tmp_path / "t.parquet")
    pq.write_table(pa.table({"a": [b"x"], "y": [0]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match="column 'a' holds binary"):
        look(tmp_path / "b.parquet")


def test_a_damaged_or_absent_file_is_named(tmp_path, files) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match=r"bad\.parquet cannot be read as Parquet"):
        look(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match="does not exist"):
        list(parts_of(tmp_path / "none.parquet", ",", 5))


def test_without_pyarrow_the_command_is_said(files, monkeypatch) -> None:
    real = builtins.__import__

    def without(name, *arguments, **more):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'noisewise\[parquet\]'"):
        look(files[1])


def test_a_row_of_parquet_is_named_in_errors(files) -> None:
    schema = propose(files[1], label="hired", columns={"town": Category(("Ulm", "Köln"), other=False)}).confirmed()
    with pytest.raises(DataError, match=r"t\.parquet, row 3, column 'town': ''"):
        schema.encode(files[1])
