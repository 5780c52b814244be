"""Kernels of its own, where there are any: on a GPU with Triton. Each has a portable way beside it, equal up to rounding."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from noisewise.persample import laid
from noisewise.persample.steady import is_steady
from noisewise.pieces import TOGETHER

if TYPE_CHECKING:
    from torch import Tensor

INTERPRETED = False  # tests: kernels run on a CPU too, by Triton's interpreter
ENABLED = True
HALVES = (torch.bfloat16, torch.float16)
UPWARD = 1 + 2.0**-20  # numbers are handed to a kernel as float32


def usable(*tensors: Tensor, kind: torch.dtype = torch.float32) -> bool:
    """Are there kernels for these? float32 (or another kind) on a GPU, with rows that lie in one piece."""
    return ENABLED and all(
        tensor.dtype == kind
        and (INTERPRETED or (tensor.is_cuda and tensor.device.index == torch.cuda.current_device()))
        and tensor.numel() > 0
        and tensor.is_contiguous()
        for tensor in tensors
    ) and _there()  # fmt: skip


def walks(grad: Tensor, given: Tensor) -> bool:
    """Is `form_taps` for these? Both of one type, float32 or a half."""
    return grad.dtype in (torch.float32, *HALVES) and usable(grad, given, kind=grad.dtype)


def _reads(grad: Tensor, given: Tensor) -> bool:
    """Are norm layers for these? The gradient in float32; an input that was cast for the layer is read as it is."""
    return usable(grad) and given.dtype in (torch.float32, *HALVES) and usable(given, kind=given.dtype)


@cache
def _there() -> bool:
    return importlib.util.find_spec("triton") is not None and torch.version.hip is None


@cache
def _triton(part: str) -> Any:
    """The module `triton_PART`, imported only where Triton is."""
    return importlib.import_module(f"noisewise.persample.triton_{part}")


@cache
def get_ready(device: torch.device) -> None:
    """Begin to compile the kernels by which a model on this device is looked at; does not wait for them."""
    if ENABLED and device.type == "cuda" and _there():
        _triton("kernels").get_ready(device)


@contextmanager
def rehearsal(device: torch.device) -> Iterator[None]:
    """A pass whose results nobody reads: kernels are compiled, all at once, and not run. Results are any numbers.

    Where there are no kernels, and with a Triton that compiles one after the other, it is a pass like any other.
    """
    kept = ENABLED and (INTERPRETED or device.type == "cuda") and _there()
    if kept and hasattr(importlib.import_module("triton"), "AsyncCompileMode"):
        with _triton("kernels").rehearsal():
            yield
    else:
        yield


def squares(rows: Tensor, longer: float = 1.0, mask: Tensor | None = None) -> Tensor:
    """Sums of squares of `[batch, entries]` in float64, times `longer`; only where the mask is.

    One mask `[entries]`, or several `[masks, entries]`, each for as many rows, one behind the other.
    """
    total: Tensor = _triton("kernels").squares(
        rows, longer, None if mask is None else _bytes(mask).view(-1, rows.shape[1])
    )
    return total


def halved(rows: Tensor, longer: float, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """`squares` of `[batch, entries]`, of all and under a mask, and what `masked_squares` wants of the rows; read once."""
    made: tuple[Tensor, Tensor, Tensor] = _triton("single").halved(rows, longer, None if mask is None else _bytes(mask))
    return made


def masked_squares(
    halves: Tensor, right: Tensor, mask: Tensor, sizes: Tensor, more: float, longer: float, lost: float
) -> tuple[Tensor, Tensor]:
    """`longer sum_jk l_j^2 m_jk r_k^2 + lost |l|^2 |r|^2` in float64 for `[batch, rows]`, `[batch, columns]`; `more |r|^2`.

    Of `halved` of the left and its squared lengths. By a product in float16 whose sums are float32.
    """
    with _added_in_float32():
        squares: tuple[Tensor, Tensor] = _triton("single").masked_squares(
            halves, right, laid.form(laid.halves, mask), sizes, more, longer * UPWARD, lost * UPWARD
        )
    return squares


@contextmanager
def _added_in_float32() -> Iterator[None]:
    """Products of float16 add up in float32, whatever is allowed; only what is on is put back, and nothing else is touched."""
    settings = torch.backends.cuda.matmul
    names = ("allow_fp16_reduced_precision_reduction", "allow_fp16_accumulation")  # the second since torch 2.7
    allowed = [name for name in names if getattr(settings, name, False)]
    try:
        for name in allowed:
            setattr(settings, name, False)
        yield
    finally:
        for name in allowed:
            setattr(settings, name, True)


def _by_row(mask: Tensor, rows: int) -> Tensor:
    """Words `[words, rows]`: remembered, except of a mask that must be copied to have rows, since a copy is not renewed."""
    if mask.is_contiguous():
        return laid.form(laid.words, mask.view(rows, -1))
    return laid.words(mask.reshape(rows, -1))


def _bytes(mask: Tensor) -> Tensor:
    return mask.contiguous().view(torch.uint8)


def weighted_sum(rows: Tensor, factors: Tensor) -> Tensor:
    """`sum_i factors_i rows_i` of `[taps, batch, entries]`: rows of factor 0 do not matter, whatever they hold."""
    total: Tensor = _triton("kernels").weighted_sum(rows, factors.contiguous())
    return total


def adds(rows: Tensor) -> bool:
    """Is `weighted_sum` for these? Gradients that are kept lie in float32, or in bfloat16."""
    return rows.dtype in (torch.float32, torch.bfloat16) and usable(rows, kind=rows.dtype)


def _of_two_axes(
    grad: Tensor,
    given: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
) -> tuple[Any, ...]:
    """A convolution over one axis as one over two, the first of length 1; one over two as it is. Padding in front counts."""
    spare = 2 - len(kernel)
    if spare:
        grad, given = grad.unsqueeze(2), given.unsqueeze(2)
    ones, before = (1,) * spare, tuple(first for first, _ in padding)
    return grad, given, ones + kernel, ones + stride, (0,) * spare + before, ones + dilation


def form_taps(
    grad: Tensor,
    given: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    mask: Tensor | None,
    *,
    cut: bool,
    stored: bool = True,
    kind: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Gradients of a convolution's weight over one or two axes, `[taps, batch, out, in]`, and their squared norms in float64.

    `cut`: products may be of TF32 factors; those of factors in half precision are exact. Not `stored`: only the norms.
    Stored in some `kind`, and measured so. Products in full precision take seconds to compile in large tiles, which a
    captured step is worth and a look at a few made-up units is not.
    """
    setup = _of_two_axes(grad, given, kernel, stride, padding, dilation)
    by_tap = None if mask is None else laid.form(laid.by_tap, mask)
    formed: tuple[Tensor, Tensor] = _triton("kernels").form_taps(
        *setup, by_tap,
        precision="tf32" if cut else "ieee", stored=stored, small=not cut and not is_steady(), kind=kind,
    )  # fmt: skip
    return formed


