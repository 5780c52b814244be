"""Models whose units influence each other, in ways that a look at a few made-up units may miss. Generated, by seed.

    PYTHONPATH=src:tests python tests/helpers/hostile.py [--variants 6] [--only WORD]     prints what happens to each family

A family is a kind of coupling; a variant draws what the kind leaves open: where it sits (inputs, hidden layers, outputs), from
which number of units, above which value, with which strength and probability, behind a head or gate that starts at zero,
with weights that have moved since the examination, in which precision, with which bound.

The property: `clipped_sum` raises a NoisewiseError, or one unit moves the clipped sum of Flat(C) by at most C (added or left
out) and 2 C (replaced), wherever it stands and however extreme it is. How neighbours are compared, by family:

- `pair`: both sums with the same seed of every generator. Right where nothing is random, and where chance is one draw for the
  whole batch: those draws are the same for both neighbours. It stays right when units are evaluated alone, one after another,
  because every such coupling is written so that it leaves a batch of one row as it is: a lone unit's gradient does not depend
  on the draw, so draws that shift with the place do not move it.
- `lone`: chance acts on a row even when it is alone. Sums of neighbours then differ by other draws of the others, which is no
  breach; what must hold for every draw is that a batch of one unit is no longer than C.
- `carry`: the model remembers. Each sum is taken with a fresh copy as in `pair`; and a batch that follows another must have
  the same sum whatever unit the earlier one had (its own bound says nothing about units of another step).
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.oracles import Setup, as_type, clipped_sum_by_hand, nested, rows, unit_gradients
from noisewise.clipping import Flat
from noisewise.errors import NoisewiseError
from noisewise.persample import Layout, clipped_sum, examine
from noisewise.persample.steady import NotSteady
from noisewise.runtime import Runtime
from noisewise.testing import reveal
from noisewise.training.captured import Captured

CLASSES, WIDTH, STEPS = 6, 6, 4
POOL = 140  # units to choose from; labels are 0 to 3, and 5 for the extreme unit
SIZES = (2, 4, 7, 16, 31, 32, 33, 64, 96, 128)  # numbers of units from which something happens
ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 1e-5}

Mix = Callable[[Tensor], Tensor]
LossFn = Callable[[nn.Module, Any], Tensor]


class Draw(NamedTuple):
    """What a variant draws: a generator for its own numbers, and the number of units from which something happens."""

    r: random.Random
    size: int

    def strength(self) -> float:
        """How much of other rows is mixed in."""
        return self.r.choice([0.3, 1.0, 3.0])


# ------------------------------------------------------------------------------------------------------------- networks


class Net(nn.Module):
    """Two hidden layers and a head; `mix` acts at one depth: on inputs (0), hidden layers (1, 2) or outputs (3)."""

    def __init__(self, mix: Mix, depth: int, start: str = "ordinary", width: int = WIDTH):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, width), nn.Linear(width, width), nn.Linear(width, CLASSES)
        self.mix, self.depth = mix, depth
        if start == "zero head":
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)
        self.gate = nn.Parameter(torch.zeros(())) if start == "zero gate" else None

    def mixed(self, h: Tensor, depth: int) -> Tensor:
        if depth != self.depth:
            return h
        return self.mix(h) if self.gate is None else h + self.gate * (self.mix(h) - h)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(self.mixed(x, 0)))
        h = torch.tanh(self.second(self.mixed(h, 1)))
        return self.mixed(self.head(self.mixed(h, 2)), 3)


class Sequences(nn.Module):
    """A layer that is given `[units, steps, features]`, before a head on the mean of the steps."""

    def __init__(self, layer: nn.Module | Mix, start: str = "ordinary"):
        super().__init__()
        self.first, self.layer, self.head = nn.Linear(5, WIDTH), layer, nn.Linear(WIDTH, CLASSES)
        if start == "zero head":
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(torch.tanh(self.first(x)))
        return self.head((h[0] if isinstance(h, tuple) else h).mean(1))


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The honest loss."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def plain(draw: Draw) -> nn.Module:
    """The honest model."""
    return Net(lambda h: h, 0)


# ------------------------------------------------------------------------------- couplings of rows: h [units, ...] -> h


def _toward(strength: float, other: Callable[[Tensor], Tensor]) -> Mix:
    """Rows move towards something that is made of all rows; a lone row stays as it is."""
    return lambda h: h + strength * (other(h) - h)


def _when(condition: Callable[[Tensor], Any], then: Mix) -> Mix:
    return lambda h: then(h) if condition(h) else h


def _mean(h: Tensor) -> Tensor:
    return h.mean(0, keepdim=True).expand_as(h)


def _rolled(by: int) -> Mix:
    return lambda h: h.roll(by, 0)


def _towards_first(draw: Draw) -> Mix:
    return _toward(draw.strength(), lambda h: h[:1].expand_as(h))


def _towards_mean(draw: Draw) -> Mix:
    return _toward(draw.strength(), _mean)


def _attention_over_units(draw: Draw) -> Mix:
    heat = draw.r.choice([0.3, 1.0, 3.0])

    def mix(h: Tensor) -> Tensor:
        flat = h.flatten(1)
        return ((heat * flat @ flat.T).softmax(1) @ flat).view_as(h)

    return mix


def _sorted_and_back(draw: Draw) -> Mix:
    """No value moves to another row; layers in between see rows in the order of the data."""
    column = draw.r.randrange(5)
    inner = nn.Linear(5, 5)

    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, h: Tensor) -> Tensor:
            order = h[:, column].argsort()
            return torch.tanh(self.inner(h[order]))[order.argsort()]

    return Sorted()


def _packed(draw: Draw) -> Mix:
    """As packed sequences: positive rows first, then the others, through one layer."""
    inner = nn.Linear(5, 5)

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, h: Tensor) -> Tensor:
            first = h[:, 0] > 0
            order = torch.cat([first.nonzero()[:, 0], (~first).nonzero()[:, 0]])
            return torch.zeros_like(h).index_copy(0, order, torch.tanh(self.inner(h[order])))

    return Packed()


def _top_rows(draw: Draw) -> Mix:
    """Capacity: only the k rows with the highest score are served."""

    def mix(h: Tensor) -> Tensor:
        score = h.flatten(1).sum(1)
        kept = torch.zeros_like(score).index_fill(0, score.topk(min(draw.size, len(h))).indices, 1.0)
        return h * kept.view(-1, *[1] * (h.dim() - 1))

    return mix


def _first_come(draw: Draw) -> Mix:
    """Capacity of an expert: the rows routed to it beyond the k-th are dropped, by cumulative count."""

    def mix(h: Tensor) -> Tensor:
        mine = (h.flatten(1)[:, 0] > 0).long()
        served = (mine.cumsum(0) <= max(1, draw.size // 2)) | (mine == 0)
        return h * served.to(h.dtype).view(-1, *[1] * (h.dim() - 1))

    return mix


def _rows_before(draw: Draw) -> Mix:
    return _toward(draw.strength(), lambda h: h[: draw.size].mean(0, keepdim=True).expand_as(h))


def _rows_behind(draw: Draw) -> Mix:
    """The first rows are left alone; those behind them are mixed."""
    strength = draw.strength()
    return lambda h: torch.cat([h[: draw.size], _toward(strength, _mean)(h[draw.size :])]) if len(h) > draw.size else h


def _chunks(draw: Draw) -> Mix:
    """Ghost BatchNorm: each chunk of rows is centred by itself."""
    strength = draw.strength()
    return lambda h: torch.cat([_toward(strength, _mean)(part) for part in h.split(draw.size)])


def _deviation_of_groups(draw: Draw) -> Mix:
    """Minibatch standard deviation (StyleGAN): a statistic of neighbouring rows is added to all of them."""
    strength = draw.strength()
    return lambda h: torch.cat([part + strength * part.std(0, correction=0).mean() for part in h.split(4)])


def _view(draw: Draw) -> Mix:
    """The same numbers, read in another order."""
    kind = draw.r.choice(["columns", "shifted", "halves"])

    def mix(h: Tensor) -> Tensor:
        if kind == "columns":
            return h.transpose(0, 1).reshape(h.shape)
        if kind == "shifted":
            return h.flatten().roll(1).view_as(h)
        return torch.cat([h.flatten()[1::2], h.flatten()[::2]]).view_as(h)

    return mix


def _strided(draw: Draw) -> Mix:
    """Windows that reach into the next row."""

    def mix(h: Tensor) -> Tensor:
        wide = torch.cat([h.flatten(), h.flatten()[:1]])
        return wide.as_strided((len(h), h[0].numel()), (h[0].numel(), 1), 1).reshape(h.shape)

    return mix


def _convolved(draw: Draw) -> Mix:
    kernel = torch.tensor([0.25, 0.5, 0.25])

    def mix(h: Tensor) -> Tensor:
        flat = F.pad(h.flatten(1).T.unsqueeze(1), (1, 1), "replicate")
        return F.conv1d(flat, kernel.to(h).view(1, 1, 3))[:, 0].T.reshape(h.shape)

    return mix


def _whitened(draw: Draw) -> Mix:
    def mix(h: Tensor) -> Tensor:
        flat = h.flatten(1).double()
        cov = flat.T @ flat / len(flat) + torch.eye(flat.shape[1]).to(flat)
        return torch.linalg.solve(cov, flat.T).T.to(h.dtype).view_as(h)

    return mix


def _scaled_by_largest(draw: Draw) -> Mix:
    """h / max(T, batch maximum): nothing happens on ordinary numbers."""
    at_least = draw.r.choice([4.0, 10.0, 30.0])
    return lambda h: h / h.abs().max().clamp(min=at_least)


def _image_or_not(draw: Draw) -> Mix:
    """`x / 255 if x.max() > T else x`: are these bytes?"""
    above = draw.r.choice([4.0, 10.0, 30.0])
    return _when(lambda h: bool(h.max() > above), lambda h: h / 255)


def _mixed_above(draw: Draw) -> Mix:
    above = draw.r.choice([4.0, 10.0, 30.0])
    return _when(lambda h: bool(h.abs().max() > above), _towards_mean(draw))


def _clamped_to_quantile(draw: Draw) -> Mix:
    share = draw.r.choice([0.5, 0.9, 0.99])
    return lambda h: h.clamp(max=h.flatten(1).float().quantile(share, 0).to(h.dtype).view(h.shape[1:]))


def _quantised(draw: Draw) -> Mix:
    """Levels are spread over the batch's own range."""
    levels = draw.r.choice([3, 7, 15])

    def mix(h: Tensor) -> Tensor:
        largest = h.detach().abs().max() + 1e-6
        return h + ((h / largest * levels).round() / levels * largest - h).detach()

    return mix


