"""The checks that a user's own rule or support must pass: right ones pass, wrong ones are shown where they fail."""

from dataclasses import dataclass

import pytest
import torch

from helpers.oracles import PROBLEMS, RULES, clipped_sum_by_hand, gradients_of, relative_error, rules
from noisewise.clipping import Flat
from noisewise.errors import ConfigError, PrivacyError
from noisewise.persample import clipped_sum
from noisewise.promises import NAMES
from noisewise.support import EVERYTHING, Fixed, Plan
from noisewise.testing import check_clip, check_support, reveal

PARAMETERS = {"a": torch.zeros(3, 4), "b": torch.zeros(5)}


@pytest.mark.parametrize("bound", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_the_package_passes(rule, bound):
    assert check_clip(rules(list(NAMES), bound)[rule]) is None


@dataclass(frozen=True)
class Rule:
    """`factors` by formula."""

    formula: object
    sensitivity: float = 1.0
    count: int = 1

    def blocks(self, names):
        return {name: k % self.count for k, name in enumerate(names)}

    def factors(self, samples):
        return self.formula(samples.norms)


def flat(n):
    return (1 / n).clamp(max=1)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Rule(lambda n: flat(n) * 1.001), "contributes 1.001, more than the sensitivity 1"),
        (Rule(torch.ones_like), r"a unit with norms \[\d+\.0\] contributes 1e\+12"),
        (Rule(lambda n: torch.where(n > 1e11, torch.ones_like(n), flat(n))), "contributes"),
        (Rule(flat, count=3), "more than the sensitivity 1"),
        (Rule(lambda n: 1 / n), r"not finite for norms \[0.0\]"),
        (Rule(lambda n: flat(n)[:, :1]), r"factors have shape \[1, 1\]"),
        (Rule(lambda n: flat(n) * (n < n.median())), "changes"),
        (Rule(lambda n: flat(n) / n.shape[1]), "changes when the others are left out"),
        (Rule(lambda n: flat(n) * torch.linspace(0, 1, n.shape[1])), "changes with the other units"),
    ],
)
def test_a_wrong_rule_is_shown_where_it_fails(rule, message):
    with pytest.raises(PrivacyError, match=message):
        check_clip(rule)


def test_a_rule_of_several_blocks_passes_with_their_joint_sensitivity():
    assert check_clip(Rule(flat, sensitivity=3**0.5, count=3)) is None


@dataclass(frozen=True)
class Own(Plan):
    """`at` by formula."""

    formula: object

    def at(self, step, released, generator):
        return self.formula(step, released, generator)


def random_mask(step, released, generator):
    return {"a": torch.rand(3, 4, generator=generator) < 0.5}


@pytest.mark.parametrize(
    "plan",
    [
        EVERYTHING,
        Fixed({"a": False}),
        Own(random_mask),
        Own(lambda step, released, generator: {"b": step > 3}),
        Own(lambda step, released, generator: {"a": released.weights["a"].abs() < 1}),
    ],
)
def test_plans_that_look_at_public_things_pass(plan):
    assert check_support(plan, PARAMETERS) is None


def test_a_plan_that_draws_its_own_randomness_is_refused():
    own = torch.Generator().manual_seed(0)  # two masks of twelve fresh coins would be the same in one of 4,096 runs
    with pytest.raises(PrivacyError, match=r"step 0 gives different masks.*Draw from the generator"):
        check_support(Own(lambda step, released, generator: {"a": torch.rand(3, 4, generator=own) < 0.5}), PARAMETERS)


def test_a_plan_with_wrong_masks_is_refused():
    with pytest.raises(ConfigError, match="shape"):
        check_support(Own(lambda step, released, generator: {"a": torch.ones(3, dtype=torch.bool)}), PARAMETERS)


def test_reveal_shows_the_sum_of_made_up_data():
    bounded = clipped_sum(*PROBLEMS["linear-2d"].make(), Flat(0.5)).grads
    assert relative_error(reveal(bounded), clipped_sum_by_hand(gradients_of("linear-2d"), Flat(0.5), {})[0]) < 1e-9
