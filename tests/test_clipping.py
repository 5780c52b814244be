"""Clipping rules: their formulas, their sensitivity, and what they refuse."""

import math

import pytest
import torch
from torch import nn

from helpers.oracles import factor_by_hand
from noisewise import Mechanism, Poisson
from noisewise.adaptive import GroupBounds
from noisewise.clipping import RULES, Automatic, Clip, Flat, Global, Normalized, PerLayer, Samples, per_layer
from noisewise.errors import ConfigError
from noisewise.persample import clipped_sum
from noisewise.testing import check_clip, reveal

NORMS = [0.0, 1e-30, 1e-3, 0.4, 0.5, 0.999, 1.0, 1.001, 2.0, 7.5, 1e6, 1e12]
NAMES = ["conv.weight", "conv.bias", "fc.weight", "fc.bias"]


def factors(rule, norms):
    return rule.factors(Samples(torch.tensor([norms], dtype=torch.float64)))[0].tolist()


@pytest.mark.parametrize(
    "rule",
    [
        Flat(),
        Flat(0.5),
        Global(1.0),
        Global(0.5, 2.0),
        Global(1.0, 1e6),
        Automatic(),
        Automatic(2.0, 0.5),
        Normalized(0.3),
    ],
    ids=repr,
)
def test_factors_are_the_papers_formulas(rule):
    assert factors(rule, NORMS) == pytest.approx([factor_by_hand(rule, norm) for norm in NORMS], rel=1e-12)


def test_flat_leaves_short_gradients_as_they_are():
    assert factors(Flat(1.0), [0.0, 0.3, 1.0, 4.0]) == [1.0, 1.0, 1.0, 0.25]


def test_global_scales_everybody_alike_and_drops_whoever_is_above_the_screen():
    assert factors(Global(0.5, 2.0), [0.0, 0.1, 2.0, 2.0001, 50.0]) == [0.25, 0.25, 0.25, 0.0, 0.0]


def test_the_two_forms_of_global_clipping_differ_by_a_learning_rate():
    scaled, unscaled = factors(Global(0.5, 2.0), NORMS), factors(Global(2.0), NORMS)
    assert scaled == [factor * 0.5 / 2.0 for factor in unscaled]


def test_normalized_gives_every_gradient_the_same_length_but_zero():
    contributions = [f * n for f, n in zip(factors(Normalized(0.7), NORMS), NORMS, strict=True)]
    assert contributions[0] == 0
    assert contributions[1:] == pytest.approx([0.7] * (len(NORMS) - 1))


def test_normalized_gives_up_where_its_factor_would_overflow():
    tiny = torch.tensor([[torch.finfo(torch.float32).tiny * 1e-7, 1e-3]])
    assert Normalized(1e3).factors(Samples(tiny)).tolist()[0][0] == 0


@pytest.mark.parametrize(
    ("rule", "sensitivity"),
    [(Flat(0.3), 0.3), (Global(0.3, 9.0), 0.3), (Global(2.0), 2.0), (Automatic(0.3), 0.3), (Normalized(0.3), 0.3)],
    ids=repr,
)
def test_sensitivity_is_the_bound(rule, sensitivity):
    assert rule.sensitivity == sensitivity
    assert rule.blocks(NAMES) == dict.fromkeys(NAMES, 0)


# --------------------------------------------------------------------------------------------------- per layer


def test_the_sensitivity_of_per_layer_clipping_is_the_root_of_the_sum_of_squares():
    clip = per_layer(NAMES, {"*.weight": Flat(1.5), "*": Flat(0.3)})
    assert clip.sensitivity == pytest.approx(math.sqrt(2 * 1.5**2 + 2 * 0.3**2), rel=1e-15)
    assert clip.sensitivity > max(rule.sensitivity for rule in clip.rules.values())


def test_every_parameter_is_a_block_with_a_rule_of_its_own():
    clip = per_layer(NAMES, {"conv.*": Flat(1.0), "fc.weight": Global(0.5, 2.0), "*": Normalized(3.0)})
    assert clip.blocks(NAMES) == {name: k for k, name in enumerate(NAMES)}
    got = clip.factors(Samples(torch.tensor([[2.0, 0.5], [4.0, 1.0], [2.0, 3.0], [6.0, 0.0]])))
    assert got.tolist() == [[0.5, 1.0], [0.25, 1.0], [0.25, 0.0], [0.5, 0.0]]


def test_blocks_keep_their_number_when_some_parameters_are_left_out():
    clip = per_layer(NAMES, Flat(1.0))
    assert clip.blocks(["fc.weight", "conv.bias"]) == {"fc.weight": 2, "conv.bias": 1}


def test_the_first_pattern_that_matches_wins():
    clip = per_layer(NAMES, {"fc.*": Flat(1.0), "*.weight": Flat(2.0), "*": Flat(3.0)})
    assert [clip.rules[name].bound for name in NAMES] == [2.0, 3.0, 1.0, 1.0]


def test_a_parameter_that_no_pattern_matches_is_named():
    with pytest.raises(ConfigError, match=r"no pattern of \['\*\.weight'\] matches the parameter 'conv\.bias'.*'\*'"):
        per_layer(NAMES, {"*.weight": Flat(1.0)})


def test_a_parameter_without_a_rule_would_escape_and_is_refused():
    with pytest.raises(ConfigError, match=r"no rule for \['new\.weight'\].*would escape clipping"):
        per_layer(NAMES, Flat(1.0)).blocks([*NAMES, "new.weight"])


