"""Feature-to-noise ratio: what each class and group says in a step, against the noise that privacy adds to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from noisewise._moved import old_names
from noisewise.audits.audit import Audit
from noisewise.audits.exact_ratio import noise_of_a_step
from noisewise.audits.gradients import chosen_loss, chosen_rule, gradient_status, partitions
from noisewise.audits.outputs import check_subject
from noisewise.audits.part_gradients import PartGradients, part_gradients
from noisewise.audits.people import SMALLEST, Hidden
from noisewise.audits.result import INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import MOST_ROWS, Bar, cell, dots, dress, fixed_cell, name_rows, row_name, share_cell
from noisewise.clipping import Clip, Flat
from noisewise.errors import ConfigError, DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate, check_level
from noisewise.estimates.lengths import mean_length
from noisewise.wording import fixed, number, percent
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.data import Data
    from noisewise.losses import LossFn
    from noisewise.mechanism import Mechanism
    from noisewise.support import Support

TAKES = "Does not retrain; two passes over the gradients of all units, seconds to minutes."


@dataclass(frozen=True)
class Part:
    """A class, a group, a class in a group, or everyone: its voice in a step, in deviations of the step's noise.

    Args:
        by: `everyone`, `class`, a group column, or `class and` that column.
        name: of the part.
        n: people measured.
        share: phi, the part's share of the people.
        clipped: share of its people who are clipped.
        factor: mean share of a gradient's length that clipping leaves.
        feature: `||mean gradient|| / sigma_n`, the counterpart of FNR.
        kept: `||mean clipped gradient|| / sigma_n`.
        ratio: `phi ||mean clipped gradient|| / sigma_n`, the counterpart of phi Lambda FNR.
        whole: the same against the length of the whole noise vector, `sigma_n sqrt(coordinates)`.
        twin: `ratio` at the twin's weights.
    """

    by: str
    name: str
    n: int
    share: Estimate
    clipped: Estimate
    factor: Estimate
    feature: Estimate
    kept: Estimate
    ratio: Estimate
    whole: Estimate
    twin: Estimate | None = None

    @property
    def steps(self) -> float:
        """Steps in one direction until signal (adds as T) and noise (as sqrt T) are level: `1 / ratio^2`."""
        return self.ratio.value**-2 if self.ratio.value > 0 else math.inf


@dataclass(frozen=True)
class Extremes(Hidden):
    """The same of a partition with two parts to show or more: the names of the weakest and strongest, and their ratio."""

    weakest: str
    strongest: str
    lowest: Estimate
    ratio: Estimate | None


@dataclass(frozen=True)
class Values:
    """All parts that are shown, everyone first; of each partition what is hidden and extreme."""

    parts: list[Part]
    extremes: dict[str, Extremes | Hidden]


@dataclass(frozen=True, kw_only=True)
class FeatureNoise(Result):
    """Whose gradient stands out of the noise of a step, and why: size of the feature, clipping, number of people.

    headline: `everyone`, the ratio of all people together; for the classes (or, in a regression, the first group column)
    `weakest` and `weakest to strongest`.
    Guarantee: intervals are for people like these at these weights, each part's share given; those of the extremes allow
    for having picked them.
    Reference: Xu, Chen 2026, arXiv:2603.04881, Definition 3.3. Deviation: their ratio is about known features; here the
    mean gradient of a part stands for its feature.
    """

    kind: ClassVar[str] = "feature-noise"
    title: ClassVar[str] = "Whose signal stands out of the noise"

    values: Values

    @property
    def everyone(self) -> Part:
        """All people together."""
        return self.parts("everyone")[0]

    @property
    def partitions(self) -> list[str]:
        """`class` (unless it is a regression), the group columns, and classes within them."""
        return list(self.values.extremes)

    def parts(self, by: str = "class") -> list[Part]:
        """The parts that are large enough to be shown."""
        return [part for part in self.values.parts if part.by == by]

    def extremes(self, by: str = "class") -> Extremes | Hidden:
        """Weakest and strongest part, where there are two; how many parts and people are not shown."""
        return self.values.extremes[by]

    @property
    def has_twin(self) -> bool:
        """Was there a second model?"""
        return self.everyone.twin is not None

    def plot(self, ax: Axes) -> Axes:
        """Ratios of the first partition with intervals, weakest on top; the twin hollow."""
        return self._plot(ax, (self.partitions or ["everyone"])[0])

    def _plot(self, ax: Axes, by: str) -> Axes:
        parts = self._weakest_last(by)[-MOST_ROWS:]
        estimates = [{"private": part.ratio} | ({} if part.twin is None else {"twin": part.twin}) for part in parts]
        dots(ax, estimates, scale=1)
        ax.axvline(1, color=INK, linewidth=1)
        name_rows(ax, [part.name for part in parts])
        ax.set_xlim(left=0)
        return dress(ax, f"signal in a step / deviation of its noise, by {by}")

    def _plot_factors(self, ax: Axes, by: str) -> Axes:
        """The three factors relative to the part where each is largest."""
        parts = self._weakest_last(by)[-MOST_ROWS:]
        columns: list[tuple[str, str, str, Callable[[Part], float]]] = [
            ("size of the feature", PRIVATE, "o", lambda part: part.feature.value),
            ("left by clipping", TWIN, "D", lambda part: _quotient(part.kept.value, part.feature.value)),
            ("share of the people", INK, "s", lambda part: part.share.value),
        ]
        for place, (label, colour, marker, value) in enumerate(columns):
            sizes = np.array([value(part) for part in parts])
            top = float(sizes.max()) or 1.0
            rows = np.arange(len(parts)) + 0.2 * (1 - place)
            ax.plot(100 * sizes / top, rows, marker, color=colour, markersize=6, label=label)
        name_rows(ax, [part.name for part in parts])
        ax.set_xlim(0, 105)
        ax.legend(frameon=False, fontsize="small", labelcolor=INK, loc="lower center", bbox_to_anchor=(0.4, 1), ncols=3)
        return dress(ax, f"in % of the largest, by {by}")

    def _weakest_last(self, by: str) -> list[Part]:
        return sorted(self.parts(by), key=lambda part: -part.ratio.value)

    def figures(self) -> list[Figure]:
        """Ratios and their three factors, for each partition."""
        drawn = []
        for by in self.partitions:
            parts = self._weakest_last(by)[-MOST_ROWS:]
            if not parts:
                continue
            both = "private model (filled) and twin (hollow)" if self.has_twin else "private model"
            caption = f"Signal of each part in one step, in deviations of the noise, {both}, by {by}: weakest on top"
            words = "; ".join(f"{part.name}: {cell(part.ratio)}" for part in reversed(parts))
            drawn.append(Figure(caption, f"{caption}. {words}.", partial(self._plot, by=by), len(parts) + 1))
            if len(parts) > 1:
                caption = f"What makes the ratio, by {by}: size of the feature, clipping, number of people"
                words = "; ".join(
                    f"{part.name}: feature {number(part.feature.value)}, clipping leaves "
                    f"{fixed(_quotient(part.kept.value, part.feature.value))}, share {percent(part.share)}"
                    for part in reversed(parts)
                )
                draw = partial(self._plot_factors, by=by)
                drawn.append(Figure(caption, f"{caption}. {words}.", draw, len(parts) + 2))
        return drawn

    def sentences(self) -> list[str]:
        """The ratio of everyone; who is drowned most and how long until heard; what is not shown."""
        ratio = self.everyone.ratio
        lines = [
            f"In one step the mean clipped gradient of all people is {number(ratio.value)} deviations of the noise along its "
            f"direction ({level_of(ratio)} interval {number(ratio.low)} to {number(ratio.high)}), and "
            f"{number(self.everyone.whole.value)} of the length of the whole noise."
        ]
        for by in self.partitions:
            extremes = self.extremes(by)
            if isinstance(extremes, Extremes):
                lines.append(self._weakest_in_words(by, extremes))
            lines += extremes.hidden_in_words(f"parts by {by}")
        return lines

    def _weakest_in_words(self, by: str, extremes: Extremes) -> str:
        """Who is drowned most, and how long until heard; where nobody is heard, none is the weakest."""
        if extremes.ratio is None:
            return f"By {by} nobody has a signal that can be told from none at all."
        weakest = next(part for part in self.parts(by) if part.name == extremes.weakest)
        wait = (
            "it cannot be told from none at all" if math.isinf(weakest.steps)
            else "it stands above the noise in a single step" if weakest.steps <= 1
            else f"{_steps(weakest)} steps in one direction level it with the noise"
        )  # fmt: skip
        return (
            f"{_called(by)} {extremes.weakest} has the weakest signal, {number(weakest.ratio.value)} deviations, "
            f"{fixed(extremes.ratio.value)} times that of the strongest ({extremes.strongest}); {wait}."
        )

    def tables(self) -> list[Table]:
        """Ratios; the factors behind them."""
        level, sigma = level_of(self.everyone.ratio), self.settings["sigma_n"]
        parts = [self.everyone, *(part for by in self.partitions for part in self.parts(by))]
        twin = ["twin"] if self.has_twin else []
        return [
            Table(
                f"Signal in one step in deviations of its noise, sigma_n = {number(sigma)}; {level} intervals",
                ["", "people", "ratio", "of the whole noise", "steps to level", *twin],
                [
                    [
                        row_name(part),
                        f"{part.n:,}",
                        cell(part.ratio),
                        cell(part.whole),
                        _steps(part),
                        *([cell(part.twin)] if part.twin is not None else []),
                    ]
                    for part in parts
                ],
            ),
            Table(
                f"What makes the ratio, {level} intervals",
                ["", "feature / noise", "clipped, %", "mean factor", "share of people, %"],
                [
                    [
                        row_name(part),
                        cell(part.feature),
                        share_cell(part.clipped),
                        fixed_cell(part.factor),
                        percent(part.share).replace(" %", ""),
                    ]
                    for part in parts
                ],
            ),
        ]


def feature_noise(
    model: nn.Module,
    data: Data,
    *,
    mechanism: Mechanism,
    loss_fn: LossFn | None = None,
    clip: Clip | None = None,
    support: Support | None = None,
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    units: int | None = None,
    level: float = LEVEL,
) -> FeatureNoise:
    """How far each class and group stands out of the noise of one step, at the model's weights.

    `ratio_S = phi_S ||E[f g | S]|| / sigma_n`, `sigma_n = sigma C / B`: the expected step moves by `phi_S E[f g | S]` for
    the sake of S, and noise moves it by sigma_n along that (as along any) direction. phi_S is the share of S among all
    people, f the clipping factor of the last step's rule. Lengths of means are debiased: a small part has no larger ratio
    just because its mean is noisier. Coordinates that a mask holds carry neither signal nor noise.

    Does not retrain; two passes over the gradients of all units, seconds to minutes. Gradients are those of evaluation
    mode, without augmentation. A person's class is that of the first row.

    Args:
        model: the released model, or the model at any step.
        data: usually the training part, since shares are read off it; as private as it is.
        mechanism: says how gradients are clipped and how much noise is added.
        loss_fn: `(model, batch) -> [batch]`; by default cross-entropy for classes, squared error for numbers.
        clip: the rule in force, where the mechanism's own adapts.
        support: which coordinates learn, where the mechanism's changes from step to step.
        twin: a second model, measured at its own weights against the same noise.
        generator: draws the units; a fixed one by default.
        progress: show a bar.
        units: measure a random sample of so many units; all by default.
        level: of the intervals.

    Reference: Xu, Chen 2026, arXiv:2603.04881, Definition 3.3 and the proof's signal and noise of a step.
    Deviation: theirs is about known features; the mean gradient of a part is our counterpart for models without any.
    """
    import torch

    check_level(level)
    check_subject(data, private=model, twin=twin)
    rule, kept = _in_force(mechanism, clip, support)
    sigma = noise_of_a_step(mechanism, rule)
    if not sigma > 0:
        raise ConfigError(
            "noise_multiplier=0: there is no noise to compare with. Give the mechanism that trains privately."
        )
    if len(data) == 0:
        raise DataError("no rows: an audit needs at least one.")
    loss = chosen_loss(loss_fn, data)
    draw = np.random.default_rng(0) if generator is None else generator
    index = _sample(data, units, draw)
    everybody = torch.arange(data.units)
    counts = {by: {name: len(rows) for name, rows in of.items()} for by, of in _all_parts(data, everybody).items()}
    drawn = _all_parts(data, index)
    shown = [
        (by, name, rows) for by, of in drawn.items() for name, rows in of.items() if len(rows) >= SMALLEST
    ]  # fmt: skip
    if len(index) < SMALLEST:
        raise DataError(f"{len(index)} people: figures about fewer than {SMALLEST} are not shown.")
    rows = [np.arange(len(index)), *(rows for _, _, rows in shown)]
    with Bar(progress, 2 * len(index) * (1 if twin is None else 2)) as advance:
        measured = part_gradients(model, data, index, rows, loss, rule, kept, advance)
        other = None if twin is None else part_gradients(twin, data, index, rows, loss, rule, kept, advance)
    named = [("everyone", "all", data.units), *((by, name, counts[by][name]) for by, name, _ in shown)]
    shares = [count / data.units for _, _, count in named]
    parts = []
    for place, (by, name, count) in enumerate(named):
        ratio = _kept_length(measured, place, shares[place] / sigma, level)
        parts.append(
            Part(
                by=by,
                name=name,
                n=len(rows[place]),
                share=intervals.share(np.arange(data.units) < count, level),
                clipped=intervals.share(measured.clipped[rows[place]], level),
                factor=intervals.mean(measured.factor[rows[place]], level, floor=0.0),
                feature=mean_length(*measured.raw[place], 1 / sigma, level),
                kept=_kept_length(measured, place, 1 / sigma, level),
                ratio=ratio,
                whole=_scaled(ratio, measured.coordinates**-0.5),
                twin=None if other is None else _kept_length(other, place, shares[place] / sigma, level),
            )
        )
    extremes: dict[str, Extremes | Hidden] = {}
    for by, of in drawn.items():
        places = [place for place, part in enumerate(parts) if part.by == by]
        single = intervals.each(level, max(len(places), 1))
        together = [_kept_length(measured, place, shares[place] / sigma, single) for place in places]
        members = [parts[place] for place in places]
        hidden = Hidden(
            hidden_parts=len(of) - len(places),
            hidden_people=sum(len(rows) for rows in of.values()) - sum(part.n for part in members),
        )
        extremes[by] = _extremes(hidden, members, together, level)
    headline = {"everyone": parts[0].ratio}
    first = next(iter(extremes.values()), None)
    if isinstance(first, Extremes):
        headline["weakest"] = first.lowest
        if first.ratio is not None:
            headline["weakest to strongest"] = first.ratio
    return FeatureNoise(
        headline=headline,
        values=Values(parts, extremes),
        settings={
            "clip": repr(rule),
            "sigma_n": sigma,
            "coordinates": measured.coordinates,
            "units": len(index),
            "population": data.units,
            "level": level,
            "smallest_part": SMALLEST,
        },
        status=gradient_status(data, twin),
    )


def _in_force(mechanism: Mechanism, clip: Clip | None, support: Support | None) -> tuple[Clip, Support]:
    """Rule and support of the last step."""
    if clip is None:
        return chosen_rule(mechanism, None, support)
    known = replace(mechanism, clip=Flat(clip.sensitivity))  # the rule is given; only the support is asked for
    return clip, chosen_rule(known, None, support)[1]


def _sample(data: Data, units: int | None, draw: np.random.Generator) -> Tensor:
    import torch

    if units is None or units == data.units:
        return torch.arange(data.units)
    if not SMALLEST <= units < data.units:
        raise ConfigError(f"units={units!r}: a number from {SMALLEST} to the {data.units} units of the data, or None.")
    return torch.from_numpy(np.sort(draw.choice(data.units, units, replace=False)))


def _all_parts(data: Data, units: Tensor) -> dict[str, dict[str, np.ndarray]]:
    """Classes, groups, and classes within groups unless the group says the class."""
    plain = partitions(data, units)
    if "class" not in plain:
        return plain
    crossed = {}
    for column in data.groups:
        cells = {
            f"{label}, {group}": np.intersect1d(of_class, of_group, assume_unique=True)
            for label, of_class in plain["class"].items()
            for group, of_group in plain[column].items()
        }
        held = {name: rows for name, rows in cells.items() if len(rows)}
        if len(held) > max(len(plain[column]), len(plain["class"])):
            crossed[f"class and {column}"] = held
    return plain | crossed


def _kept_length(measured: PartGradients, place: int, scale: float, level: float) -> Estimate:
    """`scale ||mean clipped gradient||` of a part."""
    return mean_length(*measured.shortened[place], scale, level)


def _scaled(e: Estimate, factor: float) -> Estimate:
    return Estimate(e.value * factor, e.low * factor, e.high * factor, e.n, e.level, e.method)


def _extremes(hidden: Hidden, parts: Sequence[Part], together: Sequence[Estimate], level: float) -> Extremes | Hidden:
    if len(parts) < 2:
        return hidden
    values = [part.ratio.value for part in parts]
    return Extremes(
        **vars(hidden),
        weakest=parts[int(np.argmin(values))].name,
        strongest=parts[int(np.argmax(values))].name,
        lowest=intervals.smallest(together, level),
        ratio=intervals.ratio(together, level),
    )


def _quotient(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _called(by: str) -> str:
    return by[:1].upper() + by[1:]


def _steps(part: Part) -> str:
    return f"{math.ceil(part.steps):,}" if math.isfinite(part.steps) else "∞"


AUDIT = Audit("feature-noise", feature_noise, takes=TAKES, needs=("mechanism", "loss_fn"), usual=True)

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
