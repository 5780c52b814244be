"""Recurrent layers as linear layers and a recurrence between them, so that the linear rule explains their weights.

PyTorch runs a whole LSTM, GRU or RNN as one operation, whose gradients by time are not handed out. Here a layer is
`gates = x W_ih^T + b_ih`, an ordinary linear layer, and a recurrence over time that takes the gates and `U = W_hh`:

    LSTM    i, f, g, o = gates_t + U h;  c' = sig(f) c + sig(i) tanh(g);  h' = sig(o) tanh(c')
    GRU     r, z, n = gates_t, U h;      n' = tanh(n_x + sig(r) n_h);     h' = n' + sig(z) (h - n')
    RNN     h' = tanh or relu (gates_t + U h)

`U` is a linear layer too: its inputs are the states before each time, and the gradient of its outputs is that of `nudge`,
which stands for a zero added to `U h`. Reference: torch.nn.LSTM, GRU, RNN, whose order of gates this is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
KINDS = {torch.lstm: "lstm", torch.gru: "gru", torch.rnn_tanh: "tanh", torch.rnn_relu: "relu"}
CELLS = {torch.lstm_cell: "lstm", torch.gru_cell: "gru", torch.rnn_tanh_cell: "tanh", torch.rnn_relu_cell: "relu"}

Recurrent = Callable[[str, Tensor, Tensor, "Tensor | None", Tensor, "Tensor | None"], tuple[Tensor, ...]]


class Recurrence(torch.autograd.Function):
    """States `[time, units, width]` of one layer in one direction, the last state and, for an LSTM, the last cell.

    Row by row in both directions: nothing is added up over units, neither forward nor backward.
    """

    @staticmethod
    def forward(
        ctx: Any,
        kind: str,
        gates: Tensor,
        nudge: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        state: Tensor,
        cell: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """Time after time; `nudge` counts as zero."""
        run = {"lstm": _lstm, "gru": _gru, "tanh": _rnn, "relu": _rnn}[kind]
        results, kept = run(kind, gates, weight, bias, state, cell)
        ctx.kind = kind
        ctx.save_for_backward(weight, *kept)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of gates, nudge, first state and first cell."""
        weight, *kept = ctx.saved_tensors
        back = {"lstm": _lstm_back, "gru": _gru_back, "tanh": _rnn_back, "relu": _rnn_back}[ctx.kind]
        gates, nudge, state, cell = back(ctx.kind, weight, kept, grads)
        return None, gates, nudge, None, None, state, cell


