"""`noisewise train` and `noisewise demo`: from settings to a run."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args

import typer

from noisewise import runtime, userfiles
from noisewise.accounting.defaults import default_adjacency
from noisewise.cli.audit import ask
from noisewise.cli.planned import print_plan
from noisewise.cli.processes import check_count, config_of_first, leave, rank, schema_of_first, spread
from noisewise.cli.processes import team as together
from noisewise.cli.report import write_page
from noisewise.cli.seeds import print_seeds, total_of, train_each
from noisewise.cli.shared import (
    PLAN,
    RUN,
    BatchSize,
    Delta,
    Epochs,
    Jobs,
    Neighbours,
    PerGpu,
    RayAddress,
    Sampler,
    Steps,
    example,
    option,
    terminal,
    warnings_as_notes,
)
from noisewise.cli.table_schema import Asked, check_input, schema_for, share_or_file
from noisewise.errors import ConfigError, Interrupted, RunError
from noisewise.jobs import Local, Where, chosen
from noisewise.runs.files import read_json
from noisewise.workflow.checks import check_privacy, check_recipe, check_settings, check_together
from noisewise.workflow.choices import CLIPS, OPTIMIZERS, WITH_MOMENTUM
from noisewise.workflow.early import check_groups, check_length, check_repairs, check_sizes
from noisewise.workflow.settings import Config, parsed_settings

if TYPE_CHECKING:
    from rich.console import Console

    from noisewise.distributed import Team
    from noisewise.workflow.opened import Run
    from noisewise.workflow.plan import Planned

    Optimizer: TypeAlias = str
    Engine: TypeAlias = str
    Memory: TypeAlias = str
else:
    Optimizer, Engine = Literal[tuple(OPTIMIZERS)], Literal[get_args(runtime.Engine)]
    Memory = Literal[get_args(runtime.Memory)]

TRAINING, TWIN, TABLE = "Training", "Twin", "Tables: --data FILE.csv or FILE.parquet"  # panels of --help
# options that are no settings of the run
HOW = {"out", "config", "resume", "quiet", "as_json", "epochs", "settings", "seeds", "repair"}
HOW |= {
    "processes",
    "jobs",
    "ray",
    "per_gpu",
    "label",
    "group",
    "unit",
    "column",
    "schema",
    "schema_epsilon",
    "yes",
    "sharded",
}
_ADAPT = [name for name, rule in CLIPS.items() if hasattr(rule, "query")]
_FIXED = [name for name in CLIPS if name not in _ADAPT]
_FIRST, *_OTHERS, _LAST = OPTIMIZERS


@example("noisewise train --data clinic.csv --label outcome --group sex --epsilon 3 --out runs/clinic")
def train(
    context: typer.Context,
    out: Annotated[Path, option(RUN, "Run folder to write.")],
    data: Annotated[
        str | None,
        option(
            RUN,
            "A CSV or Parquet file, a data set by name (noisewise datasets), or a folder of one. Default: digits, to try it.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        option(RUN, "By name (noisewise models), or FILE.py:FUNCTION of (shape, outputs). Default: one that fits."),
    ] = None,
    recipe: Annotated[
        str | None,
        option(
            RUN,
            "For images: features, model and settings by one name (noisewise recipes).",
            metavar="NAME[:KEY=VALUE,...]",
        ),
    ] = None,
    config: Annotated[Path | None, option(RUN, "config.toml of a run: the same plan again, with fresh noise.")] = None,
    settings: Annotated[
        list[str] | None, option(RUN, "Any entry of config.toml; may be repeated.", "--set", metavar="KEY=VALUE")
    ] = None,
    resume: Annotated[bool, option(RUN, "Go on with the run in --out; its settings are kept.", "--resume")] = False,
    quiet: Annotated[bool, option(RUN, "No progress bar, no plan, no summary.", "--quiet")] = False,
    as_json: Annotated[
        bool,
        option(RUN, "Print summary.json of each run, by its folder, and the total of --seeds; nothing else.", "--json"),
    ] = False,
    device: Annotated[str | None, option(RUN, "cpu, cuda, cuda:1, ... Default: a GPU where there is one.")] = None,
    processes: Annotated[
        int | None,
        option(
            RUN, "Train on so many processes of this machine, one for each GPU or several cores; torchrun works too."
        ),
    ] = None,
    sharded: Annotated[
        bool,
        option(
            RUN,
            "With several processes: spread parameters over them. Linear, embedding and norm layers only.",
            "--sharded",
        ),
    ] = False,
    valid: Annotated[int | None, option(RUN, "Rows held out for choosing settings.")] = None,
    seed: Annotated[int | None, option(RUN, "Initial weights and splits, public. Noise is always fresh.")] = None,
    seeds: Annotated[
        int | None, option(RUN, "So many runs, into DIR/seed-0, ...; epsilon is per run, and their total is said.")
    ] = None,
    jobs: Jobs = None,
    ray: RayAddress = None,
    per_gpu: PerGpu = None,
    secure: Annotated[
        bool | None, option(RUN, "Noise from a cryptographic generator, on a grid; slower.", "--secure")
    ] = None,
    insecure_seed: Annotated[int | None, option(RUN, "Reproducible noise, for tests: the run is not private.")] = None,
    label: Annotated[
        str | None, option(TABLE, "Column to predict: NAME, NAME=A,B (classes) or NAME=LOW:HIGH (a number).")
    ] = None,
    group: Annotated[
        list[str] | None,
        option(TABLE, "Column that audits split people by, NAME or NAME=A,B; may be repeated. Not a feature."),
    ] = None,
    unit: Annotated[
        str | None, option(TABLE, "Column that says whose row it is: people are protected, not rows.")
    ] = None,
    column: Annotated[
        list[str] | None,
        option(
            TABLE,
            "What you know of a column, e.g. age=0:120, income=0:1e6:log, city=text, id=ignore; may be repeated. Values "
            "with commas in double quotes, as in CSV: 'city=\"Paris, France\",Lyon'; so too in --label and --group.",
            metavar="NAME=WHAT",
        ),
    ] = None,
    schema: Annotated[
        Path | None, option(TABLE, "Schema file (noisewise schema). Default: one is proposed, for you to confirm.")
    ] = None,
    schema_epsilon: Annotated[
        float | None,
        option(TABLE, "Part of --epsilon for choosing undeclared ranges with noise. Default with --yes: a tenth."),
    ] = None,
    yes: Annotated[
        bool,
        option(
            TABLE, "Ask nothing: what is not declared is chosen with noise, never read off the rows.", "--yes", "-y"
        ),
    ] = False,
    public: Annotated[
        bool | None, option(TABLE, "The rows are published: ranges may be read off them.", "--public")
    ] = None,
    test: Annotated[
        str | None, option(TABLE, "Share of rows (people, with --unit) that audits look at, or a file. Default: 0.2.")
    ] = None,
    drop_unlabelled: Annotated[
        bool | None, option(TABLE, "Leave out rows without a label; they are counted.", "--drop-unlabelled")
    ] = None,
    epsilon: Annotated[
        float | None, option(PLAN, "Budget for everything, the schema included; the noise follows.")
    ] = None,
    noise_multiplier: Annotated[float | None, option(PLAN, "Noise, instead of a budget.")] = None,
    delta: Delta = None,
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    steps: Steps = None,
    sampler: Annotated[
        Sampler | None, option(PLAN, "poisson (default), full-batch or shuffle.", metavar="NAME")
    ] = None,
    adjacency: Neighbours = None,
    repair: Annotated[
        list[str] | None,
        option(
            TRAINING,
            "Give back what privacy took (noisewise repairs), e.g. random-sparsification:final=0.9; may be repeated.",
            metavar="NAME[:KEY=VALUE,...]",
        ),
    ] = None,
    clip: Annotated[
        str | None,
        option(
            TRAINING,
            f"{_FIXED[0]} (default), {', '.join(_FIXED[1:])}, or with a bound that adapts at a small cost: "
            f"{', '.join(_ADAPT)}; or FILE.py:NAME, a class of the bound.",
            metavar="RULE",
        ),
    ] = None,
    bound: Annotated[float | None, option(TRAINING, "What one row may contribute at most, C.")] = None,
    screen: Annotated[float | None, option(TRAINING, "Z of global clipping: longer gradients are left out.")] = None,
    optimizer: Annotated[
        Optimizer | None, option(TRAINING, f"{_FIRST} (default), {', '.join(_OTHERS)} or {_LAST}.", metavar="NAME")
    ] = None,
    lr: Annotated[float | None, option(TRAINING, "Learning rate.")] = None,
    schedule: Annotated[
        str | None,
        option(
            TRAINING,
            "Learning rate over the steps: constant (default), linear or cosine, e.g. cosine:last=0.1,warmup=0.05.",
            metavar="SHAPE[:KEY=VALUE,...]",
        ),
    ] = None,
    momentum: Annotated[float | None, option(TRAINING, f"For {' and '.join(WITH_MOMENTUM)}. Default: 0.9.")] = None,
    ema: Annotated[
        float | None, option(TRAINING, "Decay of a moving average of the weights; costs no privacy.")
    ] = None,
    engine: Annotated[
        Engine | None, option(TRAINING, "Gradients per row: auto (default), ghost, dense or loop.", metavar="NAME")
    ] = None,
    keep_states: Annotated[
        int | None,
        option(
            TRAINING,
            "Keep so many states along the run for audits; released with the model, since the ledger covers them.",
        ),
    ] = None,
    microbatch: Annotated[int | None, option(TRAINING, "Rows in memory at once; does not change the result.")] = None,
    memory: Annotated[
        Memory | None,
        option(TRAINING, "ample (default), or small: about a plain step's memory, slower.", metavar="NAME"),
    ] = None,
    twin: Annotated[
        bool | None,
        option(TWIN, "Also train without privacy, to compare with; kept secret. Default: yes.", "--twin/--no-twin"),
    ] = None,
    twin_lr: Annotated[float | None, option(TWIN, "The twin's learning rate.")] = None,
) -> None:
    """Train a model with differential privacy, and its non-private twin, into a run folder.

    Settings that are not given come from the data set's defaults; config.toml in the run folder lists them all. A table
    needs a schema (which columns are numbers, in which ranges): without --schema one is proposed for you to confirm.
    """
    where = _many(chosen(jobs, ray, per_gpu), seeds, processes)
    follows = bool(rank())  # is this a further process of several, which leaves files and words to the first?
    folders = _folders(out, seeds, resume, check=not follows)
    given = {name: value for name, value in context.params.items() if name not in HOW}
    given |= {"repairs": tuple(repair) if repair else None, "test": share_or_file(test)}
    asked = Asked(label, tuple(group or ()), unit, tuple(column or ()), schema, schema_epsilon, yes, bool(public))
    check_settings({**given, "epochs": epochs, "seeds": seeds, "processes": processes})
    if processes is not None:
        check_count(processes)
    check_input(data, asked, resume=resume, config=config)
    given |= parsed_settings(settings or [])
    base = None if config is None else Config.read(config)
    stored = _stored(folders[0]) if resume and not follows else None
    check_together(given, epochs)
    check_recipe(given)
    fixes = given.get("repairs") or ()
    check_repairs(fixes, epsilon)
    check_groups(data, fixes, group or (), schema)
    check_sizes(data, given.get("batch_size"), given.get("valid"))
    check_length(data, epochs, given.get("steps"), given.get("batch_size"), given.get("sampler"))
    if resume and stored is None and base is None and epsilon is None and noise_multiplier is None and not follows:
        raise RunError(f"{out} holds no run to go on with. Start one, e.g. with --data digits --epsilon 3.")
    if base is None and stored is None and not (resume and follows):
        check_privacy(given)
    if model is not None and ".py:" in model:
        userfiles.model_maker(model)
    if sharded and (processes or 1) == 1 and rank() is None:
        raise ConfigError(
            "--sharded without several processes: add --processes 2 (or more), or start it with torchrun."
        )
    if (processes or 1) > 1 and rank() is None:
        raise typer.Exit(spread(processes or 1))
    team, quiet = together(), quiet or as_json or follows
    stored = config_of_first(team, stored)
    neighbours = adjacency or (base.adjacency if base else default_adjacency(sampler or "poisson"))
    beside = folders[0] if resume else config and config.parent
    known = schema_of_first(
        team, lambda: schema_for(data, asked, epsilon, neighbours, beside=beside, out=folders[0], quiet=quiet)
    )
    from noisewise.workflow.config import plan

    earlier = base or stored
    first = seed if seed is not None else 0 if earlier is None else earlier.seed
    each: dict[str, Config] = {}
    for number, folder in enumerate(folders):
        own = given if seeds is None else {**given, "seed": first + number}
        with _waiting(follows, "planning" if recipe is None else "planning, and making features of the images"):
            planned = plan(earlier, epochs=epochs, schema=known, **own)
        if not quiet and number == 0:
            print_plan(planned, runs=len(folders))
        if seeds is not None and team is None:
            each[folder.name] = planned.config
            continue
        begun = resume and _begun(folder)
        begun = begun if team is None else team.said(begun)
        _train(planned, folder, resume=begun, quiet=quiet, next_step=seeds is None, team=team, sharded=sharded)
    if each:
        train_each(each, out, where, known, quiet=quiet)
    if team is not None:
        leave()
    if follows:
        return
    before = [] if known is None or known.ledger is None else known.ledger.lines
    if as_json:
        summaries = {str(folder): read_json(folder / "summary.json") for folder in folders}
        print(
            json.dumps(
                summaries if seeds is None else {**summaries, "together": total_of(folders, out, before)}, indent=2
            )
        )
    elif seeds is not None and not quiet:
        print_seeds(folders, out, before)


@contextmanager
def _waiting(silent: bool, words: str = "planning") -> Iterator[None]:
    """While something is planned; further processes of several say nothing."""
    if silent:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    else:
        with warnings_as_notes(), terminal(stderr=True).status(words, spinner="dots"):
            yield


def _folders(out: Path, seeds: int | None, resume: bool, *, check: bool) -> list[Path]:
    """Where runs go; a folder that is taken is said at once."""
    from noisewise.runs.folder import RunFolder
    from noisewise.workflow.taken import check_out

    folders = [out] if seeds is None else [out / f"seed-{number}" for number in range(seeds)]
    for folder in folders if check else ():
        if not (resume and seeds is not None):  # of several runs some may not have begun
            check_out(RunFolder(folder), resume=resume)
    return folders


def _many(where: Where, seeds: int | None, processes: int | None) -> Where:
    """Where several runs go; options that would do nothing are refused."""
    if where != Local() and seeds is None:
        raise ConfigError("--jobs and --ray are about several runs: give --seeds too, or see --processes for one run.")
    if where != Local() and ((processes or 1) > 1 or rank() is not None):
        raise ConfigError("--processes trains one run on several processes, --jobs and --ray several runs: give one.")
    return where


def _begun(out: Path) -> bool:
    from noisewise.runs.folder import RunFolder

    folder = RunFolder(out)
    return folder.config.exists() or folder.run.exists() or folder.checkpoint.exists()


@example("noisewise demo --out runs/demo")
def demo(
    out: Annotated[Path, typer.Option(help="Run folder; if it holds a finished run, DIR-2 is used, and so on.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Train, audit and report on bundled data (handwritten digits, epsilon 3). Takes about a minute.

    Nothing is overwritten: next to a finished run a new folder is made, an unfinished demo is taken up again.
    """
    from noisewise.workflow.config import plan

    with terminal(stderr=True).status("planning", spinner="dots"):
        planned = plan(data="digits", epsilon=3.0)
    folder, resume = _demo_folder(out, planned.config)
    print_plan(planned)
    _train(planned, folder, resume=resume, quiet=False, next_step=False)
    ask(folder, None, next_step=False, planned=planned)
    write_page([folder], None)


