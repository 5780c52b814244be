"""Models at other weights: between two states, in a random direction, as saved; their losses and gradients there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.audits.outputs import device_of, evaluating, row_losses
from noisewise.audits.result import INK
from noisewise.errors import ConfigError
from noisewise.losses import default_loss

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.data import Data
    from noisewise.losses import LossFn

CLOUD = 500  # rows whose gradients are compared in pairs


def interpolated(first: Mapping[str, Tensor], second: Mapping[str, Tensor], a: float) -> dict[str, Tensor]:
    """`(1-a) first + a second` of two state dicts; what is no real number must be equal in both."""
    if {k: v.shape for k, v in first.items()} != {k: v.shape for k, v in second.items()}:
        raise ConfigError("the models have different parameters: there is no segment between two architectures.")
    between = {}
    for name, one in first.items():
        other = second[name].to(one.device)
        if one.is_floating_point() or one.is_complex():
            between[name] = one if a == 0 else other if a == 1 else (1 - a) * one + a * other
        elif bool((one == other).all()):
            between[name] = one
        else:
            raise ConfigError(f"{name} holds whole numbers that differ between the models: it cannot be interpolated.")
    return between


def moved(
    state: Mapping[str, Tensor], names: Sequence[str], length: float, generator: np.random.Generator
) -> dict[str, Tensor]:
    """`state + length u/||u||` for one Gaussian u over the named parameters."""
    import torch

    steps = {name: generator.standard_normal(state[name].shape) for name in names}
    norm = math.sqrt(sum(float((step**2).sum()) for step in steps.values()))
    return {
        name: tensor + torch.as_tensor(steps[name] * (length / norm)).to(tensor) if name in steps else tensor
        for name, tensor in state.items()
    }


def parameter_names(model: nn.Module) -> list[str]:
    """Each parameter once, also if it has several names."""
    return [name for name, _ in model.named_parameters()]


def flat(state: Mapping[str, Tensor], names: Sequence[str]) -> np.ndarray:
    """The named tensors as one vector."""
    return np.concatenate([state[name].detach().double().cpu().numpy().ravel() for name in names])


def length_of(state: Mapping[str, Tensor], names: Sequence[str]) -> float:
    """Norm of the named tensors together."""
    return float(np.linalg.norm(flat(state, names)))


def distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor], names: Sequence[str]) -> float:
    """Norm of the difference of two states in the named tensors."""
    return float(np.linalg.norm(flat(first, names) - flat(second, names)))


def usual_loss(loss_fn: LossFn | None) -> LossFn:
    """The loss that is given, or cross-entropy for classes and squared error for numbers."""
    if loss_fn is not None:
        return loss_fn
    return default_loss


def refuse_running_statistics(name: str, model: nn.Module) -> None:
    """Stop at layers that keep means of the data they saw."""
    for path, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None:
            raise ConfigError(
                f"{name}: layer {path or type(module).__name__!r} keeps running statistics, which mean nothing between two "
                "models. Use GroupNorm: noisewise.models.convert.batchnorm_to_groupnorm(model)."
            )


def some_rows(data: Data, rows: int, generator: np.random.Generator) -> Data:
    """At most so many rows, drawn at random, in their order."""
    import torch

    if len(data) <= rows:
        return data
    return data.take(torch.from_numpy(np.sort(generator.choice(len(data), rows, replace=False))))


def losses_at(
    scratch: nn.Module, state: Mapping[str, Tensor], data: Data, loss_fn: LossFn, step: Callable[[], None]
) -> np.ndarray:
    """One loss per row with other weights; the scratch model keeps them."""
    load(scratch, state)
    losses = row_losses(scratch, data, loss_fn)
    step()
    return losses.numpy()


def load(scratch: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Parameters by their first name only, so that a tied one is not overwritten under its second; buffers."""
    import torch

    buffers = {name: buffer for name, buffer in scratch.named_buffers() if name in state}
    tensors = {**dict(scratch.named_parameters()), **buffers}
    wrong = [name for name, tensor in tensors.items() if name not in state or state[name].shape != tensor.shape]
    if wrong:
        raise ConfigError(f"a saved state does not fit the model: {wrong[0]} is missing or has another shape.")
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(state[name])


def projected_gradients(
    model: nn.Module, batch: Any, loss_fn: LossFn, generator: np.random.Generator, dimensions: int = 2
) -> np.ndarray:
    """`R^T g_i` for every unit, R Gaussian `[parameters, dimensions]` with columns of expected length 1.

    No gradient of a single unit is formed: `<g_i, r>` is the derivative by v_i of `<grad sum_i v_i loss_i, r>`.
    """
    import torch

    live = [p for p in model.parameters() if p.requires_grad]
    scale = 1 / math.sqrt(sum(p.numel() for p in live))
    with evaluating(model), torch.enable_grad():
        losses = loss_fn(model, batch)
        weights = torch.ones_like(losses, requires_grad=True)
        grads = torch.autograd.grad(losses, live, weights, create_graph=True, allow_unused=True)
        columns = []
        for _ in range(dimensions):
            total = losses.new_zeros(())
            for parameter, grad in zip(live, grads, strict=True):
                direction = generator.standard_normal(parameter.shape) * scale  # drawn for all, so order never matters
                if grad is not None:
                    total = total + (grad * torch.as_tensor(direction).to(grad)).sum()
            columns.append(torch.autograd.grad(total, weights, retain_graph=True)[0].detach().cpu().double().numpy())
    return np.stack(columns, 1)


def cloud_rows(data: Data, generator: np.random.Generator) -> Data:
    """The rows that a cloud of gradients is made of, at most 500."""
    return some_rows(data, CLOUD, generator)


def gradient_cloud(model: nn.Module, data: Data, loss_fn: LossFn, generator: np.random.Generator) -> np.ndarray:
    """Deviations of gradients from their mean in a random plane; of at most 500 rows, since pairs are compared."""
    part = cloud_rows(data, generator)
    device = device_of(model)
    cloud = projected_gradients(model, (part.x.to(device), part.y.to(device)), loss_fn, generator)
    return cloud - cloud.mean(0)


def legend(ax: Axes) -> Axes:
    """Name the lines without a frame."""
    ax.legend(frameon=False, labelcolor=INK, fontsize="small")
    return ax