def _lstm(
    kind: str, gates: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, cell: Tensor | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    assert cell is not None
    width, turned = weight.shape[1], weight.t()
    gates = gates.clone() if bias is None else gates + bias
    states = gates.new_empty(*gates.shape[:2], width)
    cells = gates.new_empty(len(gates) + 1, gates.shape[1], width)
    curved = torch.empty_like(states)
    cells[0] = cell
    for t, gate in enumerate(gates):
        gate.addmm_(state, turned)
        gate[:, : 2 * width].sigmoid_()
        gate[:, 2 * width : 3 * width].tanh_()
        gate[:, 3 * width :].sigmoid_()
        i, f, g, o = gate.chunk(4, 1)
        torch.mul(f, cells[t], out=cells[t + 1]).addcmul_(i, g)
        torch.tanh(cells[t + 1], out=curved[t])
        state = torch.mul(o, curved[t], out=states[t])
    return (states, states[-1].clone(), cells[-1].clone()), (gates, cells, curved)


def _lstm_back(kind: str, weight: Tensor, kept: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    gates, cells, curved = kept
    i, f, g, o = gates.unflatten(2, (4, -1)).unbind(2)
    by_cell = torch.stack([g * i * (1 - i), cells[:-1] * f * (1 - f), i * (1 - g * g)], 2)
    by_state, through = curved * o * (1 - o), o * (1 - curved * curved)
    result = torch.empty_like(gates)
    split = result.unflatten(2, (4, -1))
    state, cell = grads[1], grads[2].clone()
    for t in range(len(gates) - 1, -1, -1):
        state = grads[0][t] + state
        cell.addcmul_(state, through[t])
        torch.mul(by_cell[t], cell.unsqueeze(1), out=split[t, :, :3])
        torch.mul(by_state[t], state, out=split[t, :, 3])
        cell.mul_(f[t])
        state = result[t] @ weight
    return result, result, state, cell


def _gru(
    kind: str, gates: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, cell: Tensor | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    width, turned = weight.shape[1], weight.t()
    open_gates = torch.empty_like(gates[..., : 2 * width])
    inner = gates.new_empty(*gates.shape[:2], width)
    new = torch.empty_like(inner)
    states = gates.new_empty(len(gates) + 1, gates.shape[1], width)
    states[0] = state
    for t, gate in enumerate(gates):
        hidden = states[t] @ turned if bias is None else torch.addmm(bias, states[t], turned)
        torch.add(gate[:, : 2 * width], hidden[:, : 2 * width], out=open_gates[t]).sigmoid_()
        r, z = open_gates[t].chunk(2, 1)
        inner[t] = hidden[:, 2 * width :]
        torch.addcmul(gate[:, 2 * width :], r, inner[t], out=new[t]).tanh_()
        torch.lerp(new[t], states[t], z, out=states[t + 1])
    return (states[1:].clone(), states[-1].clone()), (open_gates, inner, new, states)


def _gru_back(kind: str, weight: Tensor, kept: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    open_gates, inner, new, states = kept
    r, z = open_gates.chunk(2, 2)
    by_new = (1 - z) * (1 - new * new)
    by_z = (states[:-1] - new) * z * (1 - z)
    by_r = by_new * inner * r * (1 - r)
    hidden = torch.stack([by_r, by_z, by_new * r], 2)
    result = torch.empty_like(hidden)
    each = torch.empty_like(new)
    state = grads[1]
    for t in range(len(new) - 1, -1, -1):
        state = torch.add(grads[0][t], state, out=each[t])
        torch.mul(hidden[t], state.unsqueeze(1), out=result[t])
        state = torch.addmm(state * z[t], result[t].flatten(1), weight)
    gates = torch.cat([result[:, :, :2].flatten(2), each * by_new], 2)
    return gates, result.flatten(2), state, None


def _rnn(
    kind: str, gates: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, cell: Tensor | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    states, turned = (gates.clone() if bias is None else gates + bias), weight.t()
    for current in states:
        current.addmm_(state, turned)
        state = current.tanh_() if kind == "tanh" else current.relu_()
    return (states, states[-1].clone()), (states.clone(),)


def _rnn_back(kind: str, weight: Tensor, kept: Sequence[Tensor], grads: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    (states,) = kept
    slope = 1 - states * states if kind == "tanh" else (states > 0).to(states.dtype)
    result, state = torch.empty_like(states), grads[1]
    for t in range(len(states) - 1, -1, -1):
        state = torch.mul(grads[0][t] + state, slope[t], out=result[t]) @ weight
    return result, result, state, None


class Layers(NamedTuple):
    """The arguments of a recurrent layer's function."""

    input: Tensor
    hidden: tuple[Tensor, ...]
    weights: list[Tensor]
    biased: bool
    number: int
    dropout: float
    training: bool
    both_ways: bool
    batch_first: bool


def layers_of(args: Sequence[Any], kwargs: dict[str, Any]) -> Layers | None:
    """The arguments of a call on whole sequences; None for packed ones, and for states that are projected."""
    if kwargs or len(args) != 9 or not isinstance(args[2], list | tuple):
        return None
    input, hidden, weights, *settings = args
    layers = Layers(input, (hidden,) if isinstance(hidden, Tensor) else tuple(hidden), list(weights), *settings)
    each = 4 if layers.biased else 2
    plain = input.dim() == 3 and len(weights) == layers.number * (2 if layers.both_ways else 1) * each
    alike = all(part.dtype == input.dtype for part in (*weights, *layers.hidden))
    return layers if plain and alike and input.numel() else None


def run_layers(kind: str, layers: Layers, recurrence: Recurrent) -> tuple[Tensor, ...]:
    """What PyTorch's function gives: states of the last layer by time, and the last states of all layers."""
    x = layers.input.transpose(0, 1) if layers.batch_first else layers.input
    each = 4 if layers.biased else 2
    last: list[list[Tensor]] = []
    for layer in range(layers.number):
        ways = []
        for way in range(2 if layers.both_ways else 1):
            here = len(last)
            inputs, hidden, *biases = layers.weights[here * each : (here + 1) * each]
            before, after = biases or (None, None)
            gates = F.linear(x, inputs, before)
            state, cell, *_ = [*(part[here] for part in layers.hidden), None]
            states, *rest = recurrence(kind, gates.flip(0) if way else gates, hidden, after, state, cell)
            ways.append(states.flip(0) if way else states)
            last.append(rest)
        x = torch.cat(ways, 2) if len(ways) > 1 else ways[0]
        if layers.dropout and layers.training and layer < layers.number - 1:
            x = F.dropout(x, layers.dropout)
    return (x.transpose(0, 1) if layers.batch_first else x, *(torch.stack(parts) for parts in zip(*last, strict=True)))


def run_cell(kind: str, args: Sequence[Any]) -> Any:
    """One time of a cell, by two linear layers: what PyTorch's function of the same name gives."""
    input, hidden, inputs, recurrent, *biases = args
    state, cell = hidden if kind == "lstm" else (hidden, hidden)
    before, after = biases or (None, None)
    gates, more = F.linear(input, inputs, before), F.linear(state, recurrent, after)
    if kind == "lstm":
        i, f, g, o = (gates + more).chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell
    if kind == "gru":
        (r, z, n), (r_h, z_h, n_h) = gates.chunk(3, -1), more.chunk(3, -1)
        new = (n + (r + r_h).sigmoid() * n_h).tanh()
        return new + (z + z_h).sigmoid() * (state - new)
    return (gates + more).tanh() if kind == "tanh" else (gates + more).relu()
