"""The table of operations that act row by row, and on which condition: what a proof may use. What is not here is unknown.

Each rule takes a `Call` whose inputs hold units and says where the units run in each output, or raises `NotProven` with the
reason. docs/operations.md is written from this table; `tests/persample/test_operations.py` asks every row of it for the
definition: moving one unit moves that unit's row of the output and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from noisewise.persample.places import FRONT, Place


class NotProven(Exception):
    """An operation is not known to act row by row; its text says which and why."""


class Call(Protocol):
    """One operation on tensors, some of which hold units."""

    name: str
    args: dict[str, Any]
    outputs: list[Tensor]
    units: int

    def place(self, tensor: Tensor | None) -> Place | None:
        """Where the unit runs; None for a tensor that holds no units."""
        ...

    def alike(self, tensor: Tensor, place: Place) -> bool:
        """Is a tensor without units the same for each unit, laid beside one with the units at `place`?"""
        ...

    def row_numbers(self, tensor: Tensor, step: int) -> Place | None:
        """Where 0, step, 2 step, ... (one number for each unit) run, if the tensor is known to hold them."""
        ...


Places = Sequence[Place | None]
Rule = Callable[[Call], Places]


class Row(NamedTuple):
    """A row of the table: operations that share a rule, and its condition in words."""

    names: tuple[str, ...]
    rule: Rule
    condition: str


def _fail(call: Call, reason: str) -> NotProven:
    return NotProven(f"{call.name} {reason}")


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [item for item in value if isinstance(item, Tensor)] if isinstance(value, list | tuple) else []


def _main(call: Call) -> Tensor:
    """The main input, under either of its names."""
    tensor: Tensor = call.args["self" if "self" in call.args else "input"]
    return tensor


def _own(call: Call, name: str = "self") -> Place:
    """Place of the unit in a main input that must hold units."""
    place = call.place(call.args[name])
    if place is None:
        raise _fail(call, f"takes {name} from no unit and something else from units")
    return place


def _shared(call: Call, *names: str) -> None:
    """Inputs that must be the same for all units: weights, tables, scales."""
    for name in names:
        for tensor in _tensors(call.args.get(name)):
            if call.place(tensor) is not None:
                raise _fail(call, f"takes {name} from the units")


def _axis(dim: int, ndim: int) -> int:
    return dim + ndim if dim < 0 else dim


def _axes(call: Call, ndim: int, name: str = "dim") -> list[int]:
    given = call.args.get(name)
    if given is None or given == []:
        return list(range(ndim))
    return [_axis(int(dim), ndim) for dim in (given if isinstance(given, list | tuple) else [given])]


def beside(call: Call, tensors: Iterable[Tensor], ndim: int) -> Place:
    """Common place of the unit when tensors are laid over each other, last dimension on last dimension.

    Those without units must be the same for each unit there.
    """
    tensors = list(tensors)
    places = set()
    for tensor in tensors:
        if (place := call.place(tensor)) is not None:
            places.add(place._replace(dim=place.dim + ndim - tensor.dim()))
    if len(places) != 1:
        raise _fail(call, "lays units of different places over each other")
    place = places.pop()
    for tensor in tensors:
        if call.place(tensor) is None:
            _same_for_each(call, tensor, place._replace(dim=place.dim - ndim + tensor.dim()))
    return place


def _same_for_each(call: Call, tensor: Tensor, place: Place) -> None:
    if place.dim >= 0 and tensor.numel() and not call.alike(tensor, place):
        raise _fail(call, "lays a tensor that differs by position over the units")


def pointwise(call: Call) -> Places:
    """Entry by entry, with broadcasting."""
    if call.args.get("reduction", 0) != 0:  # defaults of the operation are among the arguments
        raise _fail(call, "adds up the losses of all units: use reduction='none'")
    out = call.outputs[0]
    tensors = [tensor for value in call.args.values() for tensor in _tensors(value)]
    place = beside(call, tensors, out.dim())
    if out.shape[place.dim] != place.outer * call.units * place.inner:
        raise _fail(call, "broadcasts the dimension of the units")
    return [place] * len(call.outputs)


def copy(call: Call) -> Places:
    """Entries of `src`, whatever was there before."""
    source = call.args["src"]
    place = beside(call, [source], call.outputs[0].dim())
    return [place]


def reduction(call: Call) -> Places:
    """Over dimensions other than the unit's."""
    _shared(call, "correction", "value")
    source = call.args["self"]
    place, dims = _own(call), _axes(call, source.dim())
    if place.dim in dims:
        raise _fail(call, "goes over the units")
    kept = bool(call.args.get("keepdim", False))
    return [place if kept else place._replace(dim=place.dim - sum(dim < place.dim for dim in dims))] * len(call.outputs)


