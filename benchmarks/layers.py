"""Which layers and situations are right, refused or wrong: noisewise and Opacus against a loop over units.

    python benchmarks/layers.py [--out docs/layers.md]

Each model is small, in float64 and seeded. Truth is one unit at a time through torch.autograd.grad, each gradient clipped to
a bound of half the shortest of them (so clipping is always active), and added up. A lone unit is a batch of one: its sum must
not be longer than the bound. Takes under a minute on two cores.
"""

from __future__ import annotations

import argparse
import copy
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from noisewise.clipping import Flat
from noisewise.persample import clipped_sum, examine

UNITS = 4
RIGHT = 1e-4  # relative error in L2; the peers add 1e-6 to norms
LONE = 1 + 1e-4


class Situation(NamedTuple):
    """A model, its loss per unit and a batch."""

    model: nn.Module
    loss_fn: Callable[[Any, Any], Tensor]
    batch: tuple[Tensor, ...]


class Apply(nn.Module):
    """A forward pass written as a function of the module and its input."""

    def __init__(self, run: Callable[[Any, Any], Tensor], **parts: Any):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._run = run

    def forward(self, x: Any) -> Tensor:
        return self._run(self, x)


def squared(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    out = model(batch[0]).flatten(1)
    return out.square().mean(1) * batch[1] + out.sum(1)


def on(*shape: int, tokens: bool = False) -> Callable[[Callable[[], nn.Module]], Callable[[], Situation]]:
    """Situations with inputs of this shape."""

    def inputs() -> Tensor:
        return torch.randint(0, 7, (UNITS, *shape)) if tokens else torch.randn(UNITS, *shape)

    return lambda build: lambda: Situation(build(), squared, (inputs(), torch.linspace(0.5, 2.0, UNITS)))


def behind(width: int, *layers: nn.Module) -> nn.Module:
    """Layers whose input depends on parameters."""
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), *layers, nn.Tanh())


def behind_conv(channels: int, *layers: nn.Module, axes: int = 2) -> nn.Module:
    """The same for images and volumes."""
    kind = nn.Conv2d if axes == 2 else nn.Conv3d
    return nn.Sequential(kind(channels, channels, 1), nn.Tanh(), *layers, nn.Tanh())


def tied(first: nn.Module, second: nn.Module) -> tuple[nn.Module, nn.Module]:
    second.weight = first.weight
    return first, second


def recurrent(cell: nn.Module, width: int) -> nn.Module:
    return Apply(lambda m, x: m.head(m.cell(x)[0][:, -1]), cell=cell, head=nn.Linear(width, 2))


def attention() -> nn.Module:
    return Apply(
        lambda m, x: m.head(m.attend(x, x, x, need_weights=False)[0].mean(1)),
        attend=nn.MultiheadAttention(4, 2, batch_first=True),
        head=nn.Linear(4, 2),
    )


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(4, 2))


def positions() -> nn.Module:
    return Apply(
        lambda m, x: m.head(torch.tanh(m.body(x) + m.position(torch.arange(x.shape[1])))),
        body=nn.Linear(3, 4),
        position=nn.Embedding(5, 4),
        head=nn.Linear(4, 2),
    )


def bare() -> nn.Module:
    return Apply(
        lambda m, x: m.head(torch.tanh(x @ m.matrix) * m.gain),
        matrix=nn.Parameter(torch.randn(5, 4)),
        gain=nn.Parameter(torch.ones(4)),
        head=nn.Linear(4, 2),
    )


def products() -> nn.Module:
    return Apply(
        lambda m, x: torch.matmul(torch.tanh(torch.addmm(m.bias, x, m.first)) @ m.second, m.third),
        first=nn.Parameter(torch.randn(5, 4)),
        bias=nn.Parameter(torch.randn(4)),
        second=nn.Parameter(torch.randn(4, 3)),
        third=nn.Parameter(torch.randn(3, 2)),
    )


def low_rank() -> nn.Module:
    return Apply(
        lambda m, x: m.head(torch.tanh(m.base(x) + m.up(m.down(x)))),
        base=nn.Linear(5, 4).requires_grad_(False),
        down=nn.Linear(5, 2, bias=False),
        up=nn.Linear(2, 4, bias=False),
        head=nn.Linear(4, 2),
    )


def unused() -> nn.Module:
    return Apply(lambda m, x: m.head(x), head=nn.Linear(5, 2), never=nn.Linear(3, 2))


