"""Rows of a table as texts: CSV files read in parts, DataFrames, dicts of columns; every mistake is named with its place."""

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

from noisewise.errors import ConfigError, DataError

SEPARATORS = (",", ";", "\t", "|")
CHUNK = 50_000  # rows held as text at once
DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class Rows:
    """Some rows of a table as texts without spaces around them, and where they stand."""

    source: str
    columns: dict[str, list[str]]
    first: int
    lines: Sequence[int] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def error(self, column: str, index: int, reason: str, remedy: str) -> DataError:
        """What is wrong with one value, and where it stands."""
        line = f" (line {self.lines[index]})" if self.lines else ""
        value = short(self.columns[column][index])
        return DataError(
            f"{self.source}, row {self.first + index}{line}, column {column!r}: {value}: {reason}. {remedy}"
        )


def check_separator(separator: Any) -> None:
    """One character that can stand between fields."""
    if type(separator) is not str or len(separator) != 1 or separator in '" \r\n':
        raise ConfigError(f"separator={separator!r}: must be one character, e.g. ',' or ';', and no space or quote.")


def name_of(source: Any) -> str:
    """What errors call a source."""
    return Path(source).name if isinstance(source, str | os.PathLike) else "the table"


def parts_of(source: Any, separator: str, rows: int) -> Iterator[Rows]:
    """Parts of at most `rows` rows of a CSV file or a table."""
    if type(rows) is not int or rows <= 0:
        raise ConfigError(f"rows={rows!r}: must be a whole number above 0.")
    return (
        csv_parts(Path(source), separator, rows)
        if isinstance(source, str | os.PathLike)
        else _table_parts(source, rows)
    )


def csv_parts(path: Path, separator: str, rows: int) -> Iterator[Rows]:
    """A CSV file row by row: quotes as in RFC 4180, UTF-8 with or without a mark; lines with nothing on them are no rows."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, delimiter=separator, strict=True)
            header = _checked_header(path, next((line for line in lines if line), []))
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
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path.name} is not UTF-8 text ({error.reason} at byte {error.start}). Save it as UTF-8."
        ) from None
    except csv.Error as error:
        raise DataError(
            f"{path.name}, line {lines.line_num}: {error}. Quotes must be closed, and doubled within a "
            f"quoted text; or fields are not separated by {separator!r}."
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None


def _checked_header(path: Path, names: list[str]) -> list[str]:
    names = [name.strip() for name in names]
    if not names:
        raise DataError(f"{path.name} is empty: its first line must name the columns.")
    if any("\ud800" <= character <= "\udfff" for name in names for character in name):
        raise DataError(f"{path.name}: the header is not UTF-8 text. Save the file as UTF-8.")
    if "" in names:
        raise DataError(f"{path.name}: column {names.index('') + 1} has no name. Name every column in the first line.")
    if twice := {name for name in names if names.count(name) > 1}:
        raise DataError(f"{path.name}: column {listed(sorted(twice))} occurs twice in the header. Rename one of them.")
    return names


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


def header(path: str | os.PathLike[str], separator: str | None = None) -> tuple[list[str], str]:
    """Names of a CSV file's columns and its separator: the one that cuts the first line into most fields."""
    path = Path(path)
    if separator is not None:
        check_separator(separator)

    def names(mark: str) -> list[str]:
        try:
            # Rows that are no UTF-8 are not looked at here, so they are no reason to stop.
            with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
                return next((line for line in csv.reader(file, delimiter=mark, strict=True) if line), [])
        except FileNotFoundError:
            raise DataError(f"{path} does not exist. Give the path of a CSV file.") from None
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}.") from None
        except csv.Error as error:
            if separator is None:  # quotes show that this is not the separator
                return []
            raise DataError(f"{path.name}, first line: {error}. Give another separator, or close the quotes.") from None

    chosen = separator or max(SEPARATORS, key=lambda mark: len(names(mark)))
    return _checked_header(path, names(chosen)), chosen
