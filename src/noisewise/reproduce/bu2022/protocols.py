"""Bu et al. 2022: the schedule of local, then global clipping, and noise against clipping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.reproduce.bu2022.images import LOCAL, RUN, difference
from noisewise.reproduce.claims import Claim, Finding, above, within
from noisewise.reproduce.drawing import bars, curve, dress, sheet
from noisewise.reproduce.experiment import Cell, Config, Experiment, grid
from noisewise.reproduce.measured import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Local, then global ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Mixed(Config):
    """95 % of the steps local, 5 % global, with DP-Adam, whose step does not shrink with Z."""

    data: str = "mnist"
    model: str = "mnist-cnn"
    batch: int = 256
    epochs: float = 20
    lr: float = 1e-3
    sigma: float = 1.1
    bound: float = 0.1
    screen: float = 1000.0
    share: float = 0.95
    rows: int | None = None


BEFORE, MIXED, THROUGHOUT = "local, until the switch", "local, then global", "local throughout"


def _mixed_cells(config: Mixed, measured: Measured) -> Sequence[Cell]:
    shared = {
        "data": config.data,
        "model": config.model,
        "batch": config.batch,
        "lr": config.lr,
        "adam": True,
        "sigma": config.sigma,
        "rows": config.rows,
        "rule": {"kind": LOCAL, "bound": config.bound},
    }
    switch = {"kind": "local then global", "screen": config.screen, "share": config.share}
    arms = {
        BEFORE: {**shared, "epochs": config.share * config.epochs},
        MIXED: {**shared, "epochs": config.epochs, "repair": switch},
        THROUGHOUT: {**shared, "epochs": config.epochs},
    }
    return grid(config, RUN, arms)


def _relative(row: Mapping[str, Any]) -> float:
    before, after = row[BEFORE]["loss"], row[MIXED]["loss"]
    return float((before - after) / before)


def _falls(config: Mixed, measured: Measured, level: float) -> list[Finding]:
    return [above("share of the test loss that the switch takes away", measured.each_seed(level, _relative), 0.2)]


def _same_accuracy(config: Mixed, measured: Measured, level: float) -> list[Finding]:
    return [within("accuracy, after - before", measured.difference(level, MIXED, BEFORE, "accuracy"), -0.02, 0.02)]


def _draw_mixed(config: Mixed, measured: Measured) -> Figure:
    figure, axes = sheet(3)
    for ax, what, up in zip(axes, ("loss", "ece", "accuracy"), ("test loss", "ECE", "accuracy"), strict=True):
        bars(ax, {name: measured.column(name, what) for name in (BEFORE, MIXED, THROUGHOUT)}, scale=1.0)
        dress(ax, "", up, legend=False)
    return figure


MIX = Experiment(
    name="local_then_global",
    title="Local clipping, then global for the last 5 % of the steps (SNLI's protocol on MNIST)",
    where="section 5.3, mix-up",
    tiers={
        "quick": Mixed(seeds=1, data="digits", model="cnn", batch=64, epochs=6, rows=200),
        "standard": Mixed(rows=10_000, epochs=8),
        "full": Mixed(),
    },
    stages=(_mixed_cells,),
    claims=(
        Claim("B3.loss", "the switch lowers the test loss by more than 20 %", "1.79 to 1.08 on SNLI", _falls),
        Claim("B3.ece", "and the ECE", "22.0 to 17.6 % on SNLI", difference("ece", BEFORE, MIXED)),
        Claim("B3.accuracy", "and changes accuracy by at most 2 points", "74.1 to 73.1 on SNLI", _same_accuracy),
        Claim(
            "B3.throughout",
            "ECE ends below that of local clipping throughout",
            "not tested there",
            difference("ece", THROUGHOUT, MIXED),
            control=True,
        ),
    ),
    draw=_draw_mixed,
    settings=(
        "The paper's protocol and its R 0.1 and Z 1000, on MNIST with the network of B1 in place of SNLI with "
        "BERT: DP-Adam, learning rate 0.001 (not tuned), sigma 1.1, batch 256, 20 epochs."
    ),
    left_out="texts (bu2022.text, bu2022.snli)",
    minutes={"quick": 0.05, "standard": 10, "full": 3},
)


# Noise or clipping -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Flow(Config):
    """Small steps: does the noise matter, or the bound?"""

    data: str = "mnist"
    model: str = "mnist-cnn"
    batch: int = 256
    epochs: float = 5
    lr: float = 0.02
    sigmas: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0)
    bounds: tuple[float, ...] = (0.1, 1.0, 10.0)
    rows: int | None = None
    curve: int = 10


def _flow(sigma: float, bound: float) -> str:
    return f"sigma {sigma:g}, R {bound:g}"


def _flow_cells(config: Flow, measured: Measured) -> Sequence[Cell]:
    shared = {
        "data": config.data,
        "model": config.model,
        "batch": config.batch,
        "epochs": config.epochs,
        "lr": config.lr,
        "rows": config.rows,
        "curve": config.curve,
    }
    arms = {
        _flow(sigma, bound): {
            **shared,
            "rule": {"kind": LOCAL, "bound": bound},
            **({"sigma": sigma} if sigma else {"ablation": "clip-only"}),
        }
        for sigma in config.sigmas
        for bound in config.bounds
    }
    return grid(config, RUN, arms)


def _spreads(row: Mapping[str, Any], config: Flow) -> float:
    """Mean spread of the final loss over R minus that over sigma."""
    loss = np.array([[row[_flow(sigma, bound)]["loss"] for bound in config.bounds] for sigma in config.sigmas])
    return float(np.ptp(loss, axis=1).mean() - np.ptp(loss, axis=0).mean())


def _b7(config: Flow, measured: Measured, level: float) -> list[Finding]:
    return [above("spread of the loss over R - over sigma", measured.each_seed(level, _spreads, config))]


def _overlap(config: Flow, measured: Measured, level: float) -> list[Finding]:
    middle = config.bounds[len(config.bounds) // 2]
    return [
        within(
            f"loss at sigma {sigma:g} - without noise, R {middle:g}",
            measured.difference(level, _flow(sigma, middle), _flow(config.sigmas[0], middle), "loss"),
            -0.05,
            0.05,
        )
        for sigma in config.sigmas[1:]
    ]


def _draw_flow(config: Flow, measured: Measured) -> Figure:
    figure, axes = sheet(len(config.bounds))
    for ax, bound in zip(axes, config.bounds, strict=True):
        for place, sigma in enumerate(config.sigmas):
            points = measured.arms[_flow(sigma, bound)][measured.seeds[0]]["curve"]
            seen = [measured.column(_flow(sigma, bound), "curve", k, "train_loss") for k in range(len(points))]
            curve(ax, [point["step"] for point in points], seen, f"sigma {sigma:g}", place, marker="")
        dress(ax, "step", "training loss", title=f"R {bound:g}")
    return figure


FLOW = Experiment(
    name="noise_or_clipping",
    title="With small steps the bound matters, the noise hardly",
    where="Fact 4.1, appendix G (missing)",
    tiers={
        "quick": Flow(
            seeds=1,
            data="digits",
            model="cnn",
            batch=64,
            epochs=1,
            rows=200,
            sigmas=(0.0, 1.0),
            bounds=(0.1, 1.0),
            curve=2,
        ),
        "standard": Flow(rows=10_000, epochs=3, sigmas=(0.0, 1.0, 2.0), bounds=(0.1, 1.0), curve=3),
        "full": Flow(),
    },
    stages=(_flow_cells,),
    claims=(
        Claim("B7", "the loss differs more between bounds than between amounts of noise", "appendix G", _b7),
        Claim(
            "B7.overlap",
            "at one bound losses with and without noise differ by at most 0.05",
            "curves overlap",
            _overlap,
        ),
    ),
    draw=_draw_flow,
    settings=(
        "MNIST, the network of B1, batch 256, learning rate 0.02, 5 epochs; the paper's data and settings are "
        "missing. The noise is sigma R, so that it grows with the bound."
    ),
    minutes={"quick": 0.1, "standard": 15, "full": 4},
)
