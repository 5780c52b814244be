"""`noisewise schema`: what the columns of a CSV file are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisewise.cli.shared import RUN, Adjacency, example, option, plain, terminal
from noisewise.errors import ConfigError

if TYPE_CHECKING:
    from noisewise.data.tables.propose import Proposal

COLUMNS, OTHERS = "Columns", "Columns that are not declared"  # panels of --help


@example("noisewise schema people.csv --label income --group sex --column age=0:120 --out people.toml")
def schema(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="Its first line names the columns.")],
    label: Annotated[str, option(COLUMNS, "Column to predict; NAME, NAME=A,B (classes) or NAME=LOW:HIGH (a number).")],
    group: Annotated[
        list[str] | None,
        option(COLUMNS, "Column that audits split people by; NAME or NAME=A,B,C; may be repeated. Not a feature."),
    ] = None,
    unit: Annotated[str | None, option(COLUMNS, "Column that says whose row it is, if people have several.")] = None,
    column: Annotated[
        list[str] | None,
        option(
            COLUMNS,
            "What you know of a column; may be repeated. NAME=LOW:HIGH, NAME=LOW:HIGH:log (a number, log scale), "
            "NAME=number (range unknown), NAME=A,B,C (categories), NAME=text or NAME=hash:64 (hashed), NAME=ignore.",
            metavar="NAME=WHAT",
        ),
    ] = None,
    separator: Annotated[
        str | None, option(COLUMNS, "Between fields. Default: the one that fits the first line.")
    ] = None,
    header_only: Annotated[
        bool, option(OTHERS, "Look at no row; undeclared columns are hashed.", "--header-only")
    ] = False,
    epsilon: Annotated[float | None, option(OTHERS, "Choose with noise, for so much of the privacy budget.")] = None,
    delta: Annotated[
        float | None, option(OTHERS, "With --epsilon. Default: the largest power of ten at most 1/(10 n).")
    ] = None,
    adjacency: Annotated[
        Adjacency | None, option(OTHERS, "With --epsilon: what neighbours differ by, as in train.", metavar="NAME")
    ] = None,
    out: Annotated[Path | None, option(RUN, "File to write. Default: FILE.schema.toml in the current folder.")] = None,
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
    target = Path(f"{file.stem}.schema.toml") if out is None else out
    if target.exists():
        raise ConfigError(f"{target} exists. Choose another --out, or remove it: a schema is not overwritten.")
    if not target.parent.is_dir():
        raise ConfigError(f"{target.parent} is no folder: --out must lie in one that exists.")
    proposal = proposal_of(
        file, label, groups, unit, columns, separator=separator, header_only=header_only, epsilon=epsilon, delta=delta,
        adjacency=adjacency or "add-remove",
    )  # fmt: skip
    if proposal.schema.origin == "rows":  # it holds what was read off private rows
        target.touch(mode=0o600)
    target.write_text(proposal.to_toml(), "utf-8")
    print_schema(proposal)
    terminal().print(f"\n[bold]Schema:[/] {target}  ({proposal.schema.width} features)", soft_wrap=True)


def proposal_of(
    file: Path,
    label: str,
    groups: list[str],
    unit: str | None,
    columns: list[str],
    *,
    separator: str | None = None,
    **how: Any,
) -> Proposal:
    """A schema from what is written on the command line; `how` as in `propose`."""
    from noisewise.data.tables.propose import declared, propose
    from noisewise.data.tables.rows import header

    names, mark = header(file, separator)
    known, of_groups = declared(label, names), [declared(text, names) for text in groups]
    given = [known, *of_groups, *(declared(text, names) for text in columns)]
    for name, kind in given[1 + len(groups) :]:
        if kind is None:
            raise ConfigError(f"--column {name}: say what it is, e.g. --column {name}=0:100 or --column {name}=ignore.")
        if [other for other, _ in given].count(name) > 1:
            raise ConfigError(f"--column {name}: named twice. Say once what it is.")
    with terminal(stderr=True).status("reading", spinner="dots"):
        return propose(
            file,
            label=known[0],
            groups=[name for name, _ in of_groups],
            unit=unit,
            columns={name: kind for name, kind in given if kind is not None},
            separator=mark,
            **how,
        )


def print_schema(proposal: Proposal) -> None:
    """What each column becomes, and from where that is known."""
    from rich.table import Table

    console, schema = terminal(), proposal.schema
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("column", "becomes", "from"):
        table.add_column(column)
    table.add_row(plain(schema.label), plain(f"label: {schema.target.words()}"), plain(proposal.remarks[schema.label]))
    for name, group in schema.groups.items():
        table.add_row(plain(name), plain(f"group: {group.words()}"), plain(proposal.remarks[name]))
    if schema.unit is not None:
        table.add_row(plain(schema.unit), "unit: whose row it is", "declared")
    for name, kind in schema.columns.items():
        table.add_row(plain(name), plain(kind.words()), plain(proposal.remarks[name]))
    console.print()
    console.print(table)
    console.print()
    for note in proposal.notes:
        console.print(plain(note))
