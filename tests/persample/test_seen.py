"""What a captured step has read from Python is noticed when it is another."""

import functools
import random

import numpy as np
import pytest
import torch
from torch import nn

from noisewise.persample.seen import Chance, Seen

SCALE = 1.0
LIKE = (torch.zeros(3, 4), torch.zeros(3))


class Model(nn.Module):
    """With a number, a buffer and a global."""

    def __init__(self):
        super().__init__()
        self.layer, self.dropout, self.power = nn.Linear(4, 2), nn.Dropout(0.1), 2
        self.register_buffer("table", torch.ones(2))

    def forward(self, x):
        return self.dropout(self.layer(x)) ** self.power * self.table * SCALE


def loss_fn(model, batch, weight=1.0):
    return model(batch[0]).sum(1) * weight


CHANGES = {
    "mode": lambda m: m.eval(),
    "number": lambda m: setattr(m, "power", 3),
    "number of a part": lambda m: setattr(m.dropout, "p", 0.5),
    "part": lambda m: setattr(m, "layer", nn.Linear(4, 2)),
    "parameter": lambda m: setattr(m.layer, "weight", nn.Parameter(torch.zeros(2, 4))),
    "memory of a parameter": lambda m: setattr(m.layer.weight, "data", torch.zeros(2, 4)),
    "frozen parameter": lambda m: m.layer.weight.requires_grad_(False),
    "buffer": lambda m: setattr(m, "table", torch.zeros(2)),
    "hook": lambda m: m.layer.register_forward_hook(lambda *_: None),
    "new attribute": lambda m: setattr(m, "other", "word"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_model_is_seen(name):
    model = Model()
    seen = Seen(model, loss_fn, LIKE)
    assert seen.still(model, loss_fn, LIKE)
    CHANGES[name](model)
    assert not seen.still(model, loss_fn, LIKE)


def test_values_of_parameters_may_change():
    model = Model()
    seen = Seen(model, loss_fn, LIKE)
    with torch.no_grad():
        model.layer.weight.add_(1)
        model.table.zero_()
    assert seen.still(model, loss_fn, LIKE)


def test_a_change_of_the_loss_or_of_a_global_is_seen(monkeypatch):
    model, cell = Model(), 1.0

    def closed(network, batch):
        return loss_fn(network, batch) * cell

    given = functools.partial(loss_fn, weight=2.0)
    for loss in (closed, loss_fn, given):
        assert Seen(model, loss, LIKE).still(model, loss, LIKE)
    seen = Seen(model, closed, LIKE)
    cell = 2.0
    assert not seen.still(model, closed, LIKE)
    assert not Seen(model, loss_fn, LIKE).still(model, closed, LIKE)
    seen = Seen(model, loss_fn, LIKE)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert not seen.still(model, loss_fn, LIKE)


@pytest.mark.parametrize("like", [(torch.zeros(3, 5), torch.zeros(3)), (torch.zeros(3, 4).double(), torch.zeros(3))])
def test_other_shapes_and_types_are_seen(like):
    model = Model()
    assert not Seen(model, loss_fn, LIKE).still(model, loss_fn, like)
    assert Seen(model, loss_fn, LIKE).still(model, loss_fn, (torch.zeros(9, 4), torch.zeros(9)))


def test_autocast_is_seen():
    model = Model()
    seen = Seen(model, loss_fn, LIKE)
    with torch.autocast("cpu"):
        assert not seen.still(model, loss_fn, LIKE)


@pytest.mark.parametrize("draw", [random.random, np.random.random])
def test_draws_from_other_generators_are_seen(draw):
    states = random.getstate(), np.random.get_state()
    chance = Chance()
    assert chance.untouched()
    draw()
    assert not chance.untouched()
    random.setstate(states[0])
    np.random.set_state(states[1])
