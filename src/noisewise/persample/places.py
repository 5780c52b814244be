"""Where the units lie in memory: arithmetic on strides, so that every view of a tensor is decided without a rule of its own.

A storage that holds units in rows is described by two numbers: the byte at offset o belongs to unit `(o - base) // stride mod
units`. Whatever view is taken of it (transposed, flattened, split, widened), `locate` says along which dimension of the view
the unit runs, or that the view does not hold all units in their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Place(NamedTuple):
    """Dimension `dim` of size `outer * units * inner`: entry i belongs to unit `i // inner mod units`."""

    dim: int
    outer: int = 1
    inner: int = 1


FRONT = Place(0)  # the ordinary case: row i is unit i


class Rows(NamedTuple):
    """Bytes `base` to `end` of a storage hold units: byte o belongs to unit `(o - base) // stride mod units`."""

    base: int
    stride: int
    end: int


def locate(tensor: Tensor, rows: Rows, units: int) -> Place | None:
    """Where the unit runs in a view of a storage; None if some entry is not its own row's.

    The offset of an entry is a sum over dimensions of index times stride. Dimensions that jump by whole periods (`stride *
    units`) and those that stay within one unit's stretch do not change the unit; exactly one other may, and it must count
    the units, each `inner` times, from unit 0 on.
    """
    return _located(tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.element_size(), rows, units)


@lru_cache(maxsize=1 << 14)
def _located(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, size: int, rows: Rows, units: int
) -> Place | None:
    """`locate` by numbers alone: passes of the same shapes ask the same."""
    if rows.stride <= 0:
        return None
    start = offset * size - rows.base
    period = rows.stride * units
    within = start % period  # how far entries reach into their unit's stretch
    reach, place = start, None
    for dim, (count, step) in enumerate(zip(shape, strides, strict=True)):
        step *= size
        if count == 1 or step == 0:
            continue
        reach += (count - 1) * step
        if step % period == 0:
            continue
        if (count - 1) * step < rows.stride:
            within += (count - 1) * step
            continue
        inner, rest = divmod(rows.stride, step)
        if place is not None or rest or count % (inner * units):
            return None
        place = Place(dim, count // (inner * units), inner)
        within += (inner - 1) * step
    inside = start >= 0 and reach + size <= rows.end - rows.base
    return place if inside and within + size <= rows.stride else None


def rows_of(tensor: Tensor, place: Place) -> Rows:
    """The description of a storage from one tensor that covers it and the place of the unit in it."""
    size = tensor.element_size()
    stride = tensor.stride(place.dim) * size * place.inner
    offset = int(tensor.storage_offset()) * size
    return Rows(offset - offset % max(stride, 1), stride, tensor.untyped_storage().nbytes())


def apart(inputs: Iterable[Tensor]) -> list[Tensor]:
    """The tensors of a batch, copied where their memory does not hold unit behind unit or is used by two of them."""
    seen: dict[int, Rows] = {}
    result = []
    for tensor in inputs:
        units = tensor.shape[0]
        if tensor.numel() and units > 1:
            rows = rows_of(tensor, FRONT)
            plain = rows.stride > 0 and locate(tensor, rows, units) == FRONT
            if not plain or seen.setdefault(tensor.untyped_storage()._cdata, rows) != rows:
                tensor = tensor.clone(memory_format=torch.contiguous_format)
        result.append(tensor)
    return result
