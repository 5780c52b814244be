"""Bounds from Gram matrices hold the exact norm, and what vanished in them."""

import pytest
import torch

from helpers.in_float64 import in_float64, length
from noisewise.persample.bounds import PRECISE
from noisewise.persample.gradients import Outer
from noisewise.persample.rounding import roundoff


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


def cancelling(shape, seed):
    """Positions that nearly cancel each other: the rough bound says little about their sum."""
    whole = outer(*shape)(seed, torch.float32)
    left = torch.cat([whole.left, whole.left * (-1 + 1e-2)], 1)
    return left, torch.cat([whole.right, whole.right], 1)


@pytest.mark.parametrize("shape", [(30, 200, 150), (8, 1000, 60)])
def test_the_rough_bound_holds_and_each_unit_has_its_own(shape):
    """Seeds 0..9. Positive factors, which round alike: known at once; beside one of which little is known, the same numbers."""
    for seed in range(10):
        whole = outer(2 * shape[0], *shape[1:])(seed, torch.float32)
        left, right = whole.left.abs(), whole.right.abs()
        alone = Outer(left, right).gram(0.0)
        exact = length(in_float64(Outer(left, right)).formed())
        assert float(alone.least) <= exact <= float(alone.most) <= PRECISE * float(alone.least)
        difficult = cancelling(shape, seed)
        both = Outer(torch.cat([left, difficult[0]]), torch.cat([right, difficult[1]])).gram(0.0)
        assert torch.equal(both.most[:1], alone.most)
        exact = length(in_float64(Outer(*difficult)).formed())
        assert float(both.least[1]) <= exact <= float(both.most[1])
        assert float(both.most[1]) > PRECISE * float(both.least[1])
        rough = (by_the_way(left, right) * (roundoff(left, shape[1]) + roundoff(right, shape[2]))) ** 0.5
        assert float(alone.most**2 - alone.least**2) ** 0.5 >= 2**0.5 * rough * (1 - 1e-4)


def by_the_way(left, right):
    """`(sum_t |l_t| |r_t|)^2` in float64."""
    sizes = left.double().norm(dim=2) * right.double().norm(dim=2)
    return float(sizes.sum()) ** 2
