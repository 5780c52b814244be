"""Convolutions with few channels in a captured step: gathered by one kernel, against unfolding in float64."""

from dataclasses import replace

import pytest
import torch

from helpers.interpreted import interpret
from noisewise.persample import convolution, kernels
from noisewise.persample.convolution import Convolution, HalfConvolution
from noisewise.persample.steady import steady

pytest.importorskip("triton")


@pytest.fixture
def cut(monkeypatch):
    """Kernels on a CPU, with settings that let products be cut."""
    interpret(monkeypatch)
    monkeypatch.setattr(convolution, "shortened", lambda tensor, **_: 2.0**-9 if tensor.dtype == torch.float32 else 0.0)


def layer(channels, out, size, kernel, stride=1, padding=0, dilation=1, units=4, kind=torch.float32):
    axes = len(kernel)
    reach = [dilation * (k - 1) + 1 for k in kernel]
    side = [(size + 2 * padding - r) // stride + 1 for r in reach]
    given, grad = torch.randn(units, channels, *[size] * axes).to(kind), torch.randn(units, out, *side).to(kind)
    return Convolution(given, grad, kernel, (stride,) * axes, ((padding,) * 2,) * axes, (dilation,) * axes, 1)


def exactly(one):
    return replace(one, input=one.input.double(), grad=one.grad.double())._unfolded(slice(None))


SHAPES = [
    (1, 16, 28, (8, 8), 2, 3),
    (3, 20, 9, (3, 3), 1, 1),
    (3, 70, 7, (3, 3), 2, 1, 2),
    (2, 5, 11, (5,), 1, 2),
    (7, 33, 6, (1, 1)),
    (4, 300, 5, (7, 7), 1, 3),
]


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gathered_gradients_are_those_of_unfolding(shape, masked, cut):
    torch.manual_seed(0)
    one = layer(*shape)
    mask = torch.rand(one.grad.shape[1], one.input.shape[1], *one.kernel) < 0.5 if masked else None
    exact = exactly(one) * (1 if mask is None else mask.flatten())
    factors = torch.tensor([0.5, 0.0, 1.0, 0.25], dtype=torch.float64)
    with steady(4):
        assert one._gathers
        assert one.keeps_what_it_forms
        squares, rest = one.measure(mask)
        total = rest.weighted_sum(factors)
    torch.testing.assert_close(squares, exact.square().sum(1), rtol=1e-5, atol=0)
    kept = rest.chunks[0].formed().double()
    torch.testing.assert_close(kept, exact, rtol=1e-4, atol=1e-4)
    assert (squares >= kept.square().sum(1)).all()  # what was measured is what is summed
    expected = (factors @ exact).view(-1)
    torch.testing.assert_close(total.double().reshape(-1), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_gathered_as_they_are(kind, cut):
    torch.manual_seed(0)
    narrow = layer(3, 20, 9, (3, 3), 1, 1, kind=kind)
    half = HalfConvolution(narrow)
    with steady(4):
        squares, rest = half.measure(None)
        total = rest.weighted_sum(torch.ones(4, dtype=torch.float64))
    assert "wide" not in vars(half)
    exact, tolerance = exactly(narrow), 2.0**-8 if kind == torch.bfloat16 else 1e-5  # kept in bfloat16 too
    torch.testing.assert_close(squares, exact.square().sum(1), rtol=tolerance, atol=0)
    assert (total.double().reshape(-1) - exact.sum(0)).norm() < tolerance * exact.sum(0).norm()


def test_rows_that_are_not_finite_and_do_not_count_do_not_matter(cut):
    torch.manual_seed(0)
    one = layer(1, 4, 6, (3, 3))
    one.input[1] = float("nan")
    factors = torch.tensor([0.5, 0.0, 1.0, 0.25], dtype=torch.float64)
    with steady(4):
        squares, rest = one.measure(None)
        total = rest.where(squares.isfinite()).weighted_sum(factors)
    assert squares.isnan().tolist() == [False, True, False, False]
    exact = exactly(replace(one, input=one.input.nan_to_num(0.0)))
    torch.testing.assert_close(total.double().reshape(-1), factors @ exact, rtol=1e-4, atol=1e-4)


def test_only_captured_steps_with_products_that_may_be_cut_gather(cut, monkeypatch):
    few, many = layer(3, 4, 6, (3, 3)), layer(8, 4, 6, (3, 3))
    large = layer(7, 4, 9, (7, 7))
    assert not few._gathers
    with steady(4):
        assert few._gathers
        assert not many._gathers
        assert not large._gathers  # 343 columns
        monkeypatch.setattr(kernels, "ENABLED", False)
        assert not few._gathers
        monkeypatch.setattr(kernels, "ENABLED", True)
        monkeypatch.setattr(convolution, "shortened", lambda *_, **__: 0.0)
        assert not few._gathers
