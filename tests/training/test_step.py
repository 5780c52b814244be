"""One private step: the divisor, empty batches, noise of every step, the ledger, supports that change."""

import importlib
import math

import pytest
import torch
from scipy import stats
from torch import nn

from helpers import tiny
from helpers.oracles import Apply, Setup, cross_entropy, relative_error, rows
from helpers.steps import drawn, expected_sum, plan, problem, scaled, steps_of
from noisewise.accounting import Ledger
from noisewise.bounded import release
from noisewise.clipping import Flat, Global, Normalized
from noisewise.errors import BudgetSpent, ConfigError, CoupledSamples, PrivacyError, PrivacyWarning
from noisewise.persample import clipped_sum
from noisewise.runtime import Runtime
from noisewise.sampling import FullBatch, Poisson, Shuffle
from noisewise.schedule import Schedule
from noisewise.support import Fixed, Plan
from noisewise.training.state import State
from noisewise.training.step import private_step

FALSE_ALARM = 1e-6


def test_the_sum_is_divided_by_the_expected_not_the_realised_batch_size():
    """Seed 1, without noise: what is left is the clipped sum over the batch that was drawn, over 4."""
    setup = problem()
    mechanism = plan(Poisson(n=20, batch_size=4), 12, 0.0)
    seen = steps_of(setup, State.start(mechanism, insecure_seed=1), 12)
    sizes = [len(drawn(mechanism, 1, step)) for step in range(12)]
    assert len(set(sizes)) > 3
    for step, grads in enumerate(seen):
        total = expected_sum(setup, drawn(mechanism, 1, step), Flat(0.5))
        assert relative_error(grads, scaled(total, 1 / 4)) < 1e-9


@pytest.mark.parametrize("sampler", [FullBatch(n=20), Shuffle(n=20, batch_size=8)])
def test_other_samplers_divide_by_their_public_batch_size(sampler):
    setup, mechanism = problem(), plan(sampler, 3, 0.0)
    for step, grads in enumerate(steps_of(setup, State.start(mechanism, insecure_seed=2), 3)):
        total = expected_sum(setup, drawn(mechanism, 2, step), Flat(0.5))
        assert relative_error(grads, scaled(total, 1 / sampler.batch_size)) < 1e-9


@pytest.mark.parametrize("microbatch", [1, 3])
@pytest.mark.parametrize("engine", ["auto", "dense", "loop"])
def test_the_runtime_does_not_change_the_step(engine, microbatch):
    mechanism = plan(Poisson(n=20, batch_size=6), 2, 1.0)
    one, other = (
        steps_of(problem(), State.start(mechanism, insecure_seed=3), 2, 0.1, runtime=runtime)
        for runtime in (Runtime(), Runtime(engine=engine, microbatch=microbatch))
    )
    for a, b in zip(one, other, strict=True):
        assert relative_error(a, b) < 1e-12


def test_a_schedule_of_rules_is_followed():
    clip = Schedule(((0, Flat(0.5)), (1, Normalized(0.2)), (2, Global(0.1, 1.0))))
    setup, mechanism = problem(), plan(FullBatch(n=20), 3, 0.0, clip=clip)
    for step, grads in enumerate(steps_of(setup, State.start(mechanism, insecure_seed=0), 3)):
        assert relative_error(grads, scaled(expected_sum(setup, list(range(20)), clip.at(step)), 1 / 20)) < 1e-9


def test_an_empty_batch_is_a_step_with_noise_and_a_line():
    """Seed 4: 40 steps at a mean of one unit, P(no empty one) < 1e-7."""
    setup, mechanism = problem(), plan(Poisson(n=20, batch_size=1), 40)
    state = State.start(mechanism, insecure_seed=4)
    seen = steps_of(setup, state, 40)
    empty = [step for step in range(40) if not drawn(mechanism, 4, step)]
    assert empty
    for step in empty:
        assert all(bool((grad != 0).all()) for grad in seen[step].values())
    assert state.step == 40
    assert state.ledger.releases == 40


def test_an_empty_batch_moves_the_weights():
    setup, mechanism = problem(), plan(Poisson(n=20, batch_size=1), 40)
    state = State.start(mechanism, insecure_seed=4)
    state.step = next(step for step in range(40) if not drawn(mechanism, 4, step))
    before = {name: p.detach().clone() for name, p in setup.model.named_parameters()}
    steps_of(setup, state, 1, learning_rate=0.1)
    assert all(bool((p != before[name]).all()) for name, p in setup.model.named_parameters())


def noise_only(mechanism, seed, steps, width=100):
    """Gradients of a loss that the model does not enter: nothing but noise over the expected batch size."""
    setup = Setup(
        nn.Linear(width, 200), lambda model, batch: 0 * model(batch).sum(1), torch.zeros(mechanism.sampler.n, width)
    )
    return [grads["weight"] for grads in steps_of(setup, State.start(mechanism, insecure_seed=seed), steps)]


