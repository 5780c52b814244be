"""Arrays and frames as tables: named columns, and the public schema by which they become numbers.

Ranges and categories are published with a model, so none is read off private rows as it is: they are declared, or said to be
public knowledge, or chosen with noise for a part of epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import check_array

from noisewise.accounting import Ledger
from noisewise.data.tables import schema as schemas
from noisewise.data.tables.checks import check_range
from noisewise.data.tables.declare import declared
from noisewise.data.tables.guess import guessed
from noisewise.data.tables.kinds import Category, Classes, Feature, Ignore, Kind, Target, filled
from noisewise.data.tables.noised import noised_kinds
from noisewise.data.tables.rows import CHUNK, listed, parts_of, short
from noisewise.data.tables.schema import MISSING, Schema
from noisewise.data.tables.survey import survey
from noisewise.data.tables.ways import FIT
from noisewise.errors import ConfigError, DataError
from noisewise.randomness import Entropy

PUBLIC = "public"  # what a user says of ranges and classes that anybody may know
SHARE = 0.1  # of epsilon, for choosing ranges with noise where nothing else is said


@dataclass(frozen=True)
class Table:
    """Features by name, and whose row each is: `unit` names the column of owners, if there is one."""

    columns: dict[str, Any]
    owners: Any = None
    unit: str | None = None
    left_out: tuple[str, ...] = ()  # columns of X that are no features

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def names(self) -> tuple[str, ...]:
        """All columns of X."""
        return (*self.columns, *self.left_out)

    @property
    def source(self) -> dict[str, Any]:
        """What a schema reads: features and owners."""
        return self.columns if self.unit is None else {**self.columns, self.unit: self.owners}

    def with_label(self, name: str, labels: Sequence[Any]) -> dict[str, Any]:
        """The same with the label."""
        return {**self.source, name: labels}


def table_of(X: Any, groups: Any = None, unit: Any = None) -> Table:
    """A DataFrame, or a 2-d array whose columns are called x0, x1, ...

    `groups`: columns that are no features. `unit`: the column, or one entry for each row, that says whose row it is.
    """
    columns = _columns(X)
    left_out = [groups] if isinstance(groups, str) else list(groups or ())
    for name in left_out:
        if name not in columns:
            raise DataError(f"groups={short(groups)}: X has no column {name!r}. It has {listed(columns)}.")
    owners, name = None, None
    if isinstance(unit, str):
        if unit not in columns:
            raise DataError(f"unit={unit!r}: X has no column of that name. It has {listed(columns)}.")
        owners, name = columns[unit], unit
        left_out.append(unit)
    elif unit is not None:
        owners, name = _one_per_row("unit", unit, len(next(iter(columns.values())))), free_name("unit", columns)
    features = {key: values for key, values in columns.items() if key not in left_out}
    if not features:
        raise DataError("X: no column is left as a feature. Give at least one beside groups and unit.")
    return Table(features, owners, name, tuple(left_out))


def without(X: Any, names: Collection[str]) -> Any:
    """A frame or an array without some of its columns."""
    if not names:
        return X
    if isinstance(X, pd.DataFrame):
        return X.iloc[:, [place for place, name in enumerate(X.columns) if str(name).strip() not in names]]
    array = np.asarray(_entries(X))
    return array[:, [place for place in range(array.shape[1]) if f"x{place}" not in names]]


def _entries(X: Any) -> Any:
    """A list of rows, entry by entry: one type for all of them would let one record say how the others are read.

    Yes and no are 1 and 0 there, as NumPy has them beside numbers.
    """
    if not isinstance(X, list | tuple):
        return X
    array = np.array(X, dtype=object)
    if array.ndim == 1 and len({len(row) for row in X if isinstance(row, list | tuple)}) > 1:
        raise DataError(
            "X: rows have different lengths. Give each an entry for every column, NaN or None where it is missing."
        )
    for place in np.ndindex(array.shape):
        value = array[place]
        if isinstance(value, bool | np.bool_):
            array[place] = int(value)
        elif isinstance(value, complex):
            raise DataError("X: Complex data not supported. Give real numbers, texts or a pandas DataFrame.")
        elif isinstance(value, float) and math.isinf(value):
            raise _infinite(*place)
    return array


def _infinite(row: int, column: int = 0) -> DataError:
    return DataError(
        f"X: Input X contains infinity, in row {row}, column {column}. Put a number of its range there, or NaN if it is "
        "missing."
    )


def _columns(X: Any) -> dict[str, Any]:
    if isinstance(X, pd.DataFrame):
        names = [str(name).strip() for name in X.columns]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise DataError(f"X: column {listed(twice)} occurs twice. Rename one of them.")
        if not len(X) or not names:
            raise DataError(f"X: 0 sample(s) or 0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")
        return {name: X.iloc[:, place] for place, name in enumerate(names)}
    try:
        array = check_array(_entries(X), dtype=None, ensure_all_finite=False, input_name="X")
    except (ValueError, TypeError) as error:
        raise DataError(f"X: {error}") from None
    if array.dtype.kind == "c":
        raise DataError("X: Complex data not supported. Give real numbers, texts or a pandas DataFrame.")
    if array.dtype.kind == "f" and np.isinf(array).any():
        raise _infinite(*(int(place) for place in np.argwhere(np.isinf(array))[0]))
    return {f"x{place}": array[:, place] for place in range(array.shape[1])}


def _one_per_row(name: str, values: Any, rows: int) -> list[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise DataError(f"{name}={short(values)}: must be a column of X, or one entry for each of its {rows} rows.")
    entries = list(values)
    if len(entries) != rows:
        raise DataError(f"{name} has {len(entries)} entries, X {rows} rows: must have one for each row.")
    return entries


def free_name(wanted: str, taken: Iterable[str]) -> str:
    """A name that no column has."""
    names, name, number = set(taken), wanted, 2
    while name in names:
        name, number = f"{wanted} ({number})", number + 1
    return name


# --- schemas ----------------------------------------------------------------------------------------------------------


def schema_for(
    table: Table,
    label: str,
    target: Classes | Target,
    ranges: Any,
    epsilon: float,
    delta: float,
    entropy: Entropy | None,
) -> Schema:
    """What each column becomes: declared in `ranges`, read off the rows where those are public, else chosen with noise.

    `epsilon`, at `delta`: for what is chosen with noise; the schema carries the ledger of it.
    """
    if isinstance(ranges, str) and ranges == PUBLIC:
        seen = survey(parts_of(table.columns, ",", CHUNK), tuple(table.columns), MISSING)
        kinds: dict[str, Kind] = {name: guessed(column, "feature") for name, column in seen.items()}
        return _schema(table, label, target, _some(kinds), origin="rows", confirmed=True)
    kinds = {name: kind for name, kind in declarations(ranges, table.names).items() if name in table.columns}
    rest = [name for name in table.columns if name not in kinds]
    ledger: Ledger | None = None
    if rest:
        root = Entropy.fresh(secure=True) if entropy is None else entropy
        chosen, ledger, _ = noised_kinds(
            table.source, ",", rest, table.unit, epsilon, delta, None, "add-remove", root, ways=FIT
        )
        kinds = {**kinds, **chosen}
    ordered = {name: kinds[name] for name in table.columns}
    origin = "declared" if ledger is None else "noised"
    return _schema(table, label, target, _some(ordered), origin=origin, spent=ledger)


def _some(kinds: Mapping[str, Kind]) -> Mapping[str, Kind]:
    """At least one of them a feature."""
    if all(isinstance(kind, Ignore) for kind in kinds.values()):
        raise ConfigError(
            f"no column is left to learn from: {listed(kinds)} are ignored, or look like identifiers. Declare one, e.g. "
            f"ranges={{{next(iter(kinds))!r}: (0, 100)}}."
        )
    return kinds


def _schema(
    table: Table,
    label: str,
    target: Classes | Target,
    kinds: Mapping[str, Kind],
    *,
    origin: str,
    confirmed: bool = False,
    spent: Ledger | None = None,
) -> Schema:
    columns: dict[str, Feature] = {}
    for name, kind in kinds.items():
        if isinstance(kind, Classes | Target):
            raise ConfigError(f"ranges[{name!r}]={kind!r}: is for labels. Use Category or Number.")
        columns[name] = kind
    return Schema(
        label=label, target=target, columns=columns, unit=table.unit, missing=MISSING, origin=origin, confirmed=confirmed,
        spent=None if spent is None else spent.to_dict(), counted=None if spent is None else table.unit,
    )  # fmt: skip


def given_schema(given: Any, table: Table, task: str) -> Schema:
    """A schema of the user's own, or the file of one; it must be for this task and say what the table says of owners."""
    schema = given if isinstance(given, Schema) else None
    if schema is None:
        if isinstance(given, dict) or not (isinstance(given, str) or hasattr(given, "__fspath__")):
            raise ConfigError(f"schema={short(given)}: must be a noisewise.Schema, or the path of a schema file.")
        schema = schemas.read(given)
    if isinstance(schema.target, Classes) != (task == "classification"):
        raise ConfigError(
            f"schema: its label {schema.label!r} is {schema.target.words()}, which is no {task}. Use "
            f"{'PrivateRegressor' if task == 'classification' else 'PrivateClassifier'}."
        )
    if schema.unit != table.unit:
        raise ConfigError(f"schema: its unit is {schema.unit!r}, fit's is {table.unit!r}. Say the same in both.")
    return schema


