"""Kinds of columns: what a column may hold, and how its values become numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from noisewise.data.tables.checks import (
    check_buckets,
    check_invalid,
    check_range,
    check_type,
    checked_texts,
    is_number,
)
from noisewise.data.tables.dates import Date
from noisewise.data.tables.rows import listed, short
from noisewise.data.tables.words import Words
from noisewise.data.tables.words import bucket as bucket
from noisewise.errors import ConfigError

OTHER = "other"


@dataclass(frozen=True)
class Number:
    """A number, clipped to a public range and scaled to [-1, 1].

    `2 (v - low) / (high - low) - 1`, with `log` on the scale `sign(v) log(1 + |v|)`, which needs no narrow range. `fill`
    stands for a missing number (None: a missing number stops); `indicator` adds a column that is 1 where it was missing.
    `invalid="missing"`: what is no number, e.g. `12 %`, counts as missing (None: it stops).
    """

    low: float
    high: float
    log: bool = False
    fill: float | None = None
    indicator: bool = False
    invalid: str | None = None

    def __post_init__(self) -> None:
        """A range with room in it; a fill value inside."""
        check_range("number", self.low, self.high)
        check_type("log", self.log, bool)
        check_type("indicator", self.indicator, bool)
        low, high = self._bent(np.array([self.low, self.high], np.float64))
        if not low < high:
            raise ConfigError(
                f"number with range [{self.low!r}, {self.high!r}]: too narrow for floating point. Widen it."
            )
        if self.fill is not None and not (is_number(self.fill) and self.low <= self.fill <= self.high):
            raise ConfigError(f"fill={self.fill!r}: must lie in the column's range [{self.low:g}, {self.high:g}].")
        if self.indicator and self.fill is None:
            raise ConfigError("indicator without fill: say which number stands for a missing one, e.g. fill=0.")
        check_invalid(self.invalid, self.fill is not None, "fill")

    def labels(self, name: str) -> tuple[str, ...]:
        """Names of the encoded columns."""
        return (name, f"{name} missing") if self.indicator else (name,)

    def words(self) -> str:
        """For people."""
        scale = ", logarithmic" if self.log else ""
        bad = " or unreadable" if self.invalid is not None else ""
        gaps = f", {self.fill:g} where missing{bad}" if self.fill is not None else ""
        return f"number in [{self.low:g}, {self.high:g}]{scale}{gaps}"

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Numbers to [-1, 1]."""
        low, high = self._bent(np.array([self.low, self.high]))
        share = (self._bent(np.clip(values, self.low, self.high)) - low) / (high - low)
        return np.clip(2 * share - 1, -1, 1)

    def _bent(self, values: np.ndarray) -> np.ndarray:
        """On the column's scale, halved: the length of a range may exceed the largest float."""
        return (np.sign(values) * np.log1p(np.abs(values)) if self.log else values) / 2