def _from_units(draw: Draw) -> Mix:
    return _when(lambda h: len(h) > draw.size, _towards_mean(draw))


def _up_to_units(draw: Draw) -> Mix:
    return _when(lambda h: 1 < len(h) < draw.size, _towards_mean(draw))


def _exactly_units(draw: Draw) -> Mix:
    return _when(lambda h: len(h) == draw.size, _towards_mean(draw))


def _even_units(draw: Draw) -> Mix:
    return _when(lambda h: len(h) % 2 == 0, _towards_mean(draw))


def _multiples(draw: Draw) -> Mix:
    """Fast kernels for full blocks, as in fused code: mixing only where the number of units divides evenly."""
    return _when(lambda h: len(h) % 8 == 0, _towards_mean(draw))


def _divided_by_units(draw: Draw) -> Mix:
    return lambda h: h * (10.0 / (9.0 + len(h)))


def _by_place(draw: Draw) -> Mix:
    """Row i is weighted by its place."""
    return lambda h: h * torch.linspace(1, 2, len(h), dtype=h.dtype).flip(0).view(-1, *[1] * (h.dim() - 1))


def _by_place_code(draw: Draw) -> Mix:
    """A position code along the wrong dimension."""
    return lambda h: h + torch.sin(torch.arange(len(h), dtype=h.dtype, device=h.device)).view(-1, *[1] * (h.dim() - 1))


def _with_gradient_only(draw: Draw) -> Mix:
    return _when(lambda h: torch.is_grad_enabled(), _towards_mean(draw))


def _mean_kept_out_of_gradient(draw: Draw) -> Mix:
    return _toward(draw.strength(), lambda h: _mean(h).detach())


def _gradient_of_mean(draw: Draw) -> Mix:
    """No value changes, the gradient is shared."""
    strength = draw.strength()
    return lambda h: h + strength * (_mean(h) - _mean(h).detach())


def _alpha_of_batch(draw: Draw) -> Mix:
    """A number that is read into Python."""
    return lambda h: h * (1.0 + float(h.detach().float().std(0, correction=0).mean()))


def _sign_of_batch(draw: Draw) -> Mix:
    return lambda h: h if float(h.detach().sum()) > 0 else -h


def _nearest_row(draw: Draw) -> Mix:
    def mix(h: Tensor) -> Tensor:
        distance = torch.cdist(h.flatten(1).float(), h.flatten(1).float()) + 1e6 * torch.eye(len(h), device=h.device)
        return 0.5 * (h + h[distance.argmin(1)])

    return mix


def _unique_rows(draw: Draw) -> Mix:
    """Rows are ranked among the others."""
    return lambda h: h + 0.3 * h.argsort(0).argsort(0).to(h.dtype) * (len(h) > 1)


def _scattered(draw: Draw) -> Mix:
    """Rows are added to buckets that several of them share, and read from there."""

    def mix(h: Tensor) -> Tensor:
        bucket = (h.flatten(1)[:, 0] > 0).long()
        return torch.zeros(2, *h.shape[1:], dtype=h.dtype, device=h.device).index_add(0, bucket, h)[bucket]

    return mix


def _kron(draw: Draw) -> Mix:
    return lambda h: (
        torch.einsum("i...,j->j...", h, torch.ones(len(h), dtype=h.dtype, device=h.device)) / len(h) + 0 * h
    )