def gather_taps(
    grad: Tensor,
    given: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    mask: Tensor | None,
    kind: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Gradients of a convolution's weight with few channels, `[batch, out, in * taps]`, and their squared norms in float64.

    Products may be of TF32 factors; those of factors in half precision are exact. Of some `kind`, and measured so.
    """
    setup = _of_two_axes(grad, given, kernel, stride, padding, dilation)
    by_row = None if mask is None else _by_row(mask, grad.shape[1])
    formed: tuple[Tensor, Tensor] = _triton("few").gather_taps(*setup, by_row, precision="tf32", kind=kind)
    return formed


def tap_grams(
    grad: Tensor,
    given: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    sizes: tuple[Tensor, Tensor],
    rounding: tuple[float, float, float],
    *,
    cut: bool,
) -> tuple[Tensor, Tensor]:
    """Squared norms of a convolution's gradients by Gram matrices that are not stored, the most that they can be.

    And the squared lengths of unfolded inputs. Few positions only: all of them are one tile.
    """
    setup = _of_two_axes(grad, given, kernel, stride, padding, dilation)
    upward = tuple(number * UPWARD for number in rounding)
    found: Tensor = _triton("grams").tap_grams(*setup, sizes, upward, precision="tf32" if cut else "ieee")
    return found[:, 0], found[:, 1]


def tap_squares(
    grad: Tensor,
    given: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    mask: Tensor | None,
    *,
    cut: bool,
) -> Tensor:
    """Squared norms as those of `form_taps`, of gradients with few positions that are not stored."""
    setup = _of_two_axes(grad, given, kernel, stride, padding, dilation)
    by_tap = None if mask is None else laid.form(laid.by_tap, mask)
    squares: Tensor = _triton("grams").tap_squares(*setup, by_tap, precision="tf32" if cut else "ieee")
    return squares


def group_norm(grad: Tensor, given: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor] | None:
    """Sums over positions of g z and of g for inputs `[batch, channels, ...]`, z normalised in groups; None for large ones."""
    places = given[0, 0].numel()
    if not _reads(grad, given) or places * (given.shape[1] // groups) > 8192:
        return None
    sums: tuple[Tensor, Tensor] = _triton("kernels").group_norm(grad.flatten(2), given.flatten(2), groups, eps)
    return sums


def layer_norm(grad: Tensor, given: Tensor, width: int, eps: float) -> tuple[Tensor, Tensor] | None:
    """Sums over positions of g z and of g, z normalised over the last `width` numbers; None for large ones."""
    if not _reads(grad, given) or width > 8192:
        return None
    units = len(given)
    sums: tuple[Tensor, Tensor] = _triton("kernels").layer_norm(
        grad.view(units, -1, width), given.view(units, -1, width), eps
    )
    return sums


def narrowed(factor: Tensor) -> tuple[Tensor, Tensor]:
    """A factor `[batch, time, entries]` of `outers` in float16, each unit's divided by a power of two; and those powers."""
    made: tuple[Tensor, Tensor] = _triton("outer").narrowed(factor, _triton("outer").top_for(factor.shape[1]))
    return made


def outers(
    left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Masked gradients `sum_t l_t r_t^T` of narrowed factors, `[batch, entries]` in float16 as well; powers of two; squares.

    Squared norms in float64 are those of what is stored times its power of two, rounded up.
    """
    by_row = None if mask is None else _by_row(mask, left[0].shape[2])
    formed: tuple[Tensor, Tensor, Tensor] = _triton("outer").outers(left, right, by_row)
    return formed


def weighted_pair(
    light: Tensor, heavy: Tensor, sizes: Tensor, factors: Tensor, *, squared: bool = False, turned: bool = False
) -> tuple[Tensor, Tensor]:
    """`gradients.weighted`: scaled by powers of two near `sizes`; rows of factor 0 are 0 in both, whatever they hold.

    `squared`: sizes are squares. `turned`: the same numbers with units side by side in memory, and some rows of zeros more.
    """
    one, other = _triton("clipping").weighted_pair(
        light.flatten(1), heavy.flatten(1), sizes.contiguous(), factors.contiguous(), squared=squared, turned=turned
    )
    return one.unflatten(1, light.shape[1:]), other.unflatten(1, heavy.shape[1:])


def totals(squares: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From squares `[parameters, batch]` in float64: norms `[1, batch]`, 0 instead for who does not count, and who does.

    Units count that are present and whose norm is finite.
    """
    found: tuple[Tensor, Tensor, Tensor] = _triton("clipping").totals(squares, _bytes(present))
    return found


def held(factors: Tensor, counted: Tensor, keep: Tensor, limit: float, broken: Tensor) -> Tensor:
    """Factors of one block, 0 for who does not count and where `factor norm` is beyond a limit: then `broken` is 1."""
    kept: Tensor = _triton("clipping").held(factors.contiguous(), counted, keep, limit, broken)
    return kept


def lays(values: Tensor, mask: Tensor) -> bool:
    """Are `cleared` and `noised` for these? Vectors of pieces that begin at multiples of `TOGETHER`."""
    return (
        values.shape == mask.shape and len(values) % TOGETHER == 0 and usable(values) and usable(mask, kind=torch.bool)
    )


def cleared(values: Tensor, mask: Tensor) -> None:
    """Exactly zero where the mask is not, whatever was there; what is kept is not read."""
    _triton("masks").cleared(values, _bytes(mask))


def noised(values: Tensor, noise: Tensor, std: float, mask: Tensor) -> None:
    """`values + std noise`, written over the noise, and exactly zero where the mask is not, whatever was there."""
    _triton("masks").noised(values, noise, float(std), _bytes(mask))
