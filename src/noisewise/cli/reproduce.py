"""`noisewise reproduce`: papers, claim by claim: their number, ours with its interval, and a verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from noisewise.cli.shared import Jobs, Json, PerGpu, RayAddress, example, plain, terminal
from noisewise.errors import ConfigError, Interrupted
from noisewise.jobs import chosen
from noisewise.reproduce.tiers import TIERS, Tier
from noisewise.runs.files import finite

if TYPE_CHECKING:
    from noisewise.reproduce.claims import Judged
    from noisewise.reproduce.running import Result

    OneTier: TypeAlias = Tier
else:
    OneTier = Literal[tuple(TIERS)]

COLOURS = {"reproduced": "green", "not-reproduced": "red", "not-comparable": "yellow", "not-run": "dim"}


@example("noisewise reproduce xu2026.figure3 --tier standard --out reproductions")
def reproduce(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Experiments, from --list.")] = None,
    tier: Annotated[
        OneTier, typer.Option(help="quick: seconds, shows that it runs; standard: minutes; full: a GPU.")
    ] = "standard",
    seeds: Annotated[int | None, typer.Option(help="Seeds of every arm. Default: the tier's.", min=1)] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cpu.")] = None,
    jobs: Jobs = None,
    ray: RayAddress = None,
    per_gpu: PerGpu = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and results.")] = Path("reproductions"),
    partial: Annotated[bool, typer.Option("--partial", help="Train nothing: judge the seeds that are there.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="What there is, and how long it takes.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar, no tables.")] = False,
    as_json: Json = False,
) -> None:
    """Check what papers claim: the paper's number, ours with an interval, and a verdict.

    Every run is written to OUT/cells as it ends and never done twice; Ctrl-C loses nothing: the same command goes on,
    and --partial judges what is there. Results are OUT/PAPER/EXPERIMENT.TIER.json, with the figure beside them.

    The claims of one experiment are corrected together (Bonferroni): a claim is reproduced if the intervals of all its
    findings lie where it says, with at least five seeds where chance plays a part. Real images are read from
    NOISEWISE_DATA; noise is drawn by seed, so no model of these runs is private.
    """
    if listed:
        _print_list(as_json)
        return
    if not names:
        raise ConfigError("no experiment is named: noisewise reproduce --list shows what there is.")
    where = chosen(jobs, ray, per_gpu)
    from noisewise.reproduce.papers import find

    for name in names:
        find(name)[1].config(tier, seeds, device)
    quiet = quiet or as_json
    from noisewise.reproduce.running import reproduce as carry_out

    told = None if quiet else _print_result
    try:
        results = carry_out(
            names,
            out,
            tier=tier,
            seeds=seeds,
            device=device,
            where=where,
            partial=partial,
            progress=not quiet,
            told=told,
        )
    except Interrupted as error:
        raise Interrupted(
            f"{str(error).partition('. The same')[0]}. The same command goes on; with --partial it judges what is there."
        ) from None
    if as_json:
        print(json.dumps(finite([result.to_dict() for result in results]), indent=2))
    elif not quiet:
        terminal().print(f"[dim]Results and figures:[/] {out}", soft_wrap=True)


def _print_list(as_json: bool) -> None:
    from noisewise.reproduce.papers import PAPERS

    rows = [
        {
            "name": f"{paper.name}.{experiment.name}",
            "title": experiment.title,
            "where": experiment.where,
            "claims": [claim.name for claim in experiment.claims],
            "minutes": {kind: experiment.minutes.get(kind) for kind in TIERS},
        }
        for paper in PAPERS.values()
        for experiment in paper.experiments
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    for paper in PAPERS.values():
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("experiment", no_wrap=True)
        table.add_column("shows", ratio=1)
        table.add_column("claims", justify="right", no_wrap=True)
        table.add_column("minutes*", justify="right", no_wrap=True)
        for experiment in paper.experiments:
            times = " / ".join(f"{experiment.minutes[kind]:g}" if kind in experiment.minutes else "–" for kind in TIERS)
            claims = sum(not claim.control for claim in experiment.claims)
            table.add_row(f"{paper.name}.{experiment.name}", plain(experiment.title), str(claims), times)
        console = terminal()
        console.print()
        console.print(plain(f"{paper.reference}: {paper.title}"), style="bold")
        console.print(table)
        for missing in paper.unrun:
            console.print(plain(f"• {missing.name} is not run: {missing.reason}"), style="dim")
    words = "* about, for quick / standard on two cores / full on a GPU with 8 jobs (made-up data: 16 cores)"
    terminal().print(f"\n[dim]{words}[/]")


def _print_result(result: Result) -> None:
    from rich.table import Table

    console, seeds = terminal(), len(result.measured.seeds)
    console.print()
    console.print(plain(f"{result.name}: {result.experiment.title}"), style="bold")
    amount = f"{seeds} seed{'s' if seeds > 1 else ''}"
    console.print(
        plain(f"{result.experiment.where}; tier {result.tier}, {amount}, {result.config.device}"), style="dim"
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("claim", no_wrap=True)
    table.add_column("paper", overflow="fold", ratio=3)
    table.add_column("ours", overflow="fold", ratio=4)
    table.add_column("verdict", overflow="fold", ratio=3)
    for judged in result.judged:
        table.add_row(*_cells(judged), end_section=True)
    console.print(table)


def _cells(judged: Judged) -> list[Any]:
    from rich.text import Text

    claim = judged.claim
    verdict = Text(judged.verdict.replace("-", " "), style=COLOURS[judged.verdict])
    reason = judged.reason.partition(":")[0] if judged.verdict == "not-reproduced" else judged.reason
    verdict.append(f"\n{reason}", style="dim")
    name = Text(claim.name)
    if claim.control:
        name.append("\ncontrol", style="dim")
    return [name, plain(f"{claim.says} [{claim.published}]"), _ours(judged), verdict]


def _ours(judged: Judged) -> Any:
    """The first finding that does not hold, or the first; the others are in the result's file."""
    from rich.text import Text

    finding = next((each for each in judged.findings if not each.holds), judged.findings[0])
    count = len(judged.findings)
    text = Text(finding.value, style="" if finding.holds else "yellow")
    others = f"; 1 of {count} findings" if count > 1 else ""
    return text.append(f"\n{finding.what}, claimed {finding.wanted}{others}", style="dim")
