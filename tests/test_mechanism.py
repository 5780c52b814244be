"""The mechanism: frozen, complete in JSON, and honest about what it will spend."""

import json
import math
import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass, replace
from fractions import Fraction

import dp_accounting as dp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.damage import changed, damaged
from noisewise.accounting import Ledger
from noisewise.accounting.events import gaussian, joint_multiplier
from noisewise.accounting.ledger import joined
from noisewise.adaptive import Quantile
from noisewise.clipping import Automatic, Flat, Global, Normalized, per_layer
from noisewise.errors import ConfigError
from noisewise.mechanism import PURPOSE, Mechanism
from noisewise.randomness import Entropy
from noisewise.runtime import Runtime
from noisewise.sampling import FullBatch, Poisson, Shuffle
from noisewise.schedule import Schedule
from noisewise.support import EVERYTHING, Fixed, Plan

DELTA = 1e-5
NAMES = ["0.weight", "0.bias", "2.weight"]


def mechanism(**settings):
    return Mechanism(**{"sampler": Poisson(100, 10), "steps": 20, "noise_multiplier": 2.0, **settings})


# --- JSON -------------------------------------------------------------------------------------------------------------

bounds = st.floats(0.01, 100)
one_block = st.one_of(
    st.builds(Flat, bounds),
    st.builds(Global, bounds),
    st.builds(lambda bound, more: Global(bound, bound + more), bounds, st.floats(0, 50)),
    st.builds(Automatic, bounds, bounds),
    st.builds(Normalized, bounds),
)
layered = st.lists(one_block, min_size=3, max_size=3).map(
    lambda rules: per_layer(NAMES, dict(zip(NAMES, rules, strict=True)))
)
rules = st.one_of(one_block, layered)


def scheduled(values):
    starts = st.lists(st.integers(1, 50), unique=True, max_size=3).map(lambda rest: [0, *sorted(rest)])
    pieces = starts.flatmap(lambda firsts: st.tuples(*(st.tuples(st.just(first), values) for first in firsts)))
    return st.one_of(values, pieces.map(Schedule))


masks = st.lists(st.booleans(), min_size=6, max_size=6).map(lambda bits: torch.tensor(bits).reshape(2, 3))
supports = st.dictionaries(st.sampled_from(NAMES), st.one_of(st.booleans(), masks)).map(Fixed)
sigmas = st.one_of(st.floats(1e-6, 100), st.integers(0, 5))


