"""People, models that learn them by heart, and shadow trainings."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from noisewise.data import Data

FEATURES, CLASSES = 12, 4


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def people(n: int, seed: int) -> Data:
    """Labels that have nothing to do with the inputs: all that can be learned is who was there."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, FEATURES, generator=generator)
    return Data(x, torch.randint(0, CLASSES, (n,), generator=generator))


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(FEATURES, 48), nn.Tanh(), nn.Linear(48, CLASSES))


def overfit(data: Data, seed: int, steps: int = 60) -> nn.Module:
    model = network(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(data.x), data.y).backward()
        optimizer.step()
    return model


# shadows
class Trainings:
    """A training that counts, uses the global generator, and can be stopped."""

    def __init__(self, stop_at: int | None = None):
        self.sizes: list[int] = []
        self.seeds: list[int] = []
        self.stop_at = stop_at

    def __call__(self, data: Data, seed: int) -> nn.Module:
        if len(self.sizes) == self.stop_at:
            raise KeyboardInterrupt
        self.sizes.append(len(data))
        self.seeds.append(seed)
        model = nn.Linear(FEATURES, CLASSES)
        with torch.no_grad():
            model.bias += data.x.mean(0)[:CLASSES]
        return model


RECIPE = {"model": "linear", "rate": 0.1}
