"""Gradients of linear layers over several positions, in Triton: factors in float16, each unit's scaled by powers of two.

Tensor cores take factors of float16 however they lie in memory; those of TF32 they want with positions side by side, which
these are not. Imported by `kernels` alone.
"""

# mypy: ignore-errors

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from noisewise.persample.triton_kernels import PROGRAMS, _launch
from noisewise.persample.triton_words import _where, _words

TILE = 128  # rows and columns of a gradient that a program forms
POSITIONS = 64  # of a step
BLOCK = 2048  # entries of a factor that a program reads at once


@triton.jit(do_not_specialize=["parts", "loops"])
def _largest(x, out, entries, parts, loops, BLOCK: tl.constexpr):
    """The largest magnitude of some entries of a unit; what is no number is left to whoever uses it."""
    unit = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    largest = tl.zeros([BLOCK], tl.float32)
    for k in range(loops):
        places = (part * loops + k) * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(x + unit * entries + places, mask=places < entries, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(values))
    tl.store(out + unit * parts + part, tl.max(largest, axis=0))


@triton.jit(do_not_specialize=["parts", "top"])
def _narrowed(x, largest, out, scales, entries, parts, top, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """Entries times the power of two that brings the largest below 2^top, in float16; and what takes that back."""
    unit = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    several = tl.arange(0, PARTS)[None, :] + tl.zeros([1, 1], tl.int32)
    most = tl.max(tl.load(largest + unit * parts + several, mask=several < parts, other=0.0), axis=1)
    exponent = tl.maximum(
        ((most.to(tl.int32, bitcast=True) >> 23) & 255) - 126, -119
    )  # the largest is below 2^exponent
    scale = ((top - exponent + 127) << 23).to(tl.float32, bitcast=True)
    places = block * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + unit * entries + places, mask=places < entries, other=0.0).to(tl.float32)
    tl.store(out + unit * entries + places, (values * scale).to(tl.float16), mask=places < entries)
    if block == 0:
        back = ((exponent - top + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)
        tl.store(scales + unit + tl.arange(0, 1), back)


def narrowed(x: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """`x_i / s_i` of `[batch, ...]` in float16, below 2^top, and the powers of two s_i in float64."""
    batch, entries = len(x), x[0].numel()
    blocks = triton.cdiv(entries, BLOCK)
    loops = triton.next_power_of_2(triton.cdiv(blocks, max(1, min(blocks, triton.cdiv(PROGRAMS, batch)))))
    parts = triton.cdiv(blocks, loops)
    largest = torch.empty(batch, parts, dtype=torch.float32, device=x.device)
    _launch(_largest, (batch, parts), x, largest, entries, parts, loops, BLOCK=BLOCK)
    out = torch.empty(x.shape, dtype=torch.float16, device=x.device)
    scales = torch.empty(batch, dtype=torch.float64, device=x.device)
    _launch(
        _narrowed, (batch, blocks), x, largest, out, scales, entries, parts, top,
        BLOCK=BLOCK, PARTS=triton.next_power_of_2(parts),
    )  # fmt: skip
    return out, scales


@triton.jit(
    do_not_specialize=["time", "across", "tiles"],
    do_not_specialize_on_alignment=["loops"],
)
def _outers(
    left, right, left_scales, right_scales, out, scales, squares, mask, time, rows, columns, across, tiles, loops,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One unit, one tile of rows x columns: walk over positions, store the tile in float16, and the sum of its squares."""
    tile = tl.program_id(0)
    unit = tl.program_id(1).to(tl.int64)
    row = (tile // across) * ROWS + tl.arange(0, ROWS)
    column = (tile % across) * COLUMNS + tl.arange(0, COLUMNS)
    words = _words(mask, row, rows, tile % across, columns, 0, COLUMNS, MASKED)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for k in range(loops):
        place = k * BLOCK + tl.arange(0, BLOCK)
        here = (place < time)[:, None]
        at = (unit * time + place)[:, None]
        one = tl.load(left + at * rows + row[None, :], mask=here & (row < rows)[None, :], other=0.0)
        other = tl.load(right + at * columns + column[None, :], mask=here & (column < columns)[None, :], other=0.0)
        total = tl.dot(tl.trans(one), other, total)
    counts = (row < rows)[:, None] & (column < columns)[None, :]
    entries = row[:, None] * columns + column[None, :]
    if MASKED:
        total = _where(words, total)
    stored = total.to(tl.float16)
    tl.store(out + unit * rows * columns + entries, stored, mask=counts)
    exact = stored.to(tl.float32)  # whose squares are exact too, and neither vanish nor overflow
    one_scale = tl.load(left_scales + unit + tl.arange(0, 1)) * tl.load(right_scales + unit + tl.arange(0, 1))
    length = tl.sum(tl.sum(exact * exact, axis=1).to(tl.float64), axis=0) * 1.0000152587890625  # sums of float32
    tl.store(squares + unit * tiles + tile + tl.arange(0, 1), length * one_scale * one_scale)
    if tile == 0:
        tl.store(scales + unit + tl.arange(0, 1), one_scale)


def top_for(time: int) -> int:
    """The exponent below which factors must lie so that sums over so many positions fit into float16."""
    return (15 - math.ceil(math.log2(time))) // 2


def outers(
    left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """`sum_t l_t r_t^T` of narrowed `[batch, time, rows]` and `[batch, time, columns]`: `g_i / s_i` in float16, s, squares.

    Squares are those of `s_i` times what is stored, rounded up. `mask [words, rows]`.
    """
    (lefts, left_scales), (rights, right_scales) = left, right
    batch, time, rows = lefts.shape
    columns = rights.shape[2]
    tall, broad = (min(TILE, max(16, triton.next_power_of_2(size))) for size in (rows, columns))
    across = triton.cdiv(columns, broad)
    tiles = triton.cdiv(rows, tall) * across
    block = min(POSITIONS, max(16, triton.next_power_of_2(time)))
    out = torch.empty(batch, rows * columns, dtype=torch.float16, device=lefts.device)
    scales = torch.empty(batch, dtype=torch.float64, device=lefts.device)
    squares = torch.empty(batch, tiles, dtype=torch.float64, device=lefts.device)
    _launch(
        _outers, (tiles, batch),
        lefts, rights, left_scales, right_scales, out, scales, squares, out if mask is None else mask, time, rows, columns,
        across, tiles, triton.cdiv(time, block),
        ROWS=tall, COLUMNS=broad, BLOCK=block, MASKED=mask is not None, num_warps=8 if tall * broad > 8192 else 4,
        num_stages=3,
    )  # fmt: skip
    return out, scales, squares[:, 0] if tiles == 1 else squares.sum(1)
