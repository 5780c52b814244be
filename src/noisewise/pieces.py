"""Tensors as pieces of one vector, so that a GPU treats all of them in one operation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

TOGETHER = 4  # numbers that a GPU reads at once: every piece begins at a multiple


def _room(tensor: Tensor) -> int:
    return -(-tensor.numel() // TOGETHER) * TOGETHER


def room_for(tensors: Sequence[Tensor]) -> int:
    """Length of a vector with room for all of them."""
    return sum(map(_room, tensors))


def pieces(whole: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Pieces of a vector in these shapes, one behind the other."""
    parts = whole.split([_room(tensor) for tensor in like])
    return [
        (part if len(part) == tensor.numel() else part[: tensor.numel()]).view(tensor.shape)
        for part, tensor in zip(parts, like, strict=True)
    ]


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
