"""Per-sample gradients of convolutions against gradients formed by hand."""

from dataclasses import replace

import pytest
import torch

from helpers.factored import CONVOLUTIONS, MASKED, check, convolution, mask_for
from noisewise.persample.convolution import Convolution
from noisewise.persample.images import with_channels_last


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@MASKED
@pytest.mark.parametrize("shape", CONVOLUTIONS)
def test_convolution(shape, masked):
    channels, out, size, kernel, settings = CONVOLUTIONS[shape]
    gradient, formed = convolution(5, channels, out, size, kernel, **settings)
    check(gradient, formed, mask_for(formed) if masked else None)


LAST = {
    "rows-formed": (8, 8, (13, 12), (3, 3), {"padding": 1}),
    "rows-of-one": (16, 4, (9, 8), (3, 1), {"padding": (1, 0)}),
    "rows-of-a-rectangle": (8, 3, (12, 15), (2, 5), {"padding": (1, 2)}),
    "rows-same": (8, 6, (9, 11), (4, 2), {"padding": "same"}),
    "rows-stride": (8, 8, (17, 16), (4, 4), {"stride": 2}),
    "rows-stride-leaves-rest": (8, 4, (18, 17), (3, 4), {"stride": (3, 2), "padding": (2, 1)}),
    "rows-over-gaps": (16, 3, (13, 14), (1, 1), {"stride": (3, 2)}),
    "rows-larger-stride": (8, 5, (19, 15), (2, 2), {"stride": (4, 3)}),
    "rows-of-one-channel": (1, 16, (28, 28), (8, 8), {"stride": 2, "padding": 3}),
    "rows-of-patches": (3, 6, (12, 16), (4, 4), {"stride": 4}),
    "rows-not-joined": (8, 4, (17, 16), (3, 4), {"stride": 2}),
    "patches-gram": (16, 16, (6, 5), (3, 3), {"stride": 2, "padding": 1}),
}


def last(gradient):
    """The same with channels last in memory."""
    moved = (with_channels_last(part) for part in (gradient.input, gradient.grad))
    return replace(gradient, **dict(zip(("input", "grad"), moved, strict=True)))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@MASKED
@pytest.mark.parametrize("shape", [*CONVOLUTIONS, *LAST])
def test_convolution_with_channels_last(shape, masked):
    channels, out, size, kernel, settings = {**CONVOLUTIONS, **LAST}[shape]
    gradient, formed = convolution(5, channels, out, size, kernel, **settings)
    check(last(gradient), formed, mask_for(formed) if masked else None)
    check(replace(last(gradient), grad=gradient.grad), formed, mask_for(formed) if masked else None)


@pytest.mark.parametrize("shape", [name for name in LAST if name.startswith("rows")])
def test_gradients_are_formed_by_rows_of_the_kernel(shape, monkeypatch):
    channels, out, size, kernel, settings = LAST[shape]
    gradient, _ = convolution(5, channels, out, size, kernel, **settings)
    calls, by_rows = [], Convolution._by_rows
    monkeypatch.setattr(Convolution, "_by_rows", lambda *given: calls.append(1) or by_rows(*given))
    gradient.form(slice(0, 5), None)
    assert not calls
    last(gradient).form(slice(0, 5), None)
    assert calls


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("shape", ["shifted-formed", "shifted-same", "one-output", "1x1", "shifted-gram-no-padding"])
def test_gradients_of_stride_1_are_formed_by_rows_of_the_kernel(shape, monkeypatch):
    """They are those of one product for each tap."""
    channels, out, size, kernel, settings = CONVOLUTIONS[shape]
    gradient, formed = convolution(5, channels, out, size, kernel, **settings)
    mask = mask_for(formed)
    by_rows = [gradient.form(slice(1, 4), laid) for laid in (None, mask)]
    assert all(part.grads.shape[0] == kernel[0] for part in by_rows)
    monkeypatch.setattr(Convolution, "_widens", False)
    for part, laid in zip(by_rows, (None, mask), strict=True):
        by_tap = gradient.form(slice(1, 4), laid)
        assert by_tap.grads.shape[0] == kernel[0] * kernel[1]
        torch.testing.assert_close(part.formed(), by_tap.formed(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", ["patches-gram", "rows-formed", "rows-stride"])
@pytest.mark.parametrize("units", [2, 5, 40])
def test_the_number_of_units_does_not_choose_the_way(shape, units):
    channels, out, size, kernel, settings = LAST[shape]
    few, many = (last(convolution(count, channels, out, size, kernel, **settings)[0]) for count in (3, units))
    assert type(few.measure(None)[1]) is type(many.measure(None)[1])


@pytest.mark.parametrize("shape", ["shifted-gram", "stride-gram"])
def test_small_images_take_gram_matrices_and_keep_nothing(shape):
    channels, out, size, kernel, settings = CONVOLUTIONS[shape]
    gradient, formed = convolution(5, channels, out, size, kernel, **settings)
    assert check(gradient, formed) is gradient


@pytest.mark.parametrize("shape", ["shifted-formed", "stride-formed", "groups", "few-channels"])
def test_larger_images_take_formed_gradients_and_keep_them(shape):
    channels, out, size, kernel, settings = CONVOLUTIONS[shape]
    gradient, formed = convolution(5, channels, out, size, kernel, **settings)
    assert not isinstance(check(gradient, formed), Convolution)
