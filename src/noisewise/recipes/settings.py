"""How a recipe learns, by a stated rule: what was found at the nearest signal n epsilon. No torch import.

The file `chosen.json` holds what searches on held-out images of public sets found (`benchmarks/records.py choose`), each
with the set, n and epsilon it was found at.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from noisewise.errors import ConfigError

TWIN_LR = 0.03  # of plain steps on rows of length 100, without momentum


@dataclass(frozen=True, kw_only=True)
class Course:
    """How a recipe learns, and where that was found.

    share: of the units, expected in a batch. rate: learning rate times bound. averaged: share of the steps that the moving
    average looks back over. features: settings of the recipe's features.
    """

    data: str
    channels: int
    n: int
    epsilon: float
    features: Mapping[str, Any]
    share: float
    epochs: float
    rate: float
    bound: float
    momentum: float
    schedule: str
    averaged: float

    def settings(self, n: int, epsilon: float) -> dict[str, Any]:
        """Entries of a `Config`, for so many units at an epsilon.

        The share of a batch, epochs and bound stay as they were found. Noise gathers in proportion to `rate steps / (n
        epsilon)`, so with a weaker signal than the one it was found at the rate falls in proportion. Rows of features have
        length 100 whatever their number of coordinates, so that the bound, the step and what noise adds to a logit (`rate sigma
        100 / batch` each step) do not depend on it.
        """
        rate = self.rate * min(1.0, n * epsilon / (self.n * self.epsilon))
        batch = max(1, min(n, round(self.share * n)))
        steps = max(1, math.ceil(self.epochs * n / batch - 1e-9))
        return {
            "batch_size": batch,
            "steps": steps,
            "clip": "flat",
            "bound": self.bound,
            "optimizer": "sgd",
            "lr": float(f"{rate / self.bound:.4g}"),
            "momentum": self.momentum,
            "schedule": None if self.schedule == "constant" else self.schedule,
            "ema": ema_of(self.averaged, steps),
            "twin_lr": float(f"{TWIN_LR * (1 - self.momentum):.4g}"),
        }


def fitting(course: Course, shape: Sequence[int]) -> dict[str, Any]:
    """What was found on larger images, or on three colours, made to fit images `[channels, height, width]`."""
    made: dict[str, Any] = {}
    found = course.features.get("scales", ())
    scales = tuple(scale for scale in found if 2 * 2**scale <= min(shape[1:]))
    if len(scales) < len(found):
        made["scales"] = scales or (1,)
    if shape[0] != 3 and course.features.get("chroma"):
        made["chroma"] = 0.0
    return made


def ema_of(averaged: float, steps: int) -> float | None:
    """Decay of a moving average over a share of the steps; none where that is less than two.

    >>> ema_of(0.25, 400)
    0.99
    """
    over = averaged * steps
    return None if over < 2 else float(f"{1 - 1 / over:.4g}")


@cache
def courses(recipe: str) -> tuple[Course, ...]:
    """What was found for a recipe."""
    raw = json.loads((files("noisewise.recipes") / "chosen.json").read_text())
    return tuple(Course(**entry) for entry in raw.get(recipe, ()))


def course_for(recipe: str, n: int, epsilon: float, channels: int, data: str | None = None) -> Course:
    """What was found for this very set, else for images with as many colours, at the nearest n epsilon (in proportion)."""
    found = courses(recipe)
    if not found:
        raise ConfigError(f"recipe {recipe!r}: no settings are known.")
    alike = [course for course in found if course.data == data]
    alike = alike or [course for course in found if (course.channels > 1) == (channels > 1)] or list(found)
    return min(alike, key=lambda course: (abs(math.log(n * epsilon / (course.n * course.epsilon))), -course.n))
