from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from matplotlib.figure import Figure
from scipy.stats import binomtest, norm
from torch import nn

from noisewise.accounting import Ledger
from noisewise.adaptive import Quantile
from noisewise.attacks.distinguishing import (
    Errors,
    best_threshold,
    epsilon_of,
    guess,
    mu_bounds,
    one_run_bound,
    one_run_p_value,
)
from noisewise.audits.engine_epsilon import EngineEpsilon, engine_epsilon
from noisewise.audits.one_run import OneRun, one_run
from noisewise.bounded import release
from noisewise.clipping import Automatic, Flat, Global, Normalized, per_layer
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError
from noisewise.mechanism import Mechanism
from noisewise.persample import clipped_sum
from noisewise.sampling import FullBatch, Poisson
from noisewise.support import Fixed
from noisewise.training.ablation import ablated_step
from noisewise.training.loop import train
from noisewise.training.step import private_step


def plan(sigma=1.0, clip=None, **settings):
    return Mechanism(
        sampler=FullBatch(1), clip=clip or Flat(1.0), steps=1, noise_multiplier=sigma, **settings
    )  # fmt: skip


def audit(seed=0, trials=40_000, **settings):
    return engine_epsilon(generator=np.random.default_rng(seed), trials=trials, **settings)


# Bounds


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_epsilon_of_mu_is_the_gaussian_mechanisms(mu, delta):
    """Closed form, and dp-accounting's own PLD of the same Gaussian."""
    found = epsilon_of(mu, delta)
    assert norm.cdf(mu / 2 - found / mu) - math.exp(found) * norm.cdf(-mu / 2 - found / mu) == pytest.approx(delta)
    assert found == pytest.approx(
        PLDAccountant().compose(GaussianDpEvent(1 / mu)).get_epsilon(delta), rel=2e-3, abs=2e-4
    )


def test_no_separation_is_no_epsilon():
    assert epsilon_of(0.0, 1e-5) == epsilon_of(-1.0, 1e-5) == 0.0
    assert epsilon_of(math.inf, 1e-5) == math.inf


def test_clopper_pearson_is_scipys():
    errors = Errors(31, 200, 17, 150)
    _, low, high = mu_bounds(errors, 0.9)
    alarms = binomtest(31, 200).proportion_ci(0.9, "exact")
    misses = binomtest(17, 150).proportion_ci(0.9, "exact")
    assert low == pytest.approx(norm.ppf(1 - alarms.high) - norm.ppf(misses.high))
    assert high == pytest.approx(norm.ppf(1 - alarms.low) - norm.ppf(misses.low))


def test_a_test_without_errors_bounds_mu_from_below_only():
    value, low, high = mu_bounds(Errors(0, 1000, 0, 1000), 0.999)
    assert 2 < low < value < high == math.inf
    assert mu_bounds(Errors(1000, 1000, 0, 1000), 0.999)[1] == -math.inf


def test_the_bound_holds_as_often_as_it_says_and_the_estimate_alone_does_not():
    """Seed 0. 400 audits of exact Gaussians at 90 %: the lower end is too high in at most 10 % of them."""
    rng, true = np.random.default_rng(0), 1.0
    above = {"low": 0, "value": 0}
    for _ in range(400):
        inside, outside = rng.normal(true, 1, (2, 100)), rng.normal(0, 1, (2, 100))
        threshold = best_threshold(inside[0], outside[0], 0.9)
        value, low, _ = mu_bounds(Errors.counted(inside[1], outside[1], threshold), 0.9)
        above["low"] += low > true
        above["value"] += value > true
    assert binomtest(above["low"], 400, 0.1, "greater").pvalue > 0.01
    assert binomtest(above["value"], 400, 0.1, "greater").pvalue < 1e-9


def test_a_threshold_tested_on_the_trials_it_was_chosen_on_would_be_caught():
    """Seed 1. No canary effect at all, 50 % bounds: above 0 in half of the audits at most, but not done the wrong way."""
    rng, above = np.random.default_rng(1), {"right": 0, "wrong": 0}
    for _ in range(200):
        inside, outside = rng.normal(0, 1, (2, 2, 100))
        threshold = best_threshold(inside[0], outside[0], 0.5)
        for way, half in (("right", 1), ("wrong", 0)):
            above[way] += mu_bounds(Errors.counted(inside[half], outside[half], threshold), 0.5)[1] > 0
    assert binomtest(above["right"], 200, 0.5, "greater").pvalue > 0.01
    assert binomtest(above["wrong"], 200, 0.5, "greater").pvalue < 1e-6


def test_the_threshold_lies_in_the_gap_if_there_is_one():
    assert best_threshold(np.array([4.0, 5.0]), np.array([0.0, 1.0]), 0.99) == pytest.approx(2.5)


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
    one, other = (engine_epsilon(trials=2000).values.statistics["step"].errors for _ in range(2))
    assert one != other
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


def test_an_engine_result_is_reloaded_and_drawn():
    result = audit(trials=2000)
    again = EngineEpsilon.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again == result
    (figure,) = again.figures()
    axes = figure.draw(Figure().add_subplot())
    assert [label.get_text() for label in axes.get_yticklabels()] == ["discriminant", "difference", "step"]
    assert len(again.tables()[0].rows) == 3
    assert "Nothing exceeds the claim." in again.sentences()


# One run


