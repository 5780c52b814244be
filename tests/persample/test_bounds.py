"""Bounds from Gram matrices hold the exact norm, and what vanished in them."""

import pytest
import torch

from helpers.in_float64 import in_float64, length
from noisewise.persample.gradients import Outer


def random(*shape, seed, dtype):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def outer(time, rows, columns):
    return lambda seed, dtype: Outer(
        random(1, time, rows, seed=seed, dtype=dtype), random(1, time, columns, seed=seed + 1, dtype=dtype)
    )


@pytest.mark.parametrize("shape", [(3, 30, 20), (40, 200, 150), (2, 4, 4096)])
def test_bounds_from_gram_matrices_hold_the_exact_norm_and_the_room_that_is_asked_for(shape):
    """Seeds 0..39, float32, positive factors: products that round alike. Half of the bare norms would be too short."""
    short = 0
    for seed in range(40):
        drawn = outer(*shape)(seed, torch.float32)
        gradient = Outer(drawn.left.abs(), drawn.right.abs())
        exact, bounds = length(in_float64(gradient).formed()), gradient.gram(0.0)
        assert float(bounds.least) <= exact <= float(bounds.most), seed
        size = length(gradient.left) * length(gradient.right)
        assert float(gradient.gram(1e-3).most - bounds.most) >= 1e-3 * size * (1 - 1e-5)
        short += float(bounds.most + bounds.least) / 2 < exact
    assert 0 < short < 40


def test_bounds_from_gram_matrices_hold_what_vanished_in_them():
    """Where one factor is large the other is tiny: every product of squares is 0, the gradient is not."""
    left, right = torch.tensor([[[1.0, 1.0], [1e-25, 1e-25]]]), torch.tensor([[[1e-25, 1e-25], [1.0, 1.0]]])
    gradient = Outer(left, right)
    assert float(gradient.gram(0.0).most) >= length(in_float64(gradient).formed()) > 0
