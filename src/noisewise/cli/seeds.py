"""`train --seeds N`: several runs of one plan, and what they cost together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisewise.cli.shared import terminal, warnings_as_notes
from noisewise.errors import Interrupted, RunError
from noisewise.runs.folder import RunFolder
from noisewise.runs.summary import read_summary
from noisewise.wording import at_most, promised

if TYPE_CHECKING:
    from noisewise.accounting import Line
    from noisewise.data.tables.schema import Schema
    from noisewise.jobs import Where
    from noisewise.workflow.settings import Config


def train_each(configs: Mapping[str, Config], out: Path, where: Where, schema: Schema | None, *, quiet: bool) -> None:
    """Train them, several at a time where asked; Ctrl-C says how to go on."""
    from noisewise.workflow.seeds import train_seeds

    try:
        with warnings_as_notes():
            train_seeds(configs, out, where, schema=schema, progress=not quiet)
    except Interrupted as error:
        raise Interrupted(
            f"{str(error).partition('. The same')[0]}. Go on with: noisewise train --resume --seeds {len(configs)} --out {out}"
        ) from None


def print_seeds(folders: Sequence[Path], out: Path, before: Sequence[Line]) -> None:
    """What each run in `out` promises, and what all on the same people have spent; `before`: spent once for `folders`."""
    from rich.markup import escape
    from rich.table import Table

    total = total_of(folders, out, before)
    every, begun = total["runs"], total["unfinished"]
    console, summaries = terminal(), [read_summary(RunFolder(folder)) for folder in every]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("run", "status"):
        table.add_column(column, overflow="fold")
    table.add_column("epsilon", justify="right", no_wrap=True)
    table.add_column("strength")
    for folder, summary in zip(every, summaries, strict=True):
        words = promised(summary)
        table.add_row(escape(folder), words.badge, at_most(float(summary["privacy"]["epsilon"])), words.strength)
    console.print()
    console.print(table)
    if total["epsilon"] is None:
        console.print(f"\n[bold red]No total:[/] {escape(total['reason'])}")
        return
    left_out = f" Not in it, since not yet finished: {', '.join(begun)}." if begun else ""
    console.print(
        f"\n[bold]{len(every)} runs on the same people[/] spent epsilon {at_most(total['epsilon'])} together, at delta "
        f"{at_most(total['delta'])}: whoever sees all of them, or the best of them, learns as much.{escape(left_out)}",
    )


def total_of(folders: Sequence[Path], out: Path, before: Sequence[Line]) -> dict[str, Any]:
    """What all runs in `out` have spent together, for `--json`; epsilon None: there is no total, for a reason that is said."""
    from noisewise.workflow.seeds import runs_in, spent_together

    every, begun = runs_in(out, folders)
    names = {"runs": [str(folder) for folder in every], "unfinished": [str(folder) for folder in begun]}
    total: dict[str, Any] = {**names, "epsilon": None, "delta": None, "reason": None}
    try:
        epsilon, total["delta"] = spent_together(folders, before, every[len(folders) :])
    except RunError as error:
        return {**total, "reason": str(error)}
    if math.isfinite(epsilon):
        return {**total, "epsilon": epsilon}
    statuses = {str(folder): read_summary(RunFolder(folder))["privacy"]["status"] for folder in every}
    open_runs = [folder for folder, status in statuses.items() if status != "private"] or list(statuses)
    return {**total, "reason": f"nothing bounds what {', '.join(open_runs)} released."}
