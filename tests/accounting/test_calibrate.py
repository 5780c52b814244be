"""A budget is met and never exceeded, for every sampler, adjacency and schedule; what cannot be met is refused."""

import math

import dp_accounting as dp
import pytest

from noisewise.accounting import calibrate
from noisewise.errors import ConfigError
from noisewise.mechanism import Mechanism
from noisewise.sampling import FullBatch, Poisson, Shuffle
from noisewise.schedule import Schedule

DELTA = 1e-5
EVALUATIONS = 8  # of PLD: what makes calibration a matter of seconds


def poisson(steps=50, **settings):
    return Mechanism(sampler=Poisson(n=1000, batch_size=300), steps=steps, **settings)


def full_batch(steps=50, **settings):
    return Mechanism(sampler=FullBatch(n=300), steps=steps, **settings)


CASES = [
    ("poisson, small epsilon", poisson(), 0.1),
    ("poisson, epsilon 1", poisson(), 1.0),
    ("poisson, epsilon 3", poisson(), 3.0),
    ("poisson, large epsilon", poisson(), 25.0),
    ("poisson, one step", poisson(steps=1), 0.3),
    ("poisson, everybody", Mechanism(sampler=Poisson(n=50, batch_size=50), steps=5), 2.0),
    ("poisson, zero-out", poisson(adjacency="zero-out"), 0.7),
    ("poisson, replace-one", poisson(adjacency="replace-one"), 2.0),
    ("full batch", full_batch(), 2.0),
    ("full batch, zero-out", full_batch(adjacency="zero-out"), 0.5),
    ("full batch, replace-one", full_batch(adjacency="replace-one"), 4.0),
    ("shuffle", Mechanism(sampler=Shuffle(n=300, batch_size=32), steps=45, adjacency="zero-out"), 3.0),
    ("noise schedule", poisson(noise_multiplier=Schedule(((0, 2.0), (20, 1.0), (40, 3.0)))), 2.0),
]


@pytest.mark.parametrize(("mechanism", "epsilon"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_meets_the_budget_within_two_permille_and_never_exceeds_it(mechanism, epsilon, monkeypatch):
    evaluations, evaluate = [], calibrate.pld_epsilon
    monkeypatch.setattr(calibrate, "pld_epsilon", lambda *args: evaluations.append(1) or evaluate(*args))
    calibrated = mechanism.calibrated(epsilon, DELTA)
    assert 0.998 * epsilon <= calibrated.epsilon(DELTA) <= epsilon
    assert len(evaluations) <= EVALUATIONS


def test_only_the_noise_changes():
    mechanism = full_batch(adjacency="zero-out", unit="person")
    before, after = mechanism.to_dict(), mechanism.calibrated(2.0, DELTA).to_dict()
    assert before.pop("noise_multiplier") is None
    assert after.pop("noise_multiplier") > 0
    assert before == after


def test_earlier_noise_does_not_matter():
    assert full_batch(noise_multiplier=17.0).calibrated(2.0, DELTA) == full_batch().calibrated(2.0, DELTA)


def test_a_noise_schedule_keeps_its_shape():
    shape = Schedule(((0, 2.0), (20, 1.0), (40, 3.0)))
    calibrated = full_batch(noise_multiplier=shape).calibrated(2.0, DELTA).noise_multiplier
    factors = [scaled / original for (_, scaled), (_, original) in zip(calibrated.pieces, shape.pieces, strict=True)]
    assert [first for first, _ in calibrated.pieces] == [0, 20, 40]
    assert factors == pytest.approx([factors[0]] * 3, rel=1e-12)


def test_full_batch_noise_is_the_exact_one():
    sigma = full_batch(steps=1).calibrated(1.0, DELTA).noise_multiplier
    assert dp.get_epsilon_gaussian(sigma, DELTA) == pytest.approx(1.0, rel=2e-3)


@pytest.mark.parametrize(("steps", "releases"), [(1, 1), (10, 1), (11, 2), (45, 5), (50, 5)])
def test_shuffling_is_one_plain_gaussian_per_begun_epoch(steps, releases):
    sampler = Shuffle(n=300, batch_size=32)  # 10 batches per epoch, the last one smaller
    mechanism = Mechanism(sampler=sampler, steps=steps, noise_multiplier=4.0, adjacency="zero-out")
    assert mechanism.events() == [(dp.GaussianDpEvent(4.0), releases)]
    exact = dp.get_epsilon_gaussian(4.0 / math.sqrt(releases), DELTA)
    assert mechanism.epsilon(DELTA) == pytest.approx(exact, rel=1e-3)


def test_shuffling_is_never_accounted_as_poisson():
    settings = {"steps": 45, "noise_multiplier": 4.0, "adjacency": "zero-out"}
    shuffled = Mechanism(sampler=Shuffle(n=300, batch_size=32), **settings)
    sampled = Mechanism(sampler=Poisson(n=300, batch_size=32), **settings)
    assert shuffled.epsilon(DELTA) > 1.5 * sampled.epsilon(DELTA)


@pytest.mark.parametrize("epsilon", [0, -1.0, math.nan, math.inf, -math.inf, "3", None, True])
def test_epsilon_must_be_a_finite_number_above_zero(epsilon):
    with pytest.raises(ConfigError, match="above 0; 1 to 8 is customary") as caught:
        poisson().calibrated(epsilon, DELTA)
    assert f"epsilon={epsilon!r}" in str(caught.value)


@pytest.mark.parametrize("delta", [0, 1, -0.1, 2.0, math.nan, "1e-5", None])
def test_delta_must_be_a_probability(delta):
    with pytest.raises(ConfigError, match="customary") as caught:
        poisson().calibrated(1.0, delta)
    assert f"delta={delta!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("mechanism", "epsilon", "delta"),
    [
        (poisson(), 1e-8, 1e-6),
        (full_batch(steps=1000), 1e-9, 1e-12),
        (full_batch(steps=1000, adjacency="replace-one"), 1e-9, 1e-12),
    ],
)
def test_out_of_reach_is_said_with_a_remedy(mechanism, epsilon, delta):
    with pytest.raises(ConfigError, match=r"out of reach.*fewer steps") as caught:
        mechanism.calibrated(epsilon, delta)
    assert str(epsilon) in str(caught.value)
    assert str(delta) in str(caught.value)


def test_a_schedule_without_noise_somewhere_meets_no_budget():
    with pytest.raises(ConfigError, match="Make every value above 0"):
        poisson(noise_multiplier=Schedule(((0, 1.0), (5, 0.0)))).calibrated(3.0, DELTA)


def test_an_epsilon_that_hardly_any_noise_meets_is_met_from_below():
    mechanism = full_batch(steps=1).calibrated(1e9, DELTA)
    assert mechanism.noise_multiplier <= 1e-2
    assert mechanism.epsilon(DELTA) <= 1e9
