"""Theorems of Xu, Chen 2026 as simulations on the two-patch data, and what the Blog says of model and data size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.reproduce.claims import Claim, Finding, above, below, exact, within
from noisewise.reproduce.drawing import columns, curve, dress, sheet
from noisewise.reproduce.experiment import Cell, Config, Experiment, grid
from noisewise.reproduce.measured import Measured, crossing, slope
from noisewise.reproduce.xu2026.shared import ONE, SETTINGS, value

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Theory: n, T, budgets, radii, angles ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Rows(Config):
    """More rows, no noise, patch noise that can be memorised."""

    sizes: tuple[int, ...] = (125, 250, 500, 1000, 2000, 4000)
    d: int = 100
    test: int = 4000
    steps: int = 400
    sigma_xi: float = 1.0
    norm: float = 2.0


def _size(n: int) -> str:
    return f"n {n}"


def _rows_cells(config: Rows, measured: Measured) -> Sequence[Cell]:
    shared = {
        "d": config.d,
        "test": config.test,
        "steps": config.steps,
        "sigma_xi": config.sigma_xi,
        "norm": config.norm,
    }
    return grid(config, ONE, {_size(n): {**shared, "n": n, "plain": True} for n in config.sizes})


def _exponent(row: Mapping[str, Any], sizes: Sequence[int]) -> float:
    excess = [value(row, _size(n), "loss") - value(row, _size(n), "train_loss") for n in sizes]
    return slope(np.log(sizes), np.log(np.maximum(excess, 1e-6)))


def _t1(config: Rows, measured: Measured, level: float) -> list[Finding]:
    return [below("exponent of test - train loss in n", measured.each_seed(level, _exponent, config.sizes), -0.3)]


def _t1_half(config: Rows, measured: Measured, level: float) -> list[Finding]:
    exponent = measured.each_seed(level, _exponent, config.sizes)
    return [within("exponent of test - train loss in n", exponent, -0.7, -0.3)]


def _draw_rows(config: Rows, measured: Measured) -> Figure:
    figure, (ax,) = sheet()
    arms = [_size(n) for n in config.sizes]
    tested, fitted = columns(measured, arms, "loss"), columns(measured, arms, "train_loss")
    curve(ax, config.sizes, [a - b for a, b in zip(tested, fitted, strict=True)], "test - train loss")
    first = float(np.mean(tested[0] - fitted[0]))
    ax.plot(
        config.sizes,
        [first * math.sqrt(config.sizes[0] / n) for n in config.sizes],
        "--",
        color="grey",
        label="n^(-1/2)",
    )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(config.sizes, labels=[f"{size:,}" for size in config.sizes])
    ax.minorticks_off()
    dress(ax, "training rows n", "generalisation gap")
    return figure


GENERALISATION = Experiment(
    name="generalisation",
    title="The generalisation term falls with the number of rows",
    where="Theorem 3.4 and its remark",
    tiers={
        "quick": Rows(seeds=1, sizes=(60, 240), d=40, test=200, steps=60),
        "standard": Rows(seeds=10),
        "full": Rows(seeds=30),
    },
    stages=(_rows_cells,),
    claims=(
        Claim("T1", "without noise the gap of test and training loss falls with n", "bound, about n^(-1/2)", _t1),
        Claim("T1.half", "it falls as n^(-1/2), not faster", "not said", _t1_half, control=True),
    ),
    draw=_draw_rows,
    settings=SETTINGS + " No noise and no clipping; sigma_xi 1, ||u|| 2, d 100, 400 steps.",
    minutes={"quick": 0.05, "standard": 1.5, "full": 1},
)


@dataclass(frozen=True, kw_only=True)
class Budget(Config):
    """More steps: at a fixed budget, at fixed noise, without noise."""

    seeds: int = 8
    steps: tuple[int, ...] = (100, 200, 400, 800, 1600)
    epsilon: float = 0.1
    delta: float = 1e-4
    sigma_n: float = 0.2
    d: int = 100
    n: int = 600
    test: int = 1000
    norm: float = 2.0
    radii: tuple[float, ...] = (0.25, 0.5, 1.0)
    lr: float = 0.5


KINDS = ("budget", "noise", "none")


def _at_steps(kind: str, steps: int) -> str:
    return f"{kind}, {steps} steps"


def _budget_cells(config: Budget, measured: Measured) -> Sequence[Cell]:
    shared = {
        "d": config.d,
        "n": config.n,
        "test": config.test,
        "norm": config.norm,
        "lr": config.lr,
        "radii": {"l2": list(config.radii)},
    }
    noise = {
        "budget": {"epsilon": config.epsilon, "delta": config.delta},
        "noise": {"sigma_n": config.sigma_n},
        "none": {},
    }
    return grid(config, ONE, {_at_steps(k, t): {**shared, **noise[k], "steps": t} for t in config.steps for k in KINDS})


def _power(row: Mapping[str, Any], steps: Sequence[int], kind: str, what: str) -> float:
    """Exponent in T."""
    return slope(np.log(steps), np.log([value(row, _at_steps(kind, count), what) for count in steps]))


def _excess(row: Mapping[str, Any], kind: str, steps: int, *path: str) -> float:
    """Loss through noise."""
    return value(row, _at_steps(kind, steps), *path, "loss") - value(row, _at_steps("none", steps), *path, "loss")


def _more(row: Mapping[str, Any], kind: str, few: int, many: int, *path: str) -> float:
    return _excess(row, kind, many, *path) - _excess(row, kind, few, *path)


def _farther(row: Mapping[str, Any], steps: int, near: str, far: str) -> float:
    return _excess(row, "noise", steps, far) - _excess(row, "noise", steps, near)


def _t2(config: Budget, measured: Measured, level: float) -> list[Finding]:
    power = measured.each_seed(level, _power, config.steps[-3:], "budget", "noise_multiplier")
    return [within("exponent of sigma in T at fixed epsilon", exact(power.value), 0.45, 0.55)]


def _t3(config: Budget, measured: Measured, level: float) -> list[Finding]:
    return [
        above(f"excess loss at {b} - at {a} steps", measured.each_seed(level, _more, "budget", a, b))
        for a, b in pairwise(config.steps[-3:])
    ]


def _t4a(config: Budget, measured: Measured, level: float) -> list[Finding]:
    return [
        above(
            f"adversarial excess at radius {config.radii[k + 1]:g} - {config.radii[k]:g}",
            measured.each_seed(level, _farther, config.steps[-1], f"l2 {k}", f"l2 {k + 1}"),
        )
        for k in range(len(config.radii) - 1)
    ]


def _t4b(config: Budget, measured: Measured, level: float) -> list[Finding]:
    fixed, budget = (measured.each_seed(level, _power, config.steps[-3:], kind, "norm") for kind in KINDS[1::-1])
    return [
        within("exponent of ||w|| in T at fixed noise", fixed, 0.4, 0.6),
        within("exponent of ||w|| in T at a fixed budget", budget, 0.8, 1.2),
    ]


def _t4c(config: Budget, measured: Measured, level: float) -> list[Finding]:
    few, many = config.steps[-3], config.steps[-1]
    return [
        above(
            f"adversarial excess at {many} - at {few} steps, {kind}",
            measured.each_seed(level, _more, kind, few, many, "l2 1"),
        )
        for kind in ("noise", "budget")
    ]


def _draw_budget(config: Budget, measured: Measured) -> Figure:
    figure, axes = sheet(3)
    for ax, path, up in zip(
        axes,
        (("loss",), ("l2 1", "loss"), ("norm",)),
        ("test loss", f"adversarial loss, radius {config.radii[1]:g}", "mean ||w||"),
        strict=True,
    ):
        for place, (kind, name) in enumerate(
            zip(KINDS, (f"epsilon {config.epsilon:g}", f"sigma_n {config.sigma_n:g}", "no noise"), strict=True)
        ):
            curve(ax, config.steps, columns(measured, [_at_steps(kind, t) for t in config.steps], *path), name, place)
        ax.set_xscale("log")
        ax.set_yscale("log")
        dress(ax, "steps T", up)
    return figure


STEPS = Experiment(
    name="steps",
    title="More steps at a fixed budget, at fixed noise and without noise",
    where="Theorems 3.4 and 3.7, remarks on T",
    tiers={
        "quick": Budget(seeds=1, steps=(10, 20, 40), d=40, n=150, test=100, lr=2.0),
        "standard": Budget(),
        "full": Budget(seeds=40, first_seed=8),
    },
    stages=(_budget_cells,),
    claims=(
        Claim(
            "T2",
            "at fixed epsilon the noise grows as the root of the number of steps",
            "exponent missing",
            _t2,
            theory=True,
        ),
        Claim("T3", "at a fixed budget the excess loss grows with T past the optimum", "Theorem 3.4, direction", _t3),
        Claim("T4.a", "the adversarial excess loss grows with the radius", "Theorem 3.7, direction", _t4a),
        Claim("T4.b", "weights grow as T^(1/2) at fixed noise and as T at a fixed budget", "exponents missing", _t4b),
        Claim("T4.c", "the private part of the adversarial loss grows with T", "Theorem 3.7, direction", _t4c),
    ),
    draw=_draw_budget,
    settings=SETTINGS
    + " One feature of norm 2 for each class, d 100, n 600; budget epsilon 0.1 at delta 1e-4 (PLD), which is "
    "sigma_n 0.1 to 0.5 here; fixed noise sigma_n 0.2. The standard tier's eight "
    "seeds are the pilot of the full one, which has 40 others, for T3.",
    minutes={"quick": 0.05, "standard": 7, "full": 3},
)


@dataclass(frozen=True, kw_only=True)
class Angles(Config):
    """Public pretraining, private fine-tuning on features that are turned."""

    seeds: int = 10
    degrees: tuple[float, ...] = (0.0, 15.0, 30.0, 45.0, 60.0, 75.0, 90.0)
    sigma_n: float = 0.2
    steps: int = 100
    short: int = 20
    pretraining: int = 400
    d: int = 100
    n: int = 600
    test: int = 1000
    lr: float = 0.5


SCRATCH, OPEN = "from scratch", "not private"
FEW, FEW_SCRATCH = "few steps", "few steps, from scratch"
TOLERANCE = 0.02


def _angle(degrees: float) -> str:
    return f"{degrees:g} degrees"


def _angle_cells(config: Angles, measured: Measured) -> Sequence[Cell]:
    shared = {"d": config.d, "n": config.n, "test": config.test, "steps": config.steps, "lr": config.lr}
    private = {**shared, "sigma_n": config.sigma_n}
    last = config.degrees[-1]
    arms: dict[str, dict[str, Any]] = {
        _angle(t): {**private, "degrees": t, "pretraining": config.pretraining} for t in config.degrees
    }
    arms[SCRATCH] = {**private, "degrees": last}
    arms[FEW] = {**private, "degrees": last, "pretraining": config.pretraining, "steps": config.short}
    arms[FEW_SCRATCH] = {**private, "degrees": last, "steps": config.short}
    arms[OPEN] = {**shared, "degrees": last, "pretraining": config.pretraining, "plain": True}
    return grid(config, ONE, arms)


def _t7a(config: Angles, measured: Measured, level: float) -> list[Finding]:
    growth = measured.difference(level, _angle(config.degrees[-1]), _angle(config.degrees[0]), "loss")
    return [above("loss at the last angle - at 0", growth)] + [
        above(f"loss at {b:g} - at {a:g} degrees", measured.difference(level, _angle(b), _angle(a), "loss"), -TOLERANCE)
        for a, b in pairwise(config.degrees)
    ]


def _t7b(config: Angles, measured: Measured, level: float) -> list[Finding]:
    worse = measured.difference(level, _angle(config.degrees[-1]), SCRATCH, "loss")
    return [above(f"loss fine-tuned at {config.degrees[-1]:g} degrees - from scratch", worse)]


def _t7_few(config: Angles, measured: Measured, level: float) -> list[Finding]:
    return [above(f"the same after {config.short} steps", measured.difference(level, FEW, FEW_SCRATCH, "loss"))]


def _harm(row: Mapping[str, Any], degrees: Sequence[float]) -> float:
    """Where the loss after pretraining first reaches that from scratch."""
    ahead = [value(row, SCRATCH, "loss") - value(row, _angle(turned), "loss") for turned in degrees]
    return crossing(degrees, ahead, 0.0)


def _t7_where(config: Angles, measured: Measured, level: float) -> list[Finding]:
    return [within("angle from which pretraining harms", measured.each_seed(level, _harm, config.degrees), 45.0, 90.0)]


def _draw_angles(config: Angles, measured: Measured) -> Figure:
    figure, axes = sheet(2)
    for ax, what in zip(axes, ("loss", "accuracy"), strict=True):
        curve(ax, config.degrees, columns(measured, [_angle(t) for t in config.degrees], what), "pretrained, private")
        for place, (arm, style) in enumerate(((SCRATCH, "--"), (OPEN, ":")), 1):
            ax.axhline(
                float(measured.column(arm, what).mean()),
                linestyle=style,
                color="grey" if place == 1 else "black",
                label=arm if arm == SCRATCH else "pretrained, not private, last angle",
            )
        dress(ax, "angle of the features, degrees", f"test {what}")
    return figure


ANGLES = Experiment(
    name="rotated_features",
    title="Public pretraining helps or harms, by the angle of the features",
    where="section 4, Proposition 4.4, appendix B",
    tiers={
        "quick": Angles(seeds=1, degrees=(0.0, 90.0), d=30, n=150, test=100, steps=20, pretraining=40, lr=2.0),
        "standard": Angles(),
        "full": Angles(seeds=30),
    },
    stages=(_angle_cells,),
    claims=(
        Claim(
            "T7.a",
            "the loss after private fine-tuning grows with the angle",
            "Proposition 4.4",
            _t7a,
        ),
        Claim(
            "T7.b", "at a large angle pretraining is worse than starting from scratch", "section 4, angle missing", _t7b
        ),
        Claim("T7.few", "it is where only few private steps follow", "not tested there", _t7_few, control=True),
        Claim("T7.where", "harm begins between 45 and 90 degrees", "derived here", _t7_where, control=True),
    ),
    draw=_draw_angles,
    settings=SETTINGS
    + f" One feature of norm 2 for each class, d 100, n 600, sigma_n 0.2, 100 private steps after 400 open "
    f"ones on 2,000 other rows. 'Does not fall' allows for {TOLERANCE:g} nats.",
    minutes={"quick": 0.03, "standard": 2, "full": 1},
)


# The Blog: model and data size -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sizes(Config):
    """Noise in small and large models, on little and much data."""

    seeds: int = 10
    filters: tuple[int, ...] = (5, 10, 20, 40)
    rows: tuple[int, ...] = (250, 500, 1000, 2000)
    sigma_n: float = 0.4
    epsilon: float = 0.1
    d: int = 100
    n: int = 600
    test: int = 1000
    steps: int = 300
    lr: float = 0.5


def _size_cells(config: Sizes, measured: Measured) -> Sequence[Cell]:
    shared = {"d": config.d, "test": config.test, "steps": config.steps, "lr": config.lr, "norm": 1.0}
    arms: dict[str, dict[str, Any]] = {}
    for kind, noise in (("none", {}), ("noise", {"sigma_n": config.sigma_n}), ("budget", {"epsilon": config.epsilon})):
        arms |= {f"{kind}, m {m}": {**shared, **noise, "n": config.n, "filters": m} for m in config.filters}
        arms |= {f"{kind}, n {n}": {**shared, **noise, "n": n} for n in config.rows}
    return grid(config, ONE, arms)


def _penalty(row: Mapping[str, Any], kind: str, letter: str, size: int) -> float:
    return value(row, f"{kind}, {letter} {size}", "loss") - value(row, f"none, {letter} {size}", "loss")


def _steeper(row: Mapping[str, Any], kind: str, letter: str, sizes: Sequence[int]) -> float:
    """Loss through noise for each doubling of a size."""
    return slope(np.log2(sizes), [_penalty(row, kind, letter, size) for size in sizes])


def _blog_m(config: Sizes, measured: Measured, level: float) -> list[Finding]:
    steeper = measured.each_seed(level, _steeper, "noise", "m", config.filters)
    return [above("loss through noise for each doubling of m", steeper)]


def _blog_n(config: Sizes, measured: Measured, level: float) -> list[Finding]:
    steeper = measured.each_seed(level, _steeper, "noise", "n", config.rows)
    return [below("loss through noise for each doubling of n", steeper)]


def _blog_budget(config: Sizes, measured: Measured, level: float) -> list[Finding]:
    steeper = measured.each_seed(level, _steeper, "budget", "n", config.rows)
    return [below("loss through privacy for each doubling of n", steeper)]


def _draw_sizes(config: Sizes, measured: Measured) -> Figure:
    figure, axes = sheet(2)
    kinds = {"noise": f"sigma_n {config.sigma_n:g}", "budget": f"epsilon {config.epsilon:g}"}
    for ax, letter, sizes in zip(axes, "mn", (config.filters, config.rows), strict=True):
        for place, (kind, name) in enumerate(kinds.items()):
            lost, none = (
                columns(measured, [f"{k}, {letter} {size}" for size in sizes], "loss") for k in (kind, "none")
            )
            curve(ax, sizes, [a - b for a, b in zip(lost, none, strict=True)], name, place)
        ax.set_xscale("log", base=2)
        dress(ax, {"m": "filters m", "n": "rows n"}[letter], "loss through noise")
    return figure


BLOG = Experiment(
    name="sizes",
    title="Does noise hurt more in larger models and with less data?",
    where="the Blog 'Privacy's Price'; not in the paper",
    tiers={
        "quick": Sizes(seeds=1, filters=(4, 8), rows=(50, 100), d=30, n=100, test=100, steps=20, lr=2.0),
        "standard": Sizes(),
        "full": Sizes(seeds=30),
    },
    stages=(_size_cells,),
    claims=(
        Claim("Blog.m", "the same noise costs a larger model more loss", "said, not tested", _blog_m),
        Claim("Blog.n", "the same noise costs more loss with less data", "said, not tested", _blog_n),
        Claim(
            "Blog.budget",
            "at a fixed epsilon privacy costs more with less data",
            "not tested there",
            _blog_budget,
            control=True,
        ),
    ),
    draw=_draw_sizes,
    settings=SETTINGS
    + " One feature of norm 1 for each class, d 100, 300 steps; n 600 where m varies, m 10 where n varies. "
    "The batch stays 128, so that the same sigma_n is the same noise.",
    minutes={"quick": 0.08, "standard": 7, "full": 3},
)
