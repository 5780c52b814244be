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
def _weighed(x, out, row, part, stride, entries, factor, scale, BLOCK: tl.constexpr):
    places = part * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + places, mask=(places < entries) & (factor != 0), other=0.0)
    tl.store(out + row * entries + places, values * scale, mask=places < entries)


@triton.jit(do_not_specialize=["blocks"])
def _pair(
    light, heavy, sizes, factors, lighter, heavier, light_stride, heavy_stride, light_entries, heavy_entries, blocks,
    SQUARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row, some entries of one of the two: the light one with weight and scale, the heavy one brought into range."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    one = row + tl.arange(0, 1)
    factor, size = tl.load(factors + one), tl.load(sizes + one).to(tl.float64)
    power = _power(tl.sqrt(size) if SQUARED else size)
    if part < blocks:
        _weighed(light, lighter, row, part, light_stride, light_entries, factor, _toward_zero(factor * power), BLOCK)
    else:
        scale = (1.0 / power).to(tl.float32)
        _weighed(heavy, heavier, row, part - blocks, heavy_stride, heavy_entries, factor, scale, BLOCK)


def weighted_pair(
    light: Tensor, heavy: Tensor, sizes: Tensor, factors: Tensor, *, squared: bool
) -> tuple[Tensor, Tensor]:
    """`p f light` and `heavy / p` of `[batch, entries]`, p the powers of two above `sizes`; 0 where the factor is.

    `squared`: sizes are squares.
    """
    batch = len(light)
    lighter, heavier = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (light, heavy))
    blocks = triton.cdiv(light.shape[1], WIDE)
    _launch(
        _pair, (batch, blocks + triton.cdiv(heavy.shape[1], WIDE)),
        light, heavy, sizes, factors, lighter, heavier, light.stride(0), heavy.stride(0), light.shape[1], heavy.shape[1],
        blocks, SQUARED=squared, BLOCK=WIDE,
    )  # fmt: skip
    return lighter, heavier
