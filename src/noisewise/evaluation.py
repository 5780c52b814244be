"""What a model says of every row, asked in the same way by every attack, audit and repair."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from noisewise.errors import ConfigError, DataError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from noisewise.data import Data

BATCH = 256  # rows at a time: activations that stay in a processor's cache are faster than large batches


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """The model in evaluation mode; afterwards every part of it is in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield model
    finally:
        for module, training in modes.items():
            module.training = training


def device_of(model: nn.Module) -> torch.device:
    """Where the model is; a model without parameters and buffers is on the CPU."""
    import torch

    if not isinstance(model, torch.nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise ConfigError(
            f"{what} where a model is expected: must be a torch.nn.Module. Audits take (model, data, twin=another model)."
        )
    first = next(model.parameters(), next(model.buffers(), None))
    return torch.device("cpu") if first is None else first.device


def outputs(model: nn.Module, x: Tensor, batch_size: int = BATCH) -> Tensor:
    """Outputs of all rows in evaluation mode, on the CPU in double precision; the model is left as it was."""
    import torch

    device = device_of(model)
    with evaluating(model), torch.no_grad():
        return torch.cat([model(part.to(device)).cpu() for part in x.split(batch_size)]).double()


def check_data(data: Any) -> None:
    """Refuse what is no `Data`."""
    if not all(hasattr(data, part) for part in ("x", "y", "groups")):
        raise DataError(
            f"a {type(data).__name__} where data is expected: must be noisewise.Data(x, y), made of tensors. Audits take "
            "(model, data)."
        )


def logits(model: nn.Module, data: Data, batch_size: int = BATCH) -> Tensor:
    """One number per row and class `[n, classes]`; data and models that have no classes are refused."""
    check_data(data)
    if data.y.dim() != 1 or data.y.is_floating_point() or not len(data):
        raise DataError(f"labels of shape {list(data.y.shape)}, {data.y.dtype}: needs one whole-number class per row.")
    per_class = outputs(model, data.x, batch_size)
    if per_class.dim() != 2 or int(data.y.max()) >= per_class.shape[1]:
        raise DataError(f"the model gives outputs of shape {list(per_class.shape)}: needs one per class and row.")
    return per_class