def _fourier(draw: Draw) -> Mix:
    return lambda h: torch.fft.fft(h.float(), dim=0).real.to(h.dtype)


MIXES: dict[str, Callable[[Draw], Mix]] = {
    "towards the batch mean": _towards_mean,
    "towards the detached mean": _mean_kept_out_of_gradient,
    "gradient of the mean": _gradient_of_mean,
    "attention over units": _attention_over_units,
    "rolled": lambda draw: _rolled(draw.r.choice([1, 2, -1])),
    "flipped": lambda draw: lambda h: h.flip(0),
    "flipped halfway": lambda draw: lambda h: torch.cat([h[: draw.size].flip(0), h[draw.size :]]),
    "cumulative sum": lambda draw: lambda h: h.cumsum(0),
    "cumulative maximum": lambda draw: lambda h: h.cummax(0).values,
    "cumulative product": lambda draw: lambda h: (1 + 0.1 * h.tanh()).cumprod(0),
    "softmax over units": lambda draw: lambda h: h.softmax(0),
    "normalised over units": lambda draw: lambda h: F.normalize(h, dim=0),
    "maximum over units": lambda draw: _toward(draw.strength(), lambda h: h.amax(0, keepdim=True).expand_as(h)),
    "median over units": lambda draw: _toward(draw.strength(), lambda h: h.median(0, keepdim=True).values.expand_as(h)),
    "layer norm over everything": lambda draw: lambda h: F.layer_norm(h, h.shape),
    "batch norm": lambda draw: lambda h: F.batch_norm(torch.cat([h, -h]), None, None, training=True)[: len(h)],
    "deviation of groups": _deviation_of_groups,
    "chunks": _chunks,
    "whitened": _whitened,
    "read in another order": _view,
    "windows into the next row": _strided,
    "convolved along units": _convolved,
    "Fourier transform along units": _fourier,
    "nearest row": _nearest_row,
    "ranks": _unique_rows,
    "buckets": _scattered,
    "sum by einsum": _kron,
    "top rows": _top_rows,
    "first come": _first_come,
    "rows before": _rows_before,
    "rows behind": _rows_behind,
    "above a number of units": _from_units,
    "below a number of units": _up_to_units,
    "at a number of units": _exactly_units,
    "even numbers of units": _even_units,
    "full blocks of units": _multiples,
    "divided by the number of units": _divided_by_units,
    "weights by place": _by_place,
    "code of the place": _by_place_code,
    "only with gradients": _with_gradient_only,
    "scaled by the largest": _scaled_by_largest,
    "bytes or not": _image_or_not,
    "mixed above a value": _mixed_above,
    "clamped to a quantile": _clamped_to_quantile,
    "quantised by the largest": _quantised,
    "number read into Python": _alpha_of_batch,
    "sign read into Python": _sign_of_batch,
    "mixed when a number is not finite": lambda draw: _when(
        lambda h: not bool(h.isfinite().all()), _towards_first(draw)
    ),
}

AT_INPUT: dict[str, Callable[[Draw], Mix]] = {"sorted and back": _sorted_and_back, "packed and back": _packed}


# --------------------------------------------------------------------------------------- couplings of gradients only


def _through(function: Callable[[Tensor], Tensor]) -> Mix:
    """The identity whose backward pass is a function of all rows' gradients."""

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, h: Tensor) -> Tensor:
            return h.clone()

        @staticmethod
        def backward(context: Any, grad: Tensor) -> Tensor:
            return function(grad)

    return Backward.apply


def _hooked(function: Callable[[Tensor], Tensor]) -> Mix:
    def mix(h: Tensor) -> Tensor:
        h = h.clone()
        if h.requires_grad:
            h.register_hook(function)
        return h

    return mix


