"""Kernels in Triton: lengths of rows, sums of weighted rows, rows scaled one by one. Imported by `kernels` alone.

Each reads its input once. Rows of weight 0 are not read at all, so that what is not finite there does not matter; sums are
taken in a fixed order. `TRITON_INTERPRET=1` runs them without a GPU, slowly.

Every combination of types, `constexpr` and alignments is compiled once, in a tenth of a second to a second. So numbers are
`constexpr` or specialised only where the code gains by it: numbers of units, rounds and settings of a layer are not.
"""

# mypy: ignore-errors

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from threading import Thread

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime import driver

from noisewise.persample.triton_words import _where, _words

PROGRAMS = 4096  # that keep a GPU busy
TALL, BROAD = 32, 256  # rows and entries of a tile of weighted rows
LOW, LONG, MANY = 8, 1024, 1 << 13  # the same where there are so many entries, row after row
TILE_OUT, TILE_IN = 128, 64  # channels of a tile of a convolution's taps
ROW_OF_TAPS = True  # does a program make three taps that lie side by side?
ROW_TILE = 1 << 12  # entries of a tile up to which three are held in registers
THREE_AT_ONCE = 168  # registers of a thread, with which a multiprocessor has room for three programs of 4 warps
FEW = 64  # positions up to which steps are longer
SMALL = 32  # channels of a tile, and positions of a step, whose products in full precision are compiled quickly

_REHEARSING: ContextVar[list | None] = ContextVar("rehearsing", default=None)  # what was asked for


def _launch(kernel, grid, *args, **settings):
    """Run a kernel; in a rehearsal have it compiled only."""
    compiled = _REHEARSING.get()
    if compiled is None:
        kernel[grid](*args, **settings)
    else:
        compiled.append(kernel.warmup(*args, grid=grid, **settings))


def _complete(kernel):
    """Have the launcher of a compiled kernel made too, by a C compiler; it is kept on disk."""
    driver.active.launcher_cls(kernel.src, kernel.metadata)
    return kernel


@contextmanager
def _rehearsing():
    token = _REHEARSING.set([])
    try:
        yield _REHEARSING.get()
    finally:
        _REHEARSING.reset(token)


@contextmanager
def rehearsal() -> Iterator[None]:
    """Within it kernels are compiled, as many at a time as there are cores, and none is run; afterwards all are ready.

    What cannot be compiled fails when it is run.
    """

    class Complete(triton.AsyncCompileMode):
        def submit(self, key, compile_fn, finalize_fn):
            return super().submit(key, lambda: _complete(compile_fn()), finalize_fn)

    with ThreadPoolExecutor(os.cpu_count()) as threads, Complete(threads, ignore_errors=True), _rehearsing():
        yield


def get_ready(device: torch.device) -> None:
    """Begin to compile what nearly every model asks for when it is looked at, beside everything else."""

    def compiled(call) -> None:
        with torch.cuda.device(device), _rehearsing() as kernels:
            call()
            for kernel in kernels:
                _complete(kernel)

    def begin() -> None:
        driver.active.get_current_device()  # the driver itself is compiled first
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            for call in _first_calls():
                threads.submit(compiled, call)

    Thread(target=begin).start()


def _first_calls() -> list[Callable[[], object]]:
    factors, images = torch.empty(3, dtype=torch.float64), [torch.empty(3, 16, size, size) for size in (8, 4)]
    plain = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "mask": None}
    return [
        *(partial(form_taps, part, part, **plain, precision="ieee", stored=True, small=True) for part in images),
        *(partial(weighted_sum, torch.empty(1, 3, width), factors) for width in (MANY, 256, 10)),
        *(partial(squares, torch.empty(3, width), 1.0, None) for width in (2048, 512, 256, 128, 10)),
        *(
            partial(scaled, torch.empty(3, 256), torch.empty(3, dtype=kind), factors, light=light)
            for kind in (torch.float32, torch.float64)
            for light in (True, False)
        ),
    ]


