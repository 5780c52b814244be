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


WEIGHTS = torch.ones(3)
FACTOR = 1.0


def factor():
    return FACTOR


class Weighted:
    """A loss with a tensor, a list, an array and slots of its own."""

    def __init__(self):
        self.weights, self.listed, self.array = torch.ones(3), [torch.ones(1), 2.0], np.ones(3)

    def __call__(self, model, batch):
        return (model(batch[0]) * self.weights[0] * self.listed[0] * WEIGHTS[0]).sum(1) * factor()


def replaced_cell():
    weights = torch.ones(3)

    def loss(model, batch):
        return model(batch[0]).sum(1) * weights[0]

    def rebind():
        nonlocal weights
        weights = None
        weights = torch.full((3,), 5.0)

    return loss, rebind


def of_weighted(change):
    loss = Weighted()
    return loss, lambda: change(loss)


OF_THE_LOSS = {
    "tensor in a closure": replaced_cell,
    "memory of an attribute": lambda: of_weighted(lambda w: setattr(w.weights, "data", torch.zeros(3))),
    "tensor in a list": lambda: of_weighted(lambda w: w.listed.__setitem__(0, torch.ones(1))),
    "number in a list": lambda: of_weighted(lambda w: w.listed.__setitem__(1, 3.0)),
    "longer list": lambda: of_weighted(lambda w: w.listed.append(1)),
    "entry of an array": lambda: of_weighted(lambda w: w.array.__setitem__(0, 7)),
    "global tensor": lambda: of_weighted(lambda w: globals().__setitem__("WEIGHTS", torch.ones(3))),
    "global of a function that it calls": lambda: of_weighted(lambda w: globals().__setitem__("FACTOR", FACTOR + 1)),
    "method": lambda: of_weighted(lambda w: setattr(Weighted, "other", lambda self: 1)),
}


@pytest.mark.parametrize("name", OF_THE_LOSS)
def test_what_the_loss_reaches_is_seen(name):
    model = Model()
    for _ in range(5):  # memory that was freed may be given out again
        loss, change = OF_THE_LOSS[name]()
        seen = Seen(model, loss, LIKE)
        assert seen.still(model, loss, LIKE)
        change()
        assert not seen.still(model, loss, LIKE)


def test_an_equal_tensor_of_one_entry_is_another():
    model = nn.Linear(2, 1)
    seen = Seen(model, loss_fn, LIKE)
    model.bias = nn.Parameter(model.bias.detach().clone())
    assert not seen.still(model, loss_fn, LIKE)


def test_an_equal_number_is_the_same():
    model = Model()
    seen = Seen(model, loss_fn, LIKE)
    model.power = int("2")
    assert seen.still(model, loss_fn, LIKE)
