"""Gaussian noise: ordinary, or cryptographic bits on a grid."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

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
CUDA_CHUNK = 1 << 22  # numbers of a tensor kept in pieces that a GPU draws at once


class Piece(NamedTuple):
    """Which entries of a tensor lie here, where processes keep it in pieces: from `first` on, of `whole` in its order."""

    first: int
    whole: int


def standard_normal(like: Tensor, entropy: Entropy, position: tuple[int, ...], piece: Piece | None = None) -> Tensor:
    """Independent N(0, 1) in the shape, type and place of `like`, or of the tensor that `like` is a `piece` of.

    On a CPU chunks are drawn in parallel, each from its own stream of the whole root (256 bits): NumPy's ziggurat, and
    for many float32 numbers `draw_pairs`, which is three times as fast. On a GPU torch's Philox generator draws, keyed by
    124 bits that follow from the root; with other hardware or another torch it draws other numbers.

    Pieces that together are the whole get the noise of the whole, each coordinate once, whoever holds them: on a CPU the same
    numbers as in one piece; on a GPU, where one piece is drawn at once, the same for any pieces.
    """
    if like.device.type != "cpu" and piece is not None:
        return _on_gpu(like, entropy, position, piece)
    if like.device.type != "cpu":
        seed, offset = entropy.wide("noise", *position)
        generator = torch.Generator(like.device).manual_seed(seed)
        generator.set_offset(offset)
        return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
    kind: Any = np.float64 if like.dtype == torch.float64 else np.float32
    noise: Any = np.empty(like.numel(), kind)
    piece = piece or Piece(0, noise.size)
    paired = kind is np.float32 and piece.whole >= MANY

    def fill(chunk: int, part: np.ndarray) -> None:
        generator = entropy.generator("noise", *position, chunk)
        if paired:
            draw_pairs(generator, part)
        else:
            generator.standard_normal(dtype=kind, out=part)

    _fill(noise, piece, fill)
    return torch.from_numpy(noise).view(like.shape).to(like.dtype)


def _fill(out: np.ndarray, piece: Piece, fill: Callable[[int, np.ndarray], None]) -> None:
    """Fill a piece by chunks of the whole, in parallel; of a chunk that is cut, draw all and keep what is here."""

    def here(chunk: int) -> None:
        start, stop = chunk * NOISE_CHUNK, min((chunk + 1) * NOISE_CHUNK, piece.whole)
        first, last = max(start, piece.first), min(stop, piece.first + out.size)
        if (first, last) == (start, stop):
            fill(chunk, out[start - piece.first : stop - piece.first])
        else:
            drawn = np.empty(stop - start, out.dtype)
            fill(chunk, drawn)
            out[first - piece.first : last - piece.first] = drawn[first - start : last - start]

    chunks = _chunks(out.size, piece, NOISE_CHUNK)
    if len(chunks) > 1:
        list(_threads().map(here, chunks))
    elif chunks:
        here(chunks[0])


def _chunks(size: int, piece: Piece, chunk: int) -> range:
    """The chunks of the whole that a piece of this size lies in."""
    return range(piece.first // chunk, -(-(piece.first + size) // chunk) if size else piece.first // chunk)


def _on_gpu(like: Tensor, entropy: Entropy, position: tuple[int, ...], piece: Piece) -> Tensor:
    noise = like.new_empty(like.numel())
    for chunk in _chunks(len(noise), piece, CUDA_CHUNK):
        start, stop = chunk * CUDA_CHUNK, min((chunk + 1) * CUDA_CHUNK, piece.whole)
        seed, offset = entropy.wide("noise", *position, chunk)
        generator = torch.Generator(like.device).manual_seed(seed)
        generator.set_offset(offset)
        drawn = torch.randn(stop - start, dtype=like.dtype, device=like.device, generator=generator)
        first, last = max(start, piece.first), min(stop, piece.first + len(noise))
        noise[first - piece.first : last - piece.first] = drawn[first - start : last - start]
    return noise.view(like.shape)


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


def secure_answer(
    value: Tensor, std: float, entropy: Entropy, position: tuple[int, ...], piece: Piece | None = None
) -> Tensor:
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

    def fill(chunk: int, part: np.ndarray) -> None:
        words = entropy.words(part.size, "noise", *position, chunk)
        tail = ndtri(
            ((words >> np.uint64(1)) + 0.5) * 2.0**-64
        )  # in (-inf, 0): half of the distribution, exact far out
        np.rint(np.where(words & np.uint64(1), tail, -tail) / GRID, out=part)

    _fill(steps, piece or Piece(0, count), fill)
    grid = std * GRID
    steps += np.rint(value.detach().double().cpu().numpy().reshape(-1) / grid)
    return torch.from_numpy(steps * grid).view(value.shape).to(value)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="noise")
