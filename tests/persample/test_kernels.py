"""Kernels against plain arithmetic in float64; Triton's interpreter runs them without a GPU."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from helpers.interpreted import interpret
from noisewise.clipping import Flat
from noisewise.persample import formed, kernels
from noisewise.persample.convolution import Convolution, HalfConvolution
from noisewise.persample.formed import ByTap, Formed
from noisewise.persample.gradients import Outer
from noisewise.persample.rounding import lengths, toward_zero
from noisewise.persample.steady import steady

pytest.importorskip("triton")


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels on a CPU."""
    interpret(monkeypatch)


def with_bad_rows(rows):
    """Rows 1 and 3 are not finite, and do not count."""
    rows[1], rows[3] = float("inf"), float("nan")
    factors = torch.rand(len(rows), dtype=torch.float64)
    factors[[1, 3]] = 0
    return rows, factors


def expected_sum(rows, factors):
    keep = factors != 0
    weights = toward_zero(factors[keep], torch.float32).double()
    return (rows[keep].double() * weights.view(-1, *[1] * (rows.dim() - 1))).sum(0)


@pytest.mark.parametrize("shape", [(5, 1), (5, 130), (7, 1500), (2, 4100)])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_lengths_of_rows_are_never_short(shape, scale, interpreted):
    torch.manual_seed(0)
    rows = torch.randn(shape) * scale
    exact = rows.double().norm(dim=1)
    assert kernels.usable(rows)
    assert ((lengths(rows) / exact - 1) >= 0).all()
    torch.testing.assert_close(lengths(rows), exact, rtol=1e-11, atol=0)


def test_masked_rows_are_measured_and_summed_under_the_mask(interpreted):
    torch.manual_seed(0)
    rows, factors = with_bad_rows(torch.randn(6, 4100))
    mask = torch.rand(4100) < 0.5
    part = Formed.masked(rows, mask)
    assert part.grads is rows
    exact = (rows.double() * mask)[[0, 2, 4, 5]].norm(dim=1)
    for found in (part.lengths(), part.squared_lengths().sqrt(), Formed(rows).measure(mask)[0].sqrt()):
        assert (found[[0, 2, 4, 5]] >= exact).all()
        torch.testing.assert_close(found[[0, 2, 4, 5]], exact, rtol=1e-11, atol=0)
    total = part.where(factors != 0).weighted_sum(factors).double()
    assert (total[~mask] == 0).all()
    torch.testing.assert_close(total, expected_sum(rows, factors) * mask, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 1), (70, 65), (130, 200), (5, 8200), (17, 9216)])
def test_sums_leave_out_rows_of_factor_0_whatever_they_hold(shape, interpreted):
    torch.manual_seed(0)
    rows, factors = with_bad_rows(torch.randn(shape))
    keep = factors != 0
    got = Formed(rows).where(keep).weighted_sum(factors)
    torch.testing.assert_close(got.double(), expected_sum(rows, factors), rtol=1e-5, atol=1e-5)


