"""Steps of a small problem, and the sums they should release."""

import torch
from torch import nn

from helpers.oracles import Setup, clipped_sum_by_hand, cross_entropy, unit_gradients
from noisewise.clipping import Flat
from noisewise.mechanism import Mechanism
from noisewise.randomness import Entropy
from noisewise.training.ablation import step_of


def problem(units=20):
    """A float64 classifier and its data, seed 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    return Setup(model, cross_entropy, (torch.randn(units, 5, dtype=torch.float64), torch.arange(units) % 3))


def plan(sampler, steps, noise_multiplier=1.0, **settings):
    settings = {"clip": Flat(0.5), "adjacency": sampler.adjacencies[0]} | settings
    return Mechanism(sampler=sampler, steps=steps, noise_multiplier=noise_multiplier, **settings)


def steps_of(setup, state, count, learning_rate=0.0, ablation="private", **kwargs):
    """The gradients that the optimizer sees in each of `count` steps."""
    optimizer = torch.optim.SGD(setup.model.parameters(), learning_rate)
    seen = []
    for _ in range(count):
        step_of(ablation)(setup.model, setup.batch, setup.loss_fn, optimizer, state, **kwargs)
        seen.append({name: p.grad.clone() for name, p in setup.model.named_parameters() if p.grad is not None})
    return seen


def drawn(mechanism, seed, step):
    return next(mechanism.sampler.batches(Entropy.insecure(seed), step, step + 1)).tolist()


def expected_sum(setup, units, clip, support=None):
    grads = unit_gradients(setup)
    return clipped_sum_by_hand({name: grad[units] for name, grad in grads.items()}, clip, support or {})[0]


def scaled(grads, factor):
    return {name: grad * factor for name, grad in grads.items()}
