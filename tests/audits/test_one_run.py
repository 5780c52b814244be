"""One run with canaries: below its claim, and a leak is found."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from noisewise.adaptive import Quantile
from noisewise.attacks.canaries import canary_loss, with_canaries
from noisewise.audits.one_run import OneRun, one_run
from noisewise.clipping import Flat, per_layer
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError
from noisewise.losses import cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.persample import clipped_sum
from noisewise.sampling import FullBatch, Poisson
from noisewise.schedule import Schedule
from noisewise.training.loop import train


def rows(n=400, **settings):
    generator = torch.Generator().manual_seed(0)
    return Data(torch.rand(n, 6, generator=generator), torch.arange(n) % 3, **settings)


def linear(inputs=6, classes=3):
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, classes))


def run(sigma=1.0, seed=0, steps=10, n=400, **settings):
    settings = {"canaries": n, **settings}
    mechanism = Mechanism(sampler=Poisson(n, n // 2), steps=steps, noise_multiplier=sigma)
    return one_run(linear(), rows(n), mechanism=mechanism, generator=np.random.default_rng(seed), **settings)


@pytest.mark.parametrize("sigma", [1.0, 4.0])
def test_one_run_stays_below_its_claim(sigma):
    """Seeds 0..2: 95 % bounds, none of which comes near a claim that composition makes loose."""
    for seed in range(3):
        result = run(sigma, seed)
        assert not result.exceeds
        assert result.headline["lower bound"].low < result.claimed


def test_one_run_finds_a_leak_where_there_is_no_noise_to_speak_of():
    """Seed 0: with 1/1000 of the noise the model shows every canary; noise of 40 hides them again."""
    assert run(1e-3).headline["lower bound"].low > 3
    assert run(40.0).headline["lower bound"].low < 0.3


def test_mislabelled_rows_are_found_where_a_model_learns_by_heart():
    """Seed 0: 200 rows with 300 random entries each and a linear model, without noise to speak of and with much of it."""
    generator = torch.Generator().manual_seed(0)
    data = Data(torch.randn(200, 300, generator=generator), torch.arange(200) % 3)
    bounds = [
        one_run(
            linear_map(300, 3),
            data,
            mechanism=Mechanism(sampler=FullBatch(200), steps=30, noise_multiplier=sigma),
            canary="mislabelled",
            canaries=200,
            generator=np.random.default_rng(0),
        )
        .headline["lower bound"]
        .low
        for sigma in (1e-3, 100.0)
    ]
    assert bounds[0] > 1.5
    assert bounds[1] < 0.3


def test_blank_inputs_are_found_by_a_linear_model_without_noise_and_not_with_it():
    """Seed 0: 300 rows of 200 entries, 200 canaries."""
    generator = torch.Generator().manual_seed(0)
    data = Data(torch.rand(300, 200, generator=generator), torch.arange(300) % 3)
    found = [
        one_run(
            linear_map(200, 3),
            data,
            mechanism=Mechanism(sampler=FullBatch(300), steps=30, noise_multiplier=sigma),
            canary="blank",
            canaries=200,
            generator=np.random.default_rng(0),
        )
        for sigma in (1e-3, 100.0)
    ]
    assert found[0].headline["lower bound"].low > 1
    assert found[1].headline["lower bound"].low < 0.3
    assert "no sign of privacy" in found[1].sentences()[-1]


def linear_map(inputs, classes):
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return nn.Linear(inputs, classes)


LAYERS = {"0.*": Flat(0.3), "2.*": Flat(0.4)}


def by_layer(clip, sigma):
    plan = Mechanism(sampler=Poisson(200, 100), steps=8, noise_multiplier=sigma, clip=clip)
    result = one_run(linear(), rows(200), mechanism=plan, generator=np.random.default_rng(0), canaries=200)
    assert result.claimed == plan.epsilon(result.settings["delta"])
    return result


@pytest.mark.parametrize("by", ["parameter", "layer", "pattern"])
def test_one_run_audits_rules_by_layer(by):
    """A canary moves in every block, together as far as the whole bound: a leak is found, noise hides it."""
    rule = per_layer([name for name, _ in linear().named_parameters()], LAYERS, by)
    assert by_layer(rule, 1e-3).headline["lower bound"].low > 2
    assert not by_layer(rule, 1.0).exceeds


def test_one_run_audits_rules_by_layer_that_come_and_go():
    rule = per_layer([name for name, _ in linear().named_parameters()], LAYERS, "layer")
    for clip in (Schedule(((0, rule), (4, Flat(0.5)))), Schedule(((0, Flat(0.5)), (4, rule)))):
        assert by_layer(clip, 1e-3).headline["lower bound"].low > 2


def test_canaries_of_a_rule_by_layer_use_its_whole_bound():
    model, rule = linear(), per_layer([name for name, _ in linear().named_parameters()], LAYERS, "layer")
    plan = Mechanism(sampler=Poisson(8, 4), steps=1, noise_multiplier=1.0, clip=rule)
    units = with_canaries(rows(8), torch.arange(8), np.ones(8, bool), "gradient", np.random.default_rng(0))
    loss, with_them = canary_loss(model, cross_entropy, "gradient", 8, plan)
    assert with_them.clip.sensitivity == rule.sensitivity == pytest.approx(0.5)
    grads = clipped_sum(model, loss, units, with_them.clip).grads._values
    moved = torch.cat([grad for name, grad in grads.items() if name.startswith("canary")], 1)
    assert moved.norm(dim=1).tolist() == pytest.approx([0.5] * 8, rel=1e-3)


def test_a_rule_that_asks_questions_is_refused():
    """A canary that is out is asked all the same: in and out differ by twice what the question's noise is made for."""
    mechanism = Mechanism(sampler=Poisson(50, 10), clip=Quantile(1.0), steps=2, noise_multiplier=1.0)
    with pytest.raises(ConfigError, match="its question counts every unit"):
        one_run(linear(), rows(50), mechanism=mechanism, canaries=6)


