"""`noisewise sweep`: many settings, their price, and a choice that is public or paid for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisewise.cli.shared import Jobs, PerGpu, RayAddress, example, note, plain, terminal, warnings_as_notes
from noisewise.errors import Interrupted
from noisewise.jobs import Where, chosen
from noisewise.runs.files import finite
from noisewise.wording import at_most, number, promise, several_units
from noisewise.workflow.sweep_file import NOISED, Sweep, check_same, command, said

if TYPE_CHECKING:
    from noisewise.workflow.sweep import PlannedSweep


@example("noisewise sweep --config sweep.toml --out runs/sweep --jobs 2")
def sweep(
    config: Annotated[Path, typer.Option(help="TOML file of the sweep, as above.", metavar="FILE.toml")],
    out: Annotated[Path, typer.Option(help="Folder for all runs. The same command goes on where it was stopped.")],
    jobs: Jobs = None,
    ray: RayAddress = None,
    per_gpu: PerGpu = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would cost, and train nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar, no plan, no table.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print sweep.json and nothing else.")] = False,
) -> None:
    r"""Try many settings; see the price of all together first; choose on public rows, or pay for it.

    The file names what all runs share (entries of config.toml, epochs, schema) and what is tried:

    \[train]
    data = "clinic.csv"
    schema = "clinic.toml"
    epsilon = 1.0

    \[sweep]              # every combination; or single runs as \[\[runs]]
    lr = \[0.25, 0.5, 1.0]
    bound = \[0.5, 1.0]

    \[stand_in]           # public rows like yours: settings are tried there, and
    data = "public.csv"   # nothing is spent; the last line is the final command
    schema = "public.toml"
    public = true

    Without a stand-in every run on the same people adds to what they pay, also those that
    are not chosen. Exact scores on private rows are refused; noised ones are paid for:

    \[choose]
    by = "noised-valid"
    epsilon = 0.1

    Ctrl-C loses nothing: the same command goes on, with any --jobs or --ray.
    """
    where = chosen(jobs, ray, per_gpu)
    wanted, quiet = Sweep.read(config), quiet or as_json
    check_same(wanted, out)
    from noisewise.workflow.sweep import carry_out_sweep, plan_sweep

    with warnings_as_notes():
        whole = plan_sweep(wanted, progress=not quiet)
    if not quiet:
        _print_plan(whole, where)
    if dry_run:
        if as_json:
            print(json.dumps(finite(_priced(whole)), indent=2))
        return
    try:
        with warnings_as_notes():
            content = carry_out_sweep(whole, out, where, progress=not quiet)
    except Interrupted as error:
        raise Interrupted(
            f"{str(error).partition('. The same')[0]}. Go on with: noisewise sweep --config {config} --out {out}"
        ) from None
    if as_json:
        print((out / "sweep.json").read_text(), end="")
    elif not quiet:
        _print_results(content, wanted, out)


def _total(whole: PlannedSweep) -> float:
    """What everything will cost: the runs, and noised scores."""
    choose = whole.sweep.choose
    return whole.together(whole.score_lines() if choose is not None and choose.by == NOISED else ())


def _priced(whole: PlannedSweep) -> dict[str, Any]:
    """What --dry-run --json says."""
    status = whole.status
    return {
        "runs": len(whole.plans),
        "epsilons": whole.epsilons,
        "epsilon": _total(whole),
        "status": status.status,
        "reason": status.reason,
    }


def _print_plan(whole: PlannedSweep, where: Where) -> None:
    from rich.table import Table

    from noisewise.workflow.estimate import in_words, seconds

    first, costs, total = whole.plans[0], whole.epsilons, _total(whole)
    mechanism, console = first.mechanism, terminal()
    words = promise(total, whole.delta, mechanism.sampler.n, adjacency=whole.adjacency, unit=mechanism.unit)
    status = whole.status
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    rows = "declared public: nothing is spent" if whole.public else "private: every run is paid for"
    table.add_row("data", plain(f"{first.config.data}, {rows}"))
    beside = min(where.processes or 1, len(costs))
    at_once = f"{beside} at a time" if where.processes else "as many at a time as Ray has room for"
    low, high = at_most(min(costs)), at_most(max(costs))
    each = low if low == high else f"{low} to {high}"
    would = " would cost people whose rows are not public" if whole.public else ""
    if status.status == "private":
        table.add_row("runs", f"{len(costs)}, epsilon {each} each; {at_once}")
        table.add_row(
            "together", f"[bold]epsilon {at_most(total)}[/] at delta {at_most(whole.delta)}{would}: {words.strength}"
        )
    else:
        table.add_row("runs", f"{len(costs)}; {at_once}")
        table.add_row("status", f"[bold red]{status.status}[/]: {status.reason}")
        table.add_row("together", f"[bold]epsilon {at_most(total)}[/]: nothing is promised")
    table.add_row("choice", _choice(whole))
    took = sum(seconds(plan.recipe, plan.config.runtime(), twin=plan.config.twin) for plan in whole.plans[:1])
    each = "" if where.processes else ", less with each run that goes on beside others"
    table.add_row("takes", f"about {in_words(took * len(costs) / beside)}{each}")
    console.print(table)
    if status.status == "private" and not whole.public and not words.publishable:
        note(f"together {words.verdict[0].lower()}{words.verdict[1:]} Try fewer settings, or try them on public rows.")


def _choice(whole: PlannedSweep) -> str:
    choose = whole.sweep.choose
    if choose is not None and choose.by == NOISED:
        private = whole.status.status == "private"
        price = f"epsilon {choose.epsilon:g} of the above" if private else "which promise nothing either"
        return f"by noised scores on held-out {several_units(whole.plans[0].mechanism.unit)}, {price}"
    if whole.public and len(whole.plans[0].data.valid):
        return "by exact scores on held-out public rows"
    return f"none: add \\[choose] by = '{NOISED}', or try settings on public rows (\\[stand_in])"


def _print_results(content: dict[str, Any], wanted: Sweep, out: Path) -> None:
    from rich.table import Table

    console = terminal()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run", no_wrap=True)
    table.add_column("settings", overflow="fold")
    table.add_column("epsilon", justify="right", no_wrap=True)
    measured = content["score"] is not None
    share = content["task"] == "classification"
    if measured:
        table.add_column(f"{content['score']} {'accuracy' if share else 'error'}", justify="right")
    rows = sorted(content["runs"], key=lambda row: -(row["score"] or 0)) if measured else content["runs"]
    for row in rows:
        score = [f"{100 * row['score']:.1f} %" if share else number(-row["score"])] if measured else []
        style = "bold" if row["run"] == content["chosen"] else ""
        table.add_row(row["run"], plain(said(row["settings"])), at_most(float(row["epsilon"])), *score, style=style)
    console.print()
    console.print(table)
    console.print()
    total = float(content["epsilon"])
    words = promise(total, content["delta"], content["n"], adjacency=content["adjacency"], unit=content["unit"])
    spent = "would have cost people whose rows are private" if content["public"] else "cost"
    if open_runs := [row["run"] for row in content["runs"] if row["status"] != "private"]:
        console.print(f"[bold red]Not private:[/] {', '.join(open_runs)}. Nothing is promised, and nothing adds up.")
    else:
        cost = f"epsilon {at_most(total)} at delta {at_most(content['delta'])}"
        console.print(f"[bold]Together[/] the runs {spent} {cost}: {words.strength}.")
    if content["score_deviation"]:
        console.print(f"Noise on each accuracy has a deviation of {100 * content['score_deviation']:.1f} points.")
    if content["chosen"] is None:
        return
    best = next(row for row in content["runs"] if row["run"] == content["chosen"])
    console.print(f"[green]Chosen:[/] {content['chosen']}", plain(f"({said(best['settings'])})"), soft_wrap=True)
    if wanted.stand_in is not None:
        line = command({**wanted.shared, **best["settings"]}, "runs/final")
        console.print(f"[dim]Next:[/] {line}", soft_wrap=True)
    else:
        console.print(f"[dim]Next:[/] noisewise audit {out / content['chosen']}", soft_wrap=True)
