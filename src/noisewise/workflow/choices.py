"""What a config chooses by name: clipping rules, optimizers, models, repairs; samplers are in `sampling`. No torch import."""

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
# Keys of `models.MODELS`, `repair_specs.BY_SLUG` and `recipes.RECIPES`, without importing them.
MODEL_NAMES = (
    "cnn", "lenet", "mlp", "logistic", "table", "mnist-cnn", "cifar-net", "dp-cnn", "dp-cnn-s", "h-cnn", "h-cnn-s",
    "linear-head", "conv-head", "resnet18", "resnet34", "wrn-16-4", "wrn-40-4", "vit", "words", "two-layer-cnn",
    "two-layer-linear",
)  # fmt: skip
REPAIR_NAMES = (
    "global-clipping", "local-then-global-clipping", "global-adapt", "group-bounds", "random-sparsification",
    "ranked-sparsification", "stage-wise-freezing", "magnitude-pruning", "augmentation", "moving-average",
    "public-pretraining", "fine-tuning-of-a-part", "lora", "first-phase",
)  # fmt: skip
RECIPE_NAMES = ("scattering-linear", "scattering-cnn", "patches-linear", "made-up-linear")
WITH_MOMENTUM = ("sgd", "rmsprop")
