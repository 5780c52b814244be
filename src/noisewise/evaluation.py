"""Asking a model: in evaluation mode, and where it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

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

    first = next(model.parameters(), next(model.buffers(), None))
    return torch.device("cpu") if first is None else first.device
