"""Linear layers over several positions in a captured step: gradients formed and kept in float16, against float64."""

import math
from dataclasses import replace

import pytest
import torch

from helpers.fixed_shapes import CASES, compared
from helpers.interpreted import interpret
from noisewise.persample import gradients, kernels
from noisewise.persample.formed import Narrow
from noisewise.persample.gradients import Outer, Recent
from noisewise.persample.steady import steady

pytest.importorskip("triton")


@pytest.fixture
def cut(monkeypatch):
    """Kernels on a CPU, with settings that let products be cut; layers may be small."""
    interpret(monkeypatch)
    monkeypatch.setattr(gradients, "shortened", lambda tensor: 2.0**-9)
    monkeypatch.setattr(gradients, "NARROW", 2)


def layer(time, rows, columns, units=3, scale=1.0):
    torch.manual_seed(0)
    return Outer(torch.randn(units, time, rows) * scale, torch.randn(units, time, columns) * scale)


def exactly(one, mask=None):
    formed = torch.einsum("bti,btj->bij", one.left.double(), one.right.double()).flatten(1)
    return formed if mask is None else formed * mask.flatten()


SHAPES = [(2, 5, 7), (9, 130, 20), (16, 16, 16), (70, 33, 140), (130, 3, 2)]


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_in_float16_are_as_exact_as_their_factors(shape, scale, masked, cut):
    one = layer(*shape, scale=scale)
    mask = torch.rand(shape[1], shape[2]) < 0.5 if masked else None
    exact, factors = exactly(one, mask), torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    with steady(3):
        squares, rest = one.measure(mask)
    assert isinstance(rest, Narrow)
    size = exact.norm(dim=1)
    assert ((rest.formed().double() - exact).norm(dim=1) <= 2.0**-9 * size).all()
    torch.testing.assert_close(squares.sqrt(), size, rtol=2.0**-9, atol=0)
    total = rest.weighted_sum(factors)
    assert total.dtype == torch.float32
    assert float((total.double() - factors @ exact).norm()) <= 2.0**-9 * float(factors @ size)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_was_measured_is_what_is_summed(shape, cut):
    one = layer(*shape)
    with steady(3):
        squares, rest = one.measure(None)
    stored = (rest.grads.double() * rest.scales.unsqueeze(1)).square().sum(1)
    assert (squares >= stored).all()
    torch.testing.assert_close(squares, stored, rtol=2.0**-15, atol=0)
    for unit in range(3):
        alone = torch.zeros(3, dtype=torch.float64)
        alone[unit] = 1 / squares[unit].sqrt()
        assert float(rest.weighted_sum(alone).double().norm()) <= 1


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("programs", [8, 4096], ids=["few programs", "many"])
@pytest.mark.parametrize("shape", [(1, 9, 100), (1, 33, 8200), (9, 20, 1000)], ids=str)
def test_sums_of_halves_are_those_of_float64_whatever_rows_of_factor_0_hold(shape, programs, kind, cut, monkeypatch):
    """Whether one program takes all rows or several share them."""
    monkeypatch.setattr(kernels._triton("kernels"), "PROGRAMS", programs)
    torch.manual_seed(0)
    rows, factors = torch.randn(shape).to(kind), torch.rand(shape[1], dtype=torch.float64)
    expected = torch.einsum("tbe,b->te", rows[:, 1:].double(), factors[1:])
    rows[:, 0], factors[0] = math.inf, 0.0
    torch.testing.assert_close(kernels.weighted_sum(rows, factors).double(), expected, rtol=1e-5, atol=1e-5)


