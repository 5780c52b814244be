"""Images in memory: with channels last, PyTorch's convolutions and poolings on a CPU take half the time and less.

Which way is taken follows from the operations of the examined pass, never from timing, so that a resumed run takes the same.
The model sees the same numbers in the same shapes; only their order in memory differs, and with it the last bits of results.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from noisewise.persample.dispatched import CHANCE
from noisewise.persample.trace import Trace

CONVOLUTIONS = ("aten::convolution.", "aten::_convolution.")
UNFIT = "aten::native_group_norm."  # with channels last it loses digits, and crashes where its input needs no gradient


def is_images(tensor: Tensor) -> bool:
    """Real numbers `[batch, channels, height, width]` on a CPU."""
    return tensor.dim() == 4 and tensor.is_floating_point() and tensor.device.type == "cpu" and tensor.numel() > 0


def with_channels_last(tensor: Tensor) -> Tensor:
    """The same images with channels last in memory; other tensors, and images of which that is known, as they are.

    Of one channel nothing has to be moved: the strides say how PyTorch shall read it.
    """
    if not is_images(tensor):
        return tensor
    if tensor.shape[1] == 1 and tensor.is_contiguous():
        height, width = tensor.shape[2:]
        return tensor.as_strided(tensor.shape, (height * width, 1, width, 1), tensor.storage_offset())
    return tensor.contiguous(memory_format=torch.channels_last)


def draws(trace: Trace) -> bool:
    """Does a pass draw numbers by chance?"""
    return any(step.operation.partition("::")[2].partition(".")[0].rstrip("_") in CHANCE for step in trace.steps)


def convolves_images(trace: Trace, inputs: Iterable[Tensor]) -> bool:
    """Does a pass take images and convolve over two axes, without an operation that is worse with channels last?"""
    convolutions = (step for step in trace.steps if step.operation.startswith(CONVOLUTIONS))
    planes = any(made.kind == "rows" and len(made.shape) == 3 for step in convolutions for made in step.made)
    return planes and any(map(is_images, inputs)) and not any(step.operation.startswith(UNFIT) for step in trace.steps)
