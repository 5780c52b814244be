"""Ghost rules: what one recorded call says about each unit's gradient, without forming it where that is dearer.

A rule turns a call's input and the gradient of its output into one `PerSample` for each parameter. To add a layer,
add a function of `(operands, grad)` and a line in `RULES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from noisewise.persample import kernels
from noisewise.persample.convolution import Convolution
from noisewise.persample.formed import Formed, PerSample, slices_of
from noisewise.persample.gradients import Outer, Rows


class Operands(NamedTuple):
    """A call's arguments, brought into one form."""

    input: Tensor
    weight: Tensor | None
    bias: Tensor | None = None
    settings: dict[str, Any] = {}  # noqa: RUF012  never written to


@dataclass(frozen=True)
class Rule:
    """How to read a function's arguments, when the rule is exact, and what each parameter's gradient is."""

    operands: Callable[..., Operands]
    gradients: Callable[[Operands, Tensor], dict[str, Callable[[], PerSample]]]
    exact: Callable[[Operands], bool] = lambda operands: True


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
        return Convolution(
            operands.input, grad, kernel, settings["stride"], padding, settings["dilation"], settings["groups"]
        )

    return {"weight": weight, "bias": lambda: Formed(grad.flatten(2).sum(2))}


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
        _trailing_norm_operands(function), gradients, lambda o: o.input.dim() > len(o.settings["normalized_shape"])
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
    F.linear: Rule(_linear_operands, _linear),
    F.conv1d: Rule(_convolution_operands, _convolution, lambda operands: operands.input.dim() == 3),
    F.conv2d: Rule(_convolution_operands, _convolution, lambda operands: operands.input.dim() == 4),
    F.conv3d: Rule(_convolution_operands, _convolution, lambda operands: operands.input.dim() == 5),
    F.embedding: Rule(_embedding_operands, _embedding, lambda operands: operands.settings["plain"]),
    F.embedding_bag: Rule(_embedding_bag_operands, _embedding_bag, lambda operands: operands.settings["plain"]),
    F.layer_norm: _trailing_norm(F.layer_norm),
    F.rms_norm: _trailing_norm(F.rms_norm),
    F.group_norm: Rule(_group_norm_operands, _channel_norm),
    F.instance_norm: Rule(_instance_norm_operands, _channel_norm),
    F.batch_norm: Rule(_batch_norm_operands, _channel_norm, lambda operands: not operands.settings["training"]),
}
