"""Samplers: which units a step sees, and the privacy event that this sampling implies. No torch here.

A sampler draws the batches and states the event, so that training and accounting cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from noisewise.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from dp_accounting import DpEvent

    from noisewise.randomness import Entropy


class Sampler(Protocol):
    """How batches are drawn from `n` units, a number the user declares public.

    kind: its name in configs and on the command line. words: how the report says it. adjacencies: the neighbours for which
    its guarantee is proven, the usual ones first.
    """

    kind: ClassVar[str]
    words: ClassVar[str]
    adjacencies: ClassVar[tuple[str, ...]]

    @property
    def n(self) -> int:
        """Public number of units."""
        ...

    @property
    def batch_size(self) -> int:
        """Expected (public) batch size: the divisor of the summed gradient."""
        ...

    @property
    def rate(self) -> float:
        """Share of the units that a step sees in expectation."""
        ...

    @property
    def steps_per_event(self) -> int:
        """Consecutive steps that one event covers together."""
        ...

    def event(self, inner: DpEvent) -> DpEvent:
        """The event of releasing `inner` on a sampled batch."""
        ...

    def batches(self, entropy: Entropy, first: int, last: int) -> Iterator[np.ndarray]:
        """Indices of the units of steps first .. last - 1."""
        ...


def _check(n: int, batch_size: int) -> None:
    for name, value in (("n", n), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ConfigError(f"{name}={value!r}: must be a whole number above 0, e.g. {name}=256; int(...) makes one.")
    if batch_size > n:
        raise ConfigError(
            f"batch_size={batch_size} with n={n}: the sampling rate {batch_size / n:.3g} is outside (0, 1]. "
            f"Choose a batch size of at most {n}, or FullBatch(n={n})."
        )


@dataclass(frozen=True)
class Poisson:
    """Each unit joins each batch independently with probability `rate = batch_size / n`.

    Guarantee: one step is the Poisson-subsampled mechanism of dp-accounting, amplification included; a batch may be
    empty and is never cut. Reference: Abadi et al. 2016, arXiv:1607.00133.
    With `max_batch`, a larger batch is cut to a random subset of that size and accounted as truncated Poisson sampling,
    which costs something: little from `roomy(batch_size)` on. Reference: arXiv:2508.15089.
    """

    n: int
    batch_size: int
    max_batch: int | None = None
    kind: ClassVar[str] = "poisson"
    words: ClassVar[str] = "Poisson-sampled"
    adjacencies: ClassVar[tuple[str, ...]] = ("add-remove", "zero-out", "replace-one")
    steps_per_event: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Rate in (0, 1], room for the expected batch."""
        _check(self.n, self.batch_size)
        if self.max_batch is not None and (type(self.max_batch) is not int or self.max_batch < self.batch_size):
            raise ConfigError(
                f"max_batch={self.max_batch!r} with batch_size={self.batch_size}: must be a whole number of at least the "
                f"expected batch; {roomy(self.batch_size)} costs next to nothing."
            )

    @property
    def rate(self) -> float:
        """Probability that a unit joins a batch."""
        return self.batch_size / self.n

    def event(self, inner: DpEvent) -> DpEvent:
        """Poisson-sampled inner event; truncated where batches are cut."""
        import dp_accounting

        if self.max_batch is None or self.max_batch >= self.n:
            return dp_accounting.PoissonSampledDpEvent(self.rate, inner)
        if not isinstance(inner, dp_accounting.GaussianDpEvent):
            raise ConfigError(
                f"{inner!r} on truncated batches: only Gaussian releases are covered. Leave max_batch out."
            )
        return dp_accounting.TruncatedSubsampledGaussianDpEvent(
            self.n, self.rate, self.max_batch, inner.noise_multiplier
        )

    def batches(self, entropy: Entropy, first: int, last: int) -> Iterator[np.ndarray]:
        """Indices of each step's batch, ascending."""
        import numpy as np

        for step in range(first, last):
            drawn = np.flatnonzero(entropy.uniforms(self.n, "sampling", step) < self.rate)
            if self.max_batch is not None and drawn.size > self.max_batch:
                keep = np.argsort(entropy.uniforms(drawn.size, "sampling", step, 1))[: self.max_batch]
                drawn = np.sort(drawn[keep])
            yield drawn


