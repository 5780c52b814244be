"""Which coordinates learn: checks, patterns, the JSON form."""

import itertools
import json
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from noisewise import support
from noisewise.errors import ConfigError, PrivacyError
from noisewise.mechanism import Mechanism
from noisewise.repairs.freezing import Stages
from noisewise.repairs.random_sparsification import RandomMasks
from noisewise.sampling import Poisson
from noisewise.support import EVERYTHING, Fixed, Plan, Together, check, intersection, kept, learning, only, together
from noisewise.training.course import Course

PARAMETERS = {"a.weight": torch.zeros(3, 4), "a.bias": torch.zeros(3), "b": torch.zeros(())}
MASKS = {
    "some": torch.tensor([[True, False, False, True]] * 3),
    "all": torch.ones(3, 4, dtype=torch.bool),
    "none": torch.zeros(3, 4, dtype=torch.bool),
    "first": torch.arange(12).view(3, 4) < 1,
    "transposed": (torch.arange(12).view(4, 3) % 2 == 0).T,
}


def plan(fixed):
    return Mechanism(sampler=Poisson(n=10, batch_size=2), steps=3, noise_multiplier=1.0, support=fixed)


@pytest.mark.parametrize("mask", [True, False, *MASKS.values()])
def test_truth_values_and_masks_of_the_right_shape_pass(mask):
    assert check({"a.weight": mask}, PARAMETERS) is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"c": True}, r"names 'c', which is no parameter.*Parameters: \['a\.weight', 'a\.bias', 'b'\]"),
        ({"a.bias": torch.ones(3)}, r"support\['a\.bias'\] is torch\.float32: must be True, False or a boolean tensor"),
        ({"a.bias": torch.ones(3, dtype=torch.uint8)}, r"torch\.uint8"),
        ({"a.bias": 1}, r"is int: must be True, False"),
        ({"a.bias": None}, r"is NoneType"),
        ({"a.bias": [True, True, False]}, r"is list"),
        ({"a.weight": torch.ones(4, 3, dtype=torch.bool)}, r"has shape \[4, 3\], the parameter \[3, 4\]"),
        ({"a.weight": torch.ones(3, 1, dtype=torch.bool)}, r"has shape \[3, 1\]"),
    ],
)
def test_anything_else_is_refused_by_name(entry, message):
    with pytest.raises(ConfigError, match=message):
        check(entry, PARAMETERS)


def test_only_freezes_all_parameters_that_no_pattern_names():
    names = ["conv.weight", "conv.bias", "fc.weight", "fc.bias"]
    assert only(names, "fc.*").support == {"conv.weight": False, "conv.bias": False}
    assert only(iter(names), "*.bias", "fc.weight").support == {"conv.weight": False}
    assert only(names, "*").support == {}


def test_patterns_that_match_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"patterns \['head\.\*'\] match none of the parameters \['fc.weight'\]"):
        only(["fc.weight"], "head.*")


def test_a_fixed_support_is_the_same_at_every_step():
    fixed = Fixed({"a": MASKS["some"]})
    assert isinstance(fixed, Plan)
    assert fixed.at(0, {}, torch.Generator()) is fixed.at(1000, {}, torch.Generator())
    assert EVERYTHING.at(5, {}, torch.Generator()) == {}


def test_supports_are_equal_if_their_masks_are():
    one, same = Fixed({"a": MASKS["some"], "b": False}), Fixed({"a": MASKS["some"].clone(), "b": False})
    assert one == same
    assert hash(one) == hash(same)
    assert one != Fixed({"a": MASKS["some"], "b": True})
    assert one != Fixed({"a": ~MASKS["some"], "b": False})
    assert one != {"a": MASKS["some"], "b": False}


@pytest.mark.parametrize("mask", MASKS)
def test_masks_survive_json(mask):
    mechanism = plan(Fixed({"a": MASKS[mask], "b": False, "c": True}))
    again = Mechanism.from_dict(json.loads(json.dumps(mechanism.to_dict())))
    assert again == mechanism
    assert torch.equal(again.support.support["a"], MASKS[mask])
    assert again.support.support["b"] is False
    assert again.support.support["c"] is True


def test_a_mask_of_no_dimension_survives_json():
    for value in (True, False):
        mechanism = plan(Fixed({"b": torch.tensor(value)}))
        again = Mechanism.from_dict(json.loads(json.dumps(mechanism.to_dict())))
        assert again.support.support["b"].item() is value


def test_a_long_mask_has_a_short_form():
    """A block that is frozen as a whole costs a few numbers, not one for each coordinate."""
    mask = torch.arange(100_000) < 50_000
    assert len(json.dumps(plan(Fixed({"a": mask})).to_dict())) < 1000


