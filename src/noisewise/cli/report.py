"""`noisewise report`: one page for the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noisewise.cli.share import check_cards, write_shareable
from noisewise.cli.shared import example, terminal
from noisewise.errors import ConfigError
from noisewise.runs.folder import RunFolder
from noisewise.runs.summary import read_summary
from noisewise.wording import promised
from noisewise.workflow.taken import check_no_folder_of_runs


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
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="With --shareable: show what a score would cost and how noisy it would be; write nothing."
        ),
    ] = False,
) -> None:
    """Write one self-contained page: the guarantee in plain words, what it cost, who pays, what next, ledger and settings.

    The page is internal: it shows exact figures of test rows, and the non-private twin where there is one. With several
    folders one page shows them side by side, and what those on the same data have spent together.

    With --shareable only what the ledger or public rows cover, into the folder --out (default: shareable/ in the run
    folder): report.html, a model card README.md with Hugging Face's metadata, and PRIVACY.md in plain words for the people
    in the data. What is left out is said. --score-epsilon is refused where its noise would drown the score; --dry-run says so
    before anything is spent.
    """
    check_cards(shareable, contact, license, score_epsilon, dry_run=dry_run)
    for run in runs:
        check_no_folder_of_runs(RunFolder(run))
    if not shareable:
        write_page(runs, out, by)
    elif len(runs) > 1:
        raise ConfigError(f"--shareable with {len(runs)} runs: share each in a folder of its own.")
    else:
        write_shareable(runs[0], out, contact, license, score_epsilon, dry_run=dry_run)


def write_page(paths: list[Path], out: Path | None, by: str | None = None) -> None:
    """Write the report of runs, say where."""
    from noisewise.report import warning, write

    console = terminal()
    written = write(paths, out, by=by)
    console.print(f"\n[bold]Report:[/] {written}", soft_wrap=True)
    console.print(f"[dim]It is internal. {warning(paths)}[/]")
    if any(written.parent.resolve() == path.resolve() for path in paths):
        console.print("[yellow]note:[/] it lies beside the model and not among the run's secrets; better move it out.")
    for line, why in _next_steps(paths):
        console.print(f"[dim]Next:[/] {line}  [dim]{why}[/]", soft_wrap=True)


def _next_steps(paths: list[Path]) -> list[tuple[str, str]]:
    """Commands that go on from a page, and what they do."""
    if len(paths) > 1:
        return [(f"noisewise compare {' '.join(map(str, paths))}", "the same numbers in the terminal, or drawn")]
    folder, steps = RunFolder(paths[0]), []
    if folder.config.exists() and not folder.suggestions.exists():  # else its settings are in somebody's Python code
        steps.append((f"noisewise suggest {paths[0]}", "what to try, and why"))
    if promised(read_summary(folder)).publishable:
        steps.append((f"noisewise report {paths[0]} --shareable", "what may leave, with cards"))
    return steps
