"""Robustness: how often small changes of the input, made to mislead, succeed; and whether the attack itself works.

Radii are in units of `scale`, so that 8/255 means the same for raw and for normalised pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from noisewise.audits.audit import Audit
from noisewise.audits.outputs import device_of, evaluating, logits, status_of
from noisewise.audits.people import (
    SMALLEST,
    Part,
    divided,
    extremes,
    hidden_in_words,
    means,
    named_parts,
    owners,
    part_of,
    rows_in_words,
    several,
    shares,
    titled,
)
from noisewise.audits.result import INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import (
    MOST_ROWS,
    Advance,
    Bar,
    accuracy_cells,
    dots,
    dress,
    fixed_cell,
    name_rows,
    row_name,
    share_cell,
    shares_in_words,
)
from noisewise.errors import ConfigError, DataError
from noisewise.estimates.estimate import LEVEL, Estimate
from noisewise.wording import level as level_of
from noisewise.wording import number, percent, percent_interval, points, points_interval

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.data import Data

TAKES = "Does not retrain; about 20 seconds of processor time per model for a network like LeNet."
ROWS = 640
RADIUS = {"linf": 8 / 255, "l2": 0.5}
FACTORS = (0.5, 1.0, 2.0, 4.0)
POINT = 0.01  # how much a check forgives: one percentage point, or one hundredth of a loss
STUCK = 0.05  # share of rows without a gradient, or that no attack at all misleads, from which a check fails
NOISE_DRAWS = 5
CHUNK = 256  # rows at a time, which stay in a processor's cache; those of the first chunk are attacked to the end
_SIGN = {"linf": "L∞", "l2": "L2"}

Numbers = float | Sequence[float]


class Norm(NamedTuple):
    """What PGD needs of a norm: steepest direction, projection on a ball, points in and on it, size of a box."""

    direction: Callable[[Tensor], Tensor]
    project: Callable[[Tensor, float], Tensor]
    inside: Callable[[Tensor, torch.Generator], Tensor]
    surface: Callable[[Tensor, torch.Generator], Tensor]
    size: Callable[[Tensor], Tensor]


def _linf_inside(like: Tensor, generator: torch.Generator) -> Tensor:
    import torch

    return (2 * torch.rand(like.shape, generator=generator) - 1).to(like)


def _linf_surface(like: Tensor, generator: torch.Generator) -> Tensor:
    import torch

    return (2 * torch.randint(0, 2, like.shape, generator=generator) - 1).to(like)


def _l2_surface(like: Tensor, generator: torch.Generator) -> Tensor:
    import torch

    return _l2_direction(torch.randn(like.shape, generator=generator).to(like))


def _l2_inside(like: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform in the ball: a direction times U^(1/d)."""
    import torch

    length = torch.rand(len(like), generator=generator).to(like) ** (1 / like[0].numel())
    return _l2_surface(like, generator) * _per_row(length, like)


def _l2_direction(gradient: Tensor) -> Tensor:
    import torch

    # the largest entry first: squares of small gradients would vanish
    largest = gradient.flatten(1).abs().amax(1)
    level = gradient / _per_row(torch.where(largest > 0, largest, 1.0), gradient)
    length = level.flatten(1).norm(dim=1)
    return level / _per_row(torch.where(length > 0, length, 1.0), gradient)


def _l2_project(change: Tensor, radius: float) -> Tensor:
    length = change.flatten(1).norm(dim=1)
    return change * _per_row((radius / length.clamp(min=1e-30)).clamp(max=1.0), change)


def _per_row(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.dim() - 1))


NORMS: dict[str, Norm] = {
    "linf": Norm(
        lambda gradient: gradient.sign(),
        lambda change, radius: change.clamp(-radius, radius),
        _linf_inside,
        _linf_surface,
        lambda change: change.flatten(1).abs().amax(1),
    ),
    "l2": Norm(_l2_direction, _l2_project, _l2_inside, _l2_surface, lambda change: change.flatten(1).norm(dim=1)),
}


