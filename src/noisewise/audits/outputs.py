"""The loss of every row, what the model says of it (`noisewise.evaluation`), and what may be done with the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noisewise.evaluation import BATCH, device_of, evaluating, logits, outputs
from noisewise.losses import unit_losses
from noisewise.runs.folder import Status

if TYPE_CHECKING:
    from torch import Tensor, nn

    from noisewise.data import Data
    from noisewise.losses import LossFn

__all__ = ["BATCH", "device_of", "evaluating", "logits", "outputs", "row_losses", "status_of"]


def row_losses(model: nn.Module, data: Data, loss_fn: LossFn, batch_size: int = BATCH) -> Tensor:
    """One loss per row in evaluation mode, on the CPU in double precision; the model is left as it was."""
    import torch

    device = device_of(model)
    with evaluating(model), torch.no_grad():
        parts = [
            unit_losses(model, loss_fn, (x.to(device), y.to(device))).double().cpu()
            for x, y in zip(data.x.split(batch_size), data.y.split(batch_size), strict=True)
        ]
    return torch.cat(parts)


def status_of(data: Data, twin: nn.Module | None) -> Status:
    """May an audit's figures be shown? Only those of a released model on public data; nothing is with its twin."""
    if twin is not None:
        return Status("not-private", "shows the non-private twin: no ledger covers it")
    if not data.public:
        return Status("not-private", "exact figures of held-out people: no ledger covers them")
    return Status("private", "computed from the released model and public data")
