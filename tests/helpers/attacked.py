"""Models to attack, and their exact robust accuracy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from noisewise.data import Data

BOTH = pytest.mark.parametrize("norm", ["linf", "l2"])

DUAL = {"linf": 1, "l2": 2}


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(d: int = 12, seed: int = 0) -> nn.Linear:
    model = nn.Linear(d, 2)
    with torch.no_grad():
        model.weight.copy_(torch.randn(2, d, generator=draws(seed)))
        model.bias.copy_(torch.tensor([0.1, -0.2]))
    return model


def points(model: nn.Module, n: int = 300, d: int = 12, seed: int = 1, **extra) -> Data:
    x = torch.randn(n, d, generator=draws(seed))
    with torch.no_grad():
        y = model(x).argmax(1)
    y[: n // 10] = 1 - y[: n // 10]  # a tenth is wrong from the start
    return Data(x, y, **extra)


def exact(model: nn.Linear, data: Data, radius: float, norm: str, scale: Tensor | float = 1.0) -> Tensor:
    """A linear classifier of two classes is right on the whole ball iff `margin > radius |scale (w_y - w_other)|_dual`."""
    gap = (model.weight[1] - model.weight[0]).detach()
    sign = 2.0 * data.y - 1
    distance = sign * (data.x @ gap + (model.bias[1] - model.bias[0]).detach())
    return distance > radius * (gap * scale).norm(DUAL[norm])
