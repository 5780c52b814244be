"""A paper whose experiment takes no time: a coin with a known mean, a tuned setting, and a run that can be interrupted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from noisewise.errors import ConfigError
from noisewise.reproduce.claims import Claim, above, below, exact
from noisewise.reproduce.drawing import curve, dress, sheet
from noisewise.reproduce.experiment import TUNING_SEED, Config, Experiment, Paper, Unrun, grid

RUN = "helpers.toy_paper:draw"


def draw(*, seed, device, shift, trace="", stop_at=None, fail_at=None):
    """A number around `shift`; leaves a file in `trace` for every call."""
    if seed == stop_at:
        raise KeyboardInterrupt
    if seed == fail_at:
        raise ConfigError(f"seed {seed} is not liked")
    if trace:
        Path(trace, f"{len(list(Path(trace).iterdir()))}").touch()
    return {
        "value": shift + float(np.random.default_rng(seed).normal(0, 0.1)),
        "score": -abs(shift - 2.0),
        "device": device,
    }


@dataclass(frozen=True, kw_only=True)
class Shift(Config):
    seeds: int = 6
    shifts: tuple[float, ...] = (1.0, 2.0, 3.0)
    trace: str = ""
    stop_at: int | None = None


def tried(config, measured):
    return measured.tried(config.shifts, "shift {:g}".format, "score")


def tuning(config, measured):
    arms = {arm: {"shift": shift, "trace": config.trace} for shift, arm in tried(config, measured).items()}
    return grid(config, RUN, arms, seeds=[TUNING_SEED], tuning=True)


def final(config, measured):
    chosen = measured.best(tried(config, measured), "score")
    more = {"trace": config.trace, "stop_at": config.stop_at}
    return grid(config, RUN, {"chosen": {"shift": chosen, **more}, "zero": {"shift": 0.0, **more}})


def positive(config, measured, level):
    return [above("chosen - zero", measured.difference(level, "chosen", "zero", "value"))]


def negative(config, measured, level):
    return [below("chosen - zero", measured.difference(level, "chosen", "zero", "value"))]


def two(config, measured, level):
    return [above("two", exact(2.0), 1.0)]


def picture(config, measured):
    figure, (ax,) = sheet()
    curve(ax, [0, 1], [measured.column(arm, "value") for arm in ("zero", "chosen")], "value")
    dress(ax, "arm", "value")
    return figure


COIN = Experiment(
    name="coin",
    title="A coin with a known mean",
    where="nowhere",
    tiers={"quick": Shift(seeds=1), "standard": Shift(), "full": Shift(seeds=12)},
    stages=(tuning, final),
    claims=(
        Claim("C1", "it is above zero", "2", positive),
        Claim("C2", "it is below zero", "2", negative),
        Claim("C3", "two is more than one", "2", two, theory=True),
        Claim("C4", "another coin", "5", positive, incomparable="another coin"),
        Claim("C5", "a control", "not tested", positive, control=True),
    ),
    draw=picture,
    settings="None.",
    minutes={"quick": 0.01, "standard": 0.01, "full": 0.01},
)

PAPER = Paper("toy", "Coins", "Nobody 2026", (COIN,), (Unrun("C6", "a coin on the moon", "6", "no moon"),), ("None.",))


def replace_tiers(config):
    """The paper with one config for every tier."""
    return replace(PAPER, experiments=(replace(COIN, tiers=dict.fromkeys(("quick", "standard", "full"), config)),))
