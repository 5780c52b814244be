"""The engine's own epsilon: its claim is reached, faults exceed it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from matplotlib.figure import Figure
from torch import nn

from noisewise.accounting import Ledger
from noisewise.attacks.distinguishing import (
    mu_bounds,
)
from noisewise.audits.engine_epsilon import EngineEpsilon, engine_epsilon
from noisewise.bounded import release
from noisewise.clipping import Automatic, Flat, Global, Normalized, per_layer
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError
from noisewise.mechanism import Mechanism
from noisewise.persample import clipped_sum
from noisewise.sampling import FullBatch
from noisewise.support import Fixed
from noisewise.training.ablation import ablated_step
from noisewise.training.step import private_step


def plan(sigma=1.0, clip=None, **settings):
    return Mechanism(
        sampler=FullBatch(1), clip=clip or Flat(1.0), steps=1, noise_multiplier=sigma, **settings
    )  # fmt: skip


def audit(seed=0, trials=40_000, **settings):
    return engine_epsilon(generator=np.random.default_rng(seed), trials=trials, **settings)


# The engine
@pytest.mark.parametrize(("sigma", "trials"), [(0.5, 10_000), (1.0, 16_000), (2.0, 40_000)])
def test_the_engine_reaches_its_claim_and_does_not_exceed_it(sigma, trials):
    """Seed 0: at least 70 % of the claimed epsilon is proven, no statistic proves more than all of it."""
    result = audit(trials=trials, mechanism=plan(sigma))
    assert result.share >= 0.7
    assert not result.exceeds
    assert result.headline["empirical epsilon"].low <= result.claimed
    assert result.claimed == pytest.approx(PLDAccountant().compose(GaussianDpEvent(sigma)).get_epsilon(1e-5), rel=2e-3)
    step = result.values.statistics["step"]
    assert step.mu.low < 1 / sigma < step.mu.high
    assert result.values.statistics["difference"].mu.high < 1 / sigma  # the next step's noise comes on top


@pytest.mark.parametrize(
    "clip", [Global(0.5, 2.0), Automatic(3.0), Normalized(1.0), per_layer(["weight"], Flat(0.3))], ids=repr
)
def test_every_rule_is_audited_at_its_own_bound(clip):
    result = audit(trials=12_000, mechanism=plan(1.0, clip))
    assert result.share >= 0.7
    assert not result.exceeds


def test_a_mask_changes_nothing():
    mask = torch.ones(2, 256, dtype=torch.bool)
    mask[0] = False
    result = audit(trials=12_000, mechanism=plan(1.0, support=Fixed({"weight": mask})))
    assert result.share >= 0.7
    assert not result.exceeds


def noise_halved(model, batch, loss_fn, optimizer, state):
    half = replace(state.mechanism, noise_multiplier=state.mechanism.noise_multiplier / 2)
    private_step(
        model, batch, loss_fn, optimizer, shadow := replace(state, mechanism=half, ledger=Ledger("add-remove"))
    )
    state.step = shadow.step


def clipping_off(model, batch, loss_fn, optimizer, state):
    ablated_step(model, batch, loss_fn, optimizer, state, ablation="noise-only")


def noise_reused(model, batch, loss_fn, optimizer, state):
    """The position in the noise stream never advances."""
    private_step(model, batch, loss_fn, optimizer, replace(state, step=0, ledger=Ledger("add-remove")))


def counted_twice(model, batch, loss_fn, optimizer, state):
    """Each unit is in the batch two times, and clipped each time by itself."""
    doubled = tuple(torch.cat([part, part]) for part in batch)
    mechanism = state.mechanism
    grads = clipped_sum(model, loss_fn, doubled, mechanism.clip, layout=state.layout).grads
    answer = release(
        {"gradient": (grads, mechanism.noise_multiplier)},
        sampler=mechanism.sampler,
        ledger=state.ledger,
        entropy=state.entropy,
        step=state.step,
    )["gradient"]
    state.step += 1
    for name, parameter in model.named_parameters():
        parameter.grad = answer[name]


FAULTS = {  # which statistic finds which
    noise_halved: {"step", "difference", "discriminant"},
    clipping_off: {"step", "difference", "discriminant"},
    noise_reused: {"difference", "discriminant"},
    counted_twice: {"step", "difference", "discriminant"},
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize(("sigma", "trials"), [(0.7, 6_000), pytest.param(2.0, 16_000, marks=pytest.mark.slow)])
def test_a_planted_fault_exceeds_the_claim(fault, sigma, trials):
    result = audit(trials=trials, mechanism=plan(sigma), engine=fault)
    assert set(result.found_by) == FAULTS[fault]
    assert result.headline["empirical epsilon"].low > result.claimed
    assert any("more than claimed" in sentence for sentence in result.sentences())


def partly_reused(model, batch, loss_fn, optimizer, state):
    """Both steps share 48 % of their noise's variance: each by itself is as strong as it should be."""
    share = 0.48
    private_step(model, batch, loss_fn, optimizer, replace(state, ledger=Ledger("add-remove")))
    sigma, n = state.mechanism.noise_multiplier, state.mechanism.sampler.n
    for parameter in model.parameters():
        common = torch.from_numpy(state.entropy.generator("noise", 99).standard_normal(parameter.shape)).float()
        silent = replace(state, mechanism=replace(state.mechanism, noise_multiplier=0.0), ledger=Ledger("add-remove"))
        noisy = parameter.grad
        private_step(model, batch, loss_fn, optimizer, silent)
        own = noisy - parameter.grad
        parameter.grad = parameter.grad + math.sqrt(1 - share) * own + math.sqrt(share) * sigma * common / n
    state.step += 1


