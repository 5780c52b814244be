"""Ghost rules: what one recorded call says about each unit's gradient, without forming it where that is dearer.

A rule turns a call's input and the gradient of its output into one `PerSample` for each parameter. To add a layer,
add a function of `(operands, grad)` and a line in `RULES`.

Rules see units in front. Where a call has them elsewhere (time first, flattened with other dimensions), `in_rows` brings
its input and gradient into that form: for rules of `positions` whatever stands before the features is a position, for
others only rows may be interleaved, and each unit then has `spread` of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from noisewise.persample import kernels
from noisewise.persample.convolution import Convolution, HalfConvolution
from noisewise.persample.formed import Formed, PerSample, slices_of
from noisewise.persample.gradients import Outer, Rows
from noisewise.persample.places import FRONT, Place


class Operands(NamedTuple):
    """A call's arguments, brought into one form."""

    input: Tensor
    weight: Tensor | None
    bias: Tensor | None = None
    settings: dict[str, Any] = {}  # noqa: RUF012  never written to


@dataclass(frozen=True)
class Rule:
    """How to read a function's arguments, when the rule is exact, and what each parameter's gradient is.

    positions: all dimensions before the features are alike, so that the unit may be any of them. booked: can be used
    for units that are evaluated alone (`engines.booked`). halves: takes input and gradient in half precision, and widens
    what it adds up. adds: gradients are sums over positions, far smaller than input and gradient of the output.
    """

    operands: Callable[..., Operands]
    gradients: Callable[[Operands, Tensor], dict[str, Callable[[], PerSample]]]
    exact: Callable[[Operands], bool] = lambda operands: True
    positions: bool = False
    booked: bool = True
    halves: bool = False
    adds: bool = False


def in_rows(tensor: Tensor, place: Place, units: int) -> Tensor:
    """`[units, ...]` of a tensor that has the unit at `place`: what was beside the unit in its dimension comes next to it."""
    if place == FRONT:
        return tensor
    if place.outer * place.inner == 1:
        rows = tensor.movedim(place.dim, 0)
    else:
        apart = tensor.unflatten(place.dim, (place.outer, units, place.inner)).movedim(place.dim + 1, 0)
        rows = apart.flatten(place.dim + 1, place.dim + 2)
    return rows.contiguous() if rows.is_cuda else rows


