"""`noisewise report`: one page for the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noisewise.cli.shared import example, terminal


@example("noisewise report runs/digits --out report.html")
def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished run.")],
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write. Default: sensitive/report.html in the run folder.")
    ] = None,
) -> None:
    """Write one self-contained page: the guarantee in plain words, what it cost, who pays, the ledger, all settings.

    The page is internal: it shows the non-private twin.
    """
    write_page(run, out)


def write_page(path: Path, out: Path | None) -> None:
    """Write the report of a run, say where."""
    from noisewise.report import write

    console = terminal()
    written = write(path, out)
    console.print(f"\n[bold]Report:[/] {written}", soft_wrap=True)
    console.print("[dim]It is internal: it shows the non-private twin. Do not publish it.[/]")
    if written.parent.resolve() == path.resolve():
        console.print("[yellow]note:[/] it lies beside the model and not among the run's secrets; better move it out.")
