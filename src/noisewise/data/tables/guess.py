"""From what the rows look like to the kind of each column, what to say of it, and what its user must confirm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from noisewise.data.tables.dates import Date
from noisewise.data.tables.kinds import (
    BUCKETS,
    WORD_BUCKETS,
    Boolean,
    Category,
    Classes,
    Hashed,
    Ignore,
    Kind,
    Number,
    Target,
    centred,
    filled,
)
from noisewise.data.tables.rows import DECIMAL, listed, short
from noisewise.data.tables.survey import Column
from noisewise.data.tables.words import Words
from noisewise.errors import ConfigError

MANY = 50  # more different texts than this are hashed
FEW_NUMBERS = 20  # a label with at most so many different numbers has classes
MOST_BUCKETS = 512
ROWS_PER_BUCKET = 16
LONG_SPAN = 20  # years from which on month and weekday are left out: dates of birth
MISSING_TOO = "missing"


@dataclass(frozen=True)
class ToConfirm:
    """Something in a proposed schema that was read off the rows: which column, what, why it matters, what to say instead."""

    column: str
    read: str
    why: str
    instead: str

    def sentence(self) -> str:
        """For people."""
        return f"{self.column!r}: {self.read}. {self.why} To declare it instead: {self.instead}"


def guessed(column: Column, role: str) -> Kind:
    """What a column seems to be, as `label`, `group` or `feature`."""
    match role:
        case "label":
            return _label(column)
        case "group":
            if len(column.texts) > MANY:
                raise ConfigError(
                    f"group {column.name!r} has more than {MANY} different texts: declare it, {column.name}=A,B,C."
                )
            return Category(tuple(sorted(column.texts, key=_by_size)))
    return _feature(column)


def _label(column: Column) -> Classes | Target:
    name, classes = column.name, column.different
    if column.numbers == column.given and len(classes) > FEW_NUMBERS:
        return centred(*rounded(column.low, column.high))
    if len(classes) > MANY:
        bad = f", and not all are numbers: {short(column.unreadable)}" if column.is_numeric else ""
        raise ConfigError(
            f"label {name!r} has more than {MANY} different texts{bad}. Declare its classes, {name}=A,B,C, or correct it, or "
            "choose another label."
        )
    if len(classes) < 2:
        raise ConfigError(f"label {name!r} has {len(classes)} different values: there is nothing to learn.")
    return Classes(tuple(sorted(classes, key=_by_size)))


def _feature(column: Column) -> Kind:
    has_gaps = column.given < column.rows
    if not column.given or column.is_identifier:
        return Ignore()
    if formats := column.date_formats:
        bad = column.dates[formats[0]] < column.given
        return _date(column, formats[0], has_gaps or bad, MISSING_TOO if bad else None)
    if column.is_numeric:
        bad = column.numbers < column.given
        limits = rounded(column.low, column.high)
        return filled(*limits, indicator=has_gaps or bad, invalid=MISSING_TOO if bad else None)
    if column.is_boolean:
        return Boolean(indicator=has_gaps)
    if len(column.texts) <= MANY:
        return Category(tuple(sorted(column.texts)))
    if column.is_free_text:
        return Words(_buckets(WORD_BUCKETS, column))
    return Hashed(_buckets(min(MOST_BUCKETS, 1 << (len(column.different) - 1).bit_length()), column))


def _buckets(wanted: int, column: Column) -> int:
    """No more than about one for 16 rows: fewer cannot be learnt from, and each is more noise."""
    return max(BUCKETS, min(wanted, 1 << int(math.log2(max(1, column.rows / ROWS_PER_BUCKET)))))


def _date(column: Column, format: str, indicator: bool, invalid: str | None) -> Date:
    """Whole years; month and weekday where the span is short enough for them to matter, the hour where there are times."""
    first, last = column.spans[format]
    calendar = ("month", "weekday") if last.year - first.year < LONG_SPAN else ()
    parts = ("position", *calendar, *(("hour",) if column.has_times else ()))
    return Date(f"{first.year:04}-01-01", f"{last.year:04}-12-31", format, parts, indicator, invalid)


def oddities(columns: Mapping[str, Column], kinds: Mapping[str, Kind], label: str) -> list[str]:
    """What looks odd in the rows, in words."""
    notes = []
    for name, column in columns.items():
        kind = kinds[name]
        readable = column.dates[kind.format] if isinstance(kind, Date) else column.numbers
        if isinstance(kind, Number | Date) and kind.invalid is not None:
            what = "dates" if isinstance(kind, Date) else "numbers"
            first = "" if isinstance(kind, Date) else f", the first is {short(column.unreadable)}"
            notes.append(
                f"{name!r}: {column.given - readable:,} of {column.rows:,} values are no {what}{first}. They count as missing "
                '(invalid = "missing").'
            )
        if isinstance(kind, Date) and {"%d/%m/%Y", "%m/%d/%Y"} <= set(column.date_formats):
            notes.append(
                f"{name!r}: day or month may come first. Taken as {kind.format}; if that is wrong: --column "
                f"{name}=date:{kind.first}:{kind.last}:%m/%d/%Y."
            )
        if isinstance(kind, Hashed):
            notes.append(
                f"{name!r}: {_many(column)} different texts share {kind.buckets} buckets. With --column {name}=A,B,C "
                "those that matter have columns of their own."
            )
        if isinstance(kind, Ignore) and column.is_identifier and column.repeats:
            notes.append(
                f"{name!r} names {_many(column)} in {column.rows:,} rows. If these are people, protect each as a whole: "
                f"--unit {name}."
            )
        if name == label and column.given < column.rows:
            notes.append(
                f"{column.rows - column.given:,} of {column.rows:,} rows have no label: they stop training, or are left out "
                "with --drop-unlabelled."
            )
    for words, names in (
        ("Identifiers, left out: {}.", [name for name, of in columns.items() if _is_left_out(of, kinds[name])]),
        ("Without any value, left out: {}.", [name for name, of in columns.items() if not of.given and name != label]),
        (
            "Taken as text, since a number has a point and no comma: {}. Write 1.75 for 1,75, 1000 for 1,000.",
            [name for name, of in columns.items() if of.has_commas and not isinstance(kinds[name], Ignore | Date)],
        ),
        (
            "Taken as text, since a number stands alone: {}. Write 12 for 12 %, 1200 for 1,200 €.",
            [
                name
                for name, of in columns.items()
                if of.is_dressed and not of.has_commas and isinstance(kinds[name], Category | Hashed) and name != label
            ],
        ),
    ):
        if names:
            notes.append(words.format(listed(names)))
    return notes


def remark(column: Column, kind: Kind) -> str:
    """Why a column is left out, if it is."""
    return "" if not isinstance(kind, Ignore) else "an identifier; " if column.given else "no values; "


def _is_left_out(column: Column, kind: Kind) -> bool:
    return isinstance(kind, Ignore) and bool(column.given)


def _many(column: Column) -> str:
    return f"{len(column.different):,}"


def to_confirm(name: str, role: str, kind: Kind) -> ToConfirm:
    """What was read off the rows of a column that nobody declared."""
    option = {"label": "--label", "group": "--group"}.get(role, "--column")

    def item(read: str, why: str, instead: str) -> ToConfirm:
        return ToConfirm(name, read, why, f"{option} {name}={instead}")

    ends = "The smallest and the largest value belong to somebody."
    rare = "A rare text may belong to one person."
    match kind:
        case Number() | Target():
            return item(f"the range [{kind.low:g}, {kind.high:g}]", ends, "LOW:HIGH")
        case Category() | Classes():
            return item(f"the {len(kind.values)} texts {listed(kind.values)}", rare, "A,B,C")
        case Date():
            return item(f"the range [{kind.first}, {kind.last}]", ends, "date:FIRST:LAST")
        case Hashed():
            return item(
                f"that it is text, with {kind.buckets} buckets", "About how many texts there are shows.", "hash:N"
            )
        case Words():
            return item("that it is free text", "That everybody's value is text shows.", "words")
        case Boolean():
            return item("that it is yes or no", "That nobody's value is anything else shows.", "boolean")
        case Ignore():
            return item("that it identifies, or is empty", "That no value, or each, occurs once shows.", "ignore")


def _by_size(text: str) -> tuple[bool, float, str]:
    """Numbers first, by size."""
    is_number = bool(DECIMAL.fullmatch(text))
    return not is_number, float(text) if is_number else 0.0, text


def rounded(low: float, high: float) -> tuple[float, float]:
    """Outwards to the power of ten below the span: 17 to 90 becomes 10 to 90."""
    span = high - low
    if not 0 < span < 1e300:
        return (low - 1, high + 1) if span == 0 and abs(low) < 2**52 else (min(low, -1.0), max(high, 1.0))
    step = 10.0 ** math.floor(math.log10(span))
    return min(math.floor(low / step) * step, low), max(math.ceil(high / step) * step, high)
