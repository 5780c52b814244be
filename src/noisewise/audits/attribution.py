"""Attribution: how much of the price is clipping's, how much the noise's, and for whom. Retrains."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from noisewise import data as datasets
from noisewise.adaptive import Adaptive
from noisewise.audits.people import SMALLEST, Hidden, divided, named_parts, people, several, who_pays
from noisewise.audits.result import INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.retrained import RUNS, Training, scores_of
from noisewise.audits.show import MOST_ROWS, dress, name_rows, row_name
from noisewise.errors import ConfigError, DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate, check_level
from noisewise.jobs import Where
from noisewise.runs.folder import Status
from noisewise.wording import fixed, points, points_interval
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import nn
    from torch.optim import Optimizer

    from noisewise.data import Data
    from noisewise.losses import LossFn
    from noisewise.mechanism import Mechanism
    from noisewise.runtime import Runtime

TAKES = "Retrains: four runs for each seed, so twenty times one run's time with five seeds."
EFFECTS = ("clipping", "noise", "interaction")
COLOURS = {"clipping": PRIVATE, "noise": TWIN, "interaction": INK}
Measure = Literal["accuracy", "loss"]


@dataclass(frozen=True)
class Share:
    """One class or group, or everyone: scores of the four runs for each seed, and the split of what privacy took."""

    by: str
    name: str
    n: int
    runs: dict[str, list[float]]
    effects: dict[str, Estimate]


@dataclass(frozen=True)
class Payer:
    """Who pays most, and how much, with an interval that allows for the choice."""

    name: str = field(metadata={"key": "pays_most"})
    total: Estimate = field(metadata={"key": "largest_total"})


@dataclass(frozen=True)
class Extremes(Hidden):
    """How many parts and people of a partition are not shown; with two parts or more who pays most."""

    most: Payer | None = field(default=None, metadata={"inline": True})


@dataclass(frozen=True)
class Values:
    """Everyone and every part that is large enough; the extremes of each partition."""

    parts: list[Share]
    extremes: dict[str, Extremes]


@dataclass(frozen=True, kw_only=True)
class Attribution(Result):
    """What privacy took from everyone, each class and each group, split into clipping, noise and their interaction.

    With a the accuracy (or minus the mean loss): `clipping = a(plain) - a(clip-only)`, `noise = a(plain) - a(noise-only)`,
    `interaction = a(plain) - a(private) - clipping - noise`; `total` is their sum. Positive: taken, negative: given.
    headline: the four of everyone.
    Guarantee: a seed's four runs share the initialisation, the batches and the noise, so differences are paired; intervals
    are Student's t over seeds, that is over repetitions of training for these test rows. The largest of several parts has
    an interval that allows for the choice.
    Reference: Bagdasaryan et al. 2019, arXiv:1905.12101; Tran, Dinh, Fioretto 2021, arXiv:2106.02203 (clipping and noise).
    """

    kind: ClassVar[str] = "attribution"
    title: ClassVar[str] = "Clipping or noise"

    values: Values

    @property
    def everyone(self) -> Share:
        """All people together."""
        return self.parts("everyone")[0]

    @property
    def partitions(self) -> list[str]:
        """`class` (where there are classes), then the group columns."""
        return list(self.values.extremes)

    def parts(self, by: str = "class") -> list[Share]:
        """The classes, or the groups of a column, that are large enough to be shown."""
        return [part for part in self.values.parts if part.by == by]

    def extremes(self, by: str = "class") -> Extremes:
        """Who pays most, and how many parts and people are not shown."""
        return self.values.extremes[by]

    @property
    def _percent(self) -> bool:
        return bool(self.settings["measure"] == "accuracy")

    def plot(self, ax: Axes) -> Axes:
        """Everyone on top, then the classes (or the first groups), those that pay most first: three bars each."""
        return self._plot(ax, self.partitions[0] if self.partitions else "")

    def _rows(self, by: str) -> list[Share]:
        parts = sorted(self.parts(by), key=lambda part: part.effects["total"].value)[-(MOST_ROWS // 2) :] if by else []
        return [*parts, self.everyone]

    def _plot(self, ax: Axes, by: str) -> Axes:
        from matplotlib.patches import Patch

        parts, scale, thick = self._rows(by), 100 if self._percent else 1, 0.26
        for place, effect in enumerate(EFFECTS):
            for row, part in enumerate(parts):
                self._bar(ax, part.effects[effect], row + thick * (1 - place), 0.86 * thick, COLOURS[effect], scale)
        ax.axvline(0, color=INK, linewidth=1)
        names = [part.name if part.by != "everyone" else "everyone" for part in parts]
        name_rows(ax, names)
        unit = "points of accuracy" if self._percent else "mean loss"
        keys = [Patch(facecolor=colour, label=effect) for effect, colour in COLOURS.items()]
        ax.legend(
            handles=keys, frameon=False, labelcolor=INK, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0),
            handlelength=1.2, columnspacing=1.2,
        )  # fmt: skip
        return dress(ax, f"{unit} that it takes (below 0: gives)" + (f", by {by}" if by else ""))

    @staticmethod
    def _bar(ax: Axes, e: Estimate, row: float, thick: float, colour: str, scale: float) -> None:
        """A bar, filled where chance does not explain it, and a thin line for its interval."""
        face = colour if e.excludes_zero else ax.get_facecolor()
        ax.barh([row], [scale * e.value], thick, color=face, edgecolor=colour, linewidth=1.2, zorder=3)
        if math.isfinite(e.low) and math.isfinite(e.high):
            ax.plot([scale * e.low, scale * e.high], [row, row], color=colour, linewidth=0.8, zorder=2)

    def figures(self) -> list[Figure]:
        """One for the classes and one for each group column, everyone on top."""
        figures = []
        for by in self.partitions or [""]:
            rows = self._rows(by)
            count = len(self.parts(by)) if by else 0
            kind = several(by) if by else "everyone"
            if len(rows) - 1 < count:
                kind = f"{kind} (the {len(rows) - 1} of {count} that pay most)"
            caption = f"What clipping, noise and their interaction take: {kind}; filled where chance alone does not explain it"
            words = "; ".join(
                f"{part.name}: {', '.join(f'{effect} {self._in_words(part.effects[effect])}' for effect in EFFECTS)}"
                for part in reversed(rows)
            )
            figures.append(Figure(caption, f"{caption}. {words}.", partial(self._plot, by=by), 2 * len(rows) + 1))
        return figures

    def _in_words(self, e: Estimate) -> str:
        return points(e) if self._percent else fixed(e.value)

    def _interval(self, e: Estimate) -> str:
        return points_interval(e) if self._percent else f"{fixed(e.low)} to {fixed(e.high)}"

    def sentences(self) -> list[str]:
        """How the price of everyone splits; who pays most and for what; how often training was repeated."""
        effects, unit = self.everyone.effects, " points of accuracy" if self._percent else " of mean loss"
        total = effects["total"]
        split_up = ", ".join(f"{name} {self._in_words(effects[name])}" for name in EFFECTS)
        sure = "" if total.excludes_zero else ", which chance can explain"
        sentences = [
            f"Privacy takes {self._in_words(total)}{unit} from everyone ({level_of(total)} interval {self._interval(total)}"
            f"{sure}): {split_up}.",
        ]
        told = [name for name in EFFECTS if effects[name].excludes_zero]
        known = f"{' and '.join(told)} can" if told else "none of the three can"
        sentences.append(f"Over {total.n} seeds, {known} be told from chance.")
        for by in self.partitions:
            extremes = self.extremes(by)
            if extremes.most is not None:
                part = next(part for part in self.parts(by) if part.name == extremes.most.name)
                largest = extremes.most.total
                sure = "" if largest.excludes_zero else ", which chance can still explain"
                split_up = ", ".join(f"{name} {self._in_words(part.effects[name])}" for name in EFFECTS)
                sentences.append(
                    f"{who_pays(by, part.name, largest.value > 0)}, {self._in_words(largest)} (interval "
                    f"{self._interval(largest)} after allowing for the choice{sure}): {split_up}."
                )
            sentences += extremes.hidden_in_words(several(by), self.settings["smallest_part"])
        return sentences

    def tables(self) -> list[Table]:
        """The split of every part, then the mean scores of the four runs."""
        parts = [self.everyone, *(part for by in self.partitions for part in self.parts(by))]
        measure = "accuracy, points" if self._percent else "mean loss"
        level = level_of(self.everyone.effects["total"])

        def cell(e: Estimate) -> str:
            return f"{self._in_words(e)} ({self._interval(e)})"

        def score(values: Sequence[float]) -> str:
            mean = float(np.mean(values))
            return f"{100 * mean:.1f}" if self._percent else fixed(-mean)

        return [
            Table(
                f"What is taken ({measure}), paired over {self.everyone.effects['total'].n} seeds, {level} intervals",
                ["", "people", *EFFECTS, "total"],
                [[row_name(p), f"{p.n:,}", *(cell(p.effects[e]) for e in (*EFFECTS, "total"))] for p in parts],
            ),
            Table(
                "Mean accuracy in % of the four runs" if self._percent else "Mean loss of the four runs",
                ["", *RUNS],
                [[row_name(p), *(score(p.runs[run]) for run in RUNS)] for p in parts],
            ),
        ]


def attribution(
    model: nn.Module | Callable[[int], nn.Module],
    data: Sequence[Data],
    *,
    loss_fn: LossFn,
    mechanism: Mechanism,
    optimizer: Callable[[Any], Optimizer],
    scheduler: Callable[[Optimizer], Any] | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    measure: Measure | None = None,
    runtime: Runtime | None = None,
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    folder: str | os.PathLike[str] | None = None,
    where: Where | None = None,
    progress: bool = False,
    level: float = LEVEL,
) -> Attribution:
    """Train plain, with clipping only, with noise only and with both, for every seed, and compare on the test part.

    Args:
        model: what to train; copied, so it is left as it is. A function `seed -> model` makes another start for each seed
            (torch's random state is set to the seed while it runs, and put back).
        data: training part first, test part last: `(train, test)` or the splits of `noisewise.load`.
        loss_fn: `(model, batch) -> [batch]`.
        mechanism: the private plan. Noise only means noise of std sigma C on unclipped sums.
        optimizer: `parameters -> optimizer`, e.g. `lambda p: torch.optim.SGD(p, lr=0.5)`: each run gets a new one.
        scheduler: `optimizer -> scheduler`, if there is one.
        seeds: at least two; a seed fixes batches and noise of its four runs.
        measure: `accuracy` (for classes, the default) or `loss` (the default for real-valued targets).
        runtime: engine and micro-batches.
        twin: not used: the plain run is the twin.
        generator: not used: everything follows from the seeds.
        folder: keeps what each run says of the test rows (mode 700), so that a call that was stopped goes on; None: nowhere.
        where: several runs at a time, `Local(4)` or `Ray("auto")`. `model`, `loss_fn`, `optimizer` and `scheduler` are then
            functions of a module, or `functools.partial` of one, e.g. `partial(torch.optim.SGD, lr=0.5)`, and workers read the
            rows from `folder`, from which they are deleted when it ends.
        progress: show a bar, and after the first run how long all will take.
        level: of the intervals.

    The runs are reproducible, so none of them is private. Limits: all four use one learning rate, and clipping also shortens
    the steps, so part of its share can be won back by another rate.
    Retrains: four runs for each seed, so twenty times one run's time with five seeds.
    """
    check_level(level)
    _refuse_adaptive(mechanism)
    train_part, test = _parts_of(data)
    seeds = _checked(seeds)
    measure = _measure(measure, test)
    if not callable(optimizer) or hasattr(optimizer, "param_groups"):
        raise ConfigError(
            "optimizer=: each run needs a new one; give a function, e.g. lambda p: torch.optim.SGD(p, lr=1)."
        )
    training = Training(model, train_part, test, loss_fn, mechanism, optimizer, scheduler, runtime, measure)
    scores = scores_of(training, seeds, folder=folder, where=where, progress=progress)
    reach = 1.0 if measure == "accuracy" else math.inf

    def share(by: str, name: str, rows: np.ndarray, _parts: int = 1) -> Share:
        return _share(by, name, rows, people(test, rows), scores=scores, level=level, reach=reach)

    parts, of_partitions = divided(
        test,
        named_parts(test),
        share,
        lambda hidden, shares, _: Extremes(hidden.hidden_parts, hidden.hidden_people, _most(shares, level, reach)),
    )
    everyone = share("everyone", "all", np.arange(len(test)))
    return Attribution(
        headline={name: everyone.effects[name] for name in ("total", *EFFECTS)},
        values=Values([everyone, *parts], of_partitions),
        settings={
            "seeds": list(seeds), "measure": measure, "rows": len(test), "level": level, "smallest_part": SMALLEST,
            "mechanism": mechanism.to_dict(),
        },
        status=Status("not-private", "retrains without privacy and with reproducible noise: no ledger covers these runs"),
    )  # fmt: skip


def split(runs: Mapping[str, Sequence[float]]) -> dict[str, np.ndarray]:
    """`clipping`, `noise`, `interaction` and `total` of each seed, from the scores of the four runs.

    `total = a(plain) - a(private) = clipping + noise + interaction`. Reference: a 2 x 2 design (clip, noise).
    """
    plain, clipped, noisy, private = (np.asarray(runs[run], dtype=np.float64) for run in RUNS)
    clipping, noise, total = plain - clipped, plain - noisy, plain - private
    return {"clipping": clipping, "noise": noise, "interaction": total - clipping - noise, "total": total}


def _share(
    by: str,
    name: str,
    rows: np.ndarray,
    n: int,
    scores: Mapping[str, Sequence[np.ndarray]],
    level: float,
    reach: float,
) -> Share:
    runs = {run: [float(of_seed[rows].mean()) for of_seed in of_run] for run, of_run in scores.items()}
    limits = {"interaction": 2 * reach}
    effects = {name: _over_seeds(of, level, limits.get(name, reach)) for name, of in split(runs).items()}
    return Share(by, name, n, runs, effects)


def _over_seeds(values: np.ndarray, level: float, reach: float) -> Estimate:
    """Mean over seeds with Student's t interval, within [-reach, reach], beyond which no value can be."""
    estimate = intervals.mean_difference(values, np.zeros(len(values)), level)
    return replace(estimate, low=max(estimate.low, -reach), high=min(estimate.high, reach))


def _most(parts: Sequence[Share], level: float, reach: float) -> Payer | None:
    """Who pays most, with an interval that allows for the choice."""
    if len(parts) < 2:
        return None
    single = intervals.each(level, len(parts))
    totals = [_over_seeds(split(part.runs)["total"], single, reach) for part in parts]
    payer = max(parts, key=lambda part: part.effects["total"].value)
    return Payer(payer.name, intervals.largest(totals, level))


def _refuse_adaptive(mechanism: Mechanism) -> None:
    if isinstance(mechanism.clip, Adaptive):
        raise ConfigError(
            f"{mechanism.clip!r}: its bound follows what was clipped, so that noise alone, or clipping alone, would run with "
            "another bound. Attribute with one that is known in advance, e.g. Flat(1.0)."
        )


def _parts_of(data: Sequence[Data]) -> tuple[Data, Data]:
    if isinstance(data, datasets.Data) or len(data) < 2 or not all(isinstance(part, datasets.Data) for part in data):
        raise DataError("attribution retrains: give (train, test), both noisewise.Data.")
    for name, part in (("training", data[0]), ("test", data[-1])):
        if not len(part):
            raise DataError(f"the {name} part has no rows: attribution trains on the first and compares on the last.")
    return data[0], data[-1]


def _checked(seeds: Sequence[int]) -> list[int]:
    seeds = list(seeds)
    if len(seeds) < 2 or len(set(seeds)) != len(seeds) or any(type(s) is not int or s < 0 for s in seeds):
        raise ConfigError(
            f"seeds={seeds!r}: at least two different whole numbers >= 0, since intervals are over seeds."
        )
    return seeds


def _measure(measure: Measure | None, test: Data) -> Measure:
    usual: Measure = "accuracy" if test.task == "classification" else "loss"
    if measure is None:
        return usual
    if measure not in ("accuracy", "loss"):
        raise ConfigError(f"measure={measure!r}: must be 'accuracy' or 'loss'.")
    if measure == "accuracy" and usual == "loss":
        raise ConfigError("measure='accuracy' with real-valued targets: use measure='loss'.")
    return measure