@st.composite
def mechanisms(draw):
    n = draw(st.integers(1, 10**6))
    batch_size = draw(st.integers(1, n))
    cut = Poisson(n, batch_size, max_batch=draw(st.integers(batch_size, 2 * n)))
    sampler = draw(st.sampled_from([Poisson(n, batch_size), cut, FullBatch(n), Shuffle(n, batch_size)]))
    noise = sigmas if sampler.steps_per_event > 1 else scheduled(sigmas)
    return Mechanism(
        sampler=sampler,
        clip=draw(scheduled(rules)),
        steps=draw(st.integers(1, 10**6)),
        noise_multiplier=draw(st.one_of(st.none(), noise)),
        support=draw(st.one_of(st.just(EVERYTHING), supports)),
        adjacency=draw(st.sampled_from(sampler.adjacencies)),
        unit=draw(st.sampled_from(["row", "person"])),
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(mechanisms())
def test_json_round_trip(original):
    text = json.dumps(original.to_dict())
    assert Mechanism.from_dict(json.loads(text)) == original
    assert json.dumps(Mechanism.from_dict(json.loads(text)).to_dict()) == text


DESCRIBED = mechanism(
    clip=Schedule(((0, Flat(1.0)), (10, per_layer(NAMES, Global(1.0, 3.0))))),
    noise_multiplier=Schedule(((0, 2.0), (5, 1.0))),
    support=Fixed({"0.bias": False, "0.weight": torch.tensor([[True, False, True], [False, False, True]])}),
).to_dict()


@settings(max_examples=400, deadline=None, derandomize=True)
@given(damaged(DESCRIBED))
def test_damage_is_an_error_or_another_mechanism_that_says_what_the_file_says(raw):
    try:
        read = Mechanism.from_dict(raw)
    except ConfigError:
        return
    assert read.to_dict() == raw


def described(*path, to):
    return changed(mechanism().to_dict(), *path, to=to)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {},
        described("extra", to=1),
        described("steps", to="20"),
        described("steps", to=True),
        described("steps", to=0),
        described("sampler", to=None),
        described("sampler", "kind", to="without-replacement"),
        described("sampler", "batch_size", to=101),
        described("sampler", "n", to=100.0),
        described("sampler", "seed", to=1),
        described("sampler", to={"kind": "full-batch", "n": 100, "batch_size": 10}),
        described("clip", to={"rule": "Flat"}),  # a bound left out is not the default bound
        described("clip", to={"rule": "Flat", "bound": -1.0}),
        described("clip", to={"rule": "Flat", "bound": 1.0, "gamma": 1.0}),
        described("clip", to={"rule": "mine:Own", "settings": "Own()"}),
        described("clip", to={"rule": "PerLayer", "rules": {}}),
        described("clip", to={"schedule": []}),
        described("clip", to={"schedule": [[5, {"rule": "Flat", "bound": 1.0}]]}),
        described("noise_multiplier", to=-1.0),
        described("noise_multiplier", to=math.nan),
        described("noise_multiplier", to="2.0"),
        described("noise_multiplier", to={"schedule": [[0, 1.0], [2.5, 2.0]]}),
        described("noise_multiplier", to={"schedule": [[0, None]]}),
        described("support", to={}),
        described("support", to={"plan": "mine:Plan", "settings": "Plan()"}),
        described("support", to={"fixed": {"w": 1}}),
        described("support", to={"fixed": {"w": {"shape": [2, 3], "bits": "eJwDAAAAAAE="}}}),
        described("support", to={"fixed": {"w": {"shape": [2, 3], "bits": "no base64"}}}),
        described("adjacency", to="neighbours"),
        described("adjacency", to=None),
        described("unit", to=5),
        described("unit", to=""),
    ],
    ids=repr,
)
def test_damaged_descriptions_are_refused(raw):
    with pytest.raises(ConfigError):
        Mechanism.from_dict(raw)


@dataclass(frozen=True)
class OwnRule:
    bound: float = 2.0
    sensitivity = 2.0

    def blocks(self, names):
        return dict.fromkeys(names, 0)

    def factors(self, samples):
        return (self.bound / samples.norms).clamp(max=1.0)


@dataclass(frozen=True)
class OwnPlan(Plan):
    share: float = 0.5

    def at(self, step, released, generator):
        return {}


def test_own_rules_and_plans_are_named_and_must_be_rebuilt_in_code():
    own = mechanism(clip=OwnRule(3.0), support=OwnPlan(0.25))
    described = json.loads(json.dumps(own.to_dict()))
    assert described["clip"] == {"rule": f"{__name__}:OwnRule", "settings": "OwnRule(bound=3.0)"}
    assert described["support"] == {"plan": f"{__name__}:OwnPlan", "settings": "OwnPlan(share=0.25)"}
    with pytest.raises(ConfigError, match="rebuild the mechanism in code"):
        Mechanism.from_dict(described)
    with pytest.raises(ConfigError, match="rebuild the mechanism in code"):
        Mechanism.from_dict({**described, "clip": {"rule": "Flat", "bound": 1.0}})


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "steps=0"),
        ({"steps": 2.5}, "steps=2.5"),
        ({"steps": True}, "steps=True"),
        ({"steps": "20"}, "steps='20'"),
        ({"adjacency": "swap"}, "adjacency='swap'.*add-remove"),
        ({"sampler": 0.01}, "sampler=0.01.*Poisson"),
        ({"sampler": Shuffle(100, 10)}, "shuffle sampler.*zero-out"),
        ({"sampler": Shuffle(100, 10), "adjacency": "replace-one"}, "shuffle sampler.*zero-out"),
        ({"clip": 1.0}, "clip=1.0.*Flat"),
        ({"clip": Schedule(((0, Flat(1.0)), (3, 2.0)))}, "clip=2.0"),
        ({"noise_multiplier": -1}, "noise_multiplier=-1"),
        ({"noise_multiplier": math.nan}, "noise_multiplier=nan"),
        ({"noise_multiplier": math.inf}, "noise_multiplier=inf"),
        ({"noise_multiplier": "1"}, "noise_multiplier='1'"),
        ({"noise_multiplier": True}, "noise_multiplier=True"),
        ({"noise_multiplier": Schedule(((0, 1.0), (5, -2.0)))}, "noise_multiplier=-2.0"),
        ({"noise_multiplier": Schedule(((0, 1.0), (5, None)))}, "noise_multiplier=None"),
        ({"unit": None}, "unit=None"),
        (
            {
                "sampler": Shuffle(100, 10),
                "adjacency": "zero-out",
                "noise_multiplier": Schedule(((0, 1.0), (5, 2.0))),
            },
            "shuffle.*Use Poisson",
        ),
    ],
)
def test_what_cannot_be_accounted_is_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        mechanism(**wrong)


