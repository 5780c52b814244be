"""Kernels in Triton that lay the masks of all parameters at once, on vectors whose length is a multiple of four.

Imported by `kernels` alone.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from noisewise.persample.triton_kernels import _launch
from noisewise.pieces import TOGETHER

BLOCK = 1024  # entries of a program


@triton.jit
def _places(fours, BLOCK: tl.constexpr):
    """Entries of a program, and which there are: by fours, which threads then read at once."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return places, places // 4 < fours


@triton.jit(do_not_specialize=["fours"], do_not_specialize_on_alignment=["values", "mask"])
def _cleared(values, mask, fours, BLOCK: tl.constexpr):
    """Not by fours: threads side by side write side by side what is masked, where each with four would touch all in turn."""
    places, there = _places(fours, BLOCK)
    learns = tl.load(mask + places, mask=there, other=1) != 0
    tl.store(values + places, tl.zeros([BLOCK], tl.float32), mask=there & (learns == 0))


@triton.jit(do_not_specialize=["fours"])
def _noised(values, noise, mask, std, fours, BLOCK: tl.constexpr):
    places, there = _places(fours, BLOCK)
    learns = tl.load(mask + places, mask=there, other=0) != 0
    total = tl.load(values + places, mask=there, other=0.0) + std * tl.load(noise + places, mask=there, other=0.0)
    tl.store(noise + places, tl.where(learns, total, 0.0), mask=there)


def cleared(values: Tensor, mask: Tensor) -> None:
    """Write zeros where the mask (bytes) is 0; nothing is read but the mask."""
    _launch(_cleared, (triton.cdiv(len(values), BLOCK),), values, mask, len(values) // TOGETHER, BLOCK=BLOCK)


def noised(values: Tensor, noise: Tensor, std: float, mask: Tensor) -> None:
    """`values + std noise` in the place of the noise, zero where the mask (bytes) is 0, whatever was there."""
    fours = len(values) // TOGETHER
    _launch(_noised, (triton.cdiv(len(values), BLOCK),), values, noise, mask, std, fours, BLOCK=BLOCK)
