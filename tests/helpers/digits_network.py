"""A small trained network."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from noisewise.data import Data, digits


def trained_on_digits() -> tuple[nn.Module, Data]:
    """A small network on the bundled digits, and 1000 of its images."""
    parts = digits()
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(120):
        optimizer.zero_grad()
        cross_entropy(model(parts.train.x), parts.train.y).backward()
        optimizer.step()
    return model, replace(parts.train.take(torch.arange(1000)), public=True)
