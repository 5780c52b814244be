"""The command line: all commands in the order of `--help`, and how errors end."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer

from noisewise import __version__, userfiles
from noisewise.cli.account import calibrate, epsilon
from noisewise.cli.audit import audit
from noisewise.cli.budget import budget
from noisewise.cli.check import check
from noisewise.cli.compare import compare
from noisewise.cli.forecast import plan
from noisewise.cli.lists import audits, clips, datasets, models, recipes, repairs
from noisewise.cli.predict import predict
from noisewise.cli.pretrain import pretrain
from noisewise.cli.processes import give_way, is_silent
from noisewise.cli.report import report
from noisewise.cli.reproduce import reproduce
from noisewise.cli.shared import EXAMPLES, plain, terminal
from noisewise.cli.suggest import suggest
from noisewise.cli.sweep import sweep
from noisewise.cli.tables import schema
from noisewise.cli.temperature import temperature
from noisewise.cli.train import demo, train
from noisewise.cli.verify import verify
from noisewise.errors import ConfigError, Interrupted, NoisewiseError, RunError, full_memory, memory_ran_out

COMMANDS = (
    train, audit, suggest, report, compare, budget, sweep, verify, predict, temperature, demo, schema, check, plan, epsilon,
    calibrate, pretrain, reproduce, datasets, models, recipes, repairs, audits, clips,
)  # fmt: skip
CLOSED_PIPE = 141  # what a shell says of a program that ended by SIGPIPE
app = typer.Typer(
    name="noisewise",
    help="Train PyTorch models with differential privacy, see what privacy costs and whom.\n\n"
    "Start with [bold]noisewise demo[/]: it trains, audits and reports on bundled data in a minute.",
    epilog="[dim]Exit codes: 0 done, 2 a mistake in the input, 3 refused because privacy would break, "
    "130 interrupted (go on with --resume), 1 a bug.[/]",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=True,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for command in COMMANDS:
    app.command(epilog=f"Example:  {EXAMPLES[command]}")(command)


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


def main() -> None:
    """Run the command line; errors become one readable paragraph and an exit code."""
    # Threads that wait must not spin: on a busy machine spinning costs many times the work itself.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        app()
    except NoisewiseError as error:
        if is_silent(error):
            give_way()
            sys.exit(error.exit_code)
        from rich.text import Text

        console = terminal(stderr=True)
        label = ("stopped: ", "bold yellow") if isinstance(error, Interrupted) else ("error: ", "bold red")
        console.print(Text.assemble(label, str(error)), soft_wrap=not console.is_terminal)
        sys.exit(error.exit_code)
    except SystemExit as end:
        if isinstance(
            end.__context__, BrokenPipeError
        ):  # whoever read the output has left: click says 1, which is a bug here
            sys.exit(CLOSED_PIPE)
        raise
    except Exception as error:
        if memory_ran_out(error):
            terminal(stderr=True).print(f"[bold red]error:[/] {plain(full_memory(error))}", soft_wrap=True)
            sys.exit(RunError.exit_code)
        traceback.print_exc()
        if where := userfiles.last_line(error):
            terminal(stderr=True).print(
                f"[bold red]error:[/] {plain(where)} failed with {type(error).__name__}: {plain(str(error))}. "
                "Correct it there.",
                soft_wrap=True,
            )
            sys.exit(ConfigError.exit_code)
        terminal(stderr=True).print(
            "[bold red]This is a bug in noisewise, not your mistake:[/] please report the lines above."
        )
        sys.exit(1)
