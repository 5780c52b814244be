"""Settings for tables that need no search: formulas of the number of rows and columns, epsilon and the task. No torch import.

The constants were found on public stand-ins; `docs/defaults.md` says how, and what they reach elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from noisewise.errors import ConfigError

MOMENTUM = 0.9
LARGEST_BATCH = 16_384


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A model, a plan and an optimizer: names are those of `Config`, and `options` those of the model.

    `twin_lr` is the learning rate of the twin without privacy, which makes the same steps.
    """

    model: str
    options: Mapping[str, int] = field(default_factory=dict)
    batch_size: int
    steps: int
    clip: str
    bound: float
    optimizer: str
    lr: float
    momentum: float
    ema: float | None
    twin_lr: float

    def config(self) -> dict[str, Any]:
        """The entries of a `Config`: all but the model's options."""
        return {name: value for name, value in asdict(self).items() if name != "options"}


@dataclass(frozen=True)
class Constants:
    """What differs between the tasks, in the notation of `recommended`."""

    rows_of_a_knot: int
    bound: float
    widening: float  # power of s / 3000 in the bound
    travel: float
    fewest_steps: int
    largest_lr: float
    twin_lr: float


CONSTANTS = {
    "classification": Constants(
        rows_of_a_knot=15, bound=1.0, widening=0.0, travel=0.25, fewest_steps=50, largest_lr=1.5, twin_lr=0.8
    ),
    "regression": Constants(
        rows_of_a_knot=60, bound=0.5, widening=0.5, travel=0.05, fewest_steps=100, largest_lr=0.15, twin_lr=0.1
    ),
}
MOST_KNOTS, MOST_STEPS = 6, 400
HIDDEN, ROWS_OF_A_HIDDEN_LAYER, BOUND_OF_A_HIDDEN_LAYER = 16, 300, 0.5
AVERAGED = 8  # the moving average looks back over this part of the steps
ENOUGH_ROWS = 4_000  # for the twin's largest learning rate; with fewer, slow steps keep it from overfitting


def recommended(n: int, features: int, epsilon: float, task: str = "classification", outputs: int = 2) -> Settings:
    """Settings for `n` rows (or people) with `features` encoded columns in [-1, 1]; a regression's targets in [-1, 1].

    With s = n epsilon, C the bound, and figures for classes (in brackets: for a regression):

    - a linear layer on a piecewise linear map with `sqrt(s / features / 15)` (60) knots, at most 6; for classes from
      s = 300 features on, a hidden layer of 16 units beside it;
    - batches of a quarter of the rows, at most 16,384;
    - flat clipping with C = 1, 1/2 with a hidden layer (`sqrt(s / 3000) / 2`, between 1/4 and 2);
    - `lr steps / (1 - momentum) = 0.25 (2 / outputs)^(1/4) s / C` (0.05 s / C), which is how far weights can travel, and
      what noise they gather on the way; in 50 (100) to 400 steps, with lr at most 1.5 (0.15), where steps are stable;
    - a moving average of the weights over the last eighth of the steps.
    """
    _check(n, features, epsilon, task, outputs)
    constants, signal = CONSTANTS[task], n * epsilon
    knots = min(MOST_KNOTS, round(math.sqrt(signal / features / constants.rows_of_a_knot)))
    hidden = HIDDEN if task == "classification" and signal >= ROWS_OF_A_HIDDEN_LAYER * features else 0
    widest = BOUND_OF_A_HIDDEN_LAYER if hidden else constants.bound
    bound = min(2.0, max(0.25, widest * (signal / 3000) ** constants.widening))
    crowd = (2 / outputs) ** 0.25 if outputs > 2 else 1.0
    travel = constants.travel * crowd * signal / bound * (1 - MOMENTUM)
    steps = max(constants.fewest_steps, min(MOST_STEPS, math.ceil(travel / constants.largest_lr)))
    return Settings(
        model="table",
        options={"knots": knots, "hidden": hidden},
        batch_size=max(1, min(LARGEST_BATCH, n // 4)),
        steps=steps,
        clip="flat",
        bound=_rounded(bound),
        optimizer="sgd",
        lr=_rounded(min(constants.largest_lr, travel / steps)),
        momentum=MOMENTUM,
        ema=_rounded(1 - AVERAGED / steps, 4),
        twin_lr=_rounded(constants.twin_lr * min(1.0, max(0.25, math.sqrt(n / ENOUGH_ROWS)))),
    )


def _rounded(value: float, digits: int = 3) -> float:
    """To so many significant digits: settings are read by people."""
    return float(f"{value:.{digits}g}")


def _check(n: int, features: int, epsilon: float, task: str, outputs: int) -> None:
    for name, value in (("n", n), ("features", features), ("outputs", outputs)):
        if type(value) is not int or value < 1:
            raise ConfigError(f"{name}={value!r}: must be a whole number above 0.")
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < math.inf:
        raise ConfigError(f"epsilon={epsilon!r}: must be a number above 0, e.g. 3; smaller is more private.")
    if task not in CONSTANTS:
        raise ConfigError(f"task={task!r}: must be one of {', '.join(CONSTANTS)}.")
