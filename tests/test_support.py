"""Which coordinates learn: checks, patterns, the JSON form."""

import itertools
import json

import pytest
import torch

from helpers.plans import HALF, WEIGHTS, Drawn
from noisewise import support
from noisewise.errors import ConfigError
from noisewise.mechanism import Mechanism
from noisewise.repairs.freezing import Stages
from noisewise.repairs.random_sparsification import RandomMasks
from noisewise.sampling import Poisson
from noisewise.support import (
    EVERYTHING,
    Fixed,
    Plan,
    Together,
    check,
    intersection,
    kept,
    kept_of_each,
    learning,
    only,
    together,
)

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


ODD = torch.arange(12).view(4, 3) % 2 == 1


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


def test_kept_and_learning_coordinates_are_counted():
    assert kept({"a": HALF, "b": False}, WEIGHTS) == 6
    assert kept({"b": True}, WEIGHTS) == 17
    masks = {"a": HALF, "b": torch.arange(5) == 2}
    assert kept_of_each(masks, WEIGHTS) == {"a": 6, "b": 1}
    assert kept_of_each({"b": False, "of another model": HALF}, WEIGHTS) == {"a": 12, "b": 0}
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


def test_plans_choose_by_their_order_however_they_are_joined():
    fixed, stages, masks = Fixed({"b": False}), Stages((1, 2), (0.4, 0.7)), RandomMasks(0.5, 3, 3)
    for given in itertools.permutations((fixed, stages, masks)):
        assert support.plans_of(together(*given)) == (fixed, stages, masks)
