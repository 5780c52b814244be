"""Feature-to-noise ratio: what each class and group says in a step, against the noise that privacy adds to it.

`exact` for the two-patch distribution, whose features are known; `feature_noise` measures the counterpart for any model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from noisewise.audits.audit import Audit
from noisewise.audits.gradients import (
    block_norms,
    chosen_loss,
    chosen_rule,
    clipped_units,
    gradient_status,
    gradients,
    group_labels,
    layout_of,
    partitions,
    rule_factors,
)
from noisewise.audits.people import SMALLEST, hidden_in_words
from noisewise.audits.result import INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import MOST_ROWS, Bar, cell, dots, dress, fixed_cell, name_rows, row_name, share_cell
from noisewise.errors import ConfigError, DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate
from noisewise.wording import fixed, number, percent
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.clipping import Clip
    from noisewise.data import Data
    from noisewise.data.synthetic import TwoPatch
    from noisewise.mechanism import Mechanism
    from noisewise.models import TwoLayerCNN
    from noisewise.persample import LossFn
    from noisewise.support import Support
    from noisewise.training.loop import Observation

TAKES = "Does not retrain; two passes over the gradients of all units, seconds to minutes."
RARE = 1e-6  # share of noise patches that may be longer than the hard bound assumes


def noise_of_a_step(mechanism: Mechanism, clip: Clip | None = None, step: int | None = None) -> float:
    """`sigma_n = sigma C / B`: deviation of the noise on every coordinate of the averaged gradient.

    `clip`: the rule in force, where the mechanism's own adapts; `step`: the last one by default.
    """
    step = mechanism.steps - 1 if step is None else step
    rule = mechanism.clip_at(step) if clip is None else clip
    return mechanism.noise_at(step) * rule.sensitivity / mechanism.expected_batch_size


@dataclass(frozen=True)
class FeatureRatio:
    """One feature of a synthetic distribution against the noise: the three factors of its effective ratio.

    Args:
        name: of the feature.
        label: class that owns it.
        norm: ||u||.
        proportion: phi, its probability.
        ratio: FNR = ||u|| / sigma_n; infinite without noise.
        factor: Lambda, the smallest clipping factor of its rows.
        factor_low: 5th percentile of the factors.
        factor_mean: their mean.
        proxy: the rule's factor at `G = sqrt((||u||^2 + sigma_xi^2 d) / m)`.
        bound: the rule's factor at the longest gradient that is possible.
        source: of the factors: `recorded` in training, of a `model`, or the `proxy`.
    """

    name: str
    label: int
    norm: float
    proportion: float
    ratio: float
    factor: float
    factor_low: float
    factor_mean: float
    proxy: float
    bound: float
    source: str

    @property
    def effective(self) -> float:
        """EFNR = phi Lambda FNR."""
        return self.proportion * self.factor * self.ratio

    @property
    def effective_mean(self) -> float:
        """The same with the mean factor in place of the smallest."""
        return self.proportion * self.factor_mean * self.ratio


class Factors:
    """A recorder that keeps the clipping factor of every unit of every step, by group; as private as the records."""

    def __init__(self, mechanism: Mechanism, labels: Tensor):
        """`labels [n]`: group of each unit of the training data."""
        _refuse_adaptive(mechanism)
        self._mechanism, self._labels = mechanism, labels
        self._found: list[tuple[np.ndarray, np.ndarray]] = []

    def __call__(self, observation: Observation) -> None:
        """Record a step; `train` and `private_step` call this."""
        units = observation.units.cpu()
        norms = observation.norms[:, : len(units)]  # what is behind them is padding
        factors = rule_factors(self._mechanism.clip_at(observation.step), norms).amin(0)
        self._found.append((self._labels[units].numpy(), factors.double().cpu().numpy()))

    def of(self, label: int) -> np.ndarray:
        """Factors of a group's units over all steps so far."""
        return np.concatenate([np.empty(0), *(factors[labels == label] for labels, factors in self._found)])


