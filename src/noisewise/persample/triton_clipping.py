"""Kernels in Triton between norms and sums: totals of squares, factors held to a promise, factors of weighted products.

Each takes the place of many small operations, which start longer than they run. Imported by `kernels` alone.
"""

# mypy: ignore-errors

from __future__ import annotations

import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

from noisewise.persample.triton_kernels import _launch, _power, _toward_zero

BLOCK = 256  # units of a program
WIDE = 1024  # entries of a program
TURNED = 32, 64  # rows and entries of a tile that is turned


@triton.jit(do_not_specialize=["parts", "units"])
def _totals(squares, present, norms, counted, keep, parts, units, BLOCK: tl.constexpr):
    unit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = unit < units
    total = tl.zeros([BLOCK], tl.float64)
    for k in range(parts):
        total += tl.load(squares + k * units + unit, mask=here, other=0.0)
    norm = tl.sqrt(total)
    counts = (tl.load(present + unit, mask=here, other=0) != 0) & (norm <= 1.7976931348623157e308)
    tl.store(norms + unit, norm, mask=here)
    tl.store(counted + unit, tl.where(counts, norm, 0.0), mask=here)
    tl.store(keep + unit, counts.to(tl.uint8), mask=here)


def totals(squares: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Norms `[1, units]` from squares `[parts, units]`, the same with 0 for who does not count, and who does.

    Units count that are `present` (bytes) and have a finite norm.
    """
    parts, units = squares.shape
    norms, counted = (squares.new_empty(1, units) for _ in range(2))  # aligned alike whatever their number
    keep = torch.empty(units, dtype=torch.uint8, device=squares.device)
    _launch(_totals, (triton.cdiv(units, BLOCK),), squares, present, norms, counted, keep, parts, units, BLOCK=BLOCK)
    return norms, counted, keep.view(torch.bool)


@triton.jit(do_not_specialize=["limit", "units"])
def _held(factors, counted, keep, out, broken, limit, units, BLOCK: tl.constexpr):
    unit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = unit < units
    most = tl.full([1], limit, tl.int64).to(tl.float64, bitcast=True)
    factor = tl.load(factors + unit, mask=here, other=0.0)
    within = tl.abs(factor * tl.load(counted + unit, mask=here, other=0.0)) <= most  # not a number: beyond it
    counts = within & (tl.load(keep + unit, mask=here, other=0) != 0)
    tl.store(out + unit, tl.where(counts, factor, 0.0), mask=here)
    tl.atomic_max(broken, tl.max(tl.where(here & (within == 0), 1, 0), axis=0))


def held(factors: Tensor, counted: Tensor, keep: Tensor, limit: float, broken: Tensor) -> Tensor:
    """Factors `[1, units]`, 0 where `factor norm` is beyond the limit, which is written into `broken`, or nobody counts."""
    out, units = torch.empty_like(factors), factors.shape[1]
    (bits,) = struct.unpack(
        "<q", struct.pack("<d", limit)
    )  # numbers are handed to a kernel as float32, whole ones as they are
    _launch(
        _held, (triton.cdiv(units, BLOCK),),
        factors, counted, keep.view(torch.uint8), out, broken, bits, units, BLOCK=BLOCK,
    )  # fmt: skip
    return out


@triton.jit
def _weighed(x, out, rows, part, stride, entries, row_apart, apart, factor, scale, BLOCK: tl.constexpr):
    places = part * BLOCK + tl.arange(0, BLOCK)
    within = (places < entries)[None, :]
    at = x + rows.to(tl.int64)[:, None] * stride + places[None, :]
    values = tl.load(at, mask=(factor != 0)[:, None] & within, other=0.0) * scale[:, None]
    at = out + rows.to(tl.int64)[:, None] * row_apart + places.to(tl.int64)[None, :] * apart
    tl.store(at, values, mask=within)


@triton.jit(do_not_specialize=["batch", "blocks", "parts"])
def _pair(
    light, heavy, sizes, factors, lighter, heavier, light_stride, heavy_stride, light_entries, heavy_entries,
    light_row, light_apart, heavy_row, heavy_apart, batch, blocks, parts,
    SQUARED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some rows and entries of one of the two: the light one with weight and scale, the heavy one brought into range.

    Rows behind the last of the batch, of which there may be some in the last tile, are zeros.
    """
    rows = (tl.program_id(0) // parts) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(0) % parts
    factor = tl.load(factors + rows, mask=rows < batch, other=0.0)
    size = tl.load(sizes + rows, mask=rows < batch, other=1.0).to(tl.float64)
    power = _power(tl.sqrt(size) if SQUARED else size)
    if part < blocks:
        weight = _toward_zero(factor * power)
        _weighed(light, lighter, rows, part, light_stride, light_entries, light_row, light_apart, factor, weight, BLOCK)
    else:
        part -= blocks
        scale = (1.0 / power).to(tl.float32)
        _weighed(heavy, heavier, rows, part, heavy_stride, heavy_entries, heavy_row, heavy_apart, factor, scale, BLOCK)


def weighted_pair(
    light: Tensor, heavy: Tensor, sizes: Tensor, factors: Tensor, *, squared: bool, turned: bool
) -> tuple[Tensor, Tensor]:
    """`p f light` and `heavy / p` of `[batch, entries]`, p the powers of two above `sizes`; 0 where the factor is.

    `squared`: sizes are squares. `turned`: rows lie side by side, as tensor cores want what they sum over, and there are a
    multiple of `TURNED[0]`, the last of them zeros: how a product is aligned must not follow from how many units there are.
    """
    batch = len(light)
    tall, wide = TURNED if turned else (1, WIDE)
    room = triton.cdiv(batch, tall) * tall
    shapes = [(x.shape[1], room) if turned else x.shape for x in (light, heavy)]
    lighter, heavier = (torch.empty(shape, dtype=light.dtype, device=light.device) for shape in shapes)
    if turned:
        lighter, heavier = lighter.T, heavier.T
    blocks = triton.cdiv(light.shape[1], wide)
    parts = blocks + triton.cdiv(heavy.shape[1], wide)
    _launch(
        _pair, (room // tall * parts,),
        light, heavy, sizes, factors, lighter, heavier, light.stride(0), heavy.stride(0), light.shape[1], heavy.shape[1],
        *lighter.stride(), *heavier.stride(), batch, blocks, parts, SQUARED=squared, ROWS=tall, BLOCK=wide,
    )  # fmt: skip
    return lighter, heavier