@dataclass(frozen=True)
class Space:
    """Inputs that can occur (`low` to `high`), and how many model-input units one unit of radius is (`scale`).

    Each is one number or one per channel (the first dimension of a row). A change `d` moves `x` to
    `clamp(x + scale d, low, high)`, and its size is the norm of `d`.
    """

    low: Tensor
    high: Tensor
    scale: Tensor

    @classmethod
    def of(cls, x: Tensor, box: tuple[Numbers, Numbers] | None, scale: Numbers | None) -> Space:
        """Defaults: the box is the range of `x`, the scale its width, so that radii are shares of that range."""
        import torch

        if not x.is_floating_point():
            raise DataError(
                f"inputs of type {x.dtype}: an attack changes inputs a little, so they must be real numbers."
            )
        ends = box if box is not None else (float(x.min()), float(x.max()))
        low, high = (_per_channel(end, x, "box") for end in ends)
        if not bool((low < high).all()):
            raise ConfigError(f"box {ends!r}: every low end must be below its high end.")
        slack = 1e-5 * (high - low)  # what rounding does to normalised pixels
        if bool(((x < low - slack) | (x > high + slack)).any()):
            raise ConfigError(
                f"box {ends!r}: the data reach from {number(float(x.min()))} to {number(float(x.max()))}, beyond it. "
                "Give the range of the inputs as the model sees them (after normalisation)."
            )
        unit = high - low if scale is None else _per_channel(scale, x, "scale")
        if not bool((unit > 0).all()) or not bool(torch.isfinite(unit).all()):
            raise ConfigError(f"scale {scale!r}: must be above 0, e.g. 1 / 0.3081 for pixels divided by 0.3081.")
        return cls(low, high, unit)

    def to(self, x: Tensor) -> Space:
        """On the device and in the precision of `x`."""
        return Space(self.low.to(x), self.high.to(x), self.scale.to(x))

    def move(self, x: Tensor, change: Tensor) -> Tensor:
        """`clamp(x + scale change, low, high)`."""
        import torch

        return torch.minimum(torch.maximum(x + self.scale * change, self.low), self.high)

    def change(self, x: Tensor, moved: Tensor) -> Tensor:
        """What moved `x`, in units of radius."""
        return (moved - x) / self.scale


def _per_channel(value: Numbers, x: Tensor, name: str) -> Tensor:
    import torch

    found = torch.as_tensor(value, dtype=x.dtype)
    if found.dim() > 1 or (found.dim() == 1 and (x.dim() < 2 or len(found) != x.shape[1])):
        raise ConfigError(
            f"{name} of shape {list(found.shape)} for inputs {list(x.shape)}: one number, or one for each of the "
            "first dimension of a row."
        )
    return found if not found.dim() else found.reshape(-1, *[1] * (x.dim() - 2))


class Attacked(NamedTuple):
    """Of every row: was it right wherever the attack looked, the largest loss seen, and where that was."""

    right: Tensor
    loss: Tensor
    x: Tensor


def margin(outputs: Tensor, y: Tensor) -> Tensor:
    """`m = logsumexp of the wrong classes' outputs - output of the right class`, in double precision.

    Guarantee: cross-entropy is `log(1 + e^m)`, which rises with m: both have the same direction of steepest ascent, but
    m does not flatten where the model is sure, so large outputs alone cannot hide the gradient.
    """
    import torch

    outputs = outputs.double()
    own = outputs.gather(1, y.unsqueeze(1))
    return torch.scatter(outputs, 1, y.unsqueeze(1), -math.inf).logsumexp(1) - own.squeeze(1)


def _look(model: nn.Module, x: Tensor, y: Tensor) -> Attacked:
    """The model's answer at `x`."""
    import torch
    from torch.nn.functional import softplus

    with torch.no_grad():
        found = model(x)
        return Attacked(found.argmax(1) == y, softplus(margin(found, y)), x)


def _look_and_climb(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Attacked, Tensor]:
    """The model's answer at `x` and the gradient of the margin there; zero where it is not finite: no direction."""
    import torch
    from torch.nn.functional import softplus

    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        found = model(leaf)
        height = margin(found, y)
        # a model that quantises its inputs may not be connected to them at all
        gradient = torch.autograd.grad(height.sum(), leaf, allow_unused=True)[0] if height.requires_grad else None
    seen = Attacked(found.argmax(1) == y, softplus(height.detach()), x)
    if gradient is None:
        return seen, torch.zeros_like(x)
    finite = torch.isfinite(gradient).flatten(1).all(1)
    return seen, torch.where(_per_row(finite, x), gradient, 0.0)