def exact(
    distribution: TwoPatch,
    mechanism: Mechanism,
    model: TwoLayerCNN | None = None,
    *,
    recorded: Factors | None = None,
    filters: int = 10,
    samples: int = 500,
    generator: torch.Generator | None = None,
    step: int | None = None,
) -> list[FeatureRatio]:
    """FNR, clipping factor and proportion of each feature of a two-patch distribution, and what they make together.

    `EFNR = phi * Lambda * FNR`, `FNR = ||u|| / sigma_n`, `sigma_n = sigma C / B`, `Lambda = min min(1, C / ||g||)` over
    rows of the feature (and steps, where they were recorded). The combination is what the signal of a step is in units of
    its noise: losses should be ordered by it, not scale with it. Where every row is clipped it does not depend on C.

    Args:
        distribution: the features, their proportions and the patch noise.
        mechanism: rule, noise and batch size.
        model: whose gradients are taken at `samples` rows of each feature, in closed form; or
        recorded: the factors of a whole training run, labels being the group `feature`; without either Lambda is `proxy`.
        filters: m, where no model says it.
        samples: rows drawn for each feature.
        generator: draws them; a fixed one by default.
        step: whose rule and noise count; the last by default.

    Reference: Xu, Chen 2026, arXiv:2603.04881, Definition 3.3 (FNR, clipping factor, proportion).
    Deviation: the definitions' formulas are not readable in our source; these follow its prose. The product is ours. The
    hard bound `sqrt(2/m) (||u|| + ||xi||)` takes for ||xi|| a length that one patch in a million exceeds.
    """
    from scipy.stats import chi2

    _refuse_adaptive(mechanism)
    step = mechanism.steps - 1 if step is None else step
    rule, sigma = mechanism.clip_at(step), noise_of_a_step(mechanism, step=step)
    count, d = distribution.features.shape
    if model is not None:
        filters = model.filters.out_features // model.outputs
    freedom = d - count if distribution.project else d
    longest = distribution.sigma_xi * math.sqrt(float(chi2.ppf(1 - RARE, freedom))) if freedom else 0.0
    found = []
    for label, norm in enumerate(distribution.norms.tolist()):
        proxy = math.sqrt((norm**2 + distribution.sigma_xi**2 * d) / filters)
        proxy_factor = _factor_at(rule, proxy)
        factors, source = np.array([proxy_factor]), "proxy"
        if recorded is not None:
            factors, source = recorded.of(label), "recorded"
        elif model is not None:
            factors, source = _factors_of(distribution, label, model, rule, samples, generator), "model"
        if not len(factors):
            raise DataError(
                f"no row of {distribution.names[label]!r} was recorded: record more steps, or give labels of this group."
            )
        found.append(
            FeatureRatio(
                name=distribution.names[label],
                label=distribution.labels[label],
                norm=norm,
                proportion=distribution.proportions[label],
                ratio=norm / sigma if sigma > 0 else math.inf,
                factor=float(factors.min()),
                factor_low=float(np.quantile(factors, 0.05)),
                factor_mean=float(factors.mean()),
                proxy=proxy_factor,
                bound=_factor_at(rule, math.sqrt(2 / filters) * (norm + longest)),
                source=source,
            )
        )
    return found


def _refuse_adaptive(mechanism: Mechanism) -> None:
    from noisewise.adaptive import Adaptive

    if isinstance(mechanism.clip, Adaptive):
        raise ConfigError(
            f"the bound of {mechanism.clip!r} moves during training: the exact ratio needs one that is known, e.g. Flat(1.0)."
        )


def _factor_at(rule: Clip, norm: float) -> float:
    import torch

    return float(rule_factors(rule, torch.tensor([[norm]], dtype=torch.float64)))


def _factors_of(
    distribution: TwoPatch,
    label: int,
    model: TwoLayerCNN,
    rule: Clip,
    samples: int,
    generator: torch.Generator | None,
) -> np.ndarray:
    """Factors of rows that all carry one feature."""
    import torch

    from noisewise.models import gradient_norms

    alone = tuple(float(place == label) for place in range(len(distribution.labels)))
    draw = torch.Generator().manual_seed(label) if generator is None else generator
    rows = replace(distribution, proportions=alone).draw(samples, draw)
    weight = model.filters.weight
    norms = gradient_norms(model, rows.x.to(weight.device, weight.dtype), rows.y.to(weight.device))
    return rule_factors(rule, norms.double().unsqueeze(0))[0].cpu().numpy()


