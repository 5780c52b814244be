"""Dates: the position in a declared range, and parts of the calendar."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any

import numpy as np

from noisewise.data.tables.checks import check_invalid, check_type
from noisewise.data.tables.rows import short
from noisewise.errors import ConfigError

ISO = "iso"
FORMATS = (
    ISO, "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%d %b %Y", "%b %d, %Y", "%Y%m%d",
    "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%Y/%m/%d %H:%M",
    "%d.%m.%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%Y/%m/%d %H:%M:%S",
)  # fmt: skip
"""Usual ways to write a date, in the order in which they are tried."""
PARTS = ("position", "year", "month", "weekday", "hour")
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MOST_YEARS = 100
FIELDS = {
    "%Y": "(?P<year>[0-9]{4})",
    "%m": "(?P<month>[0-9]{1,2})",
    "%b": "(?P<name>[A-Za-z]{3})",
    "%d": "(?P<day>[0-9]{1,2})",
    "%H": "(?P<hour>[0-9]{1,2})",
    "%M": "(?P<minute>[0-9]{2})",
    "%S": "(?P<second>[0-9]{2})",
}
ISO_START = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9].*)?")


@dataclass(frozen=True)
class Date:
    """A date, clipped to a public range, as some of these parts of it.

    `position`: `2 (v - first) / (last - first) - 1`. `year`: one column for each year of the range. `month` and `hour`:
    a point on the circle, sine and cosine. `weekday`: one column for each. `format`: `iso` (2024-05-31, also with a time;
    times of a zone are turned into UTC), or made of %Y %m %b %d %H %M %S, with English names of months. With `indicator`
    a missing date is 0 in every part, and 1 in a column of its own; without, it stops.
    """

    first: str
    last: str
    format: str = ISO
    parts: tuple[str, ...] = ("position",)
    indicator: bool = False
    invalid: str | None = None

    def __post_init__(self) -> None:
        """A range with room in it, and parts that there are."""
        for name in ("first", "last"):
            value = getattr(self, name)
            object.__setattr__(self, name, value.isoformat() if isinstance(value, date) else value)  # TOML has dates
        reader(self.format)
        first, last = (_limit(name, getattr(self, name)) for name in ("first", "last"))
        if not first < last:
            raise ConfigError(f"date with range [{self.first}, {self.last}]: the earlier one comes first.")
        if isinstance(self.parts, str) or not isinstance(self.parts, Sequence):
            raise ConfigError(f"parts={short(self.parts)}: must be a list of {', '.join(PARTS)}.")
        object.__setattr__(self, "parts", tuple(self.parts))
        if not self.parts or any(part not in PARTS for part in self.parts) or len(set(self.parts)) < len(self.parts):
            raise ConfigError(f"parts={short(self.parts)}: name some of {', '.join(PARTS)}, each once.")
        if "year" in self.parts and last.year - first.year >= MOST_YEARS:
            raise ConfigError(
                f"year of a date in [{self.first}, {self.last}]: at most {MOST_YEARS} years. Use position."
            )
        check_type("indicator", self.indicator, bool)
        check_invalid(self.invalid, self.indicator, "indicator = true")

    def labels(self, name: str) -> tuple[str, ...]:
        """Names of the encoded columns."""
        first, last = _limit("first", self.first), _limit("last", self.last)
        of_parts = {
            "position": (name,),
            "year": tuple(f"{name} year={year}" for year in range(first.year, last.year + 1)),
            "month": (f"{name} month sin", f"{name} month cos"),
            "weekday": tuple(f"{name} weekday={day}" for day in WEEKDAYS),
            "hour": (f"{name} hour sin", f"{name} hour cos"),
        }
        missing = (f"{name} missing",) if self.indicator else ()
        return (*(label for part in self.parts for label in of_parts[part]), *missing)

    def words(self) -> str:
        """For people."""
        gaps = ", may be missing" if self.indicator else ""
        written = "" if self.format == ISO else f", written {self.format}"
        return f"date in [{self.first}, {self.last}]{written}: {', '.join(self.parts)}{gaps}"

    def read(self, texts: Sequence[str]) -> list[datetime | None]:
        """Dates; None where the text is none."""
        known = {text: reader(self.format)(text) for text in set(texts)}
        return [known[text] for text in texts]

    def outside(self, values: Sequence[datetime | None]) -> np.ndarray:
        """Which dates lie before the first day or after the last one."""
        first, last = _limit("first", self.first), _limit("last", self.last)
        end = last + timedelta(days=1) if len(self.last) == 10 else last + timedelta(microseconds=1)
        return np.array([value is not None and not first <= value < end for value in values], bool)

    def encoded(self, values: Sequence[datetime | None]) -> np.ndarray:
        """The parts of each date; a missing one is 0 but for the indicator."""
        first, last = _limit("first", self.first), _limit("last", self.last)
        x = np.zeros((len(values), len(self.labels(""))), np.float32)
        for row, value in enumerate(values):
            if value is None:
                x[row, -1] = 1
                continue
            inside = min(max(value, first), last)
            at = 0
            for part in self.parts:
                match part:
                    case "position":
                        x[row, at] = 2 * ((inside - first) / (last - first)) - 1
                        at += 1
                    case "year":
                        x[row, at + inside.year - first.year] = 1
                        at += last.year - first.year + 1
                    case "month":
                        x[row, at : at + 2] = _circle((value.month - 1) / 12)
                        at += 2
                    case "weekday":
                        x[row, at + value.weekday()] = 1
                        at += 7
                    case "hour":
                        x[row, at : at + 2] = _circle((value.hour + value.minute / 60) / 24)
                        at += 2
        return x


def _circle(share: float) -> tuple[float, float]:
    return float(np.sin(2 * np.pi * share)), float(np.cos(2 * np.pi * share))


def _limit(name: str, text: Any) -> datetime:
    found = _read_iso(text) if isinstance(text, str) else None
    if found is None:
        raise ConfigError(f"{name}={short(text)}: must be a date like 2024-05-31.")
    return found


@cache
def reader(format: Any) -> Callable[[str], datetime | None]:
    """How a text of this format becomes a date, or None if it is none: by digits alone, the same in every country."""
    if format == ISO:
        return _read_iso
    if type(format) is not str:
        raise ConfigError(f"format={format!r}: must be {ISO!r}, or e.g. '%d.%m.%Y'.")
    pieces = re.split("(%.)", format)
    fields = [piece for piece in pieces if piece.startswith("%")]
    months = [piece for piece in fields if piece in ("%m", "%b")]
    if (
        any(piece not in FIELDS for piece in fields)
        or len(set(fields)) < len(fields)
        or len(months) != 1
        or not {"%Y", "%d"} <= set(fields)
    ):
        raise ConfigError(
            f"format={format!r}: must be {ISO!r}, or have %Y, %m (or %b) and %d once each, and may have %H, %M and %S."
        )
    pattern = re.compile("".join(FIELDS[piece] if piece in FIELDS else re.escape(piece) for piece in pieces))

    def read(text: str) -> datetime | None:
        match = pattern.fullmatch(text)
        if match is None:
            return None
        numbers = match.groupdict()
        name = numbers.pop("name", None)
        if name is not None:
            if name.lower() not in MONTHS:
                return None
            numbers["month"] = str(MONTHS.index(name.lower()) + 1)
        try:
            return datetime(**{key: int(value) for key, value in numbers.items()})  # type: ignore[arg-type]
        except ValueError:  # e.g. the 31st of June
            return None

    return read


def _read_iso(text: str) -> datetime | None:
    if not ISO_START.fullmatch(text):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    try:
        return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
    except OverflowError:  # the year 1 or 9999, beyond the end in UTC
        return None
