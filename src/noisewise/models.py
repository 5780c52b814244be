"""Small networks by name; any `nn.Module` of your own works as well."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from noisewise.errors import ConfigError


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two tanh convolutions and a linear head for small images: 16 and 32 channels, kernel 3, one pooling."""
    channels, height, width = _image("cnn", shape, 2)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 2) * (width // 2), classes),
    )


def lenet(shape: tuple[int, ...], classes: int) -> nn.Module:
    """LeNet-5 with tanh and maximum pooling: 61,706 weights for 28x28 grey images and 10 classes.

    Convolution 6@5x5 (padding 2), pooling, convolution 16@5x5, pooling, then 400-120-84-10.
    Reference: LeCun et al. 1998. Deviation: dense second convolution, softmax instead of radial units.
    """
    channels, height, width = _image("lenet", shape, 12)
    side = [((size // 2) - 4) // 2 for size in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side[0] * side[1], 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, classes),
    )


def _image(model: str, shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """Channels, height and width, or why the model cannot see this input."""
    if len(shape) != 3 or min(shape[1:]) < least:
        known = ", ".join(name for name in MODELS if name != model)
        raise ConfigError(
            f"model {model!r} on inputs of shape {list(shape)}: needs images [channels, height, width] of at least "
            f"{least}x{least} pixels. Use another model ({known}) or larger images."
        )
    channels, height, width = shape
    return channels, height, width


MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {"cnn": cnn, "lenet": lenet}


def build(name: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """A model by name, initialised by a public seed, leaving the global random state alone."""
    if name not in MODELS:
        raise ConfigError(f"model {name!r}: unknown. Known models: {', '.join(MODELS)}.")
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return MODELS[name](shape, classes)