@dataclass(frozen=True)
class Category:
    """One of the listed texts, one-hot; with `other` one more place for everything that is not listed, else that stops."""

    values: tuple[str, ...]
    other: bool = True

    def __post_init__(self) -> None:
        """Different texts, at least one."""
        object.__setattr__(self, "values", checked_texts("category", self.values, 1))
        check_type("other", self.other, bool)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the codes 0, 1, ..., all different: audits tell groups apart by them."""
        rest = OTHER
        while rest in self.values:
            rest = f"any {rest}"
        return (*self.values, rest) if self.other else self.values

    def labels(self, name: str) -> tuple[str, ...]:
        """Names of the encoded columns."""
        return tuple(f"{name}={value}" for value in self.names)

    def words(self) -> str:
        """For people."""
        return f"one of {listed(self.values)}{', or other' if self.other else ''}"


@dataclass(frozen=True)
class Hashed:
    """Texts that nobody listed, one-hot by a public hash; with `kept` only those buckets, and one place for all others.

    `bucket = blake2b(text) mod buckets`. Two texts may share a bucket.
    """

    buckets: int
    kept: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """A sensible number of buckets."""
        check_buckets(self.buckets)
        if self.kept is None:
            return
        if not isinstance(self.kept, Iterable):
            raise ConfigError(f"kept={short(self.kept)}: must be a list of buckets.")
        object.__setattr__(self, "kept", tuple(self.kept))
        if any(type(bucket) is not int or not 0 <= bucket < self.buckets for bucket in self.kept):
            raise ConfigError(f"kept={short(self.kept)}: must be buckets from 0 to {self.buckets - 1}.")
        if len(set(self.kept)) < len(self.kept) or not self.kept:
            raise ConfigError(f"kept={short(self.kept)}: name at least one bucket, and each only once.")

    def labels(self, name: str) -> tuple[str, ...]:
        """Names of the encoded columns."""
        if self.kept is None:
            return tuple(f"{name}#{bucket}" for bucket in range(self.buckets))
        return (*(f"{name}#{bucket}" for bucket in self.kept), f"{name}={OTHER}")

    def words(self) -> str:
        """For people."""
        kept = "" if self.kept is None else f", kept: {len(self.kept)} common ones"
        return f"text, hashed into {self.buckets} buckets{kept}"


YES, NO = ("true", "yes", "y", "t", "1"), ("false", "no", "n", "f", "0")


@dataclass(frozen=True)
class Boolean:
    """Yes or no, as 1 or -1: `true yes y t 1` and `false no n f 0`, in small or capital letters.

    With `indicator` a missing value is 0, and 1 in a column of its own; without, it stops.
    """

    indicator: bool = False
    invalid: str | None = None

    def __post_init__(self) -> None:
        """A way for values that cannot be read."""
        check_type("indicator", self.indicator, bool)
        check_invalid(self.invalid, self.indicator, "indicator = true")

    def labels(self, name: str) -> tuple[str, ...]:
        """Names of the encoded columns."""
        return (name, f"{name} missing") if self.indicator else (name,)

    def words(self) -> str:
        """For people."""
        return f"yes or no{', may be missing' if self.indicator else ''}"

    def read(self, texts: Sequence[str]) -> np.ndarray:
        """1 for yes, -1 for no; NaN where the text is neither."""
        signs = {**dict.fromkeys(YES, 1.0), **dict.fromkeys(NO, -1.0)}
        return np.array([signs.get(text.lower(), math.nan) for text in texts], np.float64)


@dataclass(frozen=True)
class Ignore:
    """A column that is not looked at."""

    def labels(self, name: str) -> tuple[str, ...]:
        """No encoded columns."""
        return ()

    def words(self) -> str:
        """For people."""
        return "not used"


@dataclass(frozen=True)
class Classes:
    """A label that is one of the listed texts: class 0, 1, ... in this order; any other text stops."""

    values: tuple[str, ...]

    def __post_init__(self) -> None:
        """At least two different texts."""
        object.__setattr__(self, "values", checked_texts("classes", self.values, 2))

    def words(self) -> str:
        """For people."""
        return f"classes {listed(self.values)}"


@dataclass(frozen=True)
class Target:
    """A real-valued label: `y = (clip(v, low, high) - offset) / scale`. One row's loss is bounded by the range.

    `scale` alone is the unit in which the label is spoken of, e.g. 1000 dollars. With an `offset` both are for training
    only: audits speak of the label as it stands in the table.
    """

    low: float
    high: float
    scale: float = 1.0
    offset: float | None = None

    def __post_init__(self) -> None:
        """A range with room in it."""
        check_range("target", self.low, self.high)
        if not is_number(self.scale) or self.scale <= 0:
            raise ConfigError(f"scale={self.scale!r}: must be a number above 0.")
        if self.offset is not None and not is_number(self.offset):
            raise ConfigError(f"offset={self.offset!r}: must be a number.")

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Labels of the table as the model learns them."""
        return (np.clip(values, self.low, self.high) - (self.offset or 0.0)) / self.scale

    def unscaled(self, y: Any) -> Any:
        """What the model says, in the units of the table: a number, an array or a tensor."""
        return y * self.scale + (self.offset or 0.0)

    @property
    def spoken(self) -> float:
        """By how much audits multiply differences of `y`."""
        return 1.0 if self.offset is None else self.scale

    def words(self) -> str:
        """For people."""
        return f"number in [{self.low:g}, {self.high:g}]"


Feature = Number | Category | Hashed | Words | Date | Boolean | Ignore
Kind = Feature | Classes | Target
KINDS: dict[str, type] = {
    "number": Number,
    "category": Category,
    "hashed": Hashed,
    "words": Words,
    "date": Date,
    "boolean": Boolean,
    "ignore": Ignore,
    "classes": Classes,
    "target": Target,
}


def filled(
    low: float, high: float, *, log: bool = False, indicator: bool = False, invalid: str | None = None
) -> Number:
    """A number whose missing values stand in the middle of the column's scale: 999, not 500,000, on a log scale to 1e6."""
    check_range("number", low, high)
    middle = low / 2 + high / 2
    if log:
        bent = (math.copysign(math.log1p(abs(low)), low) + math.copysign(math.log1p(abs(high)), high)) / 2
        middle = float(f"{math.copysign(math.expm1(abs(bent)), bent):.4g}")
    return Number(low, high, log=log, fill=min(max(middle, low), high), indicator=indicator, invalid=invalid)


def centred(low: float, high: float) -> Target:
    """A real-valued label that is learnt on [-1, 1]."""
    check_range("target", low, high)
    return Target(low, high, scale=high / 2 - low / 2, offset=low / 2 + high / 2)


WIDE = Number(-1e6, 1e6, log=True, fill=0.0)
"""Public default for a number of unknown range: on the logarithmic scale 1, 100 and 10,000 stay apart in [-1e6, 1e6]."""
BUCKETS = 64
"""Public default for texts nobody listed: few enough to learn from, enough to keep a dozen common texts apart."""
WORD_BUCKETS = 256
"""Public default for free text: words that tell classes apart are few, and each further column is more noise."""
