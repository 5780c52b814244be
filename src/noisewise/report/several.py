"""Several runs side by side: one row each, what all on the same data spent together, and their first cards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from noisewise.report.subject import data_name, power, repair_names, short_model
from noisewise.runs.together import grouped, read_runs
from noisewise.wording import at_most, fixed, percent, percent_interval, points, points_interval, several_units

if TYPE_CHECKING:
    from noisewise.audits import Result
    from noisewise.estimates.estimate import Estimate
    from noisewise.runs.folder import RunFolder

Kind = Literal["share", "points", "number"]
HEADLINES: dict[
    str, tuple[str, str, Kind]
] = {  # of the table: its name, in which audit and where it is found, its kind
    "accuracy": ("disparity", "accuracy", "share"),
    "private − twin": ("disparity", "cost", "points"),
    "worst class": ("disparity", "worst class", "share"),
    "squared error": ("disparity-regression", "mse", "number"),
    "cost in squared error": ("disparity-regression", "cost", "number"),
    "calibration error": ("calibration", "ECE", "share"),
    "under attack": ("robustness", "robust accuracy", "share"),
}


class Opened(NamedTuple):
    """A run folder that was read: its name on the page, its files, its results and all that its own page says."""

    name: str
    folder: RunFolder
    summary: Mapping[str, Any]
    results: Sequence[Result]
    facts: Mapping[str, Any]


class Cell(NamedTuple):
    """A number with its interval, and where on a scale from 0 to 100 these lie; only shares have a bar."""

    value: str
    interval: str
    bar: tuple[float, float, float] | None


def names_of(folders: Sequence[RunFolder]) -> list[str]:
    """The folders' own names, with as many of the folders around them as tell them apart."""
    parts = [folder.path.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(of[-depth:]) for of in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(of[-1:])} ({place})" for place, of in enumerate(parts, start=1)]


def side_by_side(runs: Sequence[Opened]) -> dict[str, Any]:
    """What the page of several runs says."""
    shown = [name for name in HEADLINES if any(_headline(run, name) is not None for run in runs)]
    return {
        "columns": shown,
        "runs": [
            {
                "name": run.name,
                "facts": run.facts,
                "model": short_model(run.summary["model"]),
                "data": data_name(run.summary),
                "repairs": ", ".join(repair_names(run.summary)),
                "cells": [_cell(_headline(run, name), HEADLINES[name][2]) for name in shown],
            }
            for run in runs
        ],
        "totals": _totals(runs),
        "missing": [run.name for run in runs if not run.results],
    }


def _headline(run: Opened, name: str) -> Estimate | None:
    kind, key, _ = HEADLINES[name]
    result = next((result for result in run.results if result.kind == kind), None)
    return None if result is None else result.headline.get(key)


def _cell(estimate: Estimate | None, kind: Kind) -> Cell | None:
    if estimate is None:
        return None
    if kind == "number":
        return Cell(fixed(estimate.value), f"{fixed(estimate.low)} to {fixed(estimate.high)}", None)
    if kind == "points":
        return Cell(f"{points(estimate)} points", points_interval(estimate), None)
    ends = tuple(round(100 * end, 1) for end in (estimate.low, estimate.value, estimate.high))
    return Cell(percent(estimate), percent_interval(estimate), (ends[0], ends[1], ends[2]))


def _totals(runs: Sequence[Opened]) -> list[str]:
    """What runs on equally named data have spent together, noised scores included, if these are the same people."""
    lines = []
    for group in grouped(read_runs([run.folder for run in runs])[0]):
        if len(group.runs) < 2:
            continue
        total, many = group.epsilon(), several_units(group.unit)
        spent = f"{at_most(total)} at δ = {power(group.delta())}"
        spent = spent if math.isfinite(total) else "∞: not all of them are private"
        counts = sorted({run.summary["data"]["n"] for run in group.runs})
        n = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        lines.append(
            f"{len(group.runs)} runs on {n} {many} of {data_name(group.runs[0].summary)}: if these are the same {many}, "
            f"whoever sees all of the runs, or the best of them, learns as much as ε = {spent} allows."
        )
    return lines
