"""Proposals for a schema: from public defaults, from the rows for the user to confirm, or released with noise."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from noisewise.accounting import Ledger
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
    filled,
)
from noisewise.data.tables.noised import noised_kinds
from noisewise.data.tables.rows import CHUNK, DECIMAL, csv_parts, header, listed, parsed, short
from noisewise.data.tables.schema import MISSING, Schema
from noisewise.errors import ConfigError, DataError
from noisewise.randomness import Entropy

MANY = 50  # more different texts than this are hashed
FEW_NUMBERS = 20  # a label with at most so many different numbers has classes
DEFAULT = "public default: taken as text; if it is a number, say so"
RELEASED = "released with noise, in the ledger"
ALL_DECLARED = "Every column is declared: nothing below the header was looked at, and nothing spent."
PLAIN: dict[str, Kind] = {"number": WIDE, "text": Hashed(BUCKETS), "ignore": Ignore()}
READ = "from the data: confirm from public knowledge"


@dataclass(frozen=True)
class Proposal:
    """A schema to be read by its user: a remark on each column's origin, and notes on the whole."""

    schema: Schema
    remarks: Mapping[str, str]
    notes: tuple[str, ...]

    def to_toml(self) -> str:
        """The file that the user reads, edits and confirms."""
        return self.schema.to_toml(self.remarks)


def declared(text: str, names: Sequence[str]) -> tuple[str, Kind | None]:
    r"""A column's name and what the user declares it to be, as written on the command line.

    `NAME`, or `NAME=` and one of: `LOW:HIGH` or `LOW:HIGH:log` (a number), `number` (unknown range), `A,B,C`
    (categories), `text` or `hash:N` (hashed), `ignore`.

    >>> declared("age=0:120", ["age"])
    ('age', Number(low=0.0, high=120.0, log=False, fill=60.0, indicator=False))
    >>> declared("income=<=50K,>50K", ["age", "income"])
    ('income', Category(values=('<=50K', '>50K'), other=True))
    """
    if text in names:
        return text, None
    name = max((name for name in names if text.startswith(f"{name}=")), key=len, default=None)
    if name is None:
        raise ConfigError(f"{text!r}: no such column. The header has {listed(names)}.")
    what = text[len(name) + 1 :].strip()
    if what in PLAIN:
        return name, PLAIN[what]
    low, _, rest = what.partition(":")
    if low == "hash" and rest.isdecimal():
        return name, Hashed(int(rest))
    high, _, log = rest.partition(":")
    if DECIMAL.fullmatch(low) and DECIMAL.fullmatch(high) and log in ("", "log"):
        return name, filled(float(low), float(high), log=log == "log")
    return name, Category(tuple(value.strip() for value in next(csv.reader([what]), [])))


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
    entropy: Entropy | None = None,
) -> Proposal:
    """A schema for a CSV file. What `columns` declares is kept; the rest is found in one of three ways.

    - By default it is read off the rows: kinds, ranges (rounded outwards) and categories. Such a schema is refused for
      private rows until its user has confirmed it.
    - `header_only`: nothing below the header is looked at. What is not declared is hashed into `BUCKETS` columns; `WIDE`
      is the default for a number.
    - `epsilon`: released with noise, see `noised_kinds`. The schema carries the ledger; `delta` defaults to the customary one
      for `n`, the number of rows (people, with `unit`), which counts as public.

    With `header_only` or `epsilon`, label and groups must be declared.
    """
    names, mark = header(path, separator)
    known: dict[str, Kind] = dict(columns or {})
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
    reads = not header_only and epsilon is None
    for name in (label, *groups):
        if name not in known and not reads:
            raise ConfigError(
                f"{name!r}: the values of label and groups must be declared, since nothing is read off the rows as it is. "
                f"Write {name}=A,B,C, or for a real-valued label {name}=LOW:HIGH."
            )
    open_columns = [name for name in names if name not in known and name != unit]
    ledger = None
    odd: tuple[str, ...] = ()
    if not open_columns:
        found: dict[str, Kind] = {}
    elif reads:
        found, odd = _from_rows(Path(path), mark, open_columns, label, groups)
    elif header_only:
        found = {name: Hashed(BUCKETS) for name in open_columns}
    else:
        assert epsilon is not None
        root = Entropy.fresh(secure=True) if entropy is None else entropy
        found, ledger, delta = noised_kinds(Path(path), mark, open_columns, unit, epsilon, delta, n, adjacency, root)
    kinds = {**known, **found}
    schema = Schema(
        label=label,
        target=_label_kind(kinds[label]),
        columns={name: _feature(kinds[name]) for name in names if name not in (label, unit, *groups)},
        groups={name: _group(kinds[name]) for name in groups},
        unit=unit,
        separator=mark,
        missing=MISSING,
        origin="declared" if not open_columns or header_only else "rows" if reads else "noised",
        spent=None if ledger is None else ledger.to_dict(),
        counted=None if ledger is None else unit,
    )
    if reads:
        how, notes = READ, (*_notes_on_reading(len(open_columns)), *odd)
    elif ledger is None or delta is None:
        how, notes = DEFAULT, _notes_on_defaults(len(open_columns))
    else:
        how, notes = RELEASED, _notes_on_spending(ledger, delta)
    remarks = {name: "declared" if name in known else how for name in names if name != unit}
    return Proposal(schema, remarks, notes if open_columns else (ALL_DECLARED,))


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
            return Classes(kind.values)
        case Number():
            return Target(kind.low, kind.high)
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
        f"Spent: epsilon {ledger.epsilon(delta):.4g} at delta {delta:g}, {ledger.adjacency}. The schema carries this "
        "ledger: training continues it, so that the total includes this choice. Running this again spends again.",
        "The number of rows (people, with a unit column) counts as public. Common texts are kept by their public hash: "
        "their names were not released.",
    )


