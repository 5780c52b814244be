"""Clipping bias: how far clipping turns the mean gradient, who is clipped, and which bounds on it hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from noisewise._moved import old_names
from noisewise.audits.audit import Audit
from noisewise.audits.gradients import (
    Measured,
    Moments,
    chosen_loss,
    chosen_rule,
    clipped_units,
    gradient_status,
    group_labels,
    layout_of,
    measure,
    partitions,
)
from noisewise.audits.outputs import check_subject
from noisewise.audits.people import SMALLEST, titled
from noisewise.audits.result import FAINT, INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import Bar, dot, dress, fixed_cell, name_rows, share_cell
from noisewise.errors import ConfigError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate, check_level
from noisewise.theory.watson2023 import corrected_bound, one_sided_bound, printed_bound
from noisewise.wording import fixed, number, percent
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.clipping import Clip
    from noisewise.data import Data
    from noisewise.losses import LossFn
    from noisewise.mechanism import Mechanism
    from noisewise.support import Support

QUANTILES = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)
BOUNDS = {
    "printed": "1 − R/2", "corrected": "(1 − R)/(1 + R)", "one-sided": "all gradients point forward", "general": "general",
}  # fmt: skip
ROUNDING = 1e-9  # by which a bound that holds in real numbers may be missed in double precision


@dataclass(frozen=True)
class Part:
    """A class or group: how often and how much it is clipped, and where clipping turns the step as seen from it.

    own: cosine of the part's clipped and true mean gradient; true_step, clipped_step: cosine of everyone's true and
    clipped mean with the part's true mean, so a clipped step that serves the part worse has the smaller one.
    """

    by: str
    name: str
    n: int
    clipped: Estimate
    factor: Estimate
    own: float
    true_step: float
    clipped_step: float


@dataclass(frozen=True)
class Bound:
    """A lower bound on the projection: its value, whether its condition is met, and whether it holds."""

    value: float
    applies: bool
    holds: bool


@dataclass(frozen=True)
class Batch:
    """A random batch taken for itself: R, alignment and projection, and the bounds on these.

    `debiased_ratio` is None where the batch's mean cannot be told from 0.
    """

    ratio: float
    debiased_ratio: float | None
    alignment: float
    printed: float
    corrected: float
    projection: float
    general: float


@dataclass(frozen=True)
class Hidden:
    """Parts that are too small to be shown, and the people in them."""

    parts: int
    people: int


@dataclass(frozen=True)
class Values:
    """Figures of the mean gradients; the bounds by name; random batches; parts, and what is hidden of each partition."""

    projection: float
    alignment: float
    mean_norm: float
    clipped_mean_norm: float
    norm_quantiles: dict[str, float]
    bounds: dict[str, Bound]
    batches: list[Batch]
    parts: list[Part]
    hidden: dict[str, Hidden]


@dataclass(frozen=True, kw_only=True)
class ClippingBias(Result):
    """How clipping changes the mean gradient, and whom it shortens.

    headline: `R`, `cosine` (of clipped and true mean gradient; left out where one of them cannot be told from 0),
    `clipped` (share of units), `factor` (mean); with a twin `twin R` and `twin cosine`, the same at the twin's weights.
    values: `bounds` on `<c, gbar/||gbar||>` with their values, whether they apply and hold; `batches`, the same checks on
    random batches in the limit of a small bound, where the printed theorem's condition is met; `parts`.
    Reference: Watson et al. 2023, arXiv:2311.06839, section 3 (R). Deviation: their Theorem 3.2 is false and shown only
    beside bounds that are proven; R of a sample is debiased.
    """

    kind: ClassVar[str] = "clipping-bias"
    title: ClassVar[str] = "How clipping turns the gradient"

    values: Values

    @property
    def partitions(self) -> list[str]:
        """`class` (unless it is a regression), then the group columns."""
        return list(self.values.hidden)

    def parts(self, by: str = "class") -> list[Part]:
        """The classes, or the groups of a column, that are large enough to be shown."""
        return [part for part in self.values.parts if part.by == by]

    @property
    def bounds(self) -> dict[str, Bound]:
        """`printed`, `corrected`, `one-sided`, `general`."""
        return self.values.bounds

    @property
    def batches(self) -> list[Batch]:
        """Random batches, each taken for itself."""
        return self.values.batches

    def printed_holds(self) -> Estimate | None:
        """In which share of batches `1 - R/2` is kept; None without batches."""
        kept = self._kept("printed")
        return intervals.share(kept, self.settings["level"]) if kept else None

    def plot(self, ax: Axes) -> Axes:
        """Alignment of random batches over their R, with the printed and the proven lower bound."""
        ratios = [batch.ratio for batch in self.batches] or [self.headline["R"].value]
        low, high = min([*ratios, 0.05]) / 1.5, max([*ratios, 3.0]) * 1.5
        grid = np.geomspace(low, high, 200)
        ax.axhline(0, color=FAINT, linewidth=1)
        printed = [max(printed_bound(1, r), -1.2) for r in grid]
        ax.plot(grid, printed, color=TWIN, linestyle="--", label="1 − R/2")
        ax.plot(grid, [corrected_bound(1, r) for r in grid], color=INK, label="(1 − R)/(1 + R), proven")
        if self.batches:
            alignments = [batch.alignment for batch in self.batches]
            ax.plot(ratios, alignments, "o", color=PRIVATE, markersize=5, label="random batches")
        ax.set_xscale("log")
        ax.set_ylim(-1.1, 1.1)
        ax.legend(frameon=False, fontsize="small", loc="lower left", labelcolor=INK)
        return dress(ax, "R of the batch", "mean cosine with the batch's mean")

    def _plot_parts(self, ax: Axes, by: str) -> Axes:
        parts = sorted(self.parts(by), key=lambda part: part.clipped.value)
        for row, part in enumerate(parts):
            dot(ax, part.clipped, row, PRIVATE)
        name_rows(ax, [part.name for part in parts])
        ax.set_xlim(-2, 102)
        return dress(ax, f"units that are clipped, by {by}, %")

    def _plot_turn(self, ax: Axes, by: str) -> Axes:
        parts = sorted(self.parts(by), key=lambda part: part.true_step - part.clipped_step)
        for row, part in enumerate(parts):
            ax.plot([part.true_step, part.clipped_step], [row, row], color=FAINT, linewidth=2.5, zorder=1)
            face = ax.get_facecolor()
            ax.plot(
                [part.true_step], [row], "D", color=TWIN, markerfacecolor=face, markersize=6, label="without clipping"
            )
            ax.plot([part.clipped_step], [row], "o", color=PRIVATE, markersize=6, label="clipped")
        ax.axvline(0, color=INK, linewidth=1)
        name_rows(ax, [part.name for part in parts])
        return dress(ax, f"cosine of the step with what each {by} needs")

    def figures(self) -> list[Figure]:
        """The bounds; who is clipped; where the step turns."""
        figures = [
            Figure("Alignment of random batches and its lower bounds", " ".join(self.sentences()[:3]), self.plot, 9)
        ]
        for by in self.partitions:
            rows = len(self.parts(by))
            if not rows:
                continue
            words = "; ".join(f"{part.name}: {percent(part.clipped)}" for part in self.parts(by))
            caption = f"Share of units that are clipped, by {by}, most on top"
            figures.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_parts, by=by), rows))
            words = "; ".join(
                f"{part.name}: {fixed(part.true_step)} without, {fixed(part.clipped_step)} with"
                for part in self.parts(by)
            )
            caption = f"Whom the clipped step (filled) serves worse than the true one (hollow), by {by}: worst on top"
            figures.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_turn, by=by), rows))
        return figures

    def sentences(self) -> list[str]:
        """How many are clipped, how far the step turns, which bounds hold, who is clipped most."""
        ratio, clipped, cosine = self.headline["R"], self.headline["clipped"], self.headline.get("cosine")
        turned = (
            "The clipped or the true mean gradient cannot be told from 0, so there is no angle between them"
            if cosine is None
            else f"The clipped mean gradient has cosine {_with_interval(cosine)} with the true one (1: clipping does not "
            "turn it)"
        )
        sentences = [
            f"{percent(clipped)} of {clipped.n:,} units are clipped; on average a gradient keeps "
            f"{100 * self.headline['factor'].value:.0f} % of its length.",
            f"{turned}; gradients differ from their mean by R = {_with_interval(ratio)} of its squared length.",
        ]
        if (kept := self.printed_holds()) is not None:
            sentences.append(
                f"Of {kept.n} random batches {sum(self._kept('corrected'))} keep the lower bound (1 − R)/(1 + R) on the "
                f"alignment, {sum(batch.projection >= batch.general - ROUNDING for batch in self.batches)} the general one "
                f"and {sum(self._kept('printed'))} the estimate 1 − R/2."
            )
        for by in self.partitions:
            parts = self.parts(by)
            if len({part.clipped.value for part in parts}) > 1:
                most, least = (pick(parts, key=lambda part: part.clipped.value) for pick in (max, min))
                sentences.append(
                    f"{titled(by)} {most.name} is clipped most ({percent(most.clipped)}), "
                    f"{least.name} least ({percent(least.clipped)})."
                )
            if (hidden := self.values.hidden[by]).parts:
                sentences.append(
                    f"{hidden.parts} part{'s' if hidden.parts > 1 else ''} by {by} with fewer than {SMALLEST} people each "
                    f"({hidden.people} people in all) not shown."
                )
        return sentences

    def _kept(self, name: Literal["printed", "corrected"]) -> list[bool]:
        """In which batches a bound on the alignment is kept."""
        return [batch.alignment >= getattr(batch, name) - ROUNDING for batch in self.batches]

    def tables(self) -> list[Table]:
        """The bounds; the parts."""
        level = level_of(self.headline["clipped"])
        rows = [
            [BOUNDS[name], number(bound.value), _yes(bound.applies), _yes(bound.holds)]
            for name, bound in self.bounds.items()
        ]
        parts = [
            [
                f"{part.by} {part.name}",
                f"{part.n:,}",
                share_cell(part.clipped),
                fixed_cell(part.factor),
                fixed(part.own),
                fixed(part.true_step),
                fixed(part.clipped_step),
            ]
            for by in self.partitions
            for part in self.parts(by)
        ]
        projection = number(self.values.projection)
        return [
            Table(f"Lower bounds on the clipped step's way in the true direction, {projection}",
                  ["bound", "value", "its condition is met", "holds"], rows),
            Table(f"Who is clipped, {level} intervals; cosines of mean gradients",
                  ["", "people", "clipped, %", "mean factor", "own, clipped", "step, true", "step, clipped"], parts),
        ]  # fmt: skip


def _yes(true: bool) -> str:
    return "yes" if true else "no"


def _with_interval(e: Estimate) -> str:
    if e.low == e.high:
        return number(e.value)
    return f"{number(e.value)} ({level_of(e)} interval {number(e.low)} to {number(e.high)})"


def clipping_bias(
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
    units: int | None = None,
    batches: int = 20,
    batch_size: int = 64,
    level: float = LEVEL,
) -> ClippingBias:
    """Compare the clipped mean gradient of `data` with the true one, at the model's weights.

    `R = mean ||g_i - gbar||^2 / ||gbar||^2`. Does not retrain; two passes over the gradients of all units, seconds to
    minutes. Gradients are those of evaluation mode, without augmentation. A person's class is that of the first row.

    Args:
        model: the released model.
        data: usually the training part; anything computed from it is private unless it is public.
        mechanism: says how gradients are clipped (the rule of the last step), or
        clip: the rule itself.
        loss_fn: `(model, batch) -> [batch]`; by default cross-entropy for classes, squared error for numbers.
        support: which coordinates learn, where the mechanism's changes from step to step.
        twin: a second model, measured at its own weights.
        generator: draws the units and the batches; a fixed one by default.
        progress: show a bar.
        units: measure a random sample of so many units, with debiased estimates; all by default.
        batches: random batches on which the published bound is checked, in the limit of a small bound.
        batch_size: of those.
        level: of the intervals.
    """
    import torch

    check_level(level)
    check_subject(data, private=model, twin=twin)
    rule, support = chosen_rule(mechanism, clip, support)
    loss = chosen_loss(loss_fn, data)
    draw = np.random.default_rng(0) if generator is None else generator
    index = _sample(data, units, draw)
    by_name = partitions(data, index)
    # places are people here, not rows
    shown = {by: {name: rows for name, rows in parts.items() if len(rows) >= SMALLEST} for by, parts in by_name.items()}
    flat = [(by, name, rows) for by, parts in shown.items() for name, rows in parts.items()]
    settings: dict[str, Any] = {"loss_fn": loss, "clip": rule, "support": support}
    batch_size = min(batch_size, data.units)
    work = 2 * len(index) * (1 if twin is None else 2) + 2 * batches * batch_size
    with Bar(progress, work) as advance:
        layout = layout_of(model, data, loss)
        groups = [rows for _, _, rows in flat]
        measured = measure(model, data, index, layout=layout, parts=groups, advance=advance, **settings)
        other = None if twin is None else measure(twin, data, index, advance=advance, **settings).moments
        checks = []
        for _ in range(batches):
            chosen = torch.from_numpy(draw.choice(data.units, batch_size, replace=False))
            checks.append(_check(measure(model, data, chosen, layout=layout, advance=advance, **settings).moments))
    moments = measured.moments
    clipped, factor = _clipped_and_factor(rule, data, index, moments)
    headline = {
        "R": moments.ratio(level),
        "cosine": moments.cosine(level),
        "clipped": intervals.share(clipped, level),
        "factor": intervals.mean(factor, level, floor=0.0),
    }
    if other is not None:
        headline |= {"twin R": other.ratio(level), "twin cosine": other.cosine(level)}
    headline = {name: e for name, e in headline.items() if not math.isnan(e.value)}
    parts = [
        Part(by, name, len(rows), intervals.share(clipped[rows], level), intervals.mean(factor[rows], level, floor=0.0),
             *_turns(measured, place))
        for place, (by, name, rows) in enumerate(flat)
    ]  # fmt: skip
    hidden = {
        by: Hidden(len(parts_of) - len(shown[by]), len(index) - sum(len(rows) for rows in shown[by].values()))
        for by, parts_of in by_name.items()
    }
    return ClippingBias(
        headline=headline,
        values=Values(
            projection=moments.projection,
            alignment=moments.alignment,
            mean_norm=moments.mean_norm,
            clipped_mean_norm=float(measured.clipped.norm()),
            norm_quantiles={f"{q:g}": float(np.quantile(moments.lengths, q)) for q in QUANTILES},
            bounds=_bounds(moments, rule),
            batches=checks,
            parts=parts,
            hidden=hidden,
        ),
        settings={
            "clip": repr(rule), "units": len(index), "population": data.units, "batches": batches,
            "batch_size": batch_size, "level": level, "smallest_part": SMALLEST,
        },
        status=gradient_status(data, twin),
    )  # fmt: skip


def _sample(data: Data, units: int | None, draw: np.random.Generator) -> Tensor:
    import torch

    if units is None or units == data.units:
        return torch.arange(data.units)
    if not 2 < units < data.units:
        raise ConfigError(f"units={units!r}: a whole number from 3 to the {data.units} units of the data, or None.")
    return torch.from_numpy(np.sort(draw.choice(data.units, units, replace=False)))


def _clipped_and_factor(rule: Clip, data: Data, units: Tensor, moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    """Was each unit clipped, and the share of its gradient's length that was kept."""
    import torch

    labels = group_labels(rule, data, units)
    norms, factors = torch.from_numpy(moments.norms), torch.from_numpy(moments.factors)
    clipped = clipped_units(rule, norms, factors, labels).numpy()
    lengths = moments.lengths
    # a gradient of length 0 has no length to keep: its own factor counts
    kept = np.divide(moments.clipped_lengths, lengths, out=moments.factors.mean(0), where=lengths > 0)
    return clipped, kept


