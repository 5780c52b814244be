"""DP-TL: features of a public network, a linear layer learnt on them, weights from a file."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from helpers import compose
from noisewise.clipping import Flat
from noisewise.data import Splits
from noisewise.data.statistics import noised_statistics
from noisewise.errors import ConfigError, CoupledSamples, PrivacyError, RunError
from noisewise.losses import cross_entropy
from noisewise.recipe import at_epsilon, fit, train_openly
from noisewise.repairs import transfer
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
    with pytest.raises(RunError, match="does not hold the weights"):
        linear_probe(splits(), nn.Flatten(), tmp_path / "weights.safetensors")
    with pytest.raises(RunError, match="does not exist"):
        linear_probe(splits(), backbone(), tmp_path / "nowhere.safetensors")


def test_features_are_normalised_by_public_statistics():
    mean, std = torch.arange(12.0), torch.linspace(1, 2, 12)
    plain, scaled = (linear_probe(splits(), backbone(), statistics=s) for s in (None, (mean, std)))
    x = plain.data.test.x
    assert torch.equal(scaled.data.test.x, x)
    torch.testing.assert_close(scaled.model(x), plain.model((x - mean) / std))
    assert [p.shape for p in scaled.model.parameters()] == [p.shape for p in plain.model.parameters()]
    assert scaled.ledger is None
    with pytest.raises(ConfigError, match="one mean and one deviation"):
        linear_probe(splits(), backbone(), statistics=(mean[:3], std))
    with pytest.raises(ConfigError, match="must be what noised_statistics released, or a pair"):
        linear_probe(splits(), backbone(), statistics=mean)


def test_the_probe_pays_for_noised_statistics():
    """The recipe goes on with their ledger, which fits the features that it trains on and no others."""
    features = features_of(splits(), backbone()).train
    statistics = noised_statistics(features, (1.0, 1.0), noise_multiplier=4.0)
    recipe = linear_probe(splits(), backbone(), statistics=statistics, settings=Probe(batch_size=8, epochs=2))
    trained = fit(recipe, progress=False)
    assert [line.purpose for line in trained.ledger.lines] == ["feature means + feature squares", "gradient"]
    assert trained.ledger.epsilon(1e-3) == recipe.epsilon(1e-3) > statistics.ledger.epsilon(1e-3)
    assert trained.status.status == "private"
    marked = noised_statistics(features, (1.0, 1.0), noise_multiplier=4.0, insecure_seed=0)
    assert fit(linear_probe(splits(), backbone(), statistics=marked), progress=False).status.status == "not-private"
    with pytest.raises(PrivacyError, match="not the data that the ledger counts"):
        fit(linear_probe(splits(), backbone(5), statistics=statistics), progress=False)


class Mixing(nn.Module):
    def forward(self, x):
        return (x - x.mean(0)).flatten(1)


class Hiding(Mixing):
    """One large feature beside those that mix."""

    def forward(self, x):
        return torch.cat([torch.full((len(x), 1), 1e6), super().forward(x)], 1)


def test_networks_that_mix_rows_or_give_no_vectors_are_refused():
    for network in (Mixing(), Hiding()):
        with pytest.raises(PrivacyError, match="depend on the rows beside it"):
            features_of(splits(), network)
    with pytest.raises(ConfigError, match=r"must be features \[n, d\]"):
        features_of(splits(), nn.Conv2d(1, 3, 3))
    with pytest.raises(ConfigError, match="at_once=0"):
        features_of(splits(), backbone(), at_once=0)


BEYOND = 50.0  # no made-up row goes so far


class Remembering(nn.Module):
    """Keeps something of the rows in evaluation mode."""

    def __init__(self, how):
        super().__init__()
        self.how, self.last, self.rows = how, 0.0, []
        self.register_buffer("sum", torch.zeros(()))

    def forward(self, x):
        features = x.flatten(1) + self.sum + self.last
        if self.how == "buffer":
            self.sum += 1e-9 * x.sum()
        elif self.how == "number":
            self.last = 1e-9 * float(x.sum())
        elif self.how == "list":
            self.rows.append(x)
        elif self.how == "handed on":
            self.last = x.sum() if float(x.abs().max()) > BEYOND else 0.0
        elif float(x.abs().max()) > BEYOND:
            self.last = 1.0
        return features


@pytest.mark.parametrize("how", ["buffer", "number", "list", "handed on", "rarely"])
def test_networks_that_keep_something_are_refused(how):
    parts = splits()
    parts.train.x[3] += 2 * BEYOND
    with pytest.raises(PrivacyError, match="a forward pass changes"):
        features_of(parts, Remembering(how))


class Centring(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def forward(self, x):
        return (x - self.rows.mean(0)).flatten(1)


def test_networks_that_hold_the_records_are_refused():
    parts = splits()
    with pytest.raises(CoupledSamples, match="compute with the records themselves"):
        features_of(parts, Centring(parts.train.x))


class Rarely(nn.Module):
    """Mixes rows where made-up ones do not show it: beyond some value, or in a batch of some size."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        x = x.flatten(1)
        if self.how == "large":
            return x + torch.relu(x - BEYOND).mean(0)
        if self.how == "many" and len(x) > 20:
            return x + x.mean(0)
        return x


