"""Every unit alone: all at once by `vmap` (dense), or one by one (loop, the definition). The model sees one unit at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.batches import Nest, Views, leaves, map_tensors, take
from noisewise.errors import DataError, UnsupportedLayer, memory_ran_out
from noisewise.losses import unit_losses
from noisewise.persample.chance import Drawing, draw_in_secret
from noisewise.persample.conditions import NotProven
from noisewise.persample.dispatched import StateChanged
from noisewise.persample.held import counts, own_tensors
from noisewise.persample.layout import Layout
from noisewise.persample.rounding import uncut
from noisewise.persample.tape import unexplained
from noisewise.persample.watch import Watch

Live = Mapping[str, nn.Parameter]


def each_alone(model: nn.Module, loss_fn: Any, batch: Views, live: Live, layout: Layout) -> dict[str, Tensor]:
    """Per-unit gradients `[batch, *parameter]`, all at once where the model can be vectorised."""
    if layout.vectorises:
        try:
            return dense(model, loss_fn, batch, live)
        except UnsupportedLayer as error:  # a branch that the examination did not see
            if memory_ran_out(error):
                raise
    return loop(model, loss_fn, batch, live)


class _Loss(nn.Module):
    """The loss as a module, so that `functional_call` can exchange the model's parameters."""

    def __init__(self, model: nn.Module, loss_fn: Callable[[Any, Nest], Tensor]):
        super().__init__()
        self.model, self.loss_fn = model, loss_fn

    def forward(self, batch: Nest) -> Tensor:
        """One loss per unit."""
        return self.loss_fn(self.model, batch)


def dense(model: nn.Module, loss_fn: Any, batch: Views, live: Live) -> dict[str, Tensor]:
    """Per-unit gradients `[batch, *parameter]` by `torch.func.vmap`: any layer that it can vectorise."""
    wrapped = _Loss(model, loss_fn)

    def loss_of_one(parameters: Mapping[str, Tensor], rows: Nest, weights: Tensor) -> Tensor:
        losses: Tensor = torch.func.functional_call(
            wrapped, {f"model.{name}": p for name, p in parameters.items()}, (rows,)
        )
        if losses.shape != weights.shape:
            raise DataError(
                f"the loss of a batch of {len(weights)} unit(s) has shape {list(losses.shape)}: must be [{len(weights)}]."
            )
        return (losses * weights.to(losses.dtype)).sum()

    try:
        per_unit = torch.func.vmap(torch.func.grad(loss_of_one), in_dims=(None, 0, 0), randomness="different")
        # no_grad: or the parameters that are not asked for would keep a graph alive
        with torch.no_grad(), warnings.catch_warnings(), Drawing(), uncut():
            warnings.filterwarnings("ignore", "There is a performance drop because we have not yet", UserWarning)
            rows = map_tensors(torch.clone, batch.batch)  # the model may change its input in place
            grads: dict[str, Tensor] = per_unit({name: p.detach() for name, p in live.items()}, rows, batch.weights)
            return grads
    except (RuntimeError, ValueError, NotProven) as error:
        raise UnsupportedLayer(
            f"the dense engine cannot vectorise this model for {sorted(live)}: {str(error).rstrip('.')}. "
            "Use Runtime(engine='loop'), which is slow and always right, or freeze these parameters with support=."
        ) from error


def _no_gradient(error: RuntimeError) -> Exception:
    """What autograd itself cannot do, in words; anything else as it is."""
    if "inplace operation" not in str(error):
        return error
    return DataError(
        f"a tensor that a gradient needs was changed in place after it was used ({str(error).partition('. Hint')[0]}). "
        "Replace the in-place operation (x += y) by x = x + y."
    )


def loop(model: nn.Module, loss_fn: Any, batch: Views, live: Live) -> dict[str, Tensor]:
    """Per-unit gradients `[batch, *parameter]`, one unit at a time: the definition."""
    units = []
    watch, before = Watch(own_tensors(model)), counts(model, loss_fn)
    advance: dict[int, dict[str, int]] = {}  # by how much a pass of so many rows counts on
    for i, weights in enumerate(batch.weights):
        kept = weights > 0
        grads: tuple[Tensor | None, ...] = (None,) * len(live)
        if bool(kept.any()):  # a unit without rows is padding
            rows = take(take(batch.batch, i), kept)
            draw_in_secret()
            watch.begin(leaves(rows))
            with watch:
                losses = unit_losses(model, loss_fn, rows)
            after = counts(model, loss_fn)
            advanced = {name: number - before.get(name, number) for name, number in after.items()}
            if advance.setdefault(len(losses), advanced) != advanced:
                raise StateChanged("a whole number, by more for one unit than for another")
            before = after
            if i == 0:
                with suppress(NotProven):
                    unexplained(losses, live)  # refuses reentrant checkpoints
            if losses.requires_grad:
                total = (losses * weights[kept].to(losses.dtype)).sum()
                try:
                    grads = torch.autograd.grad(total, list(live.values()), allow_unused=True)
                except RuntimeError as error:
                    raise _no_gradient(error) from error
        units.append([torch.zeros_like(p) if g is None else g for p, g in zip(live.values(), grads, strict=True)])
    return {name: torch.stack([unit[k] for unit in units]) for k, name in enumerate(live)}