@triton.jit(do_not_specialize=["parts", "longer", "loops", "units"])
def _squares(x, out, mask, stride, entries, parts, longer, loops, units, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    total = tl.zeros([BLOCK], tl.float64)
    for k in range(loops):
        places = (part * loops + k) * BLOCK + tl.arange(0, BLOCK)
        counts = places < entries
        values = tl.load(x + row * stride + places, mask=counts, other=0.0)
        if MASKED:  # all is read, since threads read several numbers at once only where none is left out
            values = tl.where(tl.load(mask + row // units * entries + places, mask=counts, other=0) != 0, values, 0.0)
        total += values.to(tl.float64) * values.to(tl.float64)
    tl.store(out + row * parts + part, tl.sum(total, axis=0) * (1.0 + longer.to(tl.float64) * 2.220446049250313e-16))


@triton.jit
def _toward_zero(factors):
    """As `rounding.toward_zero` to float32: an ulp less, nothing below the smallest ordinary number, nothing infinite."""
    smaller = factors * (1 - 1.1920928955078125e-07)
    smaller = tl.where(tl.abs(smaller) <= 1.1754943508222875e-38, 0.0, smaller)
    smaller = tl.minimum(tl.maximum(smaller, -3.4028234663852886e38), 3.4028234663852886e38)
    return smaller.to(tl.float32)


@triton.jit(do_not_specialize=["batch", "loops"])
def _weighted(x, factors, out, batch, entries, row, tap, loops, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    split = tl.program_id(1)
    number = tl.program_id(2)
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for k in range(loops):
        rows = (split * loops + k) * ROWS + tl.arange(0, ROWS)
        weights = _toward_zero(tl.load(factors + rows, mask=rows < batch, other=0.0))
        counts = (weights != 0)[:, None] & (places < entries)[None, :]
        at = x + number.to(tl.int64) * tap + rows.to(tl.int64)[:, None] * row + places[None, :]
        total += tl.sum(tl.load(at, mask=counts, other=0.0).to(tl.float32) * weights[:, None], axis=0)
    tl.store(out + (split * tl.num_programs(2) + number).to(tl.int64) * entries + places, total, mask=places < entries)


@triton.jit(do_not_specialize=["batch", "loops"])
def _weighted_by_row(x, factors, out, batch, entries, row, tap, loops, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """`_weighted` where every thread has entries of its own: a few rows are read at once, and nothing is passed on."""
    split = tl.program_id(1)
    number = tl.program_id(2)
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for k in range(loops):
        part = tl.zeros([BLOCK], tl.float32)
        for r in tl.static_range(ROWS):
            one = (split * loops + k) * ROWS + r + tl.arange(0, 1)
            weight = _toward_zero(tl.load(factors + one, mask=one < batch, other=0.0))
            at = x + number.to(tl.int64) * tap + one.to(tl.int64) * row + places
            part += tl.load(at, mask=(weight != 0) & (places < entries), other=0.0).to(tl.float32) * weight
        total += part
    tl.store(out + (split * tl.num_programs(2) + number).to(tl.int64) * entries + places, total, mask=places < entries)


@triton.jit
def _power(size, MOST: tl.constexpr = 126):
    """As `rounding.powers` of `exponents`: 2^e with 2^(e-1) <= size < 2^e and |e| <= MOST, in float64; 1 for 0."""
    exponent = ((size.to(tl.int64, bitcast=True) >> 52) & 2047) - 1022
    exponent = tl.where(size == 0, 0, tl.minimum(tl.maximum(exponent, -MOST), MOST))
    return ((exponent + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _scaled(x, sizes, factors, out, stride, entries, LIGHT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    one = row + tl.arange(0, 1)
    factor, power = tl.load(factors + one), _power(tl.load(sizes + one).to(tl.float64))
    scale = _toward_zero(factor * power) if LIGHT else (1.0 / power).to(tl.float32)
    counts = (places < entries) & (factor != 0)
    values = tl.load(x + row * stride + places, mask=counts, other=0.0)
    tl.store(out + row * entries + places, values * scale, mask=places < entries)


@triton.jit
def _under(channels, counts, there, y, x, tall, wide, WIDENED: tl.constexpr):
    """What lies under a tap at some positions, of some channels; 0 beside the image."""
    inside = there & (y >= 0) & (y < tall) & (x >= 0) & (x < wide)
    # positions in front: threads side by side read what lies side by side, whatever stride and width are
    at = channels[None, :] + (y * wide + x)[:, None]
    right = tl.load(at, mask=counts[None, :] & inside[:, None], other=0.0)
    return right.to(tl.float32) if WIDENED else right


@triton.jit
def _finished(
    total, out, squares, words, tap, unit, entries, counts, size, batch, place,
    MASKED: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    """A tap's tile under its mask: store it or not, and the sum of its squares."""
    if MASKED:
        total = _where(words, total)
    kept = total.to(out.dtype.element_ty)
    if STORED:
        tl.store(out + (tap.to(tl.int64) * batch + unit) * size + entries, kept, mask=counts)
    exact = kept.to(tl.float32)  # of what is stored
    exact = (exact if MASKED else tl.where(counts, exact, 0.0)).to(tl.float64)
    tl.store(squares + place, tl.sum(tl.sum(exact * exact, axis=1), axis=0))


@triton.jit(
    do_not_specialize=[
        "width", "tall", "wide", "across", "kernel", "stride_y", "stride_x", "pad_y", "pad_x", "dilation_y", "dilation_x",
        "batch", "tiles",
    ],
    do_not_specialize_on_alignment=["loops"],
)  # fmt: skip
def _taps(
    grad, given, out, squares, outputs, inputs, positions, width, area, tall, wide, across, kernel, mask,
    stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x, batch, tiles, loops,
    OUT: tl.constexpr, IN: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr, STORED: tl.constexpr, WIDENED: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """One unit, one tap or three side by side, one tile of out x in: walk over positions, store the tile or not, square it.

    Three taps read the gradient once. Each has a sum of its own, in the order in which it would be alone.
    """
    unit = tl.program_id(0).to(tl.int64)
    tap = tl.program_id(1) * TAPS
    tile = tl.program_id(2)
    rows = (tile // across) * OUT + tl.arange(0, OUT)
    columns = (tile % across) * IN + tl.arange(0, IN)
    words = _words(mask, rows, outputs, tile % across, inputs, tap, IN, MASKED)  # asked for before they are wanted
    if TAPS == 3:
        second_words = _words(mask, rows, outputs, tile % across, inputs, tap + 1, IN, MASKED)
        third_words = _words(mask, rows, outputs, tile % across, inputs, tap + 2, IN, MASKED)
    channels = given + (unit * inputs + columns) * area
    tap_y, tap_x = (tap // kernel) * dilation_y - pad_y, (tap % kernel) * dilation_x - pad_x
    total = tl.zeros([OUT, IN], tl.float32)
    if TAPS == 3:
        second, third = tl.zeros([OUT, IN], tl.float32), tl.zeros([OUT, IN], tl.float32)
    for k in range(loops):
        places = k * BLOCK + tl.arange(0, BLOCK)
        y, x = (places // width) * stride_y + tap_y, (places % width) * stride_x + tap_x
        there = places < positions
        left = tl.load(
            grad + (unit * outputs + rows)[:, None] * positions + places[None, :],
            mask=(rows < outputs)[:, None] & there[None, :], other=0.0,
        )  # fmt: skip
        if WIDENED:
            left = left.to(tl.float32)
        right = _under(channels, columns < inputs, there, y, x, tall, wide, WIDENED)
        total += tl.dot(left, right, input_precision=PRECISION)
        if TAPS == 3:
            right = _under(channels, columns < inputs, there, y, x + dilation_x, tall, wide, WIDENED)
            second += tl.dot(left, right, input_precision=PRECISION)
            right = _under(channels, columns < inputs, there, y, x + 2 * dilation_x, tall, wide, WIDENED)
            third += tl.dot(left, right, input_precision=PRECISION)
    counts = (rows < outputs)[:, None] & (columns < inputs)[None, :]
    entries, size = rows[:, None] * inputs + columns[None, :], outputs * inputs
    place = unit * (tl.num_programs(1) * TAPS * tiles) + tap * tiles + tile
    _finished(total, out, squares, words, tap, unit, entries, counts, size, batch, place, MASKED, STORED)
    if TAPS == 3:
        place += tiles
        _finished(
            second, out, squares, second_words, tap + 1, unit, entries, counts, size, batch, place, MASKED, STORED
        )
        place += tiles
        _finished(third, out, squares, third_words, tap + 2, unit, entries, counts, size, batch, place, MASKED, STORED)


@triton.jit
def _group_norm(
    grad, given, weights, biases, channels, places, groups, eps, CHANNELS: tl.constexpr, PLACES: tl.constexpr
):
    """One unit, one group: normalise it once more, and add up g z and g over positions."""
    unit = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    each = channels // groups
    rows, columns = tl.arange(0, CHANNELS), tl.arange(0, PLACES)
    counts = (rows < each)[:, None] & (columns < places)[None, :]
    at = (unit * channels + group * each + rows)[:, None] * places + columns[None, :]
    values = tl.load(given + at, mask=counts, other=0.0).to(tl.float32)
    mean = tl.sum(tl.sum(values, axis=1), axis=0) / (each * places)
    centred = tl.where(counts, values - mean, 0.0)
    variance = tl.sum(tl.sum(centred * centred, axis=1), axis=0) / (each * places)
    normalised = centred * (1.0 / tl.sqrt(variance + eps))
    gradient = tl.load(grad + at, mask=counts, other=0.0)
    here = unit * channels + group * each + rows
    tl.store(weights + here, tl.sum(gradient * normalised, axis=1), mask=rows < each)
    tl.store(biases + here, tl.sum(gradient, axis=1), mask=rows < each)


def group_norm(grad: Tensor, given: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """Sums over positions of g z and of g, `[batch, channels]`, for inputs `[batch, channels, positions]`, z normalised."""
    batch, channels, places = given.shape
    weights, biases = (torch.empty(batch, channels, dtype=grad.dtype, device=grad.device) for _ in range(2))
    _launch(
        _group_norm, (batch, groups),
        grad, given, weights, biases, channels, places, groups, eps,
        CHANNELS=triton.next_power_of_2(channels // groups), PLACES=triton.next_power_of_2(places),
    )  # fmt: skip
    return weights, biases


@triton.jit
def _layer_norm(grad, given, weights, biases, time, width, eps, splits, LOOPS: tl.constexpr, BLOCK: tl.constexpr):
    """One unit, some of its positions: normalise each once more, and add up g z and g."""
    unit = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    by_weight, by_bias = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for k in range(LOOPS):
        position = split * LOOPS + k
        counts = (columns < width) & (position < time)
        at = (unit * time + position) * width + columns
        values = tl.load(given + at, mask=counts, other=0.0).to(tl.float32)
        mean = tl.sum(values, axis=0) / width
        centred = tl.where(counts, values - mean, 0.0)
        variance = tl.sum(centred * centred, axis=0) / width
        gradient = tl.load(grad + at, mask=counts, other=0.0)
        by_weight += gradient * centred * (1.0 / tl.sqrt(variance + eps))
        by_bias += gradient
    here = (unit * splits + split) * width + columns
    tl.store(weights + here, by_weight, mask=columns < width)
    tl.store(biases + here, by_bias, mask=columns < width)


def layer_norm(grad: Tensor, given: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Sums over positions of g z and of g, `[batch, width]`, for inputs `[batch, time, width]`, z normalised over the width."""
    batch, time, width = given.shape
    loops = min(8, triton.next_power_of_2(time))
    splits = triton.cdiv(time, loops)
    weights, biases = (torch.empty(batch, splits, width, dtype=grad.dtype, device=grad.device) for _ in range(2))
    _launch(
        _layer_norm, (batch, splits), grad, given, weights, biases, time, width, eps, splits,
        LOOPS=loops, BLOCK=triton.next_power_of_2(width),
    )  # fmt: skip
    return weights.sum(1), biases.sum(1)


def form_taps(
    grad: Tensor,
    given: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    mask: Tensor | None,
    *,
    precision: str,
    stored: bool,
    small: bool,
    kind: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Gradients of a convolution's weight `[taps, batch, out, in]`, and the sums of their squares `[batch]` in float64.

    grad `[batch, out, h, w]`, given `[batch, in, H, W]` of one type, float32 or a half; `mask [taps, words, out]`. Not
    `stored`: there are none of the first. Else of some `kind`, and squares are those of what was rounded to it. `small`: in
    tiles that are compiled sooner and computed later. Triton's interpreter takes bfloat16 for whole numbers in products:
    widened there.
    """
    batch, outputs, height, width = grad.shape
    inputs, tall, wide = given.shape[1:]
    taps = kernel[0] * kernel[1]
    positions = height * width
    long = positions > FEW or small
    tile_out = SMALL if small else min(TILE_OUT, max(16, triton.next_power_of_2(outputs)))
    tile_in = SMALL if small else min(TILE_IN, max(16, triton.next_power_of_2(inputs)))
    block = SMALL if long else max(16, triton.next_power_of_2(positions))
    across = triton.cdiv(inputs, tile_in)
    tiles = across * triton.cdiv(outputs, tile_out)
    quick = precision == "tf32" or grad.dtype != torch.float32  # three products in full precision are compiled for long
    row = ROW_OF_TAPS and kernel[1] == 3 and quick and tile_out * tile_in <= ROW_TILE
    out = torch.empty(taps if stored else 0, batch, outputs, inputs, dtype=kind, device=grad.device)
    squares = torch.empty(batch, taps * tiles, dtype=torch.float64, device=grad.device)
    _launch(
        _taps, (batch, taps // 3 if row else taps, tiles),
        grad, given, out, squares, outputs, inputs, positions, width, tall * wide, tall, wide, across, kernel[1],
        out if mask is None else mask, *stride, *padding, *dilation, batch, tiles, triton.cdiv(positions, block),
        OUT=tile_out, IN=tile_in, BLOCK=block, MASKED=mask is not None,
        PRECISION=precision, STORED=stored, WIDENED=grad.dtype == torch.bfloat16 and not grad.is_cuda, TAPS=3 if row else 1,
        num_warps=8 if row and grad.dtype != torch.float32 and tile_out * tile_in == ROW_TILE else 4,
        num_stages=2 if long else 3,
        maxnreg=THREE_AT_ONCE if row and mask is not None and long and positions % 16 == 0 else None,  # others would not fit
    )  # fmt: skip
    return out, squares.sum(1)


def _ulps(longer: float) -> int:
    """By how many 2^-52, rounded up: numbers are handed to a kernel as float32, whole ones as they are."""
    return math.ceil((longer - 1) * 2**52)


def squares(rows: Tensor, longer: float, mask: Tensor | None) -> Tensor:
    """Sums of squares of `[batch, entries]` in float64, times `longer`, rounded up to a whole number of 2^-52.

    `mask`: bytes `[masks, entries]`, each for as many rows as the others; where they are 0 it does not matter what is there.
    """
    more = _ulps(longer)
    batch, entries = rows.shape
    block = min(2048, max(128, triton.next_power_of_2(entries)))
    blocks = triton.cdiv(entries, block)
    parts = max(1, min(blocks, triton.cdiv(4 * PROGRAMS, batch)))
    loops = triton.next_power_of_2(triton.cdiv(blocks, parts))
    parts = triton.cdiv(blocks, loops)
    out = torch.empty(batch, parts, dtype=torch.float64, device=rows.device)
    _launch(
        _squares, (batch, parts),
        rows, out, rows if mask is None else mask, rows.stride(0), entries, parts, more, loops,
        batch if mask is None else batch // len(mask), BLOCK=block,
        MASKED=mask is not None, num_warps=8 if block > 1024 else 4,
    )  # fmt: skip
    return out[:, 0] if parts == 1 else out.sum(1)


def weighted_sum(rows: Tensor, factors: Tensor) -> Tensor:
    """`sum_i factors_i rows_i` of `[taps, batch, entries]`, as `[taps, entries]` in float32.

    Factors in float64, rounded towards zero; rows in float32 or a half.
    """
    taps, batch, entries = rows.shape
    kernel, tall, block = (_weighted_by_row, LOW, LONG) if taps * entries >= MANY else (_weighted, TALL, BROAD)
    columns = triton.cdiv(entries, block)
    loops_in_all = triton.cdiv(batch, tall)
    splits = max(1, min(loops_in_all, triton.cdiv(PROGRAMS // 8, columns * taps)))
    loops = triton.next_power_of_2(triton.cdiv(loops_in_all, splits))
    splits = triton.cdiv(loops_in_all, loops)
    out = torch.empty(splits, taps, entries, dtype=torch.float32, device=rows.device)
    _launch(
        kernel, (columns, splits, taps),
        rows, factors, out, batch, entries, rows.stride(1), rows.stride(0), loops, ROWS=tall, BLOCK=block,
    )  # fmt: skip
    return out[0] if splits == 1 else out.sum(0)


def scaled(rows: Tensor, sizes: Tensor, factors: Tensor, *, light: bool) -> Tensor:
    """`p f rows` (light) or `rows / p` of `[batch, entries]`, p the powers of two above `sizes`; 0 where the factor is."""
    batch, entries = rows.shape
    out = torch.empty(batch, entries, dtype=rows.dtype, device=rows.device)
    _launch(
        _scaled, (batch, triton.cdiv(entries, 1024)),
        rows, sizes, factors, out, rows.stride(0), entries, LIGHT=light, BLOCK=1024,
    )  # fmt: skip
    return out
