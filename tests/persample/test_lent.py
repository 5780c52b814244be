"""Weights that are lent call by call: the same gradients, no whole weight in between, and no use that escapes."""

import importlib

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from helpers import shared_runs as runs
from noisewise.clipping import Flat
from noisewise.errors import UnsupportedLayer
from noisewise.noise import Piece
from noisewise.persample import clipped_sum, examine, lent
from noisewise.persample.made_up import perturbed

UNITS = (runs.inputs("blocks", 6), runs.labels(6))


def half(total):
    return total[: -(-len(total) // 2)]


class Halves:
    """Sums of one of two processes, with nothing from the other."""

    def __init__(self):
        self.totals = {}

    def add(self, name, total):
        self.totals[name] = total

    def parts(self):
        return {name: half(total) for name, total in self.totals.items()}


class Lender:
    """Whole weights from a safe place; sums are kept by halves, as one of two processes with nothing from the other does."""

    def __init__(self, model):
        self.parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self.out, self.asked, self.most = [], [], 0

    def whole(self, name):
        whole = self.parameters[name].clone()
        self.asked.append(name)
        self.out = [one for one in self.out if not one[0].expired()]
        self.out.append((StorageWeakRef(whole.untyped_storage()), whole.nbytes))
        self.most = max(self.most, sum(size for _, size in self.out))
        return whole

    def dividing(self):
        return Halves()

    def nothing(self, name, dtype):
        return half(torch.zeros_like(self.parameters[name], dtype=dtype))

    def piece(self, name):
        return Piece(0, self.parameters[name].numel())


def without_weights(model):
    """The model with stand-ins, and what lends to it."""
    lender = Lender(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    stand_ins = {name: lent.stand_in_for(p, p.device) for name, p in model.named_parameters()}
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = stand_ins[names[id(parameter)]]
    return lender, lent.Lending(stand_ins, lender)


@pytest.mark.parametrize("kind", ["blocks", "checkpointed"])
def test_clipped_sums_are_those_of_the_model_with_its_weights(kind):
    expected = clipped_sum(runs.network(kind), runs.loss_fn, UNITS, Flat(0.5))
    model = runs.network(kind)
    lender, lending = without_weights(model)
    with lending:
        layout = examine(model, runs.loss_fn, UNITS)
        clipped = clipped_sum(model, runs.loss_fn, UNITS, Flat(0.5), layout=layout)
        nobody = clipped_sum(model, runs.loss_fn, tuple(part[:0] for part in UNITS), Flat(0.5), layout=layout)
    torch.testing.assert_close(clipped.norms, expected.norms)
    for name, total in expected.grads._values.items():
        torch.testing.assert_close(clipped.grads._values[name], half(total))
        assert torch.equal(nobody.grads._values[name], torch.zeros_like(clipped.grads._values[name]))
    assert clipped.grads.pieces == nobody.grads.pieces == {name: lender.piece(name) for name in expected.grads._values}
    assert clipped.grads.coordinates == expected.grads.coordinates
    assert set(lender.asked) == set(lender.parameters)


def test_dropout_is_the_same_for_each_portion_of_the_gradients_that_are_compared(monkeypatch):
    monkeypatch.setattr(lent, "PORTION", 1)
    model = runs.network("dropout").train()
    _, lending = without_weights(model)
    with lending:
        assert len(list(lent.portions(dict(model.named_parameters())))) == 4
        layout = examine(model, runs.loss_fn, (runs.inputs("dropout"), runs.labels()))
    assert layout.proven
    assert not layout.fallback


def test_an_examination_asks_for_the_same_weights_whatever_rounding_does(monkeypatch):
    """Processes gather weights together: one whose gradients are rounded otherwise must not ask for more than the others."""
    look = importlib.import_module("noisewise.persample.examine")
    noise, asked = look._noise, []
    monkeypatch.setattr(look, "_noise", lambda *args: dict.fromkeys(noise(*args), 1e9))  # whatever differs is excused
    for room in (look.ROUNDING, -1.0):  # nothing differs; everything does
        monkeypatch.setattr(look, "ROUNDING", room)
        model = runs.network("blocks")
        lender, lending = without_weights(model)
        with lending:
            assert not look.examine(model, runs.loss_fn, UNITS).fallback
        asked.append(lender.asked)
    assert asked[0] == asked[1]


def test_whole_weights_are_gone_when_a_call_returns_and_lent_again_for_its_gradient():
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(8)])
    lender, lending = without_weights(model)
    with lending:
        losses = model(torch.randn(3, 16)).square().sum(1)
        forward = len(lender.asked)
        grads = torch.autograd.grad(losses.sum(), [model[0].weight])
    assert forward == 16
    assert lender.asked[forward:] == [f"{layer}.weight" for layer in range(7, 0, -1)]
    assert lender.most <= 3 * 16 * 16 * 4  # the one in use, the next, and small change
    assert grads[0].shape == (16, 16)
    for name, parameter in model.named_parameters():
        assert parameter.untyped_storage().nbytes() == 4, name


def test_what_was_changed_after_it_was_saved_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    _, lending = without_weights(model)
    with lending:
        hidden = model(torch.randn(3, 4))
        hidden.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(hidden.sum(), [model[0].weight])


def test_weights_are_perturbed_on_the_way_and_not_where_they_lie():
    model = nn.Linear(4, 2)
    lender, lending = without_weights(model)
    row = torch.ones(1, 4)
    with lending, torch.no_grad():
        before = model(row)
        with perturbed(model):
            within = model(row)
        after = model(row)
    assert torch.equal(before, after)
    assert not torch.allclose(before, within)
    assert torch.equal(before, nn.functional.linear(row, lender.parameters["weight"], lender.parameters["bias"]))


USES = {
    "norm": lambda m, x: m(x) * m.weight.norm(),
    "matmul": lambda m, x: x @ m.weight.t(),
    "a transposed view": lambda m, x: x @ m.weight.T,
    "data": lambda m, x: m(x) + m.weight.data.sum(),
    "a decision": lambda m, x: m(x) if bool((m.weight < 1e9).all()) else -m(x),
    "a number": lambda m, x: m(x) * float(m.bias[0]),
    "a list": lambda m, x: m(x) + torch.cat([m.bias]),
    "numpy": lambda m, x: m(x) * m.bias.detach().numpy()[0],
}


class Using(nn.Module):
    """A linear layer whose parameters are used once more."""

    def __init__(self, use):
        super().__init__()
        self.layer, self.use = nn.Linear(5, 3), use

    def forward(self, x):
        return self.use(self.layer, x)


@pytest.mark.parametrize("use", USES)
def test_a_stand_in_that_is_used_otherwise_is_refused(use):
    model = Using(USES[use]).double()
    _, lending = without_weights(model)
    with (
        lending,
        pytest.raises(
            UnsupportedLayer, match=r"which is spread over processes, to |is spread over processes otherwise"
        ),
    ):
        examine(model, runs.loss_fn, (runs.inputs("mlp"), runs.labels()))


class OfRows(nn.Linear):
    """Decides by a number of the batch: there is no proof."""

    def forward(self, x):
        return super().forward(x) if float(x.abs().max()) < 1e9 else super().forward(-x)


def test_a_model_that_needs_another_engine_is_refused():
    model = nn.Sequential(OfRows(5, 3)).double()
    _, lending = without_weights(model)
    with lending, pytest.raises(UnsupportedLayer, match="only the fast engine works, and it cannot be used"):
        examine(model, runs.loss_fn, (runs.inputs("mlp"), runs.labels()))


def test_without_a_lending_nothing_is_lent():
    parameter = nn.Parameter(torch.ones(2, 2))
    assert lent.lending() is None
    assert not lent.is_lent(parameter)
    assert lent.pieces(["weight"]) == {}
    sums = lent.Sums()
    sums.add("weight", parameter)
    assert sums.all()["weight"] is parameter
    assert lent.apart(parameter).data_ptr() == parameter.data_ptr()
