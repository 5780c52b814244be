"""What the beginning of a file says: names of columns, how fields are separated, how letters are written."""

from __future__ import annotations

import codecs
import csv
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from noisewise.data.tables.parquet import is_parquet, parquet_names
from noisewise.data.tables.rows import (
    CODECS,
    DECIMAL,
    SEPARATORS,
    UTF8,
    check_encoding,
    check_separator,
    checked_header,
    listed,
)
from noisewise.errors import DataError

LINES = 50  # below the header, that a separator is judged by
BLOCK = 1 << 20
UNDEFINED = b"\x81\x8d\x8f\x90\x9d"  # no letters in windows-1252


@dataclass(frozen=True)
class Look:
    """Names of a file's columns, its separator and encoding, and what is odd about them."""

    names: list[str]
    separator: str
    encoding: str
    notes: tuple[str, ...]


def look(
    path: str | os.PathLike[str],
    separator: str | None = None,
    encoding: str | None = None,
    *,
    below: int = 0,
    whole: bool = False,
) -> Look:
    """What is not given is seen in the first line: the separator also in so many lines `below`, the encoding in the `whole`.

    The separator: the one that cuts the first lines into most fields, all into as many. The encoding: UTF-8 (with or
    without a mark), UTF-16, windows-1252, latin-1, the first in which the file can be read.
    """
    path = Path(path)
    if separator is not None:
        check_separator(separator)
    if encoding is not None:
        check_encoding(encoding)
    if not path.exists():
        raise DataError(f"{path} does not exist. Give the path of a CSV or Parquet file.")
    try:
        if is_parquet(path):
            raw, mark, letters = parquet_names(path), separator or SEPARATORS[0], UTF8
        else:
            letters = encoding or encoding_of(path, whole=whole)
            mark = separator or _separator(path, letters, below)
            raw = next(_lines(path, mark, letters), [])
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except (csv.Error, UnicodeError) as error:
        raise DataError(f"{path.name}, first line: {error}. Give another separator, or close the quotes.") from None
    names = checked_header(path, raw)
    return Look(names, mark, letters, tuple(_notes(raw, names, letters if encoding is None else UTF8)))


def header(path: str | os.PathLike[str], separator: str | None = None) -> tuple[list[str], str]:
    """Names of a file's columns and its separator: nothing below the first line is looked at."""
    seen = look(path, separator)
    return seen.names, seen.separator


def encoding_of(path: Path, *, whole: bool) -> str:
    """The first encoding in which the file, or else its first line, can be read."""
    with path.open("rb") as file:
        start = file.readline(BLOCK)
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        for name, zeros in (("utf-16-le", start[1::2]), ("utf-16-be", start[0::2])):
            if len(start) > 3 and zeros.count(0) > len(zeros) / 2:
                return name
        first = _eight_bits([start])
        if not whole:
            return first
        file.seek(0)
        found = _eight_bits(iter(lambda: file.read(BLOCK), b""))
    if first == UTF8 and found != UTF8 and not start.isascii():
        raise DataError(
            f"{path.name}: the first line is UTF-8 text, and something below it is not. Save the whole file as UTF-8."
        )
    return found


def beside(path: str | os.PathLike[str], known: str) -> str:
    """The encoding of a file that stands beside one of a `known` encoding: as its bytes show, or that one.

    UTF-8 and UTF-16 show themselves. Other bytes are letters of any of a hundred encodings: they are read as in the file
    that is known, and refused if that had none of them.
    """
    path = Path(path)
    if not path.is_file() or is_parquet(path):
        return known
    try:
        found = encoding_of(path, whole=True)
    except OSError:
        return known  # said when its rows are read
    if found.startswith("utf-"):
        return found
    if known not in (found, "latin-1"):
        raise DataError(
            f"{path.name} is not UTF-8 text, nor UTF-16: which letters its bytes stand for cannot be seen, and the file that "
            f"was trained on ({known.upper()}) does not tell. Save it as UTF-8."
        )
    return known


def _eight_bits(blocks: Iterator[bytes] | list[bytes]) -> str:
    decoder, is_utf8, is_windows = codecs.getincrementaldecoder("utf-8")(), True, True
    for block in blocks:
        if is_utf8:
            try:
                decoder.decode(block)
            except UnicodeDecodeError:
                is_utf8 = False
        is_windows = is_windows and not any(byte in block for byte in UNDEFINED)
    if is_utf8 and not decoder.getstate()[0]:
        return UTF8
    return "windows-1252" if is_windows else "latin-1"


def _lines(path: Path, mark: str, encoding: str) -> Iterator[list[str]]:
    """Lines with something on them. What is no text is left to those who read the rows."""
    odd = "surrogateescape" if encoding == UTF8 else "replace"
    with path.open(encoding=CODECS[encoding], errors=odd, newline="") as file:
        yield from (line for line in csv.reader(file, delimiter=mark, strict=True) if line)


def _separator(path: Path, encoding: str, below: int) -> str:
    def fit(mark: str) -> tuple[float, int]:
        lines = _lines(path, mark, encoding)
        fields = list[int]()
        try:
            for line in itertools.islice(lines, 1 + below):
                fields.append(len(line))
        except csv.Error:  # quotes show that this is not the separator, unless it fitted so far
            pass
        if not fields or fields[0] == 1:
            return 0.0, 0
        return fields.count(fields[0]) / len(fields), fields[0]

    return max(SEPARATORS, key=fit)


def _notes(raw: list[str], names: list[str], encoding: str) -> Iterator[str]:
    if encoding != UTF8:
        yield f"The file is not UTF-8: it was read as {encoding}. If letters look wrong, give another --encoding."
    if names and sum(bool(DECIMAL.fullmatch(name.strip())) for name in raw) > len(names) / 2:
        yield "Most names of columns are numbers. If the first line is a row, put a line with names above it."
    if unnamed := [name for name, was in zip(names, raw, strict=True) if not was.strip()]:
        yield f"Columns without a name are called by their place: {listed(unnamed)}."
    if again := [name for name, was in zip(names, raw, strict=True) if was.strip() and name != was.strip()]:
        yield f"Names that occur twice in the header are numbered: {listed(again)}."