def test_sums_by_tap(interpreted):
    torch.manual_seed(0)
    rows, factors = with_bad_rows(torch.randn(6, 9, 4, 3))
    got = ByTap(rows.transpose(0, 1).contiguous()).where(factors != 0).weighted_sum(factors)
    torch.testing.assert_close(got.permute(2, 0, 1).double(), expected_sum(rows, factors), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
@pytest.mark.parametrize("time", [1, 3])
def test_products_leave_out_rows_of_factor_0_and_keep_in_range(time, scale, interpreted):
    """Both factors of a gradient are scaled by powers of two against each other."""
    torch.manual_seed(0)
    left, factors = with_bad_rows(torch.randn(6, time, 5) / scale)
    right = torch.randn(6, time, 7) * scale
    right[3] = float("nan")
    outer = Outer(left, right).where(factors != 0)
    got = outer.weighted_sum(factors)
    whole = torch.einsum("btr,btc->brc", left.double(), right.double())
    torch.testing.assert_close(got.double(), expected_sum(whole, factors), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize(
    ("channels", "out", "size", "kernel", "stride", "padding", "dilation"),
    [
        (8, 20, (5, 6), (3, 3), (1, 1), (1, 1), (1, 1)),
        (17, 5, (7, 4), (2, 3), (2, 1), (0, 2), (1, 1)),
        (9, 16, (5, 5), (2, 2), (1, 1), (2, 2), (2, 2)),
        (10, 70, (3, 3), (1, 1), (1, 1), (0, 0), (1, 1)),
        (12, 3, (11,), (4,), (2,), (1,), (1,)),
    ],
)
def test_convolutions_by_tap_are_autograds(channels, out, size, kernel, stride, padding, dilation, masked, interpreted):
    """Against autograd for each unit alone, in float64."""
    torch.manual_seed(0)
    convolve = F.conv2d if len(kernel) == 2 else F.conv1d
    given, weight = torch.randn(3, channels, *size), torch.randn(out, channels, *kernel, dtype=torch.float64)
    mask = torch.rand(weight.shape) < 0.5 if masked else None
    settings = {"stride": stride, "padding": padding, "dilation": dilation}
    grad = torch.randn(convolve(given.double(), weight, **settings).shape)
    pads = tuple((pad, pad) for pad in padding)
    gradient = Convolution(given, grad, kernel, stride, pads, dilation, 1)
    assert gradient._walks
    by_tap, squares = kernels.form_taps(grad, given, kernel, stride, pads, dilation, mask, cut=False)
    for unit in range(3):
        one = weight.clone().requires_grad_()
        (convolve(given[unit : unit + 1].double(), one, **settings) * grad[unit]).sum().backward()
        exact = one.grad if mask is None else one.grad * mask
        assert ((by_tap[:, unit] - exact.flatten(2).permute(2, 0, 1)).norm() / exact.norm()).item() < 1e-5
        assert abs(squares[unit].item() / by_tap[:, unit].double().square().sum().item() - 1) < 1e-12
    measured, rest = gradient.measure(mask)
    assert (measured.sqrt() >= by_tap.double().square().sum((0, 2, 3)).sqrt() * (1 - 1e-6)).all()
    ones = rest.weighted_sum(torch.ones(3, dtype=torch.float64)).flatten()
    total = by_tap.double().sum(1).permute(1, 2, 0).flatten()
    assert ((ones - total).norm() / total.norm()).item() < 1e-5


@pytest.fixture
def taps_of_programs(monkeypatch):
    """How many taps a program of each launch made."""
    launch, made = kernels._triton("kernels")._launch, []

    def noted(kernel, grid, *args, **settings):
        made.append(settings["TAPS"])
        launch(kernel, grid, *args, **settings)

    monkeypatch.setattr(kernels._triton("kernels"), "_launch", noted)
    return made


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("channels", "out", "size", "kernel", "stride", "padding", "dilation"),
    [
        (8, 20, (5, 6), (3, 3), (1, 1), (1, 1), (1, 1)),
        (17, 70, (7, 9), (2, 3), (2, 2), (0, 2), (1, 1)),
        (70, 16, (9, 9), (3, 3), (1, 1), (2, 2), (2, 2)),
        (12, 3, (40,), (3,), (2,), (1,), (3,)),
    ],
)
def test_three_taps_at_once_are_bit_for_bit_those_of_one_at_a_time(
    channels, out, size, kernel, stride, padding, dilation, kind, masked, interpreted, monkeypatch, taps_of_programs
):
    """And those of unfolding in float64; sums of squares are added up in the same order too."""
    torch.manual_seed(0)
    convolve = F.conv2d if len(kernel) == 2 else F.conv1d
    given, weight = torch.randn(3, channels, *size).to(kind), torch.randn(out, channels, *kernel)
    mask = torch.rand(weight.shape) < 0.5 if masked else None
    sides = convolve(given.float(), weight, stride=stride, padding=padding, dilation=dilation).shape
    grad, pads = torch.randn(sides).to(kind), tuple((pad, pad) for pad in padding)
    setup = (grad, given, kernel, stride, pads, dilation, mask)
    cut = kind == torch.float32
    monkeypatch.setattr(kernels._triton("kernels"), "TILE_OUT", 64)
    with steady(3):
        grads, squares = kernels.form_taps(*setup, cut=cut, kind=kind)
        _, measured = kernels.form_taps(*setup, cut=cut, stored=False)
        monkeypatch.setattr(kernels._triton("kernels"), "ROW_OF_TAPS", False)
        others, their_squares = kernels.form_taps(*setup, cut=cut, kind=kind)
        _, their_measured = kernels.form_taps(*setup, cut=cut, stored=False)
    assert taps_of_programs == [3, 3, 1, 1]
    assert torch.equal(grads, others)
    assert torch.equal(squares, their_squares)
    assert torch.equal(measured, their_measured)
    exact = Convolution(given.double(), grad.double(), kernel, stride, pads, dilation, 1)._unfolded(slice(None))
    exact = exact.view(3, *weight.shape) * (1 if mask is None else mask)
    exact = exact.flatten(3).permute(3, 0, 1, 2)
    tolerance = 1e-5 if kind == torch.float32 else 2.0**-8
    torch.testing.assert_close(grads.double(), exact, rtol=1.01 * tolerance, atol=1e-5)
    torch.testing.assert_close(measured, exact.square().sum((0, 2, 3)), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("width", "out", "cut", "taps"), [(3, 64, True, 3), (3, 65, True, 1), (2, 64, True, 1), (3, 64, False, 1)]
)
def test_programs_make_three_taps_where_their_sums_fit_and_products_are_compiled_quickly(
    width, out, cut, taps, interpreted, taps_of_programs
):
    given, grad = torch.randn(1, 64, 2), torch.randn(1, out, 4 - width)
    with steady(1):
        kernels.form_taps(grad, given, (width,), (1,), ((0, 1),), (1,), None, cut=cut)
    assert taps_of_programs == [taps]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("channels", "groups", "size"), [(6, 2, (3, 5)), (4, 4, (7,)), (12, 3, (1, 1))])
