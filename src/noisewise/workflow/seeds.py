"""Several seeds of one plan: each a run of its own, all on the same people, whose epsilons add up."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from noisewise.accounting import Ledger, Line
from noisewise.data.tables.schema import Schema
from noisewise.errors import RunError
from noisewise.jobs import Local, Where, carry_out
from noisewise.runs.folder import RunFolder
from noisewise.runs.together import apart, grouped, read_run
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


def runs_in(out: str | os.PathLike[str], folders: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The folders, and further `seed-*` of `out` that have released something; and those that have begun and not yet ended."""
    beside = sorted(Path(out).glob("seed-*"), key=lambda path: (len(path.name), path.name))
    further = [path for path in beside if path.is_dir() and path not in folders]
    ended = [path for path in further if RunFolder(path).ledger.exists()]
    begun = [path for path in further if path not in ended and RunFolder(path).run.exists()]
    return [*folders, *ended], begun


def spent_together(
    folders: Sequence[str | os.PathLike[str]],
    before: Sequence[Line] = (),
    further: Sequence[str | os.PathLike[str]] = (),
) -> tuple[float, float]:
    """Epsilon and delta (the smallest) of runs on the same people.

    `before`: what choosing a schema spent, once for each schema that `folders` have: one that was chosen anew was paid anew.
    Noised scores are counted too, and all that `further` runs hold, at most. Infinite as soon as one of them is not private.
    Runs that protect something else, or count other neighbours, are refused.
    """
    ours, others = ([read_run(RunFolder(folder)) for folder in several] for several in (folders, further))
    groups = grouped([*ours, *others], same_people=True)
    if len(groups) > 1:
        names = "; ".join(", ".join(str(run.folder.path) for run in group.runs) for group in groups)
        raise RunError(f"{' '.join(apart(groups))} They are: {names}. Give runs that shall add up one --out.")
    delta = groups[0].delta()
    if any(run.privacy["status"] != "private" for run in groups[0].runs):
        return math.inf, delta
    lines = [line for run in ours for line in run.ledger.lines if line not in before]
    schemas = {run.folder.schema.read_bytes() if run.folder.schema.exists() else b"" for run in ours}
    lines += [*(list(before) * len(schemas)), *(line for run in others for line in run.ledger.lines)]
    return Ledger(groups[0].adjacency, lines, groups[0].unit).epsilon(delta), delta