def _worse(first: Attacked, second: Attacked, rows: Tensor | None = None) -> Attacked:
    """The worse of two answers for every row; `second` may be that of some `rows` only."""
    import torch

    if rows is not None and len(rows) < len(first.right):
        worst = Attacked(*(values.clone() for values in first))
        some = _worse(Attacked(*(values[rows] for values in first)), second)
        for values, new in zip(worst, some, strict=True):
            values[rows] = new
        return worst
    larger = second.loss > first.loss
    return Attacked(
        first.right & second.right,
        torch.maximum(first.loss, second.loss),
        torch.where(_per_row(larger, first.x), second.x, first.x),
    )


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    radius: float,
    norm: str,
    space: Space,
    generator: torch.Generator,
    *,
    steps: int = 20,
    step: float = 0.25,
    restarts: int = 1,
    known: Attacked | None = None,
    stop: bool = False,
) -> Attacked:
    """Projected gradient ascent from a random start in the ball: `d <- P(d + step r u)`, u the steepest direction.

    u is the sign of the gradient (linf) or the gradient over its length (l2), P the projection on the ball of radius r
    and the box. A row is right if it is at `x` and at every point visited in every restart. `known`: what is known of these
    rows already, by default their answer at `x`. `stop`: leave a row alone once it is misled, which changes no row's
    `right`, only its `loss`, that then is the largest until it was misled. Reference: Madry et al. 2018,
    arXiv:1706.06083. Deviation: climbs `margin`, the same direction as cross-entropy; all points count, not only the last.
    """
    rule, space = NORMS[norm], space.to(x)
    with evaluating(model):
        worst = _look(model, x, y) if known is None else known
        for _ in range(restarts):
            # drawn for all rows: a row's start does not depend on what happens to others
            moved = space.move(x, radius * rule.inside(x, generator))
            rows = _left(worst.right, stop)
            start, label, moved = x[rows], y[rows], moved[rows]
            for _ in range(steps):
                if not len(rows):
                    break
                seen, gradient = _look_and_climb(model, moved, label)
                worst = _worse(worst, seen, rows)
                if stop and not bool(seen.right.all()):
                    left = _left(seen.right, stop)
                    rows, start, label = rows[left], start[left], label[left]
                    moved, gradient = moved[left], gradient[left]
                change = space.change(start, moved) + step * radius * rule.direction(gradient * space.scale)
                moved = space.move(start, rule.project(change, radius))
            if len(rows):
                worst = _worse(worst, _look(model, moved, label), rows)
    return worst


def _left(right: Tensor, stop: bool) -> Tensor:
    """Rows that are still attacked."""
    import torch

    return right.nonzero().squeeze(1) if stop else torch.arange(len(right), device=right.device)


def fgsm(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    radius: float,
    norm: str,
    space: Space,
    *,
    known: tuple[Attacked, Tensor] | None = None,
) -> Attacked:
    """One step of length r in the steepest direction at `x`. Reference: Goodfellow et al. 2015, arXiv:1412.6572.

    `known`: answer and gradient at `x`, if they are. Deviation: for l2 the step is the gradient over its length; the
    answer at `x` counts as well.
    """
    space = space.to(x)
    with evaluating(model):
        clean, gradient = _look_and_climb(model, x, y) if known is None else known
        moved = space.move(x, radius * NORMS[norm].direction(gradient * space.scale))
        return _worse(clean, _look(model, moved, y))


def noise(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    radius: float,
    norm: str,
    space: Space,
    generator: torch.Generator,
    *,
    known: Attacked | None = None,
) -> Attacked:
    """The worst of `NOISE_DRAWS` random changes of full radius: what a blind attack of the same size does.

    `known`: the answer at `x`, if it is.
    """
    space = space.to(x)
    with evaluating(model):
        worst = _look(model, x, y) if known is None else known
        for _ in range(NOISE_DRAWS):
            moved = space.move(x, radius * NORMS[norm].surface(x, generator))
            worst = _worse(worst, _look(model, moved, y))
    return worst


