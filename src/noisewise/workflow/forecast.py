"""What epsilon buys, before any training: noise, the smallest class that can be heard, and accuracy of a stand-in or of runs.

No private row is read: plans are arithmetic, stand-ins are public, and of runs at hand only results are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisewise.accounting.defaults import default_delta
from noisewise.adaptive import rule_for
from noisewise.advice.noise import smallest_class
from noisewise.audits import read
from noisewise.audits.disparity import Disparity
from noisewise.data.tables import schema as schemas
from noisewise.data.tables.kinds import Classes
from noisewise.errors import ConfigError
from noisewise.estimates.estimate import Estimate
from noisewise.jobs import Where
from noisewise.losses import outputs_for
from noisewise.mechanism import Mechanism
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.replaced import save_picture
from noisewise.runs.summary import read_summary
from noisewise.sampling import Poisson, steps_for
from noisewise.wording import KEEP_INTERNAL, UNCOVERED
from noisewise.workflow.config import Config
from noisewise.workflow.defaults import filled_in
from noisewise.workflow.model_specs import build_model, named
from noisewise.workflow.plan_inputs import BREAST_CANCER, Asked
from noisewise.workflow.recommended import recommended
from noisewise.workflow.stand_in import Course, opened, scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOUR, PLAIN, FAINT = "#1668a8", "#b35f0c", "#d9dfe5"
CHOSEN_FOR = 3.0  # epsilon at which the twin's settings are read


@dataclass(frozen=True)
class Row:
    """One epsilon: its noise (relative to the bound, and on a coordinate of a step's mean gradient) and what it buys."""

    epsilon: float
    noise_multiplier: float
    step_noise: float
    coordinates: int
    batch_size: int
    steps: int
    smallest_class: float
    score: Estimate | None


@dataclass(frozen=True)
class Point:
    """A run at hand: its people, its epsilon, and the accuracy that its audit found."""

    run: str
    n: int
    epsilon: float
    score: Estimate
    public: bool = False


@dataclass(frozen=True)
class Forecast:
    """Rows by epsilon; `without`: without privacy; `source`: where accuracy comes from; `points`: runs at hand."""

    n: int
    delta: float
    rows: list[Row]
    without: Estimate | None
    source: str
    measure: str
    points: list[Point]

    def with_one_model(self) -> list[float]:
        """How many people a class needs in each row, with the smallest of the rows' models in all of them."""
        weights = min(row.coordinates for row in self.rows)
        return [smallest_class(row.batch_size / self.n, row.steps, row.noise_multiplier, weights) for row in self.rows]

    @property
    def internal(self) -> bool:
        """Does it show how often a model is right on people whose rows are not public? No ledger covers that."""
        return any(not point.public for point in self.points)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        status = (
            {"status": "not-private", "reason": UNCOVERED} if self.internal else {"status": "private", "reason": ""}
        )
        return {**asdict(self), **status}


def forecast(asked: Asked, *, where: Where | None = None, progress: bool = False) -> Forecast:
    """What each epsilon buys. With a stand-in, plans are tried on it, each with several seeds."""
    delta = default_delta(asked.n) if asked.delta is None else asked.delta
    points = [_point(run) for run in asked.runs]
    flat = columns(asked) is not None
    plans = []
    for epsilon in asked.epsilons:
        course, coordinates = _course(asked, epsilon)
        plan = Mechanism(
            sampler=Poisson(asked.n, course.batch_size), clip=rule_for("flat", course.bound, None), steps=course.steps
        )
        plans.append((plan.calibrated(epsilon, delta), course, coordinates))
    found: list[Estimate | None] = [None] * len(plans)
    without, source, measure = None, "", "accuracy"
    if asked.stand_in is not None:
        parts = opened(asked.stand_in, 0, flat)
        measure = "accuracy" if parts.train.task == "classification" else "share of variance explained"
        source = f"{asked.stand_in}, a public stand-in of {len(parts.train):,} rows"
        jobs: list[tuple[Mechanism | None, Course]] = [
            *(
                (plan, _on_stand_in(asked, epsilon))
                for epsilon, (plan, _, _) in zip(asked.epsilons, plans, strict=True)
            ),
            (None, _on_stand_in(asked, CHOSEN_FOR)),
        ]
        *tried, without = scores(
            asked.stand_in, jobs, flat=flat, n=asked.n, seeds=asked.seeds, progress=progress, where=where
        )
        found = list(tried)
    elif points:
        source = f"{len(points)} run{'s' if len(points) > 1 else ''} at hand"
        found = [between(points, asked.n * epsilon) for epsilon in asked.epsilons]
    rows = [
        Row(
            epsilon, plan.noise_at(0), plan.noise_at(0) * course.bound / course.batch_size, coordinates, course.batch_size,
            course.steps, smallest_class(plan.sampler.rate, plan.steps, plan.noise_at(0), coordinates), score,
        )
        for epsilon, (plan, course, coordinates), score in zip(asked.epsilons, plans, found, strict=True)
    ]  # fmt: skip
    return Forecast(asked.n, delta, rows, without, source, measure, points)


def columns(asked: Asked) -> tuple[int, int, str] | None:
    """Encoded columns, outputs and task, where they are given or in a schema."""
    if asked.schema is None:
        return None if asked.features is None else (asked.features, asked.classes or 2, "classification")
    known = schemas.read(asked.schema)
    if isinstance(known.target, Classes):
        return known.width, len(known.target.values), "classification"
    return known.width, 1, "regression"


def _course(asked: Asked, epsilon: float) -> tuple[Course, int]:
    """How a run for these people would be trained, and how many numbers learn."""
    known = columns(asked)
    if known is not None:
        features, outputs, task = known
        course = _of_columns(asked, epsilon, features, outputs, task)
        return course, _count(course.model, (features,), outputs)
    if asked.stand_in is not None:
        course, parts = _on_stand_in(asked, epsilon), opened(asked.stand_in, 0, False)
        return course, _count(course.model, tuple(parts.train.x.shape[1:]), outputs_for(parts.train))
    return _of_run(asked, asked.runs[0])


def _of_columns(asked: Asked, epsilon: float, features: int, outputs: int, task: str) -> Course:
    settings = recommended(asked.n, features, epsilon, task, outputs)
    if asked.model is None:
        entries = settings.config() | {"model": named(settings.model, settings.options)}
    else:
        entries = {"model": asked.model, "batch_size": min(256, asked.n), "bound": 1.0, "lr": 0.5, "momentum": 0.9}
        entries |= {"steps": steps_for(30, asked.n, entries["batch_size"]), "ema": None, "twin_lr": 0.1}
    return _made(asked, entries)


def _on_stand_in(asked: Asked, epsilon: float) -> Course:
    """The same plan on the stand-in's own columns, or, where nothing is said of columns, as the stand-in is trained."""
    assert asked.stand_in is not None
    flat = columns(asked) is not None
    train = opened(asked.stand_in, 0, flat).train
    if flat or asked.stand_in == BREAST_CANCER:
        return _of_columns(asked, epsilon, train.x.shape[1], outputs_for(train), train.task)
    given = {"data": asked.stand_in, "epsilon": epsilon} | ({} if asked.model is None else {"model": asked.model})
    entries, _ = filled_in(given, None)
    if train.schema is not None and asked.model is None:
        return _of_columns(asked, epsilon, train.x.shape[1], outputs_for(train), train.task)
    passes = entries["steps"] * entries["batch_size"] / train.units
    batch = min(entries["batch_size"], asked.n)
    return _made(asked, {**entries, "batch_size": batch, "steps": steps_for(passes, asked.n, batch)})


def _made(asked: Asked, entries: dict[str, Any]) -> Course:
    """With what the user said of batches and passes."""
    batch = asked.batch_size or entries["batch_size"]
    passes = entries["steps"] * entries["batch_size"] / asked.n if asked.epochs is None else asked.epochs
    changed = asked.batch_size is not None or asked.epochs is not None
    steps = steps_for(passes, asked.n, batch) if changed else entries["steps"]
    names = ("model", "bound", "lr", "momentum", "ema", "twin_lr")
    return Course(batch_size=batch, steps=steps, **{name: entries[name] for name in names})


def _of_run(asked: Asked, path: Path) -> tuple[Course, int]:
    """The plan of a run at hand, with batches that are as large and as many passes, for other people and epsilons."""
    from safetensors import safe_open

    folder = RunFolder(path)
    if not folder.config.exists():
        raise ConfigError(f"--runs {path}: was made in Python, so its settings are not known. Give --features instead.")
    config = Config.read(folder.config)
    entries = vars(config) | {"batch_size": min(config.batch_size, asked.n)}
    entries["steps"] = steps_for(config.steps * config.batch_size / _people(folder), asked.n, entries["batch_size"])
    with safe_open(folder.model, "pt") as weights:
        count = sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    return _made(asked, entries), count


def _people(folder: RunFolder) -> int:
    return int(read_json(folder.mechanism)["sampler"]["n"])


def _count(model: str, shape: tuple[int, ...], outputs: int) -> int:
    return sum(parameter.numel() for parameter in build_model(model, shape, outputs, 0).parameters())


def _point(path: Path) -> Point:
    """Epsilon, people and accuracy of a finished run; the audit was asked before, since it reads people."""
    folder = RunFolder(path)
    written = folder.audit("disparity")
    if not written.exists():
        raise ConfigError(
            f"--runs {path}: its accuracy is not known. Ask for it first: noisewise audit {path} --only disparity"
        )
    result = read(written)
    if not isinstance(result, Disparity):
        raise ConfigError(f"--runs {path}: is a regression. Accuracy can be read off runs with classes only.")
    privacy = read_summary(folder)["privacy"]
    public = bool(read_summary(folder)["data"].get("public"))
    return Point(str(path), _people(folder), float(privacy["epsilon"]), result.everyone.accuracy["private"], public)


def between(points: Sequence[Point], signal: float) -> Estimate | None:
    """Accuracy at n epsilon = `signal`, on straight lines between runs over its logarithm; None outside of them.

    To first order noise acts through n epsilon alone, so a run with other people and another epsilon says what this one
    would reach. Interval: the same line through the ends of the runs' intervals. Runs at the same place count as their mean;
    its interval is the mean of theirs, since they may have been tested on the same people.
    """
    at_place: dict[float, list[Estimate]] = {}
    for point in points:
        if math.isfinite(point.epsilon):
            at_place.setdefault(point.n * point.epsilon, []).append(point.score)
    if close := [
        score for at, scores in at_place.items() if math.isclose(at, signal, rel_tol=0.01) for score in scores
    ]:
        return _mean(close)
    places = sorted(at_place)
    for before, at in pairwise(places):
        if before < signal < at:
            lower, score = _mean(at_place[before]), _mean(at_place[at])
            share = math.log(signal / before) / math.log(at / before)
            value, low, high = (a + share * (b - a) for a, b in zip(_ends(lower), _ends(score), strict=True))
            return Estimate(value, low, high, min(lower.n, score.n), score.level, "between two runs")
    return None


def _mean(scores: Sequence[Estimate]) -> Estimate:
    """Several runs as one."""
    if len(scores) == 1:
        return scores[0]
    value, low, high = (sum(ends) / len(scores) for ends in zip(*map(_ends, scores), strict=True))
    return Estimate(value, low, high, min(score.n for score in scores), scores[0].level, "mean of runs")


def _ends(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high


def draw(result: Forecast, path: Path) -> None:
    """Accuracy and the smallest class against epsilon, as a picture."""
    from matplotlib.figure import Figure

    scored = [row for row in result.rows if row.score is not None]
    figure = Figure(figsize=(8.4 if scored else 4.6, 3.6), layout="constrained")
    axes = figure.subplots(1, 2 if scored else 1, squeeze=False)[0]
    if scored:
        _draw_scores(axes[0], result, scored)
    _draw_classes(axes[-1], result)
    for ax in axes:
        ax.set_xscale("log")
        ax.set_xticks([row.epsilon for row in result.rows], labels=[f"{row.epsilon:g}" for row in result.rows])
        ax.minorticks_off()
        ax.set_xlabel("epsilon")
        ax.grid(color=FAINT)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    if result.internal:
        figure.suptitle(KEEP_INTERNAL, fontsize=8)
    save_picture(figure, path, internal=result.internal)


def _draw_scores(ax: Axes, result: Forecast, scored: list[Row]) -> None:
    values = [row.score for row in scored if row.score is not None]
    middle, low, high = ([getattr(score, end) for score in values] for end in ("value", "low", "high"))
    off = [[m - a for m, a in zip(middle, low, strict=True)], [b - m for m, b in zip(middle, high, strict=True)]]
    ax.errorbar([row.epsilon for row in scored], middle, off, color=COLOUR, marker="o", capsize=3, label="with privacy")
    if result.without is not None:
        ax.axhline(result.without.value, color=PLAIN, label="without")
    ax.set_ylabel(result.measure)
    ax.legend(frameon=False)
    ax.set_title(f"{result.n:,} people: {result.source}", loc="left", fontsize=9)


def _draw_classes(ax: Axes, result: Forecast) -> None:
    across = [row.epsilon for row in result.rows]
    ax.plot(
        across,
        [row.smallest_class for row in result.rows],
        color=COLOUR,
        marker="o",
        label="models as train takes them",
    )
    if len({row.coordinates for row in result.rows}) > 1:
        ax.plot(
            across, result.with_one_model(), color=PLAIN, linestyle="--", marker=".", label="the smallest throughout"
        )
        ax.legend(frameon=False, fontsize=7)
    for row in result.rows:
        text = f"{row.smallest_class:,.0f}\n({row.coordinates:,} weights)"
        ax.annotate(text, (row.epsilon, row.smallest_class), (4, 6), textcoords="offset points", fontsize=7)
    ax.set_ylim(0, 1.25 * max(row.smallest_class for row in result.rows))
    ax.set_xmargin(0.18)
    ax.set_ylabel("people that a class needs")
    ax.set_title("Smaller classes drown in the noise", loc="left", fontsize=9)
