"""Small models on features that were made before training (`noisewise.recipes`): what learns privately on top of them.

Inputs are rows of features, or with `views=K` above 1 units of K rows each: `[n, K, *row]`. Then the output is the logarithm
of the mean of the views' probabilities, so that a softmax gives that mean back; of a number, the mean.
"""

from __future__ import annotations

import math
from math import prod

import torch
from torch import Tensor, nn

from noisewise.models.shapes import flat, positive, refuse

LENGTH = 100.0  # of each row of features: a bound then means the same however many coordinates there are


class OfViews(nn.Module):
    """A model of rows that also takes units of several rows, and then averages what it says of them.

    Called with rows, `[n, *row]`, it answers for each; with units, `[n, K, *row]`, once for each unit.
    """

    def __init__(self, rows: nn.Module, views: int, dimensions: int):
        super().__init__()
        self.rows, self.views, self.dimensions = rows, views, dimensions

    def forward(self, x: Tensor) -> Tensor:
        """Logits, or a number."""
        if x.dim() == 1 + self.dimensions:
            return self.rows(x)
        each = self.rows(x.flatten(0, 1)).unflatten(0, (x.shape[0], x.shape[1]))
        if each.shape[2] == 1:  # a number
            return each.mean(1)
        return each.log_softmax(2).logsumexp(1) - math.log(self.views)


class Centred(nn.Module):
    """Rows minus a constant, brought back to length 100. The constant is public, or was released (`recipes.centre`)."""

    centre: Tensor

    def __init__(self, coordinates: int):
        super().__init__()
        self.register_buffer("centre", torch.zeros(coordinates))

    def forward(self, x: Tensor) -> Tensor:
        """Each row by itself."""
        moved = x - self.centre
        return moved * (LENGTH / torch.linalg.vector_norm(moved, dim=1, keepdim=True).clamp(min=1e-6))


def linear_head(shape: tuple[int, ...], outputs: int, *, views: int = 1, centred: bool = False) -> nn.Module:
    """One linear layer that begins at zero, on features: every class is equally likely before the first step.

    `centred`: a constant is subtracted from each row first, 0 until one is set (`Centred`).
    """
    row = _row("linear-head", shape, views)
    layer = nn.Linear(prod(row), outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    before = [nn.Flatten(), Centred(prod(row))] if centred else [nn.Flatten()]
    return _of_views(nn.Sequential(*before, layer), views, len(row))


def conv_head(shape: tuple[int, ...], outputs: int, *, views: int = 1, channels: int = 64) -> nn.Module:
    """Two tanh convolutions and a linear layer on maps of features: kernel 3, a pooling by 2 between them.

    With 64 channels on 243x8x8 the layout of `h-cnn` without its normalisation.
    """
    row = _row("conv-head", shape, views)
    positive("conv-head", channels=channels)
    if len(row) != 3 or min(row[1:]) < 2:
        raise refuse("conv-head", shape, "maps of features [channels, height, width] of at least 2x2 places")
    features = nn.Sequential(
        nn.Conv2d(row[0], channels, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
    )
    return _of_views(nn.Sequential(*features, nn.Linear(flat(features, row), outputs)), views, 3)


def _row(model: str, shape: tuple[int, ...], views: int) -> tuple[int, ...]:
    """The shape of one row; with several views the first dimension counts them."""
    positive(model, views=views)
    if views == 1:
        return shape
    if len(shape) < 2 or shape[0] != views:
        raise refuse(model, shape, f"units of {views} views, [{views}, ...]")
    return shape[1:]


def _of_views(rows: nn.Module, views: int, dimensions: int) -> nn.Module:
    return rows if views == 1 else OfViews(rows, views, dimensions)
