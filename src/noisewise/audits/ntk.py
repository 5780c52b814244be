"""Neural tangent kernel: what clipping does to the matrix that says how fast training lowers the loss.

`noisewise.theory.bu2022` has the formulas; here are the kernel of a model, and its prediction beside a measurement.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from noisewise._moved import old_names
from noisewise.audits.audit import Audit
from noisewise.audits.gradients import (
    block_norms,
    chosen_loss,
    chosen_rule,
    gradient_status,
    gradients,
    group_labels,
    rule_factors,
)
from noisewise.audits.outputs import check_subject, evaluating
from noisewise.audits.result import FAINT, INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import Bar, dress, name_rows
from noisewise.errors import ConfigError, DataError
from noisewise.estimates.estimate import LEVEL, Estimate, check_level
from noisewise.support import live_parameters
from noisewise.theory import bu2022
from noisewise.wording import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.clipping import Clip
    from noisewise.data import Data
    from noisewise.losses import LossFn
    from noisewise.mechanism import Mechanism
    from noisewise.support import Support

TAKES = "Does not retrain; one kernel of a few rows, seconds to a minute."
LARGEST = 1 << 26  # numbers of one layer's Jacobian that are held at a time
ROWS = 64  # as many rows unless told otherwise, or as many as there are and fit
THIS_RUN = "this run"  # the rule in force, beside those of the paper
PROPERTIES = {
    "symmetric": "symmetry",
    "positive_form": "a positive quadratic form (the loss falls whatever the residuals)",
    "positive_eigenvalues": "positive eigenvalues",
}


@dataclass(frozen=True)
class Dynamics:
    """The clipped kernel under one rule: `theory.bu2022.Facts`, and dL/dt by the kernel and measured.

    Relative rates are shares of the steepest change that a step of the same length can make.
    """

    asymmetry: float
    quadratic: float
    eigenvalue: float
    imaginary: float
    tolerance: float
    symmetric: bool
    positive_form: bool
    positive_eigenvalues: bool
    rate: float
    measured_rate: float
    relative_rate: float
    measured_relative_rate: float


@dataclass(frozen=True)
class Values:
    """The dynamics by rule and each layer's share of the trace of H; the same of the twin, if there is one."""

    rules: dict[str, Dynamics]
    layers: dict[str, float]
    twin_rules: dict[str, Dynamics] | None = field(default=None, metadata={"key": "twin rules", "absent": True})
    twin_layers: dict[str, float] | None = field(default=None, metadata={"key": "twin layers", "absent": True})


