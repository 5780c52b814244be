"""`noisewise suggest`: what to do next with a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noisewise.cli.shared import Json, example, note, plain, terminal, warnings_as_notes
from noisewise.runs.folder import RunFolder
from noisewise.runs.summary import read_summary
from noisewise.workflow.taken import check_finished

if TYPE_CHECKING:
    from noisewise.advice import Advice

ROWS = ("advice", "evidence", "gain", "privacy")
NOTHING = (
    "Nothing to suggest: no rule fits what the audits found. What was tried on runs like this one gained nothing that could "
    "be told from chance (docs/advice.md)."
)


@example("noisewise suggest runs/clinic")
def suggest(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished run.")],
    as_json: Json = False,
) -> None:
    """What to do next: which repair fits this run, why, what it gained elsewhere, and the command to try it.

    Reads the run's audits and asks those that are missing (seconds to minutes; nothing is trained). Advice follows from
    people in the data, so it is secret: it is kept in sensitive/suggestions.json, and the report shows it.
    """
    check_finished(RunFolder(run))
    from noisewise.workflow.suggest import suggest as suggested

    with warnings_as_notes():
        evidence, advice = suggested(run, progress=not as_json)
    for name, why in evidence.unasked.items():
        note(f"{name} could not be asked: {why}")
    if as_json:
        print(json.dumps([one.to_dict() for one in advice], indent=2))
        return
    console = terminal()
    for number, one in enumerate(advice, 1):
        _print_advice(number, one)
    console.print()
    if advice:
        console.print(plain("Drawn from audits of people: keep it among the secrets."), style="dim")
        return
    console.print(plain(NOTHING))
    console.print(f"[dim]Next:[/] noisewise report {run}  [dim]the whole on one page[/]", soft_wrap=True)
    summary = read_summary(RunFolder(run))
    if summary["task"] != "regression":  # `plan` reads accuracies off runs
        console.print(
            f"[dim]Next:[/] noisewise plan --n {2 * summary['data']['n']} --runs {run}  "
            "[dim]what twice the people would buy[/]",
            soft_wrap=True,
        )


def _print_advice(number: int, advice: Advice) -> None:
    from rich.table import Table

    console = terminal()
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for row in ROWS:
        table.add_row("expected gain" if row == "gain" else row, plain(getattr(advice, row)))
    console.print(f"\n[bold]{number}. {advice.diagnosis}[/] [dim](for {advice.aim})[/]")
    console.print(table)
    console.print(plain(f"  {advice.command}"), soft_wrap=True, style="bold")
