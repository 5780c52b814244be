"""A training problem of milliseconds: 40 units, two small layers, every part of `train` that has a state."""

import torch
import torch.nn.functional as F
from torch import nn

from noisewise.clipping import Flat
from noisewise.mechanism import Mechanism
from noisewise.sampling import Poisson
from noisewise.training.loop import train

N, BATCH, STEPS = 40, 8, 12


def data(n=N, dtype=torch.float32):
    """Inputs and labels, the same every time."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 5, generator=generator, dtype=dtype)
    return x, torch.randint(0, 3, (n,), generator=generator)


def model(dtype=torch.float32, dropout=0.0):
    """The same initialisation every time; gradients that are clipped about half of the time at bound 1."""
    with torch.random.fork_rng([]):
        torch.manual_seed(2)
        layers = [nn.Linear(5, 6), nn.Tanh(), *([nn.Dropout(dropout)] if dropout else []), nn.Linear(6, 3)]
        return nn.Sequential(*layers).to(dtype)


def loss_fn(network, batch):
    """Cross entropy, one per unit."""
    x, y = batch
    return F.cross_entropy(network(x), y, reduction="none")


def mechanism(**settings):
    """Poisson batches of 8 of 40."""
    return Mechanism(
        **{"sampler": Poisson(N, BATCH), "clip": Flat(1.0), "noise_multiplier": 20.0, "steps": STEPS, **settings}
    )


def sgd(network, lr=0.2, momentum=0.9):
    """SGD with momentum: an optimizer with a state."""
    return torch.optim.SGD(network.parameters(), lr=lr, momentum=momentum)


def run(network=None, *, plan=None, optimizer=sgd, scheduler=None, **settings):
    """`train` on the tiny problem, quietly; `optimizer` and `scheduler` are built here, as a new process would."""
    network = model() if network is None else network
    chosen = optimizer(network)
    schedule = None if scheduler is None else scheduler(chosen)
    units = settings.pop("units", data(dtype=next(network.parameters()).dtype))
    settings = {"progress": False, **settings}
    return train(network, units, loss_fn, plan or mechanism(), chosen, scheduler=schedule, **settings)


def weights(network):
    """All parameters in one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def same(first, second):
    """Bit for bit the same weights."""
    return torch.equal(weights(first), weights(second))
