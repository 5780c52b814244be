"""The plain oracle of the engine's tests, and the problems on which engines are compared with it.

`clipped_sum_by_hand` is written from the definition: one unit at a time through `torch.autograd.grad`, then masks,
norms per block, factors and the sum in plain Python. It calls nothing of `noisewise.persample` and repeats the formulas
of the rules instead of calling them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisewise.batches import Padded, length, map_tensors
from noisewise.clipping import Automatic, Clip, Flat, Global, Normalized, PerLayer, PerSampleAdaptive, per_layer
from noisewise.persample import ClippedBatch, Layout, clipped_sum, examine
from noisewise.persample.engines import follow

UNITS = 4  # also the length of some time axes: a dimension that equals the batch size by coincidence


class Setup(NamedTuple):
    """A model, its loss per unit, and a batch."""

    model: nn.Module
    loss_fn: Callable[[nn.Module, Any], Tensor]
    batch: Any


@dataclass(frozen=True)
class Problem:
    """A small float64 model with a batch; `fallback` names the parameters that have no ghost rule there.

    `vectorises`: the dense engine can compute it; otherwise only the loop can. `proven`: units are shown to be separate;
    otherwise each is evaluated alone, and `fallback` names all parameters.
    """

    name: str
    build: Callable[[], Setup]
    fallback: frozenset[str] = frozenset()
    vectorises: bool = True
    proven: bool = True

    def make(self, dtype: torch.dtype = torch.float64) -> Setup:
        """A fresh copy: the same numbers every time."""
        with torch.random.fork_rng([]):
            torch.manual_seed(20)
            model, loss_fn, batch = self.build()
            _spread(model)
        return Setup(model.to(dtype), loss_fn, as_type(batch, dtype))

    @cache  # noqa: B019
    def examined(self, dtype: torch.dtype = torch.float64) -> tuple[Setup, Layout]:
        """One copy, for tests that leave it as it is, and what the examination found."""
        setup = self.make(dtype)
        return setup, examine(*setup)

    def __repr__(self) -> str:
        return self.name


def _spread(model: nn.Module) -> None:
    """Biases and norm weights away from 0 and 1, so that mistakes in them show."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)


def as_type(batch: Any, dtype: torch.dtype) -> Any:
    """The same nest with floating-point tensors of another type."""
    return nested(lambda t: t.to(dtype) if t.is_floating_point() else t, batch)


