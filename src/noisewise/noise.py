"""Gaussian noise: ordinary, or cryptographic bits on a grid."""

from __future__ import annotations

import importlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from noisewise.errors import PrivacyError
from noisewise.pieces import lying_together, pieces, room_for
from noisewise.randomness import Entropy

NOISE_CHUNK = (
    1 << 18
)  # numbers of one stream: few operations on many of them, since threads wait for Python's lock in between
MANY = 1 << 15  # float32 numbers from which on they are drawn in pairs
ALONE = 1 << 14  # numbers that PyTorch adds without threads of its own
ALL_BITS = (1 << 64) - 1
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
    few = sum(share.numbers for share in (*paired, *single)) < NOISE_CHUNK // 2
    threads = 1 if few else torch.get_num_threads()
    most = max((share.numbers for share in paired), default=0)

    def draw(left: Iterator[Share]) -> None:
        for share in left:
            kind = np.float64 if share.target.dtype == torch.float64 else np.float32
            generator = entropy.generator("noise", *share.place)
            _add(share, generator.standard_normal(share.numbers, dtype=kind), std)

    def draw_paired(left: Iterator[Share]) -> None:
        noise, room = np.empty(most, np.float32), np.empty((2, -(-most // 2)), np.float32)  # fresh memory costs time
        for share in left:
            draw_pairs(entropy.generator("noise", *share.place), noise[: share.numbers], room)
            _add(share, noise[: share.numbers], std)

    _in_threads(draw, single, threads)
    _in_threads(draw_paired, paired, threads)


def _shares(target: Tensor, position: Position, piece: Piece) -> Iterator[Share]:
    """The chunks that a piece lies in. Of one that is cut all is drawn, and what is elsewhere is dropped."""
    for chunk in _chunks(len(target), piece, NOISE_CHUNK):
        start, stop = chunk * NOISE_CHUNK, min((chunk + 1) * NOISE_CHUNK, piece.whole)
        first, last = max(start, piece.first), min(stop, piece.first + len(target))
        used, part = slice(first - start, last - start), target[first - piece.first : last - piece.first]
        yield Share((*position, chunk), stop - start, used, part)


def _add(share: Share, noise: np.ndarray, std: float) -> None:
    """Add numbers, which are overwritten on the way, in the thread that asks for it."""
    drawn, target = noise[share.used], share.target
    if target.dtype in (torch.float32, torch.float64):
        drawn *= drawn.dtype.type(std)
        numbers = target.numpy()
        numbers += drawn
    else:
        parts = torch.from_numpy(drawn).to(target.dtype).split(ALONE)
        torch._foreach_add_(target.split(ALONE), parts, alpha=std)


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


def draw_pairs(generator: np.random.Generator, out: np.ndarray, room: np.ndarray | None = None) -> None:
    """Fill a float32 vector with N(0, 1): radius and angle of a point in the plane, two numbers from 64 bits.

    `z = sqrt(-2 log u) (cos a, sin a)`, u and a from 32 bits each. Where u < 2^-8, 53 more bits make its digits: tails reach
    to 10.9 standard deviations (torch's, from 24 bits, end at 5.8), and every radius is as exact as its type. Reference: Box
    and Muller 1958. Logarithms and angles are NumPy's: other hardware may round the last bit otherwise.

    The stream has a word for each pair, then one more for each pair with a small u. First come the first numbers of all
    pairs. `room`: two rows of float32 for the pairs to be worked out in.
    """
    pairs = (out.size + 1) // 2
    radius, angle = np.empty((2, pairs), np.float32) if room is None else room[:, :pairs]
    low, high = _words(generator, pairs).view(np.uint32).reshape(2, -1)
    np.multiply(low, np.float32(2.0**-32), out=radius, dtype=np.float32, casting="unsafe")
    np.multiply(high.view(np.int32), np.float32(np.pi * 2.0**-31), out=angle, dtype=np.float32, casting="unsafe")
    small = np.flatnonzero(low < np.uint32(1 << 24))
    digits = (low[small] + (_words(generator, small.size) >> np.uint64(11)) * 2.0**-53 + 2.0**-54) * 2.0**-32
    radius[small] = 1  # written below
    np.log(radius, out=radius)
    radius *= np.float32(-2)
    np.sqrt(radius, out=radius)
    radius[small] = np.sqrt(-2 * np.log(digits))
    first, second = out[:pairs], out[pairs:]
    np.cos(angle, out=first)
    first *= radius
    np.sin(angle[: second.size], out=second)
    second *= radius[: second.size]


def _words(generator: np.random.Generator, count: int) -> np.ndarray:
    """The next 64-bit words of its stream, as `random_raw` reads them, but without Python's lock."""
    return generator.integers(0, ALL_BITS, count, np.uint64, endpoint=True)


def add_noise(
    tensors: Sequence[Tensor], std: float, entropy: Entropy, position: tuple[int, ...], mask: Tensor | None = None
) -> list[Tensor]:
    """Tensors of one type and device with independent N(0, std^2) added: pieces of one vector, which is drawn at once.

    `mask`: of the vector that the tensors are pieces of; the answer is exactly zero where it is not.
    """
    first = tensors[0]
    noise = standard_normal(first.new_empty(()).expand(room_for(tensors)), entropy, position)
    whole = lying_together(tensors)
    if mask is not None and (whole is None or mask.shape != whole.shape):
        where = "tensors that lie apart" if whole is None else f"a vector of {len(whole)} entries"
        raise PrivacyError(
            f"a mask of {len(mask)} entries for {where}: lay values and masks as `pieces` of one vector each."
        )
    if whole is not None and mask is not None:
        return pieces(masked_sum(whole, noise, std, mask), tensors)
    if whole is not None:
        return pieces(torch.add(whole, noise, alpha=std, out=noise), tensors)
    return list(torch._foreach_add(list(tensors), pieces(noise, tensors), alpha=std))


def masked_sum(values: Tensor, noise: Tensor, std: float, mask: Tensor) -> Tensor:
    """`values + std noise` under a mask, exactly zero elsewhere, in the place of the noise: by one kernel, or in two passes."""
    kernels = importlib.import_module("noisewise.persample.kernels")  # which import the door themselves
    if kernels.lays(values, mask) and kernels.usable(noise):
        kernels.noised(values, noise, std, mask)
        return noise
    return torch.add(values, noise, alpha=std, out=noise).masked_fill_(~mask, 0)


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
