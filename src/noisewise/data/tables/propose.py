"""Proposals for a schema: from public defaults, from the rows for the user to confirm, or released with noise."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from noisewise.accounting import Ledger
from noisewise.data.tables.declare import declared
from noisewise.data.tables.guess import ToConfirm, guessed, oddities, remark, to_confirm
from noisewise.data.tables.header import LINES, look
from noisewise.data.tables.kinds import (
    BUCKETS,
    WIDE,
    Category,
    Classes,
    Feature,
    Hashed,
    Ignore,
    Kind,
    Number,
    Target,
    centred,
)
from noisewise.data.tables.rows import CHUNK, UTF8, listed, parts_of, short
from noisewise.data.tables.schema import MISSING, Schema
from noisewise.data.tables.survey import survey
from noisewise.data.tables.ways import PROPOSE, Ways
from noisewise.errors import ConfigError, DataError
from noisewise.randomness import Entropy
from noisewise.wording import at_most

__all__ = ["READ", "RELEASED", "Proposal", "ToConfirm", "declared", "propose"]

DECLARED = "declared"
DEFAULT = "public default: taken as text; if it is a number, say so"
RELEASED = "released with noise, in the ledger"
ALL_DECLARED = "Every column is declared: nothing below the header was looked at, and nothing spent."
READ = "from the data: confirm from public knowledge"


@dataclass(frozen=True)
class Proposal:
    """A schema to be read by its user: a remark on each column's origin, and notes on its file and on what is odd.

    `to_confirm`: what was read off the rows, column by column. Notes and `to_confirm` speak of private rows: for the
    user's eyes only.
    """

    schema: Schema
    remarks: Mapping[str, str]
    notes: tuple[str, ...]
    odd: tuple[str, ...] = ()
    to_confirm: tuple[ToConfirm, ...] = ()

    def confirmed(self) -> Schema:
        """The schema, once its user has said of everything in `to_confirm` that it is public knowledge.

        Only a person can say that: never call it for somebody who was not asked.
        """
        return replace(self.schema, confirmed=True) if self.to_confirm else self.schema

    def is_open(self, name: str) -> bool:
        """Is this a column that nobody declared?"""
        return self.remarks[name] != DECLARED

    @property
    def open_texts(self) -> tuple[str, ...]:
        """Features that nobody declared, and that are taken as text."""
        return tuple(
            name for name, kind in self.schema.columns.items() if isinstance(kind, Hashed) and self.is_open(name)
        )

    @property
    def open_roles(self) -> dict[str, str]:
        """Label and groups that nobody declared, and how that is written."""
        label = "A,B" if isinstance(self.schema.target, Classes) else "LOW:HIGH"
        written = {self.schema.label: label, **dict.fromkeys(self.schema.groups, "A,B")}
        return {name: what for name, what in written.items() if self.is_open(name)}

    def to_toml(self) -> str:
        """The file that the user reads, edits and confirms."""
        return self.schema.to_toml(self.remarks)


def propose(
    path: str | os.PathLike[str],
    *,
    label: str,
    groups: Sequence[str] = (),
    unit: str | None = None,
    columns: Mapping[str, Kind] | None = None,
    header_only: bool = False,
    epsilon: float | None = None,
    delta: float | None = None,
    n: int | None = None,
    adjacency: str = "add-remove",
    separator: str | None = None,
    encoding: str | None = None,
    entropy: Entropy | None = None,
    ways: Ways = PROPOSE,
) -> Proposal:
    """A schema for a CSV or Parquet file. What `columns` declares is kept; the rest is found in one of three ways.

    - By default it is read off the rows: kinds, ranges (rounded outwards) and categories. Such a schema is refused for
      private rows until its user has confirmed it.
    - `header_only`: nothing below the header is looked at. What is not declared is hashed into `BUCKETS` columns; `WIDE`
      is the default for a number.
    - `epsilon`: released with noise, see `noised_kinds`. The schema carries the ledger; `delta` defaults to the customary one
      for `n`, the number of rows (people, with `unit`), which counts as public. `ways`: what an error may advise.

    With `header_only` or `epsilon`, label and groups must be declared.
    """
    known: dict[str, Kind] = dict(columns or {})
    reads = not header_only and epsilon is None
    file = look(path, separator, encoding)
    if reads and any(name not in known and name != unit for name in file.names):
        file = look(path, separator, encoding, below=LINES)
    names = file.names
    for name in (label, *groups, *([] if unit is None else [unit]), *known):
        if name not in names:
            raise ConfigError(f"{name!r}: no such column. The header has {listed(names)}.")
    roles = [label, *groups, *([] if unit is None else [unit])]
    if twice := sorted({name for name in roles if roles.count(name) > 1}):
        raise ConfigError(f"column {listed(twice)}: named as two of label, group and unit. Name each column once.")
    if unit in known:
        raise ConfigError(f"{unit!r} is the unit, and declared as a column too: it says whose row it is, nothing else.")
    if header_only and epsilon is not None:
        raise ConfigError("header only and an epsilon: nothing is read, so nothing is to be noised. Choose one.")
    if epsilon is None and (delta is not None or n is not None):
        raise ConfigError("delta or n without an epsilon: they belong to a noised choice. Give --epsilon too.")
    if label in known:
        known[label] = _as_label(label, known[label])
    for name in groups:
        if name in known and not isinstance(known[name], Category):
            raise ConfigError(f"group {name!r} is {short(known[name])}: must be categories, e.g. {name}=A,B,C.")
    for name in (label, *groups):
        if name not in known and not reads:
            raise ConfigError(
                f"{name!r}: the values of label and groups must be declared, since nothing is read off the rows as it is. "
                f"Write {name}=A,B,C, or for a real-valued label {name}=LOW:HIGH."
            )
    open_columns = [name for name in names if name not in known and name != unit]
    ledger = None
    odd: Sequence[str] = ()
    left_out: dict[str, str] = {}
    roles_of = {label: "label", **dict.fromkeys(groups, "group")}
    if not open_columns:
        found: dict[str, Kind] = {}
    elif reads:
        file = look(path, file.separator, encoding, whole=True)
        if file.names != names:
            raise DataError(f"{Path(path).name}: its first line can be read in two ways. Give --encoding.")
        seen = survey(parts_of(path, file.separator, CHUNK, file.encoding), open_columns, MISSING)
        if not any(column.rows for column in seen.values()):
            raise DataError(f"{Path(path).name}: no rows below the header. Give a file with at least one row.")
        found = {name: guessed(column, roles_of.get(name, "feature")) for name, column in seen.items()}
        odd = oddities(seen, found, label)
        left_out = {name: remark(column, found[name]) for name, column in seen.items()}
    elif header_only:
        found = {name: Hashed(BUCKETS) for name in open_columns}
    else:
        assert epsilon is not None
        root = Entropy.fresh(secure=True) if entropy is None else entropy
        from noisewise.data.tables.noised import noised_kinds

        found, ledger, delta = noised_kinds(
            Path(path), file.separator, open_columns, unit, epsilon, delta, n, adjacency, root, file.encoding, ways
        )
    kinds = {**known, **found}
    features = [name for name in names if name not in (label, unit, *groups)]
    if all(isinstance(kinds[name], Ignore) for name in features):
        raise ConfigError(
            f"{Path(path).name}: no column is left to learn from. {' '.join(odd)} Declare one, e.g. --column NAME=text."
        )
    schema = Schema(
        label=label,
        target=_label_kind(kinds[label]),
        columns={name: _feature(kinds[name]) for name in features},
        groups={name: _group(kinds[name]) for name in groups},
        unit=unit,
        separator=file.separator,
        encoding=file.encoding,
        encoding_seen=encoding is None and file.encoding != UTF8,
        missing=MISSING,
        origin="declared" if not open_columns or header_only else "rows" if reads else "noised",
        spent=None if ledger is None else ledger.to_dict(),
        counted=None if ledger is None else unit,
    )
    if reads:
        how, notes = READ, _notes_on_reading(len(open_columns))
    elif ledger is None or delta is None:
        how, notes = DEFAULT, _notes_on_defaults(len(open_columns))
    else:
        how, notes = RELEASED, _notes_on_spending(ledger, delta)
    remarks = {name: DECLARED if name in known else left_out.get(name, "") + how for name in names if name != unit}
    items = [to_confirm(name, roles_of.get(name, "feature"), found[name]) for name in open_columns] if reads else []
    of_file = notes if open_columns else (ALL_DECLARED,)
    return Proposal(schema, remarks, of_file, (*odd, *file.notes), tuple(items))


def _label_kind(kind: Kind) -> Classes | Target:
    assert isinstance(kind, Classes | Target)
    return kind


def _feature(kind: Kind) -> Feature:
    if isinstance(kind, Classes | Target):
        raise ConfigError(
            f"a feature that is {short(kind)}: Classes and Target are for the label. Use Category or Number."
        )
    return kind


def _group(kind: Kind) -> Category:
    assert isinstance(kind, Category)
    return kind


def _as_label(name: str, kind: Kind) -> Kind:
    match kind:
        case Classes() | Target():
            return kind
        case Category():
            if len(kind.values) < 2:
                raise ConfigError(
                    f"label {name!r} with the one class {kind.values[0]!r}: there is nothing to tell apart. List at least two "
                    f"classes, {name}=A,B."
                )
            return Classes(kind.values)
        case Number():
            return centred(kind.low, kind.high)
    raise ConfigError(f"label {name!r} is {short(kind)}: must be classes, {name}=A,B, or a range, {name}=LOW:HIGH.")


def _notes_on_reading(columns: int) -> tuple[str, ...]:
    return (
        f"The kinds, ranges and categories of {columns} columns were read off the rows. If the rows are private, this file "
        "is a release that no noise protects: do not pass it on as it is. Check every entry marked "
        f'"{READ}", replace what is not public knowledge, and set confirmed = true. Until then training on private rows '
        "with it is refused.",
        "Other ways: --header-only (nothing is read), --epsilon 0.5 (noised, and in the ledger).",
    )


def _notes_on_defaults(columns: int) -> tuple[str, ...]:
    return (
        f"Nothing below the header was looked at. {columns} columns were not declared and are taken as text, hashed into "
        f"{BUCKETS} columns each: declare numbers, e.g. --column age=0:120, or --column age=number if the range is unknown "
        f"(clipped to [{WIDE.low:g}, {WIDE.high:g}] on a logarithmic scale).",
    )


def _notes_on_spending(ledger: Ledger, delta: float) -> tuple[str, ...]:
    return (
        f"Spent: epsilon {at_most(ledger.epsilon(delta), 4)} at delta {at_most(delta)}, {ledger.adjacency}. The schema carries "
        "this ledger: training continues it, so that the total includes this choice. Running this again spends again.",
        "The number of rows (people, with a unit column) counts as public. Common texts are kept by their public hash: "
        "their names were not released.",
    )
