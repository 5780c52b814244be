"""A value that changes at known steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from noisewise.errors import ConfigError

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True)
class Schedule(Generic[T]):
    """Piecewise constant over steps: `pieces = ((first_step, value), ...)`, known before training.

    `Schedule(((0, Flat(1.0)), (950, Global(1.0, 210.0))))` clips locally for 950 steps, then globally.
    """

    pieces: tuple[tuple[int, T], ...]

    def __post_init__(self) -> None:
        """Starts at 0 and moves forward."""
        if not isinstance(self.pieces, tuple) or not all(
            isinstance(one, tuple) and len(one) == 2 for one in self.pieces
        ):
            raise ConfigError(
                f"Schedule({self.pieces!r}): must be pairs of a first step and a value, e.g. Schedule(((0, 1.0), (100, 0.5)))."
            )
        firsts = [first for first, _ in self.pieces]
        whole = all(type(first) is int for first in firsts)
        if not whole or firsts[:1] != [0] or sorted(set(firsts)) != firsts:
            raise ConfigError(f"schedule starts {firsts}: whole steps, the first 0 and each later one larger.")

    @classmethod
    def of(cls, function: Callable[[int], T], steps: int) -> Schedule[T]:
        """Tabulate a function of the step: what it says now is what will be done."""
        values = [function(step) for step in range(steps)]
        return cls(tuple((i, v) for i, v in enumerate(values) if i == 0 or v != values[i - 1]))

    def at(self, step: int) -> T:
        """The value in force at a step."""
        return next(value for first, value in reversed(self.pieces) if first <= step)

    def runs(self, steps: int) -> Iterator[tuple[int, int, T]]:
        """(first step, count, value) of each piece that a plan of `steps` steps reaches."""
        ends = [first for first, _ in self.pieces[1:]] + [steps]
        for (first, value), end in zip(self.pieces, ends, strict=True):
            if first < steps:
                yield first, min(end, steps) - first, value

    def map(self, function: Callable[[T], S]) -> Schedule[S]:
        """The same steps with other values."""
        return Schedule(tuple((first, function(value)) for first, value in self.pieces))


def at(value: T | Schedule[Any], step: int) -> T:
    """A value, or a schedule's value at this step."""
    return value.at(step) if isinstance(value, Schedule) else value


def values(value: T | Schedule[Any]) -> tuple[T, ...]:
    """All values that a value or schedule can take."""
    return tuple(v for _, v in value.pieces) if isinstance(value, Schedule) else (value,)
