"""Diagnoses: each a function from evidence to advice, or to nothing. A new one is a function here and a line in `RULES`.

Thresholds were set on held-out parts of training data with seeds that the measurement does not use (docs/advice.md).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from noisewise.advice.advice import FREE, Advice, another_run, rerun
from noisewise.advice.evidence import Evidence
from noisewise.advice.measured import NOT_MEASURED, gain
from noisewise.estimates.estimate import Estimate
from noisewise.wording import fixed, number, percent, percent_interval, points, points_interval

SMALL_RATE = 1 / 8  # of people in a step; below it larger batches were found to pay
LARGER = 4
FEWEST = 60  # steps that larger batches must leave: with 50 of them digits lost
MISJUDGED = 0.05  # over-confidence that is worth a run
SCREEN = 10  # times the bound: where global clipping begins to look for a screen
DROWNED = 2.0  # times the people that there are in a class of average size
SLOWER = 3.0  # by which a twin's learning rate is divided


def noise_bound(evidence: Evidence) -> Advice | None:
    """Many small batches: the same passes over the data in fewer, larger batches gather less noise at the same epsilon."""
    settings, name = evidence.settings, "noise-bound"
    if settings["sampler"] != "poisson" or settings["repairs"] or evidence.rate > SMALL_RATE:
        return None
    signal = evidence.signal
    if signal is not None and signal.everyone.whole.low >= 1:
        return None
    batch = min(LARGER * settings["batch_size"], evidence.n // 2)
    steps = -(-settings["steps"] * settings["batch_size"] // batch)
    if steps < FEWEST:
        return None
    heard = "" if signal is None else (
        f" The people's common gradient is {fixed(signal.everyone.whole.value, 3)} times as long as the noise of a step "
        f"(interval {_interval(signal.everyone.whole, 3)})."
    )  # fmt: skip
    classes = evidence.task == "classification"
    return Advice(
        diagnosis=name,
        advice=f"Take batches of {batch:,} instead of {settings['batch_size']:,}, and as many passes over the data.",
        evidence=f"A step sees {100 * evidence.rate:.2g} % of the {evidence.n:,} people, and there are {settings['steps']:,} "
        f"steps, each with noise.{heard}{_cost(evidence)}",
        aim="accuracy" if classes else "squared error",
        gain=gain(name, "accuracy") if classes else NOT_MEASURED,
        command=rerun(evidence, "larger-batches", "--set", f"batch_size={batch}", "--set", f"steps={steps}"),
        privacy=another_run(evidence),
    )


def too_few_people(evidence: Evidence) -> Advice | None:
    """The noise in so many weights is longer than what all people of a class can say."""
    name, classes = "too few people", len(evidence.class_sizes)
    if (
        classes < 2
        or evidence.settings["repairs"]
        or evidence.settings["model"].partition(":")[0] in ("logistic", "table")
    ):
        return None
    if evidence.drowned < DROWNED * evidence.average_class:
        return None
    return Advice(
        diagnosis=name,
        advice="Train a smaller model, here a linear one; or collect more people, or allow a larger epsilon.",
        evidence=f"Noise on {evidence.coordinates:,} weights is as long as what {number(evidence.drowned)} people can say over "
        f"the run; a class of average size has {number(evidence.average_class)}.{_cost(evidence)}",
        aim="accuracy",
        gain=gain(name, "accuracy"),
        command=rerun(evidence, "smaller-model", "--model", "logistic"),
        privacy=another_run(evidence),
    )


def clipping_bound(evidence: Evidence) -> Advice | None:
    """Clipping shortens those whom the model gets wrong, so that it grows too sure of itself."""
    name, settings = "clipping-bound", evidence.settings
    calibration, clipping = evidence.calibration, evidence.clipping
    if calibration is None or clipping is None or settings["clip"] != "flat" or settings["repairs"]:
        return None
    over, clipped = calibration.headline["over-confidence"], clipping.headline["clipped"]
    if over.low < MISJUDGED or clipped.value < 0.1:
        return None
    cosine = clipping.headline.get("cosine")
    turned = "" if cosine is None else f" and turns the mean gradient (cosine {fixed(cosine.value)}; 1 is not at all)"
    return Advice(
        diagnosis=name,
        advice="Scale all gradients alike instead of clipping the long ones (Global-Adapt): for calibration, not for accuracy.",
        evidence=f"Mean confidence is {points(over)} points from accuracy (interval {points_interval(over)}). Clipping "
        f"shortens {percent(clipped)} of the people (interval {percent_interval(clipped)}){turned}.",
        aim="calibration",
        gain=gain(name, "ece"),
        command=rerun(evidence, "global-adapt", "--repair", f"global-adapt:screen={SCREEN * settings['bound']:g}"),
        privacy=another_run(evidence),
    )


def imbalanced(evidence: Evidence) -> Advice | None:
    """A class that is smaller than others pays more than everyone."""
    name, disparity = "imbalanced", evidence.disparity
    if disparity is None or not evidence.class_sizes:
        return None
    cost = disparity.extremes().cost
    overall = disparity.everyone.accuracy.get("difference")
    if cost is None or overall is None or cost.largest.high >= min(0.0, overall.low):
        return None
    size, average = evidence.class_sizes.get(cost.name, 0), evidence.average_class
    if size >= average / 2:
        return None
    return Advice(
        diagnosis=name,
        advice=f"Find more people of class {cost.name}, or compare what larger epsilons buy; no repair here was found to help.",
        evidence=f"Class {cost.name} has {size:,} of {evidence.n:,} people and pays {points(cost.largest)} points (interval "
        f"{points_interval(cost.largest)}), everyone {points(overall)}. The noise is as long as what "
        f"{number(evidence.drowned)} people can say.",
        aim="the smallest class",
        gain=NOT_MEASURED,
        command=shlex.join(["noisewise", "plan", "--n", str(evidence.n), "--runs", evidence.folder]),
        privacy="None: it reads results of runs, not people.",
    )


def miscalibrated(evidence: Evidence) -> Advice | None:
    """The model is surer, or less sure, than it is right."""
    name, calibration = "miscalibrated", evidence.calibration
    if calibration is None:
        return None
    over = calibration.headline["over-confidence"]
    if over.low < MISJUDGED and over.high > -MISJUDGED:
        return None
    ece = calibration.headline["ECE"]
    return Advice(
        diagnosis=name,
        advice="Divide the outputs by a temperature that is fitted to held-out people; no decision changes.",
        evidence=f"Mean confidence is {points(over)} points from accuracy (interval {points_interval(over)}); calibration "
        f"error {percent(ece)} (interval {percent_interval(ece)}).",
        aim="calibration",
        gain=gain(name, "ece"),
        command=shlex.join(["noisewise", "temperature", evidence.folder]),
        privacy="None if the held-out people are public. Otherwise the temperature is a number about them without noise: it "
        "must not be published.",
    )


def twin_badly_tuned(evidence: Evidence) -> Advice | None:
    """A twin behind the private model is no measure of what privacy cost."""
    name, disparity = "twin badly tuned", evidence.disparity
    change = None if disparity is None else disparity.everyone.accuracy.get("difference")
    if disparity is None or change is None or change.low <= 0:
        return None
    shares, rate = disparity.everyone.accuracy, evidence.settings["twin_lr"] / SLOWER
    return Advice(
        diagnosis=name,
        advice=f"Train the twin again with a learning rate of {rate:.2g} instead of {evidence.settings['twin_lr']:g}.",
        evidence=f"Without privacy {percent(shares['twin'])} are right, with it {percent(shares['private'])}: {points(change)} "
        f"points (interval {points_interval(change)}). Privacy gains nothing, so the twin is behind what it could be.",
        aim="the twin",
        gain=gain(name, "twin accuracy"),
        command=shlex.join(["noisewise", "train", "--resume", "--out", evidence.folder, "--twin-lr", f"{rate:.2g}"]),
        privacy=FREE,
    )


Rule = Callable[[Evidence], Advice | None]
RULES: dict[str, Rule] = {
    "noise-bound": noise_bound,
    "too few people": too_few_people,
    "clipping-bound": clipping_bound,
    "imbalanced": imbalanced,
    "miscalibrated": miscalibrated,
    "twin badly tuned": twin_badly_tuned,
}
"""Diagnoses by name, in the order in which their advice is given."""


def advise(evidence: Evidence) -> list[Advice]:
    """All advice that the evidence supports, the most promising first."""
    return [advice for rule in RULES.values() if (advice := rule(evidence)) is not None]


def _cost(evidence: Evidence) -> str:
    """What privacy cost, where a twin says so."""
    change = None if evidence.disparity is None else evidence.disparity.everyone.accuracy.get("difference")
    if change is None:
        return ""
    return f" Privacy cost {points(change)} points of accuracy (interval {points_interval(change)})."


def _interval(estimate: Estimate, places: int) -> str:
    return f"{fixed(estimate.low, places)} to {fixed(estimate.high, places)}"