def test_a_trainer_with_too_little_noise_is_caught():
    def careless(model, units, loss_fn, mechanism, optimizer, **settings):
        return train(model, units, loss_fn, replace(mechanism, noise_multiplier=0.01), optimizer, **settings)

    result = run(8.0, trainer=careless)
    assert result.exceeds
    assert any("more than claimed" in sentence for sentence in result.sentences())


def test_a_canary_that_is_out_leaves_no_trace():
    """Without noise an absent canary's coordinate stays 0; a present one's does not."""
    seen = {}

    def silent(model, units, loss_fn, mechanism, optimizer, **settings):
        mechanism = replace(mechanism, noise_multiplier=0.0, sampler=FullBatch(mechanism.sampler.n))
        train(model, units, loss_fn, mechanism, optimizer, **settings)
        (_, (numbers, dirac), weight) = units
        seen["moved"] = model.canary_coordinates.detach().flatten()[numbers[dirac]] != 0
        seen["in"] = weight[dirac] == 1

    run(1.0, trainer=silent, steps=2)
    assert torch.equal(seen["moved"], seen["in"])
    assert 150 < int(seen["in"].sum()) < 250


def test_blank_canaries_differ_from_one_another_and_the_model_is_left_alone():
    model, seen = linear(), {}
    before = [parameter.clone() for parameter in model.parameters()]

    def look(own, units, *args, **settings):
        seen["x"] = units[0][0]

    mechanism = Mechanism(sampler=Poisson(50, 10), steps=2, noise_multiplier=1.0)
    data = rows(50)
    one_run(model, data, mechanism=mechanism, canary="blank", canaries=6, trainer=look)
    changed = (seen["x"] != data.x).any(1)
    assert int(changed.sum()) == 6
    assert len(seen["x"][changed].unique(dim=0)) == 6
    assert (seen["x"][changed].min(1).values == data.x.min()).all()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert "canary_coordinates" not in dict(model.named_parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"canary": "yellow"}, "must be one of"),
        ({"canaries": 3}, "from 4 to"),
        ({"canaries": 51}, "from 4 to"),
        ({"canary": "blank", "canaries": 7}, "entry of its own"),
        ({"mechanism": Mechanism(sampler=Poisson(49, 10), steps=2, noise_multiplier=1.0)}, "n=49"),
        ({"data": replace(rows(50), unit=torch.arange(50))}, "rows only"),
        ({"data": replace(rows(50), y=torch.zeros(50).long()), "canary": "mislabelled"}, "two classes"),
    ],
)
def test_impossible_settings_of_the_one_run_audit(settings, message):
    mechanism = Mechanism(sampler=Poisson(50, 10), steps=2, noise_multiplier=1.0)
    settings = {"data": rows(50), "mechanism": mechanism, "canaries": 6, **settings}
    with pytest.raises((ConfigError, DataError), match=message):
        one_run(linear(), settings.pop("data"), **settings)


def test_a_one_run_result_is_reloaded_drawn_and_sensitive():
    mechanism = Mechanism(sampler=Poisson(50, 10), steps=2, noise_multiplier=1.0)
    result = one_run(linear(), rows(50), mechanism=mechanism, canaries=50)
    assert OneRun.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    assert result.status.status == "not-private"
    assert one_run(linear(), rows(50, public=True), mechanism=mechanism, canaries=50).status.status == "private"
    (figure,) = result.figures()
    assert len(figure.draw(Figure().add_subplot()).patches) == 2
    assert sum(map(sum, result.values.scores.values())) == 50
    assert result.tables()[0].rows[0] == ["canaries", "50"]
