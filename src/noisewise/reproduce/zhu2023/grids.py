"""Grids of Zhu, Blaschko 2023: noise by bound, momentum by bound, and how batches are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.reproduce.claims import Claim, Finding, above, below, within
from noisewise.reproduce.drawing import columns, curve, dress, heat, sheet
from noisewise.reproduce.experiment import Cell, Config, Experiment, grid
from noisewise.reproduce.measured import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN = "images:train_images"
SPARSE = "random sparsification"


@dataclass(frozen=True, kw_only=True)
class Grid(Config):
    """Noise multipliers and bounds, each dense and with random sparsification."""

    data: str = "fashion_mnist"
    model: str = "dp-cnn-s"
    batch: int = 1000
    epochs: float = 20
    lr: float = 1.0
    sigmas: tuple[float, ...] = (1.0, 2.0, 4.0)
    bounds: tuple[float, ...] = (0.25, 0.5, 1.0)
    final: float = 0.7
    rows: int | None = None

    def run(self, sigma: float, bound: float, final: float) -> dict[str, Any]:
        """Settings of one run; those of `zhu2023.sparsity` at its noise and bound."""
        given = {
            **self.given("data", "model", "batch", "epochs", "lr", "rows"),
            "sigma": sigma,
            "rule": {"kind": "local", "bound": bound},
        }
        return {**given, "repair": {"kind": SPARSE, "final": final, "refreshes": 1}} if final else given


def _at(sigma: float, bound: float, final: float) -> str:
    return f"sigma {sigma:g}, C {bound:g}, r* {final:g}"


def _grid_cells(config: Grid, measured: Measured) -> Sequence[Cell]:
    arms = {
        _at(sigma, bound, final): config.run(sigma, bound, final)
        for sigma in config.sigmas
        for bound in config.bounds
        for final in (0.0, config.final)
    }
    return grid(config, RUN, arms)


def _gain(row: Mapping[str, Any], config: Grid, sigma: float, bound: float) -> float:
    """Of training accuracy."""
    sparse, dense = (row[_at(sigma, bound, final)]["train_accuracy"] for final in (config.final, 0.0))
    return float(sparse - dense)


def _growth(row: Mapping[str, Any], config: Grid, first: tuple[float, float], second: tuple[float, float]) -> float:
    return _gain(row, config, *second) - _gain(row, config, *first)


def _collapses(config: Grid, sigma: float, bound: float) -> bool:
    """The corner of most noise and largest bound, which the paper leaves out since nothing is learnt there."""
    return (sigma, bound) == (config.sigmas[-1], config.bounds[-1])


def _with_noise(config: Grid, measured: Measured, level: float) -> list[Finding]:
    return [
        above(
            f"gain at sigma {b:g} - at {a:g}, C {bound:g}",
            measured.each_seed(level, _growth, config, (a, bound), (b, bound)),
        )
        for bound in config.bounds
        for a, b in pairwise(config.sigmas)
        if not _collapses(config, b, bound)
    ]


def _with_bound(config: Grid, measured: Measured, level: float) -> list[Finding]:
    return [
        above(
            f"gain at C {b:g} - at {a:g}, sigma {sigma:g}",
            measured.each_seed(level, _growth, config, (sigma, a), (sigma, b)),
        )
        for sigma in config.sigmas
        for a, b in pairwise(config.bounds)
        if not _collapses(config, sigma, b)
    ]


def _where(config: Grid, product: float) -> list[tuple[float, float]]:
    return [(s, c) for s in config.sigmas for c in config.bounds if abs(s * c - product) < 1e-9]


def _gains_at(product: float, side: Any) -> Any:
    def check(config: Grid, measured: Measured, level: float) -> list[Finding]:
        return [
            side(f"gain at sigma {s:g}, C {c:g}", measured.each_seed(level, _gain, config, s, c))
            for s, c in _where(config, product)
        ]

    return check


def _draw_grid(config: Grid, measured: Measured) -> Figure:
    figure, axes = sheet(2)
    for ax, title in zip(axes, ("dense, training accuracy, %", f"gain of r* = {config.final:g}, points"), strict=True):
        values = np.empty((len(config.sigmas), len(config.bounds)))
        for i, sigma in enumerate(config.sigmas):
            for j, bound in enumerate(config.bounds):
                dense, sparse = (measured.column(_at(sigma, bound, f), "train_accuracy") for f in (0.0, config.final))
                values[i, j] = 100 * float((dense if ax is axes[0] else sparse - dense).mean())
        heat(ax, values, config.bounds, config.sigmas, title, figure)
        dress(ax, "bound C", "noise multiplier sigma", legend=False, grid=False)
    return figure


GRID = Experiment(
    name="grid",
    title="Where random sparsification pays: noise by bound",
    where="Figure 2",
    tiers={
        "quick": Grid(
            seeds=1, data="digits", model="cnn", batch=64, epochs=1, rows=150, sigmas=(1.0, 2.0), bounds=(0.25, 1.0)
        ),
        "standard": Grid(rows=5000, batch=250, epochs=8, sigmas=(1.0, 4.0), bounds=(0.25, 1.0)),
        "full": Grid(),
    },
    stages=(_grid_cells,),
    claims=(
        Claim("Z1.sigma", "the gain of training accuracy grows with sigma", "Figure 2", _with_noise),
        Claim("Z1.bound", "and with C", "Figure 2", _with_bound),
        Claim(
            "Z1.two",
            "at C sigma = 2 it is at least 2 points",
            "above 4 points",
            _gains_at(2.0, lambda w, e: above(w, e, 0.02)),
        ),
        Claim(
            "Z1.one",
            "at C sigma = 1 it is within 1.5 points of 0",
            "flat or slightly up",
            _gains_at(1.0, lambda w, e: within(w, e, -0.015, 0.015)),
        ),
        Claim(
            "Z1.quarter", "at sigma 1, C 1/4 there is none", "below 0", _gains_at(0.25, lambda w, e: below(w, e, 0.0))
        ),
    ),
    draw=_draw_grid,
    settings=(
        "Fashion-MNIST and DP-CNN/S in place of CIFAR-10 and DP-CNN: batch 1000, 20 epochs, learning rate 1, no momentum (the "
        "paper does not state them), r* = 0.7 with cooling. At sigma 4, C 1 nothing is claimed. Accuracy on 5,000 training "
        "images."
    ),
    left_out="the sweep of r* at every point; CIFAR-10",
    minutes={"quick": 0.05, "standard": 20, "full": 4},
)


# Momentum --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Momentum(Config):
    """Bounds and momenta at one epsilon, SGD and Adam."""

    data: str = "fashion_mnist"
    model: str = "dp-cnn-s"
    batch: int = 1000
    epochs: float = 20
    lr: float = 1.0
    adam_lr: float = 0.002
    epsilon: float = 3.0
    sigma: float | None = None  # in place of epsilon
    diagonal: tuple[tuple[float, float], ...] = ((1.0, 0.0), (0.5, 0.5), (0.1, 0.9))  # C and mu with C / (1 - mu) = 1
    rows: int | None = None

    @property
    def bounds(self) -> list[float]:
        """C."""
        return [bound for bound, _ in self.diagonal]

    @property
    def momenta(self) -> list[float]:
        """mu."""
        return [momentum for _, momentum in self.diagonal]

    def run(self, bound: float, momentum: float, adam: bool) -> dict[str, Any]:
        """Settings of one run."""
        noise = {"epsilon": self.epsilon} if self.sigma is None else {"sigma": self.sigma}
        shared = self.given("data", "model", "batch", "epochs", "rows")
        given = {**shared, "rule": {"kind": "local", "bound": bound}, **noise}
        if adam:
            return {**given, "lr": self.adam_lr, "adam": True, "beta": momentum}
        return {**given, "lr": self.lr, "momentum": momentum}


def _moved(kind: str, bound: float, momentum: float) -> str:
    return f"{kind}, C {bound:g}, mu {momentum:g}"


HEAVY, ADAM = "SGD", "Adam"


def _momentum_cells(config: Momentum, measured: Measured) -> Sequence[Cell]:
    arms = {
        _moved(kind, bound, momentum): config.run(bound, momentum, kind == ADAM)
        for kind in (HEAVY, ADAM)
        for bound in config.bounds
        for momentum in config.momenta
    }
    return grid(config, RUN, arms)


def _diagonal(config: Momentum, measured: Measured, level: float) -> list[Finding]:
    first, *others = config.diagonal
    return [
        within(
            f"accuracy at C {pair[0]:g}, mu {pair[1]:g} - at C {first[0]:g}, mu {first[1]:g}",
            measured.difference(level, _moved(HEAVY, *pair), _moved(HEAVY, *first), "accuracy"),
            -0.01,
            0.01,
        )
        for pair in others
    ]


def _over_rest(row: Mapping[str, Any], config: Momentum, momentum: float) -> float:
    """Accuracy of the bound on the diagonal minus the best of the other bounds, at one momentum."""
    seen = {bound: float(row[_moved(HEAVY, bound, momentum)]["accuracy"]) for bound in config.bounds}
    chosen = next(bound for bound, of in config.diagonal if of == momentum)
    return seen.pop(chosen) - max(seen.values())


def _on_diagonal(config: Momentum, measured: Measured, level: float) -> list[Finding]:
    return [
        above(
            f"accuracy on the diagonal - best other bound, mu {momentum:g}",
            measured.each_seed(level, _over_rest, config, momentum),
            -0.005,
        )
        for momentum in config.momenta
    ]


def _adam_decouples(config: Momentum, measured: Measured, level: float) -> list[Finding]:
    low, high = min(config.bounds), max(config.bounds)
    return [
        within(
            f"accuracy of Adam, C {low:g} - C {high:g}, mu {momentum:g}",
            measured.difference(level, _moved(ADAM, low, momentum), _moved(ADAM, high, momentum), "accuracy"),
            -0.01,
            0.01,
        )
        for momentum in config.momenta
    ]


def _draw_momentum(config: Momentum, measured: Measured) -> Figure:
    figure, axes = sheet(2)
    for ax, kind in zip(axes, (HEAVY, ADAM), strict=True):
        values = np.array(
            [
                [100 * float(measured.column(_moved(kind, bound, mu), "accuracy").mean()) for bound in config.bounds]
                for mu in config.momenta
            ]
        )
        heat(ax, values, config.bounds, config.momenta, f"{kind}, test accuracy, %", figure)
        dress(ax, "bound C", "momentum", legend=False, grid=False)
    return figure


MOMENTUM = Experiment(
    name="momentum",
    title="Momentum and bound: C / (1 - mu) is what counts",
    where="Figures 10 and 11, appendix H",
    tiers={
        "quick": Momentum(
            seeds=1,
            data="digits",
            model="cnn",
            batch=64,
            epochs=1,
            rows=150,
            sigma=1.0,
            diagonal=((1.0, 0.0), (0.5, 0.5)),
        ),
        "standard": Momentum(rows=5000, batch=250, epochs=8),
        "full": Momentum(),
    },
    stages=(_momentum_cells,),
    claims=(
        Claim("Z9", "accuracy is the same along C / (1 - mu) = 1 (1 point allowed)", "appendix H", _diagonal),
        Claim(
            "Z9.best",
            "at each momentum the bound on that line is best (half a point allowed)",
            "Figure 10",
            _on_diagonal,
        ),
        Claim("Z9.adam", "under Adam the bound does not matter (1 point allowed)", "Figure 11", _adam_decouples),
    ),
    draw=_draw_momentum,
    settings=(
        "Fashion-MNIST and DP-CNN/S in place of CIFAR-10 and DP-CNN: batch 1000, 20 epochs, epsilon 3 at delta 1e-5, learning "
        "rate 1 for SGD, 0.002 for Adam (not tuned); bounds and momenta are those of the paper's diagonal."
    ),
    left_out="epsilon 7.53, DP-TL, H-CNN",
    minutes={"quick": 0.05, "standard": 20, "full": 4},
)


# Batches ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Batches(Grid):
    """Poisson batches and shuffled ones, dense and sparse, at one noise."""

    seeds: int = 10
    sigma: float = 2.0
    bound: float = 1.0
    final: float = 0.9


POISSON, SHUFFLE = "poisson", "shuffle"


def _drawn(sampler: str, final: float) -> str:
    return f"{sampler}, r* {final:g}"


def _batch_cells(config: Batches, measured: Measured) -> Sequence[Cell]:
    def run(sampler: str, final: float) -> dict[str, Any]:
        given = config.run(config.sigma, config.bound, final)
        return given if sampler == POISSON else {**given, "sampler": sampler}

    arms = {_drawn(s, final): run(s, final) for s in (POISSON, SHUFFLE) for final in (0.0, config.final)}
    return grid(config, RUN, arms)


def _same_batches(config: Batches, measured: Measured, level: float) -> list[Finding]:
    return [
        within(
            f"accuracy, Poisson - shuffled, r* {final:g}",
            measured.difference(level, _drawn(POISSON, final), _drawn(SHUFFLE, final), "accuracy"),
            -0.006,
            0.006,
        )
        for final in (0.0, config.final)
    ]


def _both_gain(config: Batches, measured: Measured, level: float) -> list[Finding]:
    return [
        above(
            f"gain with {sampler} batches",
            measured.difference(level, _drawn(sampler, config.final), _drawn(sampler, 0.0), "accuracy"),
        )
        for sampler in (POISSON, SHUFFLE)
    ]


def _draw_batches(config: Batches, measured: Measured) -> Figure:
    figure, (ax,) = sheet()
    for place, sampler in enumerate((POISSON, SHUFFLE)):
        seen = columns(measured, [_drawn(sampler, final) for final in (0.0, config.final)], "accuracy")
        curve(ax, (0.0, config.final), [100 * column for column in seen], sampler, place)
    dress(ax, "sparsity r*", "test accuracy, %")
    return figure


BATCHES = Experiment(
    name="batches",
    title="Shuffled and Poisson batches",
    where="Table 3",
    tiers={
        "quick": Batches(seeds=1, data="digits", model="cnn", batch=64, epochs=1, rows=150),
        "standard": Batches(seeds=5, rows=5000, batch=250, epochs=8),
        "full": Batches(),
    },
    stages=(_batch_cells,),
    claims=(
        Claim("Z4", "they reach the same accuracy (0.6 points allowed)", "62.8 and 62.8, 52.5 and 52.8", _same_batches),
        Claim("Z4.gain", "random sparsification gains with both", "+1.5 to +2.6", _both_gain),
    ),
    draw=_draw_batches,
    settings=(
        "Fashion-MNIST and DP-CNN/S in place of CIFAR-10 and DP-CNN, the settings of zhu2023.sparsity at r* = 0.9. The same "
        "noise for both: shuffled batches cost more epsilon than the paper counts (errata)."
    ),
    minutes={"quick": 0.04, "standard": 10, "full": 2},
)
