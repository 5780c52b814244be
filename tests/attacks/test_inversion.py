"""Gradients turned back into inputs: observations are what training releases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.image import TotalVariation

from noisewise.attacks.inversion import (
    _each,
    _total_variation,
    observe,
)
from noisewise.clipping import Flat
from noisewise.data import Data
from noisewise.mechanism import Mechanism
from noisewise.sampling import FullBatch


def plan(sigma, bound=1.0, clip=None):
    return Mechanism(sampler=FullBatch(1), clip=clip or Flat(bound), steps=1, noise_multiplier=sigma)


def seeded(make):
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return make()


def vectors(n=40, inputs=12, classes=4, **settings):
    generator = torch.Generator().manual_seed(0)
    return Data(torch.rand(n, inputs, generator=generator), torch.arange(n) % classes, **settings)


# What is observed
def test_observations_are_what_training_releases():
    """Plain by autograd; clipped to the bound in the same direction; noise of std sigma C; masked outside the support."""
    model, data = seeded(lambda: nn.Linear(300, 4)), vectors(3, 300)
    seen = observe(model, data, plan(0.5, 0.25), 0.75, _loss, np.random.default_rng(0))
    for i in range(3):
        model.zero_grad()
        _loss(model, (data.x[i : i + 1], data.y[i : i + 1])).sum().backward()
        plain = torch.cat([model.weight.grad.flatten(), model.bias.grad])
        assert torch.allclose(seen["plain"].gradients[i], plain, atol=1e-6)
        assert torch.allclose(seen["clipped"].gradients[i], plain * 0.25 / plain.norm(), atol=1e-5)
    noise = (seen["noisy"].gradients - seen["clipped"].gradients).flatten()
    assert noise.std() == pytest.approx(0.125, rel=4 / np.sqrt(2 * len(noise)))
    sparse = seen["sparse"]
    assert (sparse.known.sum(1) == 1204 - int(0.75 * 1204)).all()
    assert (sparse.gradients[sparse.known == 0] == 0).all()
    kept = seen["plain"].gradients * sparse.known
    noise = (sparse.gradients - 0.25 * kept / kept.norm(dim=1, keepdim=True))[sparse.known == 1]
    assert noise.std() == pytest.approx(0.125, rel=4 / np.sqrt(2 * len(noise)))


def _loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def test_total_variation_is_torchmetrics_per_difference():
    """theirs adds all differences up; ours takes the mean across and the mean down."""
    x = torch.rand(1, 2, 6, 6)
    assert float(_total_variation(x)) == pytest.approx(float(TotalVariation()(x)) / (2 * 6 * 5), rel=1e-5)


def test_a_model_that_cannot_be_vectorised_goes_one_by_one():
    def branching(x):
        return x.sum() if bool(x.sum() > 0) else -x.sum()

    x = torch.tensor([[1.0, 2.0], [-3.0, 1.0]])
    assert _each(branching, x)(x).tolist() == [3.0, 2.0]
    assert _each(lambda row: row.sum(), x)(x).tolist() == [3.0, -2.0]