def test_group_norms_are_autograds(channels, groups, size, kind, interpreted):
    """Inputs in half precision, which an autocast widens for the layer, are read as they are."""
    torch.manual_seed(0)
    given, grad = (50 + torch.randn(3, channels, *size)).to(kind), torch.randn(3, channels, *size)
    weight, bias = kernels.group_norm(grad, given, groups, 1e-5)
    for unit in range(3):
        w, b = (torch.zeros(channels, dtype=torch.float64).requires_grad_() for _ in range(2))
        (F.group_norm(given[unit : unit + 1].double(), groups, w, b) * grad[unit]).sum().backward()
        torch.testing.assert_close(weight[unit].double(), w.grad, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(bias[unit].double(), b.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("time", "width"), [(1, 5), (3, 8), (17, 33)])
def test_layer_norms_are_autograds(time, width, kind, interpreted):
    torch.manual_seed(0)
    given, grad = (50 + torch.randn(3, time, width)).to(kind), torch.randn(3, time, width)
    weight, bias = kernels.layer_norm(grad, given, width, 1e-5)
    for unit in range(3):
        w, b = (torch.zeros(width, dtype=torch.float64).requires_grad_() for _ in range(2))
        (F.layer_norm(given[unit].double(), (width,), w, b) * grad[unit]).sum().backward()
        torch.testing.assert_close(weight[unit].double(), w.grad, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(bias[unit].double(), b.grad, rtol=1e-4, atol=1e-5)


def test_convolutions_leave_out_rows_of_factor_0(interpreted):
    torch.manual_seed(0)
    given, factors = with_bad_rows(torch.randn(5, 3, 6, 6))
    grad = torch.randn(5, 4, 6, 6)
    setup = ((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    got = Convolution(given, grad, *setup).where(factors != 0).weighted_sum(factors)
    keep = factors != 0
    each = Convolution(given[keep], grad[keep], *setup).formed().view(-1, *got.shape)
    torch.testing.assert_close(got.double(), expected_sum(each, factors[keep]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
@pytest.mark.parametrize(("rows", "columns"), [(5, 7), (40, 3), (70, 1100)])
def test_masked_norms_of_single_products_are_never_short(rows, columns, scale, interpreted):
    """Also where the mask leaves only what is small beside the rest."""
    torch.manual_seed(0)
    left, right = torch.randn(6, 1, rows) / scale, torch.randn(6, 1, columns) * scale
    left[1, 0, 0] *= 1e4
    left[2] = 0
    mask = torch.rand(rows, columns) < 0.5
    mask[0] = False
    with steady(6):
        squares, rest = Outer(left, right).measure(mask)
    whole = torch.einsum("br,bc->brc", left[:, 0].double(), right[:, 0].double()) * mask
    exact = whole.flatten(1).square().sum(1)
    assert (squares >= exact * (1 - 1e-12)).all()
    usual = [0, 3, 4, 5]
    torch.testing.assert_close(squares[usual], exact[usual], rtol=3e-3, atol=0)
    assert squares[1] <= exact[1] + 1e-6 * (left[1].double().norm() * right[1].double().norm()) ** 2
    factors = torch.rand(6, dtype=torch.float64)
    torch.testing.assert_close(rest.weighted_sum(factors).double(), expected_sum(whole, factors), rtol=1e-4, atol=1e-5)


def test_masked_convolutions_of_few_positions_are_measured_without_being_stored(interpreted):
    torch.manual_seed(0)
    given, grad = torch.randn(4, 40, 2, 2), torch.randn(4, 50, 2, 2)
    mask = torch.rand(50, 40, 3, 3) < 0.5
    layer = Convolution(given, grad, (3, 3), (1, 1), ((1, 1),) * 2, (1, 1), 1)
    assert layer._few_positions
    with steady(4):
        squares, rest = layer.measure(mask)
    whole = layer.formed().double().view(4, 50, 40, 3, 3) * mask
    exact = whole.flatten(1).square().sum(1)
    assert isinstance(rest, Convolution)
    assert (squares >= exact).all()
    torch.testing.assert_close(squares, exact, rtol=1e-3, atol=0)
    factors = torch.rand(4, dtype=torch.float64)
    torch.testing.assert_close(rest.weighted_sum(factors).double(), expected_sum(whole, factors), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_convolutions_too_large_to_be_kept_are_formed_once_and_not_stored(masked, interpreted, monkeypatch):
    """In a captured step: norms by the kernel, with room for the rounding of a sum that cuDNN computes."""
    torch.manual_seed(0)
    given, grad = torch.randn(4, 9, 6, 6), torch.randn(4, 10, 3, 3)
    mask = torch.rand(10, 9, 3, 3) < 0.5 if masked else None
    layer = Convolution(given, grad, (3, 3), (2, 2), ((1, 1),) * 2, (1, 1), 1)
    stored = []
    form = kernels._triton("kernels").form_taps
    monkeypatch.setattr(
        kernels._triton("kernels"), "form_taps", lambda *a, **s: stored.append(s["stored"]) or form(*a, **s)
    )
    monkeypatch.setattr(formed, "CUDA_KEPT", 100)
    monkeypatch.setattr(formed, "KEPT", 100)
    with steady(4):
        squares, rest = layer.measure(mask)
    assert stored == [False]
    assert isinstance(rest, Convolution)
    whole = layer.formed().double().view(4, 10, 9, 3, 3) * (1 if mask is None else mask)
    exact = whole.flatten(1).square().sum(1)
    assert (squares >= exact).all()
    torch.testing.assert_close(squares, exact, rtol=1e-3, atol=0)
    factors = torch.rand(4, dtype=torch.float64)
    torch.testing.assert_close(rest.weighted_sum(factors).double(), expected_sum(whole, factors), rtol=1e-4, atol=1e-5)


def test_each_of_several_masks_is_for_as_many_rows(interpreted):
    torch.manual_seed(0)
    rows, masks = torch.randn(6, 1500), torch.rand(2, 1500) < 0.5
    rows[4, ~masks[1]] = float("nan")
    exact = torch.where(masks.repeat_interleave(3, 0), rows.double(), 0).square().sum(1)
    torch.testing.assert_close(kernels.squares(rows, mask=masks), exact, rtol=1e-13, atol=0)


def test_measured_gradients_have_the_norms_and_sums_of_the_portable_way(interpreted, monkeypatch):
    torch.manual_seed(0)
    pieces = {
        "outer": Outer(torch.randn(6, 1, 5), torch.randn(6, 1, 7)),
        "over time": Outer(torch.randn(6, 4, 5), torch.randn(6, 4, 7)),
        "long": Outer(1e-25 * torch.randn(6, 1, 5), 1e25 * torch.randn(6, 1, 7)),
        "convolution": Convolution(
            torch.randn(6, 8, 5, 5), torch.randn(6, 4, 5, 5), (3, 3), (1, 1), ((1, 1),) * 2, (1, 1), 1
        ),
    }
    for piece in pieces.values():
        squares, rest = piece.measure(None)
        factors = Flat(0.5).factors(type("Samples", (), {"norms": squares.sqrt()}))
        got = rest.weighted_sum(factors)
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "ENABLED", False)
            other, rest = replace(piece).measure(None)
            torch.testing.assert_close(squares, other, rtol=1e-4, atol=0)
            torch.testing.assert_close(got.flatten(), rest.weighted_sum(factors).flatten(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_convolutions_of_halves_are_read_as_they_are(masked, kind, interpreted, monkeypatch):
    torch.manual_seed(0)
    given, grad = torch.randn(3, 8, 6, 6).to(kind), torch.randn(3, 9, 6, 6).to(kind)
    mask = torch.rand(9, 8, 3, 3) < 0.5 if masked else None
    narrow = Convolution(given, grad, (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1)
    monkeypatch.setattr(Convolution, "_few_positions", False)
    factors = torch.rand(3, dtype=torch.float64)
    with steady(3):
        assert narrow.keeps_what_it_forms
        half = HalfConvolution(narrow)
        squares, rest = half.measure(mask)
        assert "wide" not in vars(half)
        expected, plain = half.wide.measure(mask)
        total = rest.weighted_sum(factors)
    kept = torch.bfloat16 if kind == torch.bfloat16 else torch.float32  # float16 has too small a range
    assert all(part.grads.dtype == kept for part in rest.chunks)
    tolerance = 2.0**-8 if kind == torch.bfloat16 else 1e-6
    torch.testing.assert_close(squares, expected, rtol=tolerance, atol=0)
    assert total.dtype == torch.float32
    far = (total - plain.weighted_sum(factors)).norm() / total.norm()
    assert far < tolerance


def kept_in_bfloat16(given, grad, kernel, mask=None):
    """Of a captured step that forms and keeps: squares, what is left to sum, and the gradients in float64."""
    pads = tuple((side // 2,) * 2 for side in kernel)
    narrow = Convolution(given, grad, kernel, (1,) * len(kernel), pads, (1,) * len(kernel), 1)
    with steady(len(grad)):
        assert narrow.keeps_what_it_forms
        squares, rest = HalfConvolution(narrow).measure(mask)
    whole = replace(narrow, input=given.double(), grad=grad.double())._unfolded(slice(None))
    return squares, rest, whole if mask is None else whole * mask.flatten()


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("channels", [3, 9], ids=["gathered", "walked"])
def test_what_is_made_of_bfloat16_is_measured_as_it_is_kept(channels, masked, interpreted, monkeypatch):
    """Rounded to the nearest; squares and sums are those of the rounded numbers, and a unit is within its bound."""
    torch.manual_seed(0)
    monkeypatch.setattr(Convolution, "_few_positions", False)
    given, grad = torch.randn(4, channels, 6, 6).bfloat16(), torch.randn(4, 40, 6, 6).bfloat16()
    mask = torch.rand(40, channels, 3, 3) < 0.5 if masked else None
    squares, rest, exact = kept_in_bfloat16(given, grad, (3, 3), mask)
    (part,) = rest.chunks
    assert part.grads.dtype == torch.bfloat16
    assert kernels.adds(part.grads)
    kept = part.formed().double()
    off = (kept - exact).abs() / exact.abs().clamp(min=1e-3)
    assert off.max() <= 1.01 * 2.0**-8  # half of the last of eight bits
    own = kept.square().sum(1)
    assert (squares >= own).all()
    torch.testing.assert_close(squares, own, rtol=1e-11, atol=0)
    factors = torch.tensor([0.5, 0.0, 1e-3, 0.25], dtype=torch.float64)
    total = rest.where(factors != 0).weighted_sum(factors)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total.double().flatten(), expected_sum(kept, factors), rtol=1e-5, atol=1e-6)
    for unit in range(4):
        alone = torch.zeros(4, dtype=torch.float64)
        alone[unit] = 1 / squares[unit].sqrt()
        assert rest.weighted_sum(alone).double().norm() <= 1 + 1e-7
    monkeypatch.setattr(kernels, "ENABLED", False)
    portable = rest.where(factors != 0).weighted_sum(factors)
    torch.testing.assert_close(portable.flatten(), total.flatten(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("channels", [3, 9], ids=["gathered", "walked"])
def test_what_rounding_to_bfloat16_makes_infinite_does_not_count(channels, interpreted, monkeypatch):
    """2^127 (2 - 2^-10) is finite in float32, and infinite rounded to eight bits; just below, and tiny ones, stay."""
    monkeypatch.setattr(Convolution, "_few_positions", False)
    given, grad = torch.zeros(4, channels, 2), torch.zeros(4, 8, 2)
    given[0, 0], grad[0, 0] = torch.tensor([1.9921875 * 2.0**64, 2.0**60]), torch.tensor([2.0**63, 0.875 * 2.0**60])
    given[1, 0, 0], grad[1, 0, 0] = 1.9921875 * 2.0**64, 2.0**63
    given[2, 0, 0], grad[2, 0, 0] = 2.0**-60, 2.0**-60
    given[3, 0, 0] = float("nan")
    squares, rest, exact = kept_in_bfloat16(given.bfloat16(), grad.bfloat16(), (1,))
    assert exact[0].max() < torch.finfo(torch.float32).max
    assert squares.isfinite().tolist() == [False, True, True, False]
    torch.testing.assert_close(squares[1:3], exact[1:3].square().sum(1), rtol=1e-12, atol=0)
    keep = squares.isfinite()
    factors = torch.where(keep, 2.0**-100, torch.zeros((), dtype=torch.float64))
    total = rest.where(keep).weighted_sum(factors)
    torch.testing.assert_close(total.double().flatten(), expected_sum(exact, factors).flatten(), rtol=1e-6, atol=0)


def test_halves_are_widened_where_what_is_formed_is_not_kept(interpreted):
    torch.manual_seed(0)
    narrow = Convolution(
        torch.randn(3, 8, 5).bfloat16(), torch.randn(3, 9, 5).bfloat16(), (1,), (1,), ((0, 0),), (1,), 1
    )
    half = HalfConvolution(narrow)
    squares, rest = half.measure(None)  # an ordinary step
    assert "wide" in vars(half)
    exact = torch.einsum("bot,bit->boi", narrow.grad.double(), narrow.input.double())
    torch.testing.assert_close(squares, exact.square().sum((1, 2)), rtol=1e-2, atol=0)
    assert rest.weighted_sum(torch.ones(3, dtype=torch.float64)).dtype == torch.float32


def test_in_a_rehearsal_kernels_are_made_ready_and_none_is_run(interpreted, monkeypatch):
    asked = []

    class Kernel:
        def warmup(self, *args, grid, **settings):
            asked.append("ready")

        def __getitem__(self, grid):
            return lambda *args, **settings: asked.append("run")

    monkeypatch.setattr(kernels._triton("kernels"), "_squares", Kernel())
    rows = torch.randn(3, 5)
    with kernels.rehearsal(rows.device):
        kernels.squares(rows)
    kernels.squares(rows)
    assert asked == ["ready", "run"]


def test_where_there_are_no_kernels_a_rehearsal_is_any_pass(monkeypatch):
    monkeypatch.setattr(kernels, "_triton", None)
    with kernels.rehearsal(torch.device("cpu")):
        assert not kernels.usable(torch.randn(3, 5))
    kernels.get_ready(torch.device("cpu"))


@pytest.mark.parametrize(("cut", "captured", "tile"), [(True, False, 128), (False, True, 128), (False, False, 32)])
def test_full_precision_has_small_tiles_outside_of_captured_steps(cut, captured, tile, interpreted, monkeypatch):
    """They take a tenth of the time to compile; results are those of autograd either way (above)."""
    made = []
    monkeypatch.setattr(
        kernels._triton("kernels"), "_launch", lambda kernel, grid, *a, **settings: made.append(settings["OUT"])
    )
    images = torch.randn(2, 128, 3, 3), torch.randn(2, 128, 3, 3), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), None
    if captured:
        with steady(2):
            kernels.form_taps(*images, cut=cut)
    else:
        kernels.form_taps(*images, cut=cut)
    assert made == [tile]


TWICE = [
    "_taps",
    "_gathered",
    "_outers",
    "_halved",
    "_weighted",
    "_weighted_by_row",
    "_pair",
]  # masks, halves, turned or not


@pytest.fixture(scope="module")
def absent(tmp_path_factory):
    """What is compiled for a GPU that is not there; in a process without the interpreter."""
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(Path(kernels.__file__).parents[2]), str(tests)])
    cache = tmp_path_factory.mktemp("compiled")
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache), "PYTHONPATH": paths}
    command = [sys.executable, "-m", "helpers.absent_gpu", "48", "101"]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300).stdout)


def test_kernels_are_compiled_once_whatever_the_number_of_units(absent):
    one, other = absent["steps"]
    assert one == other == dict.fromkeys(one, 1) | dict.fromkeys(TWICE, 2)


def test_launchers_are_made_with_their_kernels(absent):
    assert sorted(absent["launchers"]) == sorted([*absent["steps"][0], *TWICE])


def test_what_is_made_ready_at_the_start_serves_other_numbers_of_units_channels_and_strides(absent):
    assert absent["ready"] == absent["examined"]
