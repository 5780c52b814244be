"""What the commands share: options with their names, and printing. Nothing heavy is imported, so that `--help` is instant."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

import typer

from noisewise.accounting.accountants import ADJACENCIES, check_delta
from noisewise.accounting.defaults import default_delta, large_delta
from noisewise.errors import NoisewiseWarning
from noisewise.sampling import SAMPLERS

if TYPE_CHECKING:
    from rich.console import Console

    Sampler: TypeAlias = str
    Adjacency: TypeAlias = str
else:
    Sampler, Adjacency = Literal[tuple(SAMPLERS)], Literal[tuple(ADJACENCIES)]

Command = TypeVar("Command", bound=Callable[..., None])
PLAN, RUN, MANY = "Privacy plan", "Run", "Many runs"  # panels of --help


def option(panel: str, help: str, *names: str, **extra: Any) -> Any:
    """An option with its help, in a panel of --help."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **extra)


NEIGHBOURS = (
    "add-remove, zero-out or replace-one: what neighbours differ by. Default: add-remove; for shuffle zero-out."
)
BatchSize = Annotated[int | None, option(PLAN, "Expected rows per step; rate = batch size / n.")]
Epochs = Annotated[float | None, option(PLAN, "Passes over the data: steps = ceil(epochs n / batch size).")]
Steps = Annotated[int | None, option(PLAN, "Steps, instead of epochs.")]
Delta = Annotated[float | None, option(PLAN, "Default: the largest power of ten at most 1/(10 n).")]
Neighbours = Annotated[Adjacency | None, option(PLAN, NEIGHBOURS, metavar="NAME")]


Jobs = Annotated[
    int | None,
    option(MANY, "Runs at a time, also on one GPU. Default: 1; with --ray as many as there is room for.", "--jobs"),
]
RayAddress = Annotated[
    str | None,
    option(MANY, "On a Ray cluster, over a shared file system: auto, HOST:PORT, or local.", "--ray", metavar="ADDRESS"),
]
PerGpu = Annotated[int | None, option(MANY, "With --ray: so many runs share a GPU. Default: 1.", "--per-gpu")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
EXAMPLES: dict[Callable[..., None], str] = {}


def example(line: str) -> Callable[[Command], Command]:
    """Say at the end of a command's help how it is used."""

    def marked(command: Command) -> Command:
        EXAMPLES[command] = line
        return command

    return marked


def terminal(*, stderr: bool = False) -> Console:
    """A terminal without colours of its own."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def plain(text: str) -> Any:
    """Text whose brackets are no markup."""
    from rich.text import Text

    return Text(text)


def note(text: str) -> None:
    """A line on the terminal that is no result."""
    from rich.text import Text

    terminal(stderr=True).print(Text.assemble(("note: ", "yellow"), text), soft_wrap=True)


def checked_delta(given: float | None, n: int) -> float:
    """The delta that was asked for, or the customary one; one of 1/n or more is noted."""
    delta = default_delta(n) if given is None else given
    check_delta(delta)
    if concern := large_delta(delta, n):
        note(concern)
    return delta


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Warnings of noisewise as readable lines; those of others as ever."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", NoisewiseWarning)
        show = warnings.showwarning

        def shown(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, NoisewiseWarning):
                note(str(message))
            else:
                show(message, category, *where, **more)

        warnings.showwarning = shown
        yield