def test_a_mechanism_does_not_change():
    with pytest.raises(FrozenInstanceError):
        mechanism().noise_multiplier = 0.1


def test_the_divisor_is_public():
    assert mechanism().expected_batch_size == 10
    assert mechanism(sampler=FullBatch(77)).expected_batch_size == 77


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"engine": "hooks"}, "ghost"), ({"microbatch": 0}, "above 0"), ({"microbatch": 1.5}, "above 0")],
)
def test_runtime_settings_are_checked(wrong, message):
    with pytest.raises(ConfigError, match=message):
        Runtime(**wrong)


# --- what will be spent -----------------------------------------------------------------------------------------------

PLANS = {
    "poisson": mechanism(),
    "full batch": mechanism(sampler=FullBatch(100)),
    "shuffle": mechanism(sampler=Shuffle(100, 30), steps=9, adjacency="zero-out"),
    "noise schedule": mechanism(noise_multiplier=Schedule(((0, 2.0), (5, 1.0), (12, 1.0), (30, 9.0)))),
    "noise stops": mechanism(noise_multiplier=Schedule(((0, 2.0), (15, 0.0)))),
}


@pytest.mark.parametrize("first_step", [0, 7])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_plan_is_what_recording_every_step_gives(plan, first_step):
    ledger = Ledger(plan.adjacency)
    for step in range(plan.steps):
        if step % plan.sampler.steps_per_event == 0:
            ledger.record(gaussian(plan.sampler, plan.noise_at(step)), PURPOSE, first_step + step)
    assert joined(plan.lines(first_step)) == ledger.lines


@settings(max_examples=100, deadline=None, derandomize=True)
@given(mechanisms())
def test_every_step_is_counted_once(plan):
    if plan.noise_multiplier is None:
        plan = replace(plan, noise_multiplier=1.0)
    assert sum(count for _, count in plan.events()) == math.ceil(plan.steps / plan.sampler.steps_per_event)


def test_no_noise_costs_infinity():
    assert mechanism(noise_multiplier=0).epsilon(DELTA) == math.inf
    assert PLANS["noise stops"].epsilon(DELTA) == math.inf
    assert mechanism(noise_multiplier=0).events() == [(dp.NonPrivateDpEvent(), 20)]


def test_without_noise_given_nothing_is_promised():
    with pytest.raises(ConfigError, match="calibrated"):
        mechanism(noise_multiplier=None).epsilon(DELTA)


def test_all_readings_are_those_of_single_calls():
    plan = mechanism()
    readings = plan.spent(DELTA)
    assert readings.epsilon == plan.epsilon(DELTA) == plan.epsilon(DELTA, "pld")
    assert readings.rdp_epsilon == plan.epsilon(DELTA, "rdp")
    assert readings.gdp_epsilon == plan.epsilon(DELTA, "gdp")
    assert (readings.delta, readings.adjacency) == (DELTA, "add-remove")


def test_unknown_accountants_are_refused():
    with pytest.raises(ConfigError, match="'pld', 'rdp' or 'gdp'"):
        mechanism().epsilon(DELTA, "moments")


