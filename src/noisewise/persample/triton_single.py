"""Kernels in Triton for norms of masked gradients of one position: `sum_jk l_j^2 m_jk r_k^2`, by one product in float16.

Imported by `kernels` alone.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from noisewise.persample.triton_kernels import PROGRAMS, _launch, _power, _ulps


@triton.jit(do_not_specialize=["longer", "loops"])
def _halved(x, mask, squares, under, out, entries, longer, loops, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """Sums of squares as `_squares` takes them; squares scaled to at most 2^14, rounded up to float16."""
    row = tl.program_id(0).to(tl.int64)
    one = row + tl.arange(0, 1)
    total, some = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    for k in range(loops):
        places = k * BLOCK + tl.arange(0, BLOCK)
        counts = places < entries
        values = tl.load(x + row * entries + places, mask=counts, other=0.0).to(tl.float64)
        total += values * values
        if MASKED:  # what is not in the mask does not matter, whatever it is
            some += tl.where(tl.load(mask + places, mask=counts, other=0) != 0, values * values, 0.0)
    upward = 1.0 + longer.to(tl.float64) * 2.220446049250313e-16
    size = tl.sum(total, axis=0) * upward + tl.zeros([1], tl.float64)
    tl.store(squares + one, size)
    if MASKED:
        tl.store(under + one, tl.sum(some, axis=0) * upward)
    scale = (128.0 / _power(tl.sqrt(size))).to(tl.float32)
    for k in range(loops):  # what was read is near
        places = k * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(x + row * entries + places, mask=places < entries, other=0.0) * scale
        tl.store(out + row * entries + places, (values * values * 1.0009765625).to(tl.float16), mask=places < entries)


def halved(rows: Tensor, longer: float, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of squares of `[batch, entries]` as `squares`, of all and under a mask (bytes); scaled squares in float16.

    Rows are read once for the three. Without a mask the second is the first.
    """
    batch, entries = rows.shape
    block = min(2048, max(128, triton.next_power_of_2(entries)))
    total = torch.empty(batch, dtype=torch.float64, device=rows.device)
    under = total if mask is None else torch.empty_like(total)
    halves = torch.empty(batch, entries, dtype=torch.float16, device=rows.device)
    _launch(
        _halved, (batch,),
        rows, rows if mask is None else mask, total, under, halves, entries, _ulps(longer), triton.cdiv(entries, block),
        BLOCK=block, MASKED=mask is not None, num_warps=8 if block > 1024 else 4,
    )  # fmt: skip
    return total, under, halves


@triton.jit(do_not_specialize=["parts", "loops", "longer", "lost"])
def _dots(one, other, sizes, others, out, entries, parts, loops, longer, lost, BLOCK: tl.constexpr):
    """`longer sum_k one_k other_k^2` in float64, with the scale of `halved` taken back, and a share of the whole."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    scalar = row + tl.arange(0, 1)
    total = tl.zeros([BLOCK], tl.float64)
    for k in range(loops):
        places = (part * loops + k) * BLOCK + tl.arange(0, BLOCK)
        counts = places < entries
        weights = tl.load(one + row * entries + places, mask=counts, other=0.0).to(tl.float64)
        values = tl.load(other + row * entries + places, mask=counts, other=0.0).to(tl.float64)
        total += weights * values * values
    size = tl.load(sizes + scalar)
    back = _power(tl.sqrt(size)) / 128.0
    share = tl.where(part == 0, size * tl.load(others + scalar) * lost, 0.0)
    tl.store(out + row * parts + part + tl.arange(0, 1), tl.sum(total, axis=0) * back * back * longer + share)


def masked_squares(
    halves: Tensor, right: Tensor, mask: Tensor, squares: tuple[Tensor, Tensor], longer: float, lost: float
) -> Tensor:
    """`longer sum_jk l_j^2 m_jk r_k^2 + lost |l|^2 |r|^2` in float64 for `[batch, rows]`, `[batch, columns]`.

    `halved` of the left, a mask in float16, squared lengths of both. Sums over rows are rounded to the nearest.
    """
    sizes, others = squares
    batch, columns = right.shape
    sums = halves @ mask
    blocks = triton.cdiv(columns, 1024)
    loops = triton.next_power_of_2(triton.cdiv(blocks, max(1, min(blocks, triton.cdiv(PROGRAMS, batch)))))
    parts = triton.cdiv(blocks, loops)
    out = torch.empty(batch, parts, dtype=torch.float64, device=right.device)
    _launch(_dots, (batch, parts), sums, right, sizes, others, out, columns, parts, loops, longer, lost, BLOCK=1024)
    return out[:, 0] if parts == 1 else out.sum(1)
