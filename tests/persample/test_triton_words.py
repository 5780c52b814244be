"""Masks in words against masks laid on gradients; Triton's interpreter runs the kernels."""

import math
from contextlib import nullcontext

import pytest
import torch

from helpers.interpreted import interpret
from noisewise.persample import kernels, laid
from noisewise.persample.steady import steady

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, in the interpreter

PLAIN = ((1, 1), ((1, 1), (1, 1)), (1, 1))  # stride, padding, dilation
FAR = 150  # columns: beyond the first tile, the first words, and what a multiple of the widest tile holds


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Kernels on a CPU."""
    interpret(monkeypatch)


def images(out, channels, size=2, units=2):
    torch.manual_seed(0)
    return torch.randn(units, out, size, size), torch.randn(units, channels, size, size)


def stored(ways, mask, grad, given):
    """Gradients `[batch, out, in, 3, 3]` and squares by a kernel."""
    if ways == "gathered":
        formed, squares = kernels.gather_taps(grad, given, (3, 3), *PLAIN, mask)
        return formed.view(-1, *mask.shape), squares
    formed, squares = kernels.form_taps(grad, given, (3, 3), *PLAIN, mask, cut=ways == "three taps")
    return formed.permute(1, 2, 3, 0).reshape(-1, *mask.shape), squares


MASKS = {
    "half": lambda *shape: torch.rand(shape) < 0.5,
    "none": lambda *shape: torch.zeros(shape, dtype=torch.bool),
    "all": lambda *shape: torch.ones(shape, dtype=torch.bool),
    "the last": lambda *shape: (torch.arange(math.prod(shape)) == math.prod(shape) - 1).view(shape),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(
    ("ways", "out", "channels"),
    [("small tiles", 40, FAR), ("large tiles", 140, FAR), ("three taps", 60, FAR), ("gathered", 70, 17)],
)
def test_what_is_stored_and_squared_is_masked_bit_for_bit(ways, out, channels, name):
    """Over several tiles and words, whose last ones reach beyond the channels."""
    grad, given = images(out, channels)
    shape = (out, channels, 3, 3)
    mask = MASKS[name](*shape)
    with nullcontext() if ways == "small tiles" else steady(2):
        whole, _ = stored(ways, MASKS["all"](*shape), grad, given)
        masked, squares = stored(ways, mask, grad, given)
    assert torch.equal(masked, torch.where(mask, whole, 0.0))
    torch.testing.assert_close(squares, masked.double().square().sum((1, 2, 3, 4)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", MASKS)
def test_gradients_in_float16_are_masked_bit_for_bit(name):
    torch.manual_seed(0)
    left, right = (kernels.narrowed(torch.randn(3, 9, width)) for width in (130, FAR))
    mask = MASKS[name](130, FAR)
    whole, scales, _ = kernels.outers(left, right, MASKS["all"](130, FAR))
    masked, _, squares = kernels.outers(left, right, mask)
    assert torch.equal(masked, torch.where(mask.flatten(), whole, 0.0))
    exact = (masked.double() * scales[:, None]).square().sum(1)
    assert (squares >= exact).all()
    torch.testing.assert_close(squares, exact, rtol=2.0**-15, atol=0)


@pytest.mark.parametrize("ways", ["large tiles", "three taps", "gathered"])
def test_what_is_no_number_counts_only_where_the_mask_is(ways):
    grad, given = images(20, 9, units=4)
    mask = MASKS["half"](20, 9, 3, 3)
    mask[3] = False
    _, lengths = stored(ways, mask, grad, given)
    grad[1, 3] = float("nan")
    grad[2, 4] = float("inf")
    with steady(4):
        formed, squares = stored(ways, mask, grad, given)
    assert squares.isfinite().tolist() == [True, True, False, True]
    assert not formed[1, 3].any()
    torch.testing.assert_close(squares[[0, 3]], lengths[[0, 3]], rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["half", "none"])
def test_squares_of_units_in_turn_are_masked_whoever_else_is_there(name, monkeypatch):
    """Bit for bit the same alone, in another place, and beside units that are no numbers."""
    monkeypatch.setattr(kernels._triton("grams"), "IN_TURN", 2)
    grad, given = images(140, FAR, units=5)
    mask = MASKS[name](140, FAR, 3, 3)
    squares = kernels.tap_squares(grad, given, (3, 3), *PLAIN, mask, cut=True)
    with steady(5):
        formed, _ = stored("large tiles", mask, grad, given)
    torch.testing.assert_close(squares, formed.double().square().sum((1, 2, 3, 4)), rtol=1e-5, atol=0)
    turned = kernels.tap_squares(grad.flip(0), given.flip(0), (3, 3), *PLAIN, mask, cut=True)
    assert torch.equal(turned.flip(0), squares)
    alone = kernels.tap_squares(grad[2:3], given[2:3], (3, 3), *PLAIN, mask, cut=True)
    assert torch.equal(alone, squares[2:3])
    grad[3], given[1] = float("inf"), float("nan")
    beside = kernels.tap_squares(grad, given, (3, 3), *PLAIN, mask, cut=True)
    assert torch.equal(beside[[0, 2, 4]], squares[[0, 2, 4]])
    assert beside[[1, 3]].isfinite().any() == (name == "none")


def test_words_of_a_mask_that_is_changed_are_new_however_it_lies():
    left, right = (kernels.narrowed(torch.randn(2, 3, width)) for width in (6, 40))
    forms = laid.Forms()
    masks = MASKS["half"](6, 40), MASKS["half"](40, 6).T, MASKS["half"](5, 8, 6).permute(2, 1, 0)
    of_masks = {mask.data_ptr() for mask in masks}
    for mask in masks:
        for _ in range(2):
            with laid.kept(forms):
                formed, _, _ = kernels.outers(left, right, mask)
            whole, _, _ = kernels.outers(left, right, None)
            assert torch.equal(formed, torch.where(mask.flatten(), whole, 0.0))
            mask.logical_not_()
            forms.renew()
        assert {part.data_ptr() for _, parts, _ in forms._made.values() for part in parts} <= of_masks
