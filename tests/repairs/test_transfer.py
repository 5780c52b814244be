"""DP-TL: features of a public network, a linear layer learnt on them, weights from a file."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from helpers import compose
from noisewise.clipping import Flat
from noisewise.data import Splits
from noisewise.errors import ConfigError, PrivacyError, RunError
from noisewise.recipe import at_epsilon, fit
from noisewise.repairs.transfer import RESNEXT, SIMCLR, Probe, features_of, linear_probe
from noisewise.runs.tensors import save_weights
from noisewise.sampling import Poisson


def backbone(seed=0, norm=None):
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 3, 3), *([norm] if norm else []), nn.ReLU(), nn.Flatten())


def splits():
    return Splits(compose.images(1), compose.images(2, 10), compose.images(3, 12))


def test_features_are_those_of_each_image_alone_in_evaluation_mode():
    network = backbone(norm=nn.BatchNorm2d(3))
    network[1].running_mean.fill_(0.3)
    network.train()
    parts = features_of(splits(), network, at_once=7)
    assert network.training
    assert float(network[1].running_mean[0]) == pytest.approx(0.3)
    network.eval()
    for part, given in zip(parts, splits(), strict=True):
        expected = torch.cat([network(x.unsqueeze(0)) for x in given.x])
        torch.testing.assert_close(part.x, expected.detach())
        assert torch.equal(part.y, given.y)
        assert part.groups.keys() == given.groups.keys()
        assert not part.x.requires_grad


def test_the_recipe_is_the_papers_linear_probe():
    recipe = linear_probe(splits(), backbone(), settings=Probe(batch_size=8, epochs=2))
    assert (recipe.mechanism.sampler, recipe.mechanism.clip, recipe.mechanism.steps) == (Poisson(40, 8), Flat(0.1), 10)
    assert recipe.mechanism.noise_multiplier == SIMCLR.noise_multiplier == 2.40
    assert (RESNEXT.batch_size, RESNEXT.lr, RESNEXT.noise_multiplier) == (2048, 8.0, 3.32)
    assert sum(p.numel() for p in recipe.model.parameters()) == 12 * 3 + 3
    planned = at_epsilon(recipe, 2.0, 1e-3)
    trained = fit(planned, progress=False)
    assert trained.status.status == "private"
    assert trained.ledger.epsilon(1e-3) == planned.epsilon(1e-3) <= 2.0


def test_weights_come_from_a_file(tmp_path):
    save_weights(tmp_path / "weights.safetensors", backbone(5).state_dict())
    given, recipe = backbone(0), linear_probe(splits(), backbone(0), tmp_path / "weights.safetensors")
    expected = features_of(splits(), backbone(5)).train.x
    assert torch.equal(recipe.data.train.x, expected)
    assert torch.equal(given[0].weight, backbone(0)[0].weight)
    with pytest.raises(RunError, match="does not hold the weights of this network"):
        linear_probe(splits(), nn.Flatten(), tmp_path / "weights.safetensors")
    with pytest.raises(RunError, match="does not exist"):
        linear_probe(splits(), backbone(), tmp_path / "nowhere.safetensors")


def test_features_are_normalised_by_public_statistics():
    mean, std = torch.arange(12.0), torch.linspace(1, 2, 12)
    plain, scaled = (linear_probe(splits(), backbone(), statistics=s).data.test.x for s in (None, (mean, std)))
    torch.testing.assert_close(scaled, (plain - mean) / std)
    with pytest.raises(ConfigError, match="one mean and one deviation"):
        linear_probe(splits(), backbone(), statistics=(mean[:3], std))


class Mixing(nn.Module):
    def forward(self, x):
        return (x - x.mean(0)).flatten(1)


def test_networks_that_mix_rows_or_give_no_vectors_are_refused():
    with pytest.raises(PrivacyError, match="depend on the rows beside it"):
        features_of(splits(), Mixing())
    with pytest.raises(ConfigError, match=r"must be features \[n, d\]"):
        features_of(splits(), nn.Conv2d(1, 3, 3))


def test_people_stay_people():
    people = replace(compose.images(1), unit=torch.arange(40) // 2)
    recipe = linear_probe(Splits(people, people, people), backbone(), settings=Probe(batch_size=5))
    assert (recipe.mechanism.unit, recipe.mechanism.sampler.n) == ("person", 20)
