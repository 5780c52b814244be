"""The command line. Everything heavy is imported inside the commands, so that `--help` is instant."""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from noisewise import __version__
from noisewise.errors import ConfigError, DataError, Interrupted, NoisewiseError, NoisewiseWarning, RunError

if TYPE_CHECKING:
    from rich.console import Console

    from noisewise.accounting import Spent
    from noisewise.audits import Result
    from noisewise.data.tables.propose import Proposal
    from noisewise.mechanism import Mechanism
    from noisewise.runs.folder import RunFolder
    from noisewise.testing.modelcheck import ModelCheck
    from noisewise.workflow.config import Config

app = typer.Typer(
    name="noisewise",
    help="Train PyTorch models with differential privacy, see what privacy costs and whom.\n\n"
    "Start with [bold]noisewise demo[/]: it trains, audits and reports on bundled data in a minute.",
    epilog="[dim]Exit codes: 0 done, 2 a mistake in the input, 3 refused because privacy would break, "
    "130 interrupted (go on with --resume), 1 a bug.[/]",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

PLAN, TRAINING, TWIN, RUN = "Privacy plan", "Training", "Twin", "Run"
COLUMNS, OTHERS = "Columns", "Columns that are not declared"
GAP = 2  # cells between the columns of a table
HOW = ("out", "config", "resume", "quiet", "epochs")  # options of `train` that are no settings of the run


def _in(panel: str, help: str, *names: str, **extra: Any) -> Any:
    """An option with its help, in a panel of --help."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **extra)


DATA = (
    "digits", "mnist", "fashion_mnist", "cifar10", "adult", "german_credit", "compas", "california_housing", "wine_quality",
    "two_patch", "signal_noise",
)  # fmt: skip
Sampler = Literal["poisson", "full-batch", "shuffle"]
Adjacency = Literal["add-remove", "zero-out", "replace-one"]
Clip = Literal["flat", "global", "automatic", "normalized", "per-sample", "per-layer", "quantile", "global-adapt"]
Optimizer = Literal["sgd", "adam", "adamw", "rmsprop"]
Engine = Literal["auto", "ghost", "dense", "loop"]

NEIGHBOURS = (
    "add-remove, zero-out or replace-one: what neighbours differ by. Default: add-remove; for shuffle zero-out."
)
Rows = Annotated[int, _in(PLAN, "Rows in the training data; a number you declare public.", "--n")]
BatchSize = Annotated[int | None, _in(PLAN, "Expected rows per step; rate = batch size / n.")]
Epochs = Annotated[float | None, _in(PLAN, "Passes over the data: steps = ceil(epochs n / batch size).")]
Steps = Annotated[int | None, _in(PLAN, "Steps, instead of epochs.")]
Delta = Annotated[float | None, _in(PLAN, "Default: the largest power of ten at most 1/(10 n).")]
Drawn = Annotated[Sampler, _in(PLAN, "poisson, full-batch, or shuffle (which earns no amplification).", metavar="NAME")]
Neighbours = Annotated[Adjacency | None, _in(PLAN, NEIGHBOURS, metavar="NAME")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"noisewise {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


@app.command(epilog="Example:  noisewise epsilon --n 60000 --batch-size 256 --epochs 60 --noise-multiplier 1.1")
def epsilon(
    n: Rows,
    noise_multiplier: Annotated[float, _in(PLAN, "Noise standard deviation over the clipping bound.")],
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    steps: Steps = None,
    delta: Delta = None,
    sampler: Drawn = "poisson",
    adjacency: Neighbours = None,
    as_json: Json = False,
) -> None:
    """What a plan spends: epsilon by three accountants, before any training."""
    plan = _plan(n, batch_size, epochs, steps, sampler, adjacency, noise_multiplier)
    _show_plan(plan, _delta(delta, n), as_json, chosen=adjacency)


@app.command(epilog="Example:  noisewise calibrate --n 60000 --batch-size 256 --epochs 60 --epsilon 3")
def calibrate(
    n: Rows,
    epsilon: Annotated[float, _in(PLAN, "Budget: the plan will cost at most this.")],
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    steps: Steps = None,
    delta: Delta = None,
    sampler: Drawn = "poisson",
    adjacency: Neighbours = None,
    as_json: Json = False,
) -> None:
    """The least noise that meets a budget: noise multiplier for an epsilon."""
    plan, spend_at = _plan(n, batch_size, epochs, steps, sampler, adjacency, None), _delta(delta, n)
    _show_plan(plan.calibrated(epsilon, spend_at), spend_at, as_json, chosen=adjacency)


@app.command(epilog="Example:  noisewise train --data digits --model cnn --epsilon 3 --out runs/digits")
def train(
    context: typer.Context,
    out: Annotated[Path, _in(RUN, "Run folder to write.")],
    data: Annotated[str | None, _in(RUN, f"Data set: {', '.join(DATA)}. Default: digits.")] = None,
    model: Annotated[
        str | None, _in(RUN, "Model: cnn, lenet, mlp, logistic, ... Default: one that fits the data.")
    ] = None,
    config: Annotated[Path | None, _in(RUN, "config.toml of a run: the same plan again, with fresh noise.")] = None,
    resume: Annotated[bool, _in(RUN, "Go on with the run in --out; its settings are kept.", "--resume")] = False,
    quiet: Annotated[bool, _in(RUN, "No progress bar, no summary.", "--quiet")] = False,
    valid: Annotated[int | None, _in(RUN, "Rows held out for choosing settings.")] = None,
    seed: Annotated[int | None, _in(RUN, "Initial weights and splits, public. Noise is always fresh.")] = None,
    insecure_seed: Annotated[int | None, _in(RUN, "Reproducible noise, for tests: the run is not private.")] = None,
    epsilon: Annotated[float | None, _in(PLAN, "Budget; the noise follows.")] = None,
    noise_multiplier: Annotated[float | None, _in(PLAN, "Noise, instead of a budget.")] = None,
    delta: Delta = None,
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    steps: Steps = None,
    sampler: Annotated[Sampler | None, _in(PLAN, "poisson (default), full-batch or shuffle.", metavar="NAME")] = None,
    adjacency: Neighbours = None,
    clip: Annotated[
        Clip | None,
        _in(
            TRAINING,
            "flat (default), global, automatic, normalized, per-sample, per-layer, or with a bound that adapts at a small "
            "cost: quantile, global-adapt.",
            metavar="RULE",
        ),
    ] = None,
    bound: Annotated[float | None, _in(TRAINING, "What one row may contribute at most, C.")] = None,
    screen: Annotated[float | None, _in(TRAINING, "Z of global clipping: longer gradients are left out.")] = None,
    optimizer: Annotated[
        Optimizer | None, _in(TRAINING, "sgd (default), adam, adamw or rmsprop.", metavar="NAME")
    ] = None,
    lr: Annotated[float | None, _in(TRAINING, "Learning rate.")] = None,
    momentum: Annotated[float | None, _in(TRAINING, "For sgd and rmsprop. Default: 0.9.")] = None,
    ema: Annotated[float | None, _in(TRAINING, "Decay of a moving average of the weights; costs no privacy.")] = None,
    engine: Annotated[
        Engine | None, _in(TRAINING, "Gradients per row: auto (default), ghost, dense or loop.", metavar="NAME")
    ] = None,
    microbatch: Annotated[int | None, _in(TRAINING, "Rows in memory at once; does not change the result.")] = None,
    twin: Annotated[
        bool | None,
        _in(TWIN, "Also train without privacy, to compare with; kept secret. Default: yes.", "--twin/--no-twin"),
    ] = None,
    twin_lr: Annotated[float | None, _in(TWIN, "The twin's learning rate.")] = None,
) -> None:
    """Train a model with differential privacy, and its non-private twin, into a run folder.

    Settings that are not given come from the data set's defaults; config.toml in the run folder lists them all.
    """
    from noisewise.workflow.config import Config, configure

    given = {name: value for name, value in context.params.items() if name not in HOW}
    base = None if config is None else Config.read(config)
    stored = _stored(out) if resume else None
    if resume and stored is None and base is None and epsilon is None and noise_multiplier is None:
        raise RunError(f"{out} holds no run to go on with. Start one, e.g. with --data digits --epsilon 3.")
    with _console(stderr=True).status("planning", spinner="dots"):
        wanted = configure(base or stored, epochs=epochs, **given)
    _train(wanted, out, resume=resume, quiet=quiet)


@app.command(epilog="Example:  noisewise audit runs/digits")
def audit(
    run: Annotated[Path | None, typer.Argument(metavar="DIR", help="Folder of a finished run.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this audit; may be repeated.", metavar="NAME")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also those that --list does not call usual.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="Say which audits there are and how long they take.")] = False,
) -> None:
    """Measure what privacy cost, who pays, and why, on the test part, against the twin.

    Without options the audits that take seconds, or minutes for large models: who gets how much, calibration, robustness,
    membership, clipping, features against noise. None of them retrains. Results go to sensitive/audits/ in the run folder.
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
        _audit(run, only, everything=everything)


@app.command(epilog="Example:  noisewise report runs/digits --out report.html")
def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished run.")],
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write. Default: sensitive/report.html in the run folder.")
    ] = None,
) -> None:
    """Write one self-contained page: the guarantee in plain words, what it cost, who pays, the ledger, all settings.

    The page is internal: it shows the non-private twin.
    """
    _report(run, out)