def declarations(ranges: Any, names: Sequence[str]) -> dict[str, Kind]:
    """What `ranges` says of columns: one pair for all of them, or for some by name (or place) what each may hold."""
    if ranges is None:
        return {}
    if isinstance(ranges, Mapping):
        said: dict[str, Kind] = {}
        for key, what in ranges.items():
            name = names[key] if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(names) else key
            if name not in names:
                raise ConfigError(f"ranges[{key!r}]: no such column. X has {listed(names)}.")
            said[name] = _kind(name, what)
        return said
    if _is_pair(ranges):
        return {name: _kind(name, ranges) for name in names}
    raise ConfigError(
        f"ranges={short(ranges)}: must be (low, high) for all columns, a dict of columns, e.g. {{'age': (0, 120)}}, "
        "'public' if everybody may know which values the columns hold, or None to choose with noise."
    )


def _kind(name: str, what: Any) -> Kind:
    if isinstance(what, schemas.Kind):
        return what
    if isinstance(what, str):
        kind = declared(f"{name}={what}", [name])[1]
        assert kind is not None
        return kind
    if _is_pair(what):
        low, high = (float(value) for value in what)
        check_range(f"ranges[{name!r}]", low, high)
        return filled(low, high)
    if isinstance(what, list | tuple | set | frozenset) and what and all(isinstance(value, str) for value in what):
        return Category(tuple(sorted(what) if isinstance(what, set | frozenset) else what))
    raise ConfigError(
        f"ranges[{name!r}]={short(what)}: must be (low, high), a list of texts, or a text as on the command line, e.g. "
        "'0:120:log', 'A,B,C', 'words', 'date:2010-01-01:2025-12-31', 'ignore'."
    )


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, tuple | list | np.ndarray)
        and len(value) == 2
        and all(isinstance(end, int | float | np.number) and not isinstance(end, bool) for end in value)
    )


def share_of(epsilon: float, wanted: Any) -> float:
    """How much of epsilon ranges may cost that are chosen with noise."""
    if wanted is None:
        return SHARE * epsilon
    if isinstance(wanted, bool) or not isinstance(wanted, int | float) or not 0 < wanted < math.inf:
        raise ConfigError(f"schema_epsilon={wanted!r}: must be a number above 0, e.g. {SHARE * epsilon:g}, or None.")
    if wanted >= epsilon:
        raise ConfigError(
            f"schema_epsilon={wanted:g} of epsilon={epsilon:g}: nothing would be left for training. Give a smaller part."
        )
    return float(wanted)
