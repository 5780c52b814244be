"""Rows that hold a tensor's extremes: the few that may be none that a model can take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

CHUNK = 1 << 22  # numbers looked at together
COMPARED = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
)  # fmt: skip
_EXTREMES: Any = WeakIdKeyDictionary()  # tensor -> (version, extremes)
_MAPPED: Any = WeakIdKeyDictionary()  # tensors over a file's bytes


class Extreme(NamedTuple):
    """A row and the value in it that stands out: the first that is not finite, the smallest or the largest whole number."""

    row: int
    value: float


def not_read(tensor: Tensor) -> None:
    """A tensor is mapped onto a file, which looking through would read as a whole: its extremes are not known."""
    _MAPPED[tensor] = True


def remember(tensor: Tensor, known: tuple[Extreme, ...]) -> None:
    """The extremes of a tensor over a file, seen while the file was read for something else."""
    _EXTREMES[tensor] = tensor._version, known


def unknown(tensor: Tensor) -> bool:
    """Is this a tensor over a file that nobody has looked through, or that was written into since?"""
    return tensor in _MAPPED and _EXTREMES.get(tensor, (None, ()))[0] != tensor._version


def extremes(tensor: Tensor) -> tuple[Extreme, ...]:
    """Of floating point numbers the first that is none, of whole numbers the smallest and the largest; as private as the rows.

    Remembered until somebody writes into the tensor. Cost: one reading. Of a tensor over a file those are known that were
    seen when it was verified.
    """
    if unknown(tensor):
        return ()
    if tensor.is_inference():  # has no version
        return tuple(_looked_up(tensor))
    version, known = _EXTREMES.get(tensor, (None, ()))
    if version != tensor._version:
        known = tuple(_looked_up(tensor))
        _EXTREMES[tensor] = tensor._version, known
    return known


def _looked_up(tensor: Tensor) -> Iterator[Extreme]:
    rows = max(1, CHUNK // max(1, tensor[:1].numel()))
    several: list[Extreme] = []
    for first in range(0, len(tensor) if tensor.dim() else 0, rows):
        several += in_part(tensor[first : first + rows], first)
    return iter(joined(several))


def in_part(part: Tensor, first: int) -> list[Extreme]:
    """The extremes of some rows, of which the first has this number."""
    if not part.numel() or part.dtype == torch.bool or part.is_complex():
        return []
    flat, width = part.detach().reshape(-1), part[0].numel()
    if part.dtype not in COMPARED:  # torch has no comparisons for the rarer types
        flat = flat.to(torch.float32 if part.is_floating_point() else torch.int64)
    if part.is_floating_point():
        places = [] if _surely_finite(flat) else _first_odd(flat)
    else:
        places = [int(flat.argmin()), int(flat.argmax())]
    return [Extreme(first + place // width, flat[place].item()) for place in places]


def _surely_finite(numbers: Tensor) -> bool:
    """Is their sum finite? Then all of them are. One that is not says nothing: it may have overflowed."""
    return bool(numbers.sum(dtype=torch.promote_types(numbers.dtype, torch.float32)).isfinite())


def _first_odd(numbers: Tensor) -> list[int]:
    odd = ~numbers.isfinite()
    return [int(odd.byte().argmax())] if bool(odd.any()) else []


def joined(several: list[Extreme]) -> tuple[Extreme, ...]:
    """The extremes among those of several parts, in the order of rows."""
    odd = [extreme for extreme in several if extreme.value - extreme.value != 0]
    if odd or not several:
        return tuple(odd[:1])
    ends = (min(several, key=lambda extreme: extreme.value), max(several, key=lambda extreme: extreme.value))
    return tuple(dict.fromkeys(ends))