@dataclass(frozen=True, kw_only=True)
class Robustness(Result):
    """What an attacker who knows the model can do with small changes of the input.

    headline (main norm and radius): `robust accuracy`, `lost to the attack` (right before, wrong under attack); with a
    twin also `twin robust accuracy`, `cost` (private - twin) and `excess lost` (private - twin).
    Guarantee: an attack finds failures, it cannot rule them out: robust accuracy is an upper limit, and only worth as
    much as the checks that came out well. Reference: Carlini et al. 2019, arXiv:1902.06705 (checks).
    """

    kind: ClassVar[str] = "robustness"
    title: ClassVar[str] = "How easily it is misled"
    version: ClassVar[int] = 2

    @property
    def has_twin(self) -> bool:
        """Was there a non-private model to compare with?"""
        return "twin" in self._main_point()["accuracy"]

    @property
    def norms(self) -> list[str]:
        """Norms of the attack, the main one first."""
        return list(self.values["sweep"])

    def sweep(self, norm: str | None = None) -> list[dict[str, Any]]:
        """One entry per radius, 0 first: `radius`, and estimates of `accuracy`, `loss`, `fgsm` and `noise` by model.

        `loss` is the mean largest loss of the rows that are attacked to the end, whether misled or not.
        """
        return self.values["sweep"][norm or self.norms[0]]

    def parts(self, by: str = "class", norm: str | None = None) -> list[Part]:
        """The classes, or the groups of a column, that are large enough, attacked with the main radius."""
        return [Part(**raw) for raw in self.values["parts"][norm or self.norms[0]] if raw["by"] == by]

    @property
    def partitions(self) -> list[str]:
        """`class`, then the names of the group columns."""
        return list(self.values["extremes"][self.norms[0]])

    @property
    def checks(self) -> list[dict[str, Any]]:
        """Does the attack work? `model`, `norm`, `check`, `passed` and `found` (in words)."""
        return self.values["checks"]

    def _main_point(self, norm: str | None = None) -> dict[str, Any]:
        norm = norm or self.norms[0]
        return next(point for point in self.sweep(norm) if point["radius"] == self.settings["radius"][norm])

    def plot(self, ax: Axes) -> Axes:
        """Accuracy against radius under the main norm, with intervals: private filled, twin hollow."""
        return self._plot_sweep(ax, self.norms[0])

    def _plot_sweep(self, ax: Axes, norm: str) -> Axes:
        sweep = self.sweep(norm)
        radii = [point["radius"] for point in sweep]
        looks = {"private": (PRIVATE, "o", PRIVATE), "twin": (TWIN, "D", ax.get_facecolor())}
        for which in ("twin", "private"):
            if which not in sweep[0]["accuracy"]:
                continue
            colour, marker, face = looks[which]
            found = [point["accuracy"][which] for point in sweep]
            ax.fill_between(
                radii,
                [100 * e.low for e in found],
                [100 * e.high for e in found],
                color=colour,
                alpha=0.18,
                linewidth=0,
            )
            label = {"private": "private model", "twin": "twin"}[which]
            values = [100 * e.value for e in found]
            ax.plot(radii, values, marker=marker, color=colour, markerfacecolor=face, markersize=6, label=label)
        noisy = [100 * point["noise"]["private"].value for point in sweep]
        ax.plot(radii, noisy, color=INK, linestyle=":", linewidth=1.5, label="private, random noise")
        ax.axvline(self.settings["radius"][norm], color=INK, linewidth=0.8, linestyle="--")
        ax.set_xticks(radii, labels=_tick_labels(radii, norm), parse_math=False)
        ax.set_ylim(-3, 103)
        ax.legend(frameon=False, labelcolor=INK, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        return dress(ax, f"radius ({_SIGN[norm]}{self._unit_in_words()})", "accuracy under attack, %")

    def _unit_in_words(self) -> str:
        return ", share of the input range" if self.settings["scale_is_range"] else ""

    def _plot_parts(self, ax: Axes, by: str, norm: str) -> Axes:
        parts = self._lowest_last(by, norm)[-MOST_ROWS:]
        dots(ax, [part.accuracy for part in parts])
        name_rows(ax, [part.name for part in parts])
        ax.set_xlim(-1, 101)
        return dress(ax, f"accuracy under attack by {by}, %")

    def _lowest_last(self, by: str, norm: str) -> list[Part]:
        return sorted(self.parts(by, norm), key=lambda part: -part.accuracy["private"].value)

    def figures(self) -> list[Figure]:
        """Accuracy against radius for each norm; classes and groups at the main radius of each norm."""
        found = []
        both = "private model (filled) and twin (hollow)" if self.has_twin else "private model"
        for norm in self.norms:
            words = "; ".join(
                f"radius {_radius(point['radius'], norm)}: {shares_in_words(point['accuracy'])}"
                for point in self.sweep(norm)
            )
            caption = (
                f"Accuracy of the {both} under {_SIGN[norm]} attack, by radius; the dashed line is the main radius"
            )
            found.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_sweep, norm=norm), 8))
            for by in self.partitions:
                count, parts = len(self.parts(by, norm)), self._lowest_last(by, norm)[-MOST_ROWS:]
                if not parts:
                    continue
                words = "; ".join(f"{part.name}: {shares_in_words(part.accuracy)}" for part in reversed(parts))
                main = _radius(self.settings["radius"][norm], norm)
                which = several(by) + (f" (the lowest {len(parts)} of {count})" if count > len(parts) else "")
                caption = f"Under {_SIGN[norm]} attack of radius {main}: {both}, {which}, lowest on top"
                draw = partial(self._plot_parts, by=by, norm=norm)
                found.append(Figure(caption, f"{caption}. {words}.", draw, len(parts)))
        return found

    def sentences(self) -> list[str]:
        """What the attack does and what it cost; who is misled most; whether the attack can be trusted."""
        said = []
        for norm in self.norms:
            point, clean = self._main_point(norm), self.sweep(norm)[0]["accuracy"]["private"]
            own = point["accuracy"]["private"]
            said.append(
                f"Changes of at most {_radius(point['radius'], norm)} ({_SIGN[norm]}{self._unit_in_words()}) that are "
                f"made to mislead leave the private model right on {percent(own)} of "
                f"{rows_in_words(self.settings['rows'], own.n)} ({level_of(own)} interval "
                f"{percent_interval(own)}); without them it is right on {percent(clean)}."
            )
            if self.has_twin:
                said.append(f"Its non-private twin keeps {percent(point['accuracy']['twin'])}: {self._cost(norm)}")
            for by in self.partitions:
                said += self._extremes_in_words(by, norm)
        if self.settings["rows"] < self.settings["rows_of_data"]:
            said.append(
                f"{self.settings['rows']:,} of {self.settings['rows_of_data']:,} rows, drawn at random, were attacked."
            )
        failed = [check for check in self.checks if not check["passed"]]
        said += [
            f"Warning: the attack on the {check['model']} model ({_SIGN[check['norm']]}) fails a check, {check['check']} "
            f"({check['found']}): the model may be weaker than these figures say."
            for check in failed
        ]
        if not failed:
            said.append(
                "The attack passes its checks, so these figures are worth something; they are still upper limits, "
                "another attack may do more."
            )
        return said

    def _cost(self, norm: str) -> str:
        cost = self._main_point(norm)["accuracy"]["difference"]
        if not cost.excludes_zero:
            return f"a difference that chance can explain ({points(cost)} points, interval {points_interval(cost)})."
        verb = "cost" if cost.value < 0 else "gained"
        return f"privacy {verb} {points(cost).lstrip('−+')} points under attack (interval {points_interval(cost)})."

    def _extremes_in_words(self, by: str, norm: str) -> list[str]:
        found, said = self.values["extremes"][norm][by], []
        if "worst" in found:
            said.append(
                f"{titled(by)} {found['worst']} is misled most: {percent(found['lowest'])} stay right; best and worst are "
                f"{points(found['gap']).lstrip('+')} points apart."
            )
        if norm == self.norms[0]:
            said += hidden_in_words(found, several(by), self.settings["smallest_part"])
        return said

    def tables(self) -> list[Table]:
        """The sweep of each norm, classes and groups at its main radius, and the checks."""
        found = []
        for norm in self.norms:
            level = level_of(self._main_point(norm)["accuracy"]["private"])
            both = ["twin", "private − twin"] if self.has_twin else []
            rows = [
                [
                    _radius(point["radius"], norm),
                    *accuracy_cells(point["accuracy"]),
                    *(share_cell(point[attack]["private"]) for attack in ("fgsm", "noise")),
                    fixed_cell(point["loss"]["private"]),
                ]
                for point in self.sweep(norm)
            ]
            found.append(
                Table(
                    f"Accuracy in % under {_SIGN[norm]} attack, {level} intervals",
                    ["radius", "private", *both, "private, one step", "private, random noise", "private, loss"],
                    rows,
                )
            )
            main = _radius(self.settings["radius"][norm], norm)
            rows = [
                [row_name(part), f"{part.n:,}", *accuracy_cells(part.accuracy)]
                for part in (Part(**raw) for raw in self.values["parts"][norm])
            ]
            caption = f"Accuracy in % under {_SIGN[norm]} attack of radius {main}, {level} intervals"
            found.append(Table(caption, ["", "people", "private", *both], rows))
        rows = [
            [check["check"], _SIGN[check["norm"]], check["model"], "yes" if check["passed"] else "NO", check["found"]]
            for check in self.checks
        ]
        return [*found, Table("Does the attack work?", ["check", "norm", "model", "passed", "found"], rows)]


