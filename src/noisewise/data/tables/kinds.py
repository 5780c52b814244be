"""Kinds of columns: what a column may hold, and how its values become numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from noisewise.data.tables.rows import LARGEST, listed, short
from noisewise.errors import ConfigError

OTHER = "other"


@dataclass(frozen=True)
class Number:
    """A number, clipped to a public range and scaled to [-1, 1].

    `2 (v - low) / (high - low) - 1`, with `log` on the scale `sign(v) log(1 + |v|)`, which needs no narrow range. `fill`
    stands for a missing number (None: a missing number stops); `indicator` adds a column that is 1 where it was missing.
    """

    low: float
    high: float
    log: bool = False
    fill: float | None = None
    indicator: bool = False

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
        if self.fill is not None and not (_is_number(self.fill) and self.low <= self.fill <= self.high):
            raise ConfigError(f"fill={self.fill!r}: must lie in the column's range [{self.low:g}, {self.high:g}].")
        if self.indicator and self.fill is None:
            raise ConfigError("indicator without fill: say which number stands for a missing one, e.g. fill=0.")

    def labels(self, name: str) -> tuple[str, ...]:
        """Names of the encoded columns."""
        return (name, f"{name} missing") if self.indicator else (name,)

    def words(self) -> str:
        """For people."""
        scale = ", logarithmic" if self.log else ""
        gaps = f", {self.fill:g} where missing" if self.fill is not None else ""
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
        if type(self.buckets) is not int or not 2 <= self.buckets <= 1 << 20:
            raise ConfigError(f"buckets={self.buckets!r}: must be a whole number from 2 to {1 << 20}.")
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
        kept = "" if self.kept is None else f", {len(self.kept)} common ones kept"
        return f"text, hashed into {self.buckets} buckets{kept}"


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
    """A real-valued label: `y = clip(v, low, high) / scale`. One row's loss is bounded by the range."""

    low: float
    high: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        """A range with room in it."""
        check_range("target", self.low, self.high)
        if not _is_number(self.scale) or self.scale <= 0:
            raise ConfigError(f"scale={self.scale!r}: must be a number above 0.")

    def words(self) -> str:
        """For people."""
        return f"number in [{self.low:g}, {self.high:g}]"


Feature = Number | Category | Hashed | Ignore
Kind = Feature | Classes | Target
KINDS: dict[str, type] = {
    "number": Number,
    "category": Category,
    "hashed": Hashed,
    "ignore": Ignore,
    "classes": Classes,
    "target": Target,
}


def check_range(what: str, low: Any, high: Any) -> None:
    """Two finite numbers, the lower one first."""
    if not _is_number(low) or not _is_number(high) or not low < high:
        raise ConfigError(f"{what} with range [{low!r}, {high!r}]: needs two finite numbers, the lower one first.")


def check_type(name: str, value: Any, kind: type) -> None:
    """Exactly this type: 1 is not true."""
    if type(value) is not kind:
        raise ConfigError(f"{name}={value!r}: must be {'true or false' if kind is bool else kind.__name__}.")


def checked_texts(what: str, values: Any, least: int) -> tuple[str, ...]:
    """At least so many different texts, without spaces around them."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(f"{what}: {short(values)} must be a list of texts.")
    values = tuple(values)
    for value in values:
        if type(value) is not str or value != value.strip() or not storable(value):
            raise ConfigError(f"{what}: {short(value)} must be a text without spaces around it.")
    if len(set(values)) < len(values) or len(values) < least:
        raise ConfigError(f"{what}: {short(values)} must list at least {least} different texts, each once.")
    return values


def storable(text: str) -> bool:
    """Can the text be written to a file?"""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST


def bucket(text: str, buckets: int) -> int:
    """Public hash of a text: the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") % buckets


def filled(low: float, high: float, *, log: bool = False, indicator: bool = False) -> Number:
    """A number whose missing values stand in the middle of the range."""
    check_range("number", low, high)
    return Number(low, high, log=log, fill=low / 2 + high / 2, indicator=indicator)


WIDE = Number(-1e6, 1e6, log=True, fill=0.0)
"""Public default for a number of unknown range: on the logarithmic scale 1, 100 and 10,000 stay apart in [-1e6, 1e6]."""
BUCKETS = 64
"""Public default for texts nobody listed: few enough to learn from, enough to keep a dozen common texts apart."""
