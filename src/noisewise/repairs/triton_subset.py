"""Kernels in Triton for random masks: keys are made where they are compared, and never lie in memory.

Imported by `random_sparsification` alone, where Triton is.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from noisewise.persample.triton_kernels import _launch

BLOCK = 1024  # places of a program


@triton.jit
def _keys(places, start):
    """As `random_sparsification.keys_of`, with a sign."""
    keys = (places + 1).to(tl.uint64) * 0x9E3779B97F4A7C15 + start.to(tl.uint64)
    keys = (keys ^ (keys >> 30)) * 0xBF58476D1CE4E5B9
    keys = (keys ^ (keys >> 27)) * 0x94D049BB133111EB
    return (keys ^ (keys >> 31)).to(tl.int64, bitcast=True)


@triton.jit(do_not_specialize=["start", "shift", "size"])
def _counts(among, low, counts, start: tl.int64, shift, size: tl.int64, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(among + places, mask=places < size, other=0) != 0
    digits = (_keys(places, start) >> shift) - tl.load(low + tl.arange(0, 1))
    tl.atomic_add(counts + digits, 1, mask=here & (digits >> 16 == 0), sem="relaxed")


def counts(among: Tensor, start: int, shift: int, low: Tensor) -> Tensor:
    """As `random_sparsification.counts` of the keys from a start."""
    found = torch.zeros(1 << 16, dtype=torch.int32, device=among.device)
    grid = (triton.cdiv(len(among), BLOCK),)
    _launch(_counts, grid, among.view(torch.uint8), low, found, start, shift, len(among), BLOCK=BLOCK)
    return found


@triton.jit(do_not_specialize=["start", "size"])
def _up_to(among, last, out, start: tl.int64, size: tl.int64, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(among + places, mask=places < size, other=0) != 0
    here = here & (_keys(places, start) <= tl.load(last + tl.arange(0, 1)))
    tl.store(out + places, here.to(tl.uint8), mask=places < size)


def up_to(among: Tensor, start: int, last: Tensor) -> Tensor:
    """The places among these whose key, from a start, is not above the last one."""
    out = torch.empty_like(among)
    grid = (triton.cdiv(len(among), BLOCK),)
    _launch(_up_to, grid, among.view(torch.uint8), last, out.view(torch.uint8), start, len(among), BLOCK=BLOCK)
    return out
