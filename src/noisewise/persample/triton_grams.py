"""Norms of gradients of convolutions with few positions, in Triton: by Gram matrices, or, under a mask, tile by tile.

Imported by `kernels` alone.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from noisewise.persample.triton_kernels import TILE_IN, TILE_OUT, _launch, _power
from noisewise.persample.triton_words import _where, _words

IN_TURN = 16  # units of a program: while one is squared, the next are read
REGISTERS = (
    128  # of a thread that holds words of a mask: 16 warps fit on a multiprocessor, which turn numbers to float64
)


@triton.jit(
    do_not_specialize=[
        "width", "tall", "wide", "kernel", "stride_y", "stride_x", "pad_y", "pad_x", "dilation_y", "dilation_x", "by_grad",
        "by_given", "least",
    ],
    do_not_specialize_on_alignment=["loops_out", "loops_in"],
)  # fmt: skip
def _tap_grams(
    grad, given, grads, givens, out, outputs, inputs, positions, width, area, tall, wide, kernel,
    stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x, by_grad, by_given, least, loops_out, loops_in,
    TILE: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One unit, one tap: the product of the Gram matrices of all positions, and the most that rounding took from it."""
    unit = tl.program_id(0).to(tl.int64)
    tap = tl.program_id(1)
    size, extent = tl.load(grads + unit + tl.arange(0, 1)), tl.load(givens + unit + tl.arange(0, 1))
    power, reach = tl.sum(_power(size), axis=0), tl.sum(_power(extent), axis=0)
    down, inward = (1.0 / power).to(tl.float32), (1.0 / reach).to(tl.float32)
    places = tl.arange(0, TILE)
    there = places < positions
    y = (places // width) * stride_y + (tap // kernel) * dilation_y - pad_y
    x = (places % width) * stride_x + (tap % kernel) * dilation_x - pad_x
    inside = there & (y >= 0) & (y < tall) & (x >= 0) & (x < wide)
    left = tl.zeros([TILE, TILE], tl.float32)
    right = tl.zeros([TILE, TILE], tl.float32)
    lefts = tl.zeros([TILE], tl.float32)
    rights = tl.zeros([TILE], tl.float32)
    for k in range(loops_out):
        rows = k * BLOCK + tl.arange(0, BLOCK)
        at = grad + (unit * outputs + rows)[:, None] * positions + places[None, :]
        part = tl.load(at, mask=(rows < outputs)[:, None] & there[None, :], other=0.0) * down
        left += tl.dot(tl.trans(part), part, input_precision=PRECISION)
        lefts += tl.sum(part * part, axis=0)
    for k in range(loops_in):
        columns = k * BLOCK + tl.arange(0, BLOCK)
        at = given + (unit * inputs + columns)[:, None] * area + (y * wide + x)[None, :]
        part = tl.load(at, mask=(columns < inputs)[:, None] & inside[None, :], other=0.0) * inward
        right += tl.dot(tl.trans(part), part, input_precision=PRECISION)
        rights += tl.sum(part * part, axis=0)
    longer = 1.0 + (tl.maximum(outputs, inputs) + 8) * 1.1920928955078125e-07
    a, b = tl.sqrt(lefts.to(tl.float64)) * longer, tl.sqrt(rights.to(tl.float64)) * longer
    one, other = left.to(tl.float64), right.to(tl.float64)
    dot = tl.sum(tl.sum(one * other, axis=1), axis=0)
    first = tl.sum(tl.sum(a[:, None] * a[None, :] * tl.abs(other), axis=1), axis=0) * by_grad
    second = tl.sum(tl.sum(b[:, None] * b[None, :] * tl.abs(one), axis=1), axis=0) * by_given
    both = tl.sum(a * b, axis=0)
    error = (first + second) * (1.0 + 2.0 * (by_grad + by_given)) + both * both * by_grad * by_given + least
    some = tl.sum(tl.where((size != 0) & (extent != 0), 1.0, 0.0), axis=0)  # of nothing, nothing can vanish
    back = power * power * reach * reach * some
    at = out + (unit * tl.num_programs(1) + tap) * 2
    tl.store(at, (dot + error) * back)
    tl.store(at + 1, tl.sum(b * b, axis=0) * reach * reach)


def tap_grams(
    grad: Tensor,
    given: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    sizes: tuple[Tensor, Tensor],
    rounding: tuple[float, float, float],
    *,
    precision: str,
) -> Tensor:
    """`[batch, 2]` in float64: squared norms of a convolution's gradients, the most they can be, and of unfolded inputs.

    `sizes`: lengths of grad and given `[batch]` in float64. `rounding`: of products of grad and of given, relative, and what
    may vanish in any.
    """
    batch, outputs, height, width = grad.shape
    inputs, tall, wide = given.shape[1:]
    taps, positions, block = kernel[0] * kernel[1], height * width, 32
    out = torch.empty(batch, taps, 2, dtype=torch.float64, device=grad.device)
    _launch(
        _tap_grams, (batch, taps),
        grad, given, *sizes, out, outputs, inputs, positions, width, tall * wide, tall, wide, kernel[1],
        *stride, *padding, *dilation, *rounding, triton.cdiv(outputs, block), triton.cdiv(inputs, block),
        TILE=max(16, triton.next_power_of_2(positions)), BLOCK=block, PRECISION=precision, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out.sum(1)


@triton.jit(
    do_not_specialize=[
        "width", "tall", "wide", "across", "kernel", "stride_y", "stride_x", "pad_y", "pad_x", "dilation_y", "dilation_x",
        "batch", "tiles", "units",
    ],
)  # fmt: skip
def _tap_squares(
    grad, given, squares, outputs, inputs, positions, width, area, tall, wide, across, kernel, mask,
    stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x, batch, tiles, units,
    OUT: tl.constexpr, IN: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of out x in, one tap, some units in turn: the sum of the squares of each, where the mask is."""
    tile = tl.program_id(0)
    tap = tl.program_id(1)
    rows = (tile // across) * OUT + tl.arange(0, OUT)
    columns = (tile % across) * IN + tl.arange(0, IN)
    places = tl.arange(0, BLOCK)
    y = (places // width) * stride_y + (tap // kernel) * dilation_y - pad_y
    x = (places % width) * stride_x + (tap % kernel) * dilation_x - pad_x
    there = places < positions
    inside = there & (y >= 0) & (y < tall) & (x >= 0) & (x < wide)
    counts = (rows < outputs)[:, None] & (columns < inputs)[None, :]
    words = _words(mask, rows, outputs, tile % across, inputs, tap, IN, MASKED)
    for k in range(units):
        unit = (tl.program_id(2) * units + k).to(tl.int64)
        left = tl.load(
            grad + (unit * outputs + rows)[:, None] * positions + places[None, :],
            mask=(rows < outputs)[:, None] & there[None, :] & (unit < batch), other=0.0,
        )  # fmt: skip
        right = tl.load(
            given + (unit * inputs + columns)[None, :] * area + (y * wide + x)[:, None],
            mask=(columns < inputs)[None, :] & inside[:, None] & (unit < batch), other=0.0,
        )  # fmt: skip
        formed = tl.dot(left, right, input_precision=PRECISION)
        exact = (_where(words, formed) if MASKED else tl.where(counts, formed, 0.0)).to(tl.float64)
        total = tl.sum(tl.sum(exact * exact, axis=1), axis=0)
        tl.store(squares + (unit * tl.num_programs(1) + tap) * tiles + tile, total, mask=unit < batch)


def tap_squares(
    grad: Tensor,
    given: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    mask: Tensor | None,
    *,
    precision: str,
) -> Tensor:
    """Squared norms of a convolution's gradients `[batch]` in float64, which are not stored; see `form_taps`.

    float32, and so few positions that all of them are one step. A mask is read once for many units.
    """
    batch, outputs, height, width = grad.shape
    inputs, tall, wide = given.shape[1:]
    taps, positions = kernel[0] * kernel[1], height * width
    tile_out = min(TILE_OUT, max(16, triton.next_power_of_2(outputs)))
    tile_in = min(TILE_IN, max(16, triton.next_power_of_2(inputs)))
    across = triton.cdiv(inputs, tile_in)
    tiles = across * triton.cdiv(outputs, tile_out)
    squares = torch.empty(batch, taps * tiles, dtype=torch.float64, device=grad.device)
    block = max(16, triton.next_power_of_2(positions))
    _launch(
        _tap_squares, (tiles, taps, triton.cdiv(batch, IN_TURN)),
        grad, given, squares, outputs, inputs, positions, width, tall * wide, tall, wide, across, kernel[1],
        squares if mask is None else mask, *stride, *padding, *dilation, batch, tiles, IN_TURN,
        OUT=tile_out, IN=tile_in, BLOCK=block, MASKED=mask is not None,
        PRECISION=precision, num_warps=8 if block > 32 else 4, num_stages=2 if block > 32 else 3,
        maxnreg=REGISTERS if mask is not None and positions == 16 else None,  # others would not fit
    )  # fmt: skip
    return squares.sum(1)