def robustness(
    model: nn.Module,
    data: Data,
    *,
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    level: float = LEVEL,
    norms: Sequence[str] = ("linf", "l2"),
    radius: Mapping[str, float] = RADIUS,
    factors: Sequence[float] = FACTORS,
    steps: int = 20,
    step: float = 0.25,
    restarts: int = 1,
    box: tuple[Numbers, Numbers] | None = None,
    scale: Numbers | None = None,
    rows: int | None = ROWS,
) -> Robustness:
    """Accuracy under PGD, one gradient step (FGSM) and random noise, for a sweep of radii, by class and by group.

    `radius` is the main one of each norm, `factors` times it the sweep (must hold 1); the first of `norms` makes the
    headline. `step` is a share of the radius: 0.25 of 8/255 is the usual 2/255. Changes stay in `box`, the inputs that
    can occur, as the model sees them (default: the range of `data`). Radii count in units of `scale` model-input units,
    one number or one per channel; the default is the box's width, so that a radius is a share of the input range and
    8/255 means eight grey levels of images whose pixels fill their range, normalised or not. MNIST divided by 0.3081:
    `scale=1 / 0.3081`.

    `rows` of the data, drawn at random, are attacked (None: all); both models see the same rows, starts and noise.
    Accuracy has Wilson's interval, loss Student's t (both by person where people have several rows); differences are
    paired. The checks are part of the result.
    All rows are attacked until they are misled, a random 256 of them to the end: those give the loss and the
    attack without limit. A row that a smaller change misleads counts as misled at every larger radius.
    The generator draws rows, starts and noise (default: seed 0). Does not retrain; 640 rows, two norms, four radii, 20
    steps and a network like LeNet take about 20 seconds of processor time per model, and 88 % is then known to within
    2.6 points.
    """
    import torch

    _validate(norms, radius, factors, steps, step, restarts, rows)
    generator = np.random.default_rng(0) if generator is None else generator
    models = {"private": model} | ({} if twin is None else {"twin": twin})
    space = Space.of(data.x, box, scale)
    # in random order, also if all are taken: the first chunk stands for all
    chosen = data.take(torch.from_numpy(generator.permutation(len(data))[:rows]))
    for which, network in models.items():
        _refuse_unattackable(logits(network, chosen), which)
    radii = {norm: [0.0, *sorted(radius[norm] * factor for factor in factors)] for norm in norms}
    seed, owner = int(generator.integers(2**62)), owners(chosen)
    raw = _attack_all(models, chosen, radii, space, seed, progress, steps=steps, step=step, restarts=restarts)

    sweep: dict[str, list[dict[str, Any]]] = {
        norm: [
            {"radius": r}
            | {name: _by_model(raw, norm, place, name, level, owner) for name in ("accuracy", "loss", "fgsm", "noise")}
            for place, r in enumerate(radii[norm])
        ]
        for norm in norms
    }
    main = {norm: radii[norm].index(radius[norm]) for norm in norms}
    split = {norm: _parts(chosen, {which: found[norm].pgd[main[norm]].right for which, found in raw.items()}, level)
             for norm in norms}  # fmt: skip
    first = norms[0]
    lost = {which: found[first].pgd[0].right & ~found[first].pgd[main[first]].right for which, found in raw.items()}
    return Robustness(
        headline=_headline(sweep[first][main[first]]["accuracy"], shares(lost, level, owner)),
        values={
            "sweep": sweep,
            "parts": {norm: split[norm][0] for norm in norms},
            "extremes": {norm: split[norm][1] for norm in norms},
            "checks": [
                check | {"model": which, "norm": norm}
                for which, found in raw.items()
                for norm in norms
                for check in _checks(found[norm])
            ],
        },
        settings={
            "rows": len(chosen),
            "rows_of_data": len(data),
            "rows_to_the_end": min(len(chosen), CHUNK),
            "level": level,
            "smallest_part": SMALLEST,
            "radius": {norm: float(radius[norm]) for norm in norms},
            "steps": steps,
            "step": step,
            "restarts": restarts,
            "noise_draws": NOISE_DRAWS,
            "box": [space.low.flatten().tolist(), space.high.flatten().tolist()],
            "box_is_range_of_data": box is None,
            "scale": space.scale.flatten().tolist(),
            "scale_is_range": scale is None,
        },
        status=status_of(data, twin),
    )


