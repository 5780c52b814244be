"""Which inputs a model can see, in words when it cannot; the size of what its convolutions hand on."""

from __future__ import annotations

from math import prod

import torch
from torch import nn

from noisewise.errors import ConfigError

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def refuse(model: str, shape: tuple[int, ...], needs: str) -> ConfigError:
    """The error for inputs that do not fit: what came, what is needed, what would take it."""
    return ConfigError(
        f"model {model!r} on inputs of shape {list(shape)}: needs {needs}. Use other inputs, or a model for inputs of any "
        "shape (mlp, logistic)."
    )


def image(model: str, shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """Channels, height and width of an image with sides of at least `least` pixels."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise refuse(model, shape, f"images [channels, height, width] of at least {least}x{least} pixels")
    channels, height, width = shape
    return channels, height, width


def vector(model: str, shape: tuple[int, ...]) -> int:
    """Length of a vector."""
    if len(shape) != 1:
        raise refuse(model, shape, "vectors [features]")
    return shape[0]


def flat(features: nn.Module, shape: tuple[int, ...]) -> int:
    """How many numbers `features` makes of one input: tried on zeros, which draws no random numbers."""
    with torch.no_grad():
        return prod(features(torch.zeros(1, *shape)).shape[1:])


def activation(model: str, name: str) -> type[nn.Module]:
    """An activation by name."""
    if name not in ACTIVATIONS:
        raise ConfigError(f"model {model!r}: activation {name!r} is unknown. Known: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def positive(model: str, **sizes: int) -> None:
    """Sizes are whole numbers of at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"model {model!r}: {name}={size!r} must be a whole number of at least 1.")
