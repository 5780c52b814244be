"""Several runs side by side: epsilon against accuracy, the worst part, calibration and robustness, with intervals.

From summaries and the audits that were made; what is missing is named with the command that makes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from noisewise import audits
from noisewise.audits.disparity import Disparity
from noisewise.audits.error_disparity import ErrorDisparity
from noisewise.audits.result import FAINT, INK, PRIVATE, TWIN
from noisewise.audits.show import dress
from noisewise.errors import RunError
from noisewise.estimates.estimate import Estimate
from noisewise.runs.together import Finished, grouped
from noisewise.wording import fixed, number, percent, percent_interval

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
    """One panel for each measure, epsilon across; data sets by colour and mark."""
    from matplotlib.figure import Figure as Canvas

    names = [m.name for m in MEASURES if any(m.name in row.values for row in rows)]
    names = names or [m.name for m in ERRORS if any(m.name in row.values for row in rows)]
    if not names:
        raise RunError("nothing to draw: none of these runs has been audited. `noisewise audit DIR` does it.")
    sets = list(dict.fromkeys(row.run.data for row in rows))
    canvas = Canvas(figsize=(8, 3.2 * -(-len(names) // 2)), layout="constrained", facecolor="white")
    grid = canvas.subplots(-(-len(names) // 2), min(2, len(names)), squeeze=False).flatten()
    for ax, name in zip(grid, names, strict=False):
        for place, data in enumerate(sets):
            drawn = [(row.run.epsilon, row.values[name]) for row in rows if row.run.data == data and name in row.values]
            across = [epsilon for epsilon, _ in drawn]
            up = [estimate.value for _, estimate in drawn]
            ends = [[e.value - e.low for _, e in drawn], [e.high - e.value for _, e in drawn]]
            colour, mark = COLOURS[place % len(COLOURS)], MARKS[place % len(MARKS)]
            ax.errorbar(across, up, ends, fmt=mark, color=colour, markersize=6, elinewidth=1.6, label=data)
        dress(ax, "epsilon of the run", name)
        if all(0 < row.run.epsilon < float("inf") for row in rows):
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter(lambda value, _: number(value, 2))
            ax.xaxis.set_minor_formatter(lambda value, _: "")
            ax.set_xticks(sorted({round(row.run.epsilon, 2) for row in rows}) if len(rows) < 7 else ax.get_xticks())
    for ax in grid[len(names) :]:
        ax.set_visible(False)
    if len(sets) > 1:
        grid[0].legend(frameon=False, labelcolor=INK, edgecolor=FAINT)
    return canvas
