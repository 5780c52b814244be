"""Little memory: the same sums and norms, as safe as ever, with less kept on the way."""

import pytest
import torch

from helpers.oracles import PROBLEMS, clipped_sum_by_hand, gradients_of, relative_error, typical_norm
from noisewise.clipping import Flat
from noisewise.persample import clipped_sum, formed
from noisewise.persample.formed import Again, Kept, measure_formed
from noisewise.persample.gradients import Outer
from noisewise.persample.sparing import is_sparing, sparing
from noisewise.runtime import Runtime

NAMES = ("conv2d", "linear-3d", "several-wide-conv-calls", "language-model", "lstm", "cross-attention", "tied-head")


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name in NAMES])
def test_sums_are_those_of_the_definition(name, monkeypatch):
    monkeypatch.setattr("noisewise.persample.sparing.KEPT", 1)
    setup, layout = PROBLEMS[name].examined()
    grads = gradients_of(name)
    clip = Flat(typical_norm(grads))
    got = clipped_sum(*setup, clip, runtime=Runtime(memory="small"), layout=layout)
    expected, norms = clipped_sum_by_hand(grads, clip, {})
    assert relative_error(got.grads._values, expected) < 1e-9
    assert torch.allclose(got.norms, norms, rtol=1e-9)


def cancelling():
    """Positions that cancel all but a rounding, so that a sum computed in another way would be another."""
    torch.manual_seed(0)
    left, right = torch.randn(3, 8, 6), torch.randn(3, 8, 5)
    return Outer(torch.cat([left, -left + 1e-7 * torch.randn_like(left)], 1), torch.cat([right, right], 1))


@pytest.mark.parametrize("spared", [False, True])
def test_norms_bound_sums_where_positions_cancel(spared, monkeypatch):
    monkeypatch.setattr("noisewise.persample.sparing.KEPT", 1)
    gradient = cancelling()
    with sparing(spared):
        squares, rest = measure_formed(gradient, None, 30)
        assert isinstance(rest, Again if spared else Kept)
        for unit in range(3):
            factors = torch.zeros(3, dtype=torch.float64)
            factors[unit] = 1.0
            assert rest.weighted_sum(factors).double().norm() <= squares[unit].sqrt() * (1 + 2**-23)


def test_norms_are_the_same_numbers_in_both_modes(monkeypatch):
    monkeypatch.setattr("noisewise.persample.sparing.KEPT", 1)
    squares = []
    for spared in (False, True):
        with sparing(spared):
            squares.append(measure_formed(cancelling(), None, 30)[0])
    assert torch.equal(*squares)


def test_less_is_kept_only_where_it_is_wanted():
    assert formed.KEPT > 1 << 18
    with sparing(True):
        assert is_sparing()
        with sparing(False):
            assert not is_sparing()
    assert not is_sparing()
