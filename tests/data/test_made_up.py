"""Images of nothing have the statistics that they are made for, and come from their arguments alone."""

import numpy as np
import pytest
import torch

from noisewise.data.made_up import KINDS, images
from noisewise.errors import ConfigError


def falling(x):
    """Exponent of the amplitude in the frequency, over all images and directions."""
    side = x.shape[-1]
    amplitude = torch.fft.fft2(x.double()).abs().square().mean((0, 1)).sqrt()
    rows = torch.fft.fftfreq(side)
    frequency = (rows[:, None].square() + rows.square()).sqrt()
    middle = (frequency >= 2 / side) & (frequency <= 0.35)
    return np.polyfit(frequency[middle].log(), amplitude[middle].log(), 1)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_images_are_levelled_and_repeat(kind):
    x = images(kind, 6, (3, 32, 24), seed=4)
    assert x.shape == (6, 3, 32, 24)
    torch.testing.assert_close(x.mean((2, 3)), torch.zeros(6, 3), rtol=0, atol=1e-5)
    torch.testing.assert_close(x.square().mean((2, 3)), torch.ones(6, 3), rtol=1e-4, atol=0)
    assert torch.equal(x, images(kind, 6, (3, 32, 24), seed=4))
    assert not torch.equal(x, images(kind, 6, (3, 32, 24), seed=5))


def test_spectra_fall_like_those_of_photographs_and_white_noise_does_not():
    assert falling(images("spectrum", 200, (1, 32, 32))) == pytest.approx(-1.0, abs=0.05)
    assert -2.0 < falling(images("leaves", 200, (1, 32, 32))) < -0.6
    assert abs(falling(torch.randn(200, 1, 32, 32))) < 0.05


def test_leaves_are_flat_with_edges():
    x = images("leaves", 50, (3, 32, 32))
    steps = (x[..., 1:] - x[..., :-1]).abs().amax(1)
    assert 0.3 < (steps < 1e-6).double().mean() < 0.95  # most neighbours have one colour
    assert (steps > 0.5).double().mean() > 0.05


@pytest.mark.parametrize("kind", ["woven", "patchwork"])
def test_woven_images_have_colours_that_go_together_and_angles(kind):
    """Photographs are mostly grey; and at each place the waves of a network have about one angle."""
    x = images(kind, 100, (3, 32, 32))
    assert 0.2 < float((x[:, 0] * x[:, 1]).mean()) < 0.95
    assert -2.5 < falling(x) < -0.3


@pytest.mark.parametrize(
    ("kind", "count", "shape"), [("cats", 1, (3, 8, 8)), ("leaves", 0, (3, 8, 8)), ("spectrum", 2, (8, 8))]
)
def test_what_cannot_be_made_is_refused(kind, count, shape):
    with pytest.raises(ConfigError, match="made-up images"):
        images(kind, count, shape)