def test_the_module_is_light():
    assert "torch" not in vars(support)


# --- plans together ---------------------------------------------------------------------------------------------------

WEIGHTS = {"a": torch.zeros(4, 3, requires_grad=True), "b": torch.zeros(5, requires_grad=True)}
HALF = torch.arange(12).view(4, 3) < 6
ODD = torch.arange(12).view(4, 3) % 2 == 1


@dataclass(frozen=True)
class Drawn(Plan):
    """Each coordinate by a coin, anew every `length` steps; writes down what it was asked."""

    length: int = 1
    order: ClassVar[int] = 3
    asked: list = field(default_factory=list, compare=False)

    def period(self, step):
        return step // self.length

    def at(self, step, released, generator):
        self.asked.append((step, released))
        return {"a": torch.rand(4, 3, generator=generator) < 0.5}

    def observe(self, memory, observed, generator):
        return {"sum": memory.get("sum", 0) + observed.gradient["a"], "coin": torch.rand(1, generator=generator)}


class Zeroing(Fixed):
    """A fixed support that sets the rest to zero."""

    masked = "zero"


def by_name(support):
    return {
        name: mask if isinstance(mask, bool) else mask.flatten().int().tolist()
        for name, mask in sorted(support.items())
    }


def test_what_learns_is_what_all_let_learn():
    found = intersection([{"a": HALF, "b": True}, {"a": ODD, "c": False}, {"c": HALF, "d": True}])
    expected = {"a": HALF & ODD, "b": True, "c": False, "d": True}
    assert by_name(found) == by_name(expected)
    assert by_name(intersection([{"a": False}, {"a": HALF}])) == by_name(intersection([{"a": HALF}, {"a": False}]))
    assert intersection([]) == {}


def test_fixed_supports_become_one_and_choose_first():
    plan = Drawn()
    joined = together(plan, Fixed({"a": HALF}), EVERYTHING, Fixed({"a": ODD}))
    assert isinstance(joined, Together)
    fixed, last = joined.plans
    assert by_name(fixed.support) == by_name({"a": HALF & ODD})
    assert last is plan
    assert together(EVERYTHING, EVERYTHING) == EVERYTHING
    assert together(EVERYTHING, plan) is plan


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


def test_kept_and_learning_coordinates_are_counted():
    assert kept({"a": HALF, "b": False}, WEIGHTS) == 6
    assert kept({"b": True}, WEIGHTS) == 17
    left = learning(WEIGHTS, {"a": ODD})
    assert left["a"].tolist() == ODD.flatten().tolist()
    assert left["b"].tolist() == [True] * 5


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"plan": "os:system", "settings": {}}, "cannot be read back"),
        ({"plan": "noisewise.training.state:State", "settings": {}}, "cannot be read back"),
        ({"plan": "noisewise.repairs.freezing:Frost", "settings": {}}, "unknown to this version"),
        ({"plan": "noisewise.repairs.frost:Stages", "settings": {}}, "unknown to this version"),
        ({"plan": "noisewise.repairs.freezing:StagewiseFreezing", "settings": {}}, "is no plan"),
        ({"plan": "noisewise.repairs.freezing:smallest", "settings": {}}, "is no plan"),
        ({"plan": "noisewise.repairs.freezing:Stages", "settings": {"first": [1], "ice": 2}}, "are not its own"),
    ],
)
def test_plans_from_elsewhere_are_not_read_back(raw, message):
    with pytest.raises(ConfigError, match=message):
        support.from_dict(raw)


def test_a_plan_of_ones_own_is_written_down_but_not_read_back():
    written = support.to_dict(together(Drawn(3), Fixed({"b": False})))
    assert "Drawn(length=3" in written["together"][1]["settings"]
    with pytest.raises(ConfigError, match="rebuild the mechanism in code"):
        support.from_dict(written)


def test_plans_that_act_together_draw_independently():
    """Two plans of the same kind are two draws, not one twice."""
    first, second = Drawn(), Drawn()
    course = Course(Together((first, second)), seed=3)
    course.at(0, WEIGHTS)
    one, other = (standing.support["a"] for standing in course.standing)
    assert not torch.equal(one, other)
    assert not torch.equal(one, ~other)


def test_plans_choose_by_their_order_however_they_are_joined():
    fixed, stages, masks = Fixed({"b": False}), Stages((1, 2), (0.4, 0.7)), RandomMasks(0.5, 3, 3)
    for given in itertools.permutations((fixed, stages, masks)):
        assert support.plans_of(together(*given)) == (fixed, stages, masks)
