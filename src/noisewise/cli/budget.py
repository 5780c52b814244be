"""`noisewise budget`: what all runs on one data set spent together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisewise.accounting import Ledger
from noisewise.accounting.accountants import check_delta
from noisewise.cli.shared import Json, example, plain, terminal
from noisewise.runs.files import finite, read_json
from noisewise.runs.together import apart, grouped, read_runs, run_folders
from noisewise.wording import at_most

if TYPE_CHECKING:
    from noisewise.runs.together import Group

DELTA = 1e-5  # where nobody says one


@example("noisewise budget runs/")
def budget(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders of them.")],
    delta: Annotated[
        float | None, typer.Option(help="Delta of the total. Default: the smallest one of the runs.")
    ] = None,
    same_people: Annotated[
        bool, typer.Option("--same-people", help="Data of other names hold the same people: add them up too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """What all runs on the same people spent together: their ledgers, composed.

    Every run on the same people adds to what they have paid, also those that only chose settings or were thrown away after
    somebody saw them. Data are told apart by name; other units or neighbours are not added, and it is said why.
    """
    if delta is not None:
        check_delta(delta)
    finished, begun = read_runs(run_folders(runs))
    groups = grouped(finished, same_people=same_people)
    unfinished = [str(folder.path) for folder in begun]
    if as_json:
        described = [_described(group, delta) for group in groups]
        print(json.dumps(finite({"groups": described, "apart": apart(groups), "unfinished": unfinished}), indent=2))
        return
    console = terminal()
    for group in groups:
        _print_group(group, delta)
    for reason in apart(groups):
        console.print(f"• {reason}", markup=False)
    if unfinished:
        console.print(
            f"• Not finished, so no model of it is released yet: {', '.join(unfinished)}. Each adds its epsilon when it is.",
            markup=False,
        )
    for folder in begun:
        if folder.schema.exists() and (paid := read_json(folder.schema).get("ledger")):
            at = DELTA if delta is None else delta
            cost = at_most(Ledger.from_dict(paid).epsilon(at))
            console.print(
                f"• {folder.path}/schema.json is out already, and not in the total: choosing it cost epsilon {cost} at delta "
                f"{at_most(at)}.",
                markup=False, soft_wrap=True,
            )  # fmt: skip


def _described(group: Group, delta: float | None) -> dict[str, Any]:
    total = group.epsilon(delta)
    return {
        "data": group.data,
        "unit": group.unit,
        "adjacency": group.adjacency,
        "delta": group.delta(delta),
        "epsilon": total,
        "strength": group.promise(total, delta).strength,
        "runs": [
            {
                "folder": str(run.folder.path),
                "epsilon": run.epsilon,
                "delta": run.privacy["delta"],
                "status": run.privacy["status"],
                "releases": run.ledger.releases,
            }
            for run in group.runs
        ],
        "notes": group.notes(),
    }


def _print_group(group: Group, delta: float | None) -> None:
    from rich.table import Table

    console, total = terminal(), group.epsilon(delta)
    words = group.promise(total, delta)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run", overflow="fold")
    for name in ("epsilon", "delta", "releases"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for run in group.runs:
        row = (at_most(run.epsilon), at_most(run.privacy["delta"]), f"{run.ledger.releases:,}", run.privacy["status"])
        table.add_row(plain(str(run.folder.path)), *row)
    releases = f"{group.ledger().releases:,}"
    table.add_row(
        "[bold]together[/]", f"[bold]{at_most(total)}[/]", at_most(group.delta(delta)), releases, words.strength,
        style="green" if words.publishable else "bold red",
    )  # fmt: skip
    runs = "1 run" if len(group.runs) == 1 else f"{len(group.runs)} runs"
    console.print()
    console.print(plain(f"{group.data}: {runs}, protecting one {group.unit} ({group.adjacency})"), style="bold")
    console.print(table)
    console.print()
    meaning = words.meaning.replace("sees the model", "sees all of these" if len(group.runs) > 1 else "sees the model")
    console.print(f"Together: {meaning}", markup=False)
    for note in group.notes():
        console.print(f"• {note}", markup=False)
