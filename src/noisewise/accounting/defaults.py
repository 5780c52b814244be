"""Defaults for people, where the arithmetic needs no torch."""

from __future__ import annotations

from noisewise.errors import ConfigError
from noisewise.sampling import SAMPLERS


def default_delta(n: int) -> float:
    """The largest power of ten at most 1/(10 n).

    >>> default_delta(60_000), default_delta(1_000)
    (1e-06, 0.0001)
    """
    if not isinstance(n, int) or n <= 0:
        raise ConfigError(f"n={n!r}: must be a whole number above 0.")
    return float(f"1e-{len(str(10 * n - 1))}")


def default_adjacency(sampler: str) -> str:
    """The sampler's usual one: add-remove, zero-out for shuffled batches, whose guarantee is proven for those only."""
    return SAMPLERS[sampler].adjacencies[0] if sampler in SAMPLERS else "add-remove"


def large_delta(delta: float, n: int) -> str | None:
    """What is wrong with a delta of 1/n or more; None if nothing is.

    >>> large_delta(1e-4, 1_000) is None
    True
    """
    if delta < 1 / n:
        return None
    return (
        f"delta {delta:g} is not below 1/n = {1 / n:.3g}: a mechanism that publishes each record in full with "
        f"probability {delta:g} would pass. {default_delta(n):g} is customary."
    )
