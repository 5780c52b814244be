"""Steady computing: no question is asked of the data, so that a step is one fixed sequence of operations.

A captured step (a CUDA graph) cannot wait for an answer. Where the ordinary way looks at a number to choose, the steady way
takes what is right for every number: norms are the most that rounding lets them be, rows that do not count are set to zero
whether there are any or not, and what a rule promises is enforced instead of being checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_STEADY: ContextVar[int | None] = ContextVar("steady", default=None)


class NotSteady(Exception):
    """This computation cannot be a fixed sequence of operations; the reason is in words."""


@contextmanager
def steady(most: int) -> Iterator[None]:
    """Within it, nothing is asked of the data. `most`: the largest number of units that any pass of the run has."""
    token = _STEADY.set(most)
    try:
        yield
    finally:
        _STEADY.reset(token)


def is_steady() -> bool:
    """Must the computation be a fixed sequence of operations?"""
    return _STEADY.get() is not None


def most_units() -> int:
    """The largest number of units of a pass, known before anybody is drawn: how norms are taken may follow from it."""
    most = _STEADY.get()
    assert most is not None
    return most
