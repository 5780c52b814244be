"""Statistics of private features released with noise: means and deviations of channels, to normalise them by.

For a unit with features `x [channels, ...]`, measured in units of public ones, `z = (x - centre) / scale` by channel:
`m = mean over places of z`, `s = mean over places of z^2`, each shortened to a bound that is known beforehand. Released are
`sum m + sigma C_m N(0, I)` and `sum s + sigma C_s N(0, I)`, from which `mean = sum m / n` and
`std^2 = max(sum s / n - mean^2, sigma C_s / n)` follow, in those units: a variance below its own noise is none. Units matter:
as they are, channels of small features have less variance than the noise that those of large ones need, and what shortens
large ones is taken for a small variance.

Guarantee: one Gaussian release with multiplier sigma / sqrt(2), in the ledger; a unit's features that are not finite count as
zeros. Reference: Tramer, Boneh 2021, arXiv:2011.11660 (CIFAR-10 with sigma 8). Deviation: they take medians of the private
norms for bounds, which no noise covers, and features as they are; ours come from public data or from knowledge.
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
ROOM = 6.0  # lengths of private features over the median of public ones, at most
LEAST_UNITS = 10  # public ones that tell how far features lie apart
LEAST = 1e-3  # of the largest scale: a channel that hardly varies in public features may vary in private ones


class Bounds(NamedTuple):
    """How long a unit's vector of channel means, and that of mean squares, may be, of features in units of public ones.

    `centre` and `scale` of each channel are those units; without them features are taken as they are. None of the four may
    come from the private data: no ledger line covers them, and nobody can see where a number is from.
    """

    means: float
    squares: float
    centre: Tensor | None = None
    scale: Tensor | None = None

    def measured(self, features: Tensor) -> Tensor:
        """Features `[rows, channels, places]` in these units."""
        if self.centre is None or self.scale is None:
            return features
        centre, scale = (values.to(features)[:, None] for values in (self.centre, self.scale))
        return (features - centre) / scale

    def restored(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Means and deviations of features as they are, of those in these units."""
        if self.centre is None or self.scale is None:
            return mean, std
        centre, scale = self.centre.to(mean), self.scale.to(mean)
        return centre + scale * mean, scale * std


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
    bounds: Bounds | tuple[float, float],
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
    _check_units(limits, data)
    check_multiplier(noise_multiplier, "noise_multiplier")
    if not noise_multiplier > 0:
        raise ConfigError(f"noise_multiplier={noise_multiplier!r}: must be above 0, or no noise would protect anybody.")
    unit = "row" if data.unit is None else "person"
    plan = Mechanism(
        sampler=FullBatch(data.units), steps=1, noise_multiplier=noise_multiplier, adjacency=adjacency, unit=unit
    )
    means, squares = moments(data, limits)
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
    mean, std = limits.restored(mean, (square - mean.square()).clamp(min=floor).sqrt())
    return Statistics(mean.float(), std.float(), ledger)


def bounds_of(public: Data, *, room: float = ROOM) -> Bounds:
    """`room` times the medians of both lengths over public features that resemble the private ones, in their units.

    Photographs differ from each other more than made-up images do: with medians alone (room 1) nearly all would be shortened,
    those with much texture most. In these units noise is `sigma C / n` beside a variance of about 1, so that room costs little
    where there are thousands of rows.
    """
    if not (isinstance(room, int | float) and 0 < room < math.inf):
        raise ConfigError(f"room={room!r}: must be a finite number above 0.")
    if not public.public:
        raise PrivacyError(
            "bounds from data that are not declared public would be a release without noise. Use public features that resemble "
            "yours, Data(..., public=True), or give two numbers."
        )
    found = moments(public)
    wrong = int((~torch.cat(found, 1).isfinite()).any(1).sum())
    if wrong or len(found[0]) < LEAST_UNITS:
        problem = (
            f"{wrong} of them are not finite" if wrong else f"there are {len(found[0])}, and {LEAST_UNITS} are needed"
        )
        raise DataError(f"bounds from {len(found[0])} public features: {problem}. Use features that resemble yours.")
    means, squares = (values.mean(0) for values in found)
    scale = (squares - means.square()).clamp(min=0).sqrt()
    if not bool(scale.max() > 0):
        raise DataError("public features that do not vary: they have no units. Use features that resemble yours.")
    units = Bounds(1.0, 1.0, means, scale.clamp(min=LEAST * scale.max()))
    first, second = (room * values.norm(dim=1).median().item() for values in moments(public, units))
    return _checked(units._replace(means=first, squares=second))


def moments(data: Data, units: Bounds | None = None) -> tuple[Tensor, Tensor]:
    """Each unit's channel means and mean squares `[units, channels]`, in float64: as private as the data."""
    if data.x.dim() < 2 or not data.x.is_floating_point() or not len(data):
        raise DataError(
            f"statistics of {data.x.dtype} inputs {list(data.x.shape)}: needs real features [n, channels, ...] of some rows."
        )
    seen: tuple[list[Tensor], list[Tensor]] = ([], [])
    for part in data.x.split(ROWS):
        shaped = part.double().flatten(2) if part.dim() > 2 else part.double().unsqueeze(2)
        shaped = shaped if units is None else units.measured(shaped)
        for found, values in zip(seen, (shaped, shaped.square()), strict=True):
            found.append(values.mean(2).cpu())
    means, squares = map(torch.cat, seen)
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


def _checked(bounds: Bounds | tuple[float, float]) -> Bounds:
    try:
        first, second = (float(bound) for bound in (bounds[:2] if isinstance(bounds, Bounds) else bounds))
    except (TypeError, ValueError):
        raise ConfigError(f"bounds={bounds!r}: must be two numbers, of means and of mean squares.") from None
    if not all(math.isfinite(bound) and bound > 0 for bound in (first, second)):
        raise ConfigError(f"bounds={bounds!r}: both must be finite and above 0.")
    return bounds._replace(means=first, squares=second) if isinstance(bounds, Bounds) else Bounds(first, second)


def _check_units(units: Bounds, data: Data) -> None:
    if units.centre is None and units.scale is None:
        return
    if not isinstance(units.centre, Tensor) or not isinstance(units.scale, Tensor):
        raise ConfigError(
            "bounds: centre and scale belong together, as tensors of one number for each channel; bounds_of(public features) "
            "gives both."
        )
    for name, values in (("centre", units.centre), ("scale", units.scale)):
        if values.shape != data.x.shape[1:2]:
            raise ConfigError(
                f"bounds: {name} of shape {list(values.shape)} for features {list(data.x.shape)}: must be one number for each "
                "channel. Take bounds_of features that are made as these are."
            )
    least = torch.finfo(torch.float32).tiny
    if not (bool(units.centre.isfinite().all()) and bool((units.scale.isfinite() & (units.scale >= least)).all())):
        raise ConfigError("bounds: centre must be finite, scale finite and above 0 (1e-37 at least).")