@dataclass(frozen=True)
class FullBatch:
    """Every step sees every unit: no amplification, nothing to be sampled."""

    n: int
    kind: ClassVar[str] = "full-batch"
    words: ClassVar[str] = "everybody in every step"
    adjacencies: ClassVar[tuple[str, ...]] = ("add-remove", "zero-out", "replace-one")
    steps_per_event: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Needs at least one unit."""
        _check(self.n, self.n)

    @property
    def batch_size(self) -> int:
        """All units."""
        return self.n

    @property
    def rate(self) -> float:
        """One: everybody, always."""
        return 1.0

    def event(self, inner: DpEvent) -> DpEvent:
        """The inner event as it is."""
        return inner

    def batches(self, entropy: Entropy, first: int, last: int) -> Iterator[np.ndarray]:
        """All indices, every time."""
        import numpy as np

        for _ in range(first, last):
            yield np.arange(self.n)


@dataclass(frozen=True)
class Shuffle:
    """A new random order each epoch, cut into batches of `batch_size` (the last one may be smaller).

    Guarantee: each unit is in exactly one batch per epoch, so the batches of an epoch together are one Gaussian
    release, without amplification, for neighbours that differ by zeroing one unit out (adding or removing a unit
    would move all others to other batches). Never accounted as Poisson.
    """

    n: int
    batch_size: int
    kind: ClassVar[str] = "shuffle"
    words: ClassVar[str] = "shuffled each epoch, no amplification counted"
    adjacencies: ClassVar[tuple[str, ...]] = ("zero-out",)

    def __post_init__(self) -> None:
        """At least one batch per epoch."""
        _check(self.n, self.batch_size)

    @property
    def rate(self) -> float:
        """Share of the units in a batch; it earns no amplification."""
        return self.batch_size / self.n

    @property
    def steps_per_event(self) -> int:
        """Batches per epoch: one Gaussian covers them all."""
        return -(-self.n // self.batch_size)

    def event(self, inner: DpEvent) -> DpEvent:
        """The inner event, once per epoch."""
        return inner

    def batches(self, entropy: Entropy, first: int, last: int) -> Iterator[np.ndarray]:
        """Indices of each step's batch."""
        import numpy as np

        order, drawn = np.empty(0, np.int64), -1
        for step in range(first, last):
            epoch, k = divmod(step, self.steps_per_event)
            if epoch != drawn:
                order, drawn = np.argsort(entropy.uniforms(self.n, "sampling", epoch), kind="stable"), epoch
            yield np.sort(order[k * self.batch_size : (k + 1) * self.batch_size])


SAMPLERS: dict[str, Any] = {sampler.kind: sampler for sampler in (Poisson, FullBatch, Shuffle)}


def to_dict(sampler: Sampler) -> dict[str, Any]:
    """JSON form: kind, n, expected batch size, and what else is set."""
    settings = {name: value for name, value in vars(sampler).items() if value is not None}
    return {"kind": sampler.kind, "n": sampler.n, "batch_size": sampler.batch_size, **settings}


def from_dict(raw: Mapping[str, Any]) -> Sampler:
    """Inverse of `to_dict`."""
    kind = SAMPLERS[raw["kind"]]
    derived = {"kind"} if "batch_size" in {field.name for field in fields(kind)} else {"kind", "batch_size"}
    sampler: Sampler = kind(**{name: value for name, value in raw.items() if name not in derived})
    return sampler


def roomy(batch_size: int) -> int:
    """A cap that batches hardly ever reach: B + 6 sqrt(B)."""
    return batch_size + math.ceil(6 * math.sqrt(batch_size))


def steps_for(epochs: float | str | Fraction, n: int, batch_size: int) -> int:
    """`ceil(epochs * n / batch_size)` in exact arithmetic: 3 epochs of 75 batches are 225 steps, never 224.

    A float is read as the decimal it prints as: 0.1 means one tenth.
    """
    _check(n, batch_size)
    try:
        exact = Fraction(str(epochs))
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"epochs={epochs!r}: must be a number above 0, e.g. 10 or 0.5.") from None
    if exact <= 0:
        raise ConfigError(f"epochs={epochs!r}: must be above 0.")
    return math.ceil(exact * n / batch_size)
