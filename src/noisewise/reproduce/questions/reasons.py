"""Why: masks against random ones, R and the bounds, features against noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.reproduce.claims import Claim, Finding, above, below, more, within
from noisewise.reproduce.drawing import COLOURS, INK, bars, curve, dress, sheet
from noisewise.reproduce.experiment import Cell, Config, Experiment, grid
from noisewise.reproduce.measured import Measured, slope
from noisewise.reproduce.watson2023.gradients import LOOK, PRIVATE, SGD, TURNING, Turning
from noisewise.reproduce.watson2023.training import NONE, PRUNING, PUBLIC, RANDOM, SAME, Pruning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ASKED = "not asked there"


# Question 3: is pruning more than sparsity? ------------------------------------------------------------------------------


def _draw_masks(config: Pruning, measured: Measured) -> Figure:
    figure, (ax,) = sheet()
    names = (SAME, PUBLIC, RANDOM)
    bars(ax, {name: measured.column(name, "accuracy") - measured.column(NONE, "accuracy") for name in names})
    ax.axhline(0, color=INK, linewidth=0.8)
    dress(ax, "", "gain over no mask, points", legend=False)
    return figure


MASKS = Experiment(
    name="masks",
    title="Is the gain of pruning more than that of a random mask?",
    where="question 3, about Watson et al.",
    tiers=PRUNING.tiers,
    stages=PRUNING.stages,
    claims=(
        Claim(
            "Q3.public",
            "a mask from a public set is better than a random one of equal size",
            ASKED,
            more(PUBLIC, RANDOM),
        ),
        Claim("Q3.same", "so is one from the private data themselves", ASKED, more(SAME, RANDOM)),
        Claim("Q3.random", "a random mask gains over none", ASKED, more(RANDOM, NONE)),
    ),
    draw=_draw_masks,
    settings="The runs of watson2023.pruning: LeNet on Fashion-MNIST, epsilon 1, 70 % of the weights pruned. "
    + PRUNING.settings,
    minutes=PRUNING.minutes,
)


# Question 4: R and where clipping hurts ----------------------------------------------------------------------------------


def _held(config: Turning, measured: Measured, level: float) -> list[Finding]:
    last, first = (f"{config.shares[end]:g}" for end in (-1, 0))
    return [
        below(
            f"R with {last} of the coordinates held back - with none",
            measured.contrast(level, (LOOK, "held", last, "ratio"), (LOOK, "held", first, "ratio")),
        )
    ]


def _steady(row: Mapping[str, Any], config: Turning) -> float:
    last, first = (f"{config.shares[end]:g}" for end in (-1, 0))
    held = row[LOOK]["held"]
    return float(held[last]["ratio"] / held[first]["ratio"])


def _unmoved(config: Turning, measured: Measured, level: float) -> list[Finding]:
    return [
        within("R with coordinates held back over R without", measured.each_seed(level, _steady, config), 0.8, 1.25)
    ]


def bound_of(ratio: float) -> float:
    """`(1 - R) / (1 + R)`."""
    return (1 - ratio) / (1 + ratio)


def _predicts(row: Mapping[str, Any], first: int = 0) -> float:
    """Slope of the mean cosine on the bound, over the states of both runs from `first` on."""
    states = [state for way in (SGD, PRIVATE) for state in row[LOOK]["runs"][way][first:]]
    bounds = [bound_of(float(state["ratio"])) for state in states]
    if np.ptp(bounds) == 0:
        return 0.0
    return slope(bounds, [float(state["alignment"]) for state in states])


def _prediction(config: Turning, measured: Measured, level: float) -> list[Finding]:
    return [above("mean cosine for each unit of (1 - R)/(1 + R)", measured.each_seed(level, _predicts))]


def _later(config: Turning, measured: Measured, level: float) -> list[Finding]:
    return [above("the same without the state at the start", measured.each_seed(level, _predicts, 1))]


def _harmless(row: Mapping[str, Any]) -> float:
    """Cosine of the clipped and the true mean gradient at the end of the private run."""
    return float(row[LOOK]["runs"][PRIVATE][-1]["cosine"])


def _turns_little(config: Turning, measured: Measured, level: float) -> list[Finding]:
    return [above("cosine of the clipped and the true mean gradient, end", measured.each_seed(level, _harmless), 0.9)]


def _draw_ratio(config: Turning, measured: Measured) -> Figure:
    figure, axes = sheet(2)
    for place, way in enumerate((SGD, PRIVATE)):
        for seed in measured.seeds:
            states = measured.arms[LOOK][seed]["runs"][way]
            bounds = [bound_of(float(state["ratio"])) for state in states]
            for ax, of in zip(axes, ("alignment", "cosine"), strict=True):
                ax.plot(bounds, [state[of] for state in states], "o", color=COLOURS[place], alpha=0.6, markersize=4,
                        label=way if seed == measured.seeds[0] else None)  # fmt: skip
    dress(axes[0], "(1 - R) / (1 + R)", "mean cosine of gradients with their mean")
    dress(axes[1], "(1 - R) / (1 + R)", "cosine of clipped and true mean", legend=False)
    return figure


RATIO = Experiment(
    name="ratio",
    title="Does R fall under sparsification, and tell where clipping hurts?",
    where="question 4, between Watson et al. and Zhu, Blaschko",
    tiers=TURNING.tiers,
    stages=TURNING.stages,
    claims=(
        Claim("Q4.falls", "R falls when coordinates are held back at random", ASKED, _held),
        Claim("Q4.same", "R stays as it is (a quarter allowed)", ASKED, _unmoved),
        Claim(
            "Q4.predicts", "where (1 - R)/(1 + R) is larger, gradients agree more with their mean", ASKED, _prediction
        ),
        Claim(
            "Q4.later",
            "that is so not only because gradients agree most before anything is learnt",
            ASKED,
            _later,
            control=True,
        ),
        Claim(
            "Q4.harmless",
            "whatever R says, the clipped mean keeps its direction: cosine above 0.9",
            ASKED,
            _turns_little,
        ),
    ),
    draw=_draw_ratio,
    settings="The runs of watson2023.turning. " + TURNING.settings,
    minutes=TURNING.minutes,
)


# Question 6: features against noise --------------------------------------------------------------------------------------

PAYS = ("images", "people")


@dataclass(frozen=True, kw_only=True)
class Paying(Config):
    """A private model and its twin on images by class, and on people by class and race."""

    seeds: int = 10
    data: str = "mnist"
    model: str = "lenet"
    batch: int = 512
    epochs: float = 8
    lr: float = 0.5
    open_lr: float = 0.1
    epsilon: float = 1.0
    sigma: float | None = None  # in place of epsilon
    smallest: int = 60
    growth: float = 1.6
    rows: int | None = None
    table: str = "adult"
    table_by: str = "class and race"
    table_batch: int = 512
    table_epochs: float = 5
    table_lr: float = 0.5
    table_open_lr: float = 0.2
    table_epsilon: float = 0.3
    looked: int = 3000

    def run(self, which: str) -> dict[str, Any]:
        """Settings of one run."""
        if which == "images":
            noise = {"epsilon": self.epsilon} if self.sigma is None else {"sigma": self.sigma}
            sizes = {str(label): round(self.smallest * self.growth**label) for label in range(10)}
            shared = self.given("data", "model", "batch", "epochs", "lr", "open_lr", "rows", "looked")
            return {**shared, "by": "class", "sizes": sizes, **noise}
        noise = {"epsilon": self.table_epsilon} if self.sigma is None else {"sigma": self.sigma}
        return {
            "data": self.table,
            "model": "logistic" if self.table == "digits" else "mlp",
            "options": {} if self.table == "digits" else {"widths": [32]},
            "batch": self.table_batch,
            "epochs": self.table_epochs,
            "lr": self.table_lr,
            "open_lr": self.table_open_lr,
            "by": self.table_by,
            "rows": self.rows,
            "looked": self.looked,
            **noise,
        }


def _paying_cells(config: Paying, measured: Measured) -> Sequence[Cell]:
    return grid(config, "who_pays:who_pays", {which: config.run(which) for which in PAYS})


def _correlated(which: str, place: str, words: str) -> Any:
    def check(config: Paying, measured: Measured, level: float) -> list[Finding]:
        found = measured.mean(level, which, "correlation", place)
        return [below(f"rank correlation of the ratio {words} and the price", found)]

    return check


def _more_than_size(config: Paying, measured: Measured, level: float) -> list[Finding]:
    return [
        below(
            f"correlation of the ratio - of the size alone, {which}",
            measured.contrast(level, (which, "correlation", "start"), (which, "correlation", "share")),
        )
        for which in PAYS
    ]


def _draw_paying(config: Paying, measured: Measured) -> Figure:
    figure, axes = sheet(2)
    for ax, which, title in zip(axes, PAYS, (config.data, config.table), strict=True):
        runs = [measured.arms[which][seed]["parts"] for seed in measured.seeds]
        names = [name for name in runs[0] if all(name in run for run in runs)]
        ratios = [_mean([run[name]["start"] for run in runs]) for name in names]
        order = sorted(range(len(names)), key=lambda place: ratios[place])
        columns = [np.array([run[names[place]]["price"] for run in runs]) for place in order]
        curve(ax, [ratios[place] for place in order], columns, "price", linestyle="")
        for place in order:
            price = _mean([run[names[place]]["price"] for run in runs])
            ax.annotate(names[place], (ratios[place], price), fontsize=6, xytext=(3, 3), textcoords="offset points")
        ax.set_xscale("log")
        dress(ax, "ratio to the noise at the start", "loss, private - twin", title=title, legend=False)
    return figure


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


FEATURES = Experiment(
    name="features",
    title="Does the feature-to-noise ratio tell who pays?",
    where="question 6, of ours, after Xu, Chen",
    tiers={
        "quick": Paying(
            seeds=1,
            data="digits",
            model="logistic",
            batch=64,
            table="digits",
            table_by="class",
            epochs=1,
            table_batch=64,
            table_epochs=1,
            sigma=2.0,
            smallest=45,
            growth=1.1,
            looked=1000,
        ),
        "standard": Paying(seeds=10, epochs=4),
        "full": Paying(seeds=20),
    },
    stages=(_paying_cells,),
    claims=(
        Claim(
            "Q6.images",
            "on MNIST with classes of unequal size, a larger ratio at the start goes with a smaller price",
            ASKED,
            _correlated("images", "start", "at the start"),
        ),
        Claim(
            "Q6.people", "so it does on Adult, by class and race", ASKED, _correlated("people", "start", "at the start")
        ),
        Claim(
            "Q6.end",
            "at the released weights, where a user can measure it, it still does (MNIST)",
            ASKED,
            _correlated("images", "end", "at the end"),
        ),
        Claim("Q6.size", "the ratio tells more than the size of a part alone", ASKED, _more_than_size),
    ),
    draw=_draw_paying,
    settings=(
        "MNIST with LeNet, classes from 60 to 4,123 images (each 1.6 times the one before), batch 512, epsilon 1; Adult with "
        "one hidden layer of 32, batch 512, epsilon 0.3, by income class and race; both at delta 1e-5, C 1, nothing tuned. The "
        "price is the test loss of the private model minus that of the twin; Spearman's correlation over the parts of "
        "each seed."
    ),
    minutes={"quick": 0.03, "standard": 10, "full": 3},
)