@dataclass(frozen=True, kw_only=True)
class Ntk(Result):
    """The kernel of a few rows under this run's rule and the five of the paper.

    headline: `predicted` and `measured` dL/dt of this rule (and `twin predicted`, `twin measured`).
    values: `rules`, for each rule the kernel's facts and both rates; `layers`, each layer's share of the trace of H.
    Reference: Bu et al. 2022 (ICLR submission), section 4 and Tables 1, 2. Deviation: finite width, real gradients.
    """

    kind: ClassVar[str] = "ntk"
    title: ClassVar[str] = "What clipping does to the training dynamics"

    values: Values

    @property
    def rules(self) -> dict[str, Dynamics]:
        """Facts and rates by rule; `this run` is the one in force. `values.twin_rules`: the twin's."""
        return self.values.rules

    def plot(self, ax: Axes) -> Axes:
        """Loss slope of each rule relative to no clipping: predicted (line) and measured (dot)."""
        names = list(self.rules)[::-1]
        for row, name in enumerate(names):
            entry = self.rules[name]
            rate = -entry.relative_rate
            ax.barh(row, rate, height=0.5, color=FAINT)
            ax.plot([-entry.measured_relative_rate], [row], "o", color=PRIVATE if rate >= 0 else TWIN, markersize=6)
        ax.axvline(0, color=INK, linewidth=1)
        ax.set_xlim(right=1.06)
        name_rows(ax, names)
        return dress(ax, "fall of the loss per unit of way, 1: the steepest there is")

    def figures(self) -> list[Figure]:
        """One figure."""
        caption = "How fast each way of clipping lowers the loss: predicted (bar) and measured (dot)"
        words = "; ".join(f"{name}: {number(-entry.relative_rate)}" for name, entry in self.rules.items())
        return [Figure(caption, f"{caption}. {words}.", self.plot, len(self.rules) + 1)]

    def sentences(self) -> list[str]:
        """Which properties this rule keeps, and what follows."""
        run = self.rules[THIS_RUN]
        kept = [words for name, words in PROPERTIES.items() if getattr(run, name)]
        lost = [words for name, words in PROPERTIES.items() if not getattr(run, name)]
        lines = [
            f"On {self.settings['rows']} rows the clipped kernel keeps {_listed(kept)}"
            + (f" and loses {_listed(lost)}." if lost else "."),
            f"An infinitely small clipped step changes the mean loss at a rate of {number(run.rate)} by the kernel, "
            f"{number(run.measured_rate)} measured; {100 * max(-run.relative_rate, 0):.0f} % of the steepest fall "
            "for a step of the same length.",
        ]
        if run.rate > 0:
            lines.append("At these weights the clipped step raises the loss.")
        return lines

    def tables(self) -> list[Table]:
        """Facts by rule, and layers."""
        yes = {True: "yes", False: "no"}
        rows = [
            [
                name,
                yes[entry.symmetric],
                f"{yes[entry.positive_form]} ({number(entry.quadratic)})",
                f"{yes[entry.positive_eigenvalues]} ({number(entry.eigenvalue)})",
                number(entry.rate),
                number(entry.measured_rate),
            ]
            for name, entry in self.rules.items()
        ]
        columns = ["rule", "symmetric", "quadratic form >= 0", "eigenvalues >= 0", "dL/dt", "dL/dt measured"]
        layers = [[name, f"{100 * share:.1f}"] for name, share in self.values.layers.items()]
        return [
            Table(f"The kernel of {self.settings['rows']} rows; smallest values in brackets", columns, rows),
            Table("Share of each layer in the kernel's trace, %", ["layer", "share"], layers),
        ]


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words) or "nothing"


def ntk(
    model: nn.Module,
    data: Data,
    *,
    mechanism: Mechanism | None = None,
    clip: Clip | None = None,
    loss_fn: LossFn | None = None,
    support: Support | None = None,
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    rows: int | None = None,
    level: float = LEVEL,
) -> Ntk:
    """The clipped tangent kernel of some rows, and the loss change it predicts against the one that is measured.

    `dL/dt = -v (sum_l H_l C_l) v^T`, measured as `(L(w - s c) - L(w + s c)) / 2s` with c the clipped mean gradient. Does not
    retrain; seconds to a minute. Computed in double precision on a copy of the model. The five rules of the paper use the
    rule's sensitivity as C, each parameter as a layer, and a Z that screens nobody out.

    Args:
        model: with outputs `[n, classes]` (or `[n]`).
        data: rows are drawn from it.
        mechanism: says how gradients are clipped (the rule of the last step), or
        clip: the rule itself.
        loss_fn: `(model, batch) -> [batch]`, a function of `model(x)` and the targets.
        support: which coordinates learn, where the mechanism's changes from step to step.
        twin: a second model, with a kernel of its own.
        generator: draws the rows; a fixed one by default.
        progress: show a bar.
        rows: how many rows; the kernel has `rows * outputs` lines. By default 64, or fewer where the data has fewer or the
            Jacobian would be too large; the result says how many.
        level: of the intervals in the headline.
    """
    import torch

    check_level(level)
    check_subject(data, private=model, twin=twin)
    rule, support = chosen_rule(mechanism, clip, support)
    loss = chosen_loss(loss_fn, data)
    if data.unit is not None:
        raise DataError("people who own several rows: a line of the kernel is a row. Give data without unit=.")
    rows = _fitting_rows(model, data, support) if rows is None else rows
    if not 2 <= rows <= len(data):
        raise ConfigError(f"rows={rows!r}: a whole number from 2 to the {len(data)} rows of the data.")
    draw = np.random.default_rng(0) if generator is None else generator
    index = torch.from_numpy(np.sort(draw.choice(len(data), rows, replace=False)))
    part = _in_double(data.take(index))
    models = {"": model} if twin is None else {"": model, "twin ": twin}
    headline: dict[str, Estimate] = {}
    dynamics: dict[str, dict[str, Dynamics]] = {}
    layers: dict[str, dict[str, float]] = {}
    work = sum(len(list(each.parameters())) for each in models.values())
    with Bar(progress, work, "kernel") as advance:
        for prefix, each in models.items():
            dynamics[prefix], traces = _dynamics(each, part, loss, rule, support, advance)
            run, total = (
                dynamics[prefix][THIS_RUN],
                sum(traces.values()) or 1.0,
            )  # outputs that no weight moves: shares 0
            headline[f"{prefix}predicted"] = _exact(run.rate, rows, level, "kernel, exact for these rows")
            headline[f"{prefix}measured"] = _exact(run.measured_rate, rows, level, "central difference")
            layers[prefix] = {name: trace / total for name, trace in traces.items()}
    values = Values(dynamics[""], layers[""], dynamics.get("twin "), layers.get("twin "))
    settings = {"clip": repr(rule), "rows": rows, "level": level, "screen": "largest norm of the rows"}
    return Ntk(headline=headline, values=values, settings=settings, status=gradient_status(data, twin))