def language_model() -> Situation:
    table, head = tied(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    model = Apply(lambda m, x: m.head(torch.tanh(m.mix(m.table(x)))), table=table, mix=nn.Linear(4, 4), head=head)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return F.cross_entropy(model(batch[0][:, :-1]).transpose(1, 2), batch[0][:, 1:], reduction="none").mean(1)

    return Situation(model, loss_fn, (torch.randint(0, 7, (UNITS, 6)),))


def in_batch_negatives() -> Situation:
    def loss_fn(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        out = model(batch[0])
        return F.cross_entropy(out @ batch[1].T, torch.arange(len(out)), reduction="none") + out.square().sum(1)

    return Situation(nn.Linear(5, 4), loss_fn, (torch.randn(UNITS, 5), torch.randn(UNITS, 4)))


def several_losses() -> Situation:
    def forward(m: Any, x: Tensor) -> Any:
        hidden = torch.tanh(m.body(x))
        return m.first(hidden), m.second(hidden)

    model = Apply(
        forward,
        body=nn.Linear(5, 4),
        first=nn.Linear(4, 2),
        second=nn.Linear(4, 3),
    )

    def loss_fn(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        first, second = model(batch[0])
        return first.square().sum(1) + F.cross_entropy(second, batch[1], reduction="none")

    return Situation(model, loss_fn, (torch.randn(UNITS, 5), torch.arange(UNITS) % 3))


def checkpointed(reentrant: bool) -> Callable[[], nn.Module]:
    return lambda: Apply(
        lambda m, x: m.head(checkpoint(m.inner, torch.tanh(m.body(x)), use_reentrant=reentrant)),
        body=nn.Linear(5, 4),
        inner=nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
        head=nn.Linear(4, 2),
    )


def padded(mode: str) -> Callable[[], nn.Module]:
    return lambda: behind_conv(2, nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode))


SITUATIONS: dict[str, Callable[[], Situation]] = {
    "Linear": on(5)(lambda: behind(5, nn.Linear(5, 3))),
    "Linear on 3-D input": on(4, 5)(lambda: behind(5, nn.Linear(5, 3))),
    "Linear on 4-D input": on(2, 3, 5)(lambda: behind(5, nn.Linear(5, 3))),
    "Conv1d": on(2, 6)(lambda: behind(6, nn.Conv1d(2, 3, 3, stride=2, padding=1))),
    "Conv2d": on(2, 5, 5)(lambda: behind_conv(2, nn.Conv2d(2, 3, 3, padding=1))),
    "Conv3d": on(2, 4, 4, 5)(lambda: behind_conv(2, nn.Conv3d(2, 3, 3), axes=3)),
    "Conv2d, padding 'same'": on(2, 5, 5)(lambda: behind_conv(2, nn.Conv2d(2, 3, 3, padding="same"))),
    "Conv2d, padding 'same', even kernel": on(2, 5, 5)(lambda: behind_conv(2, nn.Conv2d(2, 3, 4, padding="same"))),
    "Conv2d, padding reflect": on(2, 5, 5)(padded("reflect")),
    "Conv2d, padding replicate": on(2, 5, 5)(padded("replicate")),
    "Conv2d, padding circular": on(2, 5, 5)(padded("circular")),
    "Conv2d, groups": on(4, 5, 5)(lambda: behind_conv(4, nn.Conv2d(4, 6, 3, groups=2))),
    "Conv2d, depthwise": on(3, 5, 5)(lambda: behind_conv(3, nn.Conv2d(3, 6, 3, groups=3))),
    "Conv2d, dilated": on(2, 6, 6)(lambda: behind_conv(2, nn.Conv2d(2, 3, 3, dilation=2))),
    "ConvTranspose2d": on(2, 4, 4)(lambda: behind_conv(2, nn.ConvTranspose2d(2, 3, 2, stride=2))),
    "ConvTranspose1d": on(2, 6)(lambda: behind(6, nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1))),
    "ConvTranspose3d": on(2, 3, 3, 4)(lambda: behind_conv(2, nn.ConvTranspose3d(2, 3, 2), axes=3)),
    "LayerNorm": on(3, 5)(lambda: behind(5, nn.LayerNorm(5))),
    "LayerNorm without bias": on(3, 5)(lambda: behind(5, nn.LayerNorm(5, bias=False))),
    "RMSNorm": on(3, 5)(lambda: behind(5, nn.RMSNorm(5))),
    "GroupNorm": on(4, 3, 5)(lambda: behind_conv(4, nn.GroupNorm(2, 4))),
    "InstanceNorm2d, affine": on(3, 4, 5)(lambda: behind_conv(3, nn.InstanceNorm2d(3, affine=True))),
    "Embedding": on(6, tokens=True)(lambda: nn.Sequential(nn.Embedding(7, 3), nn.Tanh(), nn.Linear(3, 2))),
    "Embedding, padding_idx": on(6, tokens=True)(lambda: nn.Sequential(nn.Embedding(7, 3, 1), nn.Tanh())),
    "EmbeddingBag, sum": on(6, tokens=True)(lambda: nn.Sequential(nn.EmbeddingBag(7, 3, mode="sum"), nn.Tanh())),
    "EmbeddingBag, mean": on(6, tokens=True)(lambda: nn.Sequential(nn.EmbeddingBag(7, 3, mode="mean"), nn.Tanh())),
    "PReLU": on(5)(lambda: behind(5, nn.PReLU())),
    "bare nn.Parameter": on(5)(bare),
    "matmul": on(5)(products),
    "addmm": on(5)(products),
    "broadcast parameters": on(5)(bare),
    "position embeddings, broadcast": on(5, 3)(positions),
    "MultiheadAttention": on(3, 4)(attention),
    "TransformerEncoder": on(3, 4)(encoder),
    "LSTM": on(4, 3)(lambda: recurrent(nn.LSTM(3, 4, batch_first=True), 4)),
    "GRU, 2 layers, bidirectional": on(4, 3)(
        lambda: recurrent(nn.GRU(3, 2, 2, batch_first=True, bidirectional=True), 4)
    ),
    "tied weights": on(5)(lambda: nn.Sequential(*tied(nn.Linear(5, 5), nn.Linear(5, 5)), nn.Linear(5, 2))),
    "tied embedding and head": language_model,
    "module used twice": on(5)(lambda: Apply(lambda m, x: m.body(torch.tanh(m.body(x))), body=nn.Linear(5, 5))),
    "in-place ReLU": on(5)(lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))),
    "layer that is not used": on(5)(unused),
    "low-rank adapter on a frozen layer": on(5)(low_rank),
    "weight norm": on(5)(
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 2))
    ),
    "spectral norm, evaluation mode": on(5)(
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4)).eval(), nn.Linear(4, 2))
    ),
    "dropout, evaluation mode": on(5)(lambda: behind(5, nn.Dropout(0.5).eval(), nn.Linear(5, 2))),
    "several losses and outputs": several_losses,
    "checkpoint, not reentrant": on(5)(checkpointed(False)),
    "checkpoint, reentrant": on(5)(checkpointed(True)),
    "BatchNorm, evaluation mode": on(2, 4, 5)(lambda: behind_conv(2, nn.BatchNorm2d(2).eval())),
    "BatchNorm, training mode": on(2, 4, 5)(lambda: behind_conv(2, nn.BatchNorm2d(2))),
    "in-batch negatives": in_batch_negatives,
}


