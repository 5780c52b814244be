"""From a CSV file to its schema within `noisewise train`: read, declared, confirmed by its user, or chosen with noise."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import typer

from noisewise.cli.shared import plain, terminal
from noisewise.cli.tables import print_schema, proposal_of
from noisewise.data.catalog import CATALOG
from noisewise.data.tables.ways import TRAIN
from noisewise.errors import ConfigError

if TYPE_CHECKING:
    from noisewise.data.tables.propose import Proposal
    from noisewise.data.tables.schema import Schema

SHARE = 0.1  # of epsilon, for choosing a schema with noise where nothing else is said


@dataclass(frozen=True)
class Asked:
    """What the user says of a table on the command line."""

    label: str | None = None
    groups: tuple[str, ...] = ()
    unit: str | None = None
    columns: tuple[str, ...] = ()
    schema: Path | None = None
    schema_epsilon: float | None = None
    yes: bool = False
    public: bool = False

    @property
    def about_columns(self) -> bool:
        """Is something said of columns?"""
        return bool(self.label or self.groups or self.unit or self.columns or self.schema or self.schema_epsilon)


def share_or_file(text: str | None) -> float | str | None:
    """What `--test` says: a share, or the file with the test rows."""
    if text is None:
        return None
    try:
        share = float(text)
    except ValueError:
        if not Path(text).is_file():
            raise ConfigError(f"--test {text}: neither a share like 0.2 nor a file.") from None
        return text
    if not 0 < share < 1:
        raise ConfigError(f"--test {text}: a share must be above 0 and below 1, e.g. 0.2.")
    return share


def is_table(data: str | None) -> bool:
    """Is this the path of a file, not the name of a data set or a folder?"""
    return data is not None and data not in CATALOG and not Path(data).is_dir()


def check_input(data: str | None, asked: Asked, *, resume: bool, config: Path | None) -> None:
    """What can be said to be wrong before anything is loaded."""
    if config is not None and not config.is_file():
        raise ConfigError(f"{config} does not exist: `noisewise train` writes a config.toml into every run folder.")
    if not is_table(data):
        if asked.about_columns and not resume and config is None:
            raise ConfigError(
                f"--label, --group, --unit, --column and --schema are for a table: --data {data or 'digits'} has its own. "
                "Leave them out, or name a file: --data FILE.csv."
            )
        return
    path = Path(str(data))
    if not path.is_file():
        raise ConfigError(
            f"--data {data}: neither a file nor a folder nor a known data set ({', '.join(CATALOG)}). Check the path."
        )
    if asked.schema is not None and not asked.schema.is_file():
        raise ConfigError(
            f"--schema {asked.schema}: does not exist. `noisewise schema {path.name} --label NAME` writes one."
        )
    if asked.schema is None and not resume and config is None:
        _check_columns(path, asked)


def _check_columns(path: Path, asked: Asked) -> None:
    from noisewise.data.tables.header import look
    from noisewise.data.tables.rows import listed

    names = look(path, None, None).names
    if asked.label is None:
        raise ConfigError(f"which column shall be predicted? Give --label NAME. {path.name} has {listed(names)}.")
    for option, texts in (
        ("--label", [asked.label]), ("--group", asked.groups), ("--unit", [asked.unit] if asked.unit else []),
        ("--column", asked.columns),
    ):  # fmt: skip
        for text in texts:
            if text not in names and not any(text.startswith(f"{name}=") for name in names):
                raise ConfigError(f"{option} {text}: no such column. {path.name} has {listed(names)}.")


def schema_for(
    data: str | None,
    asked: Asked,
    epsilon: float | None,
    adjacency: str,
    beside: Path | None,
    *,
    out: Path | None = None,
    quiet: bool = False,
) -> Schema | None:
    """The schema of a table: given, that of the run `beside`, or proposed and agreed to; None where data has its own.

    A choice with noise is shown unless `quiet`; `out` is the run folder in which it will be kept.
    """
    from noisewise.data.tables import schema as schemas

    if asked.schema is not None:
        return _as_asked(schemas.read(asked.schema), asked)
    if beside is not None and (beside / "schema.json").exists():
        return schemas.read(beside / "schema.json")
    if not is_table(data):
        return None
    file = Path(str(data))
    unread = (
        asked.yes or asked.schema_epsilon is not None
    ) and not asked.public  # rows are looked at through noise only
    proposal = proposal_of(file, str(asked.label), asked.groups, asked.unit, asked.columns, header_only=unread)
    if asked.public or set(proposal.remarks.values()) <= {"declared"}:
        return proposal.schema
    if not unread:
        print_schema(proposal, proposal.odd)
        if _agreed(file, asked, epsilon, proposal):
            return replace(proposal.schema, confirmed=True)
    noised = _noised(file, asked, epsilon, adjacency, quiet=quiet)
    if not quiet:
        print_schema(noised, (*noised.notes, *noised.odd, _better(noised, out)))
    return noised.schema


def _as_asked(schema: Schema, asked: Asked) -> Schema:
    """The schema, if it says what the options say."""
    from noisewise.data.tables.rows import listed

    said = {"--label": (asked.label, schema.label), "--unit": (asked.unit, schema.unit)}
    for name, (wanted, known) in said.items():
        if wanted is not None and wanted.partition("=")[0] != known:
            raise ConfigError(f"{name} {wanted}: the schema says {known!r}. Leave it out, or use another schema.")
    if unknown := [name for name in asked.groups if name.partition("=")[0] not in schema.groups]:
        raise ConfigError(f"--group {unknown[0]}: the schema's groups are {listed(schema.groups) or 'none'}.")
    if asked.columns:
        raise ConfigError("--column and --schema: what columns are is said in the schema. Edit it there.")
    return schema


def _noised(file: Path, asked: Asked, epsilon: float | None, adjacency: str, *, quiet: bool) -> Proposal:
    if asked.schema_epsilon is None and epsilon is None:
        raise ConfigError(
            "--yes without --epsilon: say for how much columns may be looked at, e.g. --schema-epsilon 0.3."
        )
    part = asked.schema_epsilon if asked.schema_epsilon is not None else SHARE * float(epsilon or 0)
    if epsilon is not None and part >= epsilon:
        raise ConfigError(f"--schema-epsilon {part:g} of --epsilon {epsilon:g}: nothing would be left for training.")
    if not quiet:
        terminal().print(f"[dim]Choosing the schema with noise, for epsilon {part:g} of the budget.[/]")
    return proposal_of(
        file, str(asked.label), asked.groups, asked.unit, asked.columns, epsilon=part, adjacency=adjacency, ways=TRAIN
    )


def _better(noised: Proposal, out: Path | None) -> str:
    """How a column is said better than noise could, and where the choice is kept."""
    date = quote(f"{next(iter(noised.open_texts), 'NAME')}=date:2010-01-01:2025-12-31")
    kept = (
        "" if out is None else f" The choice is kept in {out / 'schema.json'}, which --schema takes for further runs."
    )
    return (
        "Noise tells numbers from texts, and no more. If you know a column better, declare it before noise is spent on it "
        "(another run spends anew): --column NAME=A,B,C, NAME=LOW:HIGH, or, where dates were taken as text, "
        f"--column {date}.{kept}"
    )


def _before_noise(proposal: Proposal, asked: Asked, epsilon: float | None) -> str | None:
    """What must be said before the rest can be chosen with noise; None: nothing."""
    unsaid = [
        f"{'--label' if name == proposal.schema.label else '--group'} {quote(f'{name}={what}')}"
        for name, what in proposal.open_roles.items()
    ]
    budget = ["--schema-epsilon 0.3"] if epsilon is None and asked.schema_epsilon is None else []
    return " ".join([*unsaid, *budget]) or None


def _agreed(file: Path, asked: Asked, epsilon: float | None, proposal: Proposal) -> bool:
    """Is what was read off the rows public knowledge, or else to be chosen with noise? A script is not asked, and stops."""
    lacking = _before_noise(proposal, asked, epsilon)
    first = "" if lacking is None else f" (with {lacking}, which noise does not choose)"
    ways = (
        "declare columns (--column age=0:120), make a schema file (noisewise schema) and confirm it there, give --yes to have "
        f"the rest chosen with noise{first}, or --public if the rows are published"
    )
    if not sys.stdin.isatty():
        raise ConfigError(
            f"the ranges and categories above were read off the rows of {file.name}, and a schema is published with the model. "
            f"Nobody is here to confirm them: {ways}."
        )
    console = terminal()
    console.print(
        '\nWhat is marked "from the data" was read off the rows, and a schema is published with the model. Is all of it '
        "public knowledge, so that you would have written it without these rows?"
    )
    no = "n: no, choose it with noise   "
    if lacking is not None:
        console.print(plain(f"If not, noise can choose the rest, once you have said what it cannot choose: {lacking}."))
        no = ""
    answer = typer.prompt(f"y: yes, it is public   {no}q: stop, change something", default="q").strip().lower()
    if answer in ("y", "yes"):
        return True
    if answer in ("n", "noise") and lacking is None:
        return False
    raise ConfigError(f"stopped, nothing was trained. Other ways: {ways}.")
