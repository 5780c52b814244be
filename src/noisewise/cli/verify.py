"""`noisewise verify`: a run folder, checked by somebody without the data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noisewise.cli.shared import Json, example, plain, terminal
from noisewise.errors import RunError
from noisewise.runs.folder import RunFolder
from noisewise.workflow.taken import check_no_folder_of_runs

if TYPE_CHECKING:
    from noisewise.workflow.verification import Check

COLOURS = {"ok": "green", "fails": "bold red", "cannot be checked": "yellow"}


@example("noisewise verify runs/clinic")
def verify(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished run; sensitive/ may be missing.")],
    as_json: Json = False,
) -> None:
    """Check a run folder without its data: digests, ledger, epsilon, plan, weights, and this machine's engine.

    Each check is ok, fails, or cannot be checked, and says why. Nothing outside the folder is read and no code of the run's is
    executed. It shows whether the files fit together, not who wrote them. Takes seconds.
    Exit code 0: all that can be checked holds; 3: something fails.
    """
    check_no_folder_of_runs(RunFolder(run))
    if not RunFolder(run).complete:
        raise RunError(f"{run} holds no finished run: check the name; an unfinished one cannot be verified.")
    from noisewise.workflow.verification import FAILS, OPEN, verified

    checks = verified(run, progress=not as_json)
    failed = [check.name for check in checks if check.verdict == FAILS]
    if as_json:
        print(json.dumps({"holds": not failed, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _print(checks)
        console, left = terminal(), [check.name for check in checks if check.verdict == OPEN]
        but = f" Not checked: {', '.join(left)}." if left else ""
        verdict = (
            f"[bold red]Does not hold:[/] {', '.join(failed)}."
            if failed
            else "[green]All that can be checked holds.[/]"
        )
        console.print(f"\n{verdict}{but}")
    if failed:
        raise typer.Exit(3)


def _print(checks: list[Check]) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row(check.name, f"[{COLOURS[check.verdict]}]{check.verdict}[/]", plain(check.why))
    terminal().print(table)