def has_std(noise, std):
    """Two-sided chi-square test, false alarms 1e-6; 20,000 values show 5 %."""
    statistic, size = float((noise.double() / std).square().sum()), noise.numel()
    return 2 * min(stats.chi2.cdf(statistic, size), stats.chi2.sf(statistic, size)) > FALSE_ALARM


def are_independent(one, other):
    """z-test of the correlation, false alarms 1e-6; 20,000 pairs show 0.05."""
    pair = torch.stack([one.flatten(), other.flatten()]).double()
    return abs(float(torch.corrcoef(pair)[0, 1])) < stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(one.numel())


@pytest.mark.parametrize(("sigma", "bound"), [(1.0, 1.0), (0.7, 3.0)])
def test_noise_has_the_std_sigma_times_bound_over_the_expected_batch_size(sigma, bound):
    """Seed 5."""
    mechanism = plan(Poisson(n=20, batch_size=4), 1, sigma, clip=Flat(bound))
    (noise,) = noise_only(mechanism, 5, 1)
    assert has_std(noise, sigma * bound / 4)
    assert not has_std(noise * 0.9, sigma * bound / 4)
    assert not has_std(noise * 1.1, sigma * bound / 4)


def test_every_step_has_noise_of_its_own():
    """Seed 6."""
    first, second, third = noise_only(plan(Poisson(n=20, batch_size=4), 3), 6, 3)
    assert are_independent(first, second)
    assert are_independent(second, third)
    assert are_independent(first, third)
    assert not are_independent(first, first)
    assert not are_independent(first, 0.1 * first + second)


def test_without_an_insecure_seed_runs_differ():
    mechanism = plan(FullBatch(n=20), 1)
    assert are_independent(*(noise_only(mechanism, None, 1)[0] for _ in range(2)))


@pytest.mark.parametrize("sampler", [Poisson(n=20, batch_size=5), FullBatch(n=20), Shuffle(n=20, batch_size=5)])
def test_a_second_phase_does_not_use_the_noise_of_the_first_again(sampler):
    """Seed 7, eight steps each, the same root: equal noise in two releases would cancel in their difference."""
    mechanism = plan(sampler, 8)
    ledger, seen = Ledger(mechanism.adjacency), []
    for _ in range(2):
        setup = Setup(nn.Linear(100, 20), lambda model, batch: 0 * model(batch).sum(1), torch.zeros(20, 100))
        seen += [g["weight"] for g in steps_of(setup, State.start(mechanism, ledger, insecure_seed=7), 8)]
    assert len({tuple(noise.flatten()[:5].tolist()) for noise in seen}) == 16


def test_the_ledger_equals_the_plan():
    for sampler in (Poisson(n=20, batch_size=4), FullBatch(n=20), Shuffle(n=20, batch_size=4)):
        mechanism = plan(sampler, 10, 1.3)
        state = State.start(mechanism, insecure_seed=0)
        steps_of(problem(), state, 10)
        assert state.ledger.lines == mechanism.lines()


def test_training_past_the_plan_stops():
    setup, state = problem(), State.start(plan(Poisson(n=20, batch_size=4), 2), insecure_seed=0)
    steps_of(setup, state, 2)
    before = {name: p.detach().clone() for name, p in setup.model.named_parameters()}
    with pytest.raises(BudgetSpent, match="all 2 planned steps are done"):
        steps_of(setup, state, 1, learning_rate=1.0)
    assert state.ledger.releases == 2
    assert all(torch.equal(p, before[name]) for name, p in setup.model.named_parameters())


def test_data_of_another_size_than_planned_is_refused():
    setup, state = problem(21), State.start(plan(Poisson(n=20, batch_size=4), 2), insecure_seed=0)
    with pytest.raises(PrivacyError, match=r"21 units.*planned for n=20"):
        steps_of(setup, state, 1)
    assert state.ledger.releases == 0


def test_a_plan_without_noise_is_refused_before_anything_is_released():
    state = State.start(plan(Poisson(n=20, batch_size=4), 2, None), insecure_seed=0)
    with pytest.raises(ConfigError, match=r"noise_multiplier is not set.*calibrated"):
        steps_of(problem(), state, 1)
    assert state.ledger.releases == 0


def test_a_multiplier_of_0_is_recorded_as_not_private():
    state = State.start(plan(Poisson(n=20, batch_size=4), 1, 0.0), insecure_seed=0)
    steps_of(problem(), state, 1)
    assert state.ledger.epsilon(1e-5) == math.inf


