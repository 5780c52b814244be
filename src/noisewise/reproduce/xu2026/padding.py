"""Padding, Xu, Chen 2026: smaller objects, clean and attacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.reproduce.claims import Claim, Finding, above, below
from noisewise.reproduce.drawing import columns, curve, dress, sheet
from noisewise.reproduce.experiment import TUNING_SEED, Cell, Experiment, grid
from noisewise.reproduce.measured import Measured
from noisewise.reproduce.xu2026.images import (
    CHOSEN,
    MISSING,
    POINT,
    PRIVATE,
    QUICK,
    RUN,
    SMALL,
    TWIN,
    Images,
    best,
    choices,
)
from noisewise.reproduce.xu2026.shared import value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATIOS = (0.0, 0.26, 0.5, 0.62, 0.75)  # of the published table

# Padding ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Padding(Images):
    """Objects that shrink, clean and attacked; the radius is searched on unpadded held-out images."""

    ratios: tuple[float, ...] = RATIOS
    radii: tuple[float, ...] = (2 / 255, 4 / 255, 8 / 255, 16 / 255, 32 / 255)
    target: float = 0.02  # how much the attack shall take from unpadded images; for CIFAR-10 what it shall leave
    leaves: bool = False
    chosen_at: tuple[float, ...] | None = (
        None  # ratios for which learning rates are chosen, each for its neighbours; all
    )


def _padded(kind: str, ratio: float) -> str:
    return f"{kind}, padding {ratio:g}"


def _radius_arm(config: Padding) -> str:
    return "radius"


def _case(config: Padding, ratio: float) -> str:
    nearest = min(config.chosen_at or config.ratios, key=lambda at: abs(at - ratio))
    return f" padding {nearest:g}" if nearest else ""


def _pad_rates(config: Padding, measured: Measured) -> Sequence[Cell]:
    arms = {
        arm: config.settings(kind, lr, tuning=True, **({"padding": ratio} if ratio else {}))
        for kind in (PRIVATE, TWIN)
        for ratio in config.chosen_at or config.ratios
        for lr, arm in choices(config, measured, kind, _case(config, ratio)).items()
    }
    return grid(config, RUN, arms, seeds=[TUNING_SEED], tuning=True)


def _pad_radius(config: Padding, measured: Measured) -> Sequence[Cell]:
    radius = {f"linf {k}": size for k, size in enumerate(config.radii)}
    given = config.settings(
        PRIVATE, best(config, measured, PRIVATE), radius=radius, attacked=config.attacked, tuning=True
    )
    return grid(config, RUN, {_radius_arm(config): given}, seeds=[TUNING_SEED + 1], tuning=True)


def chosen_radius(config: Padding, measured: Measured) -> float:
    """The radius whose effect on unpadded held-out images is nearest to the target."""
    (seen,) = measured.tuning[_radius_arm(config)].values()
    left = [seen[f"linf {k}"]["accuracy"] for k in range(len(config.radii))]
    off = [abs(a - config.target) if config.leaves else abs(seen["accuracy"] - a - config.target) for a in left]
    return config.radii[int(np.argmin(off))]


def _pad_cells(config: Padding, measured: Measured) -> Sequence[Cell]:
    radius = {"linf": chosen_radius(config, measured)}
    arms = {
        _padded(kind, ratio): config.settings(
            kind,
            best(config, measured, kind, _case(config, ratio)),
            padding=ratio,
            radius=radius,
            attacked=config.attacked,
        )
        for kind in (PRIVATE, TWIN)
        for ratio in config.ratios
    }
    return grid(config, RUN, arms)


def _fall(row: Mapping[str, Any], config: Padding, kind: str, *path: str) -> float:
    """Accuracy lost from no padding to the most."""
    first, last = (value(row, _padded(kind, config.ratios[end]), *path, "accuracy") for end in (0, -1))
    return first - last


def _more_fall(row: Mapping[str, Any], config: Padding) -> float:
    return _fall(row, config, PRIVATE) - _fall(row, config, TWIN)


def _attack_fall(row: Mapping[str, Any], config: Padding) -> float:
    return _fall(row, config, PRIVATE, "linf") - _fall(row, config, PRIVATE)


def _falling(*path: str) -> Any:
    def check(config: Padding, measured: Measured, level: float) -> list[Finding]:
        return [
            below(
                f"accuracy at {b:g} - at {a:g}",
                measured.difference(level, _padded(PRIVATE, b), _padded(PRIVATE, a), *path, "accuracy"),
                POINT,
            )
            for a, b in pairwise(config.ratios)
        ]

    return check


def _lost(limit: float, *path: str) -> Any:
    def check(config: Padding, measured: Measured, level: float) -> list[Finding]:
        return [above("accuracy lost by padding", measured.each_seed(level, _fall, config, PRIVATE, *path), limit)]

    return check


def _kept(limit: float) -> Any:
    def check(config: Padding, measured: Measured, level: float) -> list[Finding]:
        return [below("accuracy lost by padding", measured.each_seed(level, _fall, config, PRIVATE), limit)]

    return check


def _attack_loses_more(config: Padding, measured: Measured, level: float) -> list[Finding]:
    return [above("adversarial fall - clean fall", measured.each_seed(level, _attack_fall, config))]


def _privacy_loses_more(config: Padding, measured: Measured, level: float) -> list[Finding]:
    return [above("private fall - fall without privacy", measured.each_seed(level, _more_fall, config))]


def _published(numbers: Mapping[float, float], *path: str) -> Any:
    def check(config: Padding, measured: Measured, level: float) -> list[Finding]:
        return [
            above(
                f"accuracy at padding {ratio:g}",
                measured.mean(level, _padded(PRIVATE, ratio), *path, "accuracy"),
                numbers[ratio] / 100 - 0.015,
            )
            for ratio in config.ratios
        ]

    return check


def _draw_padding(config: Padding, measured: Measured) -> Figure:
    figure, axes = sheet(2)
    for ax, path, title in zip(axes, ((), ("linf",)), ("clean", "PGD"), strict=True):
        for place, kind in enumerate((PRIVATE, TWIN)):
            arms = [_padded(kind, ratio) for ratio in config.ratios]
            seen = columns(measured, arms, *path, "accuracy")
            curve(ax, [100 * r for r in config.ratios], [100 * c for c in seen], kind, place)
        dress(ax, "padding, % of the side", "test accuracy, %", title=title)
    return figure


RADIUS = " The radius (Linf, 20 steps of a quarter of it) was searched on unpadded held-out images and then kept: "


def _padding_claims(name: str, clean: str, *more: Claim, at: Sequence[float] = RATIOS) -> tuple[Claim, ...]:
    numbers = dict(zip(at, map(float, clean.split("/")), strict=True))
    return (
        Claim(f"{name}.a", "accuracy does not grow with padding (1 point allowed)", clean, _falling()),
        *more,
        Claim(f"{name}.twin", "privacy makes the fall larger", "not tested there", _privacy_loses_more, control=True),
        Claim(f"{name}.numbers", "the published clean accuracies", clean, _published(numbers), incomparable=MISSING),
    )


PADDING = Experiment(
    name="padding",
    title="Padding: smaller objects in MNIST, private and not, clean and attacked",
    where="table of padding ratios, section 5.2",
    tiers={
        "quick": Padding(**QUICK, ratios=(0.0, 0.5), radii=(8 / 255,)),
        "standard": Padding(**SMALL, ratios=(0.0, 0.5, 0.75)),
        "full": Padding(),
    },
    stages=(_pad_rates, _pad_radius, _pad_cells),
    claims=_padding_claims(
        "X4",
        "97/97/95/94/86",
        Claim("X4.b", "padding of 75 % costs at least 5 points", "11 points", _lost(0.05)),
        Claim("X4.c", "attacked accuracy falls too (1 point allowed)", "95/89/50/20/1", _falling("linf")),
        Claim("X4.d", "and falls more than clean accuracy", "94 against 11 points", _attack_loses_more),
    ),
    draw=_draw_padding,
    settings="LeNet with tanh, 15 epochs; black border, bilinear resize; rates for each ratio."
    + CHOSEN
    + RADIUS
    + "about 2 points lost on MNIST.",
    minutes={"quick": 0.05, "standard": 25, "full": 6},
)

PADDING_CIFAR = Experiment(
    name="padding_cifar",
    title="Padding: smaller objects in CIFAR-10, private and not, clean and attacked",
    where="table of padding ratios, section 5.2",
    tiers={
        "quick": Padding(**QUICK, ratios=(0.0, 0.5), radii=(8 / 255,), target=0.03, leaves=True),
        "standard": Padding(
            **{**SMALL, "data": "cifar10", "model": "cifar-net"}, ratios=(0.0, 0.75), target=0.03, leaves=True
        ),
        "full": Padding(
            data="cifar10",
            model="dp-cnn",
            epochs=30,
            radii=(2 / 255, 4 / 255, 8 / 255, 16 / 255),
            target=0.03,
            leaves=True,
            chosen_at=(0.0, 0.62),
        ),
    },
    stages=(_pad_rates, _pad_radius, _pad_cells),
    claims=_padding_claims(
        "X4.cifar",
        "58/54/51/48/46",
        Claim("X4.cifar.b", "padding of 75 % costs at least 5 points", "12 points", _lost(0.05)),
    ),
    draw=_draw_padding,
    settings="The network of Tramer, Boneh (550,570 weights), 30 epochs; black border, bilinear resize; our normalisation; "
    "rates for no padding and for 62 %, each for its neighbours. The standard tier: a small CNN, 10,000 images, 8 epochs, no "
    "padding and 75 %." + CHOSEN + RADIUS + "about 3 % left on CIFAR-10.",
    minutes={"quick": 0.05, "standard": 40, "full": 25},
)

VIT: dict[str, Any] = {
    "model": "vit",
    "bound": 1.0,
    "momentum": 0.9,
    "rates": (0.03, 0.1, 0.3),
    "open_rates": (0.01, 0.03, 0.1),
}
VIT_PADDING = Experiment(
    name="vit_padding",
    title="Padding: smaller objects in MNIST, with a vision transformer",
    where="appendix E.2",
    tiers={
        "quick": Padding(**{**QUICK, "seeds": 1}, ratios=(0.0, 0.5), radii=(8 / 255,)),
        "standard": Padding(**{**SMALL, **VIT}, ratios=(0.0, 0.75)),
        "full": Padding(**VIT, ratios=(0.0, 0.26, 0.5, 0.75)),
    },
    stages=(_pad_rates, _pad_radius, _pad_cells),
    claims=_padding_claims(
        "X7",
        "93/93/93/91",
        Claim("X7.b", "attacked accuracy falls by at least 30 points", "58 points", _lost(0.3, "linf")),
        Claim("X7.c", "clean accuracy falls by at most 5 points", "2 points", _kept(0.05)),
        at=(0.0, 0.26, 0.5, 0.75),
    ),
    draw=_draw_padding,
    settings="Patches of 7, width 64, 4 blocks, 4 heads; clip bound 1, momentum 0.9, 15 epochs; ours; rates for each ratio."
    + CHOSEN.replace("Clip bound 0.1 with momentum 0.9 (as Tramer, Boneh), batch", "Batch")
    + RADIUS
    + "about 2 points lost on MNIST.",
    minutes={"quick": 0.05, "standard": 40, "full": 10},
)
