"""Versions of images, against NumPy's own borders."""

import numpy as np
import pytest
import torch

from noisewise.errors import ConfigError, DataError
from noisewise.recipes.views import MOVED, check_shape, check_views, view

IMAGES = torch.randn(3, 2, 7, 9, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "down", "right"), [("up", -2, 0), ("down", 2, 0), ("left", 0, -2), ("right", 0, 2)])
def test_moved_images_show_their_mirrored_border(name, down, right):
    padded = np.pad(IMAGES.numpy(), ((0, 0), (0, 0), (MOVED, MOVED), (MOVED, MOVED)), mode="reflect")
    rolled = np.roll(padded, (down, right), (2, 3))[..., MOVED:-MOVED, MOVED:-MOVED]
    assert np.array_equal(view(IMAGES, name).numpy(), rolled)


def test_changes_follow_each_other():
    assert torch.equal(view(IMAGES, "same"), IMAGES)
    assert torch.equal(view(IMAGES, "flip"), IMAGES.flip(3))
    assert torch.equal(view(IMAGES, "flip+up"), view(view(IMAGES, "flip"), "up"))
    assert not torch.equal(view(IMAGES, "flip+left"), view(IMAGES, "left+flip"))


@pytest.mark.parametrize("names", [(), ("same", "same"), ("turned",), ("flip+sideways",), ("",)])
def test_unknown_or_repeated_views_are_refused(names):
    with pytest.raises(ConfigError, match="view"):
        check_views(names)


def test_shapes_are_those_that_are_known():
    check_shape((), (3, 8, 8))
    check_shape((3, 8, 8), (3, 8, 8))
    with pytest.raises(DataError, match=r"trained on \[3, 8, 8\]"):
        check_shape((3, 8, 8), (1, 8, 8))