def test_a_unit_does_not_depend_on_who_else_is_there(cut):
    one = layer(9, 20, 30)
    wild = Outer(one.left.clone(), one.right.clone())
    wild.left[1] *= 1e20
    wild.right[2] = math.nan
    with steady(3):
        (squares, rest), (others, changed) = one.measure(None), wild.measure(None)
    assert squares[0] == others[0]
    assert torch.equal(rest.grads[0], changed.grads[0])
    assert others.isfinite().tolist() == [True, True, False]
    torch.testing.assert_close(others[1], squares[1] * 1e40, rtol=1e-4, atol=0)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, in the interpreter
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_units_that_are_not_finite_have_no_finite_norm_and_add_nothing(value, cut):
    one = layer(4, 6, 8)
    one.left[1, 2, 3] = value
    with steady(3):
        squares, rest = one.measure(None)
        total = rest.where(squares.isfinite()).weighted_sum(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    assert squares.isfinite().tolist() == [True, False, True]
    exact = exactly(replace(one, left=one.left.nan_to_num(0.0)))
    torch.testing.assert_close(total.double(), exact[0] + exact[2], rtol=1e-2, atol=1e-2)


def test_factors_of_any_size_fit_however_many_positions_there_are(cut):
    """Over the most of them, entries near the largest number beside ordinary ones."""
    one = Outer(torch.full((2, gradients.LONGEST, 4), 3e38), torch.ones(2, gradients.LONGEST, 4))
    one.left[1] = 1.0
    with steady(2):
        squares, rest = one.measure(None)
    assert rest.grads.isfinite().all()
    torch.testing.assert_close(squares, exactly(one).square().sum(1), rtol=1e-2, atol=0)


@pytest.mark.parametrize(("size", "rounding"), [(0.0, 0.0), (1e-44, 0.5), (1e-38, 1e-2), (3e38, 1e-2)])
def test_factors_of_any_size_neither_overflow_nor_vanish(size, rounding, cut):
    """Below 2^-119 fewer bits are left."""
    one = Outer(torch.full((2, 128, 16), size), torch.ones(2, 128, 16))
    with steady(2):
        squares, rest = one.measure(None)
    assert rest.grads.isfinite().all()
    torch.testing.assert_close(squares, exactly(one).square().sum(1), rtol=rounding, atol=0)


def test_a_factor_in_common_is_narrowed_once(cut, monkeypatch):
    seen, narrowed = [], kernels.narrowed
    monkeypatch.setattr(kernels, "narrowed", lambda factor: seen.append(factor.data_ptr()) or narrowed(factor))
    recent, queries = Recent(), layer(4, 6, 8)
    keys = Outer(torch.randn(3, 4, 6), queries.right)
    with steady(3):
        for one in (queries, keys):
            squares, _ = replace(one, recent=recent).measure(None)
            torch.testing.assert_close(squares.sqrt(), exactly(one).norm(dim=1), rtol=2.0**-9, atol=0)
    assert seen.count(queries.right.data_ptr()) == 1
    assert len(seen) == 3


def test_only_captured_steps_with_products_that_may_be_cut_are_narrow(cut, monkeypatch):
    one = layer(4, 64, 64)
    assert not one._narrows
    with steady(3):
        assert one._narrows
        assert not layer(1, 64, 64)._narrows  # one position is a product of norms
        assert layer(2048, 64, 64, units=1)._narrows
        assert not layer(2049, 64, 64, units=1)._narrows
        monkeypatch.setattr(gradients, "NARROW", 65)
        assert not one._narrows
        monkeypatch.setattr(gradients, "NARROW", 64)
        monkeypatch.setattr(gradients, "shortened", lambda tensor: 0.0)
        assert not one._narrows
    monkeypatch.setattr(gradients, "shortened", lambda tensor: 2.0**-9)
    with steady(1 << 20):  # so many units could not be kept
        assert not one._narrows


@pytest.mark.parametrize("name", ["embedding", "masked sentences", "sentences under masks that change"])
def test_captured_runs_in_float16_are_the_ordinary_ones_up_to_its_rounding(name, cut, monkeypatch):
    seen, outers = [], kernels.outers
    monkeypatch.setattr(kernels, "outers", lambda *args: seen.append(args) or outers(*args))
    assert compared(CASES[name]) < 2.0**-9
    assert seen