@pytest.mark.parametrize("change", [{"clip": Normalized(3.0)}, {"support": Fixed({"w": False})}, {"unit": "person"}])
def test_clipping_masks_and_the_name_of_the_unit_cost_nothing(change):
    assert mechanism(**change).events() == mechanism().events()


# --- schedules --------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 30), unique=True, max_size=4), st.integers(1, 40))
def test_the_runs_of_a_schedule_are_its_values_step_by_step(starts, steps):
    schedule = Schedule(tuple((first, f"from {first}") for first in [0, *sorted(starts)]))
    unrolled = [value for _, count, value in schedule.runs(steps) for _ in range(count)]
    assert unrolled == [schedule.at(step) for step in range(steps)]
    assert [first for first, _, _ in schedule.runs(steps)] == [first for first, _ in schedule.pieces if first < steps]


def test_a_function_becomes_a_schedule_of_its_values():
    schedule = Schedule.of(lambda step: step // 3, steps=8)
    assert schedule.pieces == ((0, 0), (3, 1), (6, 2))
    assert schedule.map(lambda value: 10 * value).pieces == ((0, 0), (3, 10), (6, 20))


@pytest.mark.parametrize("firsts", [[], [1], [0, 5, 5], [0, 7, 3], [0, 2.5], ["0"], [-1, 0], [0, None]])
def test_schedules_start_at_zero_and_move_forward_in_whole_steps(firsts):
    with pytest.raises(ConfigError, match="schedule starts"):
        Schedule(tuple((first, 1.0) for first in firsts))


# --- secret randomness ------------------------------------------------------------------------------------------------


def test_the_secret_root_is_never_shown():
    secret = Entropy.fresh()
    assert repr(secret) == str(secret) == "Entropy(secret)"
    assert Entropy.fresh() != secret


@pytest.mark.parametrize("seed", [-1, 1.5, "0", None])
def test_an_insecure_seed_is_a_whole_number(seed):
    with pytest.raises(ConfigError, match="insecure_seed="):
        Entropy.insecure(seed)


@pytest.mark.parametrize("sigma", [1e-200, 1e-160, 1e-101, 1e101, 1e200])
def test_noise_that_accountants_cannot_square_is_refused(sigma):
    with pytest.raises(ConfigError, match=r"accountants cannot square it.*1e-100 to 1e\+100"):
        mechanism(noise_multiplier=sigma)
    with pytest.raises(ConfigError, match=r"noise_multiplier=.*accountants cannot square it"):
        mechanism(noise_multiplier=Schedule(((0, 1.0), (5, sigma))))
    with pytest.raises(ConfigError, match=r"joint noise multiplier=.*accountants cannot square it"):
        gaussian(Poisson(100, 10), sigma)


def test_a_question_with_hardly_any_noise_is_refused_before_it_is_asked():
    plan = mechanism(clip=Quantile(1.0, noise=1e-200))
    with pytest.raises(ConfigError, match=r"joint noise multiplier=.*accountants cannot square it"):
        plan.epsilon(DELTA)


SIGMAS = st.floats(min_value=1e-300, max_value=1e300)


@given(st.lists(SIGMAS, min_size=1, max_size=4))
def test_the_joint_multiplier_is_never_overstated(sigmas):
    """z^-2 = sum sigma^-2 in exact fractions."""
    z = Fraction(joint_multiplier(sigmas))
    exact = sum(1 / Fraction(sigma) ** 2 for sigma in sigmas)  # z^-2
    assert z**-2 >= exact
    assert z**-2 <= exact * (1 + Fraction(1, 10**12))


@pytest.mark.parametrize("ask", ["calibrated(3, 1e-6)", "scaled(1.0).spent(1e-6)"])
def test_a_plan_that_cannot_be_composed_is_refused_before_an_accountant_is_loaded(ask):
    code = f"""
import sys
from noisewise.errors import ConfigError
from noisewise.mechanism import Mechanism
from noisewise.sampling import Poisson
try:
    Mechanism(sampler=Poisson(50_000, 256), steps=10**8).{ask}
except ConfigError as error:
    print(error, "dp_accounting" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("100,000,000 releases: more than 1,000,000")
    assert done.stdout.split()[-1] == "False"