def _validate(
    norms: Sequence[str],
    radius: Mapping[str, float],
    factors: Sequence[float],
    steps: int,
    step: float,
    restarts: int,
    rows: int | None,
) -> None:
    if isinstance(norms, str) or not norms or len(set(norms)) < len(norms) or not set(norms) <= set(NORMS):
        raise ConfigError(f"norms {norms!r}: give a list of one or more of {', '.join(NORMS)}, each once.")
    for norm in norms:
        if norm not in radius or not (0 < radius[norm] < math.inf):
            raise ConfigError(f"radius {radius!r}: needs a number above 0 for the norm {norm!r}.")
    if 1 not in factors or not all(0 < factor < math.inf for factor in factors) or len(set(factors)) < len(factors):
        raise ConfigError(f"factors {list(factors)!r}: different numbers above 0, with 1 (the main radius) among them.")
    for name, value in {"steps": steps, "restarts": restarts, "rows": 1 if rows is None else rows}.items():
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} {value!r}: must be a whole number above 0.")
    if not 0 < step < math.inf:
        raise ConfigError(f"step {step!r}: must be above 0; it is a share of the radius.")


def _refuse_unattackable(found: Tensor, which: str) -> None:
    import torch

    if found.shape[1] < 2:
        raise DataError(f"the {which} model knows {found.shape[1]} class: it takes two to be misled.")
    if not bool(torch.isfinite(found).all()):
        raise DataError(f"the {which} model gives outputs that are not finite: nothing can be said of its robustness.")


