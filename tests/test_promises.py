"""Rules of one's own: right ones pass and are used unit by unit, wrong ones are shown where they fail, before use."""

import gc
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from helpers.oracles import PROBLEMS
from noisewise import Mechanism, Poisson, Schedule, promises
from noisewise.adaptive import GroupBounds, Quantile
from noisewise.clipping import Flat, PerLayer, Samples, per_layer
from noisewise.errors import ConfigError, PrivacyError
from noisewise.persample import clipped_sum
from noisewise.promises import blocks_of, check_own_rules, check_rule, factors_of, own, query_of
from noisewise.testing import check_clip, reveal

NORMS = torch.tensor([[0.0, 0.3, 1.0, 4.0, 1e6]], dtype=torch.float64)


@dataclass(frozen=True)
class Own:
    """A rule by formula of its samples."""

    formula: object
    sensitivity: float = 1.0

    def blocks(self, names):
        return dict.fromkeys(names, 0)

    def factors(self, samples):
        return self.formula(samples)


def flat(samples):
    return (1 / samples.norms).clamp(max=1)


class Counting:
    """Gives less every time."""

    def __init__(self):
        self.calls = 0

    def __call__(self, samples):
        self.calls += 1
        return flat(samples) / self.calls


def in_place(samples):
    samples.norms.clamp_(max=1.0)
    return torch.ones_like(samples.norms)


def in_company_of_groups(samples):
    return flat(samples) / (1 if samples.groups is None else samples.groups.unique().numel())


WRONG = {
    "too much": (lambda s: 1.001 * flat(s), "contributes 1.001, more than the sensitivity 1"),
    "too much in float32 only": (
        lambda s: flat(s) * (1.001 if s.norms.dtype == torch.float32 else 1.0),
        "contributes 1.001",
    ),
    "negative and too much": (lambda s: -1.001 * flat(s), "contributes 1.001"),
    "infinite at 0": (lambda s: 1 / s.norms, r"not finite for norms \[0.0\]"),
    "NaN": (lambda s: flat(s) * math.nan, "not finite"),
    "a type of its own": (lambda s: flat(s).float(), "factors are torch.float32 on cpu, norms torch.float64"),
    "whole numbers": (lambda s: (s.norms <= 1).long(), "factors are torch.int64"),
    "elsewhere": (lambda s: flat(s).to("meta"), "on meta"),
    "no tensor": (lambda s: flat(s).tolist(), "factors have shape list"),
    "one for all": (lambda s: flat(s)[:, :1], r"factors have shape \[1, 1\]"),
    "in place": (in_place, "changes the norms it is given"),
    "state": (Counting(), "asked twice, it gives other factors"),
    "chance": (lambda s: flat(s) * torch.rand(()).to(s.norms.dtype), "asked twice"),
    "by the median": (lambda s: flat(s) * (s.norms < s.norms.median()), "changes"),
    "by the number": (lambda s: flat(s) / s.norms.shape[1], "changes when the others are left out"),
    "by the place": (
        lambda s: flat(s) * torch.linspace(0, 1, s.norms.shape[1]).to(s.norms.dtype),
        "changes with the other",
    ),
    "by the others' groups": (in_company_of_groups, "changes when the others are left out"),
    "by the largest": (lambda s: flat(s) * (s.norms.max() > 1e11), "changes when the others are left out"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_shown_where_it_fails(name):
    formula, message = WRONG[name]
    with pytest.raises(PrivacyError, match=message):
        check_rule(Own(formula))


@pytest.mark.parametrize(
    "formula",
    [
        flat,
        lambda s: -flat(s),
        lambda s: torch.zeros_like(s.norms),
        lambda s: flat(s) * (1 if s.groups is None else 1 / (1 + s.groups).to(s.norms.dtype)),
    ],
)
def test_right_rules_pass(formula):
    assert check_rule(Own(formula)) is None
    assert check_clip(Own(formula)) is None


def test_rules_that_need_groups_are_checked_with_them():
    assert check_rule(GroupBounds("team", 5, bounds=(1.0, 2.0, 0.5, 1.5, 1.0))) is None


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, 1e-40, 1e40, math.inf, math.nan])
def test_a_sensitivity_that_sums_cannot_hold_is_refused(sensitivity):
    with pytest.raises(ConfigError, match="sensitivity"):
        check_rule(Own(lambda s: 0 * s.norms, sensitivity))


@pytest.mark.parametrize("place", [-1, 0.5, True, None, "a"])
def test_blocks_are_whole_numbers_from_0(place):
    rule = Own(flat)
    object.__setattr__(rule, "blocks", lambda names: dict.fromkeys(names, place))
    with pytest.raises(PrivacyError, match=r"places \['w'\] nowhere"):
        blocks_of(rule, ["w"])


# -------------------------------------------------------------------------------------------------------- one's own


class Sub(Flat):
    """A subclass may compute anything."""


def test_what_is_ones_own():
    assert not own(Flat(1.0))
    assert not own(per_layer(["a"], Flat(1.0)))
    assert not own(Quantile(1.0))
    assert own(Own(flat))
    assert own(Sub(1.0))
    assert own(PerLayer({"a": Flat(1.0), "b": Own(flat)}))