def squared_mean(own: np.ndarray, along: np.ndarray, level: float = LEVEL) -> Estimate:
    """`||E x||^2` from a sample of b vectors, without the excess that chance adds to the norm of a mean.

    `U = sum_{i != j} x_i . x_j / (b (b - 1))`, with Student's t interval of the jackknife over people.

    Args:
        own: `x_i . x_i`.
        along: `x_i . xbar`.
        level: of the interval.

    Guarantee: U has no bias; it can be below 0 where the mean cannot be told from 0, and is not cut there.
    Reference: Hoeffding 1948 (U-statistics); Arvesen 1969 (their jackknife).
    """
    from scipy.stats import t

    b = len(own)
    if b < 3:
        raise DataError(f"the length of a mean of {b} vectors: needs at least 3 people.")
    square, total = b * float(along.sum()), float(own.sum())  # of the sum; of all lengths
    value = (square - total) / (b * (b - 1))
    without = (square - 2 * b * along + 2 * own - total) / ((b - 1) * (b - 2))
    spread = math.sqrt((b - 1) / b * float(((without - without.mean()) ** 2).sum()))
    half = float(t.ppf((1 + level) / 2, b - 1)) * spread
    return Estimate(value, value - half, value + half, b, level, "debiased, jackknife")


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

    @property
    def everyone(self) -> Part:
        """All people together."""
        return self.parts("everyone")[0]

    @property
    def partitions(self) -> list[str]:
        """`class` (unless it is a regression), the group columns, and classes within them."""
        return list(self.values["extremes"])

    def parts(self, by: str = "class") -> list[Part]:
        """The parts that are large enough to be shown."""
        return [Part(**raw) for raw in self.values["parts"] if raw["by"] == by]

    def extremes(self, by: str = "class") -> dict[str, Any]:
        """Names (`weakest`, `strongest`), estimates (`lowest`, `ratio`), how many parts and people are not shown."""
        return self.values["extremes"][by]

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
            found = np.array([value(part) for part in parts])
            top = float(found.max()) or 1.0
            rows = np.arange(len(parts)) + 0.2 * (1 - place)
            ax.plot(100 * found / top, rows, marker, color=colour, markersize=6, label=label)
        name_rows(ax, [part.name for part in parts])
        ax.set_xlim(0, 105)
        ax.legend(frameon=False, fontsize="small", labelcolor=INK, loc="lower center", bbox_to_anchor=(0.4, 1), ncols=3)
        return dress(ax, f"in % of the largest, by {by}")

    def _weakest_last(self, by: str) -> list[Part]:
        return sorted(self.parts(by), key=lambda part: -part.ratio.value)

    def figures(self) -> list[Figure]:
        """Ratios and their three factors, for each partition."""
        found = []
        for by in self.partitions:
            parts = self._weakest_last(by)[-MOST_ROWS:]
            if not parts:
                continue
            both = "private model (filled) and twin (hollow)" if self.has_twin else "private model"
            caption = f"Signal of each part in one step, in deviations of the noise, {both}, by {by}: weakest on top"
            words = "; ".join(f"{part.name}: {cell(part.ratio)}" for part in reversed(parts))
            found.append(Figure(caption, f"{caption}. {words}.", partial(self._plot, by=by), len(parts) + 1))
            if len(parts) > 1:
                caption = f"What makes the ratio, by {by}: size of the feature, clipping, number of people"
                words = "; ".join(
                    f"{part.name}: feature {number(part.feature.value)}, clipping leaves "
                    f"{fixed(_quotient(part.kept.value, part.feature.value))}, share {percent(part.share)}"
                    for part in reversed(parts)
                )
                draw = partial(self._plot_factors, by=by)
                found.append(Figure(caption, f"{caption}. {words}.", draw, len(parts) + 2))
        return found

    def sentences(self) -> list[str]:
        """The ratio of everyone; who is drowned most and how long until heard; what is not shown."""
        ratio = self.everyone.ratio
        said = [
            f"In one step the mean clipped gradient of all people is {number(ratio.value)} deviations of the noise along its "
            f"direction ({level_of(ratio)} interval {number(ratio.low)} to {number(ratio.high)}), and "
            f"{number(self.everyone.whole.value)} of the length of the whole noise."
        ]
        for by in self.partitions:
            found = self.extremes(by)
            if "weakest" in found:
                weakest = next(part for part in self.parts(by) if part.name == found["weakest"])
                times = "" if found["ratio"] is None else f", {fixed(found['ratio'].value)} times that of the strongest"
                wait = (
                    "it cannot be told from none at all" if math.isinf(weakest.steps)
                    else "it stands above the noise in a single step" if weakest.steps <= 1
                    else f"{_steps(weakest)} steps in one direction level it with the noise"
                )  # fmt: skip
                said.append(
                    f"{_called(by)} {found['weakest']} has the weakest signal, {number(weakest.ratio.value)} deviations"
                    f"{times} ({found['strongest']}); {wait}."
                )
            said += hidden_in_words(found, f"parts by {by}")
        return said

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
        found = _measure(model, data, index, rows, loss, rule, kept, advance)
        other = None if twin is None else _measure(twin, data, index, rows, loss, rule, kept, advance)
    named = [("everyone", "all", data.units), *((by, name, counts[by][name]) for by, name, _ in shown)]
    shares = [count / data.units for _, _, count in named]
    parts = []
    for place, (by, name, count) in enumerate(named):
        ratio = _ratio(found, place, shares[place] / sigma, level)
        parts.append(
            Part(
                by,
                name,
                len(rows[place]),
                intervals.share(np.arange(data.units) < count, level),
                intervals.share(found.clipped[rows[place]], level),
                intervals.mean(found.factor[rows[place]], level, floor=0.0),
                _length(found.raw[place], 1 / sigma, level),
                _ratio(found, place, 1 / sigma, level),
                ratio,
                _scaled(ratio, found.coordinates**-0.5),
                None if other is None else _ratio(other, place, shares[place] / sigma, level),
            )
        )
    extremes: dict[str, Any] = {}
    for by, of in drawn.items():
        mine = [place for place, part in enumerate(parts) if part.by == by]
        single = intervals.each(level, max(len(mine), 1))
        together = [_ratio(found, place, shares[place] / sigma, single) for place in mine]
        hidden = {
            "hidden_parts": len(of) - len(mine),
            "hidden_people": sum(len(rows) for rows in of.values()) - sum(parts[place].n for place in mine),
        }
        extremes[by] = hidden | _extremes([parts[place] for place in mine], together, level)
    headline = {"everyone": parts[0].ratio}
    first: dict[str, Any] = next(iter(extremes.values()), {})
    if "lowest" in first:
        headline["weakest"] = first["lowest"]
        if first["ratio"] is not None:
            headline["weakest to strongest"] = first["ratio"]
    return FeatureNoise(
        headline=headline,
        values={"parts": [vars(part) for part in parts], "extremes": extremes},
        settings={
            "clip": repr(rule),
            "sigma_n": sigma,
            "coordinates": found.coordinates,
            "units": len(index),
            "population": data.units,
            "level": level,
            "smallest_part": SMALLEST,
        },
        status=gradient_status(data, twin),
    )


