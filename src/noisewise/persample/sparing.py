"""Sparing memory: nothing is kept between a norm and its sum that can be computed once more.

Norms are the same numbers either way, and what is computed again is held to them (`formed.Again`) wherever its rounding
could matter: the mode changes what a step costs, never what it promises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SPARING: ContextVar[bool] = ContextVar("sparing", default=False)
KEPT = 1 << 18  # floats of formed gradients that a parameter may keep even so: biases and norms


@contextmanager
def sparing(wanted: bool) -> Iterator[None]:
    """Within it, if wanted, memory is spared."""
    token = _SPARING.set(wanted)
    try:
        yield
    finally:
        _SPARING.reset(token)


def is_sparing() -> bool:
    """Is memory to be spared?"""
    return _SPARING.get()
