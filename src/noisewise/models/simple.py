"""Networks for inputs of any shape, flattened: tables as well as images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import nn

from noisewise.errors import ConfigError
from noisewise.models.shapes import activation as activation_of
from noisewise.models.shapes import positive


def logistic(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """One linear layer: logistic regression under cross entropy, linear regression under squared error."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), outputs))


def mlp(shape: tuple[int, ...], outputs: int, *, widths: Sequence[int] = (100,), activation: str = "relu") -> nn.Module:
    """Fully connected layers with hidden `widths`; `activation` relu or tanh.

    One hidden layer of 100 is what the regressions of Bu et al. 2022 (arXiv:2106.07830) are run with here; the paper
    does not state its own.
    """
    if isinstance(widths, int | str):
        raise ConfigError(f"model 'mlp': widths={widths!r} must be a sequence of layer widths, e.g. (100,).")
    act = activation_of("mlp", activation)
    layers: list[nn.Module] = [nn.Flatten()]
    before = prod(shape)
    for width in widths:
        positive("mlp", width=width)
        layers += [nn.Linear(before, width), act()]
        before = width
    return nn.Sequential(*layers, nn.Linear(before, outputs))
