"""Rules of operations that act row by row: entry by entry, within rows, along other dimensions than the unit's."""

from __future__ import annotations

from torch import Tensor

from noisewise.persample.conditions import (
    Call,
    Places,
    Rule,
    axes_in,
    beside,
    check_agrees,
    check_same_for_each,
    check_shared,
    fail,
    main_input,
    place_in,
    tensors_in,
)
from noisewise.persample.places import FRONT, Place


def pointwise(call: Call) -> Places:
    """Entry by entry, with broadcasting."""
    if call.args.get("reduction", 0) != 0:  # defaults of the operation are among the arguments
        raise fail(call, "adds up the losses of all units: use reduction='none'")
    out = call.outputs[0]
    tensors = [tensor for value in call.args.values() for tensor in tensors_in(value)]
    place = beside(call, tensors, out.dim())
    if out.shape[place.dim] != place.outer * call.units * place.inner:
        raise fail(call, "broadcasts the dimension of the units")
    return [place] * len(call.outputs)


def copy(call: Call) -> Places:
    """Entries of `src`, whatever was there before."""
    source = call.args["src"]
    place = beside(call, [source], call.outputs[0].dim())
    return [place]


def reduction(call: Call) -> Places:
    """Over dimensions other than the unit's."""
    check_shared(call, "correction", "value")
    source = call.args["self"]
    place, dims = place_in(call), axes_in(call, source.dim())
    if place.dim in dims:
        hint = " (of a Hugging Face mask? docs/hugging_face.md)" if call.name in ("aten::all", "aten::any") else ""
        raise fail(call, f"goes over the units{hint}")
    kept = bool(call.args.get("keepdim", False))
    return [place if kept else place._replace(dim=place.dim - sum(dim < place.dim for dim in dims))] * len(call.outputs)


def along(call: Call) -> Places:
    """Along dimensions other than the unit's, which stay."""
    source = main_input(call)
    place = call.place(source)
    if place is None:
        raise fail(call, "takes its input from no unit")
    if place.dim in axes_in(call, source.dim(), "dims" if "dims" in call.args else "dim"):
        raise fail(call, "goes along the units")
    return [place] * len(call.outputs)


def matrices(call: Call) -> Places:
    """Each matrix of a batch of matrices (the last two dimensions) by itself."""
    names = ("self", "A", "input")
    source = next(call.args[name] for name in names if name in call.args)
    place = call.place(source)
    if place is None or place.dim >= source.dim() - 2:
        raise fail(call, "has the units within a matrix")
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
                check_same_for_each(call, factor, place)
    elif first is not None and second is not None:
        if first != second or first.dim >= ndim - 2:
            raise fail(call, "multiplies units with each other")
        place = first
    else:
        given, shared, contracted = (first, right, ndim - 1) if first is not None else (second, left, ndim - 2)
        assert given is not None
        if given.dim == contracted:
            raise fail(call, "adds up over the units")
        if given.dim < ndim - 2:
            check_same_for_each(call, shared, given)
        place = given
    if added is not None:
        check_agrees(call, added, place, out.dim())
    return [place]


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
    check_shared(call, "vec")
    if place is None or place.dim != 0:
        raise fail(call, "adds up over the units")
    if "mat" in call.args:
        check_agrees(call, call.args["self"], place, 1)
    return [place]


def convolution(call: Call) -> Places:
    """Units in front, weights the same for all."""
    check_shared(call, "weight", "bias")
    place = place_in(call, "input")
    if place.dim != 0:
        raise fail(call, "has the units among channels or positions")
    return [place]


def spatial(axes: int) -> Rule:
    """Rule of operations over the last `axes` dimensions, the unit's not among them."""

    def rule(call: Call) -> Places:
        source = main_input(call)
        place = call.place(source)
        if place is None or place.dim >= source.dim() - axes:
            raise fail(call, "has the units among positions")
        if isinstance(call.args.get("indices"), Tensor):
            check_agrees(call, call.args["indices"], place, source.dim())
        return [place] * len(call.outputs)

    return rule


def patches(call: Call) -> Places:
    """Unfolding, folding and shuffling of channels; units in front, channels behind them."""
    if place_in(call) != FRONT or call.args["self"].dim() < 3:
        raise fail(call, "has the units among channels or positions")
    return [FRONT]


def padding(call: Call) -> Places:
    """Border around dimensions other than the unit's."""
    place, pads = place_in(call), call.args["pad"]
    axis = call.args["self"].dim() - 1 - place.dim
    if any(pads[2 * axis : 2 * axis + 2]):
        raise fail(call, "adds rows to the units")
    return [place]


def trailing_norm(call: Call) -> Places:
    """Normalisation over the last dimensions, the unit's not among them."""
    check_shared(call, "weight", "bias")
    source = call.args["input"]
    place = place_in(call, "input")
    if place.dim >= source.dim() - len(call.args["normalized_shape"]):
        raise fail(call, "normalises over the units")
    return [place] * len(call.outputs)


def group_norm(call: Call) -> Places:
    """Normalisation within a unit; units in front."""
    check_shared(call, "weight", "bias")
    if place_in(call, "input").dim != 0 or call.args["N"] != call.args["input"].shape[0]:
        raise fail(call, "normalises over the units")
    return [place_in(call, "input")] * len(call.outputs)


