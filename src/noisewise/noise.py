"""Gaussian noise: ordinary, or cryptographic bits on a grid."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from noisewise.errors import PrivacyError
from noisewise.pieces import lying_together, pieces, room_for
from noisewise.randomness import Entropy

NOISE_CHUNK = 1 << 17
MANY = 1 << 15  # float32 numbers from which on they are drawn in pairs
PAIRS = 1 << 14  # pairs at a time: what is computed on the way stays in cache
GRID = 2.0**-24  # step of secure noise, in standard deviations


def standard_normal(like: Tensor, entropy: Entropy, position: tuple[int, ...]) -> Tensor:
    """Independent N(0, 1) in the shape, type and place of `like`.

    On a CPU chunks are drawn in parallel, each from its own stream of the whole root (256 bits): NumPy's ziggurat, and
    for many float32 numbers `draw_pairs`, which is three times as fast. On a GPU torch's Philox generator draws, keyed by
    124 bits that follow from the root; with other hardware or another torch it draws other numbers.
    """
    if like.device.type != "cpu":
        seed, offset = entropy.wide("noise", *position)
        generator = torch.Generator(like.device).manual_seed(seed)
        generator.set_offset(offset)
        return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
    kind: Any = np.float64 if like.dtype == torch.float64 else np.float32
    noise: Any = np.empty(like.numel(), kind)
    paired = kind is np.float32 and noise.size >= MANY

    def fill(chunk: int) -> None:
        part = noise[chunk * NOISE_CHUNK : (chunk + 1) * NOISE_CHUNK]
        generator = entropy.generator("noise", *position, chunk)
        if paired:
            draw_pairs(generator, part)
        else:
            generator.standard_normal(dtype=kind, out=part)

    chunks = -(-noise.size // NOISE_CHUNK)
    if chunks > 1:
        list(_threads().map(fill, range(chunks)))
    elif chunks:
        fill(0)
    return torch.from_numpy(noise).view(like.shape).to(like.dtype)


def draw_pairs(generator: np.random.Generator, out: np.ndarray) -> None:
    """Fill a float32 vector with N(0, 1): radius and angle of a point in the plane, two numbers from 64 bits.

    `z = sqrt(-2 log u) (cos a, sin a)`, u and a from 32 bits each. Where u < 2^-8, 53 more bits make its digits: tails reach
    to 10.9 standard deviations (torch's, from 24 bits, end at 5.8), and every radius is as exact as its type. Reference: Box
    and Muller 1958. Logarithms and angles are NumPy's: other hardware may round the last bit otherwise.
    """
    for first in range(0, out.size, 2 * PAIRS):
        part = out[first : first + 2 * PAIRS]
        pairs = (part.size + 1) // 2
        words = _words(generator, pairs).view(np.uint32)
        radius = words[:pairs].astype(np.float32)
        small = np.flatnonzero(radius < np.float32(2.0**24))
        digits = (words[small] + (_words(generator, small.size) >> np.uint64(11)) * 2.0**-53 + 2.0**-54) * 2.0**-32
        radius[small] = 1  # written below
        radius *= np.float32(2.0**-32)
        np.log(radius, out=radius)
        radius *= np.float32(-2)
        np.sqrt(radius, out=radius)
        radius[small] = np.sqrt(-2 * np.log(digits))
        angle = words[pairs:].view(np.int32).astype(np.float32)
        angle *= np.float32(np.pi * 2.0**-31)
        np.cos(angle, out=part[:pairs])
        part[:pairs] *= radius
        rest = part.size - pairs
        np.sin(angle[:rest], out=part[pairs:])
        part[pairs:] *= radius[:rest]


def _words(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.integers(0, 2**64 - 1, count, dtype=np.uint64, endpoint=True)


def add_noise(tensors: Sequence[Tensor], std: float, entropy: Entropy, position: tuple[int, ...]) -> list[Tensor]:
    """Tensors of one type and device with independent N(0, std^2) added: pieces of one vector, which is drawn at once."""
    first = tensors[0]
    noise = standard_normal(first.new_empty(()).expand(room_for(tensors)), entropy, position)
    if (whole := lying_together(tensors)) is not None:
        return pieces(torch.add(whole, noise, alpha=std, out=noise), tensors)
    return list(torch._foreach_add(list(tensors), pieces(noise, tensors), alpha=std))


def for_the_grid(sigma: float, coordinates: int) -> float:
    """By how much noise grows to pay for the grid: 1 / (1 - GRID sigma sqrt(d)) for a multiplier sigma on d coordinates.

    Rounding to steps of `GRID * std'` moves neighbours apart by half a step each in every one of d coordinates, so the
    sensitivity C becomes `C + GRID std' sqrt(d)`; the factor solves `std' = sigma (C + GRID std' sqrt(d))` exactly.
    """
    share = GRID * sigma * math.sqrt(coordinates)
    if share >= 0.5:
        raise PrivacyError(
            f"secure noise with multiplier {sigma:.4g} on {coordinates} coordinates: the grid, {GRID:.2g} standard deviations, "
            "is no longer fine beside the bound. Use less noise, freeze parameters with support=, or secure=False."
        )
    return 1 / (1 - share)


def secure_answer(value: Tensor, std: float, entropy: Entropy, position: tuple[int, ...]) -> Tensor:
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
