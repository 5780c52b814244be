"""The optimizer's step: ordinary, or SGD's own as a graph; here without a GPU, `tests/whole/test_gpu.py` has the graphs."""

import copy

import pytest
import torch
from torch import nn

from helpers import tiny
from noisewise.mechanism import PURPOSE, RANKING
from noisewise.pieces import pieces, room_for
from noisewise.training import moves
from noisewise.training.moves import Moves, write_gradients


def released(model, seed=0):
    """Sums for all parameters, as pieces of one vector."""
    like = list(model.parameters())
    whole = torch.randn(room_for(like), generator=torch.Generator().manual_seed(seed))
    return {PURPOSE: dict(zip(dict(model.named_parameters()), pieces(whole, like), strict=True))}


class Repeating:
    """Stands for a graph: repeats the step of an optimizer with the numbers that it had."""

    def __init__(self, optimizer):
        self.optimizer, self.numbers = optimizer, copy.deepcopy([group["lr"] for group in optimizer.param_groups])
        self.replays = 0

    def replay(self):
        self.replays += 1
        now = [group["lr"] for group in self.optimizer.param_groups]
        for group, lr in zip(self.optimizer.param_groups, self.numbers, strict=True):
            group["lr"] = lr
        self.optimizer.step()
        for group, lr in zip(self.optimizer.param_groups, now, strict=True):
            group["lr"] = lr


@pytest.fixture
def graphs(monkeypatch):
    made = []

    def capture(self, weights, whole, optimizer):
        self._whole = torch.zeros_like(whole)
        self._grads = pieces(self._whole, list(weights.values()))
        self._graph = Repeating(optimizer)
        made.append(self._graph)

    monkeypatch.setattr(Moves, "_capture", capture)
    monkeypatch.setattr(moves, "_on_gpu", lambda tensor: True)
    return made


def course(optimizer_of, change=lambda step, optimizer, model: None, steps=10):
    """Weights after some steps of `Moves`, and of the optimizer alone."""
    ends = []
    for ordinary in (False, True):
        model = tiny.model()
        optimizer, moving = optimizer_of(model), Moves()
        for step in range(steps):
            change(step, optimizer, model)
            answers, weights = released(model, step), dict(model.named_parameters())
            if ordinary:
                write_gradients(weights, answers, 8)
                optimizer.step()
            else:
                moving.move(weights, answers, 8, optimizer)
        ends.append(tiny.weights(model))
    return ends


def slower(step, optimizer, model):
    optimizer.param_groups[0]["lr"] = 0.2 if step < 6 else 0.02


def another_buffer(step, optimizer, model):
    if step == 6:
        for state in optimizer.state.values():
            state["momentum_buffer"] = torch.ones_like(state["momentum_buffer"])


@pytest.mark.parametrize(
    ("change", "captures"), [(lambda *_: None, 1), (slower, 2), (another_buffer, 2)], ids=["alike", "rate", "buffer"]
)
def test_steps_of_sgd_are_those_of_sgd_and_captured_when_nothing_changes(graphs, change, captures):
    ours, plain = course(tiny.sgd, change)
    assert torch.equal(ours, plain)
    assert len(graphs) == captures
    assert sum(graph.replays for graph in graphs) >= 2 * captures - 1


def test_what_is_observed_is_the_mean(graphs):
    model = tiny.model()
    weights, optimizer, moving = dict(model.named_parameters()), tiny.sgd(model), Moves()
    for step in range(6):
        answers, sums = released(model, step), released(model, step)
        moving.move(weights, answers, 8, optimizer, observed=True)
        assert all(torch.equal(8 * value, sums[PURPOSE][name]) for name, value in answers[PURPOSE].items())
    assert graphs[0].replays > 0


class Own(torch.optim.SGD):
    """May do anything."""


def hooked(model):
    optimizer = tiny.sgd(model)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def scheduled(model):
    optimizer = tiny.sgd(model)
    torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return optimizer


OTHERS = {
    "another optimizer": lambda model: torch.optim.Adam(model.parameters(), lr=0.1),
    "a subclass": lambda model: Own(model.parameters(), lr=0.1),
    "a hook": hooked,
    "a scheduler": scheduled,
    "a rate that is a tensor": lambda model: torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), foreach=False),
}


@pytest.mark.parametrize("name", OTHERS)
def test_all_others_make_ordinary_steps(graphs, name):
    ours, plain = course(OTHERS[name])
    assert torch.equal(ours, plain)
    assert not graphs


def test_frozen_weights_rankings_and_other_types_make_ordinary_steps(graphs):
    model = tiny.model()
    weights, optimizer = dict(model.named_parameters()), tiny.sgd(model)
    answers = released(model)
    partly = {PURPOSE: {name: value for name, value in answers[PURPOSE].items() if name != "0.weight"}}
    ranked = {**answers, RANKING: {name: value.clone() for name, value in answers[PURPOSE].items()}}
    double = {PURPOSE: {name: value.double() for name, value in answers[PURPOSE].items()}}
    apart = {PURPOSE: {name: value.clone() for name, value in answers[PURPOSE].items()}}
    for released_now in (partly, ranked, double, apart):
        moving = Moves()
        for _ in range(8):
            moving.move(weights, copy.deepcopy(released_now), 8, optimizer)
    assert not graphs


def test_large_models_make_ordinary_steps(graphs, monkeypatch):
    monkeypatch.setattr(moves, "MOST", 10)
    ours, plain = course(tiny.sgd)
    assert torch.equal(ours, plain)
    assert not graphs


def test_gradients_are_means_over_the_expected_batch():
    layer = nn.Linear(2, 1)
    frozen = {"weight": torch.tensor([[4.0, 8.0]])}
    write_gradients(dict(layer.named_parameters()), {PURPOSE: frozen}, 4)
    assert layer.weight.grad.tolist() == [[1.0, 2.0]]
    assert layer.bias.grad is None
