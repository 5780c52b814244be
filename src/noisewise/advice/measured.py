"""What advice gained where it was measured: figures of benchmarks/results/advice.json, kept here for whoever installs."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from noisewise.estimates.estimate import Estimate
from noisewise.wording import points, points_interval

NOT_MEASURED = "not measured"
METRICS = {
    "accuracy": "points of accuracy",
    "ece": "% of the calibration error",
    "twin accuracy": "points of the twin's accuracy",
}


@cache
def gains() -> dict[str, Any]:
    """By diagnosis and metric: the mean over data sets with its interval, and how many sets and seeds it is from."""
    return json.loads((files("noisewise.advice") / "measured.json").read_text())


def gain(diagnosis: str, metric: str) -> str:
    """What the advice of a diagnosis gained, in words."""
    entry = gains().get(diagnosis, {}).get(metric)
    if entry is None:
        return NOT_MEASURED
    change = Estimate.from_dict(entry["change"])
    sets = f"{entry['sets']} data set" + ("s" if entry["sets"] > 1 else "")
    verdict = "" if change.excludes_zero else ", which chance can explain"
    return (
        f"{points(change)} {METRICS[metric]} on average where this was measured (interval {points_interval(change)}{verdict}; "
        f"{sets}, {entry['seeds']} seeds)"
    )
