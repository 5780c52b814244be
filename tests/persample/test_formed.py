"""Formed gradients: kept, formed once more, and their norms."""

import pytest
import torch

from helpers.factored import MASKED, check, convolution, mask_for, outer, random
from noisewise.persample.convolution import Convolution
from noisewise.persample.formed import KEPT, Formed, Kept
from noisewise.persample.gradients import Outer


@MASKED
def test_formed(masked):
    formed = random(5, 3, 4)
    check(Formed(formed), formed, mask_for(formed) if masked else None)


def test_long_positions_take_formed_gradients_and_keep_them():
    gradient, formed = outer(5, 60, 3, 4)
    assert isinstance(check(gradient, formed), Kept)


LARGE = {
    "linear": lambda: outer(5, 2, 1840, 1840, torch.float32),
    "shifted": lambda: convolution(115, 128, 128, (2, 2), (3, 3), torch.float32, padding=1),
    "groups": lambda: convolution(115, 256, 128, (2, 2), (3, 3), torch.float32, padding=1, groups=2),
    "stride": lambda: convolution(115, 128, 128, (2, 2), (3, 3), torch.float32, padding=1, stride=2),
}


@pytest.mark.parametrize("kind", LARGE)
def test_gradients_above_the_limit_are_formed_twice_instead_of_kept(kind):
    gradient, formed = LARGE[kind]()
    assert formed.numel() > KEPT
    rest = check(gradient, formed, mask_for(formed), tolerance=2e-4)  # float32: sums of up to 5000 squares
    assert isinstance(rest, Outer | Convolution)
