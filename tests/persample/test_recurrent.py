"""Recurrent layers by their linear layers, against PyTorch's own: states, gradients, and units apart."""

import pytest
import torch
from torch import nn

from noisewise.persample import recurrent

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": nn.RNN}
SETTINGS = ({}, {"num_layers": 2, "bidirectional": True, "batch_first": True}, {"bias": False})


def layer_and_args(kind, settings):
    torch.manual_seed(3)
    extra = {"nonlinearity": kind} if kind in ("tanh", "relu") else {}
    layer = KINDS[kind](3, 4, **settings, **extra).double()
    x = torch.randn(5, 5, 3).double().requires_grad_()
    number = layer.num_layers * (2 if layer.bidirectional else 1)
    states = [torch.randn(number, 5, 4).double().requires_grad_() for _ in range(2 if kind == "lstm" else 1)]
    hidden = tuple(states) if kind == "lstm" else states[0]
    args = (
        x,
        hidden,
        layer._flat_weights,
        layer.bias,
        layer.num_layers,
        0.0,
        True,
        layer.bidirectional,
        layer.batch_first,
    )
    return layer, [x, *states], args


def run(kind, args, nudges=None):
    def recurrence(kind, gates, weight, bias, state, cell):
        nudge = torch.zeros_like(gates, requires_grad=True)
        if nudges is not None:
            nudges.append(nudge)
        return recurrent.Recurrence.apply(kind, gates, nudge, weight.detach(), bias, state, cell)

    return recurrent.run_layers(kind, recurrent.layers_of(args, {}), recurrence)


@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "deep", "no bias"])
@pytest.mark.parametrize("kind", KINDS)
def test_states_and_gradients_are_those_of_pytorch(kind, settings):
    layer, inputs, args = layer_and_args(kind, settings)
    function = next(function for function, name in recurrent.KINDS.items() if name == kind)
    expected, got = function(*args), run(kind, args)
    assert [part.shape for part in got] == [part.shape for part in expected]
    weights = [torch.randn_like(part) for part in expected]
    for one, two in zip(got, expected, strict=True):
        assert torch.allclose(one, two, rtol=1e-12, atol=1e-14)
    learning = [*inputs, layer.weight_ih_l0]
    grads = [
        torch.autograd.grad(sum((part * w).sum() for part, w in zip(parts, weights, strict=True)), learning)
        for parts in (got, expected)
    ]
    for one, two in zip(*grads, strict=True):
        assert torch.allclose(one, two, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_the_nudge_is_that_of_the_recurrent_weights(kind):
    """Sum over time of the nudge's gradient and the states before: PyTorch's own gradient of the recurrent weight."""
    layer, inputs, args = layer_and_args(kind, {})
    nudges = []
    states = run(kind, args, nudges)[0]
    (by_nudge,) = torch.autograd.grad(states.square().sum(), nudges, retain_graph=True)
    before = torch.cat([inputs[1].detach(), states[:-1].detach()])
    expected = torch.autograd.grad(layer(inputs[0], args[1])[0].square().sum(), [layer.weight_hh_l0, layer.bias_hh_l0])
    assert torch.allclose(torch.einsum("tng,tnh->gh", by_nudge, before), expected[0], rtol=1e-11, atol=1e-13)
    assert torch.allclose(by_nudge.sum((0, 1)), expected[1], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_one_unit_moves_its_own_row_and_its_own_gradient_only(kind):
    """What lets the proof take a recurrence for one step."""
    _, inputs, args = layer_and_args(kind, {})
    moved = inputs[0].detach().clone()
    moved[:, 2] += 1
    results = []
    for x in (inputs[0].detach(), moved):
        x.requires_grad_()
        parts = run(kind, (x, *args[1:]))
        results.append([*parts, *torch.autograd.grad(parts[0].pow(3).sum(), [x, *inputs[1:]])])
    others = [0, 1, 3, 4]
    for one, two in zip(*results, strict=True):
        assert torch.equal(one[:, others], two[:, others])
        assert not torch.equal(one[:, 2], two[:, 2])


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for kind, name in recurrent.CELLS.items()])
def test_cells_are_those_of_pytorch(name, kind):
    torch.manual_seed(3)
    cell = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}.get(name, nn.RNNCell)(3, 4).double()
    x, state = torch.randn(5, 3).double(), torch.randn(5, 4).double()
    hidden = (state, state.cos()) if name == "lstm" else state
    args = (x, hidden, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    got, expected = recurrent.run_cell(name, args), kind(*args)
    pairs = zip(got, expected, strict=True) if name == "lstm" else [(got, expected)]
    assert all(torch.allclose(one, two, rtol=1e-12, atol=1e-14) for one, two in pairs)


def test_packed_sequences_and_projected_states_are_left_alone():
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 3), torch.randn(2, 3)])
    hidden = torch.zeros(1, 2, 4)
    assert recurrent.layers_of((packed.data, packed.batch_sizes, hidden, [], True, 1, 0.0, True, False), {}) is None
    layer = nn.LSTM(3, 4, proj_size=2)
    args = (torch.randn(5, 2, 3), (torch.zeros(1, 2, 2), torch.zeros(1, 2, 4)), layer._flat_weights)
    assert recurrent.layers_of((*args, True, 1, 0.0, True, False, False), {}) is None
