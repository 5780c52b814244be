"""Answers of an earlier pass: given again to the same question only, and never to a pass that does something else."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from noisewise.persample import answered, live_parameters
from noisewise.persample.conditions import NotProven
from noisewise.persample.engines import follow
from noisewise.persample.examine import examine
from noisewise.persample.labels import BEFORE, Labels
from noisewise.persample.places import Rows
from noisewise.persample.proof import Proof

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


class Changing(nn.Module):
    """Does as it is told in its first passes, something else from then on."""

    def __init__(self, first, then):
        super().__init__()
        self.layer, self.ways = nn.Linear(4, 4), [first, then]
        self.now = 0

    def forward(self, x):
        """Scores."""
        return self.ways[self.now](self, self.layer(x))


def losses(model, batch):
    """One for each unit."""
    return model(batch[0]).square().sum(1)


def passed(model, layout):
    return follow(model, losses, (X,), live_parameters(model, {}), against=layout.trace)


@pytest.fixture
def rules(monkeypatch):
    """Counts the operations whose rule is asked."""
    asked = []
    with_units = Proof._with_units
    monkeypatch.setattr(Proof, "_with_units", lambda *args: asked.append(args[1].full) or with_units(*args))
    return asked


def test_a_second_pass_asks_no_rule_and_is_the_same(rules):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Unflatten(1, (2, 4)), nn.LayerNorm(4), nn.Flatten())
    layout = examine(model, losses, (X,))
    rules.clear()
    first = passed(model, layout)
    assert len(rules) > 4
    rules.clear()
    second = passed(model, layout)
    assert not rules
    assert second.trace.steps == first.trace.steps
    assert [call.place for call in second.calls] == [call.place for call in first.calls]


WAYS = {
    "another number": (lambda _, x: x * 2.0, lambda _, x: x * 3.0),
    "another flag": (lambda _, x: x.sum(1, keepdim=True), lambda _, x: x.sum(1, keepdim=False)),
    "another operation": (lambda _, x: x.tanh(), lambda _, x: x.sigmoid()),
    "rows of others": (lambda _, x: x.roll(1, 1), lambda _, x: x.roll(1, 0)),
    "a mean over units": (lambda _, x: x - x.mean(1, keepdim=True), lambda _, x: x - x.mean(0, keepdim=True)),
    "another source": (lambda m, x: x + m.layer.bias, lambda m, x: x + m.layer.weight[0]),
    "another view": (lambda _, x: x[:, :2] * 1, lambda _, x: x[:, 2:] * 1),
    "no gradient": (lambda _, x: x + x.tanh(), lambda _, x: x + x.detach().tanh()),
    "turned over": (lambda _, x: (x[:, :, None] * 1).sum(2), lambda _, x: (x[:, None, :] * 1).sum(1).t().t()),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_pass_that_does_something_else_is_refused_after_any_number_of_answers(way):
    model = Changing(*WAYS[way])
    layout = examine(model, losses, (X,))
    assert layout.trace is not None
    for _ in range(3):
        passed(model, layout)
    model.now = 1
    with pytest.raises(NotProven):
        passed(model, layout)
    model.now = 0
    passed(model, layout)


def written(_, x):
    """The same numbers, by way of memory that is written piece by piece, and in place."""
    blank = x.new_empty(x.shape)
    blank[:, :2] = x[:, :2]
    blank[:, 2:].copy_(x[:, 2:])
    zeros = torch.zeros_like(x)
    zeros.add_(blank).mul_(2.0)
    return torch.relu_(zeros.unsqueeze_(1)).squeeze(1)


def test_what_writes_is_followed_in_every_pass(rules):
    model = Changing(written, None)
    layout = examine(model, losses, (X,))
    first = passed(model, layout)
    rules.clear()
    for _ in range(3):
        assert passed(model, layout).trace.steps == first.trace.steps
    assert {"aten::copy_.default", "aten::add_.Tensor", "aten::relu_.default"} <= set(rules)


def test_answers_are_those_of_passes_of_any_size():
    model = Changing(lambda _, x: x.tanh(), None)
    layout = examine(model, losses, (X,))
    for size in (6, 5, 6, 2, 3, 5):
        batch = (X[:size],)
        live = live_parameters(model, {})
        anew = follow(model, losses, batch, live, against=replace(layout.trace, answers={}))
        again = follow(model, losses, batch, live, against=layout.trace)
        assert again.trace.steps == anew.trace.steps


def test_not_more_answers_are_kept_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr("noisewise.persample.proof.MOST", 8)
    model = Changing(lambda _, x: x.tanh(), None)
    layout = examine(model, losses, (X,))
    for size in range(2, 7):
        follow(model, losses, (X[:size],), live_parameters(model, {}), against=layout.trace)
        assert 0 < len(layout.trace.answers) <= 8


def test_questions_differ_in_all_that_an_answer_can_depend_on():
    tensor = torch.zeros(6, 4)
    plain = [tensor, tensor.t(), tensor[1:], tensor[:, :2], tensor.detach().requires_grad_()]
    plain += [tensor.view(torch.int32), torch._neg_view(tensor), torch.zeros(7, 4)[:6]]
    plain += [1, 1.0, True, None, "1", [1], (1,), [1.0], [[1]], torch.float32]
    labels = Labels(6, [])
    labels._set(tensor, BEFORE, "table")
    asked = [answered.question(labels, [value], []) for value in plain]
    labels._set(tensor, Rows(0, 16, 96), ("input", 0))
    asked.append(answered.question(labels, [tensor], []))
    labels._set(tensor, BEFORE, "weight")
    asked.append(answered.question(labels, [tensor], []))
    for strides in ((4, 1), (1, 6)):  # both from the same step
        labels._set(made := torch.zeros(24).as_strided((6, 4), strides), Rows(0, 16, 96), (3, 0))
        asked.append(answered.question(labels, [made], []))
    assert None not in asked
    assert len(set(asked)) == len(asked)
    assert answered.question(labels, [[torch.Generator()]], []) is None
    assert answered.question(labels, [nn.UninitializedParameter()], []) is None


def test_results_differ_by_the_memory_that_they_lie_in():
    one, other = torch.zeros(6, 4), torch.zeros(6, 4)
    storages = [one.untyped_storage()._cdata, other.untyped_storage()._cdata]
    lie = {answered.results([out], storages)[1] for out in (one, other, torch.zeros(6, 4), one.t())}
    assert len(lie) == 4