@dataclass(frozen=True)
class _Measured:
    """Of every unit whether it was clipped and what was left; of every part (x.x, x.xbar) of gradients, raw and clipped."""

    clipped: np.ndarray
    factor: np.ndarray
    raw: list[tuple[np.ndarray, np.ndarray]]
    shortened: list[tuple[np.ndarray, np.ndarray]]
    coordinates: int


def _measure(
    model: nn.Module,
    data: Data,
    units: Tensor,
    parts: Sequence[np.ndarray],
    loss_fn: LossFn,
    rule: Clip,
    support: Support,
    advance: Callable[[int], None],
) -> _Measured:
    """Means of the parts first, then inner products with them; memory: two vectors of all weights for every part."""
    import torch

    from noisewise.persample import live_parameters

    layout = layout_of(model, data, loss_fn)
    labels = group_labels(rule, data, units)
    member = torch.from_numpy(np.stack([np.isin(np.arange(len(units)), part) for part in parts])).double()
    live = live_parameters(model, support)
    owner = rule.blocks(live)
    blocks = [owner[name] for name in live]
    norms, factors = [], []
    sums = shortened_sums = torch.zeros(())
    for place, found in gradients(model, data, units, loss_fn=loss_fn, support=support, layout=layout):
        lengths = block_norms(torch.stack([gradient.square().sum(1) for gradient in found.values()]), blocks)
        mine = rule_factors(rule, lengths, None if labels is None else labels[place])
        norms.append(lengths.cpu())
        factors.append(mine.cpu())
        here = member[:, place].to(lengths.device)
        sums = sums + (here @ torch.cat(list(found.values()), 1)).cpu()
        shortened_sums = shortened_sums + (here @ _shortened(found, mine, owner)).cpu()
        advance(place.stop - place.start)
    counts = member.sum(1, keepdim=True)
    means, shortened_means = sums / counts, shortened_sums / counts
    on_mean, on_shortened = [], []
    for place, found in gradients(model, data, units, loss_fn=loss_fn, support=support, layout=layout):
        flat = torch.cat(list(found.values()), 1)
        short = _shortened(found, torch.cat(factors, 1)[:, place].to(flat.device), owner)
        on_mean.append((flat @ means.T.to(flat.device)).cpu())
        on_shortened.append((short @ shortened_means.T.to(flat.device)).cpu())
        advance(place.stop - place.start)
    every_norm, every_factor = torch.cat(norms, 1), torch.cat(factors, 1)
    square, short_square = every_norm.square().sum(0).numpy(), (every_factor * every_norm).square().sum(0).numpy()
    along, short_along = torch.cat(on_mean).numpy(), torch.cat(on_shortened).numpy()
    left = np.divide(short_square, square, out=(every_factor.mean(0) ** 2).numpy(), where=square > 0)
    return _Measured(
        clipped_units(rule, every_norm, every_factor, labels).numpy(),
        np.sqrt(left),
        [(square[rows], along[rows, place]) for place, rows in enumerate(parts)],
        [(short_square[rows], short_along[rows, place]) for place, rows in enumerate(parts)],
        sum(_kept(support.get(name, True), parameter) for name, parameter in live.items()),
    )


