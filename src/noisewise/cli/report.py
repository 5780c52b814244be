"""`noisewise report`: one page for the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noisewise.cli.share import check_cards, write_shareable
from noisewise.cli.shared import example, terminal


@example("noisewise report runs/digits --out report.html")
def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished run.")],
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write. Default: sensitive/report.html in the run folder.")
    ] = None,
    shareable: Annotated[
        bool,
        typer.Option("--shareable", help="Only what may leave, with a model card and a privacy card, into a folder."),
    ] = False,
    contact: Annotated[
        str | None, typer.Option(help="With --shareable: whom the people in the data may ask.", metavar="TEXT")
    ] = None,
    score_epsilon: Annotated[
        float | None,
        typer.Option(
            help="With --shareable: release the accuracy on held-out people with noise, once, for this.", metavar="E"
        ),
    ] = None,
    license: Annotated[
        str | None, typer.Option(help="With --shareable: licence of the model, e.g. apache-2.0.", metavar="NAME")
    ] = None,
) -> None:
    """Write one self-contained page: the guarantee in plain words, what it cost, who pays, the ledger, all settings.

    The page is internal: it shows the non-private twin. With --shareable only what the ledger or public rows cover, into
    the folder --out (default: shareable/ in the run folder): report.html, a model card README.md with Hugging Face's
    metadata, and PRIVACY.md in plain words for the people in the data. What is left out is said.
    """
    check_cards(shareable, contact, license, score_epsilon)
    if shareable:
        write_shareable(run, out, contact, license, score_epsilon)
    else:
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