def test_per_layer_rules_are_one_block_rules():
    with pytest.raises(ConfigError, match="at least one parameter"):
        PerLayer({})
    with pytest.raises(ConfigError, match="'a' is itself per layer"):
        PerLayer({"a": per_layer(["b"], Flat(1.0))})


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("value", [0, 0.0, -1.0, math.inf, math.nan, "1", None])
@pytest.mark.parametrize("rule", [Flat, Automatic, Normalized, Global])
def test_a_bound_that_is_no_finite_number_above_0_is_named(rule, value):
    with pytest.raises(ConfigError, match=rf"{rule.__name__}\(bound={value!r}\): must be a finite number above 0"):
        rule(value)


@pytest.mark.parametrize("value", [0.0, -0.1, math.inf, math.nan])
def test_a_floor_or_screen_that_is_no_finite_number_above_0_is_named(value):
    with pytest.raises(ConfigError, match=r"Automatic\(gamma="):
        Automatic(1.0, value)
    with pytest.raises(ConfigError, match=r"Global\(screen="):
        Global(1.0, value)


def test_a_screen_below_the_bound_would_scale_up():
    with pytest.raises(ConfigError, match=r"Global\(bound=2\.0, screen=1\.5\).*scale gradients up.*screen >= 2\.0"):
        Global(2.0, 1.5)


def test_rules_are_frozen_values():
    assert Flat(1.0) == Flat(1.0) != Flat(2.0)
    with pytest.raises(AttributeError):
        Flat(1.0).bound = 2.0


def test_rules_are_known_by_name_and_follow_the_protocol():
    assert set(RULES) == {"Flat", "Global", "Automatic", "Normalized", "PerSampleAdaptive", "PerLayer"}
    assert all(isinstance(rule(), Clip) for name, rule in RULES.items() if name != "PerLayer")
    assert isinstance(per_layer(NAMES, Flat(1.0)), Clip)
    assert not isinstance(1.0, Clip)


BLOCK_NAMES = ("first.weight", "first.bias", "second.weight", "second.bias", "scale")


def test_tensors_of_one_layer_can_share_a_block():
    rule = per_layer(BLOCK_NAMES, Flat(1.0), by="layer")
    assert rule.blocks(BLOCK_NAMES) == dict(zip(BLOCK_NAMES, (0, 0, 1, 1, 2), strict=True))
    assert rule.sensitivity == pytest.approx(math.sqrt(3))
    assert check_clip(rule, BLOCK_NAMES) is None


def test_layers_within_a_part_of_the_model_are_blocks_of_their_own():
    names = ("body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias", "head.weight")
    assert list(per_layer(names, Flat(1.0), by="layer").blocks(names).values()) == [0, 0, 1, 1, 2]


def test_rules_inside_see_the_groups():
    inside = {"a": GroupBounds("team", 3, bounds=(1.0, 2.0, 3.0)), "b": Flat(1.5)}
    samples = Samples(torch.rand(2, 9, generator=torch.Generator().manual_seed(0)) * 5, torch.arange(9) % 3)
    found = PerLayer(inside).factors(samples)
    for block, rule in enumerate(inside.values()):
        own = Samples(samples.norms[block : block + 1], samples.groups)
        assert torch.equal(found[block], rule.factors(own)[0])


def test_tensors_of_one_kind_can_share_a_block():
    rule = per_layer(BLOCK_NAMES, {"*.bias": Flat(0.3), "*": Global(1.5, 9.0)}, by="pattern")
    assert rule.blocks(BLOCK_NAMES) == dict(zip(BLOCK_NAMES, (0, 1, 0, 1, 0), strict=True))
    assert rule.sensitivity == pytest.approx(math.hypot(1.5, 0.3))
    assert check_clip(rule, BLOCK_NAMES) is None


@pytest.mark.parametrize("by", ["parameter", "layer", "pattern"])
def test_blocks_equal_the_definition_and_survive_json(by):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()
    names = [name for name, _ in model.named_parameters()]
    rule = per_layer(names, {"*.weight": Flat(0.05), "*.bias": Flat(0.02)}, by=by)
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for row in x:
        grads = dict(zip(names, torch.autograd.grad(model(row).square().sum(), list(model.parameters())), strict=True))
        blocks = rule.blocks(names)
        for block, one in enumerate(rule.rules.values()):
            mine = [name for name in names if blocks[name] == block]
            norm = math.sqrt(sum(float(grads[name].square().sum()) for name in mine))
            for name in mine:
                expected[name] += grads[name] * min(1.0, one.sensitivity / norm)
    got = reveal(clipped_sum(model, lambda m, b: m(b).square().sum(1), x, rule).grads)
    assert all(torch.allclose(got[name], expected[name], rtol=1e-9) for name in names)
    mechanism = Mechanism(sampler=Poisson(10, 5), clip=rule, steps=1, noise_multiplier=1.0)
    assert Mechanism.from_dict(mechanism.to_dict()) == mechanism


def test_unknown_ways_to_make_blocks_and_members_without_a_rule_are_named():
    with pytest.raises(ConfigError, match="by='module'"):
        per_layer(BLOCK_NAMES, Flat(1.0), by="module")
    with pytest.raises(ConfigError, match=r"blocks of \['a'\] have no rule"):
        PerLayer({"x": Flat(1.0)}, {"a": "y"})
