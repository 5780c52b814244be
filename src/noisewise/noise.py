"""Gaussian noise: ordinary, or cryptographic bits on a grid."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
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
PAIRS = 1 << 14  # pairs that lie together in a stream of words
TOGETHER = 4  # chunks that are drawn in the same operations: short ones would wait for Python's lock
GRID = 2.0**-24  # step of secure noise, in standard deviations
CUDA_CHUNK = 1 << 22  # numbers of a tensor kept in pieces that a GPU draws at once

Position = tuple[int, ...]


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
    return standard_normals([like], entropy, [position], [piece])[0]


def standard_normals(
    likes: Sequence[Tensor],
    entropy: Entropy,
    positions: Sequence[Position],
    where: Sequence[Piece | None],
) -> list[Tensor]:
    """`standard_normal` of several tensors on a CPU: the chunks of all of them are shared out among threads at once."""
    covers = [_cover(like.numel(), piece) for like, piece in zip(likes, where, strict=True)]
    noises: list[np.ndarray] = [
        np.empty(cover.numbers, np.float64 if like.dtype == torch.float64 else np.float32)
        for like, cover in zip(likes, covers, strict=True)
    ]
    paired: list[tuple[Position, np.ndarray]] = []
    tasks: list[Callable[[], None]] = []

    def draw(place: Position, out: Any) -> None:
        entropy.generator("noise", *place).standard_normal(dtype=out.dtype.type, out=out)

    def draw_paired(parts: Sequence[tuple[Position, np.ndarray]]) -> None:
        draw_together([(entropy.generator("noise", *place), out) for place, out in parts])

    for noise, position, cover in zip(noises, positions, covers, strict=True):
        chunks = [noise[first : first + NOISE_CHUNK] for first in range(0, noise.size, NOISE_CHUNK)]
        places = [(*position, cover.chunk + number) for number in range(len(chunks))]
        if noise.dtype == np.float32 and cover.whole >= MANY:
            paired += zip(places, chunks, strict=True)
        else:
            tasks += map(partial, [draw] * len(chunks), places, chunks)
    size = max(1, min(TOGETHER, len(paired) // (2 * torch.get_num_threads())))
    tasks += [partial(draw_paired, paired[first : first + size]) for first in range(0, len(paired), size)]
    few = sum(noise.size for noise in noises) < NOISE_CHUNK
    _in_threads(tasks, 1 if few else torch.get_num_threads())
    return [
        torch.from_numpy(noise[cover.here]).view(like.shape).to(like.dtype)
        for noise, like, cover in zip(noises, likes, covers, strict=True)
    ]


class Cover(NamedTuple):
    """The chunks of noise that a piece lies in: the first, how many numbers they have, where the piece is; and the whole."""

    chunk: int
    numbers: int
    here: slice
    whole: int


def _cover(size: int, piece: Piece | None) -> Cover:
    """Of a chunk that is cut all is drawn, and what is elsewhere is dropped."""
    piece = piece or Piece(0, size)
    chunks = _chunks(size, piece, NOISE_CHUNK)
    start, stop = chunks.start * NOISE_CHUNK, min(chunks.stop * NOISE_CHUNK, piece.whole)
    first = piece.first - start
    return Cover(chunks.start, max(0, stop - start) if size else 0, slice(first, first + size), piece.whole)


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
    draw_together([(generator, out)])


def draw_together(parts: Sequence[tuple[np.random.Generator, np.ndarray]]) -> None:
    """`draw_pairs` for several vectors: one operation for all of them, so that threads seldom wait for each other."""
    ends = np.cumsum([(out.size + 1) // 2 for _, out in parts]).tolist()
    points = np.empty((2, ends[-1]), np.float32)
    radius, angle = points
    small, digits = [], []
    for (generator, out), first, end in zip(parts, [0, *ends], ends, strict=False):
        words, places, more = _words(generator, end - first)
        small.append(places + first)
        digits.append(more)
        blocks = out.size // (2 * PAIRS)
        for (radii, angles), (one, other) in zip(
            _rows(points[:, first:end], blocks), _halves(words, blocks), strict=True
        ):
            radii[...] = one
            angles[...] = other.view(np.int32)
    where = np.concatenate(small)
    radius[where] = 1  # written below
    radius *= np.float32(2.0**-32)
    np.log(radius, out=radius)
    radius *= np.float32(-2)
    np.sqrt(radius, out=radius)
    radius[where] = np.sqrt(-2 * np.log(np.concatenate(digits)))
    angle *= np.float32(np.pi * 2.0**-31)
    for (_, out), first, end in zip(parts, [0, *ends], ends, strict=False):
        blocks = out.size // (2 * PAIRS)
        for (radii, angles), (one, other) in zip(
            _rows(points[:, first:end], blocks), _halves(out, blocks), strict=True
        ):
            np.cos(angles, out=one)
            one *= radii
            rest = other.shape[-1]
            np.sin(angles[..., :rest], out=other)
            other *= radii[..., :rest]


def _rows(points: np.ndarray, blocks: int) -> Iterator[np.ndarray]:
    """Radii and angles of whole blocks of `PAIRS`, block by row, and those of the rest."""
    yield points[:, : blocks * PAIRS].reshape(2, blocks, PAIRS)
    yield points[:, blocks * PAIRS :]


def _halves(numbers: np.ndarray, blocks: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """First and second numbers of the pairs in the same order: in a block the first numbers of all pairs come first."""
    whole, rest = numbers[: 2 * blocks * PAIRS].reshape(blocks, 2, PAIRS), numbers[2 * blocks * PAIRS :]
    half = (rest.size + 1) // 2
    yield whole[:, 0], whole[:, 1]
    yield rest[:half], rest[half:]


def _words(generator: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two 32-bit words for each of `count` pairs, block by block; where u < 2^-8; and u there, with its further digits.

    The stream has a block of 64-bit words, then one for each of them with a small u, then the next block: all are read at
    once, with some more that are hardly ever too few.
    """
    read: Any = generator.bit_generator.random_raw
    stream, place = read(count + (count >> 7) + 64), 0
    small, digits = [], []
    for first in range(0, count, PAIRS):
        pairs = min(PAIRS, count - first)
        stream = _at_least(stream, place + pairs, read)
        stream[first : first + pairs] = stream[place : place + pairs]
        place += pairs
        low = stream[first : first + pairs].view(np.uint32)[:pairs]
        where = np.flatnonzero(low < np.uint32(1 << 24))
        stream = _at_least(stream, place + where.size, read)
        more = stream[place : place + where.size] >> np.uint64(11)
        digits.append((low[where] + more * 2.0**-53 + 2.0**-54) * 2.0**-32)
        place += where.size
        small.append(where + first)
    return stream[:count].view(np.uint32), np.concatenate(small), np.concatenate(digits)


