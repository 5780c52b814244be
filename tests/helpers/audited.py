"""Made-up people of three classes, and a network for them."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from noisewise.data import Data

ROWS = 90


def people(seed=0, **kind) -> Data:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(ROWS, 6, generator=generator)
    return Data(x, torch.randint(3, (ROWS,), generator=generator), classes=("a", "b", "c"), **kind)


@cache
def network(seed=0, outputs=3) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, outputs))
