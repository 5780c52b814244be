"""The claims themselves: a lone unit contributes at most C, one unit more or less moves the sum by at most C."""

import math
from functools import cache

import pytest
import torch
from torch import nn

from helpers.oracles import (
    PROBLEMS,
    RULES,
    SUPPORTS,
    cross_entropy,
    flat,
    gradients_of,
    lone,
    make_support,
    problems_and_engines,
    rows,
    rules,
    typical_norm,
)
from noisewise.accounting import Ledger
from noisewise.bounded import release
from noisewise.clipping import Automatic, Flat, Global, Normalized, Samples
from noisewise.errors import CoupledSamples, UnsupportedLayer
from noisewise.mechanism import Mechanism
from noisewise.persample import Layout, clipped_sum, examine
from noisewise.randomness import Entropy
from noisewise.runtime import Runtime
from noisewise.sampling import Poisson

ENGINES = ("auto", "dense", "loop")
EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)
EACH_PROBLEM = pytest.mark.parametrize(("name", "engine"), problems_and_engines(ENGINES))
WITHIN = 1 + 1e-6

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet:UserWarning"),
]


def length(clipped):
    return float(flat(clipped.grads._values).norm())


def distance(one, other):
    return float((flat(one.grads._values) - flat(other.grads._values)).norm())


def summed(setup, clip, support=None, engine="auto", layout=None, units=slice(None)):
    model, loss_fn, batch = setup
    return clipped_sum(model, loss_fn, rows(batch, units), clip, support, Runtime(engine=engine), layout=layout)


