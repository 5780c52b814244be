"""Ghost rules: what one recorded call says about each unit's gradient, without forming it where that is dearer.

A rule turns a call's input and the gradient of its output into one `PerSample` for each parameter. To add a layer,
add a function of `(operands, grad)` and a line in `RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from noisewise.persample.gradients import Convolution, Formed, Outer, PerSample, Rows


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
    return {"weight": lambda: Outer(left, right), "bias": lambda: Formed(left.sum(1))}


def _conv2d_operands(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Operands:
    def pair(value: Any) -> tuple[int, int]:
        return (value, value) if isinstance(value, int) else (tuple(value) * 2)[:2]

    settings = {"stride": pair(stride), "padding": padding, "dilation": pair(dilation), "groups": groups}
    if not isinstance(padding, str):
        settings["padding"] = pair(padding)
    return Operands(input, weight, bias, settings)


def _conv2d(operands: Operands, grad: Tensor) -> dict[str, Callable[[], PerSample]]:
    """Convolution: the weight's gradient correlates the padded input with g, the bias' is the sum of g."""
    assert operands.weight is not None
    settings = operands.settings
    kernel = (operands.weight.shape[2], operands.weight.shape[3])

    def weight() -> PerSample:
        padding = _pads(settings["padding"], kernel, settings["dilation"])
        return Convolution(
            operands.input, grad, kernel, settings["stride"], padding, settings["dilation"], settings["groups"]
        )

    return {"weight": weight, "bias": lambda: Formed(grad.sum((2, 3)))}


def _pads(padding: Any, kernel: tuple[int, int], dilation: tuple[int, int]) -> tuple[int, int, int, int]:
    """Zeros at top, bottom, left and right; 'same' puts the odd one behind, as PyTorch does."""
    if padding == "valid":
        return 0, 0, 0, 0
    if padding == "same":
        rows, columns = (d * (k - 1) for k, d in zip(kernel, dilation, strict=True))
        return rows // 2, rows - rows // 2, columns // 2, columns - columns // 2
    return padding[0], padding[0], padding[1], padding[1]


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


def _layer_norm_operands(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Operands:
    return Operands(input, weight, bias, {"normalized_shape": tuple(normalized_shape), "eps": eps})


def _layer_norm(operands: Operands, grad: Tensor) -> dict[str, Callable[[], PerSample]]:
    """y = w * z + b with z the normalised input: sums of g z and of g over all but the normalised dimensions."""
    shape = operands.settings["normalized_shape"]
    units = grad.shape[0]

    def weight() -> PerSample:
        normalised = F.layer_norm(operands.input, shape, eps=operands.settings["eps"])
        return Formed((grad * normalised).reshape(units, -1, *shape).sum(1))

    return {
        "weight": weight,
        "bias": lambda: Formed(grad.reshape(units, -1, *shape).sum(1)),
    }


def _group_norm_operands(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Operands:
    return Operands(input, weight, bias, {"num_groups": num_groups, "eps": eps})


def _group_norm(operands: Operands, grad: Tensor) -> dict[str, Callable[[], PerSample]]:
    """y_c = w_c * z_c + b_c with z the normalised input: sums of g z and of g over positions."""
    flat = grad.flatten(2) if grad.dim() > 2 else grad.unsqueeze(2)

    def weight() -> PerSample:
        normalised = F.group_norm(operands.input, **operands.settings)
        return Formed((flat * normalised.reshape(flat.shape)).sum(2))

    return {"weight": weight, "bias": lambda: Formed(flat.sum(2))}


RULES: dict[Any, Rule] = {
    F.linear: Rule(_linear_operands, _linear),
    F.conv2d: Rule(_conv2d_operands, _conv2d, lambda operands: operands.input.dim() == 4),
    F.embedding: Rule(_embedding_operands, _embedding, lambda operands: operands.settings["plain"]),
    F.layer_norm: Rule(
        _layer_norm_operands, _layer_norm, lambda o: o.input.dim() > len(o.settings["normalized_shape"])
    ),
    F.group_norm: Rule(_group_norm_operands, _group_norm),
}