def _demo_folder(out: Path, config: Config) -> tuple[Path, bool]:
    """The first of DIR, DIR-2, ... that is free, or that holds this demo unfinished (then it is resumed)."""
    from noisewise.runs.folder import RunFolder
    from noisewise.workflow.execution import finished

    for number in range(1, 10_000):
        folder = out if number == 1 else out.with_name(f"{out.name}-{number}")
        if not folder.exists() or not any(folder.iterdir()):
            return folder, False
        if RunFolder(folder).config.exists() and _stored(folder) == config and not finished(config, folder):
            return folder, True
    raise RunError(f"{out} and all its numbered neighbours are taken: choose another --out.")


def _stored(out: Path) -> Config | None:
    from noisewise.runs.folder import RunFolder

    path = RunFolder(out).config
    return Config.read(path) if path.exists() else None


def _train(
    planned: Planned,
    out: Path,
    *,
    resume: bool,
    quiet: bool,
    next_step: bool = True,
    team: Team | None = None,
    sharded: bool = False,
) -> None:
    from noisewise.workflow.execution import execute
    from noisewise.workflow.opened import open_run

    console = terminal()
    try:
        with warnings_as_notes() if team is None or team.first else _waiting(silent=True):
            folder = execute(planned, out, resume=resume, progress=not quiet, team=team, sharded=sharded)
    except Interrupted as error:
        where = str(error).partition(";")[0].removeprefix("stopped ")
        ranks = "" if team is None else f" --processes {team.size}{' --sharded' if sharded else ''}"
        raise Interrupted(
            f"{where}; nothing is lost. Go on with: noisewise train --resume --out {out}{ranks}"
        ) from None
    if not quiet:
        _print_run(console, open_run(folder.path, planned), next_step)


