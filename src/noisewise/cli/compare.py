"""`noisewise compare`: what epsilon bought, run by run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisewise.cli.shared import Json, example, plain, terminal
from noisewise.errors import RunError
from noisewise.runs.files import finite
from noisewise.runs.replaced import check_picture, save_picture
from noisewise.runs.together import apart, grouped, read_runs, run_folders
from noisewise.wording import KEEP_INTERNAL, at_most

if TYPE_CHECKING:
    from noisewise.report.comparison import Compared

GAP, LONGEST = 2, 16  # cells between columns, and of a column of numbers at most


@example("noisewise compare runs/clinic runs/clinic-sparse --plot compare.png")
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders of them.")],
    plot: Annotated[
        Path | None, typer.Option(help="Draw it: FILE.png, .svg or .pdf. Default: a table only.", metavar="FILE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Runs side by side: epsilon against accuracy, the worst group, calibration and robustness.

    From what the runs' summaries and audits hold; what is missing is named with the command that makes it. What all runs on
    the same people cost together stands beside each run's own epsilon. The numbers come from audits: keep them internal.
    """
    if plot is not None:
        check_picture(plot)
    finished, begun = read_runs(run_folders(runs))
    if not finished:
        raise RunError(f"no run is finished: noisewise train --resume --out {begun[0].path} goes on with the first.")
    from noisewise.report.comparison import compared, differing, figure

    rows = compared(finished)
    if plot is not None:
        save_picture(figure(rows), plot, internal=True)
    if as_json:
        unfinished = [str(folder.path) for folder in begun]
        print(json.dumps(finite({"runs": [row.to_dict() for row in rows], "unfinished": unfinished}), indent=2))
        return
    console = terminal()
    for data in dict.fromkeys(row.run.data for row in rows):
        same = [row for row in rows if row.run.data == data]
        _print_rows(data, same, differing(same))
    for reason in apart(grouped(finished)):
        console.print(f"• {reason.replace(': --same-people adds them up', ' to noisewise budget --same-people')}",
                      markup=False)  # fmt: skip
    for folder in begun:
        console.print(f"• Not finished: noisewise train --resume --out {folder.path}", markup=False, soft_wrap=True)
    if plot is not None:
        console.print(f"\n[bold]Figure:[/] {plot}", soft_wrap=True)
    console.print(f"[dim]{KEEP_INTERNAL}[/]")


def _print_rows(data: str, rows: list[Compared], differences: list[dict[str, Any]]) -> None:
    from rich.table import Table

    console, measures = terminal(), rows[0].measures
    columns = {
        "run": [plain(str(row.run.folder.path)) for row in rows],
        "epsilon": [_epsilon(row) for row in rows],
        "all runs": [plain(at_most(row.together)) for row in rows],
        **{measure.name: [_cell(row, measure) for row in rows] for measure in measures},
    }
    console.print()
    console.print(plain(f"{data}: {len(rows)} {'run' if len(rows) == 1 else 'runs'}"), style="bold")
    widths = {name: _width(name, cells) for name, cells in columns.items()}
    widths["run"] = min(widths["run"], max(console.width // 3, 16))
    for place, names in enumerate(_side_by_side(widths, console.width)):
        if place:
            console.print()
        table = Table(box=None, padding=(0, GAP, 0, 0), header_style="dim")
        for name in names:
            justify: Any = "left" if name == "run" else "right"
            table.add_column(name, justify=justify, width=widths[name], overflow="fold")
        for cells in zip(*(columns[name] for name in names), strict=True):
            table.add_row(*cells)
        console.print(table)
    console.print()
    level = next((f"{100 * e.level:g} %" for row in rows for e in row.values.values()), "95 %")
    below = f"Below each number its {level} interval. " if any(row.values for row in rows) else ""
    console.print(
        f"[dim]{below}all runs: epsilon of all of them together, at delta {at_most(rows[0].delta)}, which is what the people "
        "in the data paid for this table.[/]"
    )
    for row, settings in zip(rows, differences, strict=True):
        if words := ", ".join(f"{name} {_written(value)}" for name, value in settings.items()):
            console.print(f"• {row.run.folder.path}: {words}", markup=False, soft_wrap=True)
    for row in rows:
        for command in row.missing:
            console.print(f"• Not measured yet: {command}", markup=False, soft_wrap=True)


def _written(value: Any) -> str:
    """A setting as its option takes it."""
    return (
        " and ".join(map(str, value))
        if isinstance(value, list)
        else f"{value:g}"
        if type(value) is float
        else str(value)
    )


def _side_by_side(widths: dict[str, int], width: int) -> list[list[str]]:
    """Columns in as many tables as the terminal needs, each with the runs' names: nothing is cut."""
    first, *others = widths
    tables = [[first]]
    for name in others:
        if len(tables[-1]) > 1 and sum(widths[each] + GAP for each in [*tables[-1], name]) > width:
            tables.append([first])
        tables[-1].append(name)
    return tables


def _width(name: str, cells: list[Any]) -> int:
    """Of the longest line; headings are broken between words, names of parts where they must."""
    lines = [*name.split(), *(line for cell in cells for line in cell.plain.split("\n"))]
    return min(max(map(len, lines)), LONGEST) if name != "run" else max(map(len, lines))


def _epsilon(row: Compared) -> Any:
    from rich.text import Text

    status = row.run.privacy["status"]
    return Text.assemble(at_most(row.run.epsilon), *([] if status == "private" else [(f"\n{status}", "bold red")]))


def _cell(row: Compared, measure: Any) -> Any:
    from rich.text import Text

    if measure.name not in row.values:
        return plain("–")
    value, interval = measure.written(row.values[measure.name])
    part = f"\n{row.worst}" if measure.name == "worst part" and row.worst else ""
    return Text.assemble(value, (f"\n{interval.removesuffix(' %')}{part}", "dim"))
