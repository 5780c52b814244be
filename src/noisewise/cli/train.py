"""`noisewise train` and `noisewise demo`: from settings to a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args

import typer

from noisewise import runtime
from noisewise.cli.audit import ask
from noisewise.cli.report import write_page
from noisewise.cli.shared import (
    PLAN,
    RUN,
    BatchSize,
    Delta,
    Epochs,
    Neighbours,
    Sampler,
    Steps,
    example,
    option,
    terminal,
    warnings_as_notes,
)
from noisewise.errors import Interrupted, RunError
from noisewise.workflow.choices import CLIPS, OPTIMIZERS, WITH_MOMENTUM

if TYPE_CHECKING:
    from rich.console import Console

    from noisewise.workflow.config import Config
    from noisewise.workflow.opened import Run
    from noisewise.workflow.plan import Planned

    Clip: TypeAlias = str
    Optimizer: TypeAlias = str
    Engine: TypeAlias = str
else:
    Clip, Optimizer, Engine = Literal[tuple(CLIPS)], Literal[tuple(OPTIMIZERS)], Literal[get_args(runtime.Engine)]

TRAINING, TWIN = "Training", "Twin"  # panels of --help
HOW = ("out", "config", "resume", "quiet", "epochs")  # options of `train` that are no settings of the run
DATA = (
    "digits", "mnist", "fashion_mnist", "cifar10", "adult", "german_credit", "compas", "california_housing", "wine_quality",
    "two_patch", "signal_noise",
)  # fmt: skip
_ADAPT = [name for name, rule in CLIPS.items() if hasattr(rule, "query")]
_FIXED = [name for name in CLIPS if name not in _ADAPT]
_FIRST, *_OTHERS, _LAST = OPTIMIZERS


@example("noisewise train --data digits --model cnn --epsilon 3 --out runs/digits")
def train(
    context: typer.Context,
    out: Annotated[Path, option(RUN, "Run folder to write.")],
    data: Annotated[str | None, option(RUN, f"Data set: {', '.join(DATA)}. Default: digits.")] = None,
    model: Annotated[
        str | None, option(RUN, "Model: cnn, lenet, mlp, logistic, ... Default: one that fits the data.")
    ] = None,
    config: Annotated[Path | None, option(RUN, "config.toml of a run: the same plan again, with fresh noise.")] = None,
    resume: Annotated[bool, option(RUN, "Go on with the run in --out; its settings are kept.", "--resume")] = False,
    quiet: Annotated[bool, option(RUN, "No progress bar, no summary.", "--quiet")] = False,
    valid: Annotated[int | None, option(RUN, "Rows held out for choosing settings.")] = None,
    seed: Annotated[int | None, option(RUN, "Initial weights and splits, public. Noise is always fresh.")] = None,
    insecure_seed: Annotated[int | None, option(RUN, "Reproducible noise, for tests: the run is not private.")] = None,
    epsilon: Annotated[float | None, option(PLAN, "Budget; the noise follows.")] = None,
    noise_multiplier: Annotated[float | None, option(PLAN, "Noise, instead of a budget.")] = None,
    delta: Delta = None,
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    steps: Steps = None,
    sampler: Annotated[
        Sampler | None, option(PLAN, "poisson (default), full-batch or shuffle.", metavar="NAME")
    ] = None,
    adjacency: Neighbours = None,
    clip: Annotated[
        Clip | None,
        option(
            TRAINING,
            f"{_FIXED[0]} (default), {', '.join(_FIXED[1:])}, or with a bound that adapts at a small cost: "
            f"{', '.join(_ADAPT)}.",
            metavar="RULE",
        ),
    ] = None,
    bound: Annotated[float | None, option(TRAINING, "What one row may contribute at most, C.")] = None,
    screen: Annotated[float | None, option(TRAINING, "Z of global clipping: longer gradients are left out.")] = None,
    optimizer: Annotated[
        Optimizer | None, option(TRAINING, f"{_FIRST} (default), {', '.join(_OTHERS)} or {_LAST}.", metavar="NAME")
    ] = None,
    lr: Annotated[float | None, option(TRAINING, "Learning rate.")] = None,
    momentum: Annotated[float | None, option(TRAINING, f"For {' and '.join(WITH_MOMENTUM)}. Default: 0.9.")] = None,
    ema: Annotated[
        float | None, option(TRAINING, "Decay of a moving average of the weights; costs no privacy.")
    ] = None,
    engine: Annotated[
        Engine | None, option(TRAINING, "Gradients per row: auto (default), ghost, dense or loop.", metavar="NAME")
    ] = None,
    microbatch: Annotated[int | None, option(TRAINING, "Rows in memory at once; does not change the result.")] = None,
    twin: Annotated[
        bool | None,
        option(TWIN, "Also train without privacy, to compare with; kept secret. Default: yes.", "--twin/--no-twin"),
    ] = None,
    twin_lr: Annotated[float | None, option(TWIN, "The twin's learning rate.")] = None,
) -> None:
    """Train a model with differential privacy, and its non-private twin, into a run folder.

    Settings that are not given come from the data set's defaults; config.toml in the run folder lists them all.
    """
    from noisewise.workflow.config import Config, plan

    given = {name: value for name, value in context.params.items() if name not in HOW}
    base = None if config is None else Config.read(config)
    stored = _stored(out) if resume else None
    if resume and stored is None and base is None and epsilon is None and noise_multiplier is None:
        raise RunError(f"{out} holds no run to go on with. Start one, e.g. with --data digits --epsilon 3.")
    with terminal(stderr=True).status("planning", spinner="dots"):
        wanted = plan(base or stored, epochs=epochs, **given)
    _train(wanted, out, resume=resume, quiet=quiet)


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
    _train(planned, folder, resume=resume, quiet=False, next_step=False)
    ask(folder, None, next_step=False, planned=planned)
    write_page(folder, None)


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
    from noisewise.workflow.config import Config

    path = RunFolder(out).config
    return Config.read(path) if path.exists() else None


def _train(planned: Planned, out: Path, *, resume: bool, quiet: bool, next_step: bool = True) -> None:
    from noisewise.workflow.execution import execute
    from noisewise.workflow.opened import open_run

    config, console = planned.config, terminal()
    if not quiet:
        budget = "" if config.epsilon is None else f"epsilon at most {config.epsilon:g}, "
        console.print(
            f"[bold]{config.model}[/] on [bold]{config.data}[/]: {config.steps:,} steps of about {config.batch_size:,} "
            f"rows, {budget}delta {config.delta:g}, noise multiplier {config.noise_multiplier:.4g}"
        )
    try:
        with warnings_as_notes():
            folder = execute(planned, out, resume=resume, progress=not quiet)
    except Interrupted as error:
        where = str(error).partition(";")[0].removeprefix("stopped ")
        raise Interrupted(f"{where}; nothing is lost. Go on with: noisewise train --resume --out {out}") from None
    if not quiet:
        _print_run(console, open_run(folder.path, planned), next_step)


def _print_run(console: Console, run: Run, next_step: bool) -> None:
    from rich.table import Table

    from noisewise.runs.summary import read_summary
    from noisewise.wording import number, promised, reason
    from noisewise.workflow.opened import accuracy

    folder, summary = run.folder, read_summary(run.folder)
    privacy, promise = summary["privacy"], promised(summary)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim")
    table.add_column()
    colour = "green" if promise.publishable else "bold red"
    why = reason(privacy["status"], promise.strength, privacy["reason"])
    table.add_row("status", f"[{colour}]{promise.badge}[/]: {why}")
    table.add_row("epsilon", f"[bold]{number(float(privacy['epsilon']))}[/]  (PLD)")
    table.add_row("delta", f"{privacy['delta']:g}")
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
    console.print()
    console.print(promise.meaning)
    if next_step:
        console.print(f"\n[dim]Next:[/] noisewise audit {folder.path}", soft_wrap=True)
