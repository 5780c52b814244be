"""Tensors as pieces of one vector, so that a GPU treats all of them in one operation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

TOGETHER = 4  # numbers that a GPU reads at once: every piece begins at a multiple


def _room(tensor: Tensor) -> int:
    return -(-tensor.numel() // TOGETHER) * TOGETHER


def room_for(tensors: Sequence[Tensor]) -> int:
    """Length of a vector with room for all of them."""
    return sum(map(_room, tensors))


def pieces(whole: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Pieces of a vector in these shapes, one behind the other; one operation each, since every step asks for them."""
    parts, place = [], whole.storage_offset()
    for tensor in like:
        strides = tensor.stride() if tensor.is_contiguous() else _strides(tensor.shape)
        parts.append(whole.as_strided(tensor.shape, strides, place))
        place += _room(tensor)
    return parts


def _strides(shape: Sequence[int]) -> list[int]:
    """Of a tensor whose entries lie in their order."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def lying_together(tensors: Sequence[Tensor]) -> Tensor | None:
    """The vector that these are the `pieces` of, in their order; None if they are not."""
    first = tensors[0]
    start, place = first.data_ptr(), 0
    for tensor in tensors:
        if tensor.data_ptr() != start + place * first.element_size() or not tensor.is_contiguous():
            return None
        place += _room(tensor)
    if (first.storage_offset() + place) * first.element_size() > first.untyped_storage().nbytes():
        return None  # neighbours by chance
    return first.as_strided((place,), (1,))
