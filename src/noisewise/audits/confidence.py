"""Confidence against being right: bins, calibration errors, their intervals and what chance alone would show."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from noisewise.audits.people import PAIRS, Estimates, pairs
from noisewise.audits.show import Advance
from noisewise.errors import DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import Estimate

if TYPE_CHECKING:
    from torch import Tensor


ALSO = (10, 20)  # numbers of bins that ECE is shown for besides
_AT_ONCE = 20  # resamples in one matrix product


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


@dataclass(frozen=True)
class Chance:
    """ECE of a perfectly calibrated model with the same confidences: its mean, what 95 % are below, and the p-value."""

    mean: float
    high: float
    p: float


@dataclass(frozen=True)
class Sides:
    """ECE in two: of bins that are over-confident, and of those that are under-confident."""

    over: float
    under: float


@dataclass(frozen=True)
class Answers:
    """Of every row: whose it is, confidence, right or wrong, Brier score and cross-entropy."""

    owner: np.ndarray
    confidence: np.ndarray
    hits: np.ndarray
    brier: np.ndarray
    nll: np.ndarray

    def has(self, rows: np.ndarray, smallest: int) -> bool:
        """Do at least so many people own these rows?"""
        return len(np.unique(self.owner[rows])) >= smallest


def answers_of(z: Tensor, y: Tensor, owner: np.ndarray, which: str) -> Answers:
    """Of every row of a model's outputs `z`."""
    import torch
    from torch.nn.functional import cross_entropy, one_hot

    if not bool(torch.isfinite(z).all()):
        raise DataError(f"the {which} model gives outputs that are not finite: it has no confidence to look at.")
    p = z.softmax(1)
    confidence, answer = p.max(1)
    brier = (p - one_hot(y, z.shape[1])).square().sum(1)
    nll = cross_entropy(z, y, reduction="none")
    return Answers(owner, confidence.numpy(), (answer == y).double().numpy(), brier.numpy(), nll.numpy())


Scores = dict[str, Estimates]


Binned = dict[str, dict[str, tuple[Answers, np.ndarray]]]


def binned_by_score(answers: dict[str, Answers], bins: int) -> Binned:
    """By score and model: the answers, and the bin of every row."""
    rules = {"ECE": partial(equal_width, bins=bins), "adaptive ECE": partial(equal_count, bins=bins)}
    rules |= {f"ECE, {count} bins": partial(equal_width, bins=count) for count in ALSO if count != bins}
    return {name: {which: (a, rule(a.confidence)) for which, a in answers.items()} for name, rule in rules.items()}


def from_zero(ece: Scores, chance: dict[str, dict[str, Chance]], level: float) -> Scores:
    """Intervals start at 0 where a perfectly calibrated model would not be surprising: there the bootstrap fails.

    Differences to such a model reach as far as the ends of both intervals do: its ECE is bias, which resamples share, so
    that pairing them shows too little of it.
    """
    scores: Scores = {}
    for name, estimates in ece.items():
        calm = {which for which, drawn in chance[name].items() if drawn.p > (1 - level) / 2}
        lowered = {which: replace(e, low=0.0) if which in calm else e for which, e in estimates.items()}
        for pair, (first, second) in pairs(lowered).items():
            if calm & {first, second}:
                apart = intervals.difference(lowered[first], lowered[second], level)
                paired = lowered[pair]
                lowered[pair] = replace(paired, low=min(paired.low, apart.low), high=max(paired.high, apart.high))
        scores[name] = lowered
    return scores


def with_unseen(estimates: Estimates, answers: dict[str, Answers], level: float, *, signed: bool) -> Estimates:
    """Intervals of a model that is always right, or always wrong, reach as far as that of its accuracy does.

    Rows that all end alike show no variance, so t and bootstrap would claim to know the rate of what was not seen. An
    accuracy that is lower moves mean confidence - accuracy (`signed`) up by as much; ECE moves by at most as much.
    """
    reach = {}
    for which, a in answers.items():
        right = intervals.share(a.hits, level, a.owner)
        alike = right.value in (0.0, 1.0)
        reach[which] = (right.high - right.value, right.value - right.low) if alike else (0.0, 0.0)
    widened = {}
    for name, e in estimates.items():
        first, *second = PAIRS.get(name, (name,))
        below = reach[first][0] + sum(reach[other][1] for other in second)
        above = reach[first][1] + sum(reach[other][0] for other in second)
        if not signed:
            below = above = below + above
        floor = -1.0 if signed or second else 0.0
        wider = replace(e, low=max(e.low - below, floor), high=min(e.high + above, 1.0))
        widened[name] = wider if below or above else e
    return widened


