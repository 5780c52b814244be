"""Kernels in Triton for norms of masked gradients of one position: `sum_jk l_j^2 m_jk r_k^2`, by one product in float16.

Imported by `kernels` alone.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from noisewise.persample.triton_kernels import _launch, _power, _ulps

FAR = tl.constexpr(300)  # exponents of lengths of float32 lie within, those of their squares are float64's


@triton.jit
def _upward(ulps):
    return 1.0 + ulps.to(tl.float64) * 2.220446049250313e-16


def _walk(entries: int) -> tuple[int, int, int]:
    """Entries of a step, steps and warps of a program that reads a row: small ones, of which many run side by side."""
    block = min(512, max(128, triton.next_power_of_2(entries)))
    return block, triton.cdiv(entries, block), 2


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
    upward = _upward(longer)
    size = tl.sum(total, axis=0) * upward + tl.zeros([1], tl.float64)
    tl.store(squares + one, size)
    if MASKED:
        tl.store(under + one, tl.sum(some, axis=0) * upward)
    scale = 128.0 / _power(tl.sqrt(size), FAR)
    for k in range(loops):  # what was read is near
        places = k * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(x + row * entries + places, mask=places < entries, other=0.0).to(tl.float64) * scale
        tl.store(out + row * entries + places, (values * values * 1.0009765625).to(tl.float16), mask=places < entries)


def halved(rows: Tensor, longer: float, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of squares of `[batch, entries]` as `squares`, of all and under a mask (bytes); scaled squares in float16.

    Rows are read once for the three. Without a mask the second is the first.
    """
    batch, entries = rows.shape
    block, loops, warps = _walk(entries)
    total = torch.empty(batch, dtype=torch.float64, device=rows.device)
    under = total if mask is None else torch.empty_like(total)
    halves = torch.empty(batch, entries, dtype=torch.float16, device=rows.device)
    _launch(
        _halved, (batch,),
        rows, rows if mask is None else mask, total, under, halves, entries, _ulps(longer), loops,
        BLOCK=block, MASKED=mask is not None, num_warps=warps,
    )  # fmt: skip
    return total, under, halves


@triton.jit(do_not_specialize=["loops", "more", "longer", "lost"])
def _dots(one, other, sizes, others, out, entries, loops, more, longer, lost, BLOCK: tl.constexpr):
    """`longer sum_k one_k other_k^2` in float64, with the scale of `halved` taken back, and a share of the whole.

    And `sum_k other_k^2`, since the others are read anyway.
    """
    row = tl.program_id(0).to(tl.int64)
    scalar = row + tl.arange(0, 1)
    total, square = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    for k in range(loops):
        places = k * BLOCK + tl.arange(0, BLOCK)
        counts = places < entries
        weights = tl.load(one + row * entries + places, mask=counts, other=0.0).to(tl.float64)
        values = tl.load(other + row * entries + places, mask=counts, other=0.0).to(tl.float64)
        square += values * values
        total += weights * (values * values)
    size, length = tl.load(sizes + scalar), tl.sum(square, axis=0) * _upward(more)
    back = _power(tl.sqrt(size), FAR) / 128.0
    tl.store(others + scalar, length)
    tl.store(out + scalar, tl.sum(total, axis=0) * back * back * longer + size * length * lost)


def masked_squares(
    halves: Tensor, right: Tensor, mask: Tensor, sizes: Tensor, more: float, longer: float, lost: float
) -> tuple[Tensor, Tensor]:
    """`longer sum_jk l_j^2 m_jk r_k^2 + lost |l|^2 |r|^2` in float64 for `[batch, rows]`, `[batch, columns]`; `more |r|^2`.

    `halved` of the left, its squared lengths, a mask in float16. Sums over rows are rounded to the nearest.
    """
    batch, columns = right.shape
    out, others = (torch.empty(batch, dtype=torch.float64, device=right.device) for _ in range(2))
    block, loops, warps = _walk(columns)
    _launch(
        _dots, (batch,),
        halves @ mask, right, sizes, others, out, columns, loops, _ulps(more), longer, lost, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    return out, others
