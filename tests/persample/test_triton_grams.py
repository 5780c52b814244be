"""Norms of convolutions by Gram matrices against formed gradients in float64; Triton's interpreter runs the kernel."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from helpers.interpreted import interpret
from noisewise.persample import convolution, kernels, rounding
from noisewise.persample.convolution import Convolution
from noisewise.persample.rounding import lengths
from noisewise.persample.steady import steady

pytest.importorskip("triton")
triton_grams = kernels._triton("grams")


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels on a CPU."""
    interpret(monkeypatch)


FEW = [
    (20, 40, (4, 4), (3, 3), (1, 1), (1, 1), (1, 1)),
    (33, 70, (8, 7), (3, 3), (2, 2), (1, 1), (1, 1)),
    (9, 64, (5, 5), (2, 3), (1, 1), (2, 0), (2, 1)),
    (40, 80, (7, 7), (1, 1), (2, 2), (0, 0), (1, 1)),
    (30, 60, (11,), (4,), (2,), (1,), (1,)),
]


@pytest.mark.parametrize("scale", [1.0, 1e-18, 1e14])
@pytest.mark.parametrize(("channels", "out", "size", "kernel", "stride", "padding", "dilation"), FEW)
def test_norms_of_convolutions_by_gram_matrices_are_never_short(
    channels, out, size, kernel, stride, padding, dilation, scale, interpreted, monkeypatch
):
    """Of ordinary units close to exact, of one whose positions cancel and of none never short."""
    torch.manual_seed(0)
    convolve, padded = (F.conv2d if len(kernel) == 2 else F.conv1d), tuple((pad, pad) for pad in padding)
    given = torch.randn(5, channels, *size) * scale
    shape = convolve(given, torch.zeros(out, channels, *kernel), None, stride, padding, dilation).shape
    grad = torch.randn(shape) * scale
    given[1] = scale
    grad[1] -= grad[1].flatten(1).mean(1).view(out, *[1] * len(size))
    grad[2] = 0
    given[3, 0, 0] *= 1e6
    layer = Convolution(given, grad, kernel, stride, padded, dilation, 1)
    monkeypatch.setattr(convolution, "shortened", lambda *a, **s: 2.0**-9)
    monkeypatch.setattr(rounding, "shortened", lambda *a, **s: 2.0**-9)
    monkeypatch.setattr(Convolution, "_in_one_tile", True)
    with steady(5):
        squares, rest = layer.measure(None)
    assert isinstance(rest, Convolution)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "ENABLED", False)
        wide = replace(layer, input=given.double(), grad=grad.double())
        exact = wide.formed().flatten(1).square().sum(1)
    assert (squares >= exact).all()
    assert squares[2] <= 1e-12 * exact[0]
    assert (squares[[0, 4]] <= 1.2 * exact[[0, 4]]).all()
    factors = torch.rand(5, dtype=torch.float64)
    total = (wide.formed().flatten(1) * factors[:, None]).sum(0)
    torch.testing.assert_close(rest.weighted_sum(factors).flatten().double(), total, rtol=1e-3, atol=1e-3 * scale**2)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize(("channels", "out", "size", "kernel", "stride", "padding", "dilation"), FEW)
def test_squares_of_units_in_turn_are_those_of_stored_gradients(
    channels, out, size, kernel, stride, padding, dilation, masked, interpreted, monkeypatch
):
    """Five units, two by a program; one that is no number does not touch the others."""
    torch.manual_seed(0)
    monkeypatch.setattr(triton_grams, "IN_TURN", 2)
    convolve, padded = (F.conv2d if len(kernel) == 2 else F.conv1d), tuple((pad, pad) for pad in padding)
    given, weight = torch.randn(5, channels, *size), torch.zeros(out, channels, *kernel)
    given[3, 0] = float("nan")
    grad = torch.randn(convolve(given, weight, None, stride, padding, dilation).shape)
    mask = torch.rand(weight.shape) < 0.5 if masked else None
    setup = (grad, given, kernel, stride, padded, dilation, mask)
    expected = kernels.form_taps(*setup, cut=True, stored=False)[1]
    got = kernels.tap_squares(*setup, cut=True)
    assert not got[3].isfinite()
    for unit in (0, 1, 2, 4):
        assert abs(float(got[unit] / expected[unit]) - 1) < 1e-6


