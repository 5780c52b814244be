"""Positions that add nothing are left out: norms and sums are those of all positions, and each unit is judged by itself."""

import pytest
import torch

from helpers.factored import MASKED, check, mask_for, random
from helpers.in_float64 import in_float64, length
from noisewise.persample.convolution import Convolution
from noisewise.persample.gradients import Outer
from noisewise.persample.positions import FEW, in_front
from noisewise.persample.positions import that_count as that_count_with
from noisewise.persample.steady import steady

TIME = 16
FULL, SOME, ONE, NONE = range(TIME), (2, 5, 14), (0,), ()


def factor(kinds, width=30, dtype=torch.float64, seed=0):
    """Each unit is zero but at its positions."""
    drawn = random(len(kinds), TIME, width, dtype=dtype, seed=seed)
    kept = torch.zeros(len(kinds), TIME, 1, dtype=dtype)
    for unit, places in enumerate(kinds):
        kept[unit, list(places)] = 1
    return drawn * kept


def outer(kinds, dtype=torch.float64):
    return Outer(factor(kinds, dtype=dtype), random(len(kinds), TIME, 20, dtype=dtype, seed=1))


def that_count(factor):
    return that_count_with(factor, random(*factor.shape[:2], 20, seed=1))


def by_definition(factor):
    """Position by position."""
    rows = []
    for unit in factor:
        counts = [bool((position != 0).any()) for position in unit]
        rows.append(counts if sum(counts) <= TIME // FEW else [True] * TIME)
    return torch.tensor(rows)


@pytest.mark.parametrize("kinds", [(ONE, ONE), (FULL, SOME, NONE), (SOME, FULL, range(4), range(5), ONE)])
def test_positions_that_count_are_those_that_are_not_zero(kinds):
    given = factor(kinds)
    assert torch.equal(that_count(given), by_definition(given))
    late = torch.nn.functional.pad(given, (40, 0))  # a glance sees zeros alone
    assert torch.equal(that_count(late), by_definition(given))
    odd = given.clone()
    odd[0, 3, 29], odd[1, 4, 29] = float("nan"), -1e-45 if odd.dtype == torch.float32 else -5e-324
    odd[1, 6] = -0.0
    assert torch.equal(that_count(odd), by_definition(odd))


def test_positions_are_asked_for_only_where_a_unit_has_few_and_an_answer_can_be_waited_for():
    assert that_count(factor((FULL, FULL))) is None
    late = torch.nn.functional.pad(factor((FULL, FULL)), (40, 0))
    assert that_count(late) is None
    assert that_count(factor((ONE, ONE))[:, : FEW - 1]) is None
    assert that_count(factor((ONE, ONE))[:, :, :0]) is None
    with steady(4):
        assert that_count(factor((ONE, ONE))) is None


def test_places_in_front_hold_all_that_counts():
    given = factor((FULL, SOME, NONE, FULL, range(12, 16)))
    units, places = in_front(that_count(given))
    assert units.tolist() == [1, 2, 4]
    assert places.shape == (3, TIME // FEW)
    for unit, chosen in zip(units, places, strict=True):
        assert len(set(chosen.tolist())) == TIME // FEW
        assert torch.equal(given[unit, chosen].abs().sum(), given[unit].abs().sum()) or unit == 1
        assert set(given[unit].any(1).nonzero().flatten().tolist()) <= set(chosen.tolist())


@MASKED
@pytest.mark.parametrize("first", [False, True], ids=["units-first", "time-first"])
@pytest.mark.parametrize(
    "kinds",
    [
        (ONE,) * 5,
        (SOME, FULL, NONE, ONE, FULL, ONE),
        (FULL, FULL, FULL, SOME),
        (NONE, NONE, NONE),
        (SOME, ONE, NONE, FULL),
    ],
    ids=["one-of-each", "mixed", "most-count", "nothing", "one-full"],
)
def test_norms_and_sums_are_those_of_all_positions(kinds, first, masked):
    gradient = outer(kinds)
    if first:
        gradient = Outer(*(f.transpose(0, 1).contiguous().transpose(0, 1) for f in (gradient.left, gradient.right)))
    formed = torch.einsum("itr,itc->irc", gradient.left, gradient.right)
    check(gradient, formed, mask_for(formed) if masked else None)


def test_sums_are_added_to_those_of_other_units():
    gradient, before = outer((ONE, SOME, NONE)), random(30, 20, seed=3)
    factors = torch.tensor([0.5, 0.25, 1.0], dtype=torch.float64)
    total = gradient.weighted_sum(factors, into=(into := before.clone()))
    assert total.data_ptr() == into.data_ptr()
    assert torch.allclose(into, before + torch.einsum("i,itr,itc->rc", factors, gradient.left, gradient.right))


def test_each_unit_has_the_norm_that_it_has_alone():
    """Seeds 0..9, float32, entries of many sizes: bit by bit, whoever else is there."""
    kinds = (SOME, FULL, ONE, NONE, FULL, range(4))
    for seed in range(10):
        left, right = (
            factor(kinds, dtype=torch.float32, seed=seed),
            random(6, TIME, 20, dtype=torch.float32, seed=seed + 50),
        )
        left[2] *= 1e-30
        together = Outer(left, right).measure(None)[0]
        for unit in range(len(kinds)):
            alone = Outer(left[unit : unit + 1], right[unit : unit + 1]).measure(None)[0]
            assert torch.equal(alone, together[unit : unit + 1]), (seed, unit)


def test_norms_of_few_positions_are_long_enough():
    """Seeds 0..39, float32, positive factors: products that round alike."""
    for seed in range(40):
        left = factor((SOME,), 300, torch.float32, seed).abs()
        gradient = Outer(left, random(1, TIME, 200, dtype=torch.float32, seed=seed + 1).abs())
        exact, bounds = length(in_float64(gradient).formed()), gradient._gram_of_few(0.0)
        assert float(bounds.least) <= exact <= float(bounds.most) <= 1.01 * exact, seed
        added = gradient.weighted_sum(torch.ones(1, dtype=torch.float64))
        assert length(added) <= float(gradient.measure(None)[0].sqrt())


@pytest.mark.parametrize("scale", [1.0, 2.0**-10, 1.001 * 2.0**-24])
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (128, 64), (64, 128)])
@pytest.mark.parametrize("company", [0, 1, 3, 9])
def test_a_huge_input_where_nothing_counts_changes_neither_norm_nor_sum(company, rows, columns, scale):
    """It would decide how the others are scaled, and these would be rounded up below the range of float32, or overflow."""
    left, right = torch.zeros(1, 8, rows), torch.zeros(1, 8, columns)
    left[0, 0], right[0, 0], right[0, 5, 0] = 1 / scale, scale, 2.0**127
    others = [random(company, 8, width, dtype=torch.float32, seed=width) for width in (rows, columns)]
    gradient = Outer(torch.cat([left, others[0]]), torch.cat([right, others[1]]))
    for bound in (1.0, 2.0**-20, 1e4):
        squares, rest = gradient.measure(None)
        factors = torch.zeros(company + 1, dtype=torch.float64)
        factors[0] = bound / squares[0].sqrt()
        total = rest.weighted_sum(factors).double()
        assert 0.99 * bound <= float(total.norm()) <= bound * (1 + 1e-6)