@app.command(epilog="Example:  noisewise demo --out runs/demo")
def demo(
    out: Annotated[Path, typer.Option(help="Run folder; if it holds a finished run, DIR-2 is used, and so on.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Train, audit and report on bundled data (handwritten digits, epsilon 3). Takes about a minute.

    Nothing is overwritten: next to a finished run a new folder is made, an unfinished demo is taken up again.
    """
    from noisewise.workflow.config import configure

    with _console(stderr=True).status("planning", spinner="dots"):
        config = configure(data="digits", epsilon=3.0)
    folder, resume = _demo_folder(out, config)
    _train(config, folder, resume=resume, quiet=False, next_step=False)
    _audit(folder, None, next_step=False)
    _report(folder, None)


@app.command(
    epilog="Example:  noisewise schema people.csv --label income --group sex --column age=0:120 --out people.toml"
)
def schema(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="Its first line names the columns.")],
    label: Annotated[str, _in(COLUMNS, "Column to predict; NAME, NAME=A,B (classes) or NAME=LOW:HIGH (a number).")],
    group: Annotated[
        list[str] | None,
        _in(COLUMNS, "Column that audits split people by; NAME or NAME=A,B,C; may be repeated. Not a feature."),
    ] = None,
    unit: Annotated[str | None, _in(COLUMNS, "Column that says whose row it is, if people have several.")] = None,
    column: Annotated[
        list[str] | None,
        _in(
            COLUMNS,
            "What you know of a column; may be repeated. NAME=LOW:HIGH, NAME=LOW:HIGH:log (a number, log scale), "
            "NAME=number (range unknown), NAME=A,B,C (categories), NAME=text or NAME=hash:64 (hashed), NAME=ignore.",
            metavar="NAME=WHAT",
        ),
    ] = None,
    separator: Annotated[str | None, _in(COLUMNS, "Between fields. Default: the one that fits the first line.")] = None,
    header_only: Annotated[
        bool, _in(OTHERS, "Look at no row; undeclared columns are hashed.", "--header-only")
    ] = False,
    epsilon: Annotated[float | None, _in(OTHERS, "Choose with noise, for so much of the privacy budget.")] = None,
    delta: Annotated[
        float | None, _in(OTHERS, "With --epsilon. Default: the largest power of ten at most 1/(10 n).")
    ] = None,
    adjacency: Annotated[
        Adjacency | None, _in(OTHERS, "With --epsilon: what neighbours differ by, as in train.", metavar="NAME")
    ] = None,
    out: Annotated[Path | None, _in(RUN, "File to write. Default: FILE.schema.toml in the current folder.")] = None,
) -> None:
    """Write a schema: what the columns of a CSV file are, with ranges and categories, for you to read and confirm.

    A schema is published with the model. Ranges and categories that are read off private rows are a release: the largest
    income in a file belongs to somebody. So there are three ways for columns that you do not declare:

    By default they are read off the rows, marked as such, and refused for training on private rows until you have
    checked them against public knowledge and set confirmed = true. With --header-only no row is looked at.
    With --epsilon they are chosen by noised counts; the schema carries the ledger, and training adds it up.
    """
    _schema(file, label, group or [], unit, column or [], separator, header_only, epsilon, delta, adjacency, out)


def _schema(
    file: Path,
    label: str,
    groups: list[str],
    unit: str | None,
    columns: list[str],
    separator: str | None,
    header_only: bool,
    epsilon: float | None,
    delta: float | None,
    adjacency: str | None,
    out: Path | None,
) -> None:
    from noisewise.data.tables.propose import declared, propose
    from noisewise.data.tables.rows import header

    target = Path(f"{file.stem}.schema.toml") if out is None else out
    if target.exists():
        raise ConfigError(f"{target} exists. Choose another --out, or remove it: a schema is not overwritten.")
    if not target.parent.is_dir():
        raise ConfigError(f"{target.parent} is no folder: --out must lie in one that exists.")
    names, mark = header(file, separator)
    known, of_groups = declared(label, names), [declared(text, names) for text in groups]
    given = [known, *of_groups, *(declared(text, names) for text in columns)]
    for name, kind in given[1 + len(groups) :]:
        if kind is None:
            raise ConfigError(f"--column {name}: say what it is, e.g. --column {name}=0:100 or --column {name}=ignore.")
        if [other for other, _ in given].count(name) > 1:
            raise ConfigError(f"--column {name}: named twice. Say once what it is.")
    with _console(stderr=True).status("reading", spinner="dots"):
        proposal = propose(
            file,
            label=known[0],
            groups=[name for name, _ in of_groups],
            unit=unit,
            columns={name: kind for name, kind in given if kind is not None},
            header_only=header_only,
            epsilon=epsilon,
            delta=delta,
            adjacency=adjacency or "add-remove",
            separator=mark,
        )
        if proposal.schema.origin == "rows":  # it holds what was read off private rows
            target.touch(mode=0o600)
        target.write_text(proposal.to_toml(), "utf-8")
    _print_schema(proposal, target)


def _print_schema(proposal: Proposal, target: Path) -> None:
    from rich.table import Table

    console, found = _console(), proposal.schema
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("column", "becomes", "from"):
        table.add_column(column)
    table.add_row(_plain(found.label), _plain(f"label: {found.target.words()}"), _plain(proposal.remarks[found.label]))
    for name, group in found.groups.items():
        table.add_row(_plain(name), _plain(f"group: {group.words()}"), _plain(proposal.remarks[name]))
    if found.unit is not None:
        table.add_row(_plain(found.unit), "unit: whose row it is", "declared")
    for name, kind in found.columns.items():
        table.add_row(_plain(name), _plain(kind.words()), _plain(proposal.remarks[name]))
    console.print()
    console.print(table)
    console.print()
    for note in proposal.notes:
        console.print(_plain(note))
    console.print(f"\n[bold]Schema:[/] {target}  ({found.width} features)", soft_wrap=True)


@app.command(epilog="Example:  noisewise check models.py:model --example models.py:batch")
def check(
    model: Annotated[str, typer.Argument(metavar="FILE.py:NAME", help="A module, or a function that makes one.")],
    example: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="A batch (x, y), or a function that makes one. Default: NAME batch."),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="loss_fn(model, batch) with one loss per unit. Default: cross entropy if y holds integers, "
            "squared error otherwise.",
        ),
    ] = None,
) -> None:
    """Can this model be trained privately? What keeps the units apart, what does it cost, what to change?

    For each parameter: "proven row by row" (the fast engine: it is shown that no operation mixes units), "each unit alone"
    (slower: there is no such proof, so the model sees one unit at a time) or "refused".
    Runs the files it is given. The batch gives shapes and types only; everything is measured on made-up units.
    Exit code 0: it can; 3: it cannot.
    """
    from noisewise.testing.modelcheck import check_user_files

    found = check_user_files(model, example, loss)
    _print_check(found)
    if not found.trainable:
        raise typer.Exit(3)


def _print_check(found: ModelCheck) -> None:
    from rich.table import Table

    console = _console()
    verdict = "[green]can be trained privately[/]" if found.trainable else "[bold red]cannot be trained privately[/]"
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row("verdict", verdict)
    table.add_row("why", _plain(found.reason))
    for reason, names in found.by_reason().items():
        table.add_row("not faster", _plain(f"{reason}: {', '.join(names)}"))
    if found.frozen:
        table.add_row("frozen", _plain(", ".join(found.frozen)))
    for label, sentence in zip(("time", "memory"), found.cost.sentences() if found.cost else (), strict=False):
        table.add_row(label, sentence)
    for change in found.changes:
        table.add_row("change", _plain(change))
    console.print()
    console.print(table)
    if found.parameters:
        console.print()
        console.print(_by_parameter(found))


def _by_parameter(found: ModelCheck) -> Any:
    from rich.table import Table

    from noisewise.testing.modelcheck import readable_bytes

    colours = {"proven row by row": "green", "each unit alone": "yellow", "refused": "bold red"}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("parameter", "shape", "units are kept apart", "engine"):
        table.add_column(column, overflow="fold")
    table.add_column("held per unit", justify="right")
    for one in found.parameters:
        shape, held = " x ".join(map(str, one.shape)) or "1", readable_bytes(one.held) if one.held else "-"
        isolation = f"[{colours[one.isolation]}]{one.isolation}[/]"
        table.add_row(_plain(one.name), shape, isolation, one.engine or "-", held)
    return table


def _plain(text: str) -> Any:
    """Text whose brackets are no markup."""
    from rich.text import Text

    return Text(text)


def _plan(
    n: int,
    batch_size: int | None,
    epochs: float | None,
    steps: int | None,
    sampler: str,
    adjacency: str | None,
    noise_multiplier: float | None,
) -> Mechanism:
    from noisewise.accounting.defaults import default_adjacency
    from noisewise.mechanism import Mechanism
    from noisewise.sampling import SAMPLERS, FullBatch, steps_for

    if (epochs is None) == (steps is None):
        raise ConfigError("how long? Give --epochs or --steps, one of them.")
    if sampler == FullBatch.kind:
        if batch_size not in (None, n):
            raise ConfigError(f"--batch-size {batch_size} with --sampler full-batch: every step sees all {n} rows.")
        drawn = FullBatch(n)
    elif batch_size is None:
        raise ConfigError("how many rows per step? Give --batch-size, or --sampler full-batch for all of them.")
    else:
        drawn = SAMPLERS[sampler](n, batch_size)
    if steps is None:
        assert epochs is not None
        steps = steps_for(epochs, n, drawn.batch_size)
    return Mechanism(
        sampler=drawn,
        steps=steps,
        noise_multiplier=noise_multiplier,
        adjacency=adjacency or default_adjacency(sampler),
    )


def _delta(given: float | None, n: int) -> float:
    from noisewise.accounting.accountants import check_delta
    from noisewise.accounting.defaults import default_delta, large_delta

    delta = default_delta(n) if given is None else given
    check_delta(delta)
    if concern := large_delta(delta, n):
        _note(concern)
    return delta


def _note(text: str) -> None:
    from rich.text import Text

    _console(stderr=True).print(Text.assemble(("note: ", "yellow"), text), soft_wrap=True)


@contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Warnings of noisewise as readable lines; those of others as ever."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", NoisewiseWarning)
        show = warnings.showwarning

        def shown(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, NoisewiseWarning):
                _note(str(message))
            else:
                show(message, category, *where, **more)

        warnings.showwarning = shown
        yield


def _show_plan(plan: Mechanism, delta: float, as_json: bool, chosen: str | None) -> None:
    spent = plan.spent(delta)
    if as_json:
        facts = {
            "epsilon": spent.epsilon,
            "delta": delta,
            "noise_multiplier": plan.noise_at(0),
            "steps": plan.steps,
            "rate": plan.sampler.rate,
            "accountant": "pld",
            "adjacency": plan.adjacency,
            "sampler": plan.sampler.kind,
            "rdp_epsilon": spent.rdp_epsilon,
            "gdp_epsilon": spent.gdp_epsilon,
            "rdp_reason": spent.rdp_reason,
            "gdp_reason": spent.gdp_reason,
        }
        infinite = {key: str(value) for key, value in facts.items() if isinstance(value, float) and math.isinf(value)}
        typer.echo(json.dumps(facts | infinite, allow_nan=False))
        return
    _print_plan(plan, spent, chosen)


def _print_plan(plan: Mechanism, spent: Spent, chosen: str | None) -> None:
    from rich.table import Table

    from noisewise.wording import GDP, GUARANTEE, RDP, number, promise

    said = promise(spent.epsilon, spent.delta, plan.sampler.n, adjacency=plan.adjacency, unit=plan.unit)
    console = _console()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("accountant")
    table.add_column("epsilon", justify="right")
    table.add_column("")
    table.add_row("[bold]PLD[/]", f"[bold]{number(spent.epsilon)}[/]", GUARANTEE[said.strength])
    table.add_row("RDP", number(spent.rdp_epsilon), spent.rdp_reason or RDP)
    table.add_row("GDP-CLT", number(spent.gdp_epsilon), spent.gdp_reason or GDP)
    sampler = plan.sampler
    forced = (
        f" (the {sampler.kind} sampler is proven for these only)" if sampler.kind == "shuffle" and not chosen else ""
    )
    console.print()
    console.print(table)
    console.print()
    facts = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    facts.add_column(style="dim")
    facts.add_column()
    facts.add_row("delta", f"{spent.delta:g}")
    facts.add_row("noise multiplier", f"{plan.noise_at(0):.6g}")
    facts.add_row("steps", f"{plan.steps:,}")
    facts.add_row("rate", f"{sampler.rate:.6g}   ({sampler.batch_size:,} of {sampler.n:,} rows per step)")
    facts.add_row("sampler", sampler.kind)
    facts.add_row("adjacency", f"{plan.adjacency}{forced}")
    console.print(facts)
    console.print()
    console.print(said.meaning)


def _stored(out: Path) -> Config | None:
    from noisewise.runs.folder import RunFolder
    from noisewise.workflow.config import Config

    path = RunFolder(out).config
    return Config.read(path) if path.exists() else None


def _train(config: Config, out: Path, *, resume: bool, quiet: bool, next_step: bool = True) -> None:
    from noisewise.workflow.config import execute

    console = _console()
    if not quiet:
        budget = "" if config.epsilon is None else f"epsilon at most {config.epsilon:g}, "
        console.print(
            f"[bold]{config.model}[/] on [bold]{config.data}[/]: {config.steps:,} steps of about {config.batch_size:,} "
            f"rows, {budget}delta {config.delta:g}, noise multiplier {config.noise_multiplier:.4g}"
        )
    try:
        with _warnings_as_notes():
            folder = execute(config, out, resume=resume, progress=not quiet)
    except Interrupted as error:
        where = str(error).partition(";")[0].removeprefix("stopped ")
        raise Interrupted(f"{where}; nothing is lost. Go on with: noisewise train --resume --out {out}") from None
    if not quiet:
        _print_run(console, folder, next_step)


def _print_run(console: Console, folder: RunFolder, next_step: bool) -> None:
    from rich.table import Table

    from noisewise.runs.summary import read_summary
    from noisewise.wording import number, promised, reason
    from noisewise.workflow.config import accuracy, open_run

    run = open_run(folder.path)
    summary = read_summary(folder)
    privacy, said = summary["privacy"], promised(summary)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim")
    table.add_column()
    colour = "green" if said.publishable else "bold red"
    why = reason(privacy["status"], said.strength, privacy["reason"])
    table.add_row("status", f"[{colour}]{said.badge}[/]: {why}")
    table.add_row("epsilon", f"[bold]{number(float(privacy['epsilon']))}[/]  (PLD)")
    table.add_row("delta", f"{privacy['delta']:g}")
    table.add_row("strength", f"[{colour}]{said.strength}[/]")
    table.add_row("adjacency", f"{privacy['adjacency']}, unit: one {privacy['unit']}")
    if run.data.valid.public and len(run.data.valid) and run.data.valid.task == "classification":
        twin = "" if run.twin is None else f", twin {100 * accuracy(run.twin, run.data.valid):.1f} %"
        table.add_row("valid accuracy", f"{100 * accuracy(run.model, run.data.valid):.1f} %{twin}")
    table.add_row("model, ledger", f"{folder.path}/  {'may' if said.publishable else 'should not'} be published")
    holds = "the twin; " if run.twin is not None else ""
    table.add_row("secret", f"{folder.sensitive}/  {holds}never publish this folder")
    console.print()
    console.print(table)
    console.print()
    console.print(said.meaning)
    if next_step:
        console.print(f"\n[dim]Next:[/] noisewise audit {folder.path}", soft_wrap=True)


def _list_audits() -> None:
    from rich.table import Table

    from noisewise.audits import AUDITS

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("audit", "usual", "what it asks, and how long it takes"):
        table.add_column(column)
    for name, audit in AUDITS.items():
        table.add_row(name, "yes" if audit.usual else "", _plain(f"{audit.asks} {audit.takes}"))
    _console().print(table)


def _audit(path: Path, only: list[str] | None, *, everything: bool = False, next_step: bool = True) -> None:
    from noisewise.audits import AUDITS
    from noisewise.runs.summary import read_summary
    from noisewise.wording import promised
    from noisewise.workflow import config as configured

    console = _console()
    for name in only or []:
        if name not in AUDITS:
            raise ConfigError(f"--only {name}: unknown audit. Known audits: {', '.join(AUDITS)}.")
    run = configured.open_run(path)
    strength = promised(read_summary(run.folder)).strength
    fitting = [name for name, audit in AUDITS.items() if run.data.test.task == "classification" or not audit.classes]
    for name in dict.fromkeys(only or [name for name in fitting if everything or AUDITS[name].usual]):
        console.print(f"\n[bold]{name}[/] [dim]{AUDITS[name].takes}[/]")
        try:
            _print_result(console, configured.audit(run, name, progress=True), strength, tables=bool(only))
        except (ConfigError, DataError) as error:
            if only:
                raise
            _note(f"{name} cannot be asked of this run: {error}")  # the others can
    if not only:
        console.print("\n[dim]All numbers are in the report; --only NAME prints those of one audit.[/]")
    if run.twin is None:
        remedy = (
            f"finish it with noisewise train --resume --out {path}"
            if run.config.twin
            else "train with --twin to see it"
        )
        console.print(f"This run has no twin, so what privacy cost is not known: {remedy}.", soft_wrap=True)
    if next_step:
        console.print(f"[dim]Next:[/] noisewise report {path} --out report.html", soft_wrap=True)


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
                shown.add_column(_plain(texts[place][0]), justify="right" if place else "left", width=width)
            for row in table.rows:
                shown.add_row(*(_plain(row[place]) for place in group))
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
    found, wanted = _least(texts), [_longest(column) for column in texts]
    for _ in range(width - sum(found) - GAP * len(found)):
        lacks = [wish - has for wish, has in zip(wanted, found, strict=True)]
        if max(lacks) == 0:
            break
        found[lacks.index(max(lacks))] += 1
    return found


def _least(texts: list[list[str]]) -> list[int]:
    """The first column is not broken, the others between words only."""
    return [_longest(texts[0]), *(_longest([w for text in c for w in text.split() or [""]]) for c in texts[1:])]


def _longest(texts: list[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, texts))


def _report(path: Path, out: Path | None) -> None:
    from noisewise.report import write

    console = _console()
    written = write(path, out)
    console.print(f"\n[bold]Report:[/] {written}", soft_wrap=True)
    console.print("[dim]It is internal: it shows the non-private twin. Do not publish it.[/]")
    if written.parent.resolve() == path.resolve():
        console.print("[yellow]note:[/] it lies beside the model and not among the run's secrets; better move it out.")


def _demo_folder(out: Path, config: Config) -> tuple[Path, bool]:
    """The first of DIR, DIR-2, ... that is free, or that holds this demo unfinished (then it is resumed)."""
    from noisewise.runs.folder import RunFolder
    from noisewise.workflow.config import finished

    for number in range(1, 10_000):
        folder = out if number == 1 else out.with_name(f"{out.name}-{number}")
        if not folder.exists() or not any(folder.iterdir()):
            return folder, False
        if RunFolder(folder).config.exists() and _stored(folder) == config and not finished(config, folder):
            return folder, True
    raise RunError(f"{out} and all its numbered neighbours are taken: choose another --out.")


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def main() -> None:
    """Run the command line; errors become one readable paragraph and an exit code."""
    # Threads that wait must not spin: on a busy machine spinning costs many times the work itself.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        app()
    except NoisewiseError as error:
        from rich.text import Text

        console = _console(stderr=True)
        label = ("stopped: ", "bold yellow") if isinstance(error, Interrupted) else ("error: ", "bold red")
        console.print(Text.assemble(label, str(error)), soft_wrap=not console.is_terminal)
        sys.exit(error.exit_code)
    except Exception:
        traceback.print_exc()
        _console(stderr=True).print(
            "[bold red]This is a bug in noisewise, not your mistake:[/] please report the lines above."
        )
        sys.exit(1)
