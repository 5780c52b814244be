"""Rows of a table become tensors, as a schema says: each by itself, or an error names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from noisewise.data.base import Data
from noisewise.data.tables.kinds import (
    Category,
    Classes,
    Hashed,
    Ignore,
    Number,
    bucket,
)
from noisewise.data.tables.rows import CHUNK, Rows, listed, name_of, parsed, parts_of, short
from noisewise.errors import DataError, PrivacyError

if TYPE_CHECKING:
    from noisewise.data.tables.schema import Schema


def encoded_parts(schema: Schema, source: Any, *, rows: int = CHUNK, public: bool = False) -> Iterator[Data]:
    """Tensors of at most `rows` rows at a time: a CSV file of any size is read once, and never held whole."""
    _check_confirmed(schema, public)
    empty = True
    for part in parts_of(source, schema.separator, rows):
        _check_columns(schema, part, schema.used, exactly=True)
        empty = False
        yield _encoded(schema, part, public)
    if empty:
        raise DataError(f"{name_of(source)}: no rows below the header. Give a file with at least one row.")


def encoded_inputs(schema: Schema, source: Any) -> Tensor:
    """Only `x`, for predicting: label, groups and unit need not be there, and further columns are not looked at."""
    needed = tuple(name for name, kind in schema.columns.items() if not isinstance(kind, Ignore))
    features = []
    for part in parts_of(source, schema.separator, CHUNK):
        _check_columns(schema, part, needed, exactly=False)
        features.append(_features(schema, part))
    return torch.cat(features) if features else torch.zeros(0, schema.width)


def _check_confirmed(schema: Schema, public: bool) -> None:
    if schema.origin == "rows" and not schema.confirmed and not public:
        raise PrivacyError(
            "this schema's ranges and categories were read off the rows, and are not confirmed: a model trained with "
            "them would reveal, e.g., the largest value of a column. Check each entry against public knowledge and set "
            "`confirmed = true`; or make a schema with `noisewise schema FILE.csv --header-only` (nothing is read) or "
            "`--epsilon 0.5` (noised, and in the ledger). If the rows are published, pass public=True."
        )


def _check_columns(schema: Schema, part: Rows, needed: tuple[str, ...], *, exactly: bool) -> None:
    if lost := [name for name in needed if name not in part.columns]:
        raise DataError(
            f"{part.source}: no column {listed(lost)}. Its header has {listed(part.columns)}; the schema separates "
            f"columns by {schema.separator!r}. Correct the header or the schema."
        )
    if exactly and (extra := [name for name in part.columns if name not in needed]):
        raise DataError(
            f'{part.source}: column {listed(extra)} is not in the schema. Add it there, with kind = "ignore" if it '
            "shall not be used."
        )


def _encoded(schema: Schema, part: Rows, public: bool) -> Data:
    names = {name: kind.names for name, kind in schema.groups.items()}
    groups = {name: torch.from_numpy(_codes(part, name, kind)) for name, kind in schema.groups.items()}
    return Data(
        _features(schema, part),
        _labels(schema, part),
        groups,
        schema.target.values if isinstance(schema.target, Classes) else (),
        public=public,
        unit=None if schema.unit is None else _owners(part, schema.unit),
        group_names=names,
        schema=schema,
    )


def _labels(schema: Schema, part: Rows) -> Tensor:
    if isinstance(schema.target, Classes):
        return torch.from_numpy(_codes(part, schema.label, Category(schema.target.values, other=False)))
    values, absent = _numbers(part, schema.label, schema.missing)
    if absent.any():
        raise part.error(schema.label, int(absent.argmax()), "a label is missing", "Fill it in or remove the row.")
    clipped = np.clip(values, schema.target.low, schema.target.high) / schema.target.scale
    return torch.from_numpy(clipped.astype(np.float32))


def _features(schema: Schema, part: Rows) -> Tensor:
    x = np.zeros((len(part), schema.width), np.float32)
    at, every = 0, np.arange(len(part))
    for name, kind in schema.columns.items():
        match kind:
            case Number():
                values, absent = _numbers(part, name, schema.missing)
                if kind.fill is None and absent.any():
                    remedy = "Give the column `fill` in the schema (what stands for a missing number)."
                    raise part.error(name, int(absent.argmax()), "a number is missing", remedy)
                x[:, at] = kind.scaled(np.where(absent, 0.0 if kind.fill is None else kind.fill, values))
                if kind.indicator:
                    x[:, at + 1] = absent
            case Category():
                x[every, at + _codes(part, name, kind)] = 1
            case Hashed():
                x[every, at + _places(part.columns[name], kind)] = 1
        at += len(kind.labels(name))
    return torch.from_numpy(x)


def _numbers(part: Rows, name: str, missing: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of a column, and where one is missing."""
    texts, absent_texts = part.columns[name], set(missing)
    values = parsed(texts)
    absent = np.array([text in absent_texts for text in texts], bool)
    wrong = np.isnan(values) & ~absent
    if wrong.any():
        index = int(wrong.argmax())
        remedy = f"Write it like 1234.5, list it in the schema's `missing` {short(tuple(absent_texts))}, or correct the kind."
        raise part.error(name, index, "not a decimal number", remedy)
    return values, absent


def _codes(part: Rows, name: str, kind: Category) -> np.ndarray:
    places = {value: code for code, value in enumerate(kind.values)}
    beyond = len(kind.values)
    codes = np.array([places.get(text, beyond) for text in part.columns[name]], np.int64)
    if not kind.other and (codes == beyond).any():
        index = int((codes == beyond).argmax())
        raise part.error(name, index, f"not one of {listed(kind.values)}", "Add it to the schema, or correct the row.")
    return codes


def _places(texts: list[str], kind: Hashed) -> np.ndarray:
    place = {text: bucket(text, kind.buckets) for text in set(texts)}
    if kind.kept is not None:
        where = {kept: index for index, kept in enumerate(kind.kept)}
        place = {text: where.get(found, len(kind.kept)) for text, found in place.items()}
    return np.array([place[text] for text in texts], np.int64)


def _owners(part: Rows, name: str) -> Tensor:
    """One number for each person, the same in every part and file."""
    texts = part.columns[name]
    if "" in texts:
        raise part.error(name, texts.index(""), "nobody owns this row", "Say whose row it is.")
    number = {text: bucket(text, 1 << 63) for text in set(texts)}
    return torch.tensor([number[text] for text in texts])


def joined(parts: list[Data]) -> Data:
    """Parts of one table as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return Data(
        torch.cat([part.x for part in parts]),
        torch.cat([part.y for part in parts]),
        {name: torch.cat([part.groups[name] for part in parts]) for name in first.groups},
        first.classes,
        public=first.public,
        unit=None if first.unit is None else torch.cat([part.unit for part in parts if part.unit is not None]),
        group_names=first.group_names,
        schema=first.schema,
    )
