"""What was odd in rows that became tensors: missing, unreadable, outside of the range, not in the list; by column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

ODD = ("missing", "invalid", "outside", "unseen")
WORDS = {
    "missing": "missing",
    "invalid": "unreadable and taken as missing",
    "outside": "outside the declared range and clipped to it",
    "unseen": "not in the schema's list and taken as other",
}


@dataclass(frozen=True)
class Counts:
    """How many rows were read, and how many values of each column were odd.

    missing: one of the texts that mean "nothing here". invalid: cannot be read, and `invalid = "missing"`. outside: a
    number or a date beyond the declared range. unseen: a text that no category lists. absent: columns that the table does
    not have, whose values count as missing. dropped: rows without a label, left out.

    Counts of private rows are private: show them to the user, and write them into nothing that is released.
    """

    rows: int = 0
    dropped: int = 0
    missing: Mapping[str, int] = field(default_factory=dict)
    invalid: Mapping[str, int] = field(default_factory=dict)
    outside: Mapping[str, int] = field(default_factory=dict)
    unseen: Mapping[str, int] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    def __add__(self, other: Counts) -> Counts:
        """Of two parts together."""
        odd = {name: dict(Counter(getattr(self, name)) + Counter(getattr(other, name))) for name in ODD}
        absent = tuple(dict.fromkeys((*self.absent, *other.absent)))
        return Counts(self.rows + other.rows, self.dropped + other.dropped, **odd, absent=absent)

    def sentences(self) -> list[str]:
        """For people: nothing where nothing was odd."""
        found = []
        if self.dropped:
            found.append(f"{self.dropped:,} of {self.rows + self.dropped:,} rows have no label and are left out.")
        found += [f"Column {name!r} is not in the table: it counts as missing in every row." for name in self.absent]
        for column in dict.fromkeys(column for name in ODD for column in getattr(self, name)):
            if column not in self.absent:
                odd = [
                    f"{getattr(self, name)[column]:,} {WORDS[name]}" for name in ODD if column in getattr(self, name)
                ]
                found.append(f"Column {column!r}, of {self.rows:,} values: {', '.join(odd)}.")
        return found


class Tally:
    """Counts of one part while it is encoded."""

    def __init__(self, absent: Iterable[str] = ()) -> None:
        self._odd: dict[str, dict[str, int]] = {name: {} for name in ODD}
        self._absent = tuple(absent)

    def add(self, name: str, column: str, odd: Any) -> None:
        """So many values of a column are `missing`, `invalid`, `outside` or `unseen`: where the mask is true."""
        if (count := int(odd.sum())) > 0:
            self._odd[name][column] = self._odd[name].get(column, 0) + count

    def counts(self, rows: int, dropped: int = 0) -> Counts:
        """What was found in so many rows."""
        return Counts(rows, dropped, **self._odd, absent=self._absent)
