"""One loss per unit for the two tasks: cross entropy for classes, squared error for numbers.

Each takes `(model, batch)` with a batch `(x, y)` and returns `[n]`: the form `clipped_sum` and `train` ask for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from noisewise.batches import length
from noisewise.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from noisewise.batches import Nest
    from noisewise.data import Data

LossFn = Callable[[Any, "Nest"], "Tensor"]
NO_CLASS = -(2**63)  # no label: PyTorch's default, -100, would give that person a loss of 0 without a word
NO_POSITION = -100  # PyTorch's mark for positions of a unit that do not count


def cross_entropy(model: Any, batch: Nest) -> Tensor:
    """`-log softmax(model(x))[y]` of each unit, for classes `y [n]` and outputs `[n, classes]`.

    Guarantee: row i of the result depends on row i of the outputs and targets only.
    """
    x, y = batch
    outputs: Tensor = model(x)
    if outputs.dim() != 2 or outputs.shape[0] != y.shape[0] or y.dim() != 1:
        raise DataError(
            f"cross entropy of outputs {list(outputs.shape)} and targets {list(y.shape)}: needs outputs [n, classes] and "
            "one class for each of the n units."
        )
    if outputs.shape[1] < 2:
        raise DataError(
            "cross entropy of a model with one output is 0 whatever it says: build it with one output for each class, or "
            "use squared_error for a number."
        )
    if y.is_floating_point():
        raise DataError(f"cross entropy with targets of type {y.dtype}: classes are integers. Use squared_error.")
    return _of_classes(outputs, y)


def _of_classes(outputs: Tensor, y: Tensor, ignored: int = NO_CLASS) -> Tensor:
    import torch.nn.functional as F

    return F.cross_entropy(outputs, y.long(), reduction="none", ignore_index=ignored)


def views_cross_entropy(model: Any, batch: Nest) -> Tensor:
    """Mean over a unit's views of `-log softmax(model(view))[y]`, for units `[n, K, *row]` and classes `y [n]`.

    The gradient is the mean of the views' gradients: they are averaged before clipping, and K views cost what one costs.
    Guarantee: as `cross_entropy`. Reference: De et al. 2022, arXiv:2204.13650 (augmentation multiplicity).
    """
    x: Tensor
    y: Tensor
    x, y = batch
    views = x.shape[1]
    outputs: Tensor = model(x.flatten(0, 1))
    losses = _of_classes(outputs, y.repeat_interleave(views))
    return losses.reshape(-1, views).mean(1)


def squared_error(model: Any, batch: Nest) -> Tensor:
    """`(model(x) - y)^2` of each unit; for targets `[n, k]` the mean over k.

    Targets `[n]` go with outputs `[n]` or `[n, 1]`. Nothing is broadcast: outputs `[n, 1]` minus targets `[n]` would
    silently compare everybody with everybody.

    Guarantee: row i of the result depends on row i of the outputs and targets only.
    """
    x: Any
    y: Tensor
    x, y = batch
    outputs: Tensor = model(x)
    columns = tuple(y.shape) if y.dim() > 1 else (*y.shape, 1)
    if tuple(outputs.shape) not in ((columns, tuple(y.shape))):
        raise DataError(
            f"squared error of outputs {list(outputs.shape)} and targets {list(y.shape)}: needs one output for each "
            "target, [n, 1] or [n] for targets [n]. Build the model with outputs=1."
        )
    if y.dim() > 2:
        raise DataError(f"squared error with targets {list(y.shape)}: needs [n] or [n, k].")
    return (outputs.reshape(columns) - y.to(outputs.dtype).reshape(columns)).square().mean(1)


def default_loss(model: Any, batch: Nest) -> Tensor:
    """For batches `(x, y)`: cross entropy if y holds integers, squared error otherwise; one loss per unit.

    Targets may have positions, `[n, ...]`: outputs then hold the classes last, and a unit's loss is the mean over positions;
    those marked -100 count as 0.
    """
    x: Any
    y: Tensor
    x, y = batch
    outputs: Tensor = model(x)
    if y.is_floating_point():
        losses = (outputs.reshape(y.shape) - y).square()
    elif y.dim() > 1:
        losses = _of_classes(outputs.movedim(-1, 1), y, NO_POSITION)
    else:
        losses = _of_classes(outputs, y)
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses


def unit_losses(model: nn.Module, loss_fn: Any, batch: Nest) -> Tensor:
    """`loss_fn(model, batch)`, checked to be `[batch]`."""
    from torch import Tensor

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


LOSSES: dict[str, LossFn] = {"classification": cross_entropy, "regression": squared_error}


def loss_for(data: Data) -> LossFn:
    """The loss of a data set's task: `cross_entropy` for integer targets, `squared_error` for real-valued ones."""
    if data.task not in LOSSES:
        raise ConfigError(f"task {data.task!r}: no loss is known. Known tasks: {', '.join(LOSSES)}.")
    return LOSSES[data.task]


def outputs_for(data: Data) -> int:
    """How many outputs a model needs for a data set: one for each class, or one for each real-valued target."""
    if data.task == "regression":
        return 1 if data.y.dim() == 1 else int(data.y.shape[1])
    if not data.classes:
        raise ConfigError(
            "the data names no classes: give Data(..., classes=(...)), so that none is read off the labels."
        )
    return len(data.classes)
