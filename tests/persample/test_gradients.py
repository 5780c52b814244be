"""Per-sample gradients in factored form against gradients formed by hand, on shapes that take each of the ways."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from helpers.factored import CONVOLUTIONS, MASKED, check, convolution, mask_for, outer, random
from noisewise.clipping import Automatic, Normalized, Samples
from noisewise.persample.convolution import Convolution
from noisewise.persample.formed import Formed
from noisewise.persample.gradients import Outer, Recent, Rows, join
from noisewise.persample.layers import RULES


def embedding(units, time, size, columns):
    index = torch.randint(0, size, (units, time), generator=torch.Generator().manual_seed(3))
    rows = random(units, time, columns)
    formed = torch.stack([F.one_hot(i, size).double().T @ r for i, r in zip(index, rows, strict=True)])
    return Rows(index, rows, size), formed


@MASKED
@pytest.mark.parametrize("time", [1, 2, 7, 60])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 4), (1, 9), (30, 20)])
def test_outer(time, rows, columns, masked):
    gradient, formed = outer(5, time, rows, columns)
    check(gradient, formed, mask_for(formed) if masked else None)


@MASKED
@pytest.mark.parametrize("time", [1, 2, 30])
@pytest.mark.parametrize("size", [1, 3, 50])
def test_rows_never_confuse_tokens_or_units(time, size, masked):
    gradient, formed = embedding(5, time, size, 4)
    check(gradient, formed, mask_for(formed) if masked else None)


def test_short_positions_take_gram_matrices_and_keep_nothing():
    gradient, formed = outer(5, 3, 30, 20)
    assert check(gradient, formed) is gradient


@MASKED
@pytest.mark.parametrize("kinds", [("outer", "outer"), ("rows", "rows"), ("rows", "outer"), ("outer", "rows", "outer")])
def test_join_counts_the_cross_terms_of_several_calls(kinds, masked):
    made = {"outer": lambda: outer(5, 2, 7, 4), "rows": lambda: embedding(5, 6, 7, 4)}
    parts, formed = zip(*(made[kind]() for kind in kinds), strict=True)
    check(join(parts), sum(formed), mask_for(formed[0]) if masked else None)


@MASKED
@pytest.mark.parametrize("wide", [2, 8])
def test_join_of_convolutions_and_other_forms(wide, masked):
    first, formed = convolution(5, wide, 4, (4, 4), (3, 3), padding=1)
    second, more = convolution(5, wide, 4, (6, 5), (3, 3), stride=2)
    third = random(5, 4, wide, 3, 3)
    total = formed + more + third
    check(join([first, second, Formed(third)]), total, mask_for(total) if masked else None)


def test_join_of_one_call_is_that_call():
    gradient, _ = outer(2, 3, 4, 5)
    assert join([gradient]) is gradient


def _poisoned():
    gradient, formed = outer(4, 3, 5, 6)
    yield "outer", Outer(_with_nan(gradient.left), _with_inf(gradient.right)), formed
    gradient, formed = outer(4, 1, 5, 6)
    yield "outer-one-position", Outer(_with_nan(gradient.left), _with_inf(gradient.right)), formed
    gradient, formed = outer(4, 60, 2, 3)
    yield "outer-formed", Outer(_with_nan(gradient.left), _with_inf(gradient.right)), formed
    rows, formed = embedding(4, 3, 5, 6)
    yield "rows", Rows(rows.index, _with_nan(rows.rows), 5), formed
    formed = random(4, 3, 2)
    yield "formed", Formed(_with_inf(formed)), formed
    for kind in ("shifted-gram", "shifted-formed", "stride-gram", "groups"):
        channels, out, size, kernel, settings = CONVOLUTIONS[kind]
        yield kind, _poisoned_convolution(channels, out, size, kernel, settings), None


def _poisoned_convolution(channels, out, size, kernel, settings):
    inputs, weight = random(4, channels, *size), random(out, channels // settings.get("groups", 1), *kernel)
    grad = random(*F.conv2d(inputs, weight, **settings).shape)
    rule = RULES[F.conv2d]
    return rule.gradients(rule.operands(_with_inf(inputs), weight, **settings), _with_nan(grad))["weight"]()


def _with_nan(tensor):
    tensor = tensor.clone()
    tensor[1] = float("nan")
    return tensor


def _with_inf(tensor):
    tensor = tensor.clone()
    tensor[1] = float("inf")
    return tensor


@pytest.mark.parametrize(("gradient", "formed"), [pytest.param(g, f, id=name) for name, g, f in _poisoned()])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_a_unit_that_is_not_finite_shows_in_its_norm_and_leaves_with_where(gradient, formed, masked):
    shape = gradient.formed().flatten(1).shape[1:] if formed is None else formed.shape[1:]
    if formed is None:
        shape = (gradient.grad.shape[1], -1, *gradient.kernel)
        shape = gradient.formed().reshape(4, *shape).shape[1:]
    mask = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.7) if masked else None
    squares, rest = gradient.measure(mask)
    assert squares.isfinite().tolist() == [True, False, True, True]
    keep = squares.isfinite()
    total = rest.where(keep).weighted_sum(torch.ones(4, dtype=torch.float64) * keep)
    expected = gradient.formed().reshape(4, *shape)[keep].sum(0)
    assert torch.allclose(total.reshape(shape), expected if mask is None else expected * mask)


def cancelling_outer(width, seed):
    """One left vector; rights that sum to nearly nothing."""
    left = random(1, 1, 8, dtype=torch.float32, seed=seed).abs().expand(1, 6, 8).contiguous()
    right = random(1, 6, width, dtype=torch.float32, seed=seed + 100)
    right[:, -1] = -right[:, :-1].sum(1)
    return Outer(left, right)


def constant_outer(width, seed):
    """Two positions that cancel up to a small share, with entries all alike: every rounding goes the same way."""
    value, share = torch.rand(2, generator=torch.Generator().manual_seed(seed)).tolist()
    right = torch.full((width,), 0.5 + value)
    pair = torch.stack([right, -right * (1 - 10 ** (-2 - 4 * share))])[None]
    return Outer(torch.linspace(0.5, 1.0, 4).expand(1, 2, 4).contiguous(), pair)


def cancelling_rows(width, seed):
    """One token, twice, with rows that cancel up to rounding."""
    row = random(1, 1, width, dtype=torch.float32, seed=seed)
    return Rows(torch.zeros(1, 2, dtype=torch.long), torch.cat([row, -row * (1 + 2e-7)], 1), 3)


def cancelling_tied(width, seed):
    """A table used for a look-up and as a matrix."""
    size = 9
    left, right = random(1, 1, width, dtype=torch.float32, seed=seed), F.one_hot(torch.tensor([[2]]), size).float()
    lookup = Rows(torch.tensor([[2]]), left, size)
    return join([lookup, Outer(-right * (1 + 1e-6), left)])


def cancelling_convolution(width, seed):
    """The same input everywhere; output gradients that sum to nearly nothing over positions."""
    inputs = random(1, width, 1, 1, dtype=torch.float32, seed=seed).expand(1, width, 4, 4).contiguous()
    grad = random(1, 12, 4, 4, dtype=torch.float32, seed=seed + 100)
    grad[:, :, -1, -1] -= grad.sum((2, 3))
    rule = RULES[F.conv2d]
    return rule.gradients(rule.operands(inputs, torch.zeros(12, width, 1, 1)), grad)["weight"]()


def constant_convolution(width, seed):
    """Two positions of a 1x1 convolution that cancel up to a small share, all channels alike."""
    value, share = torch.rand(2, generator=torch.Generator().manual_seed(seed)).tolist()
    inputs = torch.full((1, width, 1, 2), 0.5 + value)
    inputs[..., 1] *= 1 - 10 ** (-2 - 4 * share)
    grad = torch.tensor([1.0, -1.0]).expand(1, 4, 1, 2).contiguous()
    rule = RULES[F.conv2d]
    return rule.gradients(rule.operands(inputs, torch.zeros(4, width, 1, 1)), grad)["weight"]()


def exactly(gradient):
    """The gradients in float64, from the float32 factors as they are."""
    match gradient:
        case Outer():
            return torch.einsum("itr,itc->irc", gradient.left.double(), gradient.right.double())
        case Rows():
            return Rows(gradient.index, gradient.rows.double(), gradient.size).formed()
        case Convolution():
            return torch.einsum("icxy,ioxy->ioc", gradient.input.double(), gradient.grad.double())
    raise NotImplementedError(gradient)


CANCELLING = pytest.mark.parametrize(
    ("make", "width"),
    [
        (cancelling_outer, 8),
        (cancelling_outer, 200),
        (cancelling_outer, 4096),
        (constant_outer, 16),
        (constant_outer, 1024),
        (constant_outer, 4096),
        (constant_outer, 16384),
        (cancelling_rows, 8),
        (cancelling_rows, 300),
        (cancelling_tied, 8),
        (cancelling_tied, 300),
        (cancelling_convolution, 8),
        (cancelling_convolution, 64),
        (constant_convolution, 64),
        (constant_convolution, 4096),
    ],
)

SEEDS = range(40)


@CANCELLING
def test_norms_are_never_too_short(make, width):
    """Seeds 0..39. A norm that is too short lets its unit contribute too much.

    Of factored gradients it is at least the exact norm; of formed ones it is the norm of the numbers that are summed.
    """
    for seed in SEEDS:
        gradient = make(width, seed)
        squares, rest = gradient.measure(None)
        summed = rest.weighted_sum(torch.ones(1, dtype=torch.float64)).double().norm()
        exact = exactly(gradient).norm() if rest is gradient else summed
        assert bool(squares.sqrt() >= torch.maximum(summed, exact) * (1 - 1e-9)), (seed, squares.sqrt() / exact)


@CANCELLING
@pytest.mark.parametrize("rule", [Normalized(1.0), Automatic(1.0), Automatic(1.0, 1e-6)], ids=repr)
def test_a_lone_unit_stays_within_the_bound_where_positions_cancel(make, width, rule):
    """Seeds 0..39. What counts is the float32 sum that is handed out, its own roundings included."""
    for seed in SEEDS:
        squares, rest = make(width, seed).measure(None)
        contribution = rest.weighted_sum(rule.factors(Samples(squares.sqrt()[None]))[0])
        length = float(contribution.double().norm())
        assert length <= rule.sensitivity * (1 + 1e-6), seed


def test_a_lone_unit_stays_within_the_bound_where_its_gradient_is_too_large_to_keep():
    """Seed 0. Norm and sum then come from two computations, and only the sum's products round: 1 * x is exact."""
    right = random(1, 1, 4100, dtype=torch.float32)
    opposite = -right
    opposite[:, :, 0] *= 1 + 2e-7
    gradient = Outer(torch.ones(1, 2, 4100), torch.cat([right, opposite], 1))
    squares, rest = gradient.measure(torch.ones(4100, 4100, dtype=torch.bool))
    contribution = rest.weighted_sum(Normalized(1.0).factors(Samples(squares.sqrt()[None]))[0])
    assert float(contribution.double().norm()) <= 1 + 1e-6