class _Answers(NamedTuple):
    """Of every row: right under attack; and the largest loss of those that are attacked to the end, the first chunk."""

    right: np.ndarray
    loss: np.ndarray


@dataclass(frozen=True)
class _Campaign:
    """All attacks of one norm on one model: by radius (0 first), without limit, and where there is no gradient."""

    radii: list[float]
    pgd: list[_Answers]
    fgsm: list[_Answers]
    noise: list[_Answers]
    unbounded: np.ndarray
    flat: np.ndarray


def _attack_all(
    models: dict[str, nn.Module],
    data: Data,
    radii: dict[str, list[float]],
    space: Space,
    seed: int,
    progress: bool,
    **settings: Any,
) -> dict[str, dict[str, _Campaign]]:
    """Both models and all norms; every model sees the same random numbers."""
    found: dict[str, dict[str, _Campaign]] = {}
    with Bar(progress, sum(len(r) for r in radii.values()) * len(models), "attacks") as advance:
        for which, model in models.items():
            found[which] = {
                norm: _campaign(model, data, norm, some, space, seed, advance, **settings)
                for norm, some in radii.items()
            }
    return found


def _campaign(
    model: nn.Module,
    data: Data,
    norm: str,
    radii: list[float],
    space: Space,
    seed: int,
    advance: Advance,
    **settings: Any,
) -> _Campaign:
    """Every attack at every radius; a row that a smaller change misleads is misled at all larger radii.

    The first chunk is attacked to the end, for its loss; other rows are left alone once they are misled.
    """
    import torch

    device = device_of(model)
    chunks = [(x.to(device), y.to(device)) for x, y in zip(data.x.split(CHUNK), data.y.split(CHUNK), strict=True)]
    with evaluating(model):
        known = [_look_and_climb(model, x, y) for x, y in chunks]
    clean = [answer for answer, _ in known]
    results = {name: [_answers(clean)] for name in ("pgd", "fgsm", "noise")}
    worst = clean
    advance()
    for radius in radii[1:]:
        given: dict[str, Any] = {"radius": radius, "norm": norm, "space": space}
        draws = torch.Generator().manual_seed(seed)
        started = [clean[0], *worst[1:]]
        seen = [
            pgd(model, x, y, generator=draws, known=at, stop=place > 0, **given, **settings)
            for place, ((x, y), at) in enumerate(zip(chunks, started, strict=True))
        ]
        worst = [now._replace(right=now.right & before.right) for now, before in zip(seen, worst, strict=True)]
        results["pgd"].append(_answers(worst))
        pairs = list(zip(chunks, known, strict=True))
        results["fgsm"].append(_answers([fgsm(model, x, y, known=at, **given) for (x, y), at in pairs]))
        blind = [noise(model, x, y, generator=draws, known=at, **given) for (x, y), (at, _) in pairs]
        results["noise"].append(_answers(blind))
        advance()
    whole = ((space.high - space.low) / space.scale).expand(data.x[:1].shape)
    widest = float(NORMS[norm].size(whole))
    draws = torch.Generator().manual_seed(seed)
    x, y = chunks[0]
    limitless = pgd(model, x, y, widest, norm, space, draws, known=clean[0], stop=True, **settings)
    flat = torch.cat([(gradient == 0).flatten(1).all(1) for _, gradient in known])
    return _Campaign(radii, **results, unbounded=limitless.right.cpu().numpy(), flat=flat.cpu().numpy())