def _print_run(console: Console, run: Run, next_step: bool) -> None:
    from rich.table import Table

    from noisewise.runs.summary import read_summary
    from noisewise.wording import at_most, promised, reason
    from noisewise.workflow.opened import accuracy

    folder, summary = run.folder, read_summary(run.folder)
    privacy, promise = summary["privacy"], promised(summary)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim")
    table.add_column()
    colour = "green" if promise.publishable else "bold red"
    why = reason(privacy["status"], promise.strength, privacy["reason"])
    table.add_row("status", f"[{colour}]{promise.badge}[/]: {why}")
    table.add_row("epsilon", f"[bold]{at_most(float(privacy['epsilon']))}[/]  (PLD)")
    table.add_row("delta", at_most(privacy["delta"]))
    table.add_row("strength", f"[{colour}]{promise.strength}[/]")
    table.add_row("adjacency", f"{privacy['adjacency']}, unit: one {privacy['unit']}")
    if run.data.valid.public and len(run.data.valid) and run.data.valid.task == "classification":
        twin = "" if run.twin is None else f", twin {100 * accuracy(run.twin, run.data.valid):.1f} %"
        table.add_row("valid accuracy", f"{100 * accuracy(run.model, run.data.valid):.1f} %{twin}")
    table.add_row("model, ledger", f"{folder.path}/  {'may' if promise.publishable else 'should not'} be published")
    holds = "the twin; " if run.twin is not None else ""
    table.add_row("secret", f"{folder.sensitive}/  {holds}never publish this folder")
    console.print()
    console.print(table)
    if privacy["status"] != "private":  # else the plan has said it
        console.print(f"\n{promise.meaning}")
    if next_step:
        console.print(f"\n[dim]Next:[/] noisewise audit {folder.path}", soft_wrap=True)
