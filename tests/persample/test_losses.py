"""One loss per unit, or what came instead."""

import pytest
import torch
from torch import nn

from noisewise.clipping import Flat
from noisewise.errors import DataError
from noisewise.losses import unit_losses
from noisewise.persample import clipped_sum
from noisewise.runtime import Runtime

MODEL, BATCH = nn.Linear(3, 2), torch.ones(4, 3)


def test_one_loss_per_unit_passes():
    assert torch.equal(unit_losses(MODEL, lambda model, x: x.sum(1), BATCH), torch.full((4,), 3.0))


@pytest.mark.parametrize(
    ("loss_fn", "message"),
    [
        (lambda model, x: model(x).mean(), r"one number for the whole batch.*reduction='none'"),
        (lambda model, x: model(x), r"shape \[4, 2\] for 4 units.*must be \[4\]"),
        (lambda model, x: model(x).sum(1)[:3], r"shape \[3\] for 4 units"),
        (lambda model, x: model(x).sum(1, keepdim=True), r"shape \[4, 1\]"),
        (lambda model, x: 0.5, r"returned float"),
        (lambda model, x: [model(x).sum(1)], r"returned list"),
    ],
)
def test_anything_else_is_refused_with_what_came_and_what_to_return(loss_fn, message):
    with pytest.raises(DataError, match=message):
        unit_losses(MODEL, loss_fn, BATCH)


@pytest.mark.parametrize("engine", ["auto", "dense", "loop"])
def test_every_engine_refuses_a_mean_loss(engine):
    with pytest.raises(DataError, match="one number for the whole batch"):
        clipped_sum(MODEL, lambda model, x: model(x).mean(), BATCH, Flat(1.0), runtime=Runtime(engine=engine))