def _shortened(found: Mapping[str, Tensor], factors: Tensor, owner: Mapping[str, int]) -> Tensor:
    import torch

    return torch.cat([factors[owner[name]].unsqueeze(1) * gradient for name, gradient in found.items()], 1)


def _kept(mask: bool | Tensor, parameter: Tensor) -> int:
    return parameter.numel() if isinstance(mask, bool) else int(mask.sum())


def _in_force(mechanism: Mechanism, clip: Clip | None, support: Support | None) -> tuple[Clip, Support]:
    """Rule and support of the last step."""
    if clip is None:
        return chosen_rule(mechanism, None, support)
    from noisewise.clipping import Flat

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
    found = partitions(data, units)
    if "class" not in found:
        return found
    crossed = {}
    for column in data.groups:
        cells = {
            f"{label}, {group}": np.intersect1d(mine, others, assume_unique=True)
            for label, mine in found["class"].items()
            for group, others in found[column].items()
        }
        held = {name: rows for name, rows in cells.items() if len(rows)}
        if len(held) > max(len(found[column]), len(found["class"])):
            crossed[f"class and {column}"] = held
    return found | crossed


def _ratio(found: _Measured, place: int, scale: float, level: float) -> Estimate:
    return _length(found.shortened[place], scale, level)


def _length(products: tuple[np.ndarray, np.ndarray], scale: float, level: float) -> Estimate:
    """`scale ||E x||`: the root of `squared_mean`, 0 where that is below 0."""
    square = squared_mean(*products, level)
    value, low, high = (scale * math.sqrt(max(end, 0.0)) for end in (square.value, square.low, square.high))
    return Estimate(value, low, high, square.n, level, square.method)


def _scaled(e: Estimate, factor: float) -> Estimate:
    return Estimate(e.value * factor, e.low * factor, e.high * factor, e.n, e.level, e.method)


def _extremes(parts: Sequence[Part], together: Sequence[Estimate], level: float) -> dict[str, Any]:
    if len(parts) < 2:
        return {}
    values = [part.ratio.value for part in parts]
    return {
        "weakest": parts[int(np.argmin(values))].name,
        "strongest": parts[int(np.argmax(values))].name,
        "lowest": intervals.smallest(together, level),
        "ratio": intervals.ratio(together, level),
    }


def _quotient(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _called(by: str) -> str:
    return by[:1].upper() + by[1:]


def _steps(part: Part) -> str:
    return f"{math.ceil(part.steps):,}" if math.isfinite(part.steps) else "∞"


AUDIT = Audit("feature-noise", feature_noise, takes=TAKES, needs=("mechanism", "loss_fn"), usual=True)