def along(call: Call) -> Places:
    """Along dimensions other than the unit's, which stay."""
    source = _main(call)
    place = call.place(source)
    if place is None:
        raise _fail(call, "takes its input from no unit")
    if place.dim in _axes(call, source.dim(), "dims" if "dims" in call.args else "dim"):
        raise _fail(call, "goes along the units")
    return [place] * len(call.outputs)


def matrices(call: Call) -> Places:
    """Each matrix of a batch of matrices (the last two dimensions) by itself."""
    names = ("self", "A", "input")
    source = next(call.args[name] for name in names if name in call.args)
    place = call.place(source)
    if place is None or place.dim >= source.dim() - 2:
        raise _fail(call, "has the units within a matrix")
    return [place] * len(call.outputs)


def _product(call: Call, left: Tensor, right: Tensor, added: Tensor | None) -> Places:
    """Matrix product `[..., m, k] x [..., k, n]`: the unit in m, in n, or in the batch of matrices."""
    out = call.outputs[0]
    first, second = call.place(left), call.place(right)
    ndim = left.dim()
    if first is None and second is None:
        assert added is not None
        place = beside(call, [added], out.dim())
        for factor, free in ((left, ndim - 2), (right, ndim - 1)):
            if place.dim == free or place.dim < ndim - 2:
                _same_for_each(call, factor, place)
    elif first is not None and second is not None:
        if first != second or first.dim >= ndim - 2:
            raise _fail(call, "multiplies units with each other")
        place = first
    else:
        given, shared, contracted = (first, right, ndim - 1) if first is not None else (second, left, ndim - 2)
        assert given is not None
        if given.dim == contracted:
            raise _fail(call, "adds up over the units")
        if given.dim < ndim - 2:
            _same_for_each(call, shared, given)
        place = given
    if added is not None:
        _agree(call, added, place, out.dim())
    return [place]


def _agree(call: Call, tensor: Tensor, place: Place, ndim: int) -> None:
    """A tensor laid beside units at `place` has them there too, or is the same for each."""
    here = place._replace(dim=place.dim - ndim + tensor.dim())
    held = call.place(tensor)
    if held is None:
        _same_for_each(call, tensor, here)
    elif held != here:
        raise _fail(call, "lays units of different places over each other")


def product(call: Call) -> Places:
    """Products of matrices."""
    args = call.args
    if "mat1" in args:
        return _product(call, args["mat1"], args["mat2"], args.get("self"))
    if "batch1" in args:
        return _product(call, args["batch1"], args["batch2"], args.get("self"))
    return _product(call, args["self"], args["mat2"], None)


def matrix_vector(call: Call) -> Places:
    """A matrix whose rows are units times a vector that is the same for all."""
    matrix = call.args.get("mat", call.args["self"])
    place = call.place(matrix)
    _shared(call, "vec")
    if place is None or place.dim != 0:
        raise _fail(call, "adds up over the units")
    if "mat" in call.args:
        _agree(call, call.args["self"], place, 1)
    return [place]


def convolution(call: Call) -> Places:
    """Units in front, weights the same for all."""
    _shared(call, "weight", "bias")
    place = _own(call, "input")
    if place.dim != 0:
        raise _fail(call, "has the units among channels or positions")
    return [place]


def _spatial(axes: int) -> Rule:
    def rule(call: Call) -> Places:
        source = _main(call)
        place = call.place(source)
        if place is None or place.dim >= source.dim() - axes:
            raise _fail(call, "has the units among positions")
        if isinstance(call.args.get("indices"), Tensor):
            _agree(call, call.args["indices"], place, source.dim())
        return [place] * len(call.outputs)

    return rule


def patches(call: Call) -> Places:
    """Unfolding, folding and shuffling of channels; units in front, channels behind them."""
    if _own(call) != FRONT or call.args["self"].dim() < 3:
        raise _fail(call, "has the units among channels or positions")
    return [FRONT]


