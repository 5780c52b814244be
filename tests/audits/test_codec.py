"""Dataclasses as JSON and back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from noisewise.audits.codec import decode, encode
from noisewise.estimates.estimate import Estimate

E = Estimate(0.5, 0.4, 0.65, 30, 0.95, "Wilson")


@dataclass(frozen=True)
class Low:
    name: str = field(metadata={"key": "worst"})
    served: Estimate = field(metadata={"key": "lowest"})
    ratio: float | None


@dataclass(frozen=True)
class High(Low):
    served: Estimate = field(metadata={"key": "highest"})


@dataclass(frozen=True)
class Outer:
    count: int
    extreme: Low | High | None = field(default=None, metadata={"inline": True})
    note: str | None = field(default=None, metadata={"absent": True})
    by: dict[str, list[float]] = field(default_factory=dict)


CASES = [
    Outer(1),
    Outer(1, Low("a", E, None), "said", {"x": [1.5, math.inf]}),
    Outer(1, High("a", E, 0.5), None, {"number": [1.0]}),
]


@pytest.mark.parametrize("value", CASES)
def test_what_is_encoded_is_decoded(value) -> None:
    assert decode(encode(value), Outer) == value
    assert type(decode(encode(value), Outer).extreme) is type(value.extreme)


def test_entries_of_an_inline_dataclass_stand_among_those_around_it() -> None:
    entries = encode(Outer(1, High("a", E, None)))
    assert list(entries) == ["count", "worst", "highest", "ratio", "by"]
    assert entries["ratio"] is None
    assert list(encode(Outer(1))) == ["count", "by"]


@pytest.mark.parametrize(
    "damage",
    [
        {"worst": "a", "by": {}, "count": 1},
        {"count": 1, "by": {}, "stranger": 1},
        {"by": {}},
        {"count": True, "by": {}},
        {"count": 1, "by": {}, "worst": "a", "ratio": None, "lowest": vars(E), "highest": vars(E)},
    ],
)
def test_what_does_not_fit_is_refused(damage) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        decode(damage, Outer)