def nested(function: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Apply to each tensor of a tuple, named tuple, list or dict."""
    if isinstance(batch, dict):
        return {key: nested(function, value) for key, value in batch.items()}
    if hasattr(batch, "_fields"):
        return type(batch)(*(nested(function, item) for item in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(nested(function, item) for item in batch)
    return function(batch)


def rows(batch: Any, index: Any) -> Any:
    """Some of the units: `index` is a slice, a list or a tensor."""
    return nested(lambda t: t[index], batch)


# ---------------------------------------------------------------------------------------------------- the definition


def unit_gradients(setup: Setup) -> dict[str, Tensor]:
    """Gradients `[units, *parameter]` of every parameter that requires one, each unit in a batch of its own."""
    model, loss_fn, batch = setup
    learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found: dict[str, list[Tensor]] = {name: [] for name in learning}
    for i in range(count(batch)):
        (loss,) = loss_fn(model, rows(batch, slice(i, i + 1)))
        grads = torch.autograd.grad(loss, list(learning.values()), allow_unused=True)
        for (name, parameter), grad in zip(learning.items(), grads, strict=True):
            found[name].append(torch.zeros_like(parameter) if grad is None else grad.detach())
    return {name: torch.stack(grads) for name, grads in found.items()}


def count(batch: Any) -> int:
    """Number of units."""
    while not isinstance(batch, Tensor):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return batch.shape[0]


def clipped_sum_by_hand(grads: dict[str, Tensor], clip: Clip, support: dict[str, Any]) -> tuple[dict, Tensor]:
    """The clipped sum and the norms `[blocks, units]`, from unit gradients: masks, norms, factors, sum."""
    kept = {name: grad for name, grad in grads.items() if support.get(name, True) is not False}
    total = {name: torch.zeros_like(grad[0]) for name, grad in kept.items()}
    norms = []
    for i in range(len(next(iter(grads.values())))):
        mine = {name: _masked(grad[i], support.get(name, True)) for name, grad in kept.items()}
        blocks = [[name] for name in clip.rules] if isinstance(clip, PerLayer) else [list(mine)]
        norms.append([])
        for block in blocks:
            present = [name for name in block if name in mine]
            norm = math.sqrt(math.fsum(float(mine[name].double().square().sum()) for name in present))
            rule = clip.rules[block[0]] if isinstance(clip, PerLayer) else clip
            norms[-1].append(norm)
            for name in present:
                total[name] += factor_by_hand(rule, norm) * mine[name]
    return total, torch.tensor(norms, dtype=torch.float64).T


def _masked(grad: Tensor, mask: bool | Tensor) -> Tensor:
    return grad if mask is True else torch.where(mask, grad, torch.zeros_like(grad))


def factor_by_hand(rule: Clip, norm: float) -> float:
    """The papers' formulas once more, on plain numbers."""
    match rule:
        case Flat(bound=c):
            return 1.0 if norm <= c else c / norm
        case Global(bound=c, screen=None):
            return 1.0 if norm <= c else 0.0
        case Global(bound=c, screen=z):
            return c / z if norm <= z else 0.0
        case Automatic(bound=c, gamma=gamma):
            return c / (norm + gamma)
        case PerSampleAdaptive(bound=c, r=r):
            return c / (norm + r / (norm + r))
        case Normalized(bound=c):
            return c / norm if norm > 0 else 0.0
    raise NotImplementedError(rule)


def flat(grads: dict[str, Tensor]) -> Tensor:
    """All gradients in one float64 vector, by name."""
    return torch.cat([grads[name].double().flatten() for name in sorted(grads)])


def relative_error(got: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Relative L2 distance over all tensors together; absolute where nothing is expected."""
    assert got.keys() == expected.keys()
    assert all(got[name].shape == expected[name].shape for name in got)
    size = float(flat(expected).norm())
    return float((flat(got) - flat(expected)).norm()) / (size or 1.0)


# ------------------------------------------------------------------------------------------------ rules and supports


def typical_norm(grads: dict[str, Tensor]) -> float:
    """Between the second and third of the units' norms: some units are clipped by it, some are not."""
    norms = (
        torch.stack([grad.double().reshape(len(grad), -1).square().sum(1) for grad in grads.values()])
        .sum(0)
        .sqrt()
        .sort()[0]
    )
    return float(norms[1:3].mean()) or 1.0


def rules(names: list[str], scale: float = 1.0) -> dict[str, Clip]:
    """Every kind of rule, around a typical norm."""
    return {
        "flat": Flat(scale),
        "global-scaled": Global(0.4 * scale, scale),
        "global-unscaled": Global(scale),
        "automatic": Automatic(scale, 0.1 * scale),
        "per-sample-adaptive": PerSampleAdaptive(scale, 0.1),
        "normalized": Normalized(scale),
        "per-layer-local": per_layer(names, {"*bias": Flat(0.1 * scale), "*": Flat(0.4 * scale)}),
        "per-layer-global": per_layer(names, {"*weight": Global(0.3 * scale, 0.6 * scale), "*": Global(0.5 * scale)}),
    }


RULES = tuple(rules(["name"]))
SUPPORTS = ("everything", "masks", "frozen", "masks-and-frozen")


def make_support(kind: str, model: nn.Module) -> dict[str, Any]:
    """Random elementwise masks, frozen parameters, both or none; never the same for two parameters."""
    learning = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(3)
    support: dict[str, Any] = {}
    if "masks" in kind:
        support = {name: torch.rand(p.shape, generator=generator) < 0.6 for name, p in learning}
    if "frozen" in kind and len(learning) > 1:
        support |= {name: False for name, _ in learning[:-1:2]}
    return support


# ---------------------------------------------------------------------------------------------------- the problems


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Loss of a classifier on (x, y)."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def squared_output(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Loss of a model with outputs of any shape on (x, weights): it needs no labels."""
    out = model(batch[0])
    return out.square().flatten(1).mean(1) * batch[1] + out.flatten(1).sum(1)


class Apply(nn.Module):
    """A forward pass written as a function of the module and its input."""

    def __init__(self, forward: Callable[[Any, Any], Tensor], **parts: nn.Module | nn.Parameter):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._run = forward

    def forward(self, x: Any) -> Tensor:
        """As given."""
        return self._run(self, x)


def floats(*shape: int) -> Tensor:
    """Inputs."""
    return torch.randn(UNITS, *shape)


def tokens(*shape: int, high: int = 7) -> Tensor:
    """Token ids with repetitions: 0 and 1 are frequent."""
    ids = torch.randint(0, high, (UNITS, *shape))
    return ids.where(torch.rand(UNITS, *shape) < 0.6, ids % 2)


def weights() -> Tensor:
    """A weight per unit, so that units differ in length."""
    return torch.linspace(0.3, 2.0, UNITS)


def labels(classes: int = 3) -> Tensor:
    """Classes."""
    return torch.arange(UNITS) % classes


def model_on(*shape: int) -> Callable[[Callable[[], nn.Module]], Callable[[], Setup]]:
    """A problem from a model with float inputs of this shape."""
    return lambda model: lambda: Setup(model(), squared_output, (floats(*shape), weights()))


def model_on_tokens(*shape: int) -> Callable[[Callable[[], nn.Module]], Callable[[], Setup]]:
    """A problem from a model with token inputs of this shape."""
    return lambda model: lambda: Setup(model(), squared_output, (tokens(*shape), weights()))


def conv(*args: Any, **kwargs: Any) -> Callable[[], nn.Module]:
    """One convolution behind a smooth activation, after a layer that makes its input depend on parameters."""
    return lambda: nn.Sequential(nn.Conv2d(args[0], args[0], 1), nn.Tanh(), nn.Conv2d(*args, **kwargs), nn.Tanh())


def _tied(first: nn.Module, second: nn.Module) -> tuple[nn.Module, nn.Module]:
    second.weight = first.weight
    return first, second


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def _linear_and_classes() -> Setup:
    return Setup(_mlp(), cross_entropy, (floats(5), labels()))


def _in_place() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 3, 2),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(12, 6),
        nn.LeakyReLU(0.1, inplace=True),
        nn.Linear(6, 3),
    )