def _check(moments: Moments) -> Batch:
    """A batch taken for itself: every inequality is about exactly these gradients."""
    ratio = moments.plain_ratio
    return Batch(
        ratio=ratio,
        debiased_ratio=value if math.isfinite(value := moments.debiased_ratio) else None,
        alignment=moments.alignment,
        printed=printed_bound(1.0, ratio),
        corrected=corrected_bound(1.0, ratio),
        projection=moments.projection,
        general=moments.general_bound,
    )


def _bounds(moments: Moments, rule: Clip) -> dict[str, Bound]:
    """All lower bounds on the projection, of the measured gradients themselves."""
    bound, ratio = rule.sensitivity, moments.plain_ratio
    full = moments.norms.shape[0] == 1 and bool(np.allclose(moments.clipped_lengths, bound, rtol=1e-6))
    forward = full and bool((moments.on_mean.sum(0) >= 0).all())
    projection = moments.projection
    bounds = {
        "printed": (printed_bound(bound, ratio), full),
        "corrected": (corrected_bound(bound, ratio), full),
        "one-sided": (one_sided_bound(bound, ratio), forward),
        "general": (moments.general_bound, True),
    }
    return {
        name: Bound(value, applies, holds=bool(projection >= value - ROUNDING * bound))
        for name, (value, applies) in bounds.items()
    }


def _turns(measured: Measured, part: int) -> tuple[float, float, float]:
    true, clipped = measured.own_means[part], measured.own_clipped[part]
    return _angle(clipped, true), _angle(measured.mean, true), _angle(measured.clipped, true)


def _angle(first: Tensor, second: Tensor) -> float:
    lengths = float(first.norm() * second.norm())
    return float(first @ second) / lengths if lengths > 0 else 0.0  # a mean of length 0 has no direction


AUDIT = Audit(
    "clipping-bias",
    clipping_bias,
    takes="Does not retrain; two passes over the gradients of all units, seconds to minutes.",
    needs=("mechanism", "loss_fn"),
    usual=True,
)

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