def test_every_rule_of_a_schedule_is_checked():
    wrong = Own(lambda s: 2 * flat(s))
    check_own_rules(Schedule(((0, Flat(1.0)), (5, Own(flat)))))
    with pytest.raises(PrivacyError, match="contributes 2"):
        check_own_rules(Schedule(((0, Flat(1.0)), (5, wrong))))
    with pytest.raises(PrivacyError, match="contributes 2"):
        check_own_rules(Mechanism(sampler=Poisson(10, 5), clip=wrong, steps=2).clip)


def test_rules_of_the_package_are_not_checked_again(monkeypatch):
    monkeypatch.setattr(promises, "check_rule", lambda rule, names: pytest.fail("checked"))
    check_own_rules(Flat(1.0))
    check_own_rules(per_layer(["a"], Quantile(1.0)), ["a"])


def test_a_rule_that_died_is_forgotten():
    gc.collect()
    before = len(promises._checked)
    rule = Own(flat)
    check_own_rules(rule)
    assert len(promises._checked) == before + 1
    del rule
    gc.collect()
    assert len(promises._checked) == before


class Slotted:
    """No weak reference to it can be had."""

    __slots__ = ()
    sensitivity = 1.0

    def blocks(self, names):
        return dict.fromkeys(names, 0)

    def factors(self, samples):
        return flat(samples)


def test_a_rule_that_cannot_be_remembered_is_checked_every_time():
    assert check_own_rules(Slotted()) is None
    assert check_own_rules(Slotted()) is None


def test_units_are_shown_alone_and_as_copies():
    seen = []

    def formula(samples):
        seen.append(samples.norms.shape[1])
        samples.norms.mul_(0)
        return torch.zeros_like(samples.norms)

    norms = NORMS.clone()
    assert not factors_of(Own(formula), Samples(norms)).any()
    assert seen == [1] * NORMS.shape[1]
    assert torch.equal(norms, NORMS)


def test_factors_of_nobody_are_empty():
    assert factors_of(Own(flat), Samples(NORMS[:, :0])).shape == (1, 0)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e15])
def test_a_broken_promise_is_noticed_at_every_scale(scale):
    rule = Own(lambda s: torch.full_like(s.norms, 1.01), sensitivity=scale)
    with pytest.raises(PrivacyError, match="more than its sensitivity"):
        factors_of(rule, Samples(torch.tensor([[scale]], dtype=torch.float64)))
    kept = Own(lambda s: torch.full_like(s.norms, 1.0), sensitivity=scale)
    assert factors_of(kept, Samples(torch.tensor([[scale]], dtype=torch.float64))).item() == 1


# -------------------------------------------------------------------------------------------------------- questions


@dataclass(frozen=True)
class Asking(Own):
    """Asks something by a formula of its samples."""

    question: object = None
    query_sensitivity: ClassVar[float] = 1.0

    def query(self, samples):
        return self.question(samples)

    def query_std(self, batch_size):
        return 1.0

    def update(self, answer, batch_size):
        return self


def count(samples):
    return {"large": (samples.norms > 1).sum(1), "none": torch.zeros(2)}


def test_a_question_is_asked_unit_by_unit_and_added_up():
    answer = query_of(Asking(flat, question=count), Samples(NORMS))
    assert answer["large"].tolist() == [2.0]
    assert answer["none"].tolist() == [0.0, 0.0]
    assert all(value.dtype == torch.float64 for value in answer.values())


def test_the_question_about_nobody_has_the_same_shapes_and_types():
    rule = Asking(flat, question=count)
    some, nobody = (query_of(rule, Samples(norms)) for norms in (NORMS, NORMS[:, :0]))
    assert {k: (v.shape, v.dtype) for k, v in some.items()} == {k: (v.shape, v.dtype) for k, v in nobody.items()}
    assert not any(value.any() for value in nobody.values())


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (lambda s: {"sum": s.norms.sum(1)}, "moves the answer to query"),
        (lambda s: {"a": (s.norms > 1).sum(1), "b": (s.norms > 1).sum(1)}, r"by 1\.41421, more than"),
        (lambda s: {"nan": s.norms.sum(1) * math.nan}, "by nan, more than"),
        (lambda s: {f"at {s.norms.sum() > 1}": torch.zeros(1)}, "other entries or shapes"),
        (lambda s: {"a": torch.zeros(1 + int(s.norms.sum() > 1))}, "other entries or shapes"),
    ],
)
def test_a_question_that_promises_too_little_is_refused(question, message):
    rule = Asking(flat, question=question)
    with pytest.raises(PrivacyError, match=message):
        query_of(rule, Samples(NORMS))
    with pytest.raises(PrivacyError, match=message):
        check_rule(rule)


def test_a_question_looks_at_one_unit_whatever_it_computes():
    rule = Asking(flat, question=lambda s: {"n": torch.tensor([float(s.norms.shape[1] > 1)])})
    assert query_of(rule, Samples(NORMS))["n"].item() == 0


def test_questions_of_ones_own_leave_with_the_gradient():
    setup = PROBLEMS["linear-2d"].make()
    rule = Asking(flat, question=lambda s: {"units": torch.ones(1)})
    assert reveal(clipped_sum(*setup, rule).query)["units"].item() == 4
