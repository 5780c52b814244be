"""Several runs side by side: epsilon against accuracy, the worst part, calibration and robustness, with intervals.

From summaries and the audits that were made; what is missing is named with the command that makes it.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisewise import audits
from noisewise.audits.disparity import Disparity
from noisewise.audits.error_disparity import ErrorDisparity
from noisewise.audits.result import FAINT, INK, PRIVATE, TWIN
from noisewise.audits.show import dress
from noisewise.errors import RunError
from noisewise.estimates.estimate import Estimate
from noisewise.runs.together import Finished, grouped
from noisewise.wording import KEEP_INTERNAL, UNCOVERED, at_most, fixed, percent, percent_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = (PRIVATE, TWIN, "#4f7a28", "#7a3b8f", INK)
MARKS = "osD^v"


@dataclass(frozen=True)
class Measure:
    """A column: its name, the audit it comes from, and how its numbers are written."""

    name: str
    audit: str
    share: bool = True

    def written(self, estimate: Estimate) -> tuple[str, str]:
        """Value and interval."""
        if self.share:
            return percent(estimate), percent_interval(estimate)
        return fixed(estimate.value, 3), f"{fixed(estimate.low, 3)}–{fixed(estimate.high, 3)}"


MEASURES = (
    Measure("accuracy", "disparity"),
    Measure("worst part", "disparity"),
    Measure("calibration error", "calibration", share=False),
    Measure("robust accuracy", "robustness"),
)
ERRORS = (Measure("squared error", "disparity", share=False), Measure("worst part", "disparity", share=False))


@dataclass(frozen=True)
class Compared:
    """A run: what it promised, what all runs on its people spent together, what was measured, and what was not."""

    run: Finished
    together: float
    delta: float
    values: dict[str, Estimate]
    worst: str
    missing: tuple[str, ...]

    @property
    def measures(self) -> Sequence[Measure]:
        """The columns that a run of its task has."""
        return ERRORS if self.run.summary["task"] == "regression" else MEASURES

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        privacy = self.run.privacy
        return {
            "folder": str(self.run.folder.path),
            "data": self.run.data,
            "model": self.run.summary["model"],
            "repairs": self.run.summary["repairs"],
            "epsilon": self.run.epsilon,
            "delta": privacy["delta"],
            "adjacency": privacy["adjacency"],
            "unit": privacy["unit"],
            "status": privacy["status"],
            "composed_epsilon": self.together,
            "composed_delta": self.delta,
            "values": {name: asdict(estimate) for name, estimate in self.values.items()},
            "values_status": {"status": "not-private", "reason": UNCOVERED},
            "worst_part": self.worst or None,
            "missing": list(self.missing),
        }


def compared(runs: Iterable[Finished]) -> list[Compared]:
    """Runs by data set and epsilon, with the total of all that are on the same people."""
    rows = []
    for group in grouped(runs):
        total, delta = group.epsilon(), group.delta()
        for run in sorted(group.runs, key=lambda run: run.epsilon):
            values, worst, missing = _measured(run)
            rows.append(Compared(run, total, delta, values, worst, missing))
    return rows


ELSEWHERE = ("format", "data", "epsilon", "delta")  # settings that the table has, or that say nothing


def differing(rows: Sequence[Compared]) -> list[dict[str, Any]]:
    """Of each run the settings in which it differs from another of them; of one made in Python, model and repairs."""
    settings = [_settings(row.run) for row in rows]
    names = dict.fromkeys(name for each in settings for name in each if name not in ELSEWHERE)
    told_apart = [name for name in names if len({repr(each.get(name)) for each in settings}) > 1]
    return [{name: each[name] for name in told_apart if each.get(name) not in (None, [])} for each in settings]


def _settings(run: Finished) -> dict[str, Any]:
    if run.folder.config.exists():
        return tomllib.loads(run.folder.config.read_text("utf-8"))
    repairs = [repair.get("name") for repair in run.summary["repairs"]]
    return {"model": run.summary["model"], "repairs": repairs}


def _measured(run: Finished) -> tuple[dict[str, Estimate], str, tuple[str, ...]]:
    measures = ERRORS if run.summary["task"] == "regression" else MEASURES
    values: dict[str, Estimate] = {}
    worst, absent = "", []
    for name in dict.fromkeys(measure.audit for measure in measures):
        path = run.folder.audit(name)
        if not path.exists():
            absent.append(name)
            continue
        result = audits.read(path)
        try:
            if isinstance(result, Disparity | ErrorDisparity):
                shares = isinstance(result, Disparity)
                values["accuracy" if shares else "squared error"] = result.headline["accuracy" if shares else "mse"]
                worst, estimate = _worst(result)
                values |= {"worst part": estimate} if estimate else {}
            elif name == "calibration":
                values["calibration error"] = result.headline["ECE"]
            else:
                values["robust accuracy"] = result.headline["robust accuracy"]
        except KeyError as error:
            raise RunError(f"{path} lacks {error}: run the audit again with this version.") from None
    command = f"noisewise audit {run.folder.path} " + " ".join(f"--only {name}" for name in absent)
    command += "" if run.folder.config.exists() else " --model FILE.py:NAME --data NAME"  # made in Python
    return values, worst, (command,) if absent else ()


def _worst(result: Disparity | ErrorDisparity) -> tuple[str, Estimate | None]:
    """The group that is served worst, by an interval that allows for having picked it; a class where there are no groups."""
    extremes = {by: extreme.worst for by, extreme in result.values.extremes.items() if extreme.worst is not None}
    candidates = {by: worst for by, worst in extremes.items() if by != "class"} or extremes
    if not candidates:
        return "", None
    pick = min if isinstance(result, Disparity) else max
    by = pick(candidates, key=lambda by: candidates[by].served.value)
    return f"{by} {candidates[by].name}", candidates[by].served


def figure(rows: Sequence[Compared]) -> Figure:
    """One panel for each measure, epsilon across; runs by colour and mark, named below."""
    from matplotlib.figure import Figure as Canvas

    names = [m.name for m in MEASURES if any(m.name in row.values for row in rows)]
    names = names or [m.name for m in ERRORS if any(m.name in row.values for row in rows)]
    if not names:
        raise RunError("nothing to draw: none of these runs has been audited. `noisewise audit DIR` does it.")
    labels, drawn_at = names_of(rows), _finite([row.run.epsilon for row in rows])
    places, ticks = _beside(drawn_at), _ticks(drawn_at, [row.run.epsilon for row in rows])
    canvas = Canvas(figsize=(8, 3.2 * -(-len(names) // 2) + 0.22 * len(rows)), layout="constrained", facecolor="white")
    grid = canvas.subplots(-(-len(names) // 2), min(2, len(names)), squeeze=False).flatten()
    apart = "" if places == drawn_at else " (equal ones side by side)"
    drawn: dict[str, Any] = {}
    for ax, name in zip(grid, names, strict=False):
        for number_of, (row, label, across) in enumerate(zip(rows, labels, places, strict=True)):
            if name not in row.values:
                continue
            estimate = row.values[name]
            ends = [[estimate.value - estimate.low], [estimate.high - estimate.value]]
            colour, mark = COLOURS[number_of % len(COLOURS)], MARKS[number_of // len(COLOURS) % len(MARKS)]
            drawn[label] = ax.errorbar(
                [across], [estimate.value], ends, fmt=mark, color=colour, markersize=6, elinewidth=1.6, label=label
            )
        dress(ax, f"epsilon of the run{apart}", name)
        ax.set_xscale("log")
        ax.set_xticks(list(ticks), labels=list(ticks.values()))
        ax.minorticks_off()
    for ax in grid[len(names) :]:
        ax.set_visible(False)
    canvas.suptitle(KEEP_INTERNAL, fontsize=8, color=INK)
    canvas.legend(
        [drawn[label] for label in labels if label in drawn], [label for label in labels if label in drawn],
        loc="outside lower left", frameon=False, labelcolor=INK, edgecolor=FAINT, fontsize=8,
    )  # fmt: skip
    return canvas


def names_of(rows: Sequence[Compared]) -> list[str]:
    """What tells runs apart: their folders below the one that all are in; with the data, where there are several sets."""
    paths = [row.run.folder.path.resolve() for row in rows]
    above = Path(os.path.commonpath([path.parent for path in paths]))
    several = len({row.run.data for row in rows}) > 1
    return [
        f"{path.relative_to(above)}{f' ({row.run.data})' if several else ''}"
        for path, row in zip(paths, rows, strict=True)
    ]


def _finite(epsilons: Sequence[float]) -> list[float]:
    """Epsilons on a logarithmic axis; runs without a guarantee stand at its end."""
    end = 3 * max((epsilon for epsilon in epsilons if math.isfinite(epsilon)), default=1.0)
    return [epsilon if math.isfinite(epsilon) else end for epsilon in epsilons]


def _ticks(places: Sequence[float], epsilons: Sequence[float], most: int = 6) -> dict[float, str]:
    """Where the axis says an epsilon, and which: all of few, some of many."""
    known = dict(sorted(zip(places, (at_most(epsilon) for epsilon in epsilons), strict=True)))
    step = -(-len(known) // most)
    return {place: text for count, (place, text) in enumerate(reversed(known.items())) if count % step == 0}


def _beside(epsilons: Sequence[float]) -> list[float]:
    """Where runs are drawn: those of one epsilon a little apart, so that none hides another."""
    alike = Counter(at_most(epsilon) for epsilon in epsilons)
    seen: Counter[str] = Counter()
    places = []
    for epsilon in epsilons:
        key = at_most(epsilon)
        places.append(epsilon * 1.06 ** (seen[key] - (alike[key] - 1) / 2))
        seen[key] += 1
    return places