def _several_calls() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            hidden = torch.tanh(m.norm(m.cell(hidden) + x[:, step]))
        return hidden

    return Apply(forward, cell=nn.Linear(3, 3), norm=nn.LayerNorm(3))


def _several_conv_calls() -> nn.Module:
    return Apply(lambda m, x: m.conv(torch.tanh(m.conv(x))), conv=nn.Conv2d(2, 2, 3, padding=1))


def _several_wide_conv_calls() -> nn.Module:
    return Apply(lambda m, x: m.conv(torch.tanh(m.conv(x))), conv=nn.Conv2d(8, 8, 3, padding=1))


def _several_norm_calls() -> nn.Module:
    return Apply(lambda m, x: m.norm(m.conv(torch.tanh(m.norm(x)))), norm=nn.GroupNorm(2, 4), conv=nn.Conv2d(4, 4, 1))


def _several_embedding_calls() -> nn.Module:
    return Apply(
        lambda m, x: m.head(torch.tanh(m.table(x[:, :3]).sum(1) * m.table(x[:, 3:]).mean(1))),
        table=nn.Embedding(7, 4),
        head=nn.Linear(4, 2),
    )


def _tied_linears() -> nn.Module:
    first, second = _tied(nn.Linear(5, 5), nn.Linear(5, 5, bias=False))
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(5, 2))


def _tied_head() -> nn.Module:
    table, head = _tied(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    return Apply(lambda m, x: m.head(torch.tanh(m.mix(m.table(x)))), table=table, mix=nn.Linear(4, 4), head=head)


def _tied_head_with_padding() -> nn.Module:
    table, head = _tied(nn.Embedding(7, 4, padding_idx=1), nn.Linear(4, 7))
    return Apply(lambda m, x: m.head(torch.tanh(m.table(x).sum(1))), table=table, head=head)


def _tied_convs() -> nn.Module:
    first, second = _tied(nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, stride=2, dilation=2, padding=2))
    return nn.Sequential(first, nn.Tanh(), second)


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    model[2].requires_grad_(False)
    return model


def _unused() -> nn.Module:
    return Apply(
        lambda m, x: m.head(torch.tanh(m.body(x))),
        body=nn.Linear(5, 4),
        head=nn.Linear(4, 2),
        never=nn.Conv2d(1, 2, 3),
        spare=nn.Parameter(torch.zeros(3)),
    )


def _bare_parameters() -> nn.Module:
    return Apply(
        lambda m, x: m.head(torch.tanh(x @ m.matrix) * m.gain),
        matrix=nn.Parameter(torch.randn(5, 4)),
        gain=nn.Parameter(torch.ones(4)),
        head=nn.Linear(4, 2),
    )


def _scalar_parameter() -> nn.Module:
    return Apply(lambda m, x: m.head(x) * m.scale.exp(), head=nn.Linear(5, 2), scale=nn.Parameter(torch.zeros(())))


def _functional_use() -> nn.Module:
    return Apply(lambda m, x: m.head(torch.tanh(m.body(x)) @ m.body.weight), body=nn.Linear(5, 4), head=nn.Linear(5, 2))


def _one_output_at_a_time() -> nn.Module:
    return Apply(
        lambda m, x: torch.stack([F.linear(m.body(x), row) for row in m.rows], 1),
        body=nn.Linear(5, 4),
        rows=nn.Parameter(torch.randn(3, 4)),
    )


def _positions() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.head(torch.tanh(m.body(x) + m.position(torch.arange(x.shape[1], device=x.device)) + m.offset))

    return Apply(
        forward,
        body=nn.Linear(3, 4),
        position=nn.Embedding(UNITS, 4),
        offset=nn.Parameter(torch.randn(1, UNITS, 4)),
        head=nn.Linear(4, 2),
    )


def _expanded_positions() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        ids = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
        return m.head(torch.tanh(m.body(x) + m.position(ids)))

    return Apply(forward, body=nn.Linear(3, 4), position=nn.Embedding(UNITS, 4), head=nn.Linear(4, 2))


def _shared_layers() -> nn.Module:
    """Tensors that are computed from parameters alone and laid over the units, in several ways and more than once."""

    def forward(m: Any, x: Tensor) -> Tensor:
        shared = m.layer(torch.tanh(m.table[:, : x.shape[1]]))
        hidden = 2 * torch.tanh(x * shared + shared / 2 - m.slope.view(4, 1) * m.layer.weight.norm())
        order = torch.arange(x.shape[1], device=x.device)
        places = m.position(order)
        hidden += places
        places *= 3
        hidden = hidden * places + m.position(order.unsqueeze(1)).squeeze(1)
        return m.head(hidden.flatten(0, 1) - m.position(order[1])).unflatten(0, x.shape[:2])

    return Apply(
        forward,
        layer=nn.Linear(4, 4),
        table=nn.Parameter(torch.randn(1, UNITS + 2, 4)),
        slope=nn.Parameter(torch.randn(4)),
        position=nn.Embedding(UNITS, 4, padding_idx=2),
        head=nn.Linear(4, 2),
    )


