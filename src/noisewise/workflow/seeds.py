"""Several seeds of one plan: each a run of its own, all on the same people, whose epsilons add up."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from noisewise.accounting import Ledger, Line
from noisewise.data.tables.schema import Schema
from noisewise.jobs import Local, Where, carry_out
from noisewise.runs.folder import RunFolder
from noisewise.runs.summary import read_ledger, read_summary
from noisewise.workflow.settings import Config
from noisewise.workflow.sweep import run_job


def train_seeds(
    configs: Mapping[str, Config],
    out: str | os.PathLike[str],
    where: Where | None = None,
    *,
    schema: Schema | None = None,
    progress: bool = True,
) -> None:
    """Train each config into the folder of its name in `out`; those that are finished stay, those that have begun go on.

    Ctrl-C keeps the checkpoints of all that run, and raises `Interrupted`. In this process each run shows its steps.
    """
    here = where is None or where == Local()
    jobs = [run_job(Path(out) / name, config, schema, progress=progress and here) for name, config in configs.items()]
    carry_out(jobs, Path(out) / "jobs", where, keep=False, progress=progress and not here, label="runs")


def spent_together(folders: Sequence[str | os.PathLike[str]], before: Sequence[Line] = ()) -> tuple[float, float]:
    """Epsilon and delta of runs on the same people; `before`: what they have in common, spent once.

    Infinite as soon as one of them is not private.
    """
    runs = [RunFolder(folder) for folder in folders]
    privacy = [read_summary(run)["privacy"] for run in runs]
    delta = float(privacy[0]["delta"])
    if any(each["status"] != "private" for each in privacy):
        return math.inf, delta
    ledgers = [read_ledger(run) for run in runs]
    lines = [*before, *(line for ledger in ledgers for line in ledger.lines if line not in before)]
    return Ledger(ledgers[0].adjacency, lines, ledgers[0].unit).epsilon(delta), delta
