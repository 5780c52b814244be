"""`noisewise audit`: what privacy cost, who pays, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noisewise.cli.shared import Json, example, note, plain, terminal
from noisewise.errors import ConfigError, DataError
from noisewise.runs.folder import RunFolder
from noisewise.workflow.taken import check_finished

if TYPE_CHECKING:
    from rich.console import Console

    from noisewise.audits import Result
    from noisewise.workflow.opened import Run
    from noisewise.workflow.plan import Planned

GAP = 2  # cells between the columns of a table


@example("noisewise audit runs/digits")
def audit(
    run: Annotated[Path | None, typer.Argument(metavar="DIR", help="Folder of a finished run.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this audit, or FILE.py:NAME; may be repeated.", metavar="NAME")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also those that --list does not call usual.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="Say which audits there are and how long they take.")] = False,
    model: Annotated[
        str | None, typer.Option(metavar="FILE.py:NAME", help="Of a run made in Python: its model, or what makes it.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Of a run made in Python: its data, by name, folder or FILE.py:NAME (Splits, or test Data)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure what privacy cost, who pays, and why, on the test part, against the twin.

    Without options the audits that take seconds, or minutes for large models: who gets how much, calibration, robustness,
    membership, clipping, features against noise, measured epsilon. None of them retrains. Results go to
    sensitive/audits/ in the run folder. A run that was made in Python with out= is audited as well: name its --model and
    --data.
    """
    if listing:
        _list_audits()
    elif run is None:
        raise ConfigError(
            "which run? Name its folder, e.g. noisewise audit runs/digits; --list says which audits there are."
        )
    elif only and everything:
        raise ConfigError("--only and --all: give one of them.")
    else:
        ask(run, only, everything=everything, made_by=(model, data), as_json=as_json)


def _list_audits() -> None:
    from rich.table import Table

    from noisewise.audits import AUDITS

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("audit", "usual", "what it asks, and how long it takes"):
        table.add_column(column)
    for name, audit in AUDITS.items():
        table.add_row(name, "yes" if audit.usual else "", plain(f"{audit.asks} {audit.takes}"))
    terminal().print(table)


def ask(
    path: Path,
    only: list[str] | None,
    *,
    everything: bool = False,
    next_step: bool = True,
    planned: Planned | None = None,
    made_by: tuple[str | None, str | None] = (None, None),
    as_json: bool = False,
) -> None:
    """Ask audits of a run, print what they say. `planned`: its data and plan, where they are loaded.

    `made_by`: model and data of a run that was made in Python.
    """
    from noisewise.audits import AUDITS, audit_of

    console = terminal()
    for name in only or []:
        audit_of(name)
    check_finished(RunFolder(path))
    run = _opened(path, planned, *made_by)
    from noisewise.runs.files import finite
    from noisewise.runs.summary import read_summary
    from noisewise.wording import promised
    from noisewise.workflow import opened

    strength = promised(read_summary(run.folder)).strength
    fitting = [name for name, audit in AUDITS.items() if run.data.test.task == "classification" or not audit.classes]
    results = {}
    for name in dict.fromkeys(only or [name for name in fitting if everything or AUDITS[name].usual]):
        if not as_json:
            console.print(f"\n[bold]{name}[/] [dim]{audit_of(name).takes}[/]")
        try:
            results[name] = opened.audit(run, name, progress=not as_json)
            if not as_json:
                _print_result(console, results[name], strength, tables=bool(only))
        except (ConfigError, DataError) as error:
            if only:
                raise
            note(f"{name} cannot be asked of this run: {error}")  # the others can
    if as_json:
        print(json.dumps(finite({name: result.to_dict() for name, result in results.items()}), indent=2))
        return
    if not only:
        console.print("\n[dim]All numbers are in the report; --only NAME prints those of one audit.[/]")
    if run.twin is None:
        free = f"noisewise train --resume --twin --out {path} trains one beside it, at no cost of privacy"
        remedy = "train with --twin to see it" if run.config is None else free
        console.print(f"This run has no twin, so what privacy cost is not known: {remedy}.", soft_wrap=True)
    if next_step:
        console.print(f"[dim]Next:[/] noisewise report {path} --out report.html", soft_wrap=True)


def _opened(path: Path, planned: Planned | None, model: str | None, data: str | None) -> Run:
    from noisewise.workflow import opened

    if (model is None) != (data is None):
        raise ConfigError("--model and --data go together: they say what a run that was made in Python is about.")
    return (
        opened.open_run(path, planned) if model is None or data is None else opened.open_python_run(path, model, data)
    )


def _print_result(console: Console, result: Result, strength: str, *, tables: bool) -> None:
    """What was found; `strength` is that of the run."""
    from rich.table import Table
    from rich.text import Text

    from noisewise.wording import badge, reason

    for table in result.tables() if tables else ():
        console.print()
        console.print(Text(table.caption, "bold"))
        texts = [[str(name), *(row[place] for row in table.rows)] for place, name in enumerate(table.columns)]
        for group in _that_fit(texts, console.width):
            shown = Table(box=None, header_style="dim")
            for place, width in zip(group, _widths([texts[place] for place in group], console.width), strict=True):
                shown.add_column(plain(texts[place][0]), justify="right" if place else "left", width=width)
            for row in table.rows:
                shown.add_row(*(plain(row[place]) for place in group))
            console.print(shown)
    if tables:
        console.print()
    for sentence in result.sentences():
        console.print(f"• {sentence}", markup=False)
    status, why = result.status.status, result.status.reason
    console.print(f"[dim]status: {badge(status, strength)} ({reason(status, strength, why)})[/]")


def _that_fit(texts: list[list[str]], width: int) -> list[list[int]]:
    """Columns of a table in groups that are no wider than the terminal, the first column in each; no word is cut."""
    groups = [[0]]
    for place in range(1, len(texts)):
        wanted = [*groups[-1], place]
        if len(wanted) > 2 and sum(_least([texts[each] for each in wanted])) + GAP * len(wanted) > width:
            groups.append([0])
        groups[-1].append(place)
    return groups


def _widths(texts: list[list[str]], width: int) -> list[int]:
    """Of columns that fit: what each cannot do without, then the rest of the line one by one to the one that lacks most."""
    widths, wanted = _least(texts), [_longest(column) for column in texts]
    for _ in range(width - sum(widths) - GAP * len(widths)):
        lacks = [wish - has for wish, has in zip(wanted, widths, strict=True)]
        if max(lacks) == 0:
            break
        widths[lacks.index(max(lacks))] += 1
    return widths


def _least(texts: list[list[str]]) -> list[int]:
    """The first column is not broken, the others between words only."""
    return [_longest(texts[0]), *(_longest([w for text in c for w in text.split() or [""]]) for c in texts[1:])]


def _longest(texts: list[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, texts))
