"""Gaussian noise: ordinary, or cryptographic bits on a grid."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple, TypeVar

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
ALONE = 1 << 14  # numbers that PyTorch adds without threads of its own
GRID = 2.0**-24  # step of secure noise, in standard deviations
CUDA_CHUNK = 1 << 22  # numbers of a tensor kept in pieces that a GPU draws at once

Position = tuple[int, ...]
T = TypeVar("T")


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
    noise = torch.zeros_like(like, memory_format=torch.contiguous_format)
    add_normals([noise], 1.0, entropy, [position], [piece])
    return noise


class Share(NamedTuple):
    """A chunk of noise and what it is added to: where its stream is, how many numbers it has, and which of them are used."""

    place: Position
    numbers: int
    used: slice
    target: Tensor


def add_normals(
    values: Sequence[Tensor],
    std: float,
    entropy: Entropy,
    positions: Sequence[Position],
    where: Sequence[Piece | None],
) -> None:
    """Add `std * standard_normal(value)` to each of several tensors on a CPU, whose entries lie in their order, in place.

    The chunks of all of them are shared out among threads, and added as soon as they are drawn: only a few are in memory.
    """
    paired: list[Share] = []
    single: list[Share] = []
    for value, position, piece in zip(values, positions, where, strict=True):
        piece = piece or Piece(0, value.numel())
        many = value.dtype != torch.float64 and piece.whole >= MANY
        (paired if many else single).extend(_shares(value.view(-1), position, piece))
    few = sum(share.numbers for share in (*paired, *single)) < NOISE_CHUNK
    threads = 1 if few else torch.get_num_threads()
    size = max(1, min(TOGETHER, len(paired) // (2 * threads)))

    def draw(left: Iterator[Share]) -> None:
        for share in left:
            kind = np.float64 if share.target.dtype == torch.float64 else np.float32
            generator = entropy.generator("noise", *share.place)
            _add(share, generator.standard_normal(share.numbers, dtype=kind), std)

    def draw_paired(left: Iterator[Sequence[Share]]) -> None:
        room = np.empty(
            (2, size, NOISE_CHUNK), np.float32
        )  # fresh memory for each chunk would cost as much as its numbers
        for shares in left:
            noises = [row[: share.numbers] for row, share in zip(room[0], shares, strict=False)]
            parts = [(entropy.generator("noise", *s.place), noise) for s, noise in zip(shares, noises, strict=True)]
            draw_together(parts, room[1].reshape(2, -1))
            for share, noise in zip(shares, noises, strict=True):
                _add(share, noise, std)

    _in_threads(draw, single, threads)
    _in_threads(draw_paired, [paired[first : first + size] for first in range(0, len(paired), size)], threads)


def _shares(target: Tensor, position: Position, piece: Piece) -> Iterator[Share]:
    """The chunks that a piece lies in. Of one that is cut all is drawn, and what is elsewhere is dropped."""
    for chunk in _chunks(len(target), piece, NOISE_CHUNK):
        start, stop = chunk * NOISE_CHUNK, min((chunk + 1) * NOISE_CHUNK, piece.whole)
        first, last = max(start, piece.first), min(stop, piece.first + len(target))
        used, part = slice(first - start, last - start), target[first - piece.first : last - piece.first]
        yield Share((*position, chunk), stop - start, used, part)


def _add(share: Share, noise: np.ndarray, std: float) -> None:
    """In steps that PyTorch makes in the thread that asks for them."""
    drawn = torch.from_numpy(noise[share.used]).to(share.target.dtype)
    torch._foreach_add_(share.target.split(ALONE), drawn.split(ALONE), alpha=std)


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


def draw_together(parts: Sequence[tuple[np.random.Generator, np.ndarray]], room: np.ndarray | None = None) -> None:
    """`draw_pairs` for several vectors: one operation for all of them, so that threads seldom wait for each other.

    `room`: two rows of float32 for all pairs to be worked out in.
    """
    ends = np.cumsum([(out.size + 1) // 2 for _, out in parts]).tolist()
    points = np.empty((2, ends[-1]), np.float32) if room is None else room[:, : ends[-1]]
    radius, angle = points
    pieces = [
        _read(generator, points[:, first:end], first)
        for (generator, _), first, end in zip(parts, [0, *ends], ends, strict=False)
    ]
    where, low, more = (np.concatenate(column) for column in zip(*itertools.chain(*pieces), strict=True))
    radius[where] = 1  # written below
    radius *= np.float32(2.0**-32)
    np.log(radius, out=radius)
    radius *= np.float32(-2)
    np.sqrt(radius, out=radius)
    digits = (low + (more >> np.uint64(11)) * 2.0**-53 + 2.0**-54) * 2.0**-32
    radius[where] = np.sqrt(-2 * np.log(digits))
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


def _read(generator: np.random.Generator, points: np.ndarray, first: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Write 32 bits for each radius and each angle; of each block: where u < 2^-8, u there, and words for further digits.

    The stream has a block of 64-bit words, then one for each of them with a small u, then the next block. Places count from
    `first` on.
    """
    read: Any = generator.bit_generator.random_raw
    count = points.shape[1]
    for start in range(0, count, PAIRS):
        stop = min(start + PAIRS, count)
        low, high = read(stop - start).view(np.uint32).reshape(2, -1)
        points[0, start:stop] = low
        points[1, start:stop] = high.view(np.int32)
        where = np.flatnonzero(low < np.uint32(1 << 24))
        yield where + (first + start), low[where], read(where.size)


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
    grid = std * GRID
    answer = value.detach().to("cpu", torch.float64, copy=True, memory_format=torch.contiguous_format)

    def fill(left: Iterator[Share]) -> None:
        for share in left:
            words = entropy.words(share.numbers, "noise", *share.place)[share.used]
            tail = ndtri(
                ((words >> np.uint64(1)) + 0.5) * 2.0**-64
            )  # in (-inf, 0): half of the distribution, exact far out
            steps = np.rint(np.where(words & np.uint64(1), tail, -tail) / GRID)
            target = share.target.numpy()
            steps += np.rint(target / grid)
            np.multiply(steps, grid, out=target)

    shares = list(_shares(answer.view(-1), position, piece or Piece(0, value.numel())))
    _in_threads(fill, shares, torch.get_num_threads())
    return answer.to(value)


def _in_threads(work: Callable[[Iterator[T]], None], tasks: Sequence[T], threads: int) -> None:
    """Do all tasks, the calling thread among those that `work`: each takes the next that is left."""
    waiting = deque(tasks)

    def left() -> Iterator[T]:
        while True:
            try:
                yield waiting.popleft()
            except IndexError:
                return

    others = [_pool(threads - 1).submit(work, left()) for _ in range(min(threads, len(tasks)) - 1)]
    try:
        work(left())
    finally:
        waiting.clear()  # after an interruption
        for other in others:
            other.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="noise")
