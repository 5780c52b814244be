"""Theorem 3.2 and the toy of Theorem 3.3, Watson et al. 2023, without privacy and without images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from noisewise.reproduce.claims import Claim, Finding, above, below, exact, within
from noisewise.reproduce.drawing import bars, curve, dress, sheet
from noisewise.reproduce.experiment import Cell, Config, Experiment, grid
from noisewise.reproduce.measured import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLOUDS, TOY = "clouds", "toy"
KINDS = ("heavy", "round", "by hand")


@dataclass(frozen=True, kw_only=True)
class Bounds(Config):
    """Random clouds of gradients, and a linear network on signal and noise."""

    draws: int = 20_000
    shares: tuple[float, ...] = (0.0, 0.3, 0.6, 0.8, 0.9)
    steps: int = 300
    rows: int = 400


def _cells(config: Bounds, measured: Measured) -> Sequence[Cell]:
    toy = {"shares": list(config.shares), "steps": config.steps, "rows": config.rows}
    return [
        *grid(config, "tables:turned_by_clipping", {CLOUDS: {"draws": config.draws}}),
        *grid(config, "tables:signal_and_noise", {TOY: toy}),
    ]


MINIMUM = "minimum"


@dataclass(frozen=True, kw_only=True)
class Minimum(Config):
    """Gradient descent on the expected loss of the toy."""

    steps: int = 15_000
    lr: float = 0.004


def _minimum_cells(config: Minimum, measured: Measured) -> Sequence[Cell]:
    return grid(config, "tables:balanced_minimum", {MINIMUM: config.given()})


def _largest(measured: Measured, *path: str) -> float:
    return float(measured.column(MINIMUM, *path).max())


def _reaches(config: Minimum, measured: Measured, level: float) -> list[Finding]:
    return [
        below("share of W1 that faces noise", exact(_largest(measured, "balanced", "facing_noise")), 1e-3),
        below("distance of W2 W1 from the minimum", exact(_largest(measured, "balanced", "product")), 1e-3),
        within("length of W1 over the printed one", exact(_largest(measured, "balanced", "first")), 0.998, 1.002),
    ]


def _elsewhere(config: Minimum, measured: Measured, level: float) -> list[Finding]:
    least = float(measured.column(MINIMUM, "ordinary", "facing_noise").min())
    return [below("smallest share of W1 that faces noise", exact(least), 1e-3)]


def _draw_minimum(config: Minimum, measured: Measured) -> Figure:
    figure, (ax,) = sheet()
    starts = ("balanced", "ordinary")
    bars(ax, {start: measured.column(MINIMUM, start, "facing_noise") for start in starts})
    dress(ax, "start", "share of W1's length that faces noise, %", legend=False)
    return figure


def _least(measured: Measured, bound: str) -> list[Finding]:
    return [
        above(
            f"smallest value - bound, {kind}",
            exact(float(measured.column(CLOUDS, f"{kind}, {bound}", "least").min())),
            -1e-9,
        )
        for kind in KINDS
    ]


def _printed(config: Bounds, measured: Measured, level: float) -> list[Finding]:
    return _least(measured, "printed")


def _corrected(config: Bounds, measured: Measured, level: float) -> list[Finding]:
    return _least(measured, "corrected") + _least(measured, "general")


def _fall(row: Mapping[str, Any], first: float, last: float) -> float:
    return float(row[TOY][f"{last:g}"]["ratio"] - row[TOY][f"{first:g}"]["ratio"])


def _w0(config: Bounds, measured: Measured, level: float) -> list[Finding]:
    return [
        below(f"R at {b:g} pruned - at {a:g}", measured.each_seed(level, _fall, a, b))
        for a, b in pairwise(config.shares)
    ]


def _signal(config: Bounds, measured: Measured, level: float) -> list[Finding]:
    return [
        above(
            "kept share of signal - of noise columns",
            measured.contrast(level, (TOY, "kept", "signal"), (TOY, "kept", "noise")),
        )
    ]


def _draw(config: Bounds, measured: Measured) -> Figure:
    figure, (ax,) = sheet()
    curve(ax, config.shares, [measured.column(TOY, f"{share:g}", "ratio") for share in config.shares], "R")
    dress(ax, "pruned share", "R of the gradients at the start", legend=False)
    return figure


BALANCE = Experiment(
    name="balance",
    title="What faces noise vanishes at the minimum, from a balanced start",
    where="Theorem 3.3",
    tiers={"quick": Minimum(seeds=1), "standard": Minimum(), "full": Minimum(seeds=20)},
    stages=(_minimum_cells,),
    claims=(
        Claim(
            "W.T33", "from a balanced start the minimum is the printed one, and W1 does not face noise", "Theorem 3.3",
            _reaches, theory=True,
        ),
        Claim(
            "W.T33.ordinary", "so it is from PyTorch's own start", "not said", _elsewhere, theory=True, control=True
        ),
    ),
    draw=_draw_minimum,
    settings=(
        "Gradient descent on the expected loss (no sample), learning rate 0.004, 15,000 steps, for gradient flow; the toy of "
        "watson2023.theory: 20 signal and 180 noise dimensions, ||v|| 2, deviation 1, width 50."
    ),
    minutes={"quick": 0.02, "standard": 0.1, "full": 0.2},
)  # fmt: skip

THEORY = Experiment(
    name="theory",
    title="How far clipping turns a step, and what pruning does to R",
    where="Theorems 3.2 and 3.3, Figure 11",
    tiers={
        "quick": Bounds(seeds=1, draws=300, shares=(0.0, 0.9), steps=20, rows=60),
        "standard": Bounds(),
        "full": Bounds(seeds=20, draws=200_000),
    },
    stages=(_cells,),
    claims=(
        Claim(
            "W.T32",
            "<c, gbar> / ||gbar|| >= C (1 - R/2) where everyone is clipped",
            "Theorem 3.2",
            _printed,
            theory=True,
        ),
        Claim(
            "W.T32.ours",
            "C (1 - R) / (1 + R), and its general form, hold",
            "not there",
            _corrected,
            theory=True,
            control=True,
        ),
        Claim("W0", "R falls as more is pruned", "Figure 11", _w0),
        Claim("W0.signal", "pruning removes what faces noise first", "Theorem 3.3", _signal),
    ),
    draw=_draw,
    settings=(
        "Clouds of ten gradients in two dimensions, all clipped; one cloud by hand. The toy: 20 signal and 180 "
        "noise dimensions, ||v|| 2, deviation 1, width 50, balanced start, 300 steps of gradient descent on 400 "
        "rows, then pruned by magnitude and set back to the start; R is that of the kept coordinates. The paper's"
        " sizes are missing."
    ),
    minutes={"quick": 0.02, "standard": 1, "full": 5},
)
