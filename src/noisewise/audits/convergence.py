"""Convergence: published bounds on how small the gradient gets, with their constants measured, and the best sparsity.

Reference: Zhu, Blaschko 2023, TMLR, Theorems 3.2, 3.4, 3.5; `noisewise.theory.zhu2023` has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from noisewise.audits.audit import Audit
from noisewise.audits.gradients import batch_of, chosen_loss, chosen_rule, gradient_status, measure
from noisewise.audits.outputs import BATCH, check_subject, device_of, evaluating
from noisewise.audits.result import INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import Bar, dress
from noisewise.batches import map_tensors
from noisewise.clipping import Flat
from noisewise.errors import ConfigError, DataError
from noisewise.estimates.estimate import LEVEL, Estimate, check_level
from noisewise.losses import unit_losses
from noisewise.schedule import Schedule
from noisewise.support import live_parameters
from noisewise.theory.zhu2023 import Constants, clipped_bound, deviations, noisy_bound, private_bound
from noisewise.wording import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.data import Data
    from noisewise.losses import LossFn
    from noisewise.mechanism import Mechanism
    from noisewise.support import Support

TAKES = "Does not retrain; a few passes over the data and some Hessian products, seconds to minutes."
ITERATIONS = 60  # of Lanczos' method, at most
LEAST, CALM = 20, 5  # rounds at least; rounds in a row that must agree
SETTLED = 1e-3  # relative change that is none
EXHAUSTED = 1e-6  # relative length of what is left when all directions were seen


@dataclass(frozen=True)
class Point:
    """Measured at one set of weights. Lengths of the mean gradient, `E||g_i - gbar||^2`, P_t, b, and both sides of `descent`.

    asymmetry: `b = mean <gbar, clip(g_i)> - mean <gbar, clip(gbar + xi)>`, the second over deviations xi made symmetric,
    `g_i - gbar` and `gbar - g_i` alike.
    """

    loss: float
    gradient: float
    variance: float
    close: float
    asymmetry: float
    descent: float
    smoothness: float


def smoothness(
    gradient: Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]],
    parameters: Sequence[Tensor],
    generator: np.random.Generator,
    iterations: int = ITERATIONS,
) -> float:
    """Largest `|eigenvalue|` of the Hessian at these weights, by Lanczos' method on Hessian-vector products.

    Guarantee: what it gives is `|x^T H x|` of a unit x (up to rounding), at most ||H||: a lower bound of the local and of the
    global constant G. It stops after `LEAST` rounds at the earliest, once `CALM` of them in a row have changed little: of a
    flat spectrum every start is stretched alike, so that two equal answers say nothing.
    Reference: Lanczos 1950; without reorthogonalisation, which extreme values do not need (Paige 1980).
    """
    import torch

    before = [torch.zeros_like(p) for p in parameters]
    now = _scaled([torch.from_numpy(generator.standard_normal(tuple(p.shape))).to(p) for p in parameters])
    along: list[float] = []
    beside: list[float] = []
    largest: list[float] = []
    back = 0.0
    for _ in range(iterations):
        product = gradient(parameters, now)
        along.append(_inner(product, now))
        rest = [h - along[-1] * x - back * last for h, x, last in zip(product, now, before, strict=True)]
        matrix = np.diag(along) + np.diag(beside, 1) + np.diag(beside, -1)
        largest.append(float(np.abs(np.linalg.eigvalsh(matrix)).max()))
        back = _length(rest)
        recent = largest[-CALM - 1 :]
        settled = len(largest) >= LEAST and max(recent) - min(recent) <= SETTLED * largest[-1]
        if settled or back <= EXHAUSTED * largest[-1]:
            break
        beside.append(back)
        before, now = now, _scaled(rest)
    return largest[-1]


def _scaled(parts: Sequence[Tensor]) -> list[Tensor]:
    length = _length(parts)
    return [part / length for part in parts]


def _inner(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    return sum(float((a.double() * b.double()).sum()) for a, b in zip(first, second, strict=True))


def _length(parts: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))


def hessian_product(
    model: nn.Module, data: Data, units: Tensor, loss_fn: LossFn, chunk: int = 512
) -> Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]]:
    """`(parameters, x) -> H x` for the mean loss of some units, a chunk at a time."""
    import torch

    def product(parameters: Sequence[Tensor], direction: Sequence[Tensor]) -> list[Tensor]:
        total = [torch.zeros_like(p) for p in parameters]
        for first in range(0, len(units), chunk):
            part = map_tensors(lambda t: t.to(parameters[0].device), batch_of(data, units[first : first + chunk]))
            with evaluating(model), torch.enable_grad():
                losses = unit_losses(model, loss_fn, part.rows())
                mean = (losses * part.weights.flatten().to(losses.dtype)).sum() / len(units)
                slopes = torch.autograd.grad(mean, parameters, create_graph=True, allow_unused=True)
                along = sum(((s * d).sum() for s, d in zip(slopes, direction, strict=True) if s is not None), mean * 0)
                curved = torch.autograd.grad(along, parameters, allow_unused=True)
            total = [t if c is None else t + c for t, c in zip(total, curved, strict=True)]
        return total

    return product


@dataclass(frozen=True)
class Curve:
    """`U(r)` over the sparsity r, and its two parts."""

    sparsity: list[float]
    clipping: list[float]
    noise: list[float]
    bound: list[float]


@dataclass(frozen=True)
class Values:
    """Constants, points (start, ..., model) with their names, the curve U(r) and the three bounds by name."""

    constants: Constants
    points: list[Point]
    names: list[str]
    bounds: dict[str, float]
    curve: Curve


@dataclass(frozen=True, kw_only=True)
class Convergence(Result):
    """The bounds of Zhu & Blaschko for this run, with measured constants. All of it are estimates, none a guarantee.

    headline: `best sparsity` r* (where Delta_C > 0), `bound` (Theorem 3.5 at r = 0) and `reached` (its left side,
    measured at the model). values: `constants`, `points` (start, ..., model), `curve` U(r), the three bounds.
    Deviation: G is measured at single weights and so too small; min L is taken as 0; averages over steps are averages
    over the points given; r* keeps the learning rate that the paper drops. The theorems are about steps without momentum mu;
    with it eta is taken as `lr / (1 - mu)`, the way that a gradient goes in the end.
    """

    kind: ClassVar[str] = "convergence"
    title: ClassVar[str] = "What the convergence bounds say of this run"

    values: Values

    @property
    def constants(self) -> Constants:
        """Public and measured."""
        return self.values.constants

    @property
    def points(self) -> list[Point]:
        """Start, ..., model."""
        return self.values.points

    def plot(self, ax: Axes) -> Axes:
        """U(r) and its two parts: what sparsity costs through clipping and saves in noise."""
        curve = self.values.curve
        rs = curve.sparsity
        ax.plot(rs, curve.clipping, color=TWIN, linestyle="--", label="clipping: Δ_C / √(1−r)")
        ax.plot(rs, curve.noise, color=INK, linestyle=":", label="noise: √(1−r) η Δ_σ")
        ax.plot(rs, curve.bound, color=PRIVATE, linewidth=2, label="both: U(r)")
        best = self.constants.best_sparsity
        if best is not None:
            ax.plot([best], [private_bound(self.constants, best)], "o", color=PRIVATE, markersize=7, label="r*")
        ax.set_ylim(min(0.0, *curve.clipping), 1.6 * max(curve.bound[0], 0.0) or None)
        ax.legend(frameon=False, fontsize="small", loc="upper left", labelcolor=INK)
        return dress(ax, "sparsity r", "bound")

    def figures(self) -> list[Figure]:
        """One figure."""
        return [Figure("The bound on DP-SGD over the sparsity, an estimate", " ".join(self.sentences()), self.plot, 9)]

    def sentences(self) -> list[str]:
        """What the bound allows, what was reached, and the best sparsity."""
        c, last = self.constants, self.points[-1]
        best = c.best_sparsity
        lines = [
            f"With measured constants the bound on P h(∇) ‖∇‖ is {number(private_bound(c))}; at the model it is "
            f"{number(self.headline['reached'].value)}. These are estimates: the smoothness {number(c.smoothness)} is a "
            "lower bound, taken at single weights.",
        ]
        if self.settings["momentum"]:
            lines.append(
                f"The theorems know no momentum: {number(self.settings['momentum'])} is counted as the learning rate "
                f"{number(self.settings['lr'])} / (1 − {number(self.settings['momentum'])}) = {number(c.lr)}."
            )
        if len(self.points) == 1:
            lines.append("No start was given: these are bounds for as many steps that begin at the model.")
        if best is None:
            lines.append(
                "Clipping's asymmetry makes the bracket Δ_C negative: the bound says nothing about sparsity here."
            )
        else:
            lines.append(
                f"By this bound the best sparsity is r* = {number(best)}: noise term {number(c.lr * c.delta_noise)} against "
                f"clipping term {number(c.delta_clip)}."
            )
            if best > 0 and last.close < math.sqrt(1 - best):
                lines.append(
                    f"The theorem asks P_t >= √(1 − r*) = {number(math.sqrt(1 - best))}; measured is {number(last.close)}: its "
                    "condition is not met."
                )
        return lines

    def tables(self) -> list[Table]:
        """Constants, bounds, points."""
        c = self.constants
        names = {
            "smoothness": "G, largest |eigenvalue| of the Hessian (estimate)", "loss_gap": "Δ_L = L(first point) − 0",
            "variance": "σ_g² = E‖g − ∇‖²", "asymmetry": "b, asymmetry of the deviations",
            "weights": "P, weights that learn", "steps": "T", "batch": "B", "bound": "C", "noise": "σ", "lr": "η",
        }  # fmt: skip
        values = {name: getattr(c, name) for name in names}
        rows = [[text, f"{v:,}" if type(v := values[name]) is int else number(v)] for name, text in names.items()]
        rows += [["Δ_C", number(c.delta_clip)], ["Δ_σ", number(c.delta_noise)], ["r*", number(c.best_sparsity)]]
        bounds = [[name, number(value)] for name, value in self.values.bounds.items()]
        points = [
            [name, *map(number, (p.loss, p.gradient, p.close, p.asymmetry, p.descent, p.smoothness))]
            for name, p in zip(self.values.names, self.points, strict=True)
        ]
        columns = ["", "mean loss", "‖∇‖", "P_t", "b", "mean ⟨∇, clip(g)⟩", "G"]
        return [
            Table("Constants, measured or public", ["constant", "value"], rows),
            Table("Upper bounds at r = 0 (estimates)", ["theorem", "value"], bounds),
            Table("Where they were measured", columns, points),
        ]


def convergence(
    model: nn.Module,
    data: Data,
    *,
    mechanism: Mechanism,
    lr: float,
    momentum: float = 0.0,
    loss_fn: LossFn | None = None,
    support: Support | None = None,
    path: Sequence[nn.Module] = (),
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    hessian_units: int = 1024,
    level: float = LEVEL,
) -> Convergence:
    """Evaluate the bounds of Theorems 3.2, 3.4 and 3.5 and the best sparsity for a run. Does not retrain; seconds to minutes.

    Args:
        model: the trained model.
        data: the training part.
        mechanism: sampler (B), flat clipping (C), one noise multiplier (sigma), steps (T), support (P).
        lr: the learning rate of SGD.
        momentum: of SGD; counted as a learning rate of `lr / (1 - momentum)`.
        loss_fn: `(model, batch) -> [batch]`; by default that of the data's task.
        support: which coordinates learn, where the mechanism's changes from step to step.
        path: models along the run, the start first; without it the bounds are of T steps that start at the model.
        twin: not part of these bounds: refused.
        generator: draws the start of Lanczos' method and its units; a fixed one by default.
        progress: show a bar.
        hessian_units: units whose mean loss gives the smoothness.
        level: of the intervals, all of them without end or exact here.
    """
    import torch

    check_level(level)
    check_subject(data, private=model)
    if twin is not None:
        raise ConfigError("twin= with convergence: the bounds are about the private run alone. Leave it out.")
    rule, support = chosen_rule(mechanism, None, support)
    if not isinstance(rule, Flat):
        raise ConfigError(f"{rule!r}: these theorems are about flat clipping. Use Flat.")
    if isinstance(mechanism.noise_multiplier, Schedule) or isinstance(mechanism.clip, Schedule):
        raise ConfigError("a schedule of noise or rules: these theorems are about one for all steps.")
    noise = mechanism.noise_at(mechanism.steps - 1)
    if not (math.isfinite(lr) and lr > 0):
        raise ConfigError(f"lr={lr!r}: a finite number above 0.")
    if not 0 <= momentum < 1:
        raise ConfigError(f"momentum={momentum!r}: must be in [0, 1).")
    loss, draw = chosen_loss(loss_fn, data), np.random.default_rng(0) if generator is None else generator
    few = torch.from_numpy(np.sort(draw.choice(data.units, min(hessian_units, data.units), replace=False)))
    models = [*path, model]
    with Bar(progress, 2 * data.units * len(models), "gradients") as advance:
        points = [_point(each, data, loss, rule.bound, support, few, draw, advance) for each in models]
    constants = Constants(
        steps=mechanism.steps,
        batch=mechanism.expected_batch_size,
        bound=float(rule.bound),
        noise=float(noise),
        lr=lr / (1 - momentum),
        weights=_learning(model, support),
        smoothness=max(point.smoothness for point in points),
        loss_gap=points[0].loss,
        variance=float(np.mean([point.variance for point in points])),
        asymmetry=float(np.mean([point.asymmetry for point in points])),
    )
    last = points[-1]
    reached = last.close * min(last.gradient, rule.bound / 4) * last.gradient
    headline = {
        "bound": _estimate(private_bound(constants), data.units, level, "plug-in, no interval", exact=False),
        "reached": _estimate(reached, data.units, level, f"exact for these {data.units} units", exact=True),
    }
    if (best := constants.best_sparsity) is not None:
        headline["best sparsity"] = Estimate(best, 0.0, 1.0, data.units, level, "plug-in, no interval")
    grid = [float(r) for r in np.linspace(0, 0.98, 99)]
    return Convergence(
        headline=headline,
        values=Values(
            constants=constants,
            points=points,
            names=[*["start"][: len(path)], *(f"point {k}" for k in range(2, len(points))), "model"],
            bounds={
                "3.2, noisy SGD, on the mean of ‖∇‖²": noisy_bound(constants),
                "3.4, clipped SGD, on the mean of P h(∇) ‖∇‖": clipped_bound(constants),
                "3.5, DP-SGD, on the mean of P h(∇) ‖∇‖": private_bound(constants),
            },
            curve=Curve(
                sparsity=grid,
                clipping=[clipped_bound(constants, r) for r in grid],
                noise=[math.sqrt(1 - r) * constants.lr * constants.delta_noise for r in grid],
                bound=[private_bound(constants, r) for r in grid],
            ),
        ),
        settings={"units": data.units, "hessian_units": len(few), "points": len(points), "level": level,
                  "least_loss": 0.0, "kappa": "sqrt(1 - r)", "lr": float(lr), "momentum": float(momentum)},
        status=gradient_status(data, None),
    )  # fmt: skip


def _estimate(value: float, n: int, level: float, method: str, *, exact: bool) -> Estimate:
    return Estimate(value, value if exact else -math.inf, value if exact else math.inf, n, level, method)


def _learning(model: nn.Module, support: Support) -> int:
    """Coordinates that learn."""
    masks = {name: support.get(name, True) for name in live_parameters(model, support)}
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return sum(sizes[name] if isinstance(mask, bool) else int(mask.sum()) for name, mask in masks.items())


def _point(
    model: nn.Module,
    data: Data,
    loss: LossFn,
    bound: float,
    support: Support,
    few: Tensor,
    draw: np.random.Generator,
    advance: Callable[[int], None],
) -> Point:
    import torch

    everyone = torch.arange(data.units)
    rule = Flat(bound)
    moments = measure(model, data, everyone, loss_fn=loss, clip=rule, support=support, advance=advance).moments
    live = live_parameters(model, support)
    masks = [support.get(name, True) for name in live]
    product = hessian_product(model, data, few, loss)

    def masked(parameters: Sequence[Tensor], direction: Sequence[Tensor]) -> list[Tensor]:
        curved = product(parameters, [_keep(part, mask) for part, mask in zip(direction, masks, strict=True)])
        return [_keep(part, mask) for part, mask in zip(curved, masks, strict=True)]

    mean_loss = _mean_loss(model, data, loss)
    if not math.isfinite(mean_loss) or mean_loss < 0:
        raise DataError(f"a mean loss of {mean_loss:g}: the bounds take 0 as the least loss there is.")
    return Point(
        loss=mean_loss,
        gradient=moments.mean_norm,
        smoothness=smoothness(masked, list(live.values()), draw),
        **deviations(moments.lengths, moments.on_mean.sum(0), moments.mean_norm, bound)._asdict(),
    )


def _keep(part: Tensor, mask: Any) -> Tensor:
    return part if isinstance(mask, bool) else part * mask.to(part.device)


def _mean_loss(model: nn.Module, data: Data, loss: LossFn, chunk: int = BATCH) -> float:
    import torch

    device, total = device_of(model), 0.0
    with evaluating(model), torch.no_grad():
        for units in torch.arange(data.units).split(chunk):
            batch = map_tensors(lambda tensor: tensor.to(device), batch_of(data, units))
            losses = unit_losses(model, loss, batch.rows()).double()
            total += float((losses * batch.weights.flatten().double()).sum())
    return total / data.units


AUDIT = Audit(
    "convergence", convergence, takes=TAKES, needs=("mechanism", "loss_fn", "lr", "momentum", "path"), twin=False
)
