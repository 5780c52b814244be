"""Recipes that runs start from: rows, batches, and the noise of a run of which these epochs are a part."""

import pytest
import torch

from noisewise.reproduce import starts
from noisewise.reproduce.starts import begun, near, planned, some


@pytest.fixture(scope="module")
def recipe():
    return begun(3, "cpu", "digits", "logistic", 200, None)


def test_rows_are_those_of_the_seed(recipe):
    again, other = (begun(seed, "cpu", "digits", "logistic", 200, None).data.train for seed in (3, 4))
    assert len(again) == 200
    assert torch.equal(recipe.data.train.x, again.x)
    assert not torch.equal(again.x, other.x)
    assert some(again, None, 0) is again
    assert some(again, 500, 0) is again
    assert torch.equal(near(again).x, again.x)


def test_noise_is_that_of_the_whole_run(recipe, monkeypatch):
    monkeypatch.setattr(starts, "noise_for", lambda n, batch, steps, epsilon, delta: n + batch + steps + epsilon)
    part = planned(recipe, {"batch": 50, "lr": 0.3, "epsilon": 3.0}, 2, 8)
    assert part.mechanism.steps == 8
    assert part.mechanism.noise_at(0) == 200 + 50 + 32 + 3.0
    assert part.optimizer(recipe.model.parameters()).defaults["lr"] == 0.3


def test_without_noise_and_with_a_batch_of_all(recipe):
    plain = planned(recipe, {"batch": 500, "lr": 0.3, "bound": 0.5}, 2)
    assert plain.mechanism.noise_at(0) == 0
    assert (plain.mechanism.sampler.batch_size, plain.mechanism.steps) == (200, 2)
    assert plain.mechanism.clip_at(0).bound == 0.5
