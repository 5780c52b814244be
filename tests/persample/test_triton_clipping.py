"""Between norms and sums by kernels: the same as by many operations, for every unit and every rule of one block."""

import math

import pytest
import torch

from helpers.interpreted import interpret
from noisewise.clipping import Automatic, Flat, Global, Normalized
from noisewise.persample import gradients, kernels
from noisewise.persample.clipped_sum import _judge
from noisewise.persample.gradients import Outer, weighted
from noisewise.persample.steady import steady
from noisewise.promises import most_allowed

pytest.importorskip("triton")


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels on a CPU."""
    interpret(monkeypatch)


def by_both(squares, clip, present, monkeypatch):
    """Norms, factors, who counts and whether the promise was broken: by operations, and by kernels."""
    found = []
    for enabled in (False, True):
        monkeypatch.setattr(kernels, "ENABLED", enabled)
        broken = torch.zeros((), dtype=torch.int32)
        with steady(8):
            found.append((*_judge(squares, dict.fromkeys(squares, 0), clip, present, None, broken), broken))
    return found


@pytest.mark.parametrize("clip", [Flat(0.7), Flat(1e-30), Global(0.5, 3.0), Automatic(2.0), Normalized(0.3)], ids=repr)
def test_norms_and_factors_are_those_of_many_operations(clip, interpreted, monkeypatch):
    torch.manual_seed(0)
    units = 300  # more than one program has
    squares = {name: torch.rand(units, dtype=torch.float64) ** 4 * scale for name, scale in (("a", 1.0), ("b", 9.0))}
    squares["a"][3], squares["b"][5], squares["a"][270] = math.nan, math.inf, 0.0
    squares["b"][270] = 0.0
    present = torch.rand(units) < 0.9
    present[[3, 5, 270]] = True
    slow, fast = by_both(squares, clip, present, monkeypatch)
    torch.testing.assert_close(fast[0], slow[0], rtol=1e-14, atol=0, equal_nan=True)
    torch.testing.assert_close(fast[1], slow[1], rtol=1e-14, atol=0)
    assert torch.equal(fast[2], slow[2])
    assert fast[2].tolist() == [bool(here) and k not in (3, 5) for k, here in enumerate(present)]
    assert not bool(slow[3])
    assert not bool(fast[3])


class Short(Flat):
    """Lets a unit contribute more than it promises, or says no number."""

    factor = 1.0

    def factors(self, samples):
        """Twice as much for the last, who must then add nothing."""
        factors = super().factors(samples)
        factors[0, -1] = self.factor * factors[0, -1]
        return factors


@pytest.mark.parametrize(
    ("factor", "fails"), [(1.0, False), (1 + 5e-7, False), (1 + 2e-6, True), (-2.0, True), (math.nan, True)]
)
def test_a_unit_beyond_the_sensitivity_adds_nothing_and_it_is_written_down(factor, fails, interpreted, monkeypatch):
    clip = Short(0.25)
    monkeypatch.setattr(Short, "factor", factor)
    squares, present = {"a": torch.full((5,), 4.0, dtype=torch.float64)}, torch.ones(5, dtype=torch.bool)
    for _, factors, keep, broken in by_both(squares, clip, present, monkeypatch):
        assert bool(broken) == fails
        assert (factors[0, :4] == 0.125).all()
        assert (factors[0, 4] == 0) == fails
        assert keep.all()


def test_what_was_written_down_stays(interpreted):
    counted, keep = torch.ones(1, 3, dtype=torch.float64), torch.ones(3, dtype=torch.bool)
    broken = torch.zeros((), dtype=torch.int32)
    for factor, expected in ((1.0, 0), (2.0, 1), (1.0, 1)):
        kernels.held(torch.full((1, 3), factor, dtype=torch.float64), counted, keep, most_allowed(Flat(1.0)), broken)
        assert broken.item() == expected


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("widths", [(3, 2000), (1500, 70)], ids=str)
def test_both_factors_of_a_sum_are_those_of_two_operations(widths, squared, interpreted, monkeypatch):
    torch.manual_seed(0)
    scales = torch.tensor([1.0, 1e-30, 1e30, 0.0, 1e-3]).view(-1, 1)
    light, heavy = (torch.randn(5, 1, width) * scales.unsqueeze(1) for width in widths)
    sizes = heavy.flatten(1).double().norm(dim=1)
    factors = torch.rand(5, dtype=torch.float64) * torch.tensor([1, 1e40, 1e-60, 1, 1], dtype=torch.float64)
    got = kernels.weighted_pair(light, heavy, sizes.square() if squared else sizes, factors, squared=squared)
    monkeypatch.setattr(kernels, "ENABLED", False)
    for one, other in zip(got, weighted(light, heavy, sizes, factors), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize(("units", "widths"), [(5, (3, 200)), (70, (65, 64)), (32, (64, 1))], ids=str)
def test_turned_factors_are_the_same_numbers_with_units_side_by_side(units, widths, squared, interpreted):
    torch.manual_seed(0)
    scales = 10.0 ** torch.linspace(-17, 17, units).view(-1, 1, 1)
    light, heavy = (torch.randn(units, 1, width) * scales for width in widths)
    sizes = heavy.flatten(1).double().norm(dim=1)
    factors = torch.rand(units, dtype=torch.float64) * (torch.arange(units) % 4 > 0)
    heavy[0] = math.inf
    given = light, heavy, sizes.square() if squared else sizes, factors
    for one, other in zip(
        kernels.weighted_pair(*given, squared=squared, turned=True),
        kernels.weighted_pair(*given, squared=squared),
        strict=True,
    ):
        assert torch.equal(one[:units], other)
        assert not one[units:].any()
        assert len(one) == -(-units // 32) * 32
        assert other.is_contiguous()
        assert one.squeeze(1).T.is_contiguous()


@pytest.mark.parametrize("cut", [0.0, 2.0**-9], ids=["whole", "cut"])
@pytest.mark.parametrize("shape", [(40, 3), (3, 40)], ids=str)
def test_sums_of_linear_layers_are_the_same_however_their_factors_lie(shape, cut, interpreted, monkeypatch):
    """Units side by side where products may be cut; into memory that is given, and added to what is there."""
    torch.manual_seed(0)
    monkeypatch.setattr(gradients, "shortened", lambda tensor: cut)
    monkeypatch.setattr(gradients, "roundoff", lambda tensor, terms: 1e-6)
    rows, columns = shape
    one = Outer(torch.randn(70, 1, rows), torch.randn(70, 1, columns))
    with steady(70):
        check_sums(one, cut, shape)
    light, _ = one._weighted(torch.ones(70, dtype=torch.float64))
    assert light.squeeze(1).is_contiguous()  # in ordinary steps as it comes


def check_sums(one, cut, shape):
    _, measured = one.measure(None)
    factors = torch.rand(70, dtype=torch.float64) * (torch.arange(70) % 5 > 0)
    light, heavy = one._weighted(factors)
    assert light.squeeze(1).T.is_contiguous() == heavy.squeeze(1).T.is_contiguous() == (cut > 0)
    expected = torch.einsum("b,bi,bj->ij", factors, one.left[:, 0].double(), one.right[:, 0].double()).float()
    torch.testing.assert_close(measured.weighted_sum(factors), expected)
    torch.testing.assert_close(measured.weighted_sum(factors, out=torch.empty(shape)), expected)
    torch.testing.assert_close(measured.weighted_sum(factors, torch.ones(shape)), expected + 1)


@pytest.mark.parametrize("turned", [False, True])
def test_rows_of_factor_0_are_0_in_both_factors(turned, interpreted):
    light, heavy = torch.full((2, 1, 4), math.inf), torch.full((2, 1, 5), math.nan)
    sizes, factors = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    assert all(not part.any() for part in kernels.weighted_pair(light, heavy, sizes, factors, turned=turned))