def _linear_operands(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Operands:
    return Operands(input, weight, bias)


def _linear(operands: Operands, grad: Tensor) -> dict[str, Callable[[], PerSample]]:
    """y = x W^T + b: the weight's gradient is sum over positions of g x^T, the bias' is sum of g."""
    units = grad.shape[0]
    left, right = grad.reshape(units, -1, grad.shape[-1]), operands.input.reshape(units, -1, operands.input.shape[-1])
    return {
        "weight": lambda: Outer(left, right),
        "bias": lambda: Formed(left.squeeze(1) if left.shape[1] == 1 else left.sum(1)),
    }


def _product_operands(input: Tensor, other: Tensor) -> Operands:
    return Operands(input, other)


def _added_product_operands(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Operands:
    return Operands(mat1, mat2, input, {"plain": beta == alpha == 1 and input.dim() == 1})


def _product(operands: Operands, grad: Tensor) -> dict[str, Callable[[], PerSample]]:
    """y = x W + b: the weight's gradient is sum over positions of x g^T, the bias' is sum of g."""
    units = grad.shape[0]
    left, right = operands.input.reshape(units, -1, operands.input.shape[-1]), grad.reshape(units, -1, grad.shape[-1])
    return {"weight": lambda: Outer(left, right), "bias": lambda: Formed(right.sum(1))}


def _is_product(operands: Operands) -> bool:
    assert operands.weight is not None
    return operands.input.dim() > 1 and operands.weight.dim() == 2 and operands.settings.get("plain", True)


def _prelu_operands(input: Tensor, weight: Tensor) -> Operands:
    return Operands(input, weight)


def _prelu(operands: Operands, grad: Tensor) -> dict[str, Callable[[], PerSample]]:
    """y = x above 0 and w_c x below: sums of g x over the positions of a channel where x is below."""
    assert operands.weight is not None
    slopes = torch.where(operands.input > 0, 0, grad * operands.input)
    if operands.weight.numel() == 1:
        return {"weight": lambda: Formed(slopes.flatten(1).sum(1, keepdim=True))}
    return {"weight": lambda: Formed(slopes.flatten(2).sum(2) if slopes.dim() > 2 else slopes)}


def _convolution_operands(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Operands:
    axes = weight.dim() - 2

    def each(value: Any) -> tuple[int, ...]:
        return (value,) * axes if isinstance(value, int) else (tuple(value) * axes)[:axes]

    settings = {
        "stride": each(stride),
        "padding": padding if isinstance(padding, str) else each(padding),
        "dilation": each(dilation),
        "groups": groups,
    }
    return Operands(input, weight, bias, settings)


def _convolution(operands: Operands, grad: Tensor) -> dict[str, Callable[[], PerSample]]:
    """Convolution: the weight's gradient correlates the padded input with g, the bias' is the sum of g."""
    assert operands.weight is not None
    settings = operands.settings
    kernel = tuple(operands.weight.shape[2:])

    def weight() -> PerSample:
        padding = _pads(settings["padding"], kernel, settings["dilation"])
        narrow = grad.dtype in kernels.HALVES and operands.input.dtype == grad.dtype
        factors = (operands.input, grad) if narrow else (at_least_float32(operands.input), at_least_float32(grad))
        gradient = Convolution(*factors, kernel, settings["stride"], padding, settings["dilation"], settings["groups"])
        return HalfConvolution(gradient) if narrow else gradient

    kind = torch.promote_types(grad.dtype, torch.float32)
    return {"weight": weight, "bias": lambda: Formed(grad.flatten(2).sum(2, dtype=kind))}


def at_least_float32(tensor: Tensor) -> Tensor:
    """float32 where it is a half."""
    return tensor.float() if tensor.dtype in kernels.HALVES else tensor


def _transposed_operands(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Operands:
    operands = _convolution_operands(input, weight, bias, stride, padding, dilation, groups)
    axes = weight.dim() - 2
    spare = (output_padding,) * axes if isinstance(output_padding, int) else (tuple(output_padding) * axes)[:axes]
    return operands._replace(settings=operands.settings | {"spare": spare})


def _transposed(operands: Operands, grad: Tensor) -> dict[str, Callable[[], PerSample]]:
    """Transposed convolution: a convolution read backwards, so that input and gradient change places."""
    assert operands.weight is not None
    settings = operands.settings
    kernel = tuple(operands.weight.shape[2:])

    def weight() -> PerSample:
        padding = _pads(settings["padding"], kernel, settings["dilation"])
        return Convolution(
            grad, operands.input, kernel, settings["stride"], padding, settings["dilation"], settings["groups"]
        )

    return {"weight": weight, "bias": lambda: Formed(grad.flatten(2).sum(2))}


def _is_transposed(axes: int) -> Callable[[Operands], bool]:
    """Rows in front, and no more spare output than the stride skips: then the convolution gives back the input's size."""

    def exact(operands: Operands) -> bool:
        spare = zip(operands.settings["spare"], operands.settings["stride"], strict=True)
        return operands.input.dim() == axes + 2 and all(more < step for more, step in spare)

    return exact


def broadcast(shared: Tensor) -> Tensor:
    """Name, in `RULES`, of what is the same for all units and laid over them: see `tape.Tape.laid_over`."""
    return shared


def _broadcast(operands: Operands, grad: Tensor) -> dict[str, Callable[[], PerSample]]:
    """Each unit's gradient of a shared tensor, taken back to the parameters that it was computed from."""
    settings = operands.settings
    made, sources = settings["made"], settings["parameters"]
    if made is None:  # the parameter itself
        return {name: lambda: Formed(grad.reshape(len(grad), -1)) for name in sources}
    given = grad.to(settings["dtype"]).reshape(-1, *settings["shape"])
    back = partial(torch.autograd.grad, [made], list(sources.values()), retain_graph=True, allow_unused=True)
    try:
        parts = back(grad_outputs=[given], is_grads_batched=True)
    except RuntimeError:
        each = [back(grad_outputs=[one]) for one in given]  # what cannot be vectorised goes one by one
        parts = tuple(None if column[0] is None else torch.stack(column) for column in zip(*each, strict=True))  # type: ignore[misc]
    zeros = {name: p.new_zeros(len(grad), p.numel()) for (name, p), part in zip(sources.items(), parts, strict=True)
             if part is None}  # fmt: skip
    grads = {
        name: part.reshape(len(grad), -1) for name, part in zip(sources, parts, strict=True) if part is not None
    } | zeros
    return {name: partial(Formed, part.to(grad.dtype)) for name, part in grads.items()}


def _pads(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Zeros before and after each axis; 'same' puts the odd one behind, as PyTorch does."""
    if padding == "valid":
        return ((0, 0),) * len(kernel)
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((pad, pad) for pad in padding)


def _embedding_operands(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Operands:
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    settings = {"padding_idx": padding_idx, "plain": max_norm is None and not scale_grad_by_freq}
    return Operands(input, weight, None, settings)


def _embedding(operands: Operands, grad: Tensor) -> dict[str, Callable[[], PerSample]]:
    """Look-up: each position's g is added to its token's row, except for the padding token."""
    assert operands.weight is not None
    units, size = grad.shape[0], operands.weight.shape[0]
    index, rows = operands.input.reshape(units, -1), grad.reshape(units, -1, grad.shape[-1])
    if operands.settings["padding_idx"] is not None:
        rows = rows * (index != operands.settings["padding_idx"]).unsqueeze(-1)
    return {"weight": lambda: Rows(index, rows, size)}


def _embedding_bag_operands(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Operands:
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    plain = max_norm is None and not scale_grad_by_freq and offsets is None and mode in ("sum", "mean")
    learned_weights = per_sample_weights is not None and per_sample_weights.requires_grad
    settings = {"padding_idx": padding_idx, "mode": mode, "weights": per_sample_weights}
    return Operands(input, weight, None, settings | {"plain": plain and not learned_weights and input.dim() == 2})


def _embedding_bag(operands: Operands, grad: Tensor) -> dict[str, Callable[[], PerSample]]:
    """Sum or mean of looked-up rows: each token of a bag gets g, times its weight or over the bag's length."""
    assert operands.weight is not None
    size, index, settings = operands.weight.shape[0], operands.input, operands.settings
    share = torch.ones_like(index, dtype=grad.dtype)
    if settings["padding_idx"] is not None:
        share = (index != settings["padding_idx"]).to(grad.dtype)
    if settings["mode"] == "mean":
        share = share / share.sum(1, keepdim=True).clamp(min=1)
    elif settings["weights"] is not None:
        share = share * settings["weights"].detach()
    return {"weight": lambda: Rows(index, share.unsqueeze(2) * grad.unsqueeze(1), size)}


def _trailing_norm_operands(function: Callable[..., Tensor]) -> Callable[..., Operands]:
    """Operands of `layer_norm` and `rms_norm`, which differ in the bias."""

    def layer(
        input: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Operands:
        return Operands(input, weight, bias, {"normalized_shape": tuple(normalized_shape), "eps": eps})

    def rms(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Operands:
        return Operands(input, weight, None, {"normalized_shape": tuple(normalized_shape), "eps": eps})

    return layer if function is F.layer_norm else rms


def _trailing_norm(function: Callable[..., Tensor]) -> Rule:
    """y = w * z + b with z the input normalised over its last dimensions: sums of g z and of g over the others."""

    def gradients(operands: Operands, grad: Tensor) -> dict[str, Callable[[], PerSample]]:
        shape, units = operands.settings["normalized_shape"], grad.shape[0]
        if function is F.layer_norm:
            sums = kernels.layer_norm(grad, operands.input, math.prod(shape), operands.settings["eps"])
            if sums is not None:
                return {"weight": lambda: Formed(sums[0]), "bias": lambda: Formed(sums[1])}

        def weight() -> PerSample:
            normalised = function(operands.input, shape, eps=operands.settings["eps"])
            return Formed((grad * normalised).reshape(units, -1, *shape).sum(1))

        return {"weight": weight, "bias": lambda: Formed(grad.reshape(units, -1, *shape).sum(1))}

    return Rule(
        _trailing_norm_operands(function),
        gradients,
        lambda o: o.input.dim() > len(o.settings["normalized_shape"]),
        positions=True,
        adds=True,
    )


def _group_norm_operands(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Operands:
    settings = {"normalise": lambda x: F.group_norm(x, num_groups, eps=eps), "groups": num_groups, "eps": eps}
    return Operands(input, weight, bias, settings)


def _instance_norm_operands(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Operands:
    def normalise(x: Tensor) -> Tensor:
        return F.instance_norm(x, running_mean, running_var, use_input_stats=use_input_stats, momentum=0.0, eps=eps)

    return Operands(input, weight, bias, {"normalise": normalise})


def _batch_norm_operands(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Operands:
    def normalise(x: Tensor) -> Tensor:
        return F.batch_norm(x, running_mean, running_var, eps=eps)

    return Operands(input, weight, bias, {"normalise": normalise, "training": training})


def _channel_norm(operands: Operands, grad: Tensor) -> dict[str, Callable[[], PerSample]]:
    """y_c = w_c * z_c + b_c with z the normalised input: sums of g z and of g over positions."""
    flat = grad.flatten(2) if grad.dim() > 2 else grad.unsqueeze(2)
    settings = operands.settings
    if "groups" in settings and grad.dim() > 2:
        sums = kernels.group_norm(grad, operands.input, settings["groups"], settings["eps"])
        if sums is not None:
            return {"weight": lambda: Formed(sums[0]), "bias": lambda: Formed(sums[1])}

    def weight() -> PerSample:
        input, mean, scale = settings.get("statistics", (None, None, None))
        if input is operands.input:
            return Formed(_with_statistics(flat, operands.input.reshape(flat.shape), mean, scale))
        return Formed((flat * settings["normalise"](operands.input).reshape(flat.shape)).sum(2))

    return {"weight": weight, "bias": lambda: Formed(flat.sum(2))}


def _with_statistics(grad: Tensor, given: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Sums over positions of g z for `[batch, channels, places]`, z = (x - mean) * scale in groups `[batch, groups]`.

    Some units at a time, so that what is computed on the way stays in cache.
    """
    width = grad.shape[1] // mean.shape[1]
    centre = mean.repeat_interleave(width, 1).unsqueeze(2)
    sums = [
        torch.sub(given[part], centre[part]).mul_(grad[part]).sum(2)
        for part in slices_of(grad, 4 * grad.shape[1] * grad.shape[2])
    ]
    return torch.cat(sums).mul_(scale.repeat_interleave(width, 1))


def with_statistics(operands: Operands, output: Tensor) -> Operands:
    """The operands of a call, with means and scales that PyTorch has kept for its own backward pass, if it did.

    They go with this very input: whoever replaces it has none.
    """
    node = output.grad_fn
    if type(node).__name__ != "NativeGroupNormBackward0" or torch._C._autograd._top_saved_tensors_default_hooks(True):
        return operands
    kept = (operands.input, node._saved_result1, node._saved_result2)
    return operands._replace(settings=operands.settings | {"statistics": kept})


RULES: dict[Any, Rule] = {
    F.linear: Rule(_linear_operands, _linear, positions=True),
    torch.matmul: Rule(_product_operands, _product, _is_product, positions=True, booked=False),
    torch.Tensor.matmul: Rule(_product_operands, _product, _is_product, positions=True, booked=False),
    torch.addmm: Rule(_added_product_operands, _product, _is_product, positions=True, booked=False),
    F.conv1d: Rule(_convolution_operands, _convolution, lambda operands: operands.input.dim() == 3, halves=True),
    F.conv2d: Rule(_convolution_operands, _convolution, lambda operands: operands.input.dim() == 4, halves=True),
    F.conv3d: Rule(_convolution_operands, _convolution, lambda operands: operands.input.dim() == 5, halves=True),
    F.conv_transpose1d: Rule(_transposed_operands, _transposed, _is_transposed(1)),
    F.conv_transpose2d: Rule(_transposed_operands, _transposed, _is_transposed(2)),
    F.conv_transpose3d: Rule(_transposed_operands, _transposed, _is_transposed(3)),
    F.prelu: Rule(_prelu_operands, _prelu, lambda operands: operands.input.dim() > 1),
    F.embedding: Rule(_embedding_operands, _embedding, lambda operands: operands.settings["plain"], positions=True),
    F.embedding_bag: Rule(_embedding_bag_operands, _embedding_bag, lambda operands: operands.settings["plain"]),
    F.layer_norm: _trailing_norm(F.layer_norm),
    F.rms_norm: _trailing_norm(F.rms_norm),
    F.group_norm: Rule(_group_norm_operands, _channel_norm, adds=True),
    F.instance_norm: Rule(_instance_norm_operands, _channel_norm, adds=True),
    F.batch_norm: Rule(
        _batch_norm_operands, _channel_norm, lambda operands: not operands.settings["training"], adds=True
    ),
    broadcast: Rule(Operands, _broadcast),
}