def test_phases_add_up_in_one_ledger():
    first, second = plan(Poisson(n=20, batch_size=4), 3, 1.0), plan(Poisson(n=20, batch_size=4), 2, 2.0)
    state = State.start(first, insecure_seed=0)
    steps_of(problem(), state, 3)
    steps_of(problem(), State.start(second, state.ledger, insecure_seed=1), 2)
    assert [(line.count, line.first_step) for line in state.ledger.lines] == [(3, 0), (2, 3)]


def test_a_ledger_of_another_adjacency_is_refused():
    with pytest.raises(PrivacyError, match="zero-out neighbours, the mechanism add-remove"):
        State.start(plan(Poisson(n=20, batch_size=4), 1), Ledger("zero-out"))


def test_coupled_units_are_refused_before_anything_is_released():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    setup, state = problem()._replace(model=model), State.start(plan(Poisson(n=20, batch_size=4), 1), insecure_seed=0)
    with pytest.raises(CoupledSamples):
        steps_of(setup, state, 1)
    assert state.ledger.releases == 0


def test_frozen_and_masked_coordinates_never_move():
    setup = problem()
    mask = torch.rand(6, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    mechanism = plan(Poisson(n=20, batch_size=4), 3, support=Fixed({"0.weight": mask, "2.bias": False}))
    before = {name: p.detach().clone() for name, p in setup.model.named_parameters()}
    seen = steps_of(setup, State.start(mechanism, insecure_seed=8), 3, learning_rate=0.1)
    assert all("2.bias" not in grads for grads in seen)
    assert torch.equal(setup.model[2].bias, before["2.bias"])
    assert torch.equal(setup.model[0].weight != before["0.weight"], mask)


class Unfreezing(Plan):
    """The layer in the middle learns from the second step on."""

    def at(self, step, released, generator):
        return {} if step else {"inner.weight": False, "inner.bias": False}


def flipping():
    torch.manual_seed(0)

    def forward(m, x):
        return m.head(torch.tanh(m.inner(torch.tanh(m.body(x)).flip(0))).flip(0))

    model = Apply(forward, body=nn.Linear(5, 4), inner=nn.Linear(4, 4), head=nn.Linear(4, 3)).double()
    return Setup(model, cross_entropy, (torch.randn(6, 5, dtype=torch.float64), torch.arange(6) % 3))


def test_a_layer_that_is_unfrozen_later_is_looked_at_before_it_learns():
    """It works on the units in another order; taken for an ordinary layer, it would be clipped by others' norms."""
    setup, mechanism = flipping(), plan(FullBatch(n=6), 2, 0.0, support=Unfreezing())
    first, second = steps_of(setup, State.start(mechanism, insecure_seed=0), 2)
    frozen = {"inner.weight": False, "inner.bias": False}
    assert relative_error(first, scaled(expected_sum(setup, list(range(6)), Flat(0.5), frozen), 1 / 6)) < 1e-9
    assert relative_error(second, scaled(expected_sum(setup, list(range(6)), Flat(0.5)), 1 / 6)) < 1e-9


def test_recorders_see_the_units_and_norms_of_every_step():
    setup, mechanism, seen = problem(), plan(Poisson(n=20, batch_size=4), 4), []
    steps_of(setup, State.start(mechanism, insecure_seed=9), 4, recorders=[seen.append])
    assert [observation.step for observation in seen] == [0, 1, 2, 3]
    for observation in seen:
        assert observation.units.tolist() == drawn(mechanism, 9, observation.step)
        alone = clipped_sum(setup.model, setup.loss_fn, rows(setup.batch, observation.units), Flat(0.5))
        assert torch.allclose(observation.norms, alone.norms.to(observation.norms.dtype))


def test_the_random_state_of_the_user_is_left_alone():
    setup = problem()
    model = nn.Sequential(setup.model, nn.Dropout(0.5))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    state = State.start(plan(Poisson(n=20, batch_size=4), 2), insecure_seed=0)
    steps_of(setup._replace(model=model), state, 2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_step_whose_release_fails_is_not_drawn_again(when, monkeypatch):
    """Its noise may have been seen already: the next call makes the next step."""
    module = importlib.import_module("noisewise.training.step")

    def failing(*args, **kwargs):
        if when == "after":
            release(*args, **kwargs)
        raise MemoryError("no room for noise")

    network, state = tiny.model(), State.start(tiny.mechanism())
    monkeypatch.setattr(module, "release", failing)
    with pytest.raises(MemoryError):
        private_step(network, tiny.data(), tiny.loss_fn, tiny.sgd(network), state)
    assert state.step == 1
    assert state.ledger.releases == (when == "after")


def test_parameters_that_the_optimizer_leaves_out_are_named():
    network = tiny.model()
    optimizer = torch.optim.SGD(network[0].parameters(), lr=0.1)
    with pytest.warns(PrivacyWarning, match=r"does not hold \['2.weight', '2.bias'\]"):
        private_step(network, tiny.data(), tiny.loss_fn, optimizer, State.start(tiny.mechanism()))
