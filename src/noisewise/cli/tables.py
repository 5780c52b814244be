"""`noisewise schema`: what the columns of a table are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisewise.cli.shared import RUN, Adjacency, example, note, option, plain, terminal
from noisewise.data.tables.ways import SCHEMA
from noisewise.errors import ConfigError

if TYPE_CHECKING:
    from noisewise.data.tables.kinds import Kind
    from noisewise.data.tables.propose import Proposal
    from noisewise.data.tables.schema import Schema

KNOWLEDGE = " from public knowledge"  # said in the notes once
COLUMNS, OTHERS = "Columns", "Columns that are not declared"  # panels of --help


@example("noisewise schema people.csv --label income --group sex --column age=0:120 --out people.toml")
def schema(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, whose first line names the columns, or Parquet.")],
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
            "What you know of a column; may be repeated. NAME=LOW:HIGH (a number), NAME=LOW:HIGH:log (on a log scale), "
            "NAME=LOW:HIGH:gaps (a column more for what is missing or unreadable), NAME=number (range unknown), "
            "NAME=A,B,C (categories; values with commas in double quotes, as in CSV: 'city=\"Paris, France\",Lyon'; so too in "
            "--label and --group), NAME=text or NAME=hash:64 (hashed), NAME=words (free text), "
            "NAME=date:2010-01-01:2025-12-31, NAME=date:FIRST:LAST:%d.%m.%Y, NAME=boolean, NAME=ignore.",
            metavar="NAME=WHAT",
        ),
    ] = None,
    separator: Annotated[
        str | None, option(COLUMNS, "Between fields. Default: the one that fits the first lines.")
    ] = None,
    encoding: Annotated[
        str | None,
        option(COLUMNS, "utf-8, utf-16, windows-1252, latin-1. Default: the first that fits.", metavar="NAME"),
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
    as_json: Annotated[
        bool, option(RUN, "Print the schema as JSON; a file is written only with --out.", "--json")
    ] = False,
) -> None:
    """Write a schema: what the columns of a CSV or Parquet file are, with ranges and categories, for you to read and confirm.

    A schema is published with the model. Ranges and categories that are read off private rows are a release: the largest
    income in a file belongs to somebody. So there are three ways for columns that you do not declare:

    By default they are read off the rows, marked as such, and refused for training on private rows until you have
    checked them against public knowledge and set confirmed = true. With --header-only no row is looked at.
    With --epsilon they are chosen by noised counts; the schema carries the ledger, and training adds it up.
    """
    target = None if as_json and out is None else out or Path(f"{file.stem}.schema.toml")
    _check_target(target)
    proposal = proposal_of(
        file, label, group or (), unit, column or (), separator=separator, encoding=encoding, header_only=header_only,
        epsilon=epsilon, delta=delta, adjacency=adjacency or "add-remove", ways=SCHEMA,
    )  # fmt: skip
    if target is not None:
        if proposal.schema.origin == "rows":  # it holds what was read off private rows
            target.touch(mode=0o600)
        text = proposal.to_toml() if target.suffix != ".json" else _as_json(proposal.schema)
        target.write_text(text, "utf-8")
    if as_json:
        for sentence in (*proposal.notes, *proposal.odd):
            note(sentence)
        typer.echo(_as_json(proposal.schema), nl=False)
    elif target is not None:
        print_schema(proposal, (*proposal.notes, *proposal.odd))
        width = f"{proposal.schema.width:,} feature{'' if proposal.schema.width == 1 else 's'}"
        terminal().print(f"\n[bold]Schema:[/] {target}  ({width})", soft_wrap=True)


def proposal_of(
    file: Path,
    label: str,
    groups: Sequence[str],
    unit: str | None,
    columns: Sequence[str],
    *,
    separator: str | None = None,
    encoding: str | None = None,
    header_only: bool = False,
    epsilon: float | None = None,
    **how: Any,
) -> Proposal:
    """A schema from what is written on the command line; wrong names are said before rows are read."""
    from noisewise.data.tables.header import LINES, look
    from noisewise.data.tables.rows import listed

    seen = look(file, separator, encoding, below=LINES if not header_only and epsilon is None else 0)
    of_label, of_groups = _said("--label", label, seen.names), [_said("--group", text, seen.names) for text in groups]
    given = [of_label, *of_groups, *(_said("--column", text, seen.names) for text in columns)]
    for name, kind in given[1 + len(of_groups) :]:
        if kind is None:
            raise ConfigError(f"--column {name}: say what it is, e.g. --column {name}=0:100 or --column {name}=ignore.")
        if [other for other, _ in given].count(name) > 1:
            raise ConfigError(f"--column {name}: named twice. Say once what it is.")
    if unit is not None and unit not in seen.names:
        raise ConfigError(f"--unit {unit}: no such column. The header has {listed(seen.names)}.")
    with terminal(stderr=True).status("reading", spinner="dots"):
        from noisewise.data.tables.propose import propose

        return propose(
            file,
            label=of_label[0],
            groups=[name for name, _ in of_groups],
            unit=unit,
            columns={name: kind for name, kind in given if kind is not None},
            header_only=header_only,
            epsilon=epsilon,
            separator=seen.separator,
            encoding=encoding,
            **how,
        )


def _said(option: str, text: str, names: Sequence[str]) -> tuple[str, Kind | None]:
    """What an option says of a column; an error names the option."""
    from noisewise.data.tables.declare import declared

    try:
        return declared(text, names)
    except ConfigError as error:
        raise ConfigError(f"{option} {error}") from None


def _check_target(target: Path | None) -> None:
    if target is None:
        return
    if target.exists():
        raise ConfigError(f"{target} exists. Choose another --out, or remove it: a schema is not overwritten.")
    if not target.parent.is_dir():
        raise ConfigError(f"{target.parent} is no folder: --out must lie in one that exists.")


def _as_json(schema: Schema) -> str:
    return json.dumps(schema.to_dict(), indent=2, ensure_ascii=False) + "\n"


def print_schema(proposal: Proposal, sentences: Sequence[str]) -> None:
    """What each column becomes, from where that is known, and further sentences."""
    from rich.table import Table

    console, schema = terminal(), proposal.schema
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("column", "becomes", "from"):
        table.add_column(column, overflow="fold")

    def add(name: str, words: str) -> None:
        table.add_row(plain(name), plain(words), plain(proposal.remarks.get(name, "declared").removesuffix(KNOWLEDGE)))

    add(schema.label, f"label: {schema.target.words()}")
    for name, group in schema.groups.items():
        add(name, f"group: {group.words()}")
    if schema.unit is not None:
        add(schema.unit, "unit: whose row it is")
    for name, kind in schema.columns.items():
        add(name, kind.words())
    console.print()
    console.print(table)
    for sentence in sentences:
        console.print()
        console.print(plain(sentence))
