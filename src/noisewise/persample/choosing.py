"""Rules of operations that join rows, choose among them or write into them."""

from __future__ import annotations

import torch
from torch import Tensor

from noisewise.persample.conditions import (
    Call,
    Places,
    axis_of,
    beside,
    check_agrees,
    check_same_for_each,
    check_shared,
    fail,
    place_in,
)
from noisewise.persample.places import Place


def joined(call: Call) -> Places:
    """Side by side along another dimension, or unit for unit behind each other."""
    parts = [part for part in call.args["tensors"] if part.numel()]
    ndim = call.outputs[0].dim()
    dim = axis_of(int(call.args.get("dim", 0)), ndim)
    stacked = parts[0].dim() < ndim
    held = [place for part in parts if (place := call.place(part)) is not None]
    place = held[0]
    if any(other != place for other in held) and (stacked or any(p.dim != dim or p.inner != place.inner for p in held)):
        raise fail(call, "joins units of different places")
    if not stacked and place.dim == dim:
        if len(held) != len(parts) or place.inner != 1:
            raise fail(call, "adds rows to the units")
        return [place._replace(outer=sum(p.outer for p in held))]
    for part in parts:
        if call.place(part) is None:
            check_same_for_each(call, part, place)
    return [place._replace(dim=place.dim + (stacked and dim <= place.dim))]


def repeated(call: Call) -> Places:
    """Copies one behind the other."""
    repeats, source = list(call.args["repeats"]), call.args["self"]
    place = place_in(call)
    dim = place.dim + len(repeats) - source.dim()
    times = repeats[dim]
    return [Place(dim, place.outer * times, place.inner)]


def _indices(call: Call) -> tuple[list[int], list[Tensor], int, int]:
    """Indexed dimensions, their indices, how many dimensions the indices make, and where these stand in the result."""
    given = list(call.args["indices"])
    dims = [dim for dim, index in enumerate(given) if index is not None]
    tensors = [index for index in given if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for index in tensors):
        raise fail(call, "selects by a mask: how much it selects depends on the data")
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    return dims, tensors, max(index.dim() for index in tensors), dims[0] if adjacent else 0


def _index_place(call: Call, dims: list[int], tensors: list[Tensor], ndim: int, skip: int | None = None) -> Place:
    """Common place of the unit in the indices, laid over each other."""
    others = [tensor for dim, tensor in zip(dims, tensors, strict=True) if dim != skip]
    if skip is None:
        return beside(call, others, ndim)
    numbers = tensors[dims.index(skip)]
    place = call.row_numbers(numbers, 1)
    if place is None or place.outer != 1 or place.inner != 1:
        raise fail(call, "chooses rows of the units")
    place = place._replace(dim=place.dim + ndim - numbers.dim())
    for tensor in others:
        check_agrees(call, tensor, place, ndim)
    return place


def indexed(call: Call) -> Places:
    """Entries of each unit's own row, or of a table that is the same for all."""
    source = call.args["self"]
    dims, tensors, ndim, first = _indices(call)
    place = call.place(source)
    if place is None:  # a table
        of_units = _index_place(call, dims, tensors, ndim)
        return [of_units._replace(dim=first + of_units.dim)]
    if place.dim in dims:
        if place.outer != 1 or place.inner != 1:
            raise fail(call, "chooses rows of the units")
        of_units = _index_place(call, dims, tensors, ndim, skip=place.dim)
        return [Place(first + of_units.dim)]
    if any(call.place(tensor) is not None for tensor in tensors):
        raise fail(call, "chooses among all units by what one of them holds")
    before = sum(dim not in dims for dim in range(place.dim))
    return [place._replace(dim=before + ndim if first == 0 or place.dim > dims[0] else place.dim)]


def put(call: Call) -> Places:
    """Entries written into each unit's own row."""
    source, values = call.args["self"], call.args["values"]
    dims, tensors, ndim, first = _indices(call)
    held = call.place(source)
    if held is None and (given := call.place(values)) is not None and not any(map(call.place, tensors)):
        others = [dim for dim in range(source.dim()) if dim not in dims]
        at = given.dim + ndim + len(others) - values.dim()
        if not first <= at < first + ndim:  # the unit's dimension is not indexed: the values say where it is
            held = given._replace(dim=others[at if at < first else at - ndim])
            check_same_for_each(call, source, held)
    numbered = [dim for dim, index in zip(dims, tensors, strict=True) if call.row_numbers(index, 1) is not None]
    result = ndim + source.dim() - len(dims)
    if held is not None and held.dim not in dims:
        if any(call.place(tensor) is not None for tensor in tensors):
            raise fail(call, "writes where what a unit holds says")
        before = sum(dim not in dims for dim in range(held.dim))
        at = held._replace(dim=before + ndim if first == 0 or held.dim > dims[0] else held.dim)
        check_agrees(call, values, at, result)
        return [held]
    chosen = held.dim if held is not None else numbered[0] if numbered else -1
    if chosen not in numbered or (held is not None and held != Place(chosen)):
        raise fail(call, "writes into rows of other units")
    of_units = _index_place(call, dims, tensors, ndim, skip=chosen)
    if held is None:
        check_same_for_each(call, source, Place(chosen))
    check_agrees(call, values, Place(first + of_units.dim), result)
    return [Place(chosen)]


def gathered(call: Call) -> Places:
    """Entries along another dimension than the unit's, each row from its own."""
    names = [name for name in ("self", "index", "src") if isinstance(call.args.get(name), Tensor)]
    tensors = [call.args[name] for name in names]
    place = beside(call, tensors, call.args["self"].dim())
    if place.dim == axis_of(int(call.args["dim"]), call.args["self"].dim()):
        raise fail(call, "chooses rows of the units")
    for tensor in tensors:
        if tensor.dim() != call.args["self"].dim():
            raise fail(call, "takes scalars")
        if call.place(tensor) is None and tensor.shape[place.dim] != place.outer * call.units * place.inner:
            raise fail(call, "takes fewer rows than there are units")
    return [place]


def selected(call: Call) -> Places:
    """Chosen entries along another dimension than the unit's, the same choice for all; or rows of a shared table."""
    source, index = call.args["self"], call.args["index"]
    dim = axis_of(int(call.args["dim"]), source.dim())
    place = call.place(source)
    if place is None:
        of_units = call.place(index)
        if of_units is None or index.dim() != 1:
            raise fail(call, "chooses in an unknown way")
        return [of_units._replace(dim=dim)]
    check_shared(call, "index")
    if place.dim == dim:
        raise fail(call, "chooses rows of the units")
    return [place]


def added_at(call: Call) -> Places:
    """Rows added at places that are the same for all units, along another dimension than theirs."""
    check_shared(call, "index")
    place = beside(call, [call.args["self"], call.args["source"]], call.args["self"].dim())
    if place.dim == axis_of(int(call.args["dim"]), call.args["self"].dim()):
        raise fail(call, "adds to rows of the units")
    return [place]


def against_shared(call: Call) -> Places:
    """Entry by entry against a sequence that is the same for all."""
    check_shared(call, "boundaries", "sorted_sequence", "test_elements", "sorter")
    name = next(name for name in ("elements", "self", "input") if isinstance(call.args.get(name), Tensor))
    if call.name.startswith("aten::searchsorted") and call.args["sorted_sequence"].dim() != 1:
        raise fail(call, "searches in sequences by row")
    return [place_in(call, name)]