def _class_token() -> nn.Module:
    """As in vision transformers: a token in front, positions for all, a scale behind."""

    def forward(m: Any, x: Tensor) -> Tensor:
        x = torch.cat([m.token.expand(len(x), -1, -1), m.body(x)], 1) + m.position
        return m.head((torch.tanh(m.mix(x)) * m.scale + x)[:, 0])

    return Apply(
        forward,
        body=nn.Linear(4, 4),
        token=nn.Parameter(torch.randn(1, 1, 4)),
        position=nn.Parameter(torch.randn(1, 4, 4)),
        mix=nn.Linear(4, 4),
        scale=nn.Parameter(torch.randn(4)),
        head=nn.Linear(4, 2),
    )


def _flattened_frames() -> nn.Module:
    """Images of one unit behind each other, as frames of a video."""

    def forward(m: Any, x: Tensor) -> Tensor:
        frames = torch.tanh(m.norm(m.conv(x.flatten(0, 1))))
        return m.head(frames.flatten(1)).unflatten(0, x.shape[:2]).sum(1)

    return Apply(forward, conv=nn.Conv2d(2, 4, 3, padding=1), norm=nn.GroupNorm(2, 4), head=nn.Linear(64, 2))


def _turned_matrices() -> nn.Module:
    """Matrices with inputs as rows, as in GPT-2, on flattened positions."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = torch.addmm(m.bias, x.reshape(-1, 4), m.matrix).view(*x.shape[:2], 3)
        return torch.tanh(hidden) @ m.second

    return Apply(
        forward,
        matrix=nn.Parameter(torch.randn(4, 3)),
        bias=nn.Parameter(torch.randn(3)),
        second=nn.Parameter(torch.randn(3, 2)),
    )


def _time_first() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(m.norm(m.inner(x.transpose(0, 1))))  # [time, batch, features] with time == batch
        return m.head(hidden.transpose(0, 1))

    return Apply(forward, inner=nn.Linear(3, 4), norm=nn.LayerNorm(4), head=nn.Linear(4, 2))


def _flattened_time() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.head(torch.tanh(m.inner(x.flatten(0, 1))).unflatten(0, x.shape[:2]))

    return Apply(forward, inner=nn.Linear(3, 4), head=nn.Linear(4, 2))


def _flipped() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.head(torch.tanh(m.inner(torch.tanh(m.body(x)).flip(0))).flip(0))

    return Apply(forward, body=nn.Linear(5, 4), inner=nn.Linear(4, 4), head=nn.Linear(4, 2))


def _sorted_by_length() -> Setup:
    """Units are sorted by a length inside the model and put back afterwards, as packed sequences are."""

    def forward(m: Any, batch: dict[str, Tensor]) -> Tensor:
        order = batch["length"].argsort()
        return m.head(torch.tanh(m.body(batch["x"][order]))[order.argsort()])

    batch = {"x": floats(5), "length": torch.tensor([3.0, 1.0, 4.0, 2.0]), "weight": weights()}
    model = Apply(forward, body=nn.Linear(5, 4), head=nn.Linear(4, 2))
    return Setup(model, lambda m, b: m(b).square().sum(1) * b["weight"], batch)


def _coupled_gradients_only() -> nn.Module:
    """No loss value depends on another unit, but gradients in a batch would."""

    def forward(m: Any, x: Tensor) -> Tensor:
        mean = m.body(x).mean(0)
        return m.head(torch.tanh(m.body(x) + mean - mean.detach()))

    return Apply(forward, body=nn.Linear(5, 4), head=nn.Linear(4, 2))


def _attention() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        query, key, value = m.project(m.norm(x)).chunk(3, -1)
        return m.head(x + F.scaled_dot_product_attention(query, key, value)).mean(1)

    return Apply(forward, norm=nn.LayerNorm(4), project=nn.Linear(4, 12), head=nn.Linear(4, 2))


def _module_attention() -> nn.Module:
    return Apply(
        lambda m, x: m.head(m.attend(x, x, x, need_weights=False)[0].mean(1)),
        attend=nn.MultiheadAttention(4, 2, batch_first=True),
        head=nn.Linear(4, 2),
    )


def _cross_attention() -> nn.Module:
    """Queries, keys and values from elsewhere, so that one matrix is used in blocks of rows; masks, weights, time first."""

    def forward(m: Any, x: Tensor) -> Tensor:
        time = x.transpose(0, 1)
        causal = torch.ones(len(time), len(time), dtype=torch.bool, device=x.device).triu(1)
        first, weights = m.attend(torch.tanh(time), time, time, attn_mask=causal)
        second, _ = m.attend(first, time, time.cos(), key_padding_mask=x[:, :, 0] > 1.5, need_weights=False)
        return m.head(second.mean(0)) * (1 + weights[:, 2, :2])

    return Apply(forward, attend=nn.MultiheadAttention(4, 2), head=nn.Linear(4, 2))


def _rows_of_a_matrix() -> nn.Module:
    """Blocks of rows that overlap, and the whole matrix."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(m.body(x))
        return F.linear(hidden, m.body.weight[1:3], m.body.bias[1:3]) * F.linear(x, m.other[:2]) + F.linear(
            x, m.other[4:]
        )

    return Apply(forward, body=nn.Linear(4, 4), other=nn.Parameter(torch.randn(6, 4)))


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return Apply(lambda m, x: m.head(m.encoder(x).mean(1)), encoder=encoder, head=nn.Linear(4, 2))


