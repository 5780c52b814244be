"""`noisewise report`: one page for the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noisewise.cli.shared import example, terminal


@example("noisewise report runs/digits --out report.html")
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folder of a finished run; several are shown side by side.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="HTML file to write. Default: sensitive/report.html in the run folder; needed for several runs."
        ),
    ] = None,
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who made the report; shown on the page.")] = None,
) -> None:
    """Write one self-contained page: the guarantee in plain words, what it cost, who pays, what next, ledger and settings.

    The page is internal: it shows exact figures of test rows, and the non-private twin where there is one. With several
    folders one page shows them side by side, and what those on the same data have spent together.
    """
    write_page(runs, out, by)


def write_page(paths: list[Path], out: Path | None, by: str | None = None) -> None:
    """Write the report of runs, say where."""
    from noisewise.report import warning, write

    console = terminal()
    written = write(paths, out, by=by)
    console.print(f"\n[bold]Report:[/] {written}", soft_wrap=True)
    console.print(f"[dim]It is internal. {warning(paths)}[/]")
    if any(written.parent.resolve() == path.resolve() for path in paths):
        console.print("[yellow]note:[/] it lies beside the model and not among the run's secrets; better move it out.")
