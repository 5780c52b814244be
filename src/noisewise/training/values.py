"""Values that the loss cannot take, looked for before the first step: labels of no class, numbers that are not finite.

In training such a row would stop a run half-way, with a part of the budget spent, or add nothing at every step in silence.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.batches import Nest, map_tensors
from noisewise.data import Data
from noisewise.data.extremes import Extreme, extremes, in_part, unknown
from noisewise.data.indexed import Indexed
from noisewise.data.marks import named
from noisewise.distributed.sharding import is_sharded
from noisewise.errors import ConfigError, DataError, NoisewiseError
from noisewise.losses import LossFn, unit_losses
from noisewise.persample.chance import random_state
from noisewise.persample.in_range import InRange, NotAsked
from noisewise.persample.lent import lending, portions
from noisewise.training.augmentation import Augment
from noisewise.training.batches import Look, rows_at, units_of
from noisewise.training.taken import Taken


def check_values(model: nn.Module, loss_fn: LossFn, data: Data | Indexed | Nest, augment: Augment | None) -> None:
    """Refuse data with a row that the loss cannot take; asked of the few rows that hold extremes, before any release.

    A model may have a way for missing numbers: what counts is whether the row's loss and gradient are finite. A `Dataset`
    with an identity of its own, and data on disk that were opened without verifying, would have to be read as a whole: of
    these each batch is looked at when a step takes it (`looking`).
    """
    for name, several in _extremes(data).items():
        for row, value in several:
            reason = _refused(model, loss_fn, rows_at(data, torch.tensor([row])), augment)
            if reason is not None:
                raise _cannot_take(row, value, name, reason)


def looking(
    model: nn.Module, loss_fn: LossFn, data: Data | Indexed | Nest, augment: Augment | None, taken: Taken, step: int
) -> Look | None:
    """What looks at the rows of each batch, before anything of its step is released; None where all is known already.

    `taken`: what the loss has taken in earlier steps. Cost: one pass over a batch; the loss of a row is asked where a value
    is beyond all those before it.
    """
    names = _unknown(data)
    if not names:
        return None
    if any(map(is_sharded, model.parameters())):
        raise ConfigError(
            "data of which each batch must be looked at (Indexed with an identity, or opened without verifying), with "
            "parameters that are spread over processes: a row can be asked about on all ranks together only. Leave out "
            "identity=, or open the data with verify=True, so that it is looked through before the first step."
        )

    def look(batch: Nest, rows: Tensor) -> None:
        flat = map_tensors(lambda tensor: tensor.reshape(-1, *tensor.shape[rows.dim() :]), batch)
        numbers = rows.reshape(-1)
        for name, tensor in named(flat):
            for place, value in in_part(tensor, 0) if name in names else ():
                if not taken.covers(name, value):
                    one = map_tensors(lambda tensor: tensor[place : place + 1], flat)  # noqa: B023
                    if (reason := _refused(model, loss_fn, one, augment)) is not None:
                        before = f"{step} steps were released before it was read, and stay in the ledger"
                        raise _cannot_take(int(numbers[place]), value, name, f"{reason} ({before})")
                    taken.add(name, value)

    return look


def _cannot_take(row: int, value: float, name: str, reason: str) -> DataError:
    return DataError(
        f"row {row} of the data holds {value:g} in its {_place(name)}, and {reason}. Correct or leave out such "
        "rows (labels are 0 to classes - 1; missing numbers need a value), or let model and loss take them."
    )


def _unknown(data: Data | Indexed | Nest) -> set[str]:
    """Tensors whose extremes nobody has seen."""
    if isinstance(data, Indexed):
        return set() if data.identity is None else {name for name, _ in named(data.like)}
    return {name for name, tensor in named(units_of(data)) if unknown(tensor)}


def _extremes(data: Data | Indexed | Nest) -> dict[str, tuple[Extreme, ...]]:
    if isinstance(data, Indexed):
        return data.extremes
    return {name: extremes(tensor) for name, tensor in named(units_of(data))}


def _place(name: str) -> str:
    return {"": "tensor", "0": "inputs (the first tensor)", "1": "targets (the second tensor)"}.get(
        name, f"tensor {name!r}"
    )


def _refused(model: nn.Module, loss_fn: LossFn, row: Nest, augment: Augment | None) -> str | None:
    """Why the loss does not take a row; None if it does."""
    if next(model.parameters()).device.type == "cpu":
        return _answer(model, loss_fn, row, augment, nullcontext())
    try:
        return _answer(model, loss_fn, row, augment, InRange())
    except NotAsked:  # an index out of range would end the process
        if lending() is not None:  # the whole model lies nowhere
            return _answer(model, loss_fn, row, augment, nullcontext())
        return _answer(copy.deepcopy(model).cpu(), loss_fn, row, augment, nullcontext(), moved=True)


def _answer(
    model: nn.Module,
    loss_fn: LossFn,
    row: Nest,
    augment: Augment | None,
    within: AbstractContextManager[Any],
    moved: bool = False,
) -> str | None:
    """Why the loss does not take a row on the model's device; `moved`: on another one than what is asked for."""
    device = next(model.parameters()).device
    batch = map_tensors(lambda tensor: tensor.cpu().clone(), row)
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with random_state(0), torch.enable_grad():
        try:
            if augment is not None:
                batch = augment.function(batch, torch.Generator().manual_seed(0))
            batch = map_tensors(lambda tensor: tensor.to(device), batch)
            with within:
                loss = unit_losses(model, loss_fn, batch)
            finite = [_finite_slopes(loss, list(some.values())) for some in portions(learning)]
        except NotAsked:
            raise
        except NoisewiseError as error:
            return f"the loss refuses it: {str(error).rstrip('.')}"
        except Exception as error:
            if moved and not isinstance(error, IndexError):
                return None  # perhaps only the loss's own tensors are elsewhere
            return f"the loss cannot be computed ({type(error).__name__}: {str(error).splitlines()[0].rstrip('.')})"
    if not bool(loss.isfinite().all()):
        return f"its loss is {loss[0].item():g}"
    return None if all(finite) else "its gradient is not finite, so that it would add nothing"


def _finite_slopes(loss: Tensor, learning: list[nn.Parameter]) -> bool:
    slopes = torch.autograd.grad(loss.sum(), learning, allow_unused=True, retain_graph=True)
    return all(slope is None or bool(slope.isfinite().all()) for slope in slopes)