class _Identity(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * 1.0


def _module_hooked(function: Callable[[Tensor], Tensor]) -> Mix:
    module = _Identity()
    module.register_full_backward_hook(lambda _, grads, __: (None if grads[0] is None else function(grads[0]),))
    return module


def _module_pre_hooked(function: Callable[[Tensor], Tensor]) -> Mix:
    module = _Identity()
    module.register_full_backward_pre_hook(lambda _, grads: (None if grads[0] is None else function(grads[0]),))
    return module


def _forward_hooked(function: Callable[[Tensor], Tensor]) -> Mix:
    module = _Identity()
    module.register_forward_hook(lambda _, __, out: function(out))
    return module


def _saved(function: Callable[[Tensor], Tensor]) -> Mix:
    """What autograd saves for the backward pass is changed by all rows."""

    def mix(h: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: function(t) if t.dim() > 1 else t, lambda t: t):
            return torch.sinh(h) + h.square()

    return mix


def _quantise(levels: int) -> Callable[[Tensor], Tensor]:
    def quantise(t: Tensor) -> Tensor:
        largest = t.abs().max() + 1e-6
        return (t / largest * levels).round() / levels * largest

    return quantise


GRADIENTS: dict[str, Callable[[Draw], Callable[[Tensor], Tensor]]] = {
    "centred": lambda draw: lambda g: g - g.mean(0),
    "summed": lambda draw: lambda g: g + _mean(g) * len(g),
    "rolled": lambda draw: lambda g: g.roll(1, 0),
    "scaled to unit length": lambda draw: lambda g: g / (g.norm() + 1e-12),
    "scaled by the largest": lambda draw: lambda g: g / (g.abs().max() + 1e-12),
    "quantised": lambda draw: _quantise(draw.r.choice([1, 3, 7])),
    "centred above a number of units": lambda draw: lambda g: g - g.mean(0) if len(g) > draw.size else g,
    "largest kept": lambda draw: lambda g: g * (g.abs() >= g.abs().amax(0)),
}
WAYS: dict[str, Callable[[Callable[[Tensor], Tensor]], Mix]] = {
    "autograd function": _through,
    "tensor hook": _hooked,
    "module hook": _module_hooked,
    "module pre-hook": _module_pre_hooked,
    "saved tensors": _saved,
    "forward hook": _forward_hooked,
}


# ------------------------------------------------------------------------------------------------- custom operators


@torch.library.custom_op("zoo::towards_mean", mutates_args=())
def _towards_mean_operator(h: Tensor, strength: float, size: int) -> Tensor:
    return h + strength * (h.mean(0, keepdim=True) - h) if len(h) > size else h.clone()


@_towards_mean_operator.register_fake
def _(h: Tensor, strength: float, size: int) -> Tensor:
    return torch.empty_like(h)


_towards_mean_operator.register_autograd(lambda context, grad: (grad, None, None))


@torch.library.custom_op("zoo::mean_backward", mutates_args=())
def _mean_backward_operator(h: Tensor) -> Tensor:
    return h.clone()


_mean_backward_operator.register_fake(torch.empty_like)
_mean_backward_operator.register_autograd(lambda context, grad: grad + grad.mean(0) * len(grad))


@torch.library.custom_op("zoo::remember", mutates_args={"bank"})
def _remember_operator(rows: Tensor, bank: Tensor) -> None:
    bank.copy_(rows.mean(0))


OPERATORS: dict[str, Callable[[Draw], Mix]] = {
    "forward": lambda draw: lambda h: torch.ops.zoo.towards_mean(h, 1.0, 1),
    "forward above a number of units": lambda draw: lambda h: torch.ops.zoo.towards_mean(h, 1.0, draw.size),
    "backward": lambda draw: torch.ops.zoo.mean_backward,
}


# --------------------------------------------------------------------------------------------- modules used wrongly


class _Transposed(nn.Module):
    """A module that is given the units where it expects something else."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, h: Tensor) -> Tensor:
        return self.inner(h.flatten(1).T).T.reshape(h.shape)


class _SelfAttention(nn.Module):
    def __init__(self, **options: Any):
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, 2, **options)

    def forward(self, h: Tensor) -> Tensor:
        return self.attend(h, h, h, need_weights=False)[0]


class _SharedNorm(nn.Module):
    """BatchNorm over units and steps, whose buffers do not change."""

    def __init__(self, kind: str):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, track_running_stats=kind != "no statistics", momentum=0.0)
        if kind == "momentum 0":
            self.norm.num_batches_tracked = None

    def forward(self, h: Tensor) -> Tensor:
        return self.norm(h.transpose(1, 2)).transpose(1, 2)


class _Experts(nn.Module):
    """Positions of all units compete for the places of an expert."""

    def __init__(self, places: int):
        super().__init__()
        self.gate, self.places = nn.Linear(WIDTH, 3), places
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def forward(self, h: Tensor) -> Tensor:
        flat = h.flatten(0, 1)
        weight, chosen = self.gate(flat).softmax(1).max(1)
        out = flat
        for k, expert in enumerate(self.experts):
            mine = (chosen == k) & ((chosen == k).long().cumsum(0) <= self.places)
            out = out + mine.unsqueeze(1) * weight.unsqueeze(1) * torch.tanh(expert(flat))
        return out.view_as(h)


def _encoder_layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, dim_feedforward=8, dropout=0.0, **options)


MODULES: dict[str, Callable[[Draw], nn.Module]] = {
    "attention that takes units for time": lambda draw: _SelfAttention(),
    "encoder that takes units for time": lambda draw: _encoder_layer(),
    "LSTM that takes units for time": lambda draw: nn.LSTM(WIDTH, WIDTH),
    "GRU that takes units for time": lambda draw: nn.GRU(WIDTH, WIDTH, bidirectional=False),
    "RNN that takes units for time": lambda draw: nn.RNN(WIDTH, WIDTH),
    "BatchNorm without statistics": lambda draw: _SharedNorm("no statistics"),
    "BatchNorm of momentum 0": lambda draw: _SharedNorm("momentum 0"),
    "BatchNorm": lambda draw: _SharedNorm("ordinary"),
    "experts with places": lambda draw: _Experts(draw.r.choice([2, 8, 64, 200])),
    "softmax over units": lambda draw: nn.Softmax(0),
    "pooling over units": lambda draw: _Transposed(nn.AvgPool1d(3, 1, 1)),
    "maxima over units": lambda draw: _Transposed(nn.MaxPool1d(3, 1, 1)),
    "instance norm of units": lambda draw: _Transposed(_Doubled()),
}


class _Doubled(nn.Module):
    """Normalises each feature over the units, as instance norm does over positions; a lone unit is enough."""

    def forward(self, h: Tensor) -> Tensor:
        return F.instance_norm(torch.cat([h, -h], 1).unsqueeze(0))[0][:, : h.shape[1]]


# ------------------------------------------------------------------------------------------------ couplings of losses


def _scores(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    out = model(batch[0])
    return out, batch[1], F.cross_entropy(out, batch[1], reduction="none")


def _of_losses(change: Callable[[Draw, Tensor], Tensor]) -> Callable[[Draw], LossFn]:
    """A loss that is made of all units' losses."""
    return lambda draw: lambda model, batch: change(draw, _scores(model, batch)[2])


def _of_all(change: Callable[[Draw, Tensor, Tensor, Tensor], Tensor]) -> Callable[[Draw], LossFn]:
    """A loss that is made of all units' outputs, labels and losses."""
    return lambda draw: lambda model, batch: change(draw, *_scores(model, batch))


def _class_weights(draw: Draw, out: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    counts = F.one_hot(y, CLASSES).sum(0).to(loss.dtype)
    share = 1 / counts.clamp(min=1)
    return loss * (share / share.sum() * CLASSES)[y]


def _class_weights_of_rare(draw: Draw, out: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    """Nothing happens while labels are 0 and 1."""
    rare = (y > 1).to(loss.dtype).sum()
    return loss * (1 + rare)


def _in_batch_negatives(draw: Draw, out: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    return F.cross_entropy(out @ out.detach().T, torch.arange(len(out), device=out.device), reduction="none") + loss


def _label_of_next(draw: Draw, out: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    return F.cross_entropy(out, y.roll(1), reduction="none")


def _mixup(draw: Draw, out: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    return 0.6 * loss + 0.4 * F.cross_entropy(out, y.flip(0), reduction="none")


def _prior(draw: Draw, out: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    """Logits are adjusted by the batch's own frequencies of classes."""
    frequency = F.one_hot(y, CLASSES).to(out.dtype).mean(0)
    return F.cross_entropy(out + (frequency + 0.1).log(), y, reduction="none")


def _ranking(draw: Draw, out: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    score = out[:, 0]
    above = (y.unsqueeze(1) > y.unsqueeze(0)).to(out.dtype)
    return (above * F.softplus(score.unsqueeze(0) - score.unsqueeze(1))).sum(1) + loss


def _largest_label(draw: Draw, out: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    """The number of classes is read off the batch."""
    classes = int(y.max()) + 1
    return F.cross_entropy(out[:, :classes], y, reduction="none")


def _hardest(draw: Draw, loss: Tensor) -> Tensor:
    kept = torch.zeros_like(loss).index_fill(0, loss.topk(max(1, len(loss) // 2)).indices, 1.0)
    return 2 * loss * kept


def _above_median(draw: Draw, loss: Tensor) -> Tensor:
    return loss * (loss >= loss.detach().median())


LOSSES: dict[str, Callable[[Draw], LossFn]] = {
    "divided by the number of units": _of_losses(lambda draw, loss: loss * 10 / len(loss)),
    "divided above a number of units": _of_losses(lambda draw, loss: loss if len(loss) <= draw.size else loss / 2),
    "times the number of units": _of_losses(lambda draw, loss: loss * len(loss)),
    "mean for everybody": _of_losses(lambda draw, loss: loss.mean().expand(len(loss))),
    "centred": _of_losses(lambda draw, loss: loss - 0.5 * loss.mean()),
    "relative to the mean": _of_losses(lambda draw, loss: loss / (loss.detach().mean() + 0.1)),
    "relative to the largest": _of_losses(lambda draw, loss: loss / loss.detach().max().clamp(min=5.0)),
    "softmax of losses": _of_losses(lambda draw, loss: loss * loss.detach().softmax(0) * len(loss)),
    "hardest half": _of_losses(_hardest),
    "above the median": _of_losses(_above_median),
    "rolled": _of_losses(lambda draw, loss: loss.roll(1)),
    "flipped": _of_losses(lambda draw, loss: loss.flip(0)),
    "sorted": _of_losses(lambda draw, loss: loss.sort().values),
    "cumulative": _of_losses(lambda draw, loss: loss.cumsum(0)),
    "weights by place": _of_losses(lambda draw, loss: loss * torch.linspace(2, 1, len(loss), dtype=loss.dtype)),
    "curriculum by place": _of_losses(
        lambda draw, loss: loss * (torch.arange(len(loss), device=loss.device) < draw.size)
    ),
    "the last counts twice": _of_losses(lambda draw, loss: torch.cat([loss[:-1], 2 * loss[-1:]])),
    "trimmed": _of_losses(lambda draw, loss: loss * (loss < loss.detach().float().quantile(0.9).to(loss.dtype) + 1e-9)),
    "class weights of the batch": _of_all(_class_weights),
    "rare labels weigh on all": _of_all(_class_weights_of_rare),
    "prior of the batch": _of_all(_prior),
    "largest label of the batch": _of_all(_largest_label),
    "in-batch negatives": _of_all(_in_batch_negatives),
    "label of another": _of_all(_label_of_next),
    "mixup": _of_all(_mixup),
    "ranking": _of_all(_ranking),
}


# ---------------------------------------------------------------------------------------- chance, one draw for the batch


def _torch_coin(share: float) -> bool:
    return bool(torch.rand(()) < share)


def _python_coin(share: float) -> bool:
    return random.random() < share


def _numpy_coin(share: float) -> bool:
    return bool(np.random.random() < share)


def _tossed(coin: Callable[[float], bool]) -> Callable[[Draw], Mix]:
    def made(draw: Draw) -> Mix:
        share, mix = draw.r.choice([0.1, 0.3, 0.7]), _towards_mean(draw)
        return lambda h: mix(h) if coin(share) else h

    return made


def _noise_by_spread(draw: Draw) -> Mix:
    """No noise for a lone row: it has no spread."""
    return lambda h: h + torch.randn(()).to(h.dtype) * h.detach().std(0, correction=0, keepdim=True)


def _permuted(draw: Draw) -> Mix:
    return _toward(draw.strength(), lambda h: h[torch.randperm(len(h))])


def _python_shuffled(draw: Draw) -> Mix:
    def mix(h: Tensor) -> Tensor:
        order = list(range(len(h)))
        random.shuffle(order)
        return 0.5 * (h + h[order])

    return mix


def _random_partner(draw: Draw) -> Mix:
    return lambda h: 0.5 * (h + h[int(torch.randint(len(h), ()))])


def _beta_mixup(draw: Draw) -> Mix:
    return lambda h: torch.lerp(h, h.flip(0), float(np.random.beta(0.4, 0.4)))


CHANCE: dict[str, Callable[[Draw], Mix]] = {
    "torch's coin": _tossed(_torch_coin),
    "Python's coin": _tossed(_python_coin),
    "numpy's coin": _tossed(_numpy_coin),
    "noise by the batch's spread": _noise_by_spread,
    "torch's permutation": _permuted,
    "Python's permutation": _python_shuffled,
    "a random partner": _random_partner,
    "mixup by numpy": _beta_mixup,
}


# ---------------------------------------------------------------------------- chance that acts on a lone row as well


def _noise_by_largest(draw: Draw) -> Mix:
    return lambda h: h + torch.randn_like(h) * h.detach().abs().max()


def _dropout_by_mean(draw: Draw) -> Mix:
    return lambda h: F.dropout(h, float(h.detach().float().mean().nan_to_num().sigmoid()) * 0.8, True)


def _shared_mask(draw: Draw) -> Mix:
    """Variational dropout: one mask for all rows, drawn by the seed and rescaled by the batch."""
    return lambda h: h * (torch.rand(h.shape[1:]) < 0.5).to(h) / (h.detach().abs().mean() + 0.1)


LONE: dict[str, Callable[[Draw], Mix]] = {
    "noise by the largest": _noise_by_largest,
    "dropout by the mean": _dropout_by_mean,
    "one mask, rescaled by the batch": _shared_mask,
}


# --------------------------------------------------------------------------------------------------------------- memory

_EVERYWHERE: dict[str, Tensor] = {}


class Bank(nn.Module):
    """Adds what it kept of the batch before; `where` says in what it keeps it, `awake` when it does so."""

    def __init__(self, where: str, size: int, awake: Callable[[Tensor], bool]):
        super().__init__()
        self.where, self.size, self.awake, self.kept = where, size, awake, None
        self.items: list[Tensor] = []
        self.named: dict[str, Tensor] = {}
        self.queue: deque[Tensor] = deque(maxlen=2)
        self.number, self.array = 0.0, np.zeros(size)
        self.register_buffer("buffer", torch.zeros(size))
        self.weight = nn.Parameter(torch.zeros(size), requires_grad=False)
        _EVERYWHERE.clear()
        held: list[Tensor] = []
        self.closure = (lambda: held[-1] if held else None), held.append

    def forward(self, h: Tensor) -> Tensor:
        old = self._read()
        if self.awake(h):
            self._write(h.detach().flatten(1).mean(0))
        return h if old is None else h + old.to(h).view(h.shape[1:])

    def _read(self) -> Tensor | None:
        match self.where:
            case "attribute":
                return self.kept
            case "list":
                return self.items[-1] if self.items else None
            case "dict":
                return self.named.get("bank")
            case "deque":
                return sum(self.queue) if self.queue else None
            case "number":
                return torch.full((self.size,), self.number)
            case "numpy array":
                return torch.tensor(self.array)
            case "closure":
                return self.closure[0]()
            case "global":
                return _EVERYWHERE.get("bank")
            case "frozen weight, data":
                return self.weight.detach()
        return self.buffer

    def _write(self, mean: Tensor) -> None:
        match self.where:
            case "attribute":
                self.kept = mean
            case "list":
                self.items.append(mean)
            case "dict":
                self.named["bank"] = mean
            case "deque":
                self.queue.append(mean)
            case "number":
                self.number = float(mean.sum())
            case "numpy array":
                self.array[:] = mean.double().cpu().numpy()
            case "closure":
                self.closure[1](mean)
            case "global":
                _EVERYWHERE["bank"] = mean
            case "frozen weight, data":
                self.weight.data.copy_(mean)
            case "buffer":
                self.buffer.copy_(mean)
            case "buffer, assigned":
                self.buffer = mean.to(self.buffer.dtype)
            case "buffer, data":
                self.buffer.data.copy_(mean)
            case "buffer, lerp of data":
                self.buffer.data.lerp_(mean.to(self.buffer.dtype), 0.5)
            case "buffer, detached":
                self.buffer.detach().copy_(mean)
            case "buffer, numpy view":
                np.copyto(self.buffer.numpy(), mean.to(self.buffer.dtype).numpy())
            case "buffer, set":
                with torch.no_grad():
                    self.buffer.set_(mean.to(self.buffer.dtype).clone())


def _awake(draw: Draw) -> Callable[[Tensor], bool]:
    """Always, or only where an examination may not look."""
    return draw.r.choice(
        [
            lambda h: True,
            lambda h: torch.is_grad_enabled(),
            lambda h: len(h) > 3,
            lambda h: bool(h.detach().abs().max() > 0.99),
        ]
    )


PLACES = (
    "attribute", "list", "dict", "deque", "number", "numpy array", "closure", "global", "frozen weight, data", "buffer",
    "buffer, assigned", "buffer, data", "buffer, lerp of data", "buffer, detached", "buffer, numpy view", "buffer, set",
)  # fmt: skip


def _operator_bank(draw: Draw, width: int) -> Mix:
    bank = torch.zeros(width)

    def mix(h: Tensor) -> Tensor:
        nonlocal bank
        bank = bank.to(h)
        out = h + bank.clone()
        torch.ops.zoo.remember(h.detach(), bank)
        return out

    return mix


def _counting(draw: Draw) -> Mix:
    """Mixes from the k-th call on."""
    calls, start, mix = [0], draw.r.choice([15, 30, 45]), _towards_mean(draw)

    def counted(h: Tensor) -> Tensor:
        calls[0] += 1
        return mix(h) if calls[0] > start else h

    return counted


def _counting_rows(draw: Draw) -> Mix:
    """Mixes once it has seen k rows."""
    seen, start, mix = [0], draw.r.choice([60, 100, 150]), _towards_mean(draw)

    def counted(h: Tensor) -> Tensor:
        seen[0] += len(h)
        return mix(h) if seen[0] > start else h

    return counted


def _counting_gradients(draw: Draw) -> Mix:
    """Mixes from the k-th backward pass on."""
    passes, start, mix = [0], draw.r.choice([10, 20, 30]), _towards_mean(draw)

    def count(grad: Tensor) -> None:
        passes[0] += 1

    def counted(h: Tensor) -> Tensor:
        if h.requires_grad:
            h = h.clone()
            h.register_hook(count)
        return mix(h) if passes[0] > start else h

    return counted


COUNTERS: dict[str, Callable[[Draw], Mix]] = {
    "calls": _counting,
    "rows": _counting_rows,
    "backward passes": _counting_gradients,
}


def _second_pass(draw: Draw, width: int) -> Mix:
    """Remembers the last batch and mixes when another one comes."""
    last: list[Tensor] = []

    def mix(h: Tensor) -> Tensor:
        old = last[-1] if last else h.detach()
        last[:] = [h.detach()]
        return h + old[:1]

    return mix


def _loss_with_memory(draw: Draw) -> LossFn:
    """A running mean of losses, kept in a default argument, scales the loss."""

    def loss_fn(model: nn.Module, batch: Any, kept: list[float] = []) -> Tensor:  # noqa: B006
        loss = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        kept.append(float(loss.detach().mean()))
        return loss * (1.0 if len(kept) < 2 else kept[-2])

    return loss_fn


def _label_counts(draw: Draw) -> LossFn:
    """Class weights by all labels seen so far."""
    counts = torch.ones(CLASSES)

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        nonlocal counts
        counts = counts.to(batch[1].device)
        counts.add_(F.one_hot(batch[1], CLASSES).sum(0))
        loss = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return loss * (counts.sum() / counts)[batch[1]].to(loss.dtype)

    return loss_fn


MEMORY: dict[str, Callable[[Draw, int], Mix]] = {
    **{place: (lambda draw, width, place=place: Bank(place, width, _awake(draw))) for place in PLACES},
    "custom operator": _operator_bank,
    "the last batch": _second_pass,
}
LOSS_MEMORY: dict[str, Callable[[Draw], LossFn]] = {
    "mean of losses": _loss_with_memory,
    "counts of labels": _label_counts,
}


# ------------------------------------------------------------------------------------------------------------- families


@dataclass(frozen=True)
class Hostile:
    """A variant of a family."""

    family: str
    variant: int
    form: str  # pair, lone or carry
    build: Callable[[Draw], tuple[nn.Module, LossFn]]
    steps: bool = False  # inputs are [units, steps, features]
    warmup: int = 0  # sums taken before the first that counts
    device: str = "cpu"
    precision: torch.dtype | None = None  # None: drawn

    def __repr__(self) -> str:
        return f"{self.family} #{self.variant}"

    def draw(self) -> Draw:
        """The same draw every time."""
        r = random.Random(f"{self.family} {self.variant}")
        return Draw(r, r.choice(SIZES))

    @property
    def dtype(self) -> torch.dtype:
        """As stated, or drawn: mostly float64, where nothing can be put down to rounding."""
        if self.precision is not None:
            return self.precision
        return random.Random(f"dtype {self}").choices(list(ROUNDING), [6, 3, 1])[0]

    def make(self) -> Setup:
        """A fresh copy with its pool of units."""
        draw = self.draw()
        with torch.random.fork_rng([]):
            torch.manual_seed(draw.r.randrange(2**31))
            model, loss_fn = self.build(draw)
        model.train(draw.r.random() < 0.5)
        pool = nested(lambda tensor: tensor.to(self.device), as_type(pool_of(draw, self.steps), self.dtype))
        return Setup(model.to(self.device, self.dtype), loss_fn, pool)

    @property
    def sizes(self) -> list[int]:
        """Numbers of units to try: one, around the one from which something happens, and another."""
        draw = self.draw()
        return sorted({1, draw.size, draw.size + 1, draw.r.randrange(2, 130)})


def pool_of(draw: Draw, steps: bool = False) -> tuple[Tensor, Tensor]:
    """Inputs and labels of units to choose from; the last unit is extreme.

    Where units are much alike, what one of them does to the others adds up instead of averaging out.
    """
    generator = torch.Generator().manual_seed(draw.r.randrange(2**31))
    shape, spread = ((STEPS, 5) if steps else (5,)), draw.r.choice([1.0, 0.1])
    x = spread * torch.randn(POOL, *shape, generator=generator) + (1 - spread) * torch.randn(shape, generator=generator)
    y = torch.randint(0, 4, (POOL,), generator=generator) if spread == 1 else torch.ones(POOL, dtype=torch.long)
    x[-1] *= draw.r.choice([-3.0, 30.0, 1000.0, 1e6, math.inf])
    y[-1] = CLASSES - 1
    return x, y


def _starts(mix: Callable[[Draw], Mix], depths: tuple[int, ...]) -> Callable[[Draw], tuple[nn.Module, LossFn]]:
    """The coupling at some depth, behind a head or gate that may start at zero."""

    def build(draw: Draw) -> tuple[nn.Module, LossFn]:
        start = draw.r.choice(["ordinary", "zero head", "zero gate"])
        return Net(mix(draw), draw.r.choice(depths), start), cross_entropy

    return build


def _in_sequences(layer: Callable[[Draw], nn.Module]) -> Callable[[Draw], tuple[nn.Module, LossFn]]:
    return lambda draw: (Sequences(layer(draw), draw.r.choice(["ordinary", "zero head"])), cross_entropy)


def _remembering(memory: Callable[[Draw, int], Mix]) -> Callable[[Draw], tuple[nn.Module, LossFn]]:
    def build(draw: Draw) -> tuple[nn.Module, LossFn]:
        depth = draw.r.choice([0, 1, 2])
        return Net(memory(draw, 5 if depth == 0 else WIDTH), depth), cross_entropy

    return build


def _nystromformer(draw: Draw) -> tuple[nn.Module, LossFn]:
    """Hugging Face's, as it comes: its pseudo-inverse starts from a maximum over all units."""
    import transformers

    config = transformers.NystromformerConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=CLASSES,
        max_position_embeddings=16, num_landmarks=2, segment_means_seq_len=STEPS, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.NystromformerForSequenceClassification(config).eval()
    table = nn.Linear(5, 16)

    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.model = table, model

        def forward(self, x: Tensor) -> Tensor:
            return self.model(inputs_embeds=self.table(x)).logits

    return Embedded(), cross_entropy


class Family(NamedTuple):
    """How variants are built, and how their neighbours are compared."""

    form: str
    build: Callable[[Draw], tuple[nn.Module, LossFn]]
    steps: bool = False
    warmup: int = 0


def _families() -> Iterator[tuple[str, Family]]:
    for name, mix in MIXES.items():
        yield f"rows: {name}", Family("pair", _starts(mix, (0,) if "finite" in name else (0, 1, 2, 3)))
    for name, mix in AT_INPUT.items():
        yield f"rows: {name}", Family("pair", _starts(mix, (0,)))
    for way, hooked in WAYS.items():
        for name, function in GRADIENTS.items():
            mix = lambda draw, hooked=hooked, function=function: hooked(function(draw))  # noqa: E731
            yield f"gradients, {way}: {name}", Family("pair", _starts(mix, (1, 2)))
    for name, mix in OPERATORS.items():
        yield f"operator: {name}", Family("pair", _starts(mix, (0, 1, 2)))
    for name, layer in MODULES.items():
        yield f"module: {name}", Family("pair", _in_sequences(layer), steps=True)
    yield "module: Nystromformer", Family("pair", _nystromformer, steps=True)
    for name, loss in LOSSES.items():
        yield f"loss: {name}", Family("pair", lambda draw, loss=loss: (_maybe_zero(draw), loss(draw)))
    for name, mix in CHANCE.items():
        yield f"chance: {name}", Family("pair", _starts(mix, (0, 1, 2)))
    for name, mix in LONE.items():
        yield f"chance alone: {name}", Family("lone", _starts(mix, (0, 1, 2)))
    for name, mix in COUNTERS.items():
        yield f"counter: {name}", Family("pair", _starts(mix, (0, 1, 2)), warmup=50)
    for name, memory in MEMORY.items():
        yield f"memory: {name}", Family("carry", _remembering(memory))
    for name, loss in LOSS_MEMORY.items():
        yield f"memory of the loss: {name}", Family("carry", lambda draw, loss=loss: (plain(draw), loss(draw)))


def _maybe_zero(draw: Draw) -> nn.Module:
    return Net(lambda h: h, 0, draw.r.choice(["ordinary", "zero head"]))


FAMILIES = dict(_families())


def variants(family: str, first: int = 0, last: int = 1) -> list[Hostile]:
    """Variants of a family by number."""
    form, build, steps, warmup = FAMILIES[family]
    made = [Hostile(family, k, form, build, steps, warmup) for k in range(first, last)]
    # A draw may send a unit through another engine; in bfloat16 it then rounds otherwise, so chance acts on a lone row.
    drawn = family.startswith("chance: ")
    return [replace(one, form="lone") if drawn and one.dtype == torch.bfloat16 else one for one in made]


# -------------------------------------------------------------------------------------------------------------- engines


class Engine(NamedTuple):
    """A way to clipped sums: look at a model once (raising what it refuses), then sum over units of its pool."""

    look: Callable[[Setup], Any]
    sum: Callable[[Setup, Any, Flat, list[int], int], dict[str, Tensor]]


def _look(setup: Setup) -> Layout:
    model, loss_fn, pool = setup
    return examine(model, loss_fn, rows(pool, slice(0, 0)))


def _sum_ours(setup: Setup, layout: Layout, clip: Flat, units: list[int], seed: int) -> dict[str, Tensor]:
    model, loss_fn, pool = setup
    return reveal(clipped_sum(model, loss_fn, rows(pool, units), clip, layout=layout, seed=seed).grads)


def _by_hand(grads: dict[str, Tensor], clip: Flat) -> dict[str, Tensor]:
    """Clipped and added in float64; a unit whose gradient is not finite adds nothing."""
    finite = torch.stack([grad.reshape(len(grad), -1).isfinite().all(1) for grad in grads.values()]).all(0)
    kept = {name: grad.double().where(finite.view(-1, *[1] * (grad.dim() - 1)), 0.0) for name, grad in grads.items()}
    return clipped_sum_by_hand(kept, clip, {})[0]


def _sum_alone(setup: Setup, _: Any, clip: Flat, units: list[int], seed: int) -> dict[str, Tensor]:
    if not units:
        return {name: torch.zeros_like(p) for name, p in setup.model.named_parameters() if p.requires_grad}
    return _by_hand(unit_gradients(setup._replace(batch=rows(setup.batch, units))), clip)


def _sum_together(setup: Setup, _: Any, clip: Flat, units: list[int], seed: int) -> dict[str, Tensor]:
    if not units:
        return _sum_alone(setup, _, clip, units, seed)
    model, loss_fn, pool = setup
    live = {name: p for name, p in model.named_parameters() if p.requires_grad}
    losses = loss_fn(model, rows(pool, units))
    found = [torch.autograd.grad(loss, list(live.values()), retain_graph=True, allow_unused=True) for loss in losses]
    each = zip(live.items(), zip(*found, strict=True), strict=True)
    grads = {name: torch.stack([torch.zeros_like(p) if g is None else g for g in gs]) for (name, p), gs in each}
    return _by_hand(grads, clip)


class _Way:
    """How a run makes its steps: captured, or from the first that cannot be on in the ordinary way."""

    def __init__(self, setup: Setup):
        self.layout, self.captured, self.ordinary = _look(setup), Captured(), False


def _sum_captured(setup: Setup, way: _Way, clip: Flat, units: list[int], seed: int) -> dict[str, Tensor]:
    model, loss_fn, pool = setup
    if not way.ordinary:
        try:
            clipped = way.captured.clipped(
                model, loss_fn, rows(pool, units), clip, {}, Runtime(), layout=way.layout, expected=8, seed=seed,
                norms=False,
            )  # fmt: skip
        except NotSteady:
            way.ordinary = True
        else:
            way.captured.settle()
            return {name: value.clone() for name, value in reveal(clipped.grads).items()}  # the next step adds up there
    return _sum_ours(setup, way.layout, clip, units, seed)


OURS = Engine(_look, _sum_ours)
CAPTURED = Engine(_Way, _sum_captured)
ALONE = Engine(lambda setup: None, _sum_alone)  # the definition: what is right for every family but those that remember
TOGETHER = Engine(lambda setup: None, _sum_together)  # each loss of one pass over the batch: wrong for every coupling


# ------------------------------------------------------------------------------------------------------------- movement


def movement(hostile: Hostile, engine: Engine = OURS) -> float:
    """How far one unit moves the clipped sum, in units of what it may; a refusal is raised as it comes.

    The examination is made once, on shapes only, as a run makes it; in half of the variants weights have moved since.
    """
    return max(_movements(hostile, engine))


def _movements(hostile: Hostile, engine: Engine) -> Iterator[float]:
    draw = hostile.draw()
    moved = draw.r.random() < 0.5
    setup, seen = prepared(hostile, engine, moved)
    clip = _clip(draw, setup)
    if hostile.form == "lone":
        for unit in (0, 1, POOL - 1):
            for seed in range(4):
                yield distance(_seeded(engine, setup, seen, clip, [unit], seed), None) / clip.bound
        return
    for seed in range(hostile.warmup):
        _seeded(engine, setup, seen, clip, [0, 1, 2, 3], seed)

    def summed(units: list[int], seed: int) -> dict[str, Tensor]:
        fresh = prepared(hostile, engine, moved) if hostile.form == "carry" else (setup, seen)
        return _seeded(engine, *fresh, clip, units, seed)

    for size in hostile.sizes:
        units = draw.r.sample(range(POOL - 1), size)
        at, seed = draw.r.choice([0, size - 1, draw.r.randrange(size)]), draw.r.randrange(100)
        base = summed(units, seed)
        yield distance(base, summed(units[:at] + units[at + 1 :], seed)) / clip.bound
        yield distance(base, summed([*units[:at], POOL - 1, *units[at:]], seed)) / clip.bound
        yield distance(base, summed([*units[:at], POOL - 1, *units[at + 1 :]], seed)) / (2 * clip.bound)


def deviation(hostile: Hostile, engine: Engine = OURS) -> float:
    """How far the clipped sum is from that of units alone, in units of the bound and per unit; for `pair` only.

    Sharper than movement: what is accepted is served with each unit's own gradient, so the sums are the same. Holds for
    chance too, since a lone row does not feel these couplings.
    """
    draw = hostile.draw()
    setup, seen = prepared(hostile, engine, draw.r.random() < 0.5)
    clip = _clip(draw, setup)
    for seed in range(hostile.warmup):
        _seeded(engine, setup, seen, clip, [0, 1, 2, 3], seed)
    found = []
    for units in (list(range(min(draw.size + 1, 40))), [5, 3, POOL - 1, 4]):
        sums = [_seeded(way, setup, seen, clip, units, 0) for way in (engine, ALONE)]
        found.append(distance(*sums) / clip.bound / len(units))
    return max(found)


def carried(hostile: Hostile, engine: Engine = OURS) -> float:
    """What a unit of one batch moves in a later batch without it, in units of the bound: nothing is allowed."""
    sums, draw = [], hostile.draw()
    for first in ([0, 1, 2, 3], [0, 1, 2, POOL - 1]):
        setup, seen = prepared(hostile, engine, moved=False)
        clip = Flat(1.0)
        for seed in range(3):
            _seeded(engine, setup, seen, clip, draw.r.sample(range(20, 40), 4), seed)
        _seeded(engine, setup, seen, clip, first, 0)
        sums.append(_seeded(engine, setup, seen, clip, [4, 5, 6, 7, 8], 0))
        draw = hostile.draw()
    return distance(*sums)


def prepared(hostile: Hostile, engine: Engine, moved: bool) -> tuple[Setup, Any]:
    """A fresh copy that the engine has looked at; then its weights move, if they are to."""
    setup = hostile.make()
    seed_all(0)
    seen = engine.look(setup)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in setup.model.parameters() if moved else ():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter), alpha=0.3)
    return setup, seen


def _clip(draw: Draw, setup: Setup) -> Flat:
    """Below all norms, or among them: in proportion to the median length of lone units' gradients, where they have one."""
    model, loss_fn, pool = setup
    live = [parameter for parameter in model.parameters() if parameter.requires_grad]
    norms = []
    for k in range(5):
        seed_all(k)
        grads = torch.autograd.grad(loss_fn(model, rows(pool, slice(k, k + 1))).sum(), live, allow_unused=True)
        norms.append(float(torch.cat([g.double().flatten() for g in grads if g is not None]).norm()))
    return Flat(draw.r.choice([0.1, 1.0]) * (statistics.median(norms) or 1.0))


def _seeded(engine: Engine, setup: Setup, seen: Any, clip: Flat, units: list[int], seed: int) -> dict[str, Tensor]:
    seed_all(seed)
    return engine.sum(setup, seen, clip, units, seed)


def distance(a: dict[str, Tensor], b: dict[str, Tensor] | None) -> float:
    """L2 distance; infinite where a number is not one."""
    apart = float(torch.cat([(a[k].double() - (0 if b is None else b[k].double())).flatten() for k in a]).norm())
    return math.inf if math.isnan(apart) else apart


def seed_all(seed: int) -> None:
    """Every generator that a model can draw from."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def report(first: int, last: int, only: str) -> None:
    """Print for every family how many variants are refused, hold and break, and by how much."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    total = [0, 0, 0, 0]
    for family, (form, *_) in FAMILIES.items():
        if only not in family:
            continue
        refused, held, broken, later, raw = 0, 0, [], [], []
        for hostile in variants(family, first, last):
            try:
                found, kept = movement(hostile), carried(hostile) if form == "carry" else 0.0
            except NoisewiseError:
                refused += 1
            except Exception as error:
                raw.append(f"#{hostile.variant} {type(error).__name__}: {str(error)[:60]}")
            else:
                if found <= 1 + ROUNDING[hostile.dtype] and kept <= ROUNDING[hostile.dtype]:
                    held += 1
                else:
                    broken.append(found)
                    later.append(kept)
        worst = f", worst {max(broken):.3g}" if broken else ""
        worst += f", {max(later):.3g} carried over" if any(later) else ""
        print(f"{family}: {refused} refused, {held} held, {len(broken)} broken{worst} {'; '.join(raw)}", flush=True)
        total = [a + b for a, b in zip(total, (refused, held, len(broken), len(raw)), strict=True)]
    print("all: {} refused, {} held, {} broken, {} other errors".format(*total))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What happens to models whose units influence each other.")
    parser.add_argument("--variants", type=int, default=6)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    report(options.first, options.variants, options.only)