def _at_least(stream: np.ndarray, length: int, read: Callable[[int], np.ndarray]) -> np.ndarray:
    return stream if len(stream) >= length else np.concatenate([stream, read(length - len(stream))])


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
    cover = _cover(value.numel(), piece)
    steps = np.empty(cover.numbers)

    def fill(number: int) -> None:
        part = steps[number * NOISE_CHUNK : (number + 1) * NOISE_CHUNK]
        words = entropy.words(part.size, "noise", *position, cover.chunk + number)
        tail = ndtri(
            ((words >> np.uint64(1)) + 0.5) * 2.0**-64
        )  # in (-inf, 0): half of the distribution, exact far out
        np.rint(np.where(words & np.uint64(1), tail, -tail) / GRID, out=part)

    tasks = [partial(fill, number) for number in range(-(-cover.numbers // NOISE_CHUNK))]
    _in_threads(tasks, torch.get_num_threads())
    steps, grid = steps[cover.here], std * GRID
    steps += np.rint(value.detach().double().cpu().numpy().reshape(-1) / grid)
    return torch.from_numpy(steps * grid).view(value.shape).to(value)


def _in_threads(tasks: Sequence[Callable[[], None]], threads: int) -> None:
    """Run all tasks, the calling thread among those that do."""
    left = deque(tasks)

    def work() -> None:
        while True:
            try:
                task = left.popleft()
            except IndexError:
                return
            task()

    others = [_pool(threads - 1).submit(work) for _ in range(min(threads, len(tasks)) - 1)]
    try:
        work()
    finally:
        left.clear()  # after an interruption
        for other in others:
            other.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="noise")
