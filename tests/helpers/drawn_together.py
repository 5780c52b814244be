"""A small model and people with several rows, one private step without noise, and what it should do."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from noisewise import Data
from noisewise.training.ablation import ablated_step
from noisewise.training.state import State


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def data(unit=None, rows=10):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 3, generator=generator).double()
    return Data(x, (x[:, 0] > 0).long(), unit=unit)


def clipped(network, losses, bound):
    grads = torch.autograd.grad(losses.mean(), list(network.parameters()))
    norm = torch.stack([grad.square().sum() for grad in grads]).sum().sqrt()
    return [grad * min(1.0, bound / norm.item()) for grad in grads]


def step(network, units, mechanism, **kwargs):
    """Weights after one private step without noise, and the units it drew."""
    state = State.start(mechanism, insecure_seed=5)
    drawn = next(mechanism.sampler.batches(state.entropy, 0, 1))
    ablated_step(
        network, units, loss_fn, torch.optim.SGD(network.parameters(), lr=1.0), state, ablation="clip-only", **kwargs
    )
    return [parameter.detach().clone() for parameter in network.parameters()], drawn


def expected_weights(network, contributions, batch_size):
    return [
        parameter.detach() - sum(parts) / batch_size
        for parameter, parts in zip(network.parameters(), zip(*contributions, strict=True), strict=True)
    ]