def combinations(name, engine):
    """(rule, support) pairs that go round over the problems: every pair turns up, the slow engines take every fourth."""
    turn = list(PROBLEMS).index(name)
    pairs = [(rule, SUPPORTS[(turn + k) % len(SUPPORTS)]) for k, rule in enumerate(RULES)]
    return pairs[turn // 4 % 2 :: 2] if engine == "auto" else pairs[turn // 4 % 4 :: 4]


@EACH_PROBLEM
def test_a_lone_unit_contributes_at_most_the_sensitivity(name, engine):
    (setup, layout), grads = PROBLEMS[name].examined(), gradients_of(name)
    for rule, kind in combinations(name, engine):
        clip = rules(list(grads), 0.3 * typical_norm(grads))[rule]
        for unit in (0, 3):
            units = slice(unit, unit + 1)
            alone = summed(setup, clip, make_support(kind, setup.model), engine, layout, units)
            assert length(alone) <= clip.sensitivity * WITHIN, (rule, kind, unit)


@EACH_PROBLEM
def test_removing_one_unit_moves_the_sum_by_at_most_the_sensitivity(name, engine):
    (setup, layout), grads = PROBLEMS[name].examined(), gradients_of(name)
    for rule, kind in combinations(name, engine):
        clip = rules(list(grads), 0.3 * typical_norm(grads))[rule]
        support = make_support(kind, setup.model)
        whole = summed(setup, clip, support, engine, layout)
        rest = summed(setup, clip, support, engine, layout, [0, 2, 3])
        assert distance(whole, rest) <= clip.sensitivity * WITHIN, (rule, kind)


@pytest.mark.parametrize("name", PROBLEMS)
def test_some_unit_uses_the_whole_bound(name):
    """Otherwise the two tests above could pass because everything is short."""
    (setup, layout), grads = PROBLEMS[name].examined(), gradients_of(name)
    clip = Flat(0.3 * typical_norm(grads))
    lengths = [length(summed(setup, clip, layout=layout, units=slice(i, i + 1))) for i in range(4)]
    assert max(lengths) > clip.bound * (1 - 1e-6)


# ------------------------------------------------------------------------------------------ small and large gradients


SCALED = [Flat(1.0), Global(0.5, 2.0), Automatic(1.0), Normalized(1.0)]
EXPONENTS = [*range(-40, -18), *range(-18, 31, 6)]


@EACH_ENGINE
@pytest.mark.parametrize("rule", SCALED, ids=repr)
@pytest.mark.parametrize(
    "name", ["linear-4d", "linear-3d-gram", "conv-wide-gram", "conv-wide-formed", "tied-convs", "embedding"]
)
def test_a_lone_float32_unit_stays_within_the_bound_at_every_scale(name, rule, engine):
    """Losses from 1e-40 to 1e30: squares of small gradients underflow, squares of large ones overflow.

    Rules see norms only, so two of them take one half of the scales and two the other.
    """
    setup, layout = squared(name)
    for exponent in EXPONENTS[SCALED.index(rule) % 2 :: 2]:
        batch = (setup.batch[0][:1], torch.tensor([10.0**exponent]))
        alone = summed((setup.model, weighted_square, batch), rule, engine=engine, layout=layout)
        assert length(alone) <= rule.sensitivity * (1 + 1e-4), exponent


@cache
def squared(name):
    """A problem in float32, and what the examination finds with the loss below."""
    setup = PROBLEMS[name].make(torch.float32)
    return setup, examine(setup.model, weighted_square, (setup.batch[0], torch.ones(len(setup.batch[0]))))


def weighted_square(model, batch):
    return model(batch[0]).square().flatten(1).mean(1) * batch[1]


def test_a_wide_layer_whose_small_gradients_underflow_stays_within_the_bound():
    """Seed 0. 6000 coordinates of about 2e-23: their squares vanish in float32, the normalised sum would not."""
    torch.manual_seed(0)
    model, batch = nn.Linear(300, 20), (torch.randn(1, 300), torch.tensor([1]))
    for engine in ENGINES:
        for exponent in range(-26, -18):
            scaled = lambda m, b, e=exponent: cross_entropy(m, b) * 10.0**e  # noqa: E731
            alone = clipped_sum(model, scaled, batch, Normalized(1.0), runtime=Runtime(engine=engine))
            assert length(alone) <= 1 + 1e-4, (engine, exponent)


@pytest.mark.parametrize("width", [64, 1024, 4096, 16384])
def test_a_wide_layer_on_constant_inputs_that_cancel_stays_within_the_bound(width):
    """Seeds 0..39, float32: two positions with opposite inputs, all entries alike, so that roundings do not average out."""
    model = nn.Linear(width, 4, bias=False)
    for seed in range(40):
        value, share = torch.rand(2, generator=torch.Generator().manual_seed(seed)).tolist()
        x = torch.full((1, 2, width), 0.5 + value)
        x[:, 1] *= -(1 - 10 ** (-2 - 4 * share))
        setup = (model, lambda m, b: m(b).sum((1, 2)), x)
        assert length(lone(*setup, Flat(1e-6))) <= 1e-6 * (1 + 1e-4), seed


# --------------------------------------------------------------------------------------------------- rules by norm

NORMS = torch.cat([torch.zeros(1), torch.logspace(-45, 12, 2000, dtype=torch.float64)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bound", [1e-6, 0.1, 1.0, 37.0, 1e6])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_keeps_its_promise_for_norms_from_0_to_1e12(rule, bound, dtype):
    clip = rules(["a.weight", "a.bias", "b.weight"], bound)[rule]
    blocks = max(clip.blocks(["a.weight", "a.bias", "b.weight"]).values()) + 1
    norms = torch.stack([NORMS.roll(k * 611) for k in range(blocks)]).to(dtype)
    factors = clip.factors(Samples(norms))
    assert bool(factors.isfinite().all())
    assert bool((factors >= 0).all())
    contributions = (factors.double() * norms.double()).square().sum(0).sqrt()
    assert float(contributions.max()) <= clip.sensitivity * WITHIN


@pytest.mark.parametrize("rule", RULES)
def test_rules_survive_the_smallest_and_largest_numbers(rule):
    clip = rules(["weight"])[rule]
    for dtype in (torch.float32, torch.float64):
        info = torch.finfo(dtype)
        norms = torch.tensor([[0.0, info.smallest_normal, info.smallest_normal * info.eps, info.max]], dtype=dtype)
        factors = clip.factors(Samples(norms))
        assert not bool(factors.isnan().any())
        assert bool((factors * norms <= clip.sensitivity * WITHIN).all())


@pytest.mark.parametrize("rule", RULES)
def test_an_infinite_norm_is_given_no_weight(rule):
    """clipped_sum drops such units before it asks; a rule of its own accord gives 0 or what the drop replaces."""
    factors = rules(["weight"])[rule].factors(Samples(torch.tensor([[math.inf]])))
    assert factors.item() == 0


# ------------------------------------------------------------------------------------------------ a planted BatchNorm


def planted():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU(), nn.Linear(8, 2))


def planted_batch():
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(8, 4, generator=generator)
    x[0] *= 30  # this unit sets the statistics of all others
    return x, torch.arange(8) % 2


def test_a_planted_batch_norm_is_refused():
    with pytest.raises(CoupledSamples):
        clipped_sum(planted(), cross_entropy, planted_batch(), Flat(1.0))


def test_a_planted_batch_norm_would_break_the_neighbour_test():
    """The neighbour test sees it: with gradients of the whole batch one unit moves the sum by more than the sensitivity."""
    model = planted()
    live = [parameter for name, parameter in model.named_parameters() if not name.startswith("1.")]

    def clipped_in_company(x, y):
        losses = cross_entropy(model, (x, y))
        total = torch.zeros(sum(parameter.numel() for parameter in live))
        for loss in losses:
            grads = torch.autograd.grad(loss, live, retain_graph=True)
            flat = torch.cat([grad.flatten() for grad in grads])
            total += flat / flat.norm().clamp(min=1.0)
        return total

    x, y = planted_batch()
    assert (clipped_in_company(x, y) - clipped_in_company(x[1:], y[1:])).norm() > 1.1
    support = {"1.weight": False, "1.bias": False}
    with pytest.raises(UnsupportedLayer, match="needs a proof"):
        summed((model, cross_entropy, (x, y)), Flat(1.0), support, "ghost", Layout())


def test_group_norm_in_its_place_keeps_the_neighbour_test():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.ReLU(), nn.Linear(8, 2))
    setup = (model, cross_entropy, planted_batch())
    assert distance(summed(setup, Flat(1.0)), summed(setup, Flat(1.0), units=slice(1, None))) <= WITHIN


def test_a_loss_divided_by_the_batch_size_is_refused_or_keeps_the_neighbour_test():
    """Nine units on one side, one on the other: each counts 1 / batch, so that one fewer lets all others grow."""
    x = torch.cat([torch.full((1, 1), 9.0), torch.full((9, 1), -9.0)])
    setup = (nn.Linear(1, 1, bias=False), lambda m, b: m(b).squeeze(1) / len(b), x)
    try:
        whole, rest = summed(setup, Flat(1.0)), summed(setup, Flat(1.0), units=slice(1, None))
    except CoupledSamples:
        return
    assert distance(whole, rest) <= WITHIN


# ---------------------------------------------------------------------------------------------- release and plan


def test_an_empty_batch_is_released_with_noise():
    setup = PROBLEMS["linear-2d"].make()
    ledger = Ledger()
    empty = summed(setup, Flat(1.0), units=slice(0, 0))
    sampler = Poisson(n=100, batch_size=1)
    (answer,) = release(
        {"g": (empty.grads, 1.0)}, sampler=sampler, ledger=ledger, entropy=Entropy.insecure(0), step=0
    ).values()
    assert all(value.abs().min() > 0 for value in answer.values())
    assert ledger.releases == 1


def test_a_calibrated_plan_never_exceeds_its_budget():
    plan = Mechanism(sampler=Poisson(n=1000, batch_size=50), steps=20).calibrated(epsilon=3.0, delta=1e-5)
    assert 2.97 < plan.epsilon(1e-5) <= 3.0
