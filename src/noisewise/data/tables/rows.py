"""Rows of a table as texts: CSV and Parquet files read in parts, DataFrames, dicts of columns.

Every mistake is named with its place.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from noisewise.data.tables.parquet import is_parquet, parquet_names, parquet_parts
from noisewise.errors import ConfigError, DataError

SEPARATORS = (",", ";", "\t", "|")
CHUNK = 50_000  # rows held as text at once
DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
LARGEST = float(np.finfo(np.float64).max)
UTF8 = "utf-8"
CODECS = {
    UTF8: "utf-8-sig",  # with or without a mark
    "utf-16": "utf-16",
    "utf-16-le": "utf-16-le",
    "utf-16-be": "utf-16-be",
    "windows-1252": "cp1252",
    "latin-1": "latin-1",
}
"""Encodings by their name in a schema, and what Python calls them."""


@dataclass(frozen=True)
class Rows:
    """Some rows of a table as texts without spaces around them, and where they stand."""

    source: str
    columns: dict[str, list[str]]
    first: int
    lines: Sequence[int] = ()
    numbers: Sequence[int] = ()

    def take(self, chosen: Sequence[int]) -> Rows:
        """Some of the rows, each with the place it had."""
        columns = {name: [values[row] for row in chosen] for name, values in self.columns.items()}
        lines = [self.lines[row] for row in chosen] if self.lines else ()
        return Rows(self.source, columns, self.first, lines, [self.number(row) for row in chosen])

    def number(self, index: int) -> int:
        """Which row of the table it is."""
        return self.numbers[index] if self.numbers else self.first + index

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def error(self, column: str, index: int, reason: str, remedy: str) -> DataError:
        """What is wrong with one value, and where it stands."""
        line = f" (line {self.lines[index]})" if self.lines else ""
        value = short(self.columns[column][index])
        return DataError(
            f"{self.source}, row {self.number(index)}{line}, column {column!r}: {value}: {reason}. {remedy}"
        )


def check_separator(separator: Any) -> None:
    """One character that can stand between fields."""
    if type(separator) is not str or len(separator) != 1 or separator in '" \r\n':
        raise ConfigError(f"separator={separator!r}: must be one character, e.g. ',' or ';', and no space or quote.")


def check_encoding(encoding: Any) -> None:
    """One of those that are known."""
    if type(encoding) is not str or encoding not in CODECS:
        raise ConfigError(f"encoding={encoding!r}: must be one of {', '.join(CODECS)}.")


def name_of(source: Any) -> str:
    """What errors call a source."""
    return Path(source).name if isinstance(source, str | os.PathLike) else "the table"


def parts_of(source: Any, separator: str, rows: int, encoding: str = UTF8) -> Iterator[Rows]:
    """Parts of at most `rows` rows of a CSV or Parquet file, or of a table."""
    if type(rows) is not int or rows <= 0:
        raise ConfigError(f"rows={rows!r}: must be a whole number above 0.")
    if not isinstance(source, str | os.PathLike):
        return _table_parts(source, rows)
    path = Path(source)
    return _parquet_rows(path, rows) if is_parquet(path) else csv_parts(path, separator, rows, encoding)


def _parquet_rows(path: Path, rows: int) -> Iterator[Rows]:
    names = checked_header(path, parquet_names(path))
    first = 1
    for columns in parquet_parts(path, rows):
        texts = {name: [_as_text(value) for value in values] for name, values in zip(names, columns, strict=True)}
        yield Rows(path.name, texts, first)
        first += len(columns[0])


def csv_parts(path: Path, separator: str, rows: int, encoding: str = UTF8) -> Iterator[Rows]:
    """A CSV file row by row: quotes as in RFC 4180; lines with nothing on them are no rows."""
    try:
        with path.open(encoding=CODECS[encoding], newline="") as file:
            lines = csv.reader(file, delimiter=separator, strict=True)
            header = checked_header(path, next((line for line in lines if line), []))
            first, found, places = 1, list[list[str]](), list[int]()
            for line in lines:
                if not line:
                    continue
                if len(line) != len(header):
                    raise DataError(
                        f"{path.name}, row {first + len(found)} (line {lines.line_num}): {len(line)} fields, the header "
                        f"has {len(header)}. Correct the row (a text with {separator!r} in it needs quotes), or the "
                        "schema's separator."
                    )
                found.append(line)
                places.append(lines.line_num)
                if len(found) == rows:
                    yield Rows(path.name, _by_column(header, found), first, places)
                    first, found, places = first + rows, [], []
            if found:
                yield Rows(path.name, _by_column(header, found), first, places)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. Give the path of a CSV file.") from None
    except UnicodeError as error:
        what = f"{error.reason} at byte {error.start}" if isinstance(error, UnicodeDecodeError) else str(error)
        raise DataError(
            f"{path.name} is not {encoding.upper()} text ({what}). Save it as {encoding.upper()}, or give its encoding: "
            f"`encoding` in the schema, one of {', '.join(CODECS)}."
        ) from None
    except csv.Error as error:
        raise DataError(
            f"{path.name}, line {lines.line_num}: {error}. Quotes must be closed, and doubled within a "
            f"quoted text; or fields are not separated by {separator!r}."
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None


def checked_header(path: Path, names: list[str]) -> list[str]:
    """Names of columns, each different, none empty."""
    if not [name for name in names if name.strip()]:
        raise DataError(f"{path.name} is empty: its first line must name the columns.")
    if any("\ud800" <= character <= "\udfff" for name in names for character in name):
        raise DataError(f"{path.name}: the header is not UTF-8 text. Save the file as UTF-8, or give its encoding.")
    return renamed(names)


def renamed(names: Sequence[str]) -> list[str]:
    """All names different: a column without one is `column 3` by its place, the second `age` is `age (2)`.

    By the header alone, so that every file with this header is read alike.

    >>> renamed(["age", "", "age"])
    ['age', 'column 2', 'age (2)']
    """
    wanted = [name.strip() or f"column {place}" for place, name in enumerate(names, 1)]
    taken, chosen = set(wanted), list[str]()
    for name in wanted:
        number, new = 2, name
        while new in chosen or (new != name and new in taken):
            new, number = f"{name} ({number})", number + 1
        chosen.append(new)
    return chosen


def _by_column(header: list[str], rows: list[list[str]]) -> dict[str, list[str]]:
    columns = zip(*rows, strict=True)
    return {name: [value.strip() for value in column] for name, column in zip(header, columns, strict=True)}


def _table_parts(table: Any, rows: int) -> Iterator[Rows]:
    """A DataFrame or a mapping of columns."""
    if not hasattr(table, "keys") or getattr(table, "ndim", 2) != 2:  # a Series has keys too: its rows
        raise DataError(f"a {type(table).__name__}: must be a path, a pandas DataFrame, or a dict of columns.")
    keys = list(table)  # of a mapping, and of a DataFrame
    names = [str(key).strip() for key in keys]
    if twice := {name for name in names if names.count(name) > 1}:
        raise DataError(f"the table: column {listed(sorted(twice))} occurs twice. Rename one of them.")
    columns = {name: _column(name, table[key]) for name, key in zip(names, keys, strict=True)}
    if len({len(values) for values in columns.values()}) > 1:
        raise DataError("the table: its columns have different lengths. Give one value per row and column.")
    count = len(next(iter(columns.values()), ()))
    for first in range(0, count, rows):
        yield Rows("the table", {name: values[first : first + rows] for name, values in columns.items()}, first + 1)


def _column(name: str, values: Any) -> list[str]:
    if hasattr(
        values, "detach"
    ):  # the text of a tensor's entry would be "tensor(1.)", which is in no list of categories
        values = values.tolist()
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise DataError(f"the table: column {name!r} is {short(values)}: must be a sequence with one value per row.")
    return [_as_text(value) for value in values]


def _as_text(value: Any) -> str:
    """As a CSV file would hold it: nothing for None and NaN, `2` for 2.0."""
    if isinstance(value, str):
        return value.strip()
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # pandas' own: they equal nothing
        return ""
    if isinstance(value, float | np.floating):
        number = float(value)
        if math.isnan(number):
            return ""
        return str(int(number)) if number.is_integer() and abs(number) < 2**53 else str(value)
    return str(value)


def parsed(values: Iterable[str]) -> np.ndarray:
    """Decimal numbers; NaN where the text is none."""
    found = [float(value) if DECIMAL.fullmatch(value) else math.nan for value in values]
    return np.clip(np.array(found, np.float64), -LARGEST, LARGEST)


def short(value: Any) -> str:
    """A value in an error: its beginning."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def listed(names: Iterable[str]) -> str:
    """Names in an error: the first dozen."""
    names = [repr(name) for name in names]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