def _recurrent(kind: type[nn.Module], size: int, **kwargs: Any) -> Callable[[], nn.Module]:
    return lambda: Apply(
        lambda m, x: m.head(m.cell(x)[0][:, -1]), cell=kind(3, 2, batch_first=True, **kwargs), head=nn.Linear(size, 2)
    )


def _states(kind: type[nn.Module], **kwargs: Any) -> Callable[[], nn.Module]:
    """Time first, a first state that comes from the units, all outputs used, the layer used twice."""

    def forward(m: Any, x: Tensor) -> Tensor:
        start = m.first(x[:, 0]).unsqueeze(0)
        states, last = m.cell(x.transpose(0, 1), (start, start.tanh()) if kind is nn.LSTM else start)
        again, _ = m.cell(states, last)
        last = last[0] * last[1].cos() if isinstance(last, tuple) else last
        return m.head(again.mean(0) + last[0])

    return lambda: Apply(forward, first=nn.Linear(3, 3), cell=kind(3, 3, **kwargs), head=nn.Linear(3, 2))


def _cells() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        hidden, cell, other = (torch.zeros_like(x[:, 0]) for _ in range(3))
        for step in range(x.shape[1]):
            hidden, cell = m.first(x[:, step], (hidden, cell))
            other = m.second(hidden, m.third(hidden, other))
        return m.head(other + cell)

    return Apply(
        forward, first=nn.LSTMCell(3, 3), second=nn.GRUCell(3, 3), third=nn.RNNCell(3, 3), head=nn.Linear(3, 2)
    )


def _learned_state() -> nn.Module:
    """The first state is a parameter, the same for all units: the layer is left as it is."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.head(m.cell(x, m.start.expand(-1, len(x), -1).contiguous())[0][:, -1])

    start = nn.Parameter(torch.randn(1, 1, 2))
    return Apply(forward, cell=nn.GRU(3, 2, batch_first=True), start=start, head=nn.Linear(2, 2))


def _conv_transpose_settings() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        wide = torch.tanh(m.grouped(x)).unsqueeze(2)
        flat = torch.tanh(m.flat(wide))
        return m.deep(flat.unsqueeze(2)).flatten(1)

    return Apply(
        forward,
        grouped=nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2),
        flat=nn.ConvTranspose2d(6, 8, (2, 3), padding=(0, 1), bias=False),
        deep=nn.ConvTranspose3d(8, 1, 2),
    )


def _recurrent_names(layers: int, *suffixes: str) -> frozenset[str]:
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return frozenset(f"cell.{kind}_l{k}{suffix}" for kind in kinds for k in range(layers) for suffix in suffixes)


def _spectral_norm_in_eval_mode() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 2)).eval()


def _low_rank() -> nn.Module:
    """A frozen layer with a learned correction of low rank."""
    base = nn.Linear(5, 4).requires_grad_(False)
    return Apply(
        lambda m, x: m.head(torch.tanh(m.base(x) + 0.5 * m.up(m.down(x)))),
        base=base,
        down=nn.Linear(5, 2, bias=False),
        up=nn.Linear(2, 4, bias=False),
        head=nn.Linear(4, 2),
    )


def _language_model() -> Setup:
    """Token and position tables, one encoder layer, and a head that shares the token table."""

    def forward(m: Any, x: Tensor) -> Tensor:
        hidden = m.table(x) + m.position(torch.arange(x.shape[1], device=x.device))
        mask = torch.full((x.shape[1],) * 2, -1e9, device=x.device, dtype=hidden.dtype).triu(1)
        return m.head(m.block(hidden, src_mask=mask))

    table, head = _tied(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    block = nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, dropout=0.0, batch_first=True)

    def loss_fn(model: nn.Module, words: Tensor) -> Tensor:
        scores = model(words[:, :-1])
        return F.cross_entropy(scores.transpose(1, 2), words[:, 1:], reduction="none").mean(1)

    model = Apply(forward, table=table, position=nn.Embedding(5, 4), block=block, head=head)
    return Setup(model, loss_fn, tokens(6))


def _weight_norm() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 2))


def _layers_without_rules() -> nn.Module:
    """Matrices in a function of many forms, and computed with before they are used."""
    return Apply(
        lambda m, x: m.head(torch.tanh(torch.einsum("nd,kd->nk", x, m.summed) + F.linear(x, m.scaled * 2))),
        summed=nn.Parameter(torch.randn(4, 5)),
        scaled=nn.Parameter(torch.randn(4, 5)),
        head=nn.Linear(4, 2),
    )


def _batch_norm_in_eval_mode() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2))
    model[1].running_mean.normal_()
    return model.eval()


def _group_norm_without_bias() -> nn.Module:
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return F.group_norm(x, 2, self.weight)

    return nn.Sequential(nn.Conv2d(2, 4, 2), Scaled(), nn.Tanh())


def _dicts() -> Setup:
    batch = {"image": {"pixels": floats(2, 4, 4)}, "words": tokens(5), "target": labels()}

    def forward(m: Any, batch: dict[str, Any]) -> Tensor:
        seen = m.conv(batch["image"]["pixels"]).flatten(1)
        return m.head(torch.cat([seen, m.table(batch["words"]).sum(1)], 1))

    model = Apply(forward, conv=nn.Conv2d(2, 2, 3), table=nn.Embedding(7, 3), head=nn.Linear(11, 3))
    return Setup(model, lambda m, b: F.cross_entropy(m(b), b["target"], reduction="none"), batch)


class Example(NamedTuple):
    """A named batch."""

    inputs: list[Tensor]
    target: Tensor


def _named_tuples() -> Setup:
    model = Apply(lambda m, parts: m.head(torch.tanh(m.body(parts[0]) * parts[1])), body=nn.Linear(5, 4), head=_mlp4())
    return Setup(
        model,
        lambda m, b: F.cross_entropy(m(b.inputs), b.target, reduction="none"),
        Example([floats(5), floats(4)], labels()),
    )


def _mlp4() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))


def _some_units_have_no_gradient() -> Setup:
    return Setup(_mlp(), squared_output_of_chosen, (floats(5), torch.tensor([1.0, 0.0, 0.5, 0.0])))


def squared_output_of_chosen(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Units of weight 0 have a gradient of exactly 0."""
    return model(batch[0]).square().sum(1) * batch[1]


