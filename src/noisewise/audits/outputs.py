"""The loss of every row, what the model says of it (`noisewise.evaluation`), and what may be done with the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noisewise.errors import DataError
from noisewise.evaluation import BATCH, check_data, device_of, evaluating, logits, outputs
from noisewise.losses import unit_losses
from noisewise.runs.folder import Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from noisewise.data import Data
    from noisewise.losses import LossFn

__all__ = [
    "BATCH",
    "check_state",
    "check_subject",
    "device_of",
    "evaluating",
    "logits",
    "outputs",
    "row_losses",
    "status_of",
]


def check_subject(data: Data, **models: nn.Module | None) -> None:
    """Refuse data without rows, and models (by name, None for one that is not there) whose weights are not finite."""
    check_data(data)
    if not len(data):
        raise DataError("the data has no rows: there is nobody to audit the model on. Give a part that has some.")
    for name, model in models.items():
        if model is not None:
            device_of(model)  # refuses what is no model
            check_state(f"the {name} model", dict(model.named_parameters()) | dict(model.named_buffers()))


def check_state(which: str, state: Mapping[str, Tensor]) -> None:
    """Refuse weights that are not finite: training has diverged, and nothing that is measured there means anything."""
    import torch

    for name, tensor in state.items():
        broken = tensor.numel() - int(torch.isfinite(tensor).sum())
        if broken:
            raise DataError(
                f"{which}: {broken:,} of the {tensor.numel():,} values of {name} are not finite, so training diverged. "
                "Lower the learning rate, or begin anew from weights that are finite."
            )


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