def _from_rows(
    path: Path, separator: str, names: Sequence[str], label: str, groups: Sequence[str]
) -> tuple[dict[str, Kind], tuple[str, ...]]:
    """Kinds, ranges and categories as the rows have them, and what looks odd in them.

    Guarantee: none; the result is as private as the rows.
    """
    seen: dict[str, set[str]] = {name: set() for name in names}
    lows, highs = dict.fromkeys(names, math.inf), dict.fromkeys(names, -math.inf)
    numeric, absent = dict.fromkeys(names, True), dict.fromkeys(names, False)
    rows = 0
    for part in csv_parts(path, separator, CHUNK):
        rows += len(part)
        for name in names:
            texts = set(part.columns[name])
            given = texts - set(MISSING)
            absent[name] |= len(given) < len(texts)
            if len(seen[name]) <= MANY:
                seen[name] |= texts
            if numeric[name] and given:
                values = parsed(given)
                numeric[name] = not np.isnan(values).any()
                lows[name] = min(lows[name], float(values.min()))
                highs[name] = max(highs[name], float(values.max()))
    if not rows:
        raise DataError(f"{path.name}: no rows below the header. Give a file with at least one row.")

    def kind(name: str) -> Kind:
        is_number = numeric[name] and lows[name] <= highs[name]
        few = len(seen[name]) <= MANY
        if name == label:
            if is_number and len(seen[name]) > FEW_NUMBERS:
                return Target(*_rounded(lows[name], highs[name]))
            if not few:
                raise ConfigError(
                    f"label {name!r} has more than {MANY} different texts: declare its classes, {name}=A,B,C, or choose "
                    "another label."
                )
            classes = seen[name] - set(MISSING)
            if len(classes) < 2:
                raise ConfigError(f"label {name!r} has {len(classes)} different values: there is nothing to learn.")
            return Classes(tuple(sorted(classes, key=_by_size)))
        if name in groups:
            if not few:
                raise ConfigError(f"group {name!r} has more than {MANY} different texts: declare it, {name}=A,B,C.")
            return Category(tuple(sorted(seen[name], key=_by_size)))
        if is_number:
            return filled(*_rounded(lows[name], highs[name]), indicator=absent[name])
        return Category(tuple(sorted(seen[name]))) if few else Hashed(BUCKETS)

    commas = [name for name in names if not numeric[name] and _has_commas(seen[name] - set(MISSING))]
    note = f"Taken as text, since a number has a point and no comma: {listed(commas)}. Write 1.75 for 1,75, 1000 for 1,000."
    return {name: kind(name) for name in names}, (note,) if commas else ()


def _has_commas(texts: set[str]) -> bool:
    """Are these numbers with a comma in them, as 1,75 or 1,000?"""
    return all(DECIMAL.fullmatch(text.replace(",", "", 1)) for text in texts)


def _by_size(text: str) -> tuple[bool, float, str]:
    """Numbers first, by size."""
    is_number = bool(DECIMAL.fullmatch(text))
    return not is_number, float(text) if is_number else 0.0, text


def _rounded(low: float, high: float) -> tuple[float, float]:
    """Outwards to the power of ten below the span: 17 to 90 becomes 10 to 90."""
    span = high - low
    if not 0 < span < 1e300:
        return (low - 1, high + 1) if span == 0 and abs(low) < 2**52 else (min(low, -1.0), max(high, 1.0))
    step = 10.0 ** math.floor(math.log10(span))
    return min(math.floor(low / step) * step, low), max(math.ceil(high / step) * step, high)
