"""Gradients of convolutions with few input channels, in Triton: all taps and channels are the columns of one tile.

Imported by `kernels` alone.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from noisewise.persample.triton_kernels import _launch
from noisewise.persample.triton_words import _where, _words

ENTRIES = 8192  # of a tile of out x columns
POSITIONS = 32  # of a step


@triton.jit(
    do_not_specialize=[
        "width", "tall", "wide", "taps", "kernel", "columns", "stride_y", "stride_x", "pad_y", "pad_x", "dilation_y",
        "dilation_x", "tiles",
    ],
    do_not_specialize_on_alignment=["loops"],
)  # fmt: skip
def _gathered(
    grad, given, out, squares, outputs, positions, width, area, tall, wide, taps, kernel, columns, mask,
    stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x, tiles, loops,
    OUT: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr, WIDENED: tl.constexpr,
):  # fmt: skip
    """One unit, some of its output channels: walk over positions, and gather what each tap of each channel sees there."""
    unit = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    rows = tile * OUT + tl.arange(0, OUT)
    column = tl.arange(0, COLUMNS)
    channel, tap = column // taps, column % taps
    tap_y, tap_x = (tap // kernel) * dilation_y - pad_y, (tap % kernel) * dilation_x - pad_x
    words = _words(mask, rows, outputs, 0, columns, 0, COLUMNS, MASKED)
    image = given + unit * (columns // taps) * area + channel * area
    total = tl.zeros([OUT, COLUMNS], tl.float32)
    for k in range(loops):
        places = k * BLOCK + tl.arange(0, BLOCK)
        there = places < positions
        y = ((places // width) * stride_y)[:, None] + tap_y[None, :]
        x = ((places % width) * stride_x)[:, None] + tap_x[None, :]
        inside = there[:, None] & (column < columns)[None, :] & (y >= 0) & (y < tall) & (x >= 0) & (x < wide)
        left = tl.load(
            grad + (unit * outputs + rows)[:, None] * positions + places[None, :],
            mask=(rows < outputs)[:, None] & there[None, :], other=0.0,
        )  # fmt: skip
        right = tl.load(image[None, :] + y * wide + x, mask=inside, other=0.0)
        if WIDENED:
            left, right = left.to(tl.float32), right.to(tl.float32)
        total += tl.dot(left, right, input_precision=PRECISION)
    counts = (rows < outputs)[:, None] & (column < columns)[None, :]
    entries = rows[:, None] * columns + column[None, :]
    if MASKED:
        total = _where(words, total)
    kept = total.to(out.dtype.element_ty)
    tl.store(out + unit * outputs * columns + entries, kept, mask=counts)
    exact = tl.where(counts, kept.to(tl.float32), 0.0).to(tl.float64)  # of what is stored
    tl.store(squares + unit * tiles + tile, tl.sum(tl.sum(exact * exact, axis=1), axis=0))


def gather_taps(
    grad: Tensor,
    given: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    mask: Tensor | None,
    *,
    precision: str,
    kind: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Gradients of a convolution's weight `[batch, out, in * taps]` in its order, of some `kind`; squared norms in float64.

    grad `[batch, out, h, w]`, given `[batch, in, H, W]` of one type, float32 or a half; `mask [words, out]`.
    """
    batch, outputs, height, width = grad.shape
    inputs, tall, wide = given.shape[1:]
    taps, positions = kernel[0] * kernel[1], height * width
    columns = taps * inputs
    broad = max(16, triton.next_power_of_2(columns))
    tile = min(max(16, triton.next_power_of_2(outputs)), max(16, ENTRIES // broad))
    tiles = triton.cdiv(outputs, tile)
    out = torch.empty(batch, outputs, columns, dtype=kind, device=grad.device)
    squares = torch.empty(batch, tiles, dtype=torch.float64, device=grad.device)
    _launch(
        _gathered, (batch, tiles),
        grad, given, out, squares, outputs, positions, width, tall * wide, tall, wide, taps, kernel[1], columns,
        out if mask is None else mask, *stride, *padding, *dilation, tiles, triton.cdiv(positions, POSITIONS),
        OUT=tile, COLUMNS=broad, BLOCK=POSITIONS, MASKED=mask is not None, PRECISION=precision,
        WIDENED=grad.dtype == torch.bfloat16 and not grad.is_cuda, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out, squares[:, 0] if tiles == 1 else squares.sum(1)
