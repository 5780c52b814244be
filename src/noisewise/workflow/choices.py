"""What a config chooses by name: clipping rules and optimizers (samplers are in `sampling.SAMPLERS`). No torch import."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from noisewise import adaptive

if TYPE_CHECKING:
    import torch

CLIPS = adaptive.KINDS


def takes(clip: str, setting: str) -> bool:
    """Does the clipping rule of that name have this setting?"""
    return clip in CLIPS and setting in {field.name for field in fields(CLIPS[clip])}


def _of_torch(name: str) -> Callable[..., torch.optim.Optimizer]:
    def made(parameters: Any, **settings: Any) -> torch.optim.Optimizer:
        import torch

        return getattr(torch.optim, name)(parameters, **settings)

    return made


OPTIMIZERS = {
    "sgd": _of_torch("SGD"),
    "adam": _of_torch("Adam"),
    "adamw": _of_torch("AdamW"),
    "rmsprop": _of_torch("RMSprop"),
}
WITH_MOMENTUM = ("sgd", "rmsprop")