@pytest.mark.slow
def test_correlated_noise_is_found_by_the_discriminant_alone():
    """Correlation 0.48: the difference has mu = 0.98, the best weighting 1/sqrt(1 - 0.48^2) = 1.14."""
    result = audit(trials=60_000, engine=partly_reused)
    assert result.found_by == ["discriminant"]


def test_a_users_model_is_audited_by_its_own_rules():
    """Seed 0: a convolution, one canary; the model is left as it was."""
    generator = torch.Generator().manual_seed(0)
    data = Data(torch.rand(20, 1, 6, 6, generator=generator), torch.arange(20) % 3, public=True)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3))
    before = [parameter.clone() for parameter in model.parameters()]
    settings = {"generator": np.random.default_rng(0), "mechanism": plan(1.0), "trials": 140}
    result = engine_epsilon(model, data, **settings)
    assert result.settings["canaries"] == 1
    assert not result.exceeds
    assert result.values.statistics["step"].mu.low < 1 < result.values.statistics["step"].mu.high
    assert "your model" in result.settings["target"]
    faulty = engine_epsilon(model, data, engine=clipping_off, **settings)
    assert "step" in faulty.found_by
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(before, model.parameters(), strict=True))
    assert model.training


def test_the_random_state_of_the_user_is_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    audit(trials=200)
    assert torch.equal(before, torch.get_rng_state())


def test_without_a_generator_the_noise_is_fresh_and_with_it_the_same():
    fresh = {engine_epsilon(trials=2000).values.statistics["step"].errors for _ in range(3)}
    assert len(fresh) > 1  # two of them have the same counts in one of 10^5 runs, all three in one of 10^9
    assert audit(trials=2000) == audit(trials=2000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trials": 10}, "at least 100"),
        ({"mechanism": plan(0.0)}, "nothing is claimed"),
        ({"model": nn.Linear(2, 2)}, "both a model and data"),
        ({"model": nn.Linear(2, 2), "data": Data(torch.ones(3, 2), torch.zeros(3).long()), "units": 4}, "units=4"),
        ({"model": nn.Linear(2, 2), "data": Data(torch.ones(3, 2), torch.zeros(3).long()), "units": 0}, "units=0"),
    ],
)
def test_impossible_settings_of_the_engine_audit(settings, message):
    with pytest.raises(ConfigError, match=message):
        engine_epsilon(**settings)


def test_a_canary_without_gradient_is_refused():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x + 0 * self.weight

    with pytest.raises(DataError, match="no gradient"):
        engine_epsilon(Constant(), Data(torch.ones(3, 2), torch.zeros(3).long()))


@pytest.mark.parametrize(("public", "status"), [(True, "private"), (False, "not-private")])
def test_an_audit_on_records_is_sensitive(public, status):
    data = Data(torch.rand(4, 3), torch.arange(4) % 2, public=public)
    assert engine_epsilon(nn.Linear(3, 2), data, trials=100).status.status == status
    assert engine_epsilon(trials=100).status.status == "private"


def test_a_delta_at_which_nothing_is_claimed():
    """At delta 0.5 one release with noise 1 has epsilon 0: its share is no number."""
    result = audit(trials=2_000, delta=0.5)
    assert (result.claimed, result.exceeds) == (0, False)
    assert " % of that" not in result.sentences()[0]
    result.plot(Figure().subplots())


def test_an_engine_result_is_reloaded_and_drawn():
    result = audit(trials=2000)
    again = EngineEpsilon.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again == result
    (figure,) = again.figures()
    axes = figure.draw(Figure().add_subplot())
    assert [label.get_text() for label in axes.get_yticklabels()] == ["discriminant", "difference", "step"]
    assert len(again.tables()[0].rows) == 3
    assert "Nothing exceeds the claim." in again.sentences()


def test_intervals_of_the_statistics_hold_together():
    found = audit(trials=4000).values.statistics
    for statistic in found.values():
        low = mu_bounds(statistic.errors, 1 - 0.001 / 3)[1]
        assert statistic.mu.low == pytest.approx(max(low, 0.0))
        assert statistic.errors.inside + statistic.errors.outside in (2048, 2049)  # the second half