def errors_of(
    answers: dict[str, Answers],
    binned: Binned,
    generator: np.random.Generator,
    level: float,
    resamples: int,
    advance: Advance,
) -> tuple[Scores, dict[str, dict[str, Chance]]]:
    """Calibration errors of every binning and model, with paired differences; and what chance alone would show.

    Intervals: the bootstrap over people (`bootstrapped`), from 0 where perfect calibration is not rejected (`from_zero`),
    as far as that of the accuracy for a model that is always right or wrong (`with_unseen`).
    """
    owner = next(iter(answers.values())).owner
    drawn = bootstrapped(binned, owner, generator, level, resamples, advance)
    by_model = {
        which: chance_of(a, {name: of[which][1] for name, of in binned.items()}, generator, resamples, advance)
        for which, a in answers.items()
    }
    chance = {name: {which: of[name] for which, of in by_model.items()} for name in binned}
    near = from_zero(drawn, chance, level)
    return {name: with_unseen(estimates, answers, level, signed=False) for name, estimates in near.items()}, chance


def bootstrapped(
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
    scores: Scores = {}
    for name, models in binned.items():
        scores[name] = {
            which: replace(e, low=max(e.low, 0.0), high=min(e.high, 1.0))
            for which in models
            for e in [_both_ways(seen[name, which], drawn[name, which], count, level)]
        }
        for pair, (first, second) in pairs(models).items():
            value = seen[name, first] - seen[name, second]
            scores[name][pair] = _both_ways(value, drawn[name, first] - drawn[name, second], count, level)
    return scores


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


def largest_errors(answers: dict[str, Answers], bins: int, smallest: int, level: float) -> dict[str, Estimate] | None:
    """MCE of each model, and differences that hold whatever the dependence; None if no bin is large enough."""
    largest = {which: _largest_error(a, bins, smallest, level) for which, a in answers.items()}
    if any(estimate is None for estimate in largest.values()):
        return None
    result = {which: estimate for which, estimate in largest.items() if estimate is not None}
    for name, pair in pairs(answers).items():
        first, second = (_largest_error(answers[w], bins, smallest, intervals.each(level, 2)) for w in pair)
        assert first is not None
        assert second is not None
        result[name] = intervals.difference(first, second, level)
    return result


def _largest_error(answers: Answers, bins: int, smallest: int, level: float) -> Estimate | None:
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


def chance_of(
    answers: Answers, binnings: dict[str, np.ndarray], generator: np.random.Generator, resamples: int, advance: Advance
) -> dict[str, Chance]:
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
        name: Chance(
            mean=float(column.mean()),
            high=float(np.quantile(column, 0.95)),
            p=(1 + int((column >= seen_error).sum())) / (1 + resamples),
        )
        for name, column, seen_error in zip(binnings, np.array(drawn).T, seen, strict=True)
    }


def sides_of(answers: Answers, bins: int) -> Sides:
    """ECE in two: the part of bins that are over-confident, and of those that are under-confident."""
    gaps = np.bincount(equal_width(answers.confidence, bins), answers.confidence - answers.hits) / len(answers.hits)
    return Sides(over=float(gaps[gaps > 0].sum()), under=float(-gaps[gaps < 0].sum()))


def bins_of(answers: Answers, bins: int, smallest: int, level: float) -> list[Bin]:
    """Bins of equal width; small ones are counted, not shown."""
    edges, bin_of = np.linspace(0, 1, bins + 1), equal_width(answers.confidence, bins)
    kept = []
    for b in range(bins):
        rows = np.flatnonzero(bin_of == b)
        shown = answers.has(rows, smallest)
        kept.append(
            Bin(
                float(edges[b]),
                float(edges[b + 1]),
                len(np.unique(answers.owner[rows])),
                float(answers.confidence[rows].mean()) if shown else None,
                intervals.share(answers.hits[rows], level, answers.owner[rows]) if shown else None,
            )
        )
    return kept