def _answers(chunks: Sequence[Attacked]) -> _Answers:
    import torch

    return _Answers(torch.cat([chunk.right for chunk in chunks]).cpu().numpy(), chunks[0].loss.cpu().numpy())


def _checks(found: _Campaign) -> list[dict[str, Any]]:
    """Does the attack work? Each check with what was found.

    Reference: Athalye et al. 2018, arXiv:1802.00420, section 3.1; Carlini et al. 2019, arXiv:1902.06705, section 5.
    """
    losses = [float(answers.loss.mean()) for answers in found.pgd]
    kept = {
        name: np.array([answers.right.mean() for answers in getattr(found, name)]) for name in ("pgd", "fgsm", "noise")
    }
    blind = [float(answers.loss.mean()) for answers in found.noise]
    flat, unbounded = float(found.flat.mean()), float(found.unbounded.mean())
    rises = all(after >= before - POINT * max(before, 1.0) for before, after in pairwise(losses))
    over_step = float((kept["pgd"] - kept["fgsm"]).max())
    over_noise = float((kept["pgd"] - kept["noise"]).max())
    stronger = over_noise <= POINT and all(a > b for a, b in zip(losses[1:], blind[1:], strict=True))
    return [
        {
            "check": "loss rises with the radius",
            "passed": rises,
            "found": "mean loss " + ", ".join(number(loss) for loss in losses),
        },
        {
            "check": "at least as strong as one step",
            "passed": over_step <= POINT,
            "found": f"leaves at most {100 * max(over_step, 0.0):.1f} points more right than one step",
        },
        {
            "check": "stronger than random noise",
            "passed": stronger,
            "found": f"at the largest radius loss {number(losses[-1])} against {number(blind[-1])}, "
            f"accuracy {100 * kept['pgd'][-1]:.1f} % against {100 * kept['noise'][-1]:.1f} %",
        },
        {
            "check": "gradients are not masked",
            "passed": flat <= STUCK,
            "found": f"{100 * flat:.1f} % of rows have no gradient",
        },
        {
            "check": "without a limit hardly anyone stays right",
            "passed": unbounded <= STUCK,
            "found": f"{100 * unbounded:.1f} % of {len(found.unbounded)} rows stay right anywhere in the box",
        },
    ]


def _by_model(
    raw: dict[str, dict[str, _Campaign]], norm: str, place: int, name: str, level: float, owner: np.ndarray | None
) -> dict[str, Estimate]:
    """Estimates under `private`, and with a twin `twin` and `difference`."""
    attack = name if name in ("fgsm", "noise") else "pgd"
    answers = {which: getattr(found[norm], attack)[place] for which, found in raw.items()}
    if name == "loss":
        first = None if owner is None else owner[: len(answers["private"].loss)]
        return means({which: a.loss for which, a in answers.items()}, level, 0.0, first)
    return shares({which: a.right for which, a in answers.items()}, level, owner)


def _parts(data: Data, hits: dict[str, np.ndarray], level: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Everyone, each class and each group that is large enough; and the extremes."""
    owner = owners(data)
    part = partial(part_of, outcomes={which: {"hits": of} for which, of in hits.items()}, level=level, owner=owner)
    parts, found = divided(data, named_parts(data), part, lambda _, shown: extremes(hits, shown, level, owner=owner))
    return [vars(each) for each in [part("everyone", "all", np.arange(len(data))), *parts]], found


def _headline(accuracy: dict[str, Estimate], lost: dict[str, Estimate]) -> dict[str, Estimate]:
    found = {"robust accuracy": accuracy["private"], "lost to the attack": lost["private"]}
    if "twin" in lost:
        found |= {
            "twin robust accuracy": accuracy["twin"],
            "cost": accuracy["difference"],
            "excess lost": lost["difference"],
        }
    return found


def _radius(value: float, norm: str) -> str:
    """`8/255` where the radius is a whole number of grey levels, else its digits."""
    levels = 255 * value
    if norm == "linf" and value and abs(levels - round(levels)) < 1e-6:
        return f"{round(levels)}/255"
    return number(value) if value else "0"


def _tick_labels(radii: list[float], norm: str) -> list[str]:
    """Every radius has its tick; labels that would touch the next one are left out, the larger stays."""
    room = max(radii) / 7
    labels, last = [], math.inf
    for value in reversed(radii):
        labels.append(_radius(value, norm) if last - value >= room else "")
        last = value if labels[-1] else last
    return labels[::-1]


AUDIT = Audit("robustness", robustness, takes=TAKES, usual=True, classes=True)
