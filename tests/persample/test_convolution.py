"""Per-sample gradients of convolutions against gradients formed by hand."""

import pytest

from helpers.factored import CONVOLUTIONS, MASKED, check, convolution, mask_for
from noisewise.persample.convolution import Convolution


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@MASKED
@pytest.mark.parametrize("shape", CONVOLUTIONS)
def test_convolution(shape, masked):
    channels, out, size, kernel, settings = CONVOLUTIONS[shape]
    gradient, formed = convolution(5, channels, out, size, kernel, **settings)
    check(gradient, formed, mask_for(formed) if masked else None)


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