def test_factors_in_common_are_multiplied_once_and_give_the_same_norms():
    """Queries, keys and values: the last of the three has another input, and one is so small that it must be scaled."""
    right, other = random(4, 6, 30, dtype=torch.float32), random(4, 6, 30, dtype=torch.float32, seed=5)
    lefts = [random(4, 6, 20, dtype=torch.float32, seed=seed) for seed in range(3)]
    for scale in (1.0, 1e-25):
        recent = Recent()
        for left, factor in zip(lefts, (right * scale, right * scale, other), strict=True):
            plain = Outer(left, factor)
            assert plain._few_positions
            squares, rest = replace(plain, recent=recent).measure(None)
            assert torch.equal(squares, plain.measure(None)[0])
            assert torch.equal(rest.weighted_sum(torch.ones(4).double()), plain.weighted_sum(torch.ones(4).double()))


def test_gram_matrices_are_remembered_for_the_same_memory_only():
    recent, factor = Recent(), random(3, 4, 5)
    first = recent.grams.of(factor)
    assert torch.allclose(first, factor @ factor.transpose(1, 2))
    assert recent.grams.of(factor.detach()) is first
    part = recent.grams.of(factor[:2])
    assert part is not first
    assert torch.allclose(part, first[:2])
    factor.mul_(2)
    assert torch.allclose(recent.grams.of(factor), 4 * first)
    again = recent.grams.of(factor)
    recent.clear()
    assert recent.grams.of(factor) is not again
