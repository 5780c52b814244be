"""Phases and basins of Watson et al. 2023: which phase decides, and what lies between the ends of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.reproduce.claims import Claim, Finding, above, below, within
from noisewise.reproduce.drawing import COLOURS, INK, curve, dress, sheet
from noisewise.reproduce.experiment import Cell, Config, Experiment, grid
from noisewise.reproduce.measured import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN = "two_phases:two_phases"
SGD, DP = "SGD", "DP"
BETWEEN = "a to b"


@dataclass(frozen=True, kw_only=True)
class Phases(Config):
    """Two ways to train, each with its own batches and learning rate, before and after a switch."""

    data: str = "cifar10"
    model: str = "lenet"
    open_batch: int = 128
    open_lr: float = 0.1
    batch: int = 1024
    lr: float = 0.5
    epsilon: float = 7.0
    sigma: float | None = None  # in place of epsilon
    epochs: float = 12
    switch: float = 6
    rows: int | None = None
    points: int = 30
    options: tuple[tuple[str, Any], ...] = ()  # of the model

    def run(self, first: str, seconds: Sequence[str], switch: float, **more: Any) -> dict[str, Any]:
        """Settings of one run."""
        epsilon = more.pop("epsilon", self.epsilon)
        noise = {"epsilon": epsilon} if self.sigma is None else {"sigma": self.sigma / epsilon}
        return {
            **self.given("data", "model", "epochs", "rows", "points"),
            "ways": {
                SGD: {"batch": self.open_batch, "lr": self.open_lr},
                DP: {"batch": self.batch, "lr": self.lr, "bound": 1.0, **noise},
            },
            "first": first,
            "seconds": list(seconds),
            "first_epochs": switch,
            **({"options": dict(self.options)} if self.options else {}),
            **more,
        }

    def mixed(self) -> dict[str, dict[str, Any]]:
        """Both first phases, each followed by both second ones: a is SGD, b is DP-SGD."""
        return {first: self.run(first, (SGD, DP), self.switch, curve=True) for first in (SGD, DP)}


def _phase_cells(config: Phases, measured: Measured) -> Sequence[Cell]:
    return grid(config, RUN, config.mixed())


def _distance(row: Mapping[str, Any], of: str, sign: float) -> float:
    """How far changing the first phase moves the end of a run, minus how far changing the second does."""
    reference = float(row[SGD]["a"][of])
    return sign * (abs(reference - float(row[DP]["a"][of])) - abs(reference - float(row[SGD]["b"][of])))


def _second_decides(of: str) -> Any:
    def check(config: Phases, measured: Measured, level: float) -> list[Finding]:
        words = of.replace("_", " ")
        return [
            below(f"{words}: move by the first phase - by the second", measured.each_seed(level, _distance, of, 1.0))
        ]

    return check


def _rises(config: Phases, measured: Measured, level: float) -> list[Finding]:
    change = measured.contrast(level, (SGD, "b", "train_loss"), (SGD, "start", "train_loss"))
    return [above("training loss after the DP phase - at the switch", change)]


def _draw_phases(config: Phases, measured: Measured) -> Figure:
    figure, axes = sheet(2)
    for ax, of in zip(axes, ("loss", "accuracy"), strict=True):
        for place, (first, second) in enumerate(((SGD, "a"), (SGD, "b"), (DP, "a"), (DP, "b"))):
            runs = [measured.arms[first][seed]["curves"] for seed in measured.seeds]
            parts = [min(len(run[part]) for run in runs) for part in ("start", second)]
            spans = ((0.0, config.switch), (config.switch, config.epochs))
            epochs = [a + (b - a) * (k + 1) / n for (a, b), n in zip(spans, parts, strict=True) for k in range(n)]
            columns = [
                np.array([run[part][k][of] for run in runs])
                for part, count in zip(("start", second), parts, strict=True)
                for k in range(count)
            ]
            curve(ax, epochs, columns, f"{first}, then {SGD if second == 'a' else DP}", place, markersize=0)
        dress(ax, "epochs", f"test {of}")
    return figure


QUICK: dict[str, Any] = {
    "seeds": 1,
    "data": "digits",
    "model": "cnn",
    "open_batch": 64,
    "batch": 64,
    "sigma": 7.0,
    "epochs": 1,
    "switch": 0.5,
    "rows": 150,
    "points": 3,
}
SMALL: dict[str, Any] = {
    "data": "fashion_mnist",
    "rows": 5000,
    "open_batch": 64,
    "batch": 256,
    "epochs": 8,
    "switch": 4,
    "points": 11,
}
SETTINGS = (
    "LeNet with tanh on CIFAR-10 in place of ResNet-18; SGD with batch 128, learning rate 0.1, DP-SGD with batch "
    "1024, learning rate 0.5, C 1, both as published, no momentum, no augmentation. 12 epochs in all, the switch after 6 (the "
    "paper: 30 and 15). The standard tier: 5,000 images of Fashion-MNIST, batches of 64 and 256, 8 epochs, the switch after 4. "
)
EPSILON = (
    "Epsilon 7 at delta 1e-5 for DP-SGD over all epochs (the paper's sigma of 0.55 does not fit its batch of 1024)."
)

PHASES = Experiment(
    name="phases",
    title="SGD and DP-SGD after one another: which phase decides",
    where="Figures 2 and 20",
    tiers={"quick": Phases(**QUICK), "standard": Phases(**SMALL), "full": Phases(seeds=8)},
    stages=(_phase_cells,),
    claims=(
        Claim("W1", "the final loss is set by the second phase", "Figure 2", _second_decides("train_loss")),
        Claim("W1.accuracy", "so is the final accuracy", "Figure 2", _second_decides("accuracy")),
        Claim("W1.rises", "the loss rises when DP-SGD follows SGD", "Figure 2", _rises),
    ),
    draw=_draw_phases,
    settings=SETTINGS + EPSILON,
    left_out="30 epochs, other switches (Figure 20); ResNet-18 is watson2023.phases_resnet",
    minutes={"quick": 0.05, "standard": 8, "full": 3},
)


# Basins ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Basins(Phases):
    """Copies of one start that go on apart, and runs from two starts."""

    switches: tuple[float, ...] = (2, 6)
    epsilons: tuple[float, ...] = (1.0, 7.0)
    directions: int = 100


STARTS = "two starts"


def _copies(switch: float, epsilon: float | None = None) -> str:
    way = SGD if epsilon is None else f"{DP}, epsilon {epsilon:g}"
    return f"{way}, after {switch:g} epochs"


def _basin_cells(config: Basins, measured: Measured) -> Sequence[Cell]:
    last = config.switches[-1]
    arms = {STARTS: config.run(SGD, (SGD, SGD), 0, other_start=True)}
    for switch in config.switches:
        more = {"directions": config.directions} if switch == last else {}
        arms[_copies(switch)] = config.run(SGD, (SGD, SGD), switch, **more)
        for epsilon in config.epsilons:
            arms[_copies(switch, epsilon)] = config.run(DP, (DP, DP), switch, epsilon=epsilon)
    return grid(config, RUN, {**arms, **config.mixed()})


def _segment(row: Mapping[str, Any], arm: str, name: str, of: str) -> float:
    return float(row[arm]["segments"][name][of])


def _over_ends(row: Mapping[str, Any], arm: str, of: str) -> float:
    return _segment(row, arm, BETWEEN, of) / _segment(row, arm, BETWEEN, "ends")


def _apart(row: Mapping[str, Any]) -> float:
    return float(row[STARTS]["a"]["train_loss"] - row[STARTS]["b"]["train_loss"])


def _two_basins(config: Basins, measured: Measured, level: float) -> list[Finding]:
    return [
        within("training loss of one end - of the other", measured.each_seed(level, _apart), -0.2, 0.2),
        above("instability over the loss of the ends", measured.each_seed(level, _over_ends, STARTS, "instability"), 1.0),
    ]  # fmt: skip


def _floor(config: Basins, measured: Measured, level: float) -> list[Finding]:
    arm = _copies(config.switches[-1])
    return [
        below("highest loss on the segment over the ends'", measured.each_seed(level, _over_ends, arm, "highest"), 1.5)
    ]


def _steep(config: Basins, measured: Measured, level: float) -> list[Finding]:
    arm = _copies(config.switches[-1])
    share = measured.mean(level, arm, "random", BETWEEN, "steep")
    return [above("share of random directions above three times the loss", share, 0.9499)]


def _steeper(config: Basins, measured: Measured, level: float) -> list[Finding]:
    arm = _copies(config.switches[-1])
    share = measured.mean(level, arm, "random", BETWEEN, "above")
    return [above("share of random directions above the whole segment", share, 0.9499)]


def _less_stable(config: Basins, measured: Measured, level: float) -> list[Finding]:
    largest = max(config.epsilons)
    path = ("segments", BETWEEN, "instability")
    return [
        below(
            f"instability of SGD - of DP-SGD, after {switch:g} epochs",
            measured.difference(level, _copies(switch), _copies(switch, largest), *path),
        )
        for switch in config.switches
    ]


def _by_epsilon(config: Basins, measured: Measured, level: float) -> list[Finding]:
    low, high = min(config.epsilons), max(config.epsilons)
    path = ("segments", BETWEEN, "instability")
    return [
        below(
            f"instability at epsilon {high:g} - at {low:g}, after {switch:g} epochs",
            measured.difference(level, _copies(switch, high), _copies(switch, low), *path),
        )
        for switch in config.switches
    ]


PAIRS = ((SGD, "start to b", "SGD to DP"), (DP, "start to a", "DP to SGD"), (DP, "start to b", "DP to DP"))


def _stays(config: Basins, measured: Measured, level: float) -> list[Finding]:
    stay = (SGD, "segments", "start to a", "barrier")
    return [
        below(
            f"barrier from the switch to the end, SGD to SGD - {words}",
            measured.contrast(level, stay, (arm, "segments", name, "barrier")),
        )
        for arm, name, words in PAIRS
    ]


def _leaves(config: Basins, measured: Measured, level: float) -> list[Finding]:
    copies = (_copies(config.switches[-1]), "segments", BETWEEN, "instability")
    mixed = (SGD, "segments", BETWEEN, "instability")
    return [below("instability between two SGD ends - SGD and DP end", measured.contrast(level, copies, mixed))]


def _draw_basins(config: Basins, measured: Measured) -> Figure:
    figure, axes = sheet(2)
    arms = [STARTS, *(_copies(switch) for switch in config.switches)]
    arms += [_copies(switch, epsilon) for epsilon in config.epsilons for switch in config.switches]
    for place, arm in enumerate(arms):
        count = len(measured.arms[arm][measured.seeds[0]]["segments"][BETWEEN]["losses"])
        columns = [measured.column(arm, "segments", BETWEEN, "losses", k) for k in range(count)]
        curve(axes[0], [k / (count - 1) for k in range(count)], columns, arm, place, markersize=0)
        value = measured.column(arm, "segments", BETWEEN, "instability")
        axes[1].plot(value, [place] * len(value), "o", color=COLOURS[place % len(COLOURS)], alpha=0.6)
    random = measured.arms[_copies(config.switches[-1])][measured.seeds[0]]["random"][BETWEEN]["losses"]
    axes[0].plot([1.08] * len(random), random, "_", color=INK, alpha=0.4)
    axes[0].annotate(
        "random\ndirections",
        (1.08, max(random)),
        (0, 6),
        textcoords="offset points",
        color=INK,
        fontsize="small",
        ha="center",
    )
    axes[1].set_yticks(range(len(arms)), labels=arms, fontsize="small")
    axes[1].set_xscale("symlog", linthresh=0.01)
    axes[1].margins(x=0.1)
    dress(axes[0], "from one end to the other", "training loss", legend=False)
    dress(axes[1], "instability, one dot for each seed", "", legend=False)
    for place, label in enumerate(axes[1].get_yticklabels()):  # which name the curves beside them
        label.set_color(COLOURS[place % len(COLOURS)])
    return figure


BASINS = Experiment(
    name="basins",
    title="What lies between the ends of two runs",
    where="Figures 3 to 8",
    tiers={
        "quick": Basins(**QUICK, switches=(0.5,), directions=2),
        "standard": Basins(**SMALL, switches=(1, 4), directions=20),
        "full": Basins(seeds=8),
    },
    stages=(_basin_cells,),
    claims=(
        Claim(
            "W2",
            "two SGD runs from different starts end at similar losses, with a barrier between",
            "Figure 3",
            _two_basins,
        ),
        Claim("W3.floor", "between copies that split after a first phase the loss stays low", "Figure 4", _floor),
        Claim(
            "W3.steep",
            "at least 95 of 100 random directions of that length end above three times the loss",
            "Figure 4",
            _steep,
        ),
        Claim("W3.above", "or at least above everything on the segment", "not tested there", _steeper, control=True),
        Claim("W4", "copies under SGD are more stable than copies under DP-SGD", "Figure 5", _less_stable),
        Claim("W4.epsilon", "a larger epsilon makes DP-SGD more stable", "Figure 5", _by_epsilon),
        Claim("W5", "only SGD after SGD stays in the basin of its first phase", "Figure 8", _stays),
        Claim("W5.ends", "DP-SGD after SGD leaves the basin in which SGD after SGD ends", "Figures 6, 7", _leaves),
    ),
    draw=_draw_basins,
    settings=SETTINGS
    + EPSILON
    + " W4 also at epsilon 1. Losses are those of 5,000 training images (2,000 of them drawn), on 30 points of each "
    "segment. W2: the barrier must be higher than the ends' own loss (the paper gives no number; its ResNet-18 ends near "
    "loss 0).",
    left_out="other switches; ResNet-18 is watson2023.phases_resnet",
    minutes={"quick": 0.1, "standard": 30, "full": 5},
)


# ResNet-18 ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Residual(Phases):
    """The same network for all of it: both phases, and two copies under SGD with random directions from their ends."""

    model: str = "resnet18"
    options: tuple[tuple[str, Any], ...] = (("stem", "large"),)
    epochs: float = 10
    switch: float = 5
    directions: int = 100

    @property
    def switches(self) -> tuple[float, ...]:
        """As for claims about basins."""
        return (self.switch,)


def _residual_cells(config: Residual, measured: Measured) -> Sequence[Cell]:
    copies = config.run(SGD, (SGD, SGD), config.switch, directions=config.directions)
    return grid(config, RUN, {_copies(config.switch): copies, **config.mixed()})


PHASES_RESNET = Experiment(
    name="phases_resnet",
    title="Which phase decides, and what lies between the ends, ResNet-18 on CIFAR-10",
    where="Figures 2, 4, 6 to 8",
    tiers={
        "quick": Residual(**(QUICK | {"options": ()}), directions=2),
        "standard": Residual(
            options=(("stem", "large"), ("width", 16)), rows=10_000, open_batch=64, batch=256, epochs=8, switch=4,
            points=11, directions=20,
        ),
        "full": Residual(),
    },
    stages=(_residual_cells,),
    claims=(
        Claim("W1.resnet", "the final loss is set by the second phase", "Figure 2", _second_decides("train_loss")),
        Claim("W1.resnet.accuracy", "so is the final accuracy", "Figure 2", _second_decides("accuracy")),
        Claim("W1.resnet.rises", "the loss rises when DP-SGD follows SGD", "Figure 2", _rises),
        Claim("W3.resnet.floor", "between copies that split after a first phase the loss stays low", "Figure 4", _floor),
        Claim(
            "W3.resnet.steep",
            "at least 95 of 100 random directions of that length end above three times the loss",
            "Figure 4",
            _steep,
        ),
        Claim("W3.resnet.above", "or at least above all of the segment", "not tested there", _steeper, control=True),
        Claim("W5.resnet", "only SGD after SGD stays in the basin of its first phase", "Figure 8", _stays),
        Claim("W5.resnet.ends", "DP-SGD after SGD leaves the basin in which SGD after SGD ends", "Figures 6, 7", _leaves),
    ),
    draw=_draw_phases,
    settings="ResNet-18 with GroupNorm and the large first convolution of torchvision's; SGD with batch 128, learning rate "
    "0.1, DP-SGD with batch 1024, learning rate 0.5, C 1, both as published, no momentum, no augmentation. 10 epochs in all, "
    "the switch after half of them (the paper: 30, and 3 in Figure 2, where so short a first phase could hardly decide, 5 in "
    "Figure 4, 10 in Figure 8). The standard tier: a quarter of the width, 10,000 images, batches of 64 and 256, 8 epochs; it "
    "ran first with the switch after one of them, and there the second phase, seven times as long, decided. "
    + EPSILON,
    left_out="30 epochs, other switches (Figure 20)",
    minutes={"quick": 0.06, "standard": 40, "full": 12},
)  # fmt: skip
