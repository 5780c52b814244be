"""One loss per unit, or an error that says what came instead."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from noisewise.batches import Nest, length
from noisewise.errors import DataError


def unit_losses(model: nn.Module, loss_fn: Any, batch: Nest) -> Tensor:
    """`loss_fn(model, batch)`, checked to be `[batch]`."""
    losses, units = loss_fn(model, batch), length(batch)
    if not isinstance(losses, Tensor):
        raise DataError(f"loss_fn returned {type(losses).__name__}: it must return a tensor of one loss per unit.")
    if losses.dim() == 0:
        raise DataError(
            "loss_fn returned one number for the whole batch: gradients of single units cannot be told apart. "
            "Return one loss per unit, e.g. F.cross_entropy(model(x), y, reduction='none')."
        )
    if losses.shape != (units,):
        raise DataError(
            f"loss_fn returned shape {list(losses.shape)} for {units} units: must be [{units}], one loss per unit. "
            "Average or add up all other dimensions, e.g. losses.flatten(1).mean(1)."
        )
    return losses
