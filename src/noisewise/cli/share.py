"""`noisewise report --shareable`: what may leave, on the terminal."""

from __future__ import annotations

from pathlib import Path

from noisewise.cli.shared import note, terminal
from noisewise.errors import ConfigError, RunError
from noisewise.runs.folder import RunFolder


def check_cards(
    shareable: bool, contact: str | None, license: str | None, score_epsilon: float | None, *, dry_run: bool = False
) -> None:
    """What stands on the cards goes with the cards."""
    if not shareable and (dry_run or not (contact is None and license is None and score_epsilon is None)):
        raise ConfigError(
            "--contact, --license, --score-epsilon and --dry-run go with --shareable: add it, or leave them out."
        )
    if score_epsilon is not None and not 0 < score_epsilon < 100:
        raise ConfigError(f"--score-epsilon {score_epsilon}: must be a number above 0, e.g. 0.1.")


def write_shareable(
    run: Path,
    out: Path | None,
    contact: str | None,
    license: str | None,
    score_epsilon: float | None = None,
    *,
    dry_run: bool = False,
) -> None:
    """Write the page and both cards of a run, say where and what is left out; or only what it would be."""
    if not RunFolder(run).complete:
        raise RunError(f"{run} holds no finished run: finish it with --resume, or check the name.")
    from noisewise.report.shareable import FILES, check_place, subject_of, write
    from noisewise.workflow.public_results import public_results
    from noisewise.workflow.released_score import offered, release_score

    console = terminal()
    folder = run / "shareable" if out is None else out
    subject_of(run)  # refused before anything is measured
    check_place(folder)
    if dry_run:
        console.print(f"\nWould be written into {folder}: {', '.join(FILES.values())}.", soft_wrap=True)
        console.print("No score would be bought." if score_epsilon is None else offered(run, score_epsilon).words)
        console.print("[dim]Nothing was written, measured or spent.[/]")
        return
    if score_epsilon is not None:
        release_score(run, score_epsilon)
    with console.status("measuring on public rows", spinner="dots"):
        measured = public_results(run)
    subject = subject_of(run, results=measured.results, why_none=measured.why_none, contact=contact, license=license)
    paths = write(subject, measured.results, folder)
    console.print()
    for what, path in zip(("Page", "Model card", "Privacy card"), paths, strict=True):
        console.print(f"[bold]{what}:[/] {path}", soft_wrap=True)
    if not subject.promise.publishable:
        note(f"not to be called publishable: {subject.promise.verdict}")
    if subject.noised is not None:
        console.print(f"\n{subject.noised.words}", markup=False)
    console.print("\nLeft out:")
    for what, why in subject.left_out:
        console.print(f"• {what}: {why}", markup=False)
    if contact is None:
        note("the cards have a gap for whom to ask: --contact fills it.")
    if subject.files and subject.code:
        note(
            f"the model itself is not in the folder: to publish it, put {' and '.join(subject.files)} of {run} beside the card."
        )
    console.print("[dim]Read them before you publish them: whether names of columns may be told, only you know.[/]")
