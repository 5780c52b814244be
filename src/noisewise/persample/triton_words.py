"""Masks within kernels, in Triton: bits that stay in few registers, asked for before a sum and used behind it.

Imported by other kernels alone. `laid.words` lays them: a word holds 32 columns of a row, words of rows side by side.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _words(mask, rows, height, tile, width, tap, COLUMNS: tl.constexpr, MASKED: tl.constexpr):
    """Of a tap's mask, height x width: words `[rows, words]` of a tile's columns; 0 for rows that are not there."""
    if MASKED:
        BITS: tl.constexpr = 32 if COLUMNS > 32 else COLUMNS
        word = tap * tl.cdiv(width, 128) * 4 + tile * (COLUMNS // BITS) + tl.arange(0, COLUMNS // BITS)
        return tl.load(mask + word[None, :] * height + rows[:, None], mask=(rows < height)[:, None], other=0)
    else:
        return mask


@triton.jit
def _where(words, total):
    """A tile where its mask is; 0 elsewhere, and beyond rows and columns that are there."""
    BITS: tl.constexpr = total.shape[1] // words.shape[1]
    bits = (words[:, :, None] >> tl.arange(0, BITS)[None, None, :]) & 1
    return tl.where(tl.reshape(bits, total.shape) != 0, total, 0.0)