def make(build: Callable[[], Situation]) -> Situation:
    """The same numbers every time, in float64; biases away from zero."""
    torch.manual_seed(7)
    model, loss_fn, batch = build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return Situation(model.double(), loss_fn, tuple(t.double() if t.is_floating_point() else t for t in batch))


def truth(situation: Situation) -> tuple[dict[str, Tensor], float]:
    """Clipped sum by the definition, and the bound. Coupled units are taken out of their batch."""
    model, loss_fn, batch = situation
    model = copy.deepcopy(model)
    live = {name: p for name, p in model.named_parameters() if p.requires_grad}
    units = []
    for i in range(UNITS):
        (loss,) = loss_fn(model, tuple(t[i : i + 1] for t in batch))
        loss.backward()
        units.append({name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in live.items()})
        model.zero_grad()
    norms = [float(torch.cat([g.flatten() for g in unit.values()]).norm()) for unit in units]
    bound = min(norms) / 2
    return {
        name: sum((bound / norm * unit[name] for unit, norm in zip(units, norms, strict=True)), torch.zeros(()))
        for name in live
    }, bound


def ours(situation: Situation, bound: float) -> dict[str, Tensor]:
    return dict(clipped_sum(*situation, Flat(bound)).grads._values)


def hooks(situation: Situation, bound: float) -> dict[str, Tensor]:
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer
    from opacus.validators import ModuleValidator

    model = copy.deepcopy(situation.model)
    ModuleValidator.validate(model, strict=True)  # as PrivacyEngine.make_private does
    wrapped = GradSampleModule(model, loss_reduction="sum")
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = DPOptimizer(
        torch.optim.SGD(learning, lr=1.0), noise_multiplier=0.0, max_grad_norm=bound, expected_batch_size=1,
        loss_reduction="sum",
    )  # fmt: skip
    situation.loss_fn(wrapped, situation.batch).sum().backward()
    optimizer.pre_step()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def ghost(situation: Situation, bound: float) -> dict[str, Tensor]:
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
    from opacus.validators import ModuleValidator

    model = copy.deepcopy(situation.model)
    ModuleValidator.validate(model, strict=True)
    wrapped = GradSampleModuleFastGradientClipping(
        model, loss_reduction="sum", max_grad_norm=bound, use_ghost_clipping=True
    )
    learning = [p for p in model.parameters() if p.requires_grad]
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(learning, lr=1.0), noise_multiplier=0.0, max_grad_norm=bound, expected_batch_size=1,
        loss_reduction="sum",
    )  # fmt: skip
    losses = situation.loss_fn(wrapped, situation.batch)
    DPTensorFastGradientClipping(wrapped, optimizer, losses, "sum").backward()
    optimizer.accumulate()
    return {name: p.summed_grad for name, p in model.named_parameters() if p.requires_grad}


