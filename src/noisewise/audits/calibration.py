"""Calibration: is the model right as often as it says it is, and what would a temperature change?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from noisewise.audits.outputs import logits, status_of
from noisewise.audits.people import (
    PAIRS,
    SMALLEST,
    Estimates,
    large_enough,
    means,
    named_parts,
    of_rows,
    owners,
    pairs,
    people,
    shares,
)
from noisewise.audits.result import FAINT, INK, Figure, Result, Table
from noisewise.audits.show import Advance, Bar, dress, fixed_cell, points_cell, share_cell
from noisewise.errors import ConfigError, DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate
from noisewise.wording import level as level_of
from noisewise.wording import number, percent, percent_interval, points, points_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.data import Data
    from noisewise.repairs.temperature import Temperature

TAKES = "Does not retrain; seconds."
BINS = 15
ALSO = (10, 20)
RESAMPLES = 1000
_AT_ONCE = 20  # resamples in one matrix product
OVER, UNDER = "#c8443c", "#2a9d8f"  # more confident than right, and less: readable on light and dark, and without red
_NAMES = {"private": "private model", "twin": "twin", "scaled": "private model with temperature"}


def equal_width(confidence: np.ndarray, bins: int) -> np.ndarray:
    """Number of each row's bin: `(b/M, (b+1)/M]`, b = 0 .. M-1. Reference: Guo et al. 2017, arXiv:1706.04599, sec. 2."""
    edges = np.linspace(0, 1, bins + 1)
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)


def equal_count(confidence: np.ndarray, bins: int) -> np.ndarray:
    """Number of each row's bin when bins hold equally many rows, up to ties, which stay together.

    Reference: Nguyen, O'Connor 2015, arXiv:1508.05154, sec. 4.
    """
    n = len(confidence)
    last = np.ceil(n * np.arange(1, bins + 1) / bins).astype(int) - 1
    return np.searchsorted(np.sort(confidence)[np.maximum(last, 0)], confidence, side="left")


def calibration_error(confidence: np.ndarray, hits: np.ndarray, bin_of: np.ndarray) -> float:
    """Expected calibration error `sum_b |b|/n |acc(b) - conf(b)|`. Reference: Naeini et al. 2015; Guo et al. 2017, eq. 3."""
    return float(np.abs(np.bincount(bin_of, hits - confidence)).sum() / len(hits))


def largest_error(confidence: np.ndarray, hits: np.ndarray, bin_of: np.ndarray, smallest: int = 1) -> float:
    """Maximum calibration error `max_b |acc(b) - conf(b)|` over bins of at least `smallest` rows; nan if there are none.

    Reference: Guo et al. 2017, arXiv:1706.04599, eq. 5.
    """
    count = np.bincount(bin_of)
    gaps = np.abs(np.bincount(bin_of, hits - confidence)[count >= max(smallest, 1)])
    return float((gaps / count[count >= max(smallest, 1)]).max()) if len(gaps) else math.nan


