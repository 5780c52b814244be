"""What the rows of a table look like, column by column: the ground of a proposal, and as private as the rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from noisewise.data.tables.dates import FORMATS, reader
from noisewise.data.tables.kinds import NO, YES
from noisewise.data.tables.rows import DECIMAL, Rows, parsed
from noisewise.data.tables.words import words_of

READABLE = 0.9  # share of values that must be numbers, or dates, for a column of them
KNOWN_TEXTS = 100_000  # different texts that are told apart
TOLD_APART = 100  # rows from which on all different values make an identifier
TRIED = 50  # values of a part among which a format of dates must fit one
LONG_TEXT = 3  # words, on average, of free text
DRESSED = re.compile(  # 12 %, 1,200 €, 70kg
    r"[€$£]?\s?[+-]?[0-9]+(?:[.,'][0-9]{3})*(?:[.,][0-9]+)?\s?(?:[%€$£]|°?[A-Za-z]{1,3}(?:/[A-Za-z]{1,3})?)?"
)
IDENTIFIER = re.compile(r"(?i:(?:^|[\W_])(?:id|ids|uuid|guid|identifier|rowid|index)$)|[a-z](?:Id|ID)$")


@dataclass
class Column:
    """What was seen of a column. `given` values are not missing; `texts` are the first different ones, missing included."""

    name: str
    missing_texts: frozenset[str]
    rows: int = 0
    given: int = 0
    texts: set[str] = field(default_factory=set)
    numbers: int = 0
    low: float = math.inf
    high: float = -math.inf
    whole: bool = True
    steps: bool = True  # each number is the one before plus 1
    words: int = 0
    unreadable: str | None = None
    dates: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FORMATS, 0))
    spans: dict[str, tuple[datetime, datetime]] = field(default_factory=dict)
    has_times: bool = False
    _last: float = math.nan
    _counted: int = 0  # given values while all different texts were told apart

    def add(self, texts: Sequence[str]) -> None:
        """Look at further rows."""
        self.rows += len(texts)
        given = [text for text in texts if text not in self.missing_texts]
        self.given += len(given)
        if len(self.texts) <= KNOWN_TEXTS:
            self.texts.update(texts)
            self._counted = self.given
        values = parsed(given)
        readable = values[~np.isnan(values)]
        self.numbers += len(readable)
        if len(readable):
            self.low, self.high = min(self.low, float(readable.min())), max(self.high, float(readable.max()))
            self.whole = self.whole and bool((readable == np.floor(readable)).all())
            self.steps = self.steps and bool((np.diff(readable, prepend=self._before(readable)) == 1).all())
            self._last = float(readable[-1])
        if self.unreadable is None and len(readable) < len(given):
            self.unreadable = given[int(np.isnan(values).argmax())]
        different = set(given)
        self.words += sum(len(words_of(text)) for text in given) if len(readable) < READABLE * len(given) else 0
        self._add_dates(given, different)

    def _before(self, values: np.ndarray) -> float:
        return float(values[0]) - 1 if math.isnan(self._last) else self._last

    def _add_dates(self, given: Sequence[str], different: set[str]) -> None:
        """Formats that fit no longer are given up."""
        if not given:
            return
        for format in tuple(self.dates):
            if not any(map(reader(format), given[:TRIED])):
                del self.dates[format]
                continue
            known = {text: reader(format)(text) for text in different}
            self.dates[format] += sum(known[text] is not None for text in given)
            dates = [value for value in known.values() if value is not None]
            if self.dates[format] < READABLE * self.given:
                del self.dates[format]
                continue
            first, last = self.spans.get(format, (dates[0], dates[0]))
            self.spans[format] = min(first, *dates), max(last, *dates)
            self.has_times = self.has_times or any((value.hour, value.minute) != (0, 0) for value in dates)

    @property
    def is_numeric(self) -> bool:
        """Are nearly all values decimal numbers?"""
        return bool(self.numbers) and self.numbers >= READABLE * self.given

    @property
    def is_boolean(self) -> bool:
        """Are all values yes or no, in words, and do both occur?"""
        texts = {text.lower() for text in self.different}
        return bool(texts & set(YES[:-1]) and texts & set(NO[:-1])) and texts <= {*YES[:-1], *NO[:-1]}

    @property
    def different(self) -> set[str]:
        """Different texts that are not missing."""
        return self.texts - self.missing_texts

    @property
    def date_formats(self) -> tuple[str, ...]:
        """Formats in which nearly all values are dates; numbers of eight digits are dates from 1900 to 2100 only."""
        fits = [format for format in self.dates if self.spans.get(format)]
        if self.is_numeric:
            fits = [
                format
                for format in fits
                if format == "%Y%m%d" and all(1900 <= value.year <= 2100 for value in self.spans[format])
            ]
        return tuple(fits) if self.given else ()

    @property
    def is_identifier(self) -> bool:
        """By its name and many different values, by numbers in a row, or by a short text that hardly ever occurs twice."""
        different = len(self.different)
        if (self.is_numeric and not self.whole) or self.date_formats or self.is_dressed:
            return False
        if IDENTIFIER.search(self.name) and different >= max(10, self._counted / 50):
            return True
        if self.given < TOLD_APART:
            return False
        if self.is_numeric:
            return self.steps and self.numbers == self.given
        return different >= 0.95 * self._counted and not self.is_free_text

    @property
    def repeats(self) -> bool:
        """Do values of an identifier occur in several rows?"""
        return len(self.different) < 0.95 * self._counted

    @property
    def is_free_text(self) -> bool:
        """Several words in most values, and no list of a few texts?"""
        return not self.is_numeric and self.given > 0 and self.words > LONG_TEXT * self.given

    @property
    def is_dressed(self) -> bool:
        """Are nearly all values numbers with something in or around them, as 12 % or 1,200 €?"""
        dressed = sum(bool(DRESSED.fullmatch(text)) for text in self.different)
        return bool(self.different) and not self.is_numeric and dressed >= READABLE * len(self.different)

    @property
    def has_commas(self) -> bool:
        """Are these numbers with a comma in them, as 1,75 or 1,000?"""
        return (
            bool(self.different)
            and not self.is_numeric
            and all(DECIMAL.fullmatch(text.replace(",", "", 1)) for text in self.different)
        )


def survey(parts: Iterable[Rows], names: Sequence[str], missing: Iterable[str]) -> dict[str, Column]:
    """Each column as it looks in all rows.

    Guarantee: none; the result is as private as the rows.
    """
    columns = {name: Column(name, frozenset(missing)) for name in names}
    for part in parts:
        for name, column in columns.items():
            column.add(part.columns[name])
    return columns