def padding(call: Call) -> Places:
    """Border around dimensions other than the unit's."""
    place, pads = _own(call), call.args["pad"]
    axis = call.args["self"].dim() - 1 - place.dim
    if any(pads[2 * axis : 2 * axis + 2]):
        raise _fail(call, "adds rows to the units")
    return [place]


def trailing_norm(call: Call) -> Places:
    """Normalisation over the last dimensions, the unit's not among them."""
    _shared(call, "weight", "bias")
    source = call.args["input"]
    place = _own(call, "input")
    if place.dim >= source.dim() - len(call.args["normalized_shape"]):
        raise _fail(call, "normalises over the units")
    return [place] * len(call.outputs)


def group_norm(call: Call) -> Places:
    """Normalisation within a unit; units in front."""
    _shared(call, "weight", "bias")
    if _own(call, "input").dim != 0 or call.args["N"] != call.args["input"].shape[0]:
        raise _fail(call, "normalises over the units")
    return [_own(call, "input")] * len(call.outputs)


def batch_norm(call: Call) -> Places:
    """With fixed statistics anywhere in front; with statistics of the batch only if units are channels (InstanceNorm)."""
    place = _own(call, "input")
    training = bool(call.args.get("training", "no_training" not in call.name))
    if training and call.args.get("running_mean") is not None:
        raise _fail(call, "updates running statistics")
    if training and place.dim != 1:
        raise _fail(call, "normalises over the units")
    by_channel = [call.args.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    for tensor in by_channel:
        if tensor is not None:
            if call.place(tensor) is not None:
                raise _fail(call, "takes its weights from the units")
            if place.dim == 1:
                _same_for_each(call, tensor, place._replace(dim=0))
    statistics = place._replace(dim=0) if training else None
    return [place, *[statistics] * (len(call.outputs) - 1)]


def lookup(call: Call) -> Places:
    """Rows of a table that is the same for all, by indices of the units."""
    _shared(call, "weight")
    return [_own(call, "indices")]


def bags(call: Call) -> Places:
    """Sums of rows of a table over bags of equal size, one bag for each unit."""
    _shared(call, "weight")
    place, offsets = _own(call, "indices"), call.args["offsets"]
    if place.dim != 0 or place.outer != 1 or call.row_numbers(offsets, place.inner) != FRONT:
        raise _fail(call, "has bags that are not one for each unit")
    if call.args.get("include_last_offset"):
        raise _fail(call, "has bags that are not one for each unit")
    weights = call.args.get("per_sample_weights")
    if weights is not None:
        _agree(call, weights, place, 1)
    return [FRONT, *[None] * (len(call.outputs) - 1)]  # the others count bags


def attention(call: Call) -> Places:
    """Units in front of queries, keys, values and mask."""
    place = beside(call, [call.args[name] for name in ("query", "key", "value")], call.args["query"].dim())
    if place.dim != 0:
        raise _fail(call, "attends over the units")
    for name in ("attn_mask", "attn_bias"):
        if isinstance(call.args.get(name), Tensor):
            _agree(call, call.args[name], place, call.args["query"].dim())
    size = place.outer * call.units * place.inner
    return [place if out.dim() and out.shape[0] == size else None for out in call.outputs]


def classes(call: Call) -> Places:
    """Losses by class, one for each row."""
    if call.args.get("reduction", 1) != 0:
        raise _fail(call, "adds up the losses of all units: use reduction='none'")
    _shared(call, "weight")
    scores, target = call.args["self"], call.args["target"]
    place = _own(call)
    if place.dim != 0 or scores.dim() < 2:
        raise _fail(call, "has the units among the classes")
    held = call.place(target)
    if held is None:
        _same_for_each(call, target, place)
    elif held != place:
        raise _fail(call, "takes labels from other places than scores")
    return [place, *[None if out.dim() == 0 else place for out in call.outputs[1:]]]


def joined(call: Call) -> Places:
    """Side by side along another dimension, or unit for unit behind each other."""
    parts = [part for part in call.args["tensors"] if part.numel()]
    ndim = call.outputs[0].dim()
    dim = _axis(int(call.args.get("dim", 0)), ndim)
    stacked = parts[0].dim() < ndim
    held = [place for part in parts if (place := call.place(part)) is not None]
    place = held[0]
    if any(other != place for other in held) and (stacked or any(p.dim != dim or p.inner != place.inner for p in held)):
        raise _fail(call, "joins units of different places")
    if not stacked and place.dim == dim:
        if len(held) != len(parts) or place.inner != 1:
            raise _fail(call, "adds rows to the units")
        return [place._replace(outer=sum(p.outer for p in held))]
    for part in parts:
        if call.place(part) is None:
            _same_for_each(call, part, place)
    return [place._replace(dim=place.dim + (stacked and dim <= place.dim))]


def repeated(call: Call) -> Places:
    """Copies one behind the other."""
    repeats, source = list(call.args["repeats"]), call.args["self"]
    place = _own(call)
    dim = place.dim + len(repeats) - source.dim()
    times = repeats[dim]
    return [Place(dim, place.outer * times, place.inner)]


def _indices(call: Call) -> tuple[list[int], list[Tensor], int, int]:
    """Indexed dimensions, their indices, how many dimensions the indices make, and where these stand in the result."""
    given = list(call.args["indices"])
    dims = [dim for dim, index in enumerate(given) if index is not None]
    tensors = [index for index in given if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for index in tensors):
        raise _fail(call, "selects by a mask: how much it selects depends on the data")
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
        raise _fail(call, "chooses rows of the units")
    place = place._replace(dim=place.dim + ndim - numbers.dim())
    for tensor in others:
        _agree(call, tensor, place, ndim)
    return place


def indexed(call: Call) -> Places:
    """Entries of each unit's own row, or of a table that is the same for all."""
    source = call.args["self"]
    dims, tensors, ndim, first = _indices(call)
    place = call.place(source)
    if place is None:  # a table
        found = _index_place(call, dims, tensors, ndim)
        return [found._replace(dim=first + found.dim)]
    if place.dim in dims:
        if place.outer != 1 or place.inner != 1:
            raise _fail(call, "chooses rows of the units")
        found = _index_place(call, dims, tensors, ndim, skip=place.dim)
        return [Place(first + found.dim)]
    if any(call.place(tensor) is not None for tensor in tensors):
        raise _fail(call, "chooses among all units by what one of them holds")
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
            _same_for_each(call, source, held)
    numbered = [dim for dim, index in zip(dims, tensors, strict=True) if call.row_numbers(index, 1) is not None]
    result = ndim + source.dim() - len(dims)
    if held is not None and held.dim not in dims:
        if any(call.place(tensor) is not None for tensor in tensors):
            raise _fail(call, "writes where what a unit holds says")
        before = sum(dim not in dims for dim in range(held.dim))
        at = held._replace(dim=before + ndim if first == 0 or held.dim > dims[0] else held.dim)
        _agree(call, values, at, result)
        return [held]
    chosen = held.dim if held is not None else numbered[0] if numbered else -1
    if chosen not in numbered or (held is not None and held != Place(chosen)):
        raise _fail(call, "writes into rows of other units")
    found = _index_place(call, dims, tensors, ndim, skip=chosen)
    if held is None:
        _same_for_each(call, source, Place(chosen))
    _agree(call, values, Place(first + found.dim), result)
    return [Place(chosen)]


def gathered(call: Call) -> Places:
    """Entries along another dimension than the unit's, each row from its own."""
    names = [name for name in ("self", "index", "src") if isinstance(call.args.get(name), Tensor)]
    tensors = [call.args[name] for name in names]
    place = beside(call, tensors, call.args["self"].dim())
    if place.dim == _axis(int(call.args["dim"]), call.args["self"].dim()):
        raise _fail(call, "chooses rows of the units")
    for tensor in tensors:
        if tensor.dim() != call.args["self"].dim():
            raise _fail(call, "takes scalars")
        if call.place(tensor) is None and tensor.shape[place.dim] != place.outer * call.units * place.inner:
            raise _fail(call, "takes fewer rows than there are units")
    return [place]


def selected(call: Call) -> Places:
    """Chosen entries along another dimension than the unit's, the same choice for all; or rows of a shared table."""
    source, index = call.args["self"], call.args["index"]
    dim = _axis(int(call.args["dim"]), source.dim())
    place = call.place(source)
    if place is None:
        found = call.place(index)
        if found is None or index.dim() != 1:
            raise _fail(call, "chooses in an unknown way")
        return [found._replace(dim=dim)]
    _shared(call, "index")
    if place.dim == dim:
        raise _fail(call, "chooses rows of the units")
    return [place]


def added_at(call: Call) -> Places:
    """Rows added at places that are the same for all units, along another dimension than theirs."""
    _shared(call, "index")
    place = beside(call, [call.args["self"], call.args["source"]], call.args["self"].dim())
    if place.dim == _axis(int(call.args["dim"]), call.args["self"].dim()):
        raise _fail(call, "adds to rows of the units")
    return [place]


def against_shared(call: Call) -> Places:
    """Entry by entry against a sequence that is the same for all."""
    _shared(call, "boundaries", "sorted_sequence", "test_elements", "sorter")
    name = next(name for name in ("elements", "self", "input") if isinstance(call.args.get(name), Tensor))
    if call.name.startswith("aten::searchsorted") and call.args["sorted_sequence"].dim() != 1:
        raise _fail(call, "searches in sequences by row")
    return [_own(call, name)]


def sampled(call: Call) -> Places:
    """Two inputs with the units in front."""
    place = beside(call, [call.args["input"], call.args["grid"]], call.args["input"].dim())
    if place.dim != 0:
        raise _fail(call, "has the units among positions")
    return [place]


def drawn(call: Call) -> Places:
    """Draws by the weights of each row."""
    if _own(call).dim != 0 or call.args["self"].dim() != 2:
        raise _fail(call, "draws among the units")
    return [_own(call)]


def distances(call: Call) -> Places:
    """Distances between the points of one unit, or from units as points to points that are the same for all."""
    first, second = call.args["x1"], call.args["x2"]
    ndim = max(first.dim(), second.dim())
    for points, others, free in ((first, second, ndim - 2), (second, first, ndim - 1)):
        place = call.place(points)
        if place is not None and place.dim == points.dim() - 2 and call.place(others) is None:
            return [place._replace(dim=free)] * len(call.outputs)
    place = beside(call, [first, second], ndim)
    if place.dim >= ndim - 2:
        raise _fail(call, "compares units with each other")
    return [place] * len(call.outputs)


def grids(call: Call) -> Places:
    """Sampling grids from the matrices of the units, which are in front."""
    if _own(call, "theta") != FRONT:
        raise _fail(call, "has the units among positions")
    return [FRONT]


def recurrent_layer(call: Call) -> Places:
    """A recurrent layer over time, time in front, units behind; weights the same for all."""
    _shared(call, "weight0", "weight1", "weight2", "weight3")
    if call.args.get("batch_sizes"):  # batch_first says what the caller had: time is in front here in any case
        raise _fail(call, "lays out units in another way")
    place = _own(call, "input")
    if place != Place(1):
        raise _fail(call, "has the units in time")
    for name in ("hx_", "cx_"):
        _agree(call, call.args[name], Place(call.args[name].dim() - 2), call.args[name].dim())
    return [Place(out.dim() - 2) if out.dim() >= 2 else None for out in call.outputs]


def cudnn_layers(call: Call) -> Places:
    """cuDNN's recurrent layers: time in front, units behind; weights the same for all."""
    _shared(call, "weight", "weight_buf", "dropout_state")
    place = Place(0 if call.args.get("batch_first") else 1)
    if call.args.get("batch_sizes") or _own(call, "input") != place:
        raise _fail(call, "has the units in time")
    for name in ("hx", "cx"):
        if isinstance(call.args.get(name), Tensor) and call.args[name].numel():
            _agree(call, call.args[name], Place(1), 3)
    states = [Place(1) if out.dim() == 3 else None for out in call.outputs[1:3]]
    return [place, *states, *[None] * (len(call.outputs) - 3)]


def gates(call: Call) -> Places:
    """A recurrent cell: entries of one row with each other."""
    _shared(call, "input_bias", "hidden_bias")
    names = [name for name in ("input_gates", "hidden_gates", "cx", "hx") if isinstance(call.args.get(name), Tensor)]
    place = beside(call, [call.args[name] for name in names], 2)
    if place.dim != 0:
        raise _fail(call, "has the units among the gates")
    return [place] * len(call.outputs)


def margins(call: Call) -> Places:
    """Margin losses of scores in rows."""
    _shared(call, "weight")
    if call.args.get("reduction", 1) != 0:
        raise _fail(call, "adds up the losses of all units: use reduction='none'")
    if _own(call) != FRONT or call.args["self"].dim() != 2 or call.place(call.args["target"]) != FRONT:
        raise _fail(call, "has the units among the classes")
    return [FRONT] * len(call.outputs)


POINTWISE = [
    "abs",
    "acos",
    "acosh",
    "add",
    "addcdiv",
    "addcmul",
    "angle",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bernoulli",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "ceil",
    "celu",
    "clamp",
    "clamp_max",
    "clamp_min",
    "clone",
    "complex",
    "copysign",
    "cos",
    "cosh",
    "deg2rad",
    "digamma",
    "div",
    "elu",
    "eq",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "frac",
    "ge",
    "gelu",
    "gt",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "heaviside",
    "huber_loss",
    "hypot",
    "i0",
    "igamma",
    "igammac",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "ldexp",
    "le",
    "leaky_relu",
    "lerp",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_sigmoid_forward",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logit",
    "lt",
    "masked_fill",
    "maximum",
    "minimum",
    "mish",
    "mse_loss",
    "mul",
    "mvlgamma",
    "nan_to_num",
    "native_dropout",
    "ne",
    "neg",
    "nextafter",
    "normal",
    "poisson",
    "polar",
    "polygamma",
    "pow",
    "rad2deg",
    "reciprocal",
    "relu",
    "remainder",
    "round",
    "rrelu_with_noise",
    "rsqrt",
    "rsub",
    "sgn",
    "sigmoid",
    "sign",
    "signbit",
    "silu",
    "sin",
    "sinc",
    "sinh",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softplus",
    "softshrink",
    "special_entr",
    "special_erfcx",
    "special_i0e",
    "special_i1",
    "special_i1e",
    "special_log_ndtr",
    "special_ndtri",
    "special_xlog1py",
    "special_zeta",
    "sqrt",
    "sub",
    "tan",
    "tanh",
    "threshold",
    "trunc",
    "where",
    "xlogy",
    "__lshift__",
    "__rshift__",
    "_conj_physical",
    "_neg_view_copy",
    "_prelu_kernel",
    "_to_copy",
]

REDUCTIONS = [
    "sum",
    "mean",
    "prod",
    "amax",
    "amin",
    "max",
    "min",
    "argmax",
    "argmin",
    "any",
    "all",
    "std",
    "var",
    "var_mean",
    "std_mean",
    "logsumexp",
    "median",
    "nanmedian",
    "nansum",
    "norm",
    "linalg_vector_norm",
    "mode",
    "kthvalue",
    "count_nonzero",
    "aminmax",
]


def _reduction_or_pointwise(call: Call) -> Places:
    return pointwise(call) if "other" in call.args else reduction(call)


TABLE: tuple[Row, ...] = (
    Row(
        tuple(name for name in POINTWISE),
        pointwise,
        "entry by entry; what is laid over the units without being one of them "
        "must be the same for each; losses with reduction='none'",
    ),
    Row(("copy",), copy, "entry by entry"),
    Row(
        tuple(name for name in REDUCTIONS if name not in ("max", "min")),
        reduction,
        "over other dimensions than the unit's",
    ),
    Row(("max", "min"), _reduction_or_pointwise, "over other dimensions than the unit's, or entry by entry"),
    Row(
        (
            "_softmax",
            "_log_softmax",
            "_safe_softmax",
            "cumsum",
            "cumprod",
            "cummax",
            "cummin",
            "logcumsumexp",
            "flip",
            "roll",
            "_fft_r2c",
            "_fft_c2c",
            "_fft_c2r",
            "sort",
            "topk",
            "glu",
        ),
        along,
        "along other dimensions than the unit's",
    ),
    Row(
        (
            "tril",
            "triu",
            "linalg_inv_ex",
            "linalg_cholesky_ex",
            "_linalg_det",
            "linalg_qr",
            "_linalg_eigh",
            "linalg_matrix_exp",
        ),
        matrices,
        "matrix by matrix, the unit not within one",
    ),
    Row(
        ("mm", "addmm", "bmm", "baddbmm"),
        product,
        "one factor holds units, in a row that is not added up, or both hold the same unit's matrices",
    ),
    Row(("mv", "addmv"), matrix_vector, "units in rows, vector the same for all"),
    Row(("convolution", "_convolution"), convolution, "units in front, weights the same for all"),
    Row(
        (
            "upsample_nearest1d",
            "upsample_linear1d",
            "_upsample_nearest_exact1d",
            "reflection_pad1d",
            "replication_pad1d",
        ),
        _spatial(1),
        "the unit not among the last dimension",
    ),
    Row(
        (
            "max_pool2d_with_indices",
            "avg_pool2d",
            "_adaptive_avg_pool2d",
            "adaptive_max_pool2d",
            "upsample_nearest2d",
            "upsample_bilinear2d",
            "upsample_bicubic2d",
            "_upsample_nearest_exact2d",
            "_upsample_bilinear2d_aa",
            "_upsample_bicubic2d_aa",
            "reflection_pad2d",
            "replication_pad2d",
            "max_unpool2d",
        ),
        _spatial(2),
        "the unit not among the last two dimensions",
    ),
    Row(
        (
            "max_pool3d_with_indices",
            "avg_pool3d",
            "_adaptive_avg_pool3d",
            "adaptive_max_pool3d",
            "upsample_nearest3d",
            "upsample_trilinear3d",
            "_upsample_nearest_exact3d",
            "reflection_pad3d",
            "replication_pad3d",
            "pixel_shuffle",
            "pixel_unshuffle",
        ),
        _spatial(3),
        "the unit not among the last three dimensions",
    ),
    Row(("im2col", "col2im", "channel_shuffle"), patches, "units in front"),
    Row(("constant_pad_nd",), padding, "border around other dimensions than the unit's"),
    Row(
        ("native_layer_norm", "_fused_rms_norm"),
        trailing_norm,
        "over the last dimensions, the unit before them",
    ),
    Row(("native_group_norm",), group_norm, "units in front"),
    Row(
        (
            "native_batch_norm",
            "_native_batch_norm_legit",
            "_native_batch_norm_legit_no_training",
            "cudnn_batch_norm",
        ),
        batch_norm,
        "with fixed statistics, or with units as channels (InstanceNorm)",
    ),
    Row(("embedding",), lookup, "indices by unit, table the same for all"),
    Row(("_embedding_bag", "_embedding_bag_forward_only"), bags, "bags of equal size, one for each unit"),
    Row(
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_fused_attention_overrideable",
        ),
        attention,
        "units in front of queries, keys and values",
    ),
    Row(("nll_loss_forward", "nll_loss2d_forward"), classes, "units in front, reduction='none'"),
    Row(("multi_margin_loss", "multilabel_margin_loss_forward"), margins, "units in front, reduction='none'"),
    Row(("cat", "stack"), joined, "along another dimension than the unit's, or unit for unit behind each other"),
    Row(("repeat",), repeated, "copies"),
    Row(
        ("index", "_unsafe_index"),
        indexed,
        "each unit's own row by its number, other dimensions by indices; or a table that is the same for all",
    ),
    Row(("index_put", "_index_put_impl", "_unsafe_index_put"), put, "into each unit's own row"),
    Row(("gather", "scatter", "scatter_add", "scatter_reduce"), gathered, "along another dimension than the unit's"),
    Row(
        ("index_select",), selected, "along another dimension than the unit's, or from a table that is the same for all"
    ),
    Row(("index_add", "index_copy"), added_at, "along another dimension than the unit's"),
    Row(
        ("bucketize", "searchsorted", "isin"),
        against_shared,
        "entry by entry against a sequence that is the same for all",
    ),
    Row(("grid_sampler_2d", "grid_sampler_3d"), sampled, "units in front"),
    Row(("affine_grid_generator",), grids, "units in front"),
    Row(("multinomial",), drawn, "one row for each unit"),
    Row(
        ("_cdist_forward", "_euclidean_dist"),
        distances,
        "points of one unit with each other, or units with points that are the same for all",
    ),
    Row(("mkldnn_rnn_layer",), recurrent_layer, "time in front, then units"),
    Row(("_cudnn_rnn",), cudnn_layers, "time in front, then units"),
    Row(("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"), gates, "units in front"),
)

RULES: dict[str, Rule] = {name: row.rule for row in TABLE for name in row.names}
