"""`noisewise check`: can a model be trained privately?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisewise import userfiles
from noisewise.cli.shared import Json, example, plain, terminal
from noisewise.errors import ConfigError

if TYPE_CHECKING:
    from noisewise.testing.modelcheck import ModelCheck


@example("noisewise check models.py:make --shape 3,32,32 --outputs 10")
def check(
    model: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME", help="A module, or a function that makes one, of nothing or of (shape, outputs)."
        ),
    ],
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
    shape: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help="Of one input, e.g. 64 or 3,32,32: blank units in place of a batch."),
    ] = None,
    outputs: Annotated[
        int | None, typer.Option(min=1, help="Number of classes, or 1 for a regression; with a function of both.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Can this model be trained privately? What keeps the units apart, what does it cost, what to change?

    For each parameter: "proven row by row" (the fast engine: it is shown that no operation mixes units), "each unit alone"
    (slower: there is no such proof, so the model sees one unit at a time) or "refused".
    Runs the files it is given. The batch gives shapes and types only; everything is measured on made-up units.
    Exit code 0: it can; 3: it cannot.
    """
    for reference in (model, example, loss):
        if reference is not None:
            userfiles.load(reference)
    userfiles.model_maker(model)
    sizes = None if shape is None else _sizes(shape)
    from noisewise.testing.modelcheck import check_user_files

    checked = check_user_files(model, example, loss, shape=sizes, outputs=outputs)
    if as_json:
        print(json.dumps({**asdict(checked), "sentences": checked.sentences}, indent=2))
    else:
        _print_check(checked)
    if not checked.trainable:
        raise typer.Exit(3)


def _sizes(text: str) -> tuple[int, ...]:
    sizes = [part.strip() for part in text.split(",")]
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise ConfigError(
            f"--shape {text!r}: must be the sizes of one input, whole numbers above 0, e.g. 64 or 3,32,32."
        )
    return tuple(map(int, sizes))


def _print_check(checked: ModelCheck) -> None:
    from rich.table import Table

    console = terminal()
    verdict = "[green]can be trained privately[/]" if checked.trainable else "[bold red]cannot be trained privately[/]"
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row("verdict", verdict)
    table.add_row("why", plain(checked.reason))
    for reason, names in checked.by_reason().items():
        table.add_row("not faster", plain(f"{reason}: {', '.join(names)}"))
    if checked.frozen:
        table.add_row("frozen", plain(", ".join(checked.frozen)))
    for label, sentence in zip(("time", "memory"), checked.cost.sentences() if checked.cost else (), strict=False):
        table.add_row(label, sentence)
    for change in checked.changes:
        table.add_row("change", plain(change))
    console.print()
    console.print(table)
    if checked.parameters:
        console.print()
        console.print(_by_parameter(checked))


def _by_parameter(checked: ModelCheck) -> Any:
    from rich.table import Table

    from noisewise.testing.modelcheck import readable_bytes

    colours = {"proven row by row": "green", "each unit alone": "yellow", "refused": "bold red"}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("parameter", "shape", "units are kept apart", "engine"):
        table.add_column(column, overflow="fold")
    table.add_column("held per unit", justify="right")
    for one in checked.parameters:
        shape, held = " x ".join(map(str, one.shape)) or "1", readable_bytes(one.held) if one.held else "-"
        isolation = f"[{colours[one.isolation]}]{one.isolation}[/]"
        table.add_row(plain(one.name), shape, isolation, one.engine or "-", held)
    return table
