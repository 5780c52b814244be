"""The one door from private to public: what depends on records is a `Bounded`; only `release` opens it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from noisewise.accounting import Ledger
from noisewise.entropy import Entropy
from noisewise.errors import PrivacyError
from noisewise.mechanism import gaussian, joint_multiplier
from noisewise.sampling import Sampler
from noisewise.support import encode

if TYPE_CHECKING:
    from noisewise.support import Support

NOISE_CHUNK = 1 << 17
GRID = 2.0**-24  # step of secure noise, in standard deviations


@dataclass(frozen=True)
class Bounded:
    """A sum over private units that one unit changes by at most `sensitivity` in L2, all tensors together.

    It may be merged with sums over other units, and leaves only through `release`. Noise falls on `support` only.
    """

    _values: Mapping[str, Tensor] = field(repr=False)
    sensitivity: float
    support: Support = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """A bound is a number."""
        if not math.isfinite(self.sensitivity) or self.sensitivity <= 0:
            raise PrivacyError(f"sensitivity {self.sensitivity!r}: noise can be scaled to a finite bound above 0 only.")


def merge(parts: Iterable[Bounded]) -> Bounded:
    """The sum over disjoint sets of units: a unit is in one part only, so the bound stays the same."""
    first, *others = parts
    values = dict(first._values)
    for other in others:
        same_support = other.support is first.support or encode(other.support) == encode(first.support)
        if other.sensitivity != first.sensitivity or other._values.keys() != values.keys() or not same_support:
            raise PrivacyError(
                "parts with different sensitivity, tensors or support cannot be merged: they answer different questions."
            )
        values = {name: value + other._values[name] for name, value in values.items()}
    return Bounded(values, first.sensitivity, first.support)


def release(
    parts: Mapping[str, tuple[Bounded, float]],
    *,
    sampler: Sampler,
    ledger: Ledger,
    entropy: Entropy,
    step: int,
    first_step: int = 0,
) -> dict[str, dict[str, Tensor]]:
    """Add Gaussian noise to everything drawn from one batch, write it into the ledger, and only then hand it out.

    `parts`: purpose -> (what to release, noise multiplier). `answer = value + multiplier * sensitivity * N(0, I)` on the
    supported coordinates. Guarantee: the event recorded is the sampler's event of one Gaussian mechanism with the joint
    multiplier; a multiplier of 0 is recorded as not private. `first_step`: ledger step of the plan's step 0.
    """
    event = gaussian(sampler, joint_multiplier(sigma for _, sigma in parts.values()))
    purpose = " + ".join(parts)
    if step % sampler.steps_per_event == 0:
        ledger.record(event, purpose, first_step + step, reproducible=entropy.reproducible)
    elif not ledger.lines or ledger.lines[-1].event != event:
        raise PrivacyError(
            f"step {step} of an epoch whose release is not in the ledger: start epochs at multiples of "
            f"{sampler.steps_per_event} steps and keep the noise the same within one."
        )
    return {
        name: _with_noise(bounded, sigma * bounded.sensitivity, entropy, (first_step + step, part))
        for part, (name, (bounded, sigma)) in enumerate(parts.items())
    }


def expose(
    values: Mapping[str, Tensor],
    std: float,
    support: Support,
    *,
    ledger: Ledger,
    entropy: Entropy,
    step: int,
    purpose: str,
) -> dict[str, Tensor]:
    """Hand out what no bound protects, with noise of `std` if any: the ledger's epsilon is infinite from here on."""
    import dp_accounting

    ledger.record(
        dp_accounting.NonPrivateDpEvent(), f"{purpose} (not private)", step, reproducible=entropy.reproducible
    )
    return _with_noise(Bounded(values, 1.0, support), std, entropy, (step, 0))


def _with_noise(bounded: Bounded, std: float, entropy: Entropy, position: tuple[int, int]) -> dict[str, Tensor]:
    std *= _for_the_grid(bounded, std) if entropy.secure else 1.0
    answers = {}
    for k, (name, value) in enumerate(bounded._values.items()):
        mask = bounded.support.get(name, True)
        if mask is False:  # a constant, whatever was computed
            answers[name] = torch.zeros_like(value)
            continue
        if std == 0:
            answers[name] = value.clone()
        elif entropy.secure:
            answers[name] = _secure_answer(value, std, entropy, (*position, k))
        else:
            noise = standard_normal(value, entropy, (*position, k))
            answers[name] = torch.add(value, noise, alpha=std, out=noise)
        if isinstance(mask, Tensor):
            answers[name].mul_(mask.to(value.device))
    return answers


