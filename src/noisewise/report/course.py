"""The course of a run: what was spent and what was measured, step by step, from its metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from noisewise.audits.result import PRIVATE, TWIN, Figure
from noisewise.audits.show import dress, told
from noisewise.errors import RunError
from noisewise.wording import at_most, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from noisewise.runs.folder import RunFolder

NAMES = {
    "epsilon": "epsilon spent so far",
    "valid_loss": "mean loss on held-out rows",
    "train_loss": "training loss",
    "loss": "training loss",
}
POINTS = 40  # that say their value when pointed at


class Course(NamedTuple):
    """One value over the steps; `sensitive`: no ledger covers it."""

    name: str
    points: list[tuple[int, float]]
    sensitive: bool

    @property
    def title(self) -> str:
        """What it is, in words."""
        return NAMES.get(self.name, self.name.replace("_", " "))

    def written(self, value: float) -> str:
        """One of its values; what was spent is an upper bound."""
        return at_most(value) if self.name == "epsilon" else number(value)


def courses(folder: RunFolder) -> list[Course]:
    """Every value that was written down at least twice: first what is released, then what is not."""
    released, private = _read(folder.metrics), _read(folder.private_metrics)
    known = {name for line in released for name in line}
    found = [Course(name, _points(released, name), sensitive=False) for name in _names(released)]
    found += [Course(name, _points(private, name), sensitive=True) for name in _names(private) if name not in known]
    return [course for course in found if len(course.points) > 1]


def figures(folder: RunFolder) -> list[tuple[Figure, bool]]:
    """A drawing of each, and whether it is sensitive."""
    drawn = []
    for course in courses(folder):
        label = " (sensitive: no ledger covers it)" if course.sensitive else ""
        caption = f"{course.title[:1].upper()}{course.title[1:]}, by step{label}"
        (first, start), (last, end) = course.points[0], course.points[-1]
        written = course.written
        words = f"{caption}. {written(start)} after step {first:,}, {written(end)} after step {last:,}."
        drawn.append((Figure(caption, words, partial(_draw, course=course), 6), course.sensitive))
    return drawn


def _draw(ax: Axes, course: Course) -> Axes:
    colour = TWIN if course.sensitive else PRIVATE
    steps, values = zip(*course.points, strict=True)
    ax.plot(steps, values, color=colour, linewidth=1.8)
    for step, value in course.points[:: max(1, len(course.points) // POINTS)]:
        (mark,) = ax.plot([step], [value], "o", color=colour, markersize=4)
        told(mark, f"step {step:,}: {course.written(value)}")
    if course.name == "epsilon":
        ax.set_ylim(bottom=0)
    return dress(ax, "step", course.title)


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise RunError(f"{path} cannot be read ({error}): restore it from a copy.") from None
    if not all(isinstance(line, dict) and isinstance(line.get("step"), int) for line in lines):
        raise RunError(f"{path} holds a line without a step: restore it from a copy.")
    return lines


def _names(lines: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for line in lines for name in line if name != "step"))


def _points(lines: Sequence[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    """Steps on and on, also where phases begin at 0 again; what is not a finite number is left out."""
    points: list[tuple[int, float]] = []
    before = last = 0
    for line in lines:
        if line["step"] < last:
            before += last
        last = line["step"]
        value = line.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            points.append((before + last, float(value)))
    return points
