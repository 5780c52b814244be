"""Statistics of private features released with noise: means and deviations of channels, to normalise them by.

For a unit with features `x [channels, ...]`: `m = mean over places`, `s = mean over places of x^2`, each shortened to a bound
that is known beforehand. Released are `sum m + sigma C_m N(0, I)` and `sum s + sigma C_s N(0, I)`, from which
`mean = sum m / n` and `std^2 = max(sum s / n - mean^2, sigma C_s / n)` follow: a variance below its own noise is none.

Guarantee: one Gaussian release with multiplier sigma / sqrt(2), in the ledger; a unit's features that are not finite count as
zeros. Reference: Tramer, Boneh 2021, arXiv:2011.11660 (CIFAR-10 with sigma 8). Deviation: they take medians of the private
norms for bounds, which no noise covers; ours come from public data or from knowledge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from noisewise.accounting import Ledger
from noisewise.accounting.events import check_multiplier
from noisewise.bounded import Bounded, release
from noisewise.data.base import Data
from noisewise.data.marks import mark_of
from noisewise.errors import ConfigError, DataError, PrivacyError
from noisewise.mechanism import Mechanism
from noisewise.randomness import Entropy
from noisewise.sampling import FullBatch

MEANS, SQUARES = "feature means", "feature squares"
ROWS = 4096  # at a time


class Bounds(NamedTuple):
    """How long a unit's vector of channel means, and that of mean squares, may be."""

    means: float
    squares: float


@dataclass(frozen=True)
class Statistics:
    """What was released: mean and deviation of each channel, and the ledger that training on the same data goes on with.

    For a model and its recipe, both: `build("h-cnn", shape, 10, 0, statistics=(s.mean, s.std))` and
    `Recipe(..., ledger=s.ledger)`; for a linear probe: `linear_probe(..., statistics=s)`. Normalise in the model, not in the
    data: the ledger belongs to the data as they are.
    """

    mean: Tensor
    std: Tensor
    ledger: Ledger


def noised_statistics(
    data: Data,
    bounds: tuple[float, float],
    *,
    noise_multiplier: float = 8.0,
    adjacency: str = "add-remove",
    secure: bool = False,
    insecure_seed: int | None = None,
) -> Statistics:
    """Mean and deviation of each channel of `data.x [n, channels, ...]`, with noise and in a ledger of their own.

    `bounds`: of the two vectors of a unit, `bounds_of(public features)` or what is known otherwise. All rows of a person are
    averaged first. `secure`: noise from a cryptographic generator, on a grid. `insecure_seed` makes the noise reproducible and
    the ledger not private; for tests.
    """
    limits = _checked(bounds)
    check_multiplier(noise_multiplier, "noise_multiplier")
    if not noise_multiplier > 0:
        raise ConfigError(f"noise_multiplier={noise_multiplier!r}: must be above 0, or no noise would protect anybody.")
    unit = "row" if data.unit is None else "person"
    plan = Mechanism(
        sampler=FullBatch(data.units), steps=1, noise_multiplier=noise_multiplier, adjacency=adjacency, unit=unit
    )
    means, squares = moments(data)
    entropy = Entropy.fresh(secure=secure) if insecure_seed is None else Entropy.insecure(insecure_seed, secure=secure)
    ledger = Ledger(adjacency, unit=unit)
    ledger.claim_data(mark_of(data), entropy.key(b"identity"))
    answers = release(
        {
            MEANS: (Bounded({"sum": _bounded_sum(means, limits.means)}, limits.means), noise_multiplier),
            SQUARES: (Bounded({"sum": _bounded_sum(squares, limits.squares)}, limits.squares), noise_multiplier),
        },
        sampler=plan.sampler, ledger=ledger, entropy=entropy, step=0,
    )  # fmt: skip
    mean, square = answers[MEANS]["sum"] / data.units, answers[SQUARES]["sum"] / data.units
    floor = noise_multiplier * limits.squares / data.units
    return Statistics(mean.float(), (square - mean.square()).clamp(min=floor).sqrt().float(), ledger)


def bounds_of(public: Data) -> Bounds:
    """Medians of both lengths over the units of public features that resemble the private ones."""
    if not public.public:
        raise PrivacyError(
            "bounds from data that are not declared public would be a release without noise. Use public features that resemble "
            "yours, Data(..., public=True), or give two numbers."
        )
    means, squares = (values.norm(dim=1).median().item() for values in moments(public))
    return _checked((means, squares))


def moments(data: Data) -> tuple[Tensor, Tensor]:
    """Each unit's channel means and mean squares `[units, channels]`, in float64: as private as the data."""
    if data.x.dim() < 2 or not data.x.is_floating_point() or not len(data):
        raise DataError(
            f"statistics of {data.x.dtype} inputs {list(data.x.shape)}: needs real features [n, channels, ...] of some rows."
        )
    parts = [part.double().flatten(2) if part.dim() > 2 else part.double().unsqueeze(2) for part in data.x.split(ROWS)]
    means, squares = (torch.cat([f(part).mean(2) for part in parts]).cpu() for f in (torch.clone, torch.square))
    if data.unit is None:
        return means, squares
    owner, rows = torch.unique(data.unit.cpu(), return_inverse=True, return_counts=True)[1:]
    zeros = torch.zeros(len(rows), means.shape[1], dtype=torch.float64)
    first, second = (zeros.index_add(0, owner, values) / rows.unsqueeze(1) for values in (means, squares))
    return first, second


def _bounded_sum(values: Tensor, bound: float) -> Tensor:
    lengths = values.norm(dim=1, keepdim=True)
    kept = torch.where(lengths.isfinite(), values * (bound / lengths.clamp(min=bound)), 0.0)
    return kept.sum(0)


def _checked(bounds: tuple[float, float]) -> Bounds:
    try:
        first, second = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        raise ConfigError(f"bounds={bounds!r}: must be two numbers, of means and of mean squares.") from None
    if not all(math.isfinite(bound) and bound > 0 for bound in (first, second)):
        raise ConfigError(f"bounds={bounds!r}: both must be finite and above 0.")
    return Bounds(first, second)