@dataclass(frozen=True)
class Bin:
    """People with a confidence in `(low, high]`; `accuracy` has an interval and is hidden (None) for small bins."""

    low: float
    high: float
    n: int
    confidence: float | None
    accuracy: Estimate | None


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

    @property
    def models(self) -> list[str]:
        """`private`, and if given `twin` and `scaled` (the private model with a temperature)."""
        return list(self.values["bins"])

    def bins(self, which: str = "private") -> list[Bin]:
        """The bins of a model, by confidence."""
        return [Bin(**raw) for raw in self.values["bins"][which]]

    def scores(self, name: str) -> dict[str, Estimate]:
        """Estimates of a score by model, e.g. `ECE`, `adaptive ECE`, `Brier`, `NLL`; differences to the private model."""
        return self.values["scores"][name]

    def chance(self, which: str = "private") -> dict[str, float]:
        """ECE of a perfectly calibrated model with the same confidences: `mean`, `high` (95 % are below), `p`."""
        return self.values["chance"][which]

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
        ax.set_xlim(0, 1)
        ax.set_ylim(-depth - 0.04, 1.02)
        ticks = [0, 0.2, 0.4, 0.6, 0.8, 1.0]
        ax.set_xticks(ticks, labels=[f"{100 * t:.0f}" for t in ticks])
        ax.set_yticks([-depth, *ticks], labels=[f"{most:,} people", *(f"{100 * t:.0f}" for t in ticks)])
        keys = [
            Patch(facecolor=OVER, alpha=0.85, label="over-confident"),
            Patch(facecolor=UNDER, alpha=0.85, hatch="////", edgecolor=ax.get_facecolor(), label="under-confident"),
        ]
        ax.legend(handles=keys, frameon=False, labelcolor=INK, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        return dress(ax, "confidence, %", "right, %", grid="none")

    def figures(self) -> list[Figure]:
        """A reliability diagram for each model."""
        found = []
        for which in self.models:
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
            found.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_reliability, which=which), 10))
        return found

    def sentences(self) -> list[str]:
        """How far confidence is off and in which direction; what privacy changed; what is hidden; the temperature."""
        said = [*self._in_words("private")]
        if "twin" in self.models:
            said += self._in_words("twin")
            excess = self.scores("ECE")["difference"]
            sure = "" if excess.excludes_zero else ", which chance can explain"
            said.append(
                f"The private model's calibration error is {points(excess)} points from its twin's (interval "
                f"{points_interval(excess)}{sure})."
            )
        hidden = [b.n for b in self.bins() if b.n and b.accuracy is None]
        if hidden:
            said.append(
                f"Bins of the private model with fewer than {self.settings['smallest_bin']} people ({len(hidden)} of "
                f"{len(self.bins())}) are counted, not shown, and left out of MCE."
            )
        if "scaled" in self.models:
            scaled = self.values["temperature"]
            ece = self.scores("ECE")
            free = "" if scaled["status"] == "private" else f" It is {scaled['status']}: {scaled['reason']}."
            said.append(
                f"Dividing outputs by a temperature of {number(scaled['value'])} changes the calibration error from "
                f"{percent(ece['private'])} to {percent(ece['scaled'])} and no decision.{free}"
            )
        return said

    def _in_words(self, which: str) -> list[str]:
        ece, gap, chance = self.scores("ECE")[which], self.scores("over-confidence")[which], self.chance(which)
        name = f"The {_NAMES[which]}"
        first = (
            f"{name} misjudges how sure it can be by {percent(ece)} on average (ECE, {level_of(ece)} interval "
            f"{percent_interval(ece)}; a perfectly calibrated model would show {100 * chance['mean']:.1f} % by chance)."
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
        found = [
            Table(
                f"Calibration on the test part, {level} intervals; ECE, MCE and over-confidence in %, differences in points",
                ["", *(heads.get(name, name) for name in columns)],
                [
                    [name, *(_score_cell(name, which, scores[which]) for which in columns)]
                    for name, scores in self.values["scores"].items()
                ],
            )
        ]
        if self.values["groups"]:
            found.append(
                Table(
                    f"Over-confidence (mean confidence − accuracy) by group, points, {level} intervals",
                    ["", "people", *(heads.get(name, name) for name in self.values["groups"][0]["gap"])],
                    [
                        [f"{group['by']} {group['name']}", f"{group['n']:,}", *map(points_cell, group["gap"].values())]
                        for group in self.values["groups"]
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
            found.append(Table(caption, ["confidence", "people", "mean confidence", "right"], rows))
        return found


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
    for name, value in {"bins": bins, "smallest_bin": smallest_bin, "resamples": resamples}.items():
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} {value!r}: must be a whole number above 0.")
    generator = np.random.default_rng(0) if generator is None else generator
    found = {"private": logits(model, data)}
    if twin is not None:
        found["twin"] = logits(twin, data)
    if temperature is not None:
        found["scaled"] = found["private"] / temperature.value
    owner = np.arange(len(data)) if data.unit is None else np.unique(data.unit.numpy(), return_inverse=True)[1]
    answers = {which: _answers(z, data.y, owner, which) for which, z in found.items()}
    binned = _binned(answers, bins)
    with Bar(progress, resamples * (1 + len(answers)), "resampling") as advance:
        drawn = _bootstrapped(binned, owner, generator, level, resamples, advance)
        by_model = {
            which: _chance(a, {name: of[which][1] for name, of in binned.items()}, generator, resamples, advance)
            for which, a in answers.items()
        }
    chance = {name: {which: found[name] for which, found in by_model.items()} for name in binned}
    near = _from_zero(drawn, chance, level)
    ece = {name: _with_unseen(found, answers, level, signed=False) for name, found in near.items()}
    scores = _scores(answers, ece, owner, level, bins, smallest_bin)
    values: dict[str, Any] = {
        "scores": scores,
        "chance": chance["ECE"],
        "bins": {which: _bins(a, bins, smallest_bin, level) for which, a in answers.items()},
        "sides": {which: _sides(a, bins) for which, a in answers.items()},
        "groups": _groups(data, answers, level),
    }
    status = status_of(data, twin)
    if temperature is not None:
        given = temperature.status
        values["temperature"] = {
            "value": temperature.value,
            "n": temperature.n,
            "status": given.status,
            "reason": given.reason,
        }
        if status.status == "private" and given.status != "private":
            status = given
    return Calibration(
        headline=_headline(scores),
        values=values,
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


@dataclass(frozen=True)
class _Answers:
    """Of every row: whose it is, confidence, right or wrong, Brier score and cross-entropy."""

    owner: np.ndarray
    confidence: np.ndarray
    hits: np.ndarray
    brier: np.ndarray
    nll: np.ndarray

    def has(self, rows: np.ndarray, smallest: int) -> bool:
        """Do at least so many people own these rows?"""
        return len(np.unique(self.owner[rows])) >= smallest


def _answers(z: Tensor, y: Tensor, owner: np.ndarray, which: str) -> _Answers:
    import torch
    from torch.nn.functional import cross_entropy, one_hot

    if not bool(torch.isfinite(z).all()):
        raise DataError(f"the {which} model gives outputs that are not finite: it has no confidence to look at.")
    p = z.softmax(1)
    confidence, said = p.max(1)
    brier = (p - one_hot(y, z.shape[1])).square().sum(1)
    nll = cross_entropy(z, y, reduction="none")
    return _Answers(owner, confidence.numpy(), (said == y).double().numpy(), brier.numpy(), nll.numpy())


Scores = dict[str, Estimates]
Binned = dict[str, dict[str, tuple[_Answers, np.ndarray]]]


def _binned(answers: dict[str, _Answers], bins: int) -> Binned:
    """By score and model: the answers, and the bin of every row."""
    rules = {"ECE": partial(equal_width, bins=bins), "adaptive ECE": partial(equal_count, bins=bins)}
    rules |= {f"ECE, {count} bins": partial(equal_width, bins=count) for count in ALSO if count != bins}
    return {name: {which: (a, rule(a.confidence)) for which, a in answers.items()} for name, rule in rules.items()}


def _scores(
    answers: dict[str, _Answers], ece: Scores, owner: np.ndarray, level: float, bins: int, smallest_bin: int
) -> Scores:
    """Every score by model; `difference` is private - twin, `gain` scaled - private."""
    found = dict(ece)
    for name, smallest in {"MCE": smallest_bin, "MCE, all bins": 1}.items():
        largest = _largest_errors(answers, bins, smallest, level)
        if largest is not None:
            found[name] = largest
    gaps = {which: a.confidence - a.hits for which, a in answers.items()}
    found["over-confidence"] = _with_unseen(means(gaps, level, owner=owner), answers, level, signed=True)
    found["accuracy"] = shares({which: a.hits for which, a in answers.items()}, level, owner)
    found["Brier"] = means({which: a.brier for which, a in answers.items()}, level, 0.0, owner)
    found["NLL"] = means({which: a.nll for which, a in answers.items()}, level, 0.0, owner)
    order = ["ECE", *(f"ECE, {count} bins" for count in ALSO), "adaptive ECE", "MCE", "MCE, all bins"]
    order += ["over-confidence", "accuracy", "Brier", "NLL"]
    return {name: _in_order(found[name]) for name in order if name in found}


def _in_order(estimates: Estimates) -> Estimates:
    return {name: estimates[name] for name in ("private", "twin", "difference", "scaled", "gain") if name in estimates}


def _from_zero(ece: Scores, chance: dict[str, dict[str, dict[str, float]]], level: float) -> Scores:
    """Intervals start at 0 where a perfectly calibrated model would not be surprising: there the bootstrap fails.

    Differences to such a model reach as far as the ends of both intervals do: its ECE is bias, which resamples share, so
    that pairing them shows too little of it.
    """
    found: Scores = {}
    for name, estimates in ece.items():
        calm = {which for which, drawn in chance[name].items() if drawn["p"] > (1 - level) / 2}
        mine = {which: replace(e, low=0.0) if which in calm else e for which, e in estimates.items()}
        for pair, (first, second) in pairs(mine).items():
            if calm & {first, second}:
                apart = intervals.difference(mine[first], mine[second], level)
                paired = mine[pair]
                mine[pair] = replace(paired, low=min(paired.low, apart.low), high=max(paired.high, apart.high))
        found[name] = mine
    return found


def _with_unseen(estimates: Estimates, answers: dict[str, _Answers], level: float, *, signed: bool) -> Estimates:
    """Intervals of a model that is always right, or always wrong, reach as far as that of its accuracy does.

    Rows that all end alike show no variance, so t and bootstrap would claim to know the rate of what was not seen. An
    accuracy that is lower moves mean confidence - accuracy (`signed`) up by as much; ECE moves by at most as much.
    """
    reach = {}
    for which, a in answers.items():
        right = intervals.share(a.hits, level, a.owner)
        alike = right.value in (0.0, 1.0)
        reach[which] = (right.high - right.value, right.value - right.low) if alike else (0.0, 0.0)
    found = {}
    for name, e in estimates.items():
        first, *second = PAIRS.get(name, (name,))
        below = reach[first][0] + sum(reach[other][1] for other in second)
        above = reach[first][1] + sum(reach[other][0] for other in second)
        if not signed:
            below = above = below + above
        floor = -1.0 if signed or second else 0.0
        wider = replace(e, low=max(e.low - below, floor), high=min(e.high + above, 1.0))
        found[name] = wider if below or above else e
    return found


def _bootstrapped(
    binned: Binned, owner: np.ndarray, generator: np.random.Generator, level: float, resamples: int, advance: Advance
) -> Scores:
    """ECE of every binning and model, and paired differences, from the same resampled people."""
    count = int(owner.max()) + 1
    blocks: dict[tuple[str, str], slice] = {}
    columns: list[np.ndarray] = []
    for name, models in binned.items():
        for which, (a, bin_of) in models.items():
            sums = np.zeros((count, int(bin_of.max()) + 1))
            np.add.at(sums, (owner, bin_of), a.hits - a.confidence)
            start = sum(c.shape[1] for c in columns)
            blocks[name, which] = slice(start, start + sums.shape[1])
            columns.append(sums)
    table = np.hstack([*columns, np.bincount(owner, minlength=count)[:, None]])
    parts = []
    for done in range(0, resamples, _AT_ONCE):
        times = min(_AT_ONCE, resamples - done)
        parts.append(_resampled(count, times, generator) @ table)
        advance(times)
    totals = np.vstack(parts)
    drawn = {key: np.abs(totals[:, block]).sum(1) / totals[:, -1] for key, block in blocks.items()}
    seen = {key: float(np.abs(table[:, block].sum(0)).sum() / len(owner)) for key, block in blocks.items()}
    found: Scores = {}
    for name, models in binned.items():
        found[name] = {
            which: replace(e, low=max(e.low, 0.0), high=min(e.high, 1.0))
            for which in models
            for e in [_both_ways(seen[name, which], drawn[name, which], count, level)]
        }
        for pair, (first, second) in pairs(models).items():
            value = seen[name, first] - seen[name, second]
            found[name][pair] = _both_ways(value, drawn[name, first] - drawn[name, second], count, level)
    return found


def _resampled(count: int, times: int, generator: np.random.Generator) -> np.ndarray:
    """How often each person is drawn, in some of the resamples: `[times, count]`."""
    drawn = [np.bincount(generator.integers(count, size=count), minlength=count) for _ in range(times)]
    return np.stack(drawn).astype(np.float64)


def _both_ways(value: float, drawn: np.ndarray, n: int, level: float) -> Estimate:
    """The hull of the percentile and the basic bootstrap interval, `q` and `2 value - q`.

    A resample has about twice the upward bias of the sample: mirrored quantiles correct for it and may end too low,
    plain ones do not and may start too high. The hull errs on the wide side.
    """
    low, high = (float(q) for q in np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]))
    ends = (low, high, 2 * value - low, 2 * value - high, value)
    return Estimate(value, min(ends), max(ends), n, level, "bootstrap over people, hull")


def _largest_errors(answers: dict[str, _Answers], bins: int, smallest: int, level: float) -> dict[str, Estimate] | None:
    """MCE of each model, and differences that hold whatever the dependence; None if no bin is large enough."""
    found = {which: _largest_error(a, bins, smallest, level) for which, a in answers.items()}
    if any(estimate is None for estimate in found.values()):
        return None
    result = {which: estimate for which, estimate in found.items() if estimate is not None}
    for name, pair in pairs(answers).items():
        first, second = (_largest_error(answers[w], bins, smallest, intervals.each(level, 2)) for w in pair)
        assert first is not None
        assert second is not None
        result[name] = intervals.difference(first, second, level)
    return result


def _largest_error(answers: _Answers, bins: int, smallest: int, level: float) -> Estimate | None:
    """If every bin's accuracy is in its interval, the largest gap is between the largest low and the largest high."""
    bin_of = equal_width(answers.confidence, bins)
    kept = [rows for b in range(bins) if answers.has(rows := np.flatnonzero(bin_of == b), smallest)]
    if not kept:
        return None
    gaps = []
    for rows in kept:
        right = intervals.share(answers.hits[rows], intervals.each(level, len(kept)), answers.owner[rows])
        sure = float(answers.confidence[rows].mean())
        near = max(right.low - sure, sure - right.high, 0.0)
        gaps.append((abs(right.value - sure), near, max(abs(right.low - sure), abs(right.high - sure)), right.n))
    largest = max(gaps)
    low, high = max(gap[1] for gap in gaps), max(gap[2] for gap in gaps)
    return Estimate(largest[0], low, high, largest[3], level, "Wilson, Bonferroni")


def _chance(
    answers: _Answers, binnings: dict[str, np.ndarray], generator: np.random.Generator, resamples: int, advance: Advance
) -> dict[str, dict[str, float]]:
    """ECE if every row were right just as likely as its confidence says: mean, 95 % quantile, p-value, by binning.

    People are independent; rows of one person are right and wrong together, the most that chance can do.
    """
    order, count = np.argsort(answers.confidence), int(answers.owner.max()) + 1
    sure, owner = answers.confidence[order], answers.owner[order]
    starts = {name: np.flatnonzero(np.diff(bin_of[order], prepend=-1)) for name, bin_of in binnings.items()}

    def errors(hits: np.ndarray) -> list[float]:
        # a bin's rows are neighbours here, so its sum needs no sorting
        off = hits - sure
        return [float(np.abs(np.add.reduceat(off, first)).sum() / len(off)) for first in starts.values()]

    drawn = []
    for _ in range(resamples):
        drawn.append(errors(generator.random(count)[owner] < sure))
        advance()
    seen = errors(answers.hits[order])
    return {
        name: {
            "mean": float(column.mean()),
            "high": float(np.quantile(column, 0.95)),
            "p": (1 + int((column >= own).sum())) / (1 + resamples),
        }
        for name, column, own in zip(binnings, np.array(drawn).T, seen, strict=True)
    }


def _sides(answers: _Answers, bins: int) -> dict[str, float]:
    """ECE in two: the part of bins that are over-confident, and of those that are under-confident."""
    gaps = np.bincount(equal_width(answers.confidence, bins), answers.confidence - answers.hits) / len(answers.hits)
    return {"over": float(gaps[gaps > 0].sum()), "under": float(-gaps[gaps < 0].sum())}


def _bins(answers: _Answers, bins: int, smallest: int, level: float) -> list[dict[str, Any]]:
    edges, bin_of = np.linspace(0, 1, bins + 1), equal_width(answers.confidence, bins)
    found = []
    for b in range(bins):
        rows = np.flatnonzero(bin_of == b)
        shown = answers.has(rows, smallest)
        found.append(
            Bin(
                float(edges[b]),
                float(edges[b + 1]),
                len(np.unique(answers.owner[rows])),
                float(answers.confidence[rows].mean()) if shown else None,
                intervals.share(answers.hits[rows], level, answers.owner[rows]) if shown else None,
            )
        )
    return [vars(b) for b in found]


def _groups(data: Data, answers: dict[str, _Answers], level: float) -> list[dict[str, Any]]:
    """Over-confidence of each group that is large enough; a model can be right on average and wrong for everyone."""
    gaps, owner = {which: a.confidence - a.hits for which, a in answers.items()}, owners(data)
    return [
        {
            "by": by,
            "name": name,
            "n": people(data, rows),
            "gap": _in_order(means({w: gap[rows] for w, gap in gaps.items()}, level, owner=of_rows(owner, rows))),
        }
        for by, members in named_parts(data).items()
        if by != "class"  # unknown when the model speaks: confidence is not meant to match it by class
        for name, rows in large_enough(data, members).items()
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
