"""The course of a support through a run: asked once a period, saved, counted, held."""

import pytest
import torch

from helpers.plans import HALF, WEIGHTS, Drawn
from noisewise.errors import ConfigError, PrivacyError
from noisewise.repairs.random_sparsification import RandomMasks
from noisewise.support import EVERYTHING, Fixed, Together, together
from noisewise.training.course import Course

# --- plans together ---------------------------------------------------------------------------------------------------


class Zeroing(Fixed):
    """A fixed support that sets the rest to zero."""

    masked = "zero"


def by_name(support):
    return {
        name: mask if isinstance(mask, bool) else mask.flatten().int().tolist()
        for name, mask in sorted(support.items())
    }


def test_a_plan_is_asked_once_a_period_and_sees_what_others_leave():
    plan = Drawn(length=3)
    course = Course(together(plan, Fixed({"a": HALF})), 0)
    masks = [course.at(step, WEIGHTS) for step in range(7)]
    assert [step for step, _ in plan.asked] == [0, 3, 6]
    assert all(torch.equal(released.within["a"], HALF) for _, released in plan.asked)
    assert plan.asked[0][1].previous is None
    assert plan.asked[1][1].previous is not None
    assert masks[0] is masks[2]
    assert masks[0] is not masks[3]
    assert not any(bool((mask["a"] & ~HALF).any()) for mask in masks)


def test_parameters_that_need_no_gradient_are_frozen():
    weights = {**WEIGHTS, "b": torch.zeros(5)}
    assert Course(EVERYTHING, 0).at(0, weights) == {"b": False}


def test_masks_that_leave_everything_in_are_as_none():
    course = Course(Fixed({"a": torch.ones(4, 3, dtype=torch.bool)}), 0)
    assert course.at(0, WEIGHTS) == {"a": True}


def test_a_wrong_support_of_a_plan_is_refused():
    with pytest.raises(ConfigError, match="has shape"):
        Course(Fixed({"a": HALF.T}), 0).at(0, WEIGHTS)


def test_a_course_that_was_saved_goes_on_as_it_was():
    """Masks, memory, coins and what was sent: as if nothing had happened between."""

    def walk(course, steps):
        found = []
        for step in steps:
            found.append(by_name(course.at(step, WEIGHTS)))
            course.observe(step, {"a": torch.full((4, 3), float(step)), "b": torch.ones(5)}, None, 0.1)
        return found

    plan = together(Drawn(length=3), Fixed({"b": False}))
    whole, first = Course(plan, 7), Course(plan, 7)
    expected = walk(whole, range(8))
    begun = walk(first, range(4))
    again = Course(plan, 7)
    again.load(first.save(), WEIGHTS, 4)
    assert begun + walk(again, range(4, 8)) == expected
    for one, other in zip(again.standing, whole.standing, strict=True):
        assert one.period == other.period
        assert one.memory.keys() == other.memory.keys()
        assert all(torch.equal(value, other.memory[key]) for key, value in one.memory.items())
    assert (again.values, again.indices, again.masks) == (whole.values, whole.indices, whole.masks)
    assert walk(Course(plan, 8), range(8)) != expected


def test_a_course_of_other_plans_is_refused():
    saved = Course(together(Drawn(), Fixed({"b": False})), 0).save()
    with pytest.raises(ValueError, match="2 plans were saved, there are 1"):
        Course(Drawn(), 0).load(saved, WEIGHTS, 0)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("standing", 0, "period"), 5, "stands at period 5 after 3 steps"),
        (("standing", 0, "support"), {"a": ~HALF}, "masks of Fixed are not those of its seed"),
        (("standing", 1, "support"), {"a": HALF, "b": True}, "masks of RandomMasks are not those of its seed"),
        (("standing", 1, "memory"), {"sum a": 3.0}, r"remembers \[3.0\]"),
        (("sent", 0), None, "were sent in 3 steps"),
        (("sent", 1), 10**6, "were sent in 3 steps"),
        (("sent", 2), 9, "were sent in 3 steps"),
    ],
)
def test_what_cannot_have_been_saved_is_refused(place, value, message):
    plan = together(Fixed({"a": HALF}), RandomMasks(0.5, 6, 2))
    course = Course(plan, 3)
    for step in range(3):
        course.at(step, WEIGHTS)
        course.observe(step, {}, None, 1.0)
    saved = course.save()
    Course(plan, 3).load(saved, WEIGHTS, 3)
    target = saved
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    with pytest.raises(ValueError, match=message):
        Course(plan, 3).load(saved, WEIGHTS, 3)


def test_what_is_sent_is_counted():
    course = Course(Fixed({"a": HALF, "b": False}), 0)
    for step in range(3):
        course.at(step, WEIGHTS)
        course.observe(step, {}, None, 1.0)
    assert (course.values, course.indices, course.masks) == (3 * 6, 6, 1)


@pytest.mark.parametrize("kind", [Fixed, Zeroing])
def test_masked_coordinates_are_put_back_or_set_to_zero(kind):
    weights = {"a": torch.arange(1.0, 13.0).view(4, 3).requires_grad_()}
    course = Course(kind({"a": HALF}), 0)
    course.begin(0, weights)
    with torch.no_grad():
        weights["a"].mul_(-3)  # whatever an optimizer does
    course.hold(weights)
    rest = torch.zeros(6) if kind is Zeroing else torch.arange(7.0, 13.0)
    assert torch.equal(weights["a"].detach().flatten(), torch.cat([-3 * torch.arange(1.0, 7.0), rest]))
    average = {"a": torch.ones(4, 3)}
    course.prune(average)
    assert torch.equal(average["a"], HALF.float() if kind is Zeroing else torch.ones(4, 3))


def test_a_plan_that_ranks_without_noise_must_be_shown_gradients_without_noise():
    class Blind(Drawn):
        unnoised = True

    course = Course(Blind(), 0)
    course.at(0, WEIGHTS)
    assert course.unnoised
    with pytest.raises(PrivacyError, match="ranks by gradients without noise, which this step does not give"):
        course.observe(0, {"a": torch.zeros(4, 3)}, None, 1.0)
    course.observe(0, {"a": torch.zeros(4, 3)}, {"a": torch.ones(4, 3)}, 1.0)
    assert course.standing[0].memory["sum"].sum() == 12


def test_plans_that_act_together_draw_independently():
    """Two plans of the same kind are two draws, not one twice."""
    first, second = Drawn(), Drawn()
    course = Course(Together((first, second)), seed=3)
    course.at(0, WEIGHTS)
    one, other = (standing.support["a"] for standing in course.standing)
    assert not torch.equal(one, other)
    assert not torch.equal(one, ~other)
