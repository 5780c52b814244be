"""DP-SGD written by hand, and a run to compare it with."""

import math

import numpy as np
import torch

from helpers import tiny
from noisewise.randomness import Entropy

DELTA = 1e-3

SEED = 5


# --- the definition ---------------------------------------------------------------------------------------------------
def by_hand(network, plan, optimizer, scheduler=None, *, clip=True, noise=True):
    """DP-SGD one unit at a time (papers.md 0.2), with the draws of `insecure_seed=SEED` taken from their streams."""
    entropy, (x, y) = Entropy.insecure(SEED), tiny.data(dtype=torch.float64)
    parameters = list(network.parameters())
    for step in range(plan.steps):
        bound, sigma = plan.clip_at(step).bound, plan.noise_at(step)
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for i in np.flatnonzero(entropy.generator("sampling", step).random(tiny.N) < tiny.BATCH / tiny.N):
            loss = tiny.loss_fn(network, (x[i : i + 1], y[i : i + 1])).sum()
            grads = torch.autograd.grad(loss, parameters)
            norm = math.sqrt(sum(float(grad.square().sum()) for grad in grads))
            for summed, grad in zip(total, grads, strict=True):
                summed += grad * (min(1.0, bound / norm) if clip else 1.0)
        for k, (parameter, summed) in enumerate(zip(parameters, total, strict=True)):
            draws = entropy.generator("noise", step, 0, k, 0).standard_normal(parameter.numel())
            noised = summed + sigma * bound * torch.from_numpy(draws).view_as(parameter) * noise
            parameter.grad = noised / tiny.BATCH  # the expected batch size, not the realised one
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return network


def ours(plan=None, optimizer=tiny.sgd, **settings):
    return tiny.run(tiny.model(torch.float64), plan=plan, optimizer=optimizer, insecure_seed=SEED, **settings)


def assert_equal(network, reference):
    torch.testing.assert_close(tiny.weights(network), tiny.weights(reference), rtol=1e-9, atol=1e-12)