def verdict(method: Callable[[Situation, float], dict[str, Tensor]], build: Callable[[], Situation]) -> str:
    """right, refused (why) or wrong (how much); and whether a lone unit exceeds the bound."""
    situation = make(build)
    expected, bound = truth(situation)
    try:
        error = distance(method(make(build), bound), expected) / length(expected)
    except Exception as problem:
        return f"refused ({reason(problem)})"
    result = "right" if error < RIGHT else f"**wrong** ({error:.0%} off)"
    lone = max(length(method(alone(make(build), i), bound)) / bound for i in range(UNITS))
    return result if lone <= LONE else f"{result}, lone unit {lone:.2f} C"


def alone(situation: Situation, unit: int) -> Situation:
    return situation._replace(batch=tuple(t[unit : unit + 1] for t in situation.batch))


def length(grads: dict[str, Tensor]) -> float:
    return float(torch.cat([grad.flatten() for grad in grads.values()]).norm())


def distance(got: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    return length({name: got[name] - value for name, value in expected.items()})


def reason(problem: Exception, most: int = 64) -> str:
    """Kind and first words, the same in every run."""
    text = re.sub(r"^\[?\w+Error\(|\d+\.\d+", lambda match: "" if "E" in match[0] else "…", str(problem).strip())
    first = re.split(r"[.:;](?=\s|$)|\n| at 0x", text)[0].replace("|", "/")
    words = re.sub(r"\s+", " ", re.sub(r"[\[\](){}'\"`<>]", "", first)).strip()
    return f"{type(problem).__name__}: {words if len(words) <= most else words[:most].rsplit(' ', 1)[0] + ' …'}"


def engines(build: Callable[[], Situation]) -> str:
    """Which engines noisewise uses."""
    situation = make(build)
    try:
        layout = examine(*situation)
    except Exception:
        return "–"
    learning = {name for name, p in situation.model.named_parameters() if p.requires_grad}
    other = "dense" if layout.vectorises else "loop"
    return " + ".join((["ghost"] if learning - layout.fallback else []) + ([other] if layout.fallback else []))


def table() -> str:
    """The document."""
    import opacus

    rows = [
        (name, verdict(ours, b), engines(b), verdict(hooks, b), verdict(ghost, b)) for name, b in SITUATIONS.items()
    ]
    counts = [
        ", ".join(
            f"{sum(word in row[k].split(',')[0] for row in rows)} {word}" for word in ("right", "refused", "wrong")
        )
        for k in (1, 3, 4)
    ]
    lines = [
        "# Layers and situations",
        "",
        f"{len(rows)} small models in float64 against a loop over units: written by `benchmarks/layers.py`. Clipped sums are",
        "compared, with a bound below every norm. Right: relative error below 1e-4. Refused: an error before anything is",
        "released. Wrong: no error, another sum; where a unit alone adds more than the bound C, the factor is given.",
        "Coupled units (the last two) have no right answer: they must be refused. Peers are called as their own engine does",
        "(model validation, wrapper, optimizer) with noise 0.",
        "",
        f"noisewise: {counts[0]}. Opacus {opacus.__version__} hooks: {counts[1]}. Ghost: {counts[2]}.",
        "",
        f"| situation | noisewise | engine | Opacus {opacus.__version__} hooks | Opacus {opacus.__version__} ghost |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "layers.md")
    out = parser.parse_args().out
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # the models are tiny
    text = table()
    print(text)
    out.write_text(text)


if __name__ == "__main__":
    main()