def standard_normal(like: Tensor, entropy: Entropy, position: tuple[int, ...]) -> Tensor:
    """Independent N(0, 1) in the shape, type and place of `like`.

    On a CPU chunks are drawn in parallel, each from its own stream of the whole root (256 bits). On a GPU torch's Philox
    generator draws, keyed by 124 bits that follow from the root; with other hardware or another torch it draws other numbers.
    """
    if like.device.type != "cpu":
        seed, offset = entropy.wide("noise", *position)
        generator = torch.Generator(like.device).manual_seed(seed)
        generator.set_offset(offset)
        return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
    kind: Any = np.float64 if like.dtype == torch.float64 else np.float32
    noise: Any = np.empty(like.numel(), kind)

    def fill(chunk: int) -> None:
        part = noise[chunk * NOISE_CHUNK : (chunk + 1) * NOISE_CHUNK]
        entropy.generator("noise", *position, chunk).standard_normal(dtype=kind, out=part)

    chunks = -(-noise.size // NOISE_CHUNK)
    if chunks > 1:
        list(_threads().map(fill, range(chunks)))
    elif chunks:
        fill(0)
    return torch.from_numpy(noise).view(like.shape).to(like.dtype)


def _for_the_grid(bounded: Bounded, std: float) -> float:
    """By how much noise grows to pay for the grid: 1 / (1 - GRID sigma sqrt(d)), sigma the multiplier asked for.

    Rounding to steps of `GRID * std'` moves neighbours apart by half a step each in every one of d coordinates, so the
    sensitivity C becomes `C + GRID std' sqrt(d)`; the factor solves `std' = sigma (C + GRID std' sqrt(d))` exactly.
    """
    coordinates = sum(value.numel() for value in bounded._values.values())
    sigma = std / bounded.sensitivity
    share = GRID * sigma * math.sqrt(coordinates)
    if share >= 0.5:
        raise PrivacyError(
            f"secure noise with multiplier {sigma:.4g} on {coordinates} coordinates: the grid, {GRID:.2g} standard deviations, "
            "is no longer fine beside the bound. Use less noise, freeze parameters with support=, or secure=False."
        )
    return 1 / (1 - share)


def _secure_answer(value: Tensor, std: float, entropy: Entropy, position: tuple[int, ...]) -> Tensor:
    """Value and noise, each rounded to multiples of `GRID * std`, added as whole numbers.

    `answer = grid (round(value / grid) + round(z / GRID))`, z standard normal by inverting its distribution function at 64
    cryptographic bits. Guarantee: this is the Gaussian mechanism on the rounded values followed by rounding, so the digits
    of an answer depend on the whole step it falls on and on nothing below; the set of possible answers is the same for all
    data. Reference: Mironov 2012 (the attack); Canonne et al. 2020, arXiv:2004.00010 (noise on a grid). Deviation: the
    rounded Gaussian, not the discrete one.
    Limit: z is computed in double precision, which misplaces a rounding with probability of about 1e-8 per coordinate;
    time is not constant. Cost: several times ordinary noise (benchmarks/noise.py).
    """
    count = value.numel()
    steps = np.empty(count)

    def fill(chunk: int) -> None:
        part = steps[chunk * NOISE_CHUNK : (chunk + 1) * NOISE_CHUNK]
        words = entropy.words(part.size, "noise", *position, chunk)
        tail = ndtri(
            ((words >> np.uint64(1)) + 0.5) * 2.0**-64
        )  # in (-inf, 0): half of the distribution, exact far out
        np.rint(np.where(words & np.uint64(1), tail, -tail) / GRID, out=part)

    list(_threads().map(fill, range(-(-count // NOISE_CHUNK))))
    grid = std * GRID
    steps += np.rint(value.detach().double().cpu().numpy().reshape(-1) / grid)
    return torch.from_numpy(steps * grid).view(value.shape).to(value)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="noise")
