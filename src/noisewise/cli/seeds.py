"""`train --seeds N`: several runs of one plan, and what they cost together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from noisewise.cli.shared import terminal, warnings_as_notes
from noisewise.errors import Interrupted
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


def print_seeds(folders: Sequence[Path], before: Sequence[Line]) -> None:
    """What each run promises, and what runs on the same people have spent together; `before`: spent once for all."""
    from rich.table import Table

    from noisewise.workflow.seeds import spent_together

    console, summaries = terminal(), [read_summary(RunFolder(folder)) for folder in folders]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("run", "status"):
        table.add_column(column, overflow="fold")
    table.add_column("epsilon", justify="right", no_wrap=True)
    table.add_column("strength")
    for folder, summary in zip(folders, summaries, strict=True):
        words = promised(summary)
        table.add_row(str(folder), words.badge, at_most(float(summary["privacy"]["epsilon"])), words.strength)
    console.print()
    console.print(table)
    open_runs = [
        str(folder)
        for folder, summary in zip(folders, summaries, strict=True)
        if summary["privacy"]["status"] != "private"
    ]
    if open_runs:
        console.print(f"\n[bold red]No total:[/] nothing bounds what {', '.join(open_runs)} released.")
        return
    total, delta = spent_together(folders, before)
    console.print(
        f"\n[bold]{len(folders)} runs on the same people[/] spent epsilon {at_most(total)} together, at delta "
        f"{at_most(delta)}: whoever sees all of them, or the best of them, learns as much.",
    )