def _fitting_rows(model: nn.Module, data: Data, support: Support) -> int:
    """As many rows as there are, `ROWS` at most, whose largest Jacobian may be held."""
    import torch

    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad():
        outputs = model(data.x[:1].to(device)).numel()
    widest = max(parameter.numel() for parameter in live_parameters(model, support).values())
    return max(2, min(ROWS, len(data), LARGEST // (outputs * widest)))


def _dynamics(
    model: nn.Module, data: Data, loss: LossFn, rule: Clip, support: Support | None, advance: Callable[[int], None]
) -> tuple[dict[str, Dynamics], dict[str, float]]:
    """Facts and rates by rule, and the trace of each layer's kernel."""
    import torch

    copied = copy.deepcopy(model).cpu().double()
    with evaluating(copied):
        kernels = {}
        for name, jacobian in jacobians(copied, data.x, support):
            kernels[name] = (jacobian @ jacobian.T).numpy()
            advance(1)
        slopes = output_slopes(copied, data, loss).numpy()
        grads = _all_gradients(copied, data, loss, support)
        mean = torch.cat([grad.mean(0) for grad in grads.values()])
        by_rule = {}
        for name, factors in _factor_sets(rule, data, grads).items():
            matrix = bu2022.clipped_kernel(list(kernels.values()), factors)
            weights = [torch.from_numpy(np.array(each)).unsqueeze(1) for each in factors]
            step = {key: (each * grad).mean(0) for each, (key, grad) in zip(weights, grads.items(), strict=True)}
            steepest = float(torch.cat(list(step.values())).norm() * mean.norm())
            rate, measured = bu2022.loss_rate(matrix, slopes), measured_rate(copied, data, loss, step)
            facts = bu2022.facts(matrix)
            by_rule[name] = Dynamics(
                **facts._asdict(),
                symmetric=facts.symmetric,
                positive_form=facts.positive_form,
                positive_eigenvalues=facts.positive_eigenvalues,
                rate=rate,
                measured_rate=measured,
                relative_rate=rate / steepest if steepest > 0 else 0.0,
                measured_relative_rate=measured / steepest if steepest > 0 else 0.0,
            )
    return by_rule, {name: float(np.trace(kernel)) for name, kernel in kernels.items()}


def _exact(value: float, n: int, level: float, method: str) -> Estimate:
    return Estimate(value, value, value, n, level, method)


def _in_double(data: Data) -> Data:
    return replace(
        data,
        x=data.x.double() if data.x.is_floating_point() else data.x,
        y=data.y.double() if data.y.is_floating_point() else data.y,
    )


def jacobians(model: nn.Module, x: Tensor, support: Support | None = None) -> Iterator[tuple[str, Tensor]]:
    """`(name, J_l [n outputs, weights])` of each parameter that learns, one at a time; masked coordinates are 0."""
    import torch

    live = live_parameters(model, support or {})
    everything = {name: parameter.detach() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        lines = model(x[:1]).numel() * len(x)

    def outputs(parameter: Tensor, name: str, row: Tensor) -> Tensor:
        return torch.func.functional_call(model, everything | {name: parameter}, (row.unsqueeze(0),)).flatten()

    for name, parameter in live.items():
        if lines * parameter.numel() > LARGEST:
            raise ConfigError(
                f"the Jacobian of {name!r} for {len(x)} rows has {lines * parameter.numel():,} numbers: use fewer rows=."
            )
        slope = torch.func.vmap(torch.func.jacrev(outputs), in_dims=(None, None, 0), chunk_size=16)
        jacobian = slope(parameter.detach(), name, x).reshape(lines, -1)
        mask = (support or {}).get(name, True)
        yield name, jacobian if isinstance(mask, bool) else jacobian * mask.flatten()


class _Answers:
    """Stands for a model whose outputs are already known."""

    def __init__(self, outputs: Tensor):
        self.outputs = outputs

    def __call__(self, *_: Any) -> Tensor:
        return self.outputs


def output_slopes(model: nn.Module, data: Data, loss_fn: LossFn) -> Tensor:
    """`v = dL/df` of the mean loss, `[n outputs]`; a loss that is no function of the outputs alone is refused."""
    import torch

    with torch.no_grad():
        outputs, true = model(data.x), loss_fn(model, (data.x, data.y))
    outputs.requires_grad_(True)
    try:
        losses = loss_fn(_Answers(outputs), (data.x, data.y))
    except AttributeError as error:
        raise ConfigError(
            f"loss_fn looks into the model ({error}): the kernel needs a loss of model(x) alone."
        ) from error
    if not torch.allclose(losses.detach(), true):
        raise ConfigError("loss_fn is no function of model(x) and the targets alone: the kernel does not describe it.")
    (slopes,) = torch.autograd.grad(losses.mean(), outputs)
    return slopes.flatten()


def _all_gradients(model: nn.Module, data: Data, loss_fn: LossFn, support: Support | None) -> dict[str, Tensor]:
    """All rows' gradients at once: there are few."""
    import torch

    everyone = torch.arange(len(data))
    chunks = [chunk for _, chunk in gradients(model, data, everyone, loss_fn=loss_fn, support=support)]
    return {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}


def _factor_sets(rule: Clip, data: Data, grads: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Factors `[layers, n]` of this run's rule and of the paper's five."""
    import torch

    owner = rule.blocks(grads)
    blocks = [owner[name] for name in grads]
    squares = torch.stack([grad.square().sum(1) for grad in grads.values()])
    labels = group_labels(rule, data, torch.arange(len(data)))
    in_force = rule_factors(rule, block_norms(squares, blocks), labels)[blocks].numpy()
    norms = squares.sqrt().numpy()
    of_paper = {name: bu2022.rule_factors(name, norms, rule.sensitivity) for name in bu2022.RULES}
    return {THIS_RUN: in_force} | of_paper


def measured_rate(
    model: nn.Module, data: Data, loss_fn: LossFn, step: Mapping[str, Tensor], way: float = 1e-5
) -> float:
    """`(L(w - s c) - L(w + s c)) / 2s` with `s ||c|| = way`: the slope of the mean loss along the step, by differences."""
    import torch

    length = math.sqrt(sum(float(part.square().sum()) for part in step.values()))
    if length == 0:
        return 0.0
    moved = copy.deepcopy(model)
    parameters = dict(moved.named_parameters())
    losses = []
    with torch.no_grad():
        for sign in (-1.0, 1.0):
            for name, part in step.items():
                start = dict(model.named_parameters())[name]
                parameters[name].copy_(start + sign * way / length * part.view_as(start))
            losses.append(float(loss_fn(moved, (data.x, data.y)).mean()))
    return (losses[0] - losses[1]) / (2 * way) * length


AUDIT = Audit("ntk", ntk, takes=TAKES, needs=("mechanism", "loss_fn"))

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