@pytest.mark.parametrize("how", ["large", "many"])
def test_rows_are_given_alone_where_separate_is_not_proven(how):
    """Also where nothing on made-up rows shows that they are mixed."""
    parts = splits()
    parts.train.x[3] += 2 * BEYOND
    before = features_of(parts, Rarely(how)).train.x
    torch.testing.assert_close(before, torch.cat([Rarely(how)(x.unsqueeze(0)) for x in parts.train.x]))
    parts.train.x[3] -= 4 * BEYOND
    assert torch.equal(features_of(parts, Rarely(how)).train.x[4:], before[4:])


def test_rows_are_computed_together_where_that_is_proven(monkeypatch):
    sizes = []
    followed = transfer._followed

    def seen(network, rows, against=None, **settings):
        if against is not None:
            sizes.append(len(rows))
        return followed(network, rows, against, **settings)

    monkeypatch.setattr(transfer, "_followed", seen)
    monkeypatch.setattr(transfer, "_one_by_one", None)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 37), nn.ReLU(), nn.Linear(37, 5))
    whole = splits()
    fewer = whole._replace(train=whole.train.take(torch.arange(1, 40)))
    other = whole._replace(train=replace(whole.train, x=torch.cat([100 + whole.train.x[:1], whole.train.x[1:]])))
    first, second, third = (features_of(parts, network, at_once=32).train.x for parts in (whole, fewer, other))
    assert sizes == [32] * 3 * (2 + 1 + 1)
    assert torch.equal(first[1:], third[1:])
    torch.testing.assert_close(first[1:], second)  # a row at another place of a batch may be rounded otherwise
    alone, fewer_alone = (features_of(parts, network, at_once=1).train.x for parts in (whole, fewer))
    assert torch.equal(alone[1:], fewer_alone)


def test_people_stay_people():
    people = replace(compose.images(1), unit=torch.arange(40) // 2)
    recipe = linear_probe(Splits(people, people, people), backbone(), settings=Probe(batch_size=5))
    assert (recipe.mechanism.unit, recipe.mechanism.sampler.n) == ("person", 20)


def test_a_network_that_learned_from_the_same_rows_is_no_public_one():
    parts = splits()
    rows = replace(parts.train, public=False)
    network = nn.Sequential(backbone(0), nn.Flatten(), nn.LazyLinear(len(rows.classes)))
    network(rows.x[:2])
    trained = train_openly(network, rows, cross_entropy, epochs=1, batch_size=8, lr=0.1)
    with pytest.raises(PrivacyError, match="came out of a run on the same data"):
        linear_probe(parts._replace(train=rows), trained[0])
    assert linear_probe(parts._replace(train=rows), backbone(0)).ledger is None