def batch_norm(call: Call) -> Places:
    """With fixed statistics anywhere in front; with statistics of the batch only if units are channels (InstanceNorm)."""
    place = place_in(call, "input")
    training = bool(call.args.get("training", "no_training" not in call.name))
    if training and call.args.get("running_mean") is not None:
        raise fail(call, "updates running statistics")
    if training and place.dim != 1:
        raise fail(call, "normalises over the units")
    by_channel = [call.args.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    for tensor in by_channel:
        if tensor is not None:
            if call.place(tensor) is not None:
                raise fail(call, "takes its weights from the units")
            if place.dim == 1:
                check_same_for_each(call, tensor, place._replace(dim=0))
    statistics = place._replace(dim=0) if training else None
    return [place, *[statistics] * (len(call.outputs) - 1)]


def lookup(call: Call) -> Places:
    """Rows of a table that is the same for all, by indices of the units."""
    check_shared(call, "weight")
    return [place_in(call, "indices")]


def bags(call: Call) -> Places:
    """Sums of rows of a table over bags of equal size, one bag for each unit."""
    check_shared(call, "weight")
    place, offsets = place_in(call, "indices"), call.args["offsets"]
    if place.dim != 0 or place.outer != 1 or call.row_numbers(offsets, place.inner) != FRONT:
        raise fail(call, "has bags that are not one for each unit")
    if call.args.get("include_last_offset"):
        raise fail(call, "has bags that are not one for each unit")
    weights = call.args.get("per_sample_weights")
    if weights is not None:
        check_agrees(call, weights, place, 1)
    return [FRONT, *[None] * (len(call.outputs) - 1)]  # the others count bags


def attention(call: Call) -> Places:
    """Units in front of queries, keys, values and mask."""
    place = beside(call, [call.args[name] for name in ("query", "key", "value")], call.args["query"].dim())
    if place.dim != 0:
        raise fail(call, "attends over the units")
    for name in ("attn_mask", "attn_bias"):
        if isinstance(call.args.get(name), Tensor):
            check_agrees(call, call.args[name], place, call.args["query"].dim())
    size = place.outer * call.units * place.inner
    return [place if out.dim() and out.shape[0] == size else None for out in call.outputs]


def classes(call: Call) -> Places:
    """Losses by class, one for each row."""
    if call.args.get("reduction", 1) != 0:
        raise fail(call, "adds up the losses of all units: use reduction='none'")
    check_shared(call, "weight")
    scores, target = call.args["self"], call.args["target"]
    place = place_in(call)
    if place.dim != 0 or scores.dim() < 2:
        raise fail(call, "has the units among the classes")
    held = call.place(target)
    if held is None:
        check_same_for_each(call, target, place)
    elif held != place:
        raise fail(call, "takes labels from other places than scores")
    return [place, *[None if out.dim() == 0 else place for out in call.outputs[1:]]]


def sampled(call: Call) -> Places:
    """Two inputs with the units in front."""
    place = beside(call, [call.args["input"], call.args["grid"]], call.args["input"].dim())
    if place.dim != 0:
        raise fail(call, "has the units among positions")
    return [place]


def drawn(call: Call) -> Places:
    """Draws by the weights of each row."""
    if place_in(call).dim != 0 or call.args["self"].dim() != 2:
        raise fail(call, "draws among the units")
    return [place_in(call)]


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
        raise fail(call, "compares units with each other")
    return [place] * len(call.outputs)


def grids(call: Call) -> Places:
    """Sampling grids from the matrices of the units, which are in front."""
    if place_in(call, "theta") != FRONT:
        raise fail(call, "has the units among positions")
    return [FRONT]


def recurrent_layer(call: Call) -> Places:
    """A recurrent layer over time, time in front, units behind; weights the same for all."""
    check_shared(call, "weight0", "weight1", "weight2", "weight3")
    if call.args.get("batch_sizes"):  # batch_first says what the caller had: time is in front here in any case
        raise fail(call, "lays out units in another way")
    place = place_in(call, "input")
    if place != Place(1):
        raise fail(call, "has the units in time")
    for name in ("hx_", "cx_"):
        check_agrees(call, call.args[name], Place(call.args[name].dim() - 2), call.args[name].dim())
    return [Place(out.dim() - 2) if out.dim() >= 2 else None for out in call.outputs]


def cudnn_layers(call: Call) -> Places:
    """cuDNN's recurrent layers: time in front, units behind; weights the same for all."""
    check_shared(call, "weight", "weight_buf", "dropout_state")
    place = Place(0 if call.args.get("batch_first") else 1)
    if call.args.get("batch_sizes") or place_in(call, "input") != place:
        raise fail(call, "has the units in time")
    for name in ("hx", "cx"):
        if isinstance(call.args.get(name), Tensor) and call.args[name].numel():
            check_agrees(call, call.args[name], Place(1), 3)
    states = [Place(1) if out.dim() == 3 else None for out in call.outputs[1:3]]
    return [place, *states, *[None] * (len(call.outputs) - 3)]


def gates(call: Call) -> Places:
    """A recurrent cell: entries of one row with each other."""
    check_shared(call, "input_bias", "hidden_bias")
    names = [name for name in ("input_gates", "hidden_gates", "cx", "hx") if isinstance(call.args.get(name), Tensor)]
    place = beside(call, [call.args[name] for name in names], 2)
    if place.dim != 0:
        raise fail(call, "has the units among the gates")
    return [place] * len(call.outputs)


def margins(call: Call) -> Places:
    """Margin losses of scores in rows."""
    check_shared(call, "weight")
    if call.args.get("reduction", 1) != 0:
        raise fail(call, "adds up the losses of all units: use reduction='none'")
    if place_in(call) != FRONT or call.args["self"].dim() != 2 or call.place(call.args["target"]) != FRONT:
        raise fail(call, "has the units among the classes")
    return [FRONT] * len(call.outputs)


def reduction_or_pointwise(call: Call) -> Places:
    """Entry by entry with another tensor, or over dimensions other than the unit's."""
    return pointwise(call) if "other" in call.args else reduction(call)