def _head(size: int, inner: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(inner(), nn.Tanh(), nn.Flatten(), nn.Linear(size, 2))


def _norm(norm: Callable[[], nn.Module], width: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(width, width), norm(), nn.Tanh())


def _channel_norm(norm: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(2, 4, 2), norm(), nn.Tanh())


def _embedding(**kwargs: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Embedding(7, 3, **kwargs), nn.Tanh(), nn.Linear(3, 2))


def _behind_linear(width: int, layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A layer whose input depends on parameters."""
    return lambda: nn.Sequential(nn.Linear(width, width), nn.Tanh(), layer(), nn.Tanh())


def _bag(**kwargs: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.EmbeddingBag(7, 3, **kwargs), nn.Tanh(), nn.Linear(3, 2))


def _all(prefix: str, *names: str) -> frozenset[str]:
    return frozenset(f"{prefix}.{name}" for name in names or ("weight", "bias"))


PROBLEMS = {
    problem.name: problem
    for problem in [
        Problem("linear-2d", _linear_and_classes),
        Problem("linear-3d-gram", model_on(5, 6)(lambda: nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 2)))),
        Problem("linear-3d-formed", model_on(40, 3)(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh()))),
        Problem("linear-4d", model_on(2, 3, 5)(_mlp)),
        Problem("linear-one-position", model_on(1, 5)(_mlp)),
        Problem("linear-no-bias", model_on(5)(lambda: nn.Linear(5, 3, bias=False))),
        Problem("conv", model_on(2, 5, 4)(conv(2, 3, 3, padding=1))),
        Problem("conv-head", model_on(2, 4, 4)(_head(12, lambda: nn.Conv2d(2, 3, 3)))),
        Problem("conv-no-bias", model_on(2, 4, 5)(conv(2, 3, 3, bias=False))),
        Problem("conv-stride", model_on(2, 6, 7)(conv(2, 3, 3, stride=2, padding=1))),
        Problem("conv-stride-leaves-rest", model_on(2, 8, 8)(conv(2, 3, 3, stride=(3, 2)))),
        Problem("conv-same", model_on(2, 5, 6)(conv(2, 3, (4, 3), padding="same", dilation=(1, 2)))),
        Problem("conv-valid", model_on(2, 5, 6)(conv(2, 3, 2, padding="valid"))),
        Problem("conv-dilation", model_on(2, 7, 6)(conv(2, 3, 3, dilation=2, padding=1))),
        Problem("conv-groups", model_on(4, 4, 5)(conv(4, 6, 3, groups=2, padding=1))),
        Problem("conv-depthwise", model_on(3, 4, 5)(conv(3, 6, 3, groups=3, stride=2, padding=1))),
        Problem("conv-wide-groups", model_on(16, 3, 3)(conv(16, 16, 3, groups=2, padding=1))),
        Problem("conv-not-square", model_on(2, 5, 6)(conv(2, 3, (1, 3), stride=(2, 1), padding=(0, 2)))),
        Problem("conv-1x1", model_on(2, 3, 4)(conv(2, 3, 1))),
        Problem("conv-1x1-stride", model_on(9, 4, 4)(conv(9, 3, 1, stride=2))),
        Problem("conv-whole-image", model_on(8, 3, 4)(conv(8, 4, (3, 4)))),
        Problem("conv-wide-gram", model_on(8, 3, 3)(conv(8, 8, 3, padding=1))),
        Problem("conv-wide-formed", model_on(8, 12, 12)(conv(8, 8, 3, padding=1))),
        Problem("conv-wide-1x1", model_on(9, 4, 4)(conv(9, 8, 1))),
        Problem("conv-wide-same", model_on(8, 5, 4)(conv(8, 9, (2, 4), padding="same"))),
        Problem("conv-wide-dilation", model_on(9, 7, 6)(conv(9, 8, (3, 2), dilation=(2, 3), padding=(1, 2)))),
        Problem("conv-wide-stride", model_on(8, 5, 5)(conv(8, 8, 3, stride=2, padding=1))),
        Problem("conv-wide-stride-formed", model_on(8, 21, 20)(conv(8, 3, 2, stride=2))),
        Problem("conv-circular", model_on(2, 4, 5)(conv(2, 3, 3, padding=1, padding_mode="circular"))),
        Problem("conv-reflect", model_on(8, 4, 4)(conv(8, 8, 3, padding=1, padding_mode="reflect"))),
        Problem("conv1d", model_on(3, 7)(_behind_linear(7, lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1)))),
        Problem("conv1d-shifted", model_on(8, 6)(_behind_linear(6, lambda: nn.Conv1d(8, 9, 3, dilation=2, padding=3)))),
        Problem("conv1d-gram", model_on(9, 4)(_behind_linear(4, lambda: nn.Conv1d(9, 16, 3)))),
        Problem(
            "conv1d-circular",
            model_on(8, 6)(_behind_linear(6, lambda: nn.Conv1d(8, 4, 3, padding=2, padding_mode="circular"))),
        ),
        Problem(
            "conv3d", model_on(3, 3, 4, 5)(_behind_linear(5, lambda: nn.Conv3d(3, 4, (2, 3, 1), stride=(1, 2, 1))))
        ),
        Problem(
            "conv3d-shifted",
            model_on(8, 3, 2, 4)(_behind_linear(4, lambda: nn.Conv3d(8, 8, (2, 1, 3), padding=1, dilation=(1, 1, 2)))),
        ),
        Problem("conv3d-same", model_on(8, 3, 2, 3)(_behind_linear(3, lambda: nn.Conv3d(8, 8, 3, padding="same")))),
        Problem("conv3d-groups", model_on(4, 2, 3, 3)(_behind_linear(3, lambda: nn.Conv3d(4, 4, 2, groups=2)))),
        Problem("instance-norm", model_on(3, 4, 5)(_behind_linear(5, lambda: nn.InstanceNorm2d(3, affine=True)))),
        Problem("rms-norm", model_on(3, 5)(_behind_linear(5, lambda: nn.RMSNorm(5)))),
        Problem("rms-norm-two-axes", model_on(3, 2, 5)(_behind_linear(5, lambda: nn.RMSNorm((2, 5), eps=0.1)))),
        Problem("bag-sum", model_on_tokens(6)(_bag(mode="sum"))),
        Problem("bag-mean-padding", model_on_tokens(6)(_bag(mode="mean", padding_idx=1))),
        Problem("embedding", model_on_tokens(6)(_embedding())),
        Problem("embedding-2d", model_on_tokens(2, 3)(_embedding())),
        Problem("embedding-one-token", model_on_tokens()(_embedding())),
        Problem("embedding-padding", model_on_tokens(6)(_embedding(padding_idx=1))),
        Problem("embedding-negative-padding", model_on_tokens(6)(_embedding(padding_idx=-6))),
        Problem("layer-norm", model_on(3, 5)(_norm(lambda: nn.LayerNorm(5), 5))),
        Problem("layer-norm-2d-input", model_on(5)(_norm(lambda: nn.LayerNorm(5), 5))),
        Problem("layer-norm-two-axes", model_on(3, 2, 5)(_norm(lambda: nn.LayerNorm((2, 5)), 5))),
        Problem("layer-norm-no-bias", model_on(3, 5)(_norm(lambda: nn.LayerNorm(5, bias=False), 5))),
        Problem("layer-norm-no-affine", model_on(3, 5)(_norm(lambda: nn.LayerNorm(5, elementwise_affine=False), 5))),
        Problem("group-norm", model_on(2, 4, 4)(_channel_norm(lambda: nn.GroupNorm(2, 4)))),
        Problem("group-norm-eps", model_on(2, 4, 4)(_channel_norm(lambda: nn.GroupNorm(1, 4, eps=0.5)))),
        Problem("group-norm-2d-input", model_on(6)(_norm(lambda: nn.GroupNorm(2, 6), 6))),
        Problem("group-norm-no-bias", model_on(2, 4, 4)(_group_norm_without_bias)),
        Problem("in-place", model_on(2, 5, 5)(_in_place)),
        Problem("several-calls", model_on(3, 3)(_several_calls)),
        Problem("several-conv-calls", model_on(2, 4, 4)(_several_conv_calls)),
        Problem("several-wide-conv-calls", model_on(8, 3, 3)(_several_wide_conv_calls)),
        Problem("several-norm-calls", model_on(4, 3, 3)(_several_norm_calls)),
        Problem("several-embedding-calls", model_on_tokens(6)(_several_embedding_calls)),
        Problem("tied-linears", model_on(5)(_tied_linears)),
        Problem("tied-linears-3d", model_on(3, 5)(_tied_linears)),
        Problem("tied-head", model_on_tokens(6)(_tied_head)),
        Problem("tied-head-padding", model_on_tokens(6)(_tied_head_with_padding)),
        Problem("tied-convs", model_on(2, 5, 6)(_tied_convs)),
        Problem("frozen", model_on(5)(_frozen)),
        Problem("unused", model_on(5)(_unused)),
        Problem("bare-parameters", model_on(5)(_bare_parameters)),
        Problem("scalar-parameter", model_on(5)(_scalar_parameter)),
        Problem("functional-use", model_on(5)(_functional_use)),
        Problem("shared-layers", model_on(UNITS, 4)(_shared_layers)),
        Problem("class-token", model_on(3, 4)(_class_token)),
        Problem("one-output-at-a-time", model_on(5)(_one_output_at_a_time), frozenset({"rows"})),
        Problem("positions", model_on(UNITS, 3)(_positions)),
        Problem("expanded-positions", model_on(UNITS, 3)(_expanded_positions)),
        Problem("time-first", model_on(UNITS, 3)(_time_first)),
        Problem("flattened-time", model_on(3, 3)(_flattened_time)),
        Problem("flattened-frames", model_on(3, 2, 4, 4)(_flattened_frames)),
        Problem("turned-matrices", model_on(3, 4)(_turned_matrices)),
        Problem("flipped", model_on(5)(_flipped), _all("body") | _all("inner") | _all("head"), proven=False),
        Problem("sorted-by-length", _sorted_by_length, _all("body") | _all("head"), proven=False),
        Problem(
            "coupled-gradients-only", model_on(5)(_coupled_gradients_only), _all("body") | _all("head"), proven=False
        ),
        Problem("attention", model_on(UNITS, 4)(_attention)),
        Problem("module-attention", model_on(3, 4)(_module_attention)),
        Problem("cross-attention", model_on(UNITS, 4)(_cross_attention)),
        Problem("rows-of-a-matrix", model_on(UNITS, 4)(_rows_of_a_matrix)),
        Problem("transformer", model_on(3, 4)(_transformer)),
        Problem("language-model", _language_model),
        Problem("lstm", model_on(3, 3)(_recurrent(nn.LSTM, 2)), vectorises=False),
        Problem("gru", model_on(UNITS, 3)(_recurrent(nn.GRU, 4, num_layers=2, bidirectional=True)), vectorises=False),
        Problem("lstm-with-states", model_on(UNITS, 3)(_states(nn.LSTM)), vectorises=False),
        Problem("rnn-with-states", model_on(3, 3)(_states(nn.RNN, nonlinearity="relu", bias=False)), vectorises=False),
        Problem("cells", model_on(3, 3)(_cells)),
        Problem("learned-state", model_on(3, 3)(_learned_state), _recurrent_names(1, "") | {"start"}, vectorises=False),
        Problem("prelu", model_on(3, 4)(lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.PReLU(3)))),
        Problem(
            "conv-transpose",
            model_on(2, 3, 4)(
                lambda: nn.Sequential(nn.Conv2d(2, 2, 1), nn.Tanh(), nn.ConvTranspose2d(2, 3, 2, stride=2))
            ),
        ),
        Problem("conv-transpose-settings", model_on(4, 5)(_conv_transpose_settings)),
        Problem(
            "spectral-norm-in-eval-mode",
            model_on(5)(_spectral_norm_in_eval_mode),
            _all("0.parametrizations.weight", "original"),
        ),
        Problem("low-rank", model_on(5)(_low_rank)),
        Problem(
            "weight-norm",
            model_on(5)(_weight_norm),
            _all("0.parametrizations.weight", "original0", "original1"),
        ),
        Problem(
            "layers-without-rules",
            model_on(5)(_layers_without_rules),
            frozenset({"summed", "scaled"}),
        ),
        Problem("batch-norm-in-eval-mode", model_on(2, 4, 4)(_batch_norm_in_eval_mode)),
        Problem("dicts", _dicts),
        Problem("named-tuples", _named_tuples),
        Problem("some-units-have-no-gradient", _some_units_have_no_gradient),
    ]
}


def problems_and_engines(engines: tuple[str, ...]) -> list[tuple[str, str]]:
    """Names of problems with engines, without those that the dense engine refuses."""
    return [(name, e) for name, problem in PROBLEMS.items() for e in engines if problem.vectorises or e != "dense"]


@cache
def gradients_of(name: str) -> dict[str, Tensor]:
    """The oracle's unit gradients of a problem, float64."""
    return unit_gradients(PROBLEMS[name].make())


def in_double(setup: Setup) -> Setup:
    """The same numbers as given, as a float64 copy: what a lower precision is compared with."""
    return Setup(copy.deepcopy(setup.model).double(), setup.loss_fn, as_type(setup.batch, torch.float64))


def proven(model: nn.Module, loss_fn: Any, rows_: Any) -> Layout:
    """The layout of a model that is known to be proven on these rows, without the rest of the examination."""
    live = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    found = follow(model, loss_fn, rows_, live)
    return Layout(frozenset(found.fallback), trace=found.trace)


def lone(
    model: nn.Module, loss_fn: Any, row: Any, clip: Clip, support: Any = None, runtime: Any = None
) -> ClippedBatch:
    """What a lone unit adds, by the fast rules: a batch of one goes another way, so a copy that does not count is beside it."""
    assert length(row) == 1
    pair = map_tensors(lambda tensor: torch.cat([tensor, tensor]), row)
    layout = proven(model, loss_fn, pair)
    batch = Padded(pair, torch.tensor([1, 0]))
    got = clipped_sum(model, loss_fn, batch, clip, support, runtime, layout=layout)
    return got._replace(norms=got.norms[:, :1])
