"""Data beside the model: copied to its device once, where it fits, so that batches need not be sent step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from noisewise.batches import Nest, leaves, map_tensors

TAKEN_OVER = 1 << 16  # bytes that a driver copies before it returns
SHARE = 0.25  # of the device's free memory that data may take


class Resident:
    """A copy of a nest of tensors on another device; made anew when one of them is another or has changed."""

    def __init__(self) -> None:
        self._of: list[tuple[Tensor, int]] = []
        self._copy: Nest = None

    def of(self, units: Nest, device: torch.device) -> Nest:
        """The tensors on the device, or as they are if they do not fit there."""
        tensors = list(leaves(units))
        if device.type != "cuda" or all(tensor.is_cuda for tensor in tensors):
            return units
        known = len(self._of) == len(tensors) and all(
            tensor is kept and _version(tensor) == version
            for tensor, (kept, version) in zip(tensors, self._of, strict=True)
        )
        if not known:
            self._copy = None  # free it first
            fits = sum(tensor.nbytes for tensor in tensors) <= SHARE * torch.cuda.mem_get_info(device)[0]
            self._copy = map_tensors(lambda tensor: tensor.to(device), units) if fits else None
            self._of = [(tensor, _version(tensor)) for tensor in tensors]
        return units if self._copy is None else self._copy


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def sent(tensor: Any, device: torch.device) -> Any:
    """The tensor on the device, without waiting for what it computes.

    Little is taken over by the driver at once; more from memory that the device reads by itself, which takes long to get.
    """
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return (tensor if tensor.nbytes <= TAKEN_OVER else tensor.pin_memory()).to(device, non_blocking=True)
