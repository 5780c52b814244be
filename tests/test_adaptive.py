"""Rules whose bound follows a private statistic: formulas, what they ask, what they pay, and what they become."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from noisewise import Data, FullBatch, Mechanism, Poisson, Schedule, train
from noisewise.accounting.events import gaussian, joint_multiplier
from noisewise.adaptive import GlobalAdapt, GroupBounds, Quantile, query_multiplier
from noisewise.clipping import Flat, Samples
from noisewise.errors import ConfigError
from noisewise.persample import clipped_sum
from noisewise.testing import check_clip, reveal
from noisewise.training.state import State
from noisewise.training.step import private_step

RULES = [Quantile(0.7), Quantile(2.0, target=0.9, noise=3.0), GlobalAdapt(1.0, 5.0), GlobalAdapt(0.5, 0.5, tau=0.8)]
NORMS = torch.tensor([[0.0, 0.1, 0.5, 0.9, 1.0, 4.0, 30.0, 1e6]]).double()
GROUPS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


def samples(rule, norms=NORMS, groups=GROUPS):
    return Samples(norms, groups if isinstance(rule, GroupBounds) else None)


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def problem(units=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(units, 5, generator=generator)
    y = (x[:, 0] > 0).long()
    data = Data(x, y, groups={"team": torch.arange(units) % 3})
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)), data


@pytest.mark.parametrize("rule", RULES)
def test_rules_keep_their_bound(rule):
    assert check_clip(rule) is None


def test_group_bounds_keep_the_largest_bound():
    rule = GroupBounds("team", 3, bounds=(1.0, 2.5, 0.5))
    contributions = (rule.factors(samples(rule)) * NORMS).flatten()
    assert rule.sensitivity == 2.5
    assert torch.equal(contributions, torch.minimum(NORMS.flatten(), torch.tensor([1.0, 2.5, 0.5]).double()[GROUPS]))


TWENTIETH, COUNTED = [1.0, 5.0, 12.8], [1.0, math.sqrt(10), math.sqrt(25.6)]


@pytest.mark.parametrize(
    ("rule", "noise"),
    [
        (Quantile, TWENTIETH),
        (GlobalAdapt, TWENTIETH),
        (lambda **given: GroupBounds("team", 3, **given), COUNTED),
    ],
)
def test_questions_have_the_noise_that_is_said(rule, noise):
    """By default a twentieth of the batch, as a standard deviation of the count; of groups, what drawing a tenth has."""
    assert [rule().query_std(size) for size in (20, 100, 256)] == pytest.approx(noise)
    assert rule(noise=3.0).query_std(256) == 3.0
    assert query_multiplier(rule(), 100) == pytest.approx(noise[1] / rule().query_sensitivity)


def test_factors_are_the_papers_formulas():
    assert torch.equal(Quantile(0.7).factors(Samples(NORMS)), Flat(0.7).factors(Samples(NORMS)))
    expected = torch.where(NORMS <= 5, 1 / 5, 1 / NORMS)
    assert torch.allclose(GlobalAdapt(1.0, 5.0).factors(Samples(NORMS)), expected)


@pytest.mark.parametrize("rule", [*RULES, GroupBounds("team", 3)])
def test_one_unit_moves_the_question_by_its_sensitivity_at_most(rule):
    whole = rule.query(samples(rule))
    moves = []
    for i in range(NORMS.shape[1]):
        rest = torch.arange(NORMS.shape[1]) != i
        without = rule.query(samples(rule, NORMS[:, rest], GROUPS[rest]))
        moves.append(math.sqrt(sum(float((whole[k] - without[k]).square().sum()) for k in whole)))
    assert max(moves) == pytest.approx(rule.query_sensitivity)


def test_the_quantile_moves_geometrically_towards_its_target():
    rule = Quantile(1.0, target=0.5, rate=0.2)
    below = rule.query(Samples(NORMS))["below"]  # 5 of 8 norms are at most 1: 5/2 - 3/2
    assert below.item() == 1.0
    assert rule.update({"below": below}, 8).bound == pytest.approx(math.exp(-0.2 * (1 / 8)))


@pytest.mark.parametrize("target", [0.2, 0.5, 0.9])
def test_the_quantile_is_found(target):
    norms = torch.linspace(0.01, 10, 1000).unsqueeze(0)
    rule = Quantile(0.05, target=target)
    for _ in range(300):
        rule = rule.update(rule.query(Samples(norms)), 1000)
    assert rule.bound == pytest.approx(10 * target, rel=0.02)


def test_global_adapt_shrinks_its_screen_unless_many_exceed_it_and_never_below_the_bound():
    few, many = torch.zeros(1, 100), torch.full((1, 100), 1e9)
    rule = GlobalAdapt(1.0, 100.0, rate=0.1)
    assert rule.update(rule.query(Samples(few)), 100).screen == pytest.approx(100 * math.exp(-0.1))
    assert rule.update(rule.query(Samples(many)), 100).screen == pytest.approx(100 * math.exp(0.9))
    for _ in range(200):
        rule = rule.update(rule.query(Samples(few)), 100)
    assert rule.screen == 1.0


def test_groups_that_are_clipped_more_often_get_more_room():
    rule = GroupBounds("team", 2, bound=1.0)
    counts = torch.tensor([[90.0, 10.0], [10.0, 10.0]])  # group: not above, above
    bounds = rule.update({"counts": counts}, 120).bounds
    total = 20 / 120
    assert bounds == pytest.approx((1 + 0.1 / total, 1 + 0.5 / total))


def test_noised_counts_out_of_range_give_bounds_in_range():
    rule = GroupBounds("team", 2, bound=1.0, limit=10.0)
    for counts in ([[-5.0, 40.0], [100.0, -3.0]], [[-5.0, -4.0], [-3.0, -2.0]], [[0.0, 1.0], [1e6, 0.0]]):
        assert all(1.0 <= bound <= 10.0 for bound in rule.update({"counts": torch.tensor(counts)}, 100).bounds)


@pytest.mark.parametrize("rule", [Quantile(0.5), GlobalAdapt(1.0, 5.0), GroupBounds("team", 3)])
def test_the_ledger_pays_for_gradient_and_question_together(rule):
    question = query_multiplier(rule, 20)
    mechanism = Mechanism(sampler=Poisson(60, 20), clip=rule, steps=7, noise_multiplier=1.3)
    z = (1.3**-2 + question**-2) ** -0.5
    assert mechanism.joint_noise_multiplier == pytest.approx(z)
    assert mechanism.events() == [(gaussian(mechanism.sampler, joint_multiplier([1.3, question])), 7)]
    plain = Mechanism(sampler=Poisson(60, 20), steps=7, noise_multiplier=z)
    assert mechanism.epsilon(1e-3) == pytest.approx(plain.epsilon(1e-3))
    assert mechanism.epsilon(1e-3) > Mechanism(sampler=Poisson(60, 20), steps=7, noise_multiplier=1.3).epsilon(1e-3)


def test_calibration_gives_the_gradient_the_noise_that_the_question_leaves():
    rule = Quantile(0.5, noise=4.0)
    adaptive = Mechanism(sampler=FullBatch(100), clip=rule, steps=5).calibrated(3, 1e-5)
    fixed = Mechanism(sampler=FullBatch(100), steps=5).calibrated(3, 1e-5)
    expected = (fixed.noise_multiplier**-2 - 8.0**-2) ** -0.5
    assert adaptive.noise_multiplier == pytest.approx(expected, rel=5e-3)
    assert adaptive.epsilon(1e-5) <= 3


def test_a_question_that_alone_exceeds_the_budget_is_unreachable():
    with pytest.raises(ConfigError, match="out of reach"):
        Mechanism(sampler=FullBatch(100), clip=Quantile(0.5, noise=0.1), steps=5).calibrated(1, 1e-5)


@pytest.mark.parametrize("rule", [Quantile(0.5), GlobalAdapt(0.5, 2.0), GroupBounds("team", 3, bound=0.5)])
def test_training_moves_the_rule_and_writes_the_plan(rule):
    model, data = problem()
    mechanism = Mechanism(sampler=Poisson(60, 20), clip=rule, steps=6, noise_multiplier=1.0)
    state = State.start(mechanism, insecure_seed=0)
    for _ in range(6):
        private_step(model, data, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), state)
    assert state.clip != rule
    assert [line.to_dict() for line in state.ledger.lines] == [line.to_dict() for line in mechanism.lines()]
    assert state.ledger.lines[0].purpose == "gradient + bound"


@pytest.mark.parametrize("rule", [Quantile(0.5), GlobalAdapt(0.5, 2.0), GroupBounds("team", 3, bound=0.5)])
def test_a_resumed_run_takes_up_the_rule_where_it_was(rule, tmp_path):
    mechanism = Mechanism(sampler=Poisson(60, 20), clip=rule, steps=8, noise_multiplier=1.0)

    def run(**kwargs):
        model, data = problem()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, data, cross_entropy, mechanism, optimizer, insecure_seed=3, progress=False, **kwargs)
        return model.state_dict()

    class Stop(Exception):
        pass

    def stop_at_step_5(observation):
        if observation.step == 5:
            raise Stop

    with pytest.raises(Stop):
        run(out=tmp_path / "run", checkpoint_seconds=0, recorders=[stop_at_step_5])
    resumed, whole = run(out=tmp_path / "run", resume=True), run()
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_units_without_a_finite_norm_are_not_counted():
    model, data = problem(6)
    x = data.x.clone()
    x[0] = float("nan")
    rule = Quantile(1e9)
    counted = reveal(clipped_sum(model, cross_entropy, (x, data.y), rule).query)["below"]
    assert counted.item() == 2.5  # five units below, none for the sixth


def test_micro_batches_ask_the_same_question():
    from noisewise import Runtime

    model, data = problem(7)
    rule = Quantile(0.3)
    whole = clipped_sum(model, cross_entropy, (data.x, data.y), rule)
    parts = clipped_sum(model, cross_entropy, (data.x, data.y), rule, runtime=Runtime(microbatch=3))
    assert torch.equal(reveal(whole.query)["below"], reveal(parts.query)["below"])


def test_group_bounds_without_groups_name_what_is_missing():
    model, data = problem()
    mechanism = Mechanism(sampler=Poisson(60, 20), clip=GroupBounds("age", 2), steps=2, noise_multiplier=1.0)
    with pytest.raises(ConfigError, match=r"group='age'.*it has \['team'\]"):
        train(model, data, cross_entropy, mechanism, torch.optim.SGD(model.parameters(), lr=0.1), progress=False)


def test_an_adaptive_rule_in_a_schedule_is_refused():
    with pytest.raises(ConfigError, match="adaptive rule within a schedule"):
        Mechanism(sampler=Poisson(60, 20), clip=Schedule(((0, Flat(1.0)), (3, Quantile(1.0)))), steps=6)


@pytest.mark.parametrize("rule", [*RULES, GroupBounds("team", 3, bounds=(1.0, 2.0, 1.5))])
def test_mechanisms_with_adaptive_rules_survive_json(rule):
    mechanism = Mechanism(sampler=Poisson(60, 20), clip=rule, steps=7, noise_multiplier=1.3)
    assert Mechanism.from_dict(mechanism.to_dict()) == mechanism


@pytest.mark.parametrize(
    "make",
    [lambda: Quantile(0.0), lambda: Quantile(target=1.0), lambda: GlobalAdapt(2.0, 1.0), lambda: GroupBounds("g", 0)],
)
def test_settings_out_of_range_are_named(make):
    with pytest.raises(ConfigError, match=r"bound=0.0|target=1.0|screen=1.0|groups=0"):
        make()


# ------------------------------------------------------------------------------------------------ answers of any size

HUGE = [0.0, 1.0, -1.0, 1e5, -1e5, 1e300, -1e300, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize(
    "rule", [Quantile(1.0), Quantile(1e-20), Quantile(1e20), GlobalAdapt(1.0, 100.0), GlobalAdapt(1e13, 1e14)], ids=repr
)
def test_no_answer_moves_a_bound_out_of_range(rule, value):
    (name,) = rule.query(Samples(NORMS))
    for _ in range(3):
        following = rule.update({name: torch.tensor([value], dtype=torch.float64)}, 100)
        before, after = (getattr(r, "screen", r.bound) for r in (rule, following))
        assert min(before, 1e-12) <= after <= max(before, 1e12)
        assert check_clip(following) is None
        rule = following


def test_a_large_answer_moves_a_bound_to_the_end_of_its_range():
    assert Quantile(1.0).update({"below": torch.tensor([-1e300])}, 100).bound == 1e12
    assert Quantile(1.0).update({"below": torch.tensor([1e300])}, 100).bound == 1e-12
    assert GlobalAdapt(1.0, 100.0).update({"above": torch.tensor([1e300])}, 100).screen == 1e12


@pytest.mark.parametrize("first", HUGE)
@pytest.mark.parametrize("second", HUGE)
def test_no_counts_move_group_bounds_out_of_range(first, second):
    rule = GroupBounds("team", 2, limit=10.0)
    for counts in ([[first, second], [1.0, 1.0]], [[first, first], [second, second]], [[3.0, first], [second, 3.0]]):
        bounds = rule.update({"counts": torch.tensor(counts, dtype=torch.float64)}, 100).bounds
        assert all(1.0 <= bound <= 10.0 for bound in bounds)


@pytest.mark.parametrize("rule", [Quantile(0.5, noise=1e300), GlobalAdapt(0.5, 2.0, noise=1e300)], ids=repr)
def test_training_with_huge_noise_on_the_question_goes_on(rule):
    model, data = problem()
    mechanism = Mechanism(sampler=Poisson(60, 20), clip=rule, steps=6, noise_multiplier=1.0)
    state = State.start(mechanism, insecure_seed=0)
    for _ in range(6):
        private_step(model, data, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.0), state)
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_group_of_which_endlessly_many_are_clipped_gets_more_room():
    counts = torch.tensor([[0.0, math.inf], [1.0, 0.0]], dtype=torch.float64)
    assert GroupBounds("team", 2).update({"counts": counts}, 100).bounds == pytest.approx((2.0, 1.0))


def test_counts_of_small_groups_are_not_drowned_by_default():
    """Of 1,000 units 5 % are in a group of whom 4 in 5 are clipped, of the others 1 in 5: the default noise shows it."""
    rule, generator = GroupBounds("g", 2), torch.Generator().manual_seed(0)
    std = rule.query_std(1000)
    assert std == pytest.approx(10)  # what drawing 100 of many does to their count, at most
    assert GroupBounds("g", 2).query_std(20) == 1.0  # a small batch: a twentieth, as of other rules
    assert GroupBounds("g", 2, noise=7.0).query_std(1000) == 7.0
    counts = torch.tensor([[760.0, 190.0], [10.0, 40.0]])
    more, bounds = 0, []
    for _ in range(300):
        said = counts + std * torch.randn(2, 2, generator=generator)
        after = rule.update({"counts": said}, 1000)
        more += after.bounds[1] > 1.5 * after.bounds[0]
        bounds.append(after.bounds[1])
    assert more / 300 > 0.95
    assert np.median(bounds) == pytest.approx(1 + 0.8 / 0.23, rel=0.1)
    spread = np.quantile(bounds, 0.9) - np.quantile(bounds, 0.1)
    assert spread < 2.5  # with a twentieth of the batch as noise: above 4
