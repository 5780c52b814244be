"""A number, how sure it is, and how that was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from noisewise.errors import ConfigError

LEVEL = 0.95


def check_level(level: float) -> None:
    """Refuse what is no confidence: percentages above all.

    >>> check_level(0.95)
    """
    number = isinstance(level, Real) and not isinstance(level, bool)
    if not number or not 0 < level < 1:
        meant = f"; {level / 100:g} is {level:g} %" if number and 1 < level < 100 else ""
        raise ConfigError(f"level={level!r}: the confidence of intervals is a number between 0 and 1{meant}.")


@dataclass(frozen=True)
class Estimate:
    """A value, its interval `[low, high]` of confidence `level`, the number of people behind it, and the method."""

    value: float
    low: float
    high: float
    n: int
    level: float
    method: str

    @property
    def excludes_zero(self) -> bool:
        """Can the value be told from 0 at this level?"""
        return self.low > 0 or self.high < 0

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Estimate:
        """Read the JSON form; infinite ends are the strings 'inf' and '-inf' there."""
        numbers = {key: float(raw[key]) for key in ("value", "low", "high", "level")}
        return cls(**numbers, n=int(raw["n"]), method=str(raw["method"]))
