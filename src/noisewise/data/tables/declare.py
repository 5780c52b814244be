"""What a user declares a column to be, as written on the command line."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Sequence

from noisewise.data.tables.dates import ISO, Date
from noisewise.data.tables.kinds import BUCKETS, WIDE, WORD_BUCKETS, Boolean, Category, Hashed, Ignore, Kind, filled
from noisewise.data.tables.rows import DECIMAL, listed
from noisewise.data.tables.words import Words
from noisewise.errors import ConfigError

PLAIN: dict[str, Kind] = {
    "number": WIDE,
    "text": Hashed(BUCKETS),
    "words": Words(WORD_BUCKETS),
    "boolean": Boolean(indicator=True),
    "ignore": Ignore(),
}


def declared(text: str, names: Sequence[str]) -> tuple[str, Kind | None]:
    r"""A column's name and what the user declares it to be, as written on the command line.

    `NAME`, or `NAME=` and one of: `LOW:HIGH` (a number), `LOW:HIGH:log` (on a logarithmic scale), `LOW:HIGH:gaps` (what is
    missing or unreadable has a column of its own), `number` (unknown range), `A,B,C` (categories; by the rules of CSV, so
    that a value with a comma stands in double quotes), `text` or `hash:N` (hashed), `words` or `words:N` (free text),
    `date:FIRST:LAST` or `date:FIRST:LAST:FORMAT`, `boolean`, `ignore`.

    >>> declared("age=0:120", ["age"])
    ('age', Number(low=0.0, high=120.0, log=False, fill=60.0, indicator=False, invalid=None))
    >>> declared("income=<=50K,>50K", ["age", "income"])
    ('income', Category(values=('<=50K', '>50K'), other=True))
    >>> declared('city="Paris, France",Lyon', ["city"])
    ('city', Category(values=('Paris, France', 'Lyon'), other=True))
    """
    if text in names:
        return text, None
    name = max((name for name in names if text.startswith(f"{name}=")), key=len, default=None)
    if name is None:
        raise ConfigError(f"{text!r}: no such column. The header has {listed(names)}.")
    try:
        return name, _kind(text[len(name) + 1 :].strip())
    except ConfigError as error:
        raise ConfigError(f"{text}: {error}") from None


def _kind(what: str) -> Kind:
    if what in PLAIN:
        return PLAIN[what]
    low, _, rest = what.partition(":")
    if low in ("hash", "words") and rest.isdecimal():
        return Hashed(int(rest)) if low == "hash" else Words(int(rest))
    if low == "date":
        first, _, rest = rest.partition(":")
        last, _, format = rest.partition(":")
        return Date(first, last, format or ISO, ("position", "month", "weekday"), indicator=True)
    high, *how = rest.split(":")
    if DECIMAL.fullmatch(low) and DECIMAL.fullmatch(high) and set(how) <= {"log", "gaps"}:
        gaps = "gaps" in how
        return filled(float(low), float(high), log="log" in how, indicator=gaps, invalid="missing" if gaps else None)
    if '"' not in what and "," not in what and (near := _like(what)):
        raise ConfigError(
            f"{what!r} is no list of values, and looks like {near}. A column with this one value is written in double quotes: "
            f"'\"{what}\"'."
        )
    return Category(_values(what))


def _like(what: str) -> str:
    """What a single value was perhaps meant to be: taken as a list of one, it would leave all other values out."""
    if re.fullmatch(r"[-+]?[\d.]+\s*[-–]\s*[-+]?[\d.]+", what) or re.match(r"[-+]?[\d.]+[^:]*:", what):
        return "a range of numbers, which is LOW:HIGH, e.g. 0:120 or 1:1e6:log"
    close = difflib.get_close_matches(what.partition(":")[0], (*PLAIN, "hash", "words", "date"), 1, 0.75)
    return f"{close[0]!r}" if close else "a kind with settings, none of which has this name" if ":" in what else ""


def _values(what: str) -> tuple[str, ...]:
    """The values of a list, by the rules of CSV."""
    try:
        return tuple(value.strip() for value in next(csv.reader([what], skipinitialspace=True, strict=True), []))
    except csv.Error:
        raise ConfigError(
            "the quotes do not match. A value with a comma is written in double quotes, a quote in it twice, e.g. "
            "'city=\"Paris, France\",Lyon'."
        ) from None