def slow_p_value(m, r, v, epsilon, delta):
    """The formula, term by term."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    tail = [sum(mass[max(k, 0) :]) for k in range(-1, r + 2)]  # tail[k + 1] = P[W >= k]
    beta = tail[v + 1]
    alpha = max(((tail[v - i + 1] - beta) / i for i in range(1, v + 1)), default=0.0)
    return min(1.0, beta + 2 * m * delta * alpha)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-2])
@pytest.mark.parametrize(("m", "r", "v"), [(10, 10, 9), (50, 20, 20), (40, 30, 17), (100, 7, 0), (5, 0, 0)])
def test_the_p_value_is_its_definition(m, r, v, delta):
    for epsilon in (0.0, 0.5, 2.0, 6.0):
        assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(
            slow_p_value(m, r, v, epsilon, delta), abs=1e-12
        )


def test_at_delta_0_the_p_value_is_a_binomial_test():
    for right in (0, 12, 25, 30):
        q = 1 / (1 + math.exp(-1.0))
        expected = binomtest(right, 30, q, "greater").pvalue
        assert one_run_p_value(60, 30, right, 1.0, 0.0) == pytest.approx(expected)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (0.5, 0.02), (2.0, 0.05)])
def test_the_p_value_covers_a_mechanism_that_spends_all_it_may(epsilon, delta):
    """Seed 0. Randomised response that shows its bit with probability delta: 200,000 runs of 20 canaries."""
    rng, m, runs = np.random.default_rng(0), 20, 200_000
    honest = rng.random((runs, m)) < math.exp(epsilon) / (1 + math.exp(epsilon))
    right = (honest | (rng.random((runs, m)) < delta)).sum(1)
    for v in range(10, m + 1):
        seen = (right >= v).mean()
        assert seen <= one_run_p_value(m, m, v, epsilon, delta) + 4 * math.sqrt(seen / runs) + 1e-5
    chances = [((right >= v).mean(), one_run_p_value(m, m, v, epsilon, 0.0)) for v in range(10, m + 1)]
    broken = any(seen > chance + 5 * math.sqrt(seen / runs) for seen, chance in chances)
    assert broken == (delta > 0)  # without its second term the formula would not cover it


def test_the_p_value_covers_a_mechanism_that_shows_everything_at_once():
    """With probability delta all bits are shown: P[V >= v] = (1 - delta) beta + delta, in closed form."""
    for m, epsilon, delta in ((20, 1.0, 0.01), (500, 3.0, 1e-3)):
        for right in range(1, m + 1):
            beta = one_run_p_value(m, m, right, epsilon, 0.0)
            assert (1 - delta) * beta + delta <= one_run_p_value(m, m, right, epsilon, delta) + 1e-12


def test_the_bound_is_where_the_p_value_crosses_and_grows_with_the_guesses():
    bound = one_run_bound(1000, 200, 180, 1e-5, 0.95)
    assert one_run_p_value(1000, 200, 180, bound, 1e-5) == pytest.approx(0.05, abs=1e-4)
    assert one_run_bound(1000, 200, 180, 0.0, 0.95) > bound > one_run_bound(1000, 200, 170, 1e-5, 0.95) > 0
    assert one_run_bound(1000, 200, 100, 1e-5, 0.95) == one_run_bound(10, 0, 0, 1e-5, 0.95) == 0.0
    assert one_run_bound(1000, 200, 200, 0.0, 0.95) == pytest.approx(-math.log(0.05 ** (-1 / 200) - 1), abs=1e-5)


def test_the_p_value_grows_with_epsilon():
    values = [one_run_p_value(500, 100, 85, epsilon, 1e-5) for epsilon in np.linspace(0, 8, 100)]
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(values))


def test_impossible_counts_are_refused():
    with pytest.raises(ConfigError, match="must ascend"):
        one_run_p_value(10, 5, 6, 1.0, 0.0)


def test_the_bound_is_that_of_canaries_which_did_not_choose_the_guesses():
    """Seed 0: either half of 400 canaries is shown by the model, the other is not."""
    rng = np.random.default_rng(0)
    coins, blind = rng.integers(0, 2, 400).astype(bool), rng.random(400)
    first, second = (np.where((np.arange(400) < 200) == shown, coins + 0.1 * blind, blind) for shown in (True, False))
    assert guess(first, coins, 1e-5, 0.95).bound < 0.5
    assert guess(second, coins, 1e-5, 0.95).bound > 1
    assert guess(second, coins, 1e-5, 0.95).tested == 200


def test_intervals_of_the_statistics_hold_together():
    found = audit(trials=4000).values.statistics
    for statistic in found.values():
        low = mu_bounds(statistic.errors, 1 - 0.001 / 3)[1]
        assert statistic.mu.low == pytest.approx(max(low, 0.0))
        assert statistic.errors.inside + statistic.errors.outside in (2048, 2049)  # the second half


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
            nn.Linear(300, 3),
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


@pytest.mark.parametrize("seed", range(5))
def test_only_what_is_above_a_threshold_counts_as_there(seed):
    """Scores of few values, many of them on the threshold itself: the same counts as `best_threshold` goes by."""
    generator = np.random.default_rng(seed)
    inside, outside = generator.integers(0, 4, 30).astype(float), generator.integers(0, 4, 20).astype(float)
    for threshold in (0.0, 1.0, 2.0, 3.0):
        found = Errors.counted(inside, outside, threshold)
        assert found.false_alarms == sum(score > threshold for score in outside)
        assert found.misses == sum(not score > threshold for score in inside)
        assert (found.inside, found.outside) == (30, 20)
