"""Zhu, Blaschko 2023 without training: strengths of masked noise and signal, r*, Corollary C.1.1, reconstruction, payload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from noisewise.reproduce.claims import Claim, Finding, above, below, exact, within
from noisewise.reproduce.drawing import curve, dress, sheet
from noisewise.reproduce.experiment import Cell, Config, Experiment, grid
from noisewise.reproduce.measured import Measured, slope

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MASKS, BEST = "masks", "best sparsity"


@dataclass(frozen=True, kw_only=True)
class Masks(Config):
    """How many weights, sparsities and draws."""

    seeds: int = 10
    weights: int = 200
    rates: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7, 0.9)
    draws: int = 3000
    lrs: tuple[float, ...] = (1.0, 0.3, 0.1)


def _cells(config: Masks, measured: Measured) -> Sequence[Cell]:
    masks = {"weights": config.weights, "rates": list(config.rates), "draws": config.draws}
    return [
        *grid(config, "tables:sparsified", {MASKS: masks}),
        *grid(config, "tables:best_sparsities", {BEST: {"lrs": list(config.lrs)}}),
    ]


def _at(rate: float) -> str:
    return f"{rate:g}"


def _mean(measured: Measured, rate: float, what: str) -> float:
    return float(measured.column(MASKS, _at(rate), what).mean())


def _noise(config: Masks, measured: Measured, level: float) -> list[Finding]:
    return [
        within(
            f"||m n|| / ||n|| over sqrt(1 - r) at r = {rate:g}",
            exact(_mean(measured, rate, "noise") / (1 - rate) ** 0.5),
            0.98,
            1.02,
        )
        for rate in config.rates
    ]


def _kept(config: Masks, measured: Measured, level: float) -> list[Finding]:
    return [
        above(f"growth from r = {a:g} to {b:g}", exact(_mean(measured, b, "kept") - _mean(measured, a, "kept")))
        for a, b in pairwise(config.rates)
    ]


def _error(config: Masks, measured: Measured, level: float) -> list[Finding]:
    grows = [
        above(f"growth from r = {a:g} to {b:g}", exact(_mean(measured, b, "error") - _mean(measured, a, "error")))
        for a, b in pairwise(config.rates)
    ]
    over = [
        above(f"error over bound at r = {rate:g}", exact(_mean(measured, rate, "error") * (1 - rate)), 1.0)
        for rate in config.rates
        if rate > 0
    ]
    return grows + over


def _off(measured: Measured, config: Masks, which: str) -> list[Finding]:
    return [
        within(
            f"r* - searched minimum at eta = {lr:g}",
            exact(float(np.abs(measured.column(BEST, _at(lr), which)).max())),
            -1e-3,
            1e-3,
        )
        for lr in config.lrs
    ]


def _corrected(config: Masks, measured: Measured, level: float) -> list[Finding]:
    return _off(measured, config, "with")


def _printed(config: Masks, measured: Measured, level: float) -> list[Finding]:
    return _off(measured, config, "printed")


def noise_of_corollary(steps: float) -> float:
    """`P C^2 u^2 q^2 log(1/delta) / (2 sqrt(T) eps^2)` with `B = sqrt T`, `q = B / n`, up to what does not depend on T.

    >>> noise_of_corollary(400) / noise_of_corollary(100)
    2.0
    """
    rate = steps**0.5
    return rate**2 / steps**0.5


def _corollary(config: Masks, measured: Measured, level: float) -> list[Finding]:
    steps = [100.0, 400.0, 1600.0, 6400.0]
    power = slope(np.log(steps), np.log([noise_of_corollary(count) for count in steps]))
    return [below("exponent of the noise term in T", exact(power))]


def _payload(config: Masks, measured: Measured, level: float) -> list[Finding]:
    epochs, final = 1000, 0.9
    sent = float(np.mean([1 - final * epoch / (epochs - 1) for epoch in range(epochs)]))
    return [within("mean payload with cooling over 1 - r*/2", exact(sent / (1 - final / 2)), 0.999, 1.001)]


def _draw(config: Masks, measured: Measured) -> Figure:
    figure, axes = sheet(3)
    arms = [_at(rate) for rate in config.rates]
    for ax, what, up in zip(
        axes,
        ("noise", "kept", "error"),
        ("||m n|| / ||n||", "kept, masked first / clipped first", "error of the attack, over r = 0"),
        strict=True,
    ):
        curve(ax, config.rates, [measured.column(MASKS, arm, what) for arm in arms], "drawn")
        dress(ax, "sparsity r", up, legend=False)
    axes[0].plot(config.rates, [(1 - rate) ** 0.5 for rate in config.rates], "k--", label="sqrt(1 - r)")
    axes[2].plot(config.rates, [1 / (1 - rate) for rate in config.rates], "k--", label="bound 1 / (1 - r)")
    for ax in (axes[0], axes[2]):
        ax.legend(frameon=False, fontsize="small")
    return figure


THEORY = Experiment(
    name="theory",
    title="Masks: noise, signal, the best sparsity, reconstruction, payload",
    where="Figure 1, Theorems 3.5 and 5.1, Corollary C.1.1, section 5",
    tiers={"quick": Masks(seeds=1, rates=(0.0, 0.5, 0.9), draws=400), "standard": Masks(), "full": Masks(seeds=30)},
    stages=(_cells,),
    claims=(
        Claim("Z.noise", "a mask leaves the share sqrt(1 - r) of the noise's length", "Figure 1", _noise, theory=True),
        Claim("Z.kept", "the kept part of a clipped gradient grows with r", "Figure 1", _kept, theory=True),
        Claim("Z.T51", "the attack's error grows with r and exceeds its bound", "Theorem 5.1", _error, theory=True),
        Claim("Z.best", "r* as printed minimises the bound", "1 - Delta_C / Delta_sigma", _printed, theory=True),
        Claim("Z.best.eta", "with the learning rate it does", "Eq. (113)", _corrected, theory=True, control=True),
        Claim("Z.C11", "the noise term of Corollary C.1.1 falls with T", "Corollary C.1.1", _corollary, theory=True),
        Claim(
            "Z.payload", "with cooling the mean payload is 1 - r*/2 of a dense one", "section 5", _payload, theory=True
        ),
    ),
    draw=_draw,
    settings=(
        "200 weights, 3,000 masks for each sparsity, clip bound 1. The minimum of the bound with kappa = sqrt(1 -"
        " r) is searched on 20,001 points; Corollary C.1.1 with its own q = B / n = sqrt(T) / n."
    ),
    minutes={"quick": 0.02, "standard": 0.1, "full": 0.2},
)
