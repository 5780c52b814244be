"""Calibration: is the model right as often as it says it is, and what would a temperature change?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from noisewise._moved import old_names
from noisewise.audits.audit import Audit
from noisewise.audits.confidence import (
    ALSO,
    Answers,
    Bin,
    Chance,
    Scores,
    Sides,
    answers_of,
    binned_by_score,
    bins_of,
    errors_of,
    largest_errors,
    sides_of,
    with_unseen,
)
from noisewise.audits.outputs import check_subject, logits, status_of
from noisewise.audits.people import (
    HOLD,
    SMALLEST,
    Estimates,
    large_enough,
    means,
    named_parts,
    of_rows,
    owners,
    people,
    shares,
)
from noisewise.audits.result import FAINT, INK, Figure, Result, Table
from noisewise.audits.show import Bar, dress, fixed_cell, points_cell, share_cell
from noisewise.errors import ConfigError
from noisewise.estimates.estimate import LEVEL, Estimate, check_level
from noisewise.wording import level as level_of
from noisewise.wording import number, percent, percent_interval, points, points_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import nn

    from noisewise.data import Data
    from noisewise.repairs.temperature import Temperature

BINS = 15
ENOUGH = 5  # bins with people enough that a reliability diagram needs
RESAMPLES = 1000
OVER, UNDER = "#c8443c", "#2a9d8f"  # more confident than right, and less: readable on light and dark, and without red
_NAMES = {"private": "private model", "twin": "twin", "scaled": "private model with temperature"}


@dataclass(frozen=True)
class Group:
    """Over-confidence of `n` people of a group."""

    by: str
    name: str
    n: int
    gap: Estimates


@dataclass(frozen=True)
class Scaling:
    """A temperature, the people it was fitted to, and whether it is private."""

    value: float
    n: int
    status: str
    reason: str


@dataclass(frozen=True)
class Values:
    """Scores by name and model; by model chance, bins and the two sides of ECE; groups; the temperature if there is one."""

    scores: Scores
    chance: dict[str, Chance]
    bins: dict[str, list[Bin]]
    sides: dict[str, Sides]
    groups: list[Group]
    temperature: Scaling | None = field(default=None, metadata={"absent": True})


@dataclass(frozen=True, kw_only=True)
class Calibration(Result):
    """Does confidence mean what it says?

    headline: `ECE` (15 bins of equal width), `over-confidence` (mean confidence - accuracy, signed), `MCE` (bins of at
    least 20 people); with a twin also `twin ECE`, `excess ECE`, `twin over-confidence` and `excess over-confidence`
    (private - twin); with a temperature `ECE with temperature`.
    Guarantee: ECE of a sample is too large by chance, the more so the fewer people: its value is left as usual, its
    interval allows for that, and `chance` says what a perfectly calibrated model would show on as many people.
    Reference: Guo et al. 2017, arXiv:1706.04599; Bu et al. 2022 (calibration of private models).
    """

    kind: ClassVar[str] = "calibration"
    title: ClassVar[str] = "Does confidence mean what it says"
    version: ClassVar[int] = 2

    values: Values

    @property
    def models(self) -> list[str]:
        """`private`, and if given `twin` and `scaled` (the private model with a temperature)."""
        return list(self.values.bins)

    def bins(self, which: str = "private") -> list[Bin]:
        """The bins of a model, by confidence."""
        return self.values.bins[which]

    def scores(self, name: str) -> dict[str, Estimate]:
        """Estimates of a score by model, e.g. `ECE`, `adaptive ECE`, `Brier`, `NLL`; differences to the private model."""
        return self.values.scores[name]

    def chance(self, which: str = "private") -> Chance:
        """ECE of a perfectly calibrated model with the same confidences: `mean`, `high` (95 % are below), `p`."""
        return self.values.chance[which]

    def _enough(self, which: str) -> bool:
        return sum(b.accuracy is not None for b in self.bins(which)) >= ENOUGH

    def plot(self, ax: Axes) -> Axes:
        """Reliability diagram of the private model."""
        return self._plot_reliability(ax, "private")

    def _plot_reliability(self, ax: Axes, which: str) -> Axes:
        from matplotlib.patches import Patch

        bins = self.bins(which)
        most, depth = max(b.n for b in bins), 0.2
        for b in bins:
            width, middle = b.high - b.low, (b.low + b.high) / 2
            ax.bar(middle, -depth * b.n / most, width * 0.92, color=INK, alpha=0.45, linewidth=0)
            if b.accuracy is None or b.confidence is None:
                continue
            right, gap = b.accuracy.value, b.confidence - b.accuracy.value
            over = gap > 0
            ax.bar(middle, right, width * 0.92, color=FAINT, linewidth=0)
            colour, hatch = (OVER, "") if over else (UNDER, "////")
            ax.bar(
                middle,
                abs(gap),
                width * 0.92,
                min(right, b.confidence),
                facecolor=colour,
                alpha=0.85,
                hatch=hatch,
                edgecolor=ax.get_facecolor(),
                linewidth=0,
            )
            ax.plot([middle, middle], [b.accuracy.low, b.accuracy.high], color=INK, linewidth=1)
            ax.plot([b.low, b.high], [right, right], color=INK, linewidth=2)
        ax.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle="--")
        ax.axhline(0, color=INK, linewidth=1)
        ax.set_ylim(-depth - 0.04, 1.02)
        ticks = [0, 0.2, 0.4, 0.6, 0.8, 1.0]
        first = min(b.low for b in bins if b.n)
        shown = [t for t in ticks if t >= first]
        ax.set_xticks(shown, labels=[f"{100 * t:.0f}" for t in shown])
        ax.set_xlim(first, 1)
        ax.set_yticks([-depth, *ticks], labels=[f"{most:,} people", *(f"{100 * t:.0f}" for t in ticks)])
        keys = [
            Patch(facecolor=OVER, alpha=0.85, label="over-confident"),
            Patch(facecolor=UNDER, alpha=0.85, hatch="////", edgecolor=ax.get_facecolor(), label="under-confident"),
        ]
        ax.legend(handles=keys, frameon=False, labelcolor=INK, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        return dress(ax, "confidence, %", "right, %", grid="none")

    def figures(self) -> list[Figure]:
        """A reliability diagram for each model that has bins enough to show its course."""
        figures = []
        for which in self.models:
            if not self._enough(which):
                continue
            caption = (
                f"Reliability of the {_NAMES[which]}: how often it is right (line, with interval) by its confidence; the "
                "coloured gap is to the confidence (dashed), bars below count people"
            )
            words = "; ".join(
                f"confidence {100 * b.low:.0f}–{100 * b.high:.0f} %: {b.n:,} people"
                + ("" if b.accuracy is None else f", right {percent(b.accuracy)}")
                for b in self.bins(which)
                if b.n
            )
            figures.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_reliability, which=which), 10))
        return figures

    def sentences(self) -> list[str]:
        """How far confidence is off and in which direction; what privacy changed; what is hidden; the temperature."""
        sentences = [*self._in_words("private")]
        if "twin" in self.models:
            sentences += self._in_words("twin")
            excess = self.scores("ECE")["difference"]
            sure = "" if excess.excludes_zero else ", which chance can explain"
            sentences.append(
                f"The private model's calibration error is {points(excess)} points from its twin's (interval "
                f"{points_interval(excess)}{sure})."
            )
        hidden = [b.n for b in self.bins() if b.n and b.accuracy is None]
        if hidden:
            sentences.append(
                f"Bins of the private model with fewer than {self.settings['smallest_bin']} people ({len(hidden)} of "
                f"{len(self.bins())}) are counted, not shown, and left out of MCE."
            )
        few = [_NAMES[which] for which in self.models if not self._enough(which)]
        if few:
            sentences.append(
                f"No reliability diagram of the {' and the '.join(few)}: fewer than {ENOUGH} bins have "
                f"{self.settings['smallest_bin']} people or more."
            )
        scaling = self.values.temperature
        if scaling is not None:
            ece = self.scores("ECE")
            free = "" if scaling.status == "private" else f" It is {scaling.status}: {scaling.reason}."
            sentences.append(
                f"Dividing outputs by a temperature of {number(scaling.value)} changes the calibration error from "
                f"{percent(ece['private'])} to {percent(ece['scaled'])} and no decision.{free}"
            )
        return sentences

    def _in_words(self, which: str) -> list[str]:
        ece, gap, chance = self.scores("ECE")[which], self.scores("over-confidence")[which], self.chance(which)
        name = f"The {_NAMES[which]}"
        first = (
            f"{name} misjudges how sure it can be by {percent(ece)} on average (ECE, {level_of(ece)} interval "
            f"{percent_interval(ece)}; a perfectly calibrated model would show {100 * chance.mean:.1f} % by chance)."
        )
        if not gap.excludes_zero:
            return [first, f"{name} is neither over- nor under-confident overall, as far as chance lets one see."]
        word = "over-confident" if gap.value > 0 else "under-confident"
        return [
            first,
            f"{name} is {word}: its mean confidence is {points(gap)} points from its accuracy (interval "
            f"{points_interval(gap)}).",
        ]

    def tables(self) -> list[Table]:
        """All scores; groups; the bins of each model."""
        level = level_of(self.scores("ECE")["private"])
        columns = list(self.scores("ECE"))
        heads = {"difference": "private − twin", "scaled": "private, scaled", "gain": "scaled − private"}
        tables = [
            Table(
                f"Calibration on the test part, {level} intervals; ECE, MCE and over-confidence in %, differences in points",
                ["", *(heads.get(name, name) for name in columns)],
                [
                    [name, *(_score_cell(name, which, scores[which]) for which in columns)]
                    for name, scores in self.values.scores.items()
                ],
            )
        ]
        hold = HOLD if "difference" in columns else ""
        if self.values.groups:
            tables.append(
                Table(
                    f"Over-confidence (mean confidence − accuracy) by group, points, {level} intervals{hold}",
                    ["", "people", *(heads.get(name, name) for name in self.values.groups[0].gap)],
                    [
                        [f"{group.by} {group.name}", f"{group.n:,}", *map(points_cell, group.gap.values())]
                        for group in self.values.groups
                    ],
                )
            )
        for which in self.models:
            rows = [
                [
                    f"{100 * b.low:.1f}–{100 * b.high:.1f}",
                    f"{b.n:,}",
                    "–" if b.confidence is None else f"{100 * b.confidence:.1f}",
                    "–" if b.accuracy is None else share_cell(b.accuracy),
                ]
                for b in self.bins(which)
            ]
            caption = f"Bins of the {_NAMES[which]}, in %, {level} intervals"
            tables.append(Table(caption, ["confidence", "people", "mean confidence", "right"], rows))
        return tables


def calibration(
    model: nn.Module,
    data: Data,
    *,
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    level: float = LEVEL,
    bins: int = BINS,
    smallest_bin: int = SMALLEST,
    temperature: Temperature | None = None,
    resamples: int = RESAMPLES,
) -> Calibration:
    """ECE, MCE, adaptive ECE, Brier score and cross-entropy (NLL) of a classifier, and its reliability diagram.

    Confidence is the largest softmax probability. ECE and MCE have `bins` bins of equal width (also 10 and 20),
    adaptive ECE bins of equal count; MCE leaves out bins of fewer than `smallest_bin` people, which are not shown either
    (`MCE, all bins` has all). Brier score: `sum over classes of (p - 1[y])^2`, 0 to 2. With a `temperature` (from
    `noisewise.repairs.temperature.temperature` on other data than these) the scaled model stands beside the private one.

    Intervals: over-confidence, Brier and NLL by Student's t; MCE from Wilson intervals of all bins that hold together;
    ECE by the bootstrap over people, bins held fixed, the hull of plain and mirrored quantiles because ECE is biased
    upward, and from 0 where perfect calibration is not rejected (`chance`). Of a model that is always right (or always
    wrong) all of them reach as far as Wilson's interval of its accuracy. Differences are paired. Reference for the
    bias: Kumar et al. 2019, arXiv:1909.10155; for `chance`: Vaicenavicius et al. 2019, arXiv:1902.06977.
    The generator draws the bootstrap (default: seed 0). Does not retrain; seconds for 10,000 rows, under a minute for
    100,000.
    """
    check_level(level)
    check_subject(data, private=model, twin=twin)
    for name, value in {"bins": bins, "smallest_bin": smallest_bin, "resamples": resamples}.items():
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} {value!r}: must be a whole number above 0.")
    generator = np.random.default_rng(0) if generator is None else generator
    spoken = {"private": logits(model, data)}
    if twin is not None:
        spoken["twin"] = logits(twin, data)
    if temperature is not None:
        spoken["scaled"] = spoken["private"] / temperature.value
    owner = np.arange(len(data)) if data.unit is None else np.unique(data.unit.numpy(), return_inverse=True)[1]
    answers = {which: answers_of(z, data.y, owner, which) for which, z in spoken.items()}
    binned = binned_by_score(answers, bins)
    with Bar(progress, resamples * (1 + len(answers)), "resampling") as advance:
        ece, chance = errors_of(answers, binned, generator, level, resamples, advance)
    scores = _scores(answers, ece, owner, level, bins, smallest_bin)
    status, scaling = status_of(data, twin), None
    if temperature is not None:
        given = temperature.status
        scaling = Scaling(temperature.value, temperature.n, given.status, given.reason)
        if status.status == "private" and given.status != "private":
            status = given
    return Calibration(
        headline=_headline(scores),
        values=Values(
            scores=scores,
            chance=chance["ECE"],
            bins={which: bins_of(a, bins, smallest_bin, level) for which, a in answers.items()},
            sides={which: sides_of(a, bins) for which, a in answers.items()},
            groups=_groups(data, answers, level),
            temperature=scaling,
        ),
        settings={
            "rows": len(data),
            "people": int(owner.max()) + 1,
            "level": level,
            "bins": bins,
            "smallest_bin": smallest_bin,
            "smallest_part": SMALLEST,
            "resamples": resamples,
        },
        status=status,
    )


def _scores(
    answers: dict[str, Answers], ece: Scores, owner: np.ndarray, level: float, bins: int, smallest_bin: int
) -> Scores:
    """Every score by model; `difference` is private - twin, `gain` scaled - private."""
    scores = dict(ece)
    for name, smallest in {"MCE": smallest_bin, "MCE, all bins": 1}.items():
        largest = largest_errors(answers, bins, smallest, level)
        if largest is not None:
            scores[name] = largest
    gaps = {which: a.confidence - a.hits for which, a in answers.items()}
    scores["over-confidence"] = with_unseen(means(gaps, level, owner=owner), answers, level, signed=True)
    scores["accuracy"] = shares({which: a.hits for which, a in answers.items()}, level, owner)
    scores["Brier"] = means({which: a.brier for which, a in answers.items()}, level, 0.0, owner)
    scores["NLL"] = means({which: a.nll for which, a in answers.items()}, level, 0.0, owner)
    order = ["ECE", *(f"ECE, {count} bins" for count in ALSO), "adaptive ECE", "MCE", "MCE, all bins"]
    order += ["over-confidence", "accuracy", "Brier", "NLL"]
    return {name: _in_order(scores[name]) for name in order if name in scores}


def _in_order(estimates: Estimates) -> Estimates:
    return {name: estimates[name] for name in ("private", "twin", "difference", "scaled", "gain") if name in estimates}


def _groups(data: Data, answers: dict[str, Answers], level: float) -> list[Group]:
    """Over-confidence of each group that is large enough; a model can be right on average and wrong for everyone."""
    gaps, owner = {which: a.confidence - a.hits for which, a in answers.items()}, owners(data)
    return [
        Group(
            by,
            name,
            people(data, rows),
            _in_order(
                means(
                    {w: gap[rows] for w, gap in gaps.items()},
                    level,
                    owner=of_rows(owner, rows),
                    together=len(shown),
                )
            ),
        )
        for by, members in named_parts(data).items()
        if by != "class"  # unknown when the model speaks: confidence is not meant to match it by class
        for shown in [large_enough(data, members)]
        for name, rows in shown.items()
    ]


def _headline(scores: Scores) -> dict[str, Estimate]:
    wanted: Sequence[tuple[str, str, str]] = [
        ("ECE", "ECE", "private"),
        ("over-confidence", "over-confidence", "private"),
        ("MCE", "MCE", "private"),
        ("twin ECE", "ECE", "twin"),
        ("excess ECE", "ECE", "difference"),
        ("twin over-confidence", "over-confidence", "twin"),
        ("excess over-confidence", "over-confidence", "difference"),
        ("ECE with temperature", "ECE", "scaled"),
    ]
    return {name: scores[score][which] for name, score, which in wanted if which in scores.get(score, {})}


def _score_cell(name: str, which: str, e: Estimate) -> str:
    if name in ("Brier", "NLL"):
        return fixed_cell(e, 3)
    signed = which in ("difference", "gain") or name == "over-confidence"
    return points_cell(e) if signed else share_cell(e)


AUDIT = Audit("calibration", calibration, takes="Does not retrain; seconds.", usual=True, classes=True)

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