@pytest.mark.parametrize("cut", [True, False])
def test_under_a_mask_few_positions_are_walked_by_units_in_turn_where_products_are_cut(cut, interpreted, monkeypatch):
    torch.manual_seed(0)
    layer = Convolution(torch.randn(3, 20, 4, 4), torch.randn(3, 30, 4, 4), (3, 3), (1, 1), ((1, 1),) * 2, (1, 1), 1)
    mask, asked = torch.rand(30, 20, 3, 3) < 0.5, []
    real = kernels.tap_squares
    monkeypatch.setattr(kernels, "tap_squares", lambda *a, **s: asked.append(a) or real(*a, **s))
    monkeypatch.setattr(convolution, "shortened", lambda *a, **s: 2.0**-9 if cut else 0.0)
    exact = (layer.formed().view(3, 30, 20, 3, 3).double() * mask).flatten(1).square().sum(1)
    assert (layer._walked(mask) >= exact).all()
    assert bool(asked) == cut


def test_gram_matrices_of_convolutions_are_right_to_the_last_bits(interpreted):
    """With next to nothing allowed for rounding, norms and lengths of unfolded inputs are those of float64."""
    torch.manual_seed(0)
    given, grad = torch.randn(3, 40, 5, 5), torch.randn(3, 20, 3, 3)
    layer = Convolution(given, grad, (3, 3), (2, 2), ((1, 1),) * 2, (1, 1), 1)
    sizes = tuple(lengths(part.flatten(1)) for part in (grad, given))
    setup = ((3, 3), (2, 2), ((1, 1),) * 2, (1, 1))
    squares, unfolded = kernels.tap_grams(grad, given, *setup, sizes, (0.0, 0.0, 0.0), cut=False)
    exact = layer.formed().double().flatten(1).square().sum(1)
    torch.testing.assert_close(squares, exact, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        unfolded, layer._columns(slice(None)).double().square().sum((1, 2, 3)), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("signs", ["any", "one"])
def test_factors_that_are_cut_off_are_allowed_for(signs, interpreted):
    """As tensor cores read float32 for TF32: 10 bits behind the leading one."""
    torch.manual_seed(0)
    given, grad = torch.randn(4, 20, 4, 4), torch.randn(4, 30, 4, 4)
    if signs == "one":
        given, grad = given.abs(), grad.abs()
    layer = Convolution(given, grad, (3, 3), (1, 1), ((1, 1),) * 2, (1, 1), 1)
    off = [(part.view(torch.int32) & -(1 << 13)).view(torch.float32) for part in (grad, given)]
    sizes = tuple(lengths(part.flatten(1)) for part in (grad, given))
    setup = ((3, 3), (1, 1), ((1, 1),) * 2, (1, 1))
    squares, _ = kernels.tap_grams(*off, *setup, sizes, (1.01 * 2.0**-9,) * 2 + (0.0,), cut=False)
    exact = layer.formed().double().flatten(1).square().sum(1)
    assert (squares >= exact).all()
    without, _ = kernels.tap_grams(*off, *setup, sizes, (0.0, 0.0, 0.0), cut=False)
    assert (without < exact).all()


def test_norms_have_room_for_the_sum_that_is_computed_later(interpreted, monkeypatch):
    """`rounding |grad| |unfolded input|` more than Gram matrices say."""
    torch.manual_seed(0)
    given, grad = torch.randn(4, 20, 4, 4), torch.randn(4, 30, 4, 4)
    layer = Convolution(given, grad, (3, 3), (1, 1), ((1, 1),) * 2, (1, 1), 1)
    unfolded = layer._columns(slice(None)).double().flatten(1).norm(dim=1)
    exact = layer.formed().double().flatten(1).norm(dim=1)
    room = grad.double().flatten(1).norm(dim=1) * unfolded
    monkeypatch.setattr(Convolution, "_roundoff", 0.5)
    assert (layer._tap_grams().sqrt() >= exact + 0.5 * room).all()


def test_gram_matrices_are_asked_in_captured_steps_where_they_are_worth_it(interpreted, monkeypatch):
    def layer(channels, out, size, stride=1):
        given, side = torch.zeros(1, channels, size, size), size // stride
        return Convolution(given, torch.zeros(1, out, side, side), (3, 3), (stride, stride), ((1, 1),) * 2, (1, 1), 1)

    monkeypatch.setattr(convolution, "shortened", lambda *a, **s: 2.0**-9)
    assert not layer(512, 512, 4)._in_one_tile  # an ordinary step
    with steady(8):
        asked = {
            key: layer(*key)._in_one_tile for key in [(512, 512, 4), (256, 512, 8, 2), (256, 256, 8), (128, 128, 16)]
        }
        assert list(asked.values()) == [True, True, False, False]
        assert not layer(64, 128, 8)._in_one_tile
        monkeypatch.setattr(convolution, "shortened", lambda *a, **s: 0.0)
        assert not layer(512, 512, 4)._in_one_tile
