"""Values that change at known steps."""

import pytest

from noisewise.clipping import Flat, Global
from noisewise.errors import ConfigError
from noisewise.mechanism import Mechanism
from noisewise.sampling import Poisson
from noisewise.schedule import Schedule, at, values

STEPS = Schedule(((0, "a"), (3, "b"), (7, "c")))


def test_the_value_in_force_at_each_step():
    assert "".join(STEPS.at(step) for step in range(10)) == "aaabbbbccc"


@pytest.mark.parametrize(
    ("steps", "runs"),
    [
        (10, [(0, 3, "a"), (3, 4, "b"), (7, 3, "c")]),
        (8, [(0, 3, "a"), (3, 4, "b"), (7, 1, "c")]),
        (7, [(0, 3, "a"), (3, 4, "b")]),
        (5, [(0, 3, "a"), (3, 2, "b")]),
        (1, [(0, 1, "a")]),
    ],
)
def test_runs_cover_the_plan_exactly(steps, runs):
    assert list(STEPS.runs(steps)) == runs
    assert sum(count for _, count, _ in runs) == steps
    assert all(STEPS.at(step) == value for first, count, value in runs for step in range(first, first + count))


def test_a_function_is_tabulated():
    schedule = Schedule.of(lambda step: step // 4, 10)
    assert schedule.pieces == ((0, 0), (4, 1), (8, 2))
    assert [schedule.at(step) for step in range(10)] == [step // 4 for step in range(10)]


def test_map_keeps_the_steps():
    assert STEPS.map(str.upper).pieces == ((0, "A"), (3, "B"), (7, "C"))


def test_a_plain_value_is_its_own_schedule():
    assert at(1.5, 100) == 1.5
    assert at(STEPS, 4) == "b"
    assert values(1.5) == (1.5,)
    assert values(STEPS) == ("a", "b", "c")


@pytest.mark.parametrize("firsts", [(), (1,), (0, 0), (0, 5, 3), (0, 3, 3), (-1, 0)])
def test_starts_that_do_not_move_forward_from_0_are_refused(firsts):
    with pytest.raises(ConfigError, match=r"schedule starts \[.*each later one larger"):
        Schedule(tuple((first, None) for first in firsts))


def test_any_rule_may_follow_any_other():
    clip = Schedule(((0, Flat(1.0)), (2, Global(1.0, 210.0))))
    mechanism = Mechanism(sampler=Poisson(n=10, batch_size=1), steps=4, clip=clip, noise_multiplier=1.0)
    assert [mechanism.clip_at(step) for step in range(4)] == [
        Flat(1.0),
        Flat(1.0),
        Global(1.0, 210.0),
        Global(1.0, 210.0),
    ]