@pytest.mark.parametrize("scale", [1.0, 2.0**-20, 1.001 * 2.0**-24])
def test_convolutions_are_measured_at_all_positions(scale):
    """Their sum is over all of them."""
    x, grad = torch.zeros(2, 8, 10, 10), torch.zeros(2, 64, 4, 4)
    grad[:, :, 0, 0] = 1.0
    x[0, :, :3, :3], x[0, 0, 8, 8], x[1, :, :3, :3] = scale, 2.0**127, 1.0
    squares, rest = Convolution(x, grad, (3, 3), (2, 2), ((0, 0),) * 2, (1, 1), 1).measure(None)
    for bound in (1.0, 2.0**-20):
        factors = torch.tensor([bound, 0.0], dtype=torch.float64) / squares.sqrt()
        assert float(rest.weighted_sum(factors).double().norm()) <= bound * (1 + 1e-6)


def test_positions_that_do_not_count_are_not_multiplied(monkeypatch):
    """Of 16 positions of each unit one counts: matrices of 4, and a product over 5 rows."""
    shapes = []
    for name in ("bmm", "mm"):
        product = getattr(torch, name)
        monkeypatch.setattr(
            torch, name, lambda a, b, product=product, **more: shapes.append(tuple(a.shape)) or product(a, b, **more)
        )
    _, rest = outer((ONE,) * 5).measure(None)
    rest.weighted_sum(torch.ones(5, dtype=torch.float64))
    assert shapes == [(5, 4, 30), (5, 4, 20), (30, 5)]


def test_a_unit_that_is_not_finite_shows_in_its_norm():
    gradient = outer((ONE, SOME, ONE))
    gradient.left[1, 9, 29] = float("nan")
    squares, rest = gradient.measure(None)
    assert squares.isfinite().tolist() == [True, False, True]
    keep = squares.isfinite()
    total = rest.where(keep).weighted_sum(torch.ones(3, dtype=torch.float64) * keep).view(30, 20)
    assert torch.allclose(total, torch.einsum("itr,itc->rc", gradient.left[keep], gradient.right[keep]))


@pytest.mark.parametrize("others", [(ONE, ONE), (FULL, FULL)], ids=["few", "many"])
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_zero_times_infinity_shows_in_a_norm_whatever_the_others_are(value, others):
    gradient = outer((SOME, *others))
    gradient.right[0, 3, 1] = value
    squares, rest = gradient.measure(None)
    assert squares.isfinite().tolist() == [False, True, True]
    keep = squares.isfinite()
    total = rest.where(keep).weighted_sum(torch.ones(3, dtype=torch.float64) * keep).view(30, 20)
    assert torch.allclose(total, torch.einsum("itr,itc->rc", gradient.left[keep], gradient.right[keep]))
