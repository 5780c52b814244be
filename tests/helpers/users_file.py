"""A user's file: models, batches and losses, right and wrong."""

from __future__ import annotations

FILE = """
import torch
import torch.nn.functional as F
from torch import nn

batch = (torch.randn(6, 5), torch.tensor([0, 1, 2, 0, 1, 2]))
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

def build():
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

def numbers():
    return torch.randn(6, 5), torch.randn(6, 3)

def words():
    return {"x": torch.randn(6, 5)}

def loss_fn(model, batch):
    return model(batch["x"]).square().mean(1)

def fails():
    raise OSError("no weights")

def takes(size):
    return nn.Linear(5, size)

def sized(shape, outputs):
    return nn.Sequential(nn.Linear(shape[0], 8), nn.Tanh(), nn.Linear(8, outputs))

def measured():
    return torch.randn(6, 5), torch.randn(6)

class Flipped(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(5, 3), nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.linear(x.flip(0)).flip(0) * self.scale
"""
