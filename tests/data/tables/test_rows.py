"""Reading rows: what a CSV writer wrote comes back, and every mistake in a file is named with its place."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noisewise.data.tables.header import header
from noisewise.data.tables.rows import SEPARATORS, csv_parts, parsed, parts_of
from noisewise.errors import ConfigError, DataError

FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


def read(path, separator=",", rows=7):
    return list(csv_parts(path, separator, rows))


def columns(path, separator=",", rows=7):
    parts = read(path, separator, rows)
    return {name: [value for part in parts for value in part.columns[name]] for name in parts[0].columns}


@FUZZ
@given(rows=st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=20), separator=st.sampled_from(SEPARATORS))
def test_what_the_csv_writer_wrote_comes_back(tmp_path, rows, separator) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, quoting=csv.QUOTE_ALL).writerows([("a", "b", "c"), *rows])
    path = tmp_path / "rows.csv"
    path.write_bytes(text.getvalue().encode())
    found = columns(path, separator)
    assert list(zip(found["a"], found["b"], found["c"], strict=True)) == [tuple(v.strip() for v in row) for row in rows]


@FUZZ
@given(rows=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=8))
def test_pandas_reads_the_same(tmp_path, rows) -> None:
    clean = [tuple(value.replace("\r", "").replace("\n", "") for value in row) for row in rows]
    path = tmp_path / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *clean])
    expected = pd.read_csv(path, dtype=str, keep_default_na=False)
    found = columns(path)
    assert found == {name: [value.strip() for value in expected[name]] for name in ("a", "b")}


@FUZZ
@given(content=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(tmp_path, content) -> None:
    path = tmp_path / "any.csv"
    path.write_bytes(content)
    parts, message = [], "any.csv"
    try:
        parts = read(path)
    except DataError as error:
        message = str(error)
    assert "any.csv" in message
    assert all(len({len(values) for values in part.columns.values()}) == 1 for part in parts)


def test_parts_are_numbered_on(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('a,b\n1,"two\nlines"\n\n3,4\n5,6\n')
    parts = read(path, rows=2)
    assert [(part.first, list(part.lines), part.columns["a"]) for part in parts] == [
        (1, [3, 5], ["1", "3"]),
        (3, [6], ["5"]),
    ]


def test_a_byte_order_mark_and_spaces_do_not_count(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("\ufeff a , b \r\n x , y \r\n".encode())
    assert columns(path) == {"a": ["x"], "b": ["y"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"rows.csv is empty"),
        (b"\n\n", r"rows.csv is empty"),
        (b",,\n1,2,3\n", r"rows.csv is empty"),
        (b"a,b\n1,2\n1,2,3\n", r"row 2 \(line 3\): 3 fields, the header has 2"),
        (b"a,b\n1,2\n1\n", r"row 2 \(line 3\): 1 fields, the header has 2"),
        (b'a,b\n1,"open\n', r"line 2: unexpected end of data"),
        (b'a,b\n1,"x"y\n', r"line 2: .* Quotes"),
        (b"a,b\n1,\xff\xfe\n", r"not UTF-8"),
        (b"a,b\n1," + b"x" * 200_000 + b"\n", r"field larger than field limit"),
    ],
)
def test_a_damaged_file_is_named_with_the_place(tmp_path, content, message) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(path)


def test_no_file_and_no_table(tmp_path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read(tmp_path / "none.csv")
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path)
    with pytest.raises(DataError, match="a list: must be a path"):
        list(parts_of([1, 2], ",", 5))
    with pytest.raises(DataError, match="different lengths"):
        list(parts_of({"a": [1], "b": [1, 2]}, ",", 5))
    with pytest.raises(DataError, match="occurs twice"):
        list(parts_of(pd.DataFrame([[1, 2]], columns=["a", "a"]), ",", 5))
    with pytest.raises(DataError, match="a Series: must be a path"):
        list(parts_of(pd.Series({"a": 1}), ",", 5))
    for column in (1, "xyz"):
        with pytest.raises(DataError, match=f"column 'a' is {column!r}: must be a sequence"):
            list(parts_of({"a": column}, ",", 5))
    with pytest.raises(ConfigError, match="rows=0"):
        parts_of({"a": [1]}, ",", 0)


def test_values_of_a_table_become_what_a_file_would_hold() -> None:
    values = [
        " x ",
        None,
        math.nan,
        np.float32("nan"),
        pd.NA,
        pd.NaT,
        2.0,
        np.float64(2.5),
        3,
        np.int64(4),
        True,
        1e300,
    ]
    (part,) = parts_of({"a": values}, ",", 99)
    assert part.columns["a"] == ["x", "", "", "", "", "", "2", "2.5", "3", "4", "True", "1e+300"]
    (frame,) = parts_of(pd.DataFrame({"a": [1, None, 3]}), ",", 99)
    assert frame.columns["a"] == ["1", "", "3"]
    (tensors,) = parts_of({"a": torch.tensor([1.0, math.nan]), "b": torch.tensor([3, 4])}, ",", 99)
    assert tensors.columns == {"a": ["1", ""], "b": ["3", "4"]}


@pytest.mark.parametrize("mark", SEPARATORS)
def test_the_separator_is_seen_in_the_first_line(tmp_path, mark) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f'"a, b"{mark}"c; d"{mark}e\n')
    assert header(path) == (["a, b", "c; d", "e"], mark)
    with pytest.raises(ConfigError, match="one character"):
        header(path, mark * 2)


def test_a_given_separator_that_does_not_fit_is_refused(tmp_path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('"a";"b"\n')
    with pytest.raises(DataError, match="Give another separator"):
        header(path, ",")


@pytest.mark.parametrize("text", ["1", "-2.5", "+.5", "3.", "1e-3", "7E5", "0" * 50 + "1", "0.1"])
def test_decimal_numbers(text) -> None:
    assert parsed([text])[0] == float(text)


@pytest.mark.parametrize("text", ["", "nan", "inf", "-Infinity", "1,5", "1_000", "0x10", "1e", "٣", "1 2", "True", "."])
def test_everything_else_is_no_number(text) -> None:
    assert math.isnan(parsed([text])[0])


def test_numbers_beyond_floating_point_are_the_largest_there_are() -> None:
    largest = np.finfo(np.float64).max
    assert parsed(["1e999", "-1e999", "9" * 500]).tolist() == [largest, -largest, largest]
