"""Steady computing asks nothing of the data and is never less careful."""

import pytest
import torch

from noisewise.persample.bounds import Bounds
from noisewise.persample.convolution import Convolution
from noisewise.persample.formed import masked as lay
from noisewise.persample.gradients import Outer, Rows
from noisewise.persample.steady import is_steady, steady

GRADIENTS = {
    "one position": Outer(torch.randn(4, 1, 5), torch.randn(4, 1, 6)),
    "few positions": Outer(torch.randn(4, 2, 50), torch.randn(4, 2, 60)),
    "many positions": Outer(torch.randn(4, 90, 5), torch.randn(4, 90, 6)),
    "convolution": Convolution(
        torch.randn(4, 9, 5, 5), torch.randn(4, 3, 5, 5), (3, 3), (1, 1), ((1, 1),) * 2, (1, 1), 1
    ),
    "embedding": Rows(torch.randint(0, 3, (4, 7)), torch.randn(4, 7, 5), 6),
}


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_norms_are_not_below_the_true_ones_and_sums_are_the_same(name, masked, monkeypatch):
    gradient = GRADIENTS[name]
    formed = gradient.formed().flatten(1).double()
    shape = gradient.formed().shape[1:] if name != "convolution" else (3, 9, 3, 3)
    mask = torch.rand(shape) < 0.5 if masked else None
    laid = formed if mask is None else formed * mask.flatten()
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda self: pytest.fail("a question was asked"))
    with steady(8):
        assert is_steady()
        squares, rest = gradient.measure(mask)
        total = rest.weighted_sum(torch.ones(4, dtype=torch.float64))
    monkeypatch.undo()
    assert not is_steady()
    assert (squares.sqrt() >= laid.norm(dim=1) * (1 - 1e-6)).all()
    torch.testing.assert_close(squares.sqrt(), laid.norm(dim=1), rtol=1e-3, atol=1e-6)
    total = lay(total, None if mask is None else mask.view(total.shape))  # as `replay.Sums` does for all sums at once
    torch.testing.assert_close(total.flatten().double(), laid.sum(0), rtol=1e-4, atol=1e-5)


def test_uncertain_norms_are_taken_for_the_most_that_they_can_be():
    bounds = Bounds(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    assert not bounds.certain()
    with steady(8):
        assert bounds.certain()
