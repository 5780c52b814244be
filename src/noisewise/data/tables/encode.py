"""Rows of a table become tensors, as a schema says: each by itself, or an error names it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from noisewise.data.base import Data
from noisewise.data.tables.counts import Counts, Tally
from noisewise.data.tables.dates import FORMATS, ISO, Date, reader
from noisewise.data.tables.kinds import Boolean, Category, Classes, Feature, Hashed, Ignore, Number
from noisewise.data.tables.rows import CHUNK, Rows, listed, name_of, parsed, parts_of
from noisewise.data.tables.words import Words, bucket
from noisewise.errors import DataError, PrivacyError

if TYPE_CHECKING:
    from noisewise.data.tables.schema import Schema


AT_ONCE = 1 << 28  # bytes of encoded rows that one part may have


class Inputs(NamedTuple):
    """Rows as a model sees them, and what was odd in them."""

    x: Tensor
    counts: Counts


def encoded_parts(schema: Schema, source: Any, *, rows: int = CHUNK, public: bool = False) -> Iterator[Data]:
    """Tensors of at most `rows` rows at a time: a file of any size is read once, and never held whole."""
    return (data for data, _ in counted_parts(schema, source, rows=rows, public=public))


def counted_parts(
    schema: Schema,
    source: Any,
    *,
    rows: int = CHUNK,
    public: bool = False,
    drop_unlabelled: bool = False,
    encoding: str | None = None,
) -> Iterator[tuple[Data, Counts]]:
    """The same, each with what was odd in its rows; with `drop_unlabelled` rows without a label are left out and counted.

    `encoding`: of a file that is not the one to train on (`Schema.encoding_of`).
    """
    _check_confirmed(schema, public)
    empty = True
    for part in parts_of(source, schema.separator, rows, encoding or schema.encoding):
        _check_columns(schema, part, schema.used, exactly=True)
        empty = False
        labelled = _labelled(schema, part) if drop_unlabelled else range(len(part))
        tally = Tally()
        chosen = part if len(labelled) == len(part) else part.take(labelled)
        yield _encoded(schema, chosen, public, tally), tally.counts(len(chosen), len(part) - len(chosen))
    if empty:
        raise DataError(f"{name_of(source)}: no rows below the header. Give a file with at least one row.")


def encoded_inputs(schema: Schema, source: Any) -> Inputs:
    """Only `x`, for predicting: label, groups and unit need not be there, and further columns are not looked at.

    A column that is not there counts as missing in every row; it stops where the schema has no way for a missing value.
    """
    features, counts = list[Tensor](), Counts()
    for x, odd in input_parts(schema, source, rows=rows_at_once(schema)):
        features.append(x)
        counts += odd
    return Inputs(torch.cat(features) if features else torch.zeros(0, schema.width), counts)


def input_parts(schema: Schema, source: Any, *, rows: int = CHUNK) -> Iterator[Inputs]:
    """The same in parts of at most `rows` rows: a file of any size is never held whole."""
    needed = tuple(name for name, kind in schema.columns.items() if not isinstance(kind, Ignore))
    for part in parts_of(source, schema.separator, rows, schema.encoding_of(source)):
        absent = [name for name in needed if name not in part.columns]
        if len(absent) == len(needed):
            raise _no_column(schema, part, absent)
        if stopping := [name for name in absent if not _may_be_missing(schema.columns[name])]:
            raise _no_column(schema, part, stopping)
        filled = {**part.columns, **{name: [""] * len(part) for name in absent}}
        tally = Tally(absent)
        x = _features(schema, replace(part, columns=filled), tally)
        yield Inputs(x, tally.counts(len(part)))


def rows_at_once(schema: Schema) -> int:
    """Rows of a part: fewer where a row has many columns, e.g. 10,000 categories."""
    return max(1, min(CHUNK, AT_ONCE // (4 * schema.width)))


def _may_be_missing(kind: Feature) -> bool:
    match kind:
        case Number():
            return kind.fill is not None
        case Date() | Boolean():
            return kind.indicator
        case Category():
            return kind.other or "" in kind.values
    return True


def _labelled(schema: Schema, part: Rows) -> list[int]:
    """Rows with a label; a class that is called like a missing value is a class."""
    known = schema.target.values if isinstance(schema.target, Classes) else ()
    absent = {"", *schema.missing} - set(known)
    return [row for row, text in enumerate(part.columns[schema.label]) if text not in absent]


def _check_confirmed(schema: Schema, public: bool) -> None:
    if schema.origin == "rows" and not schema.confirmed and not public:
        raise PrivacyError(
            "this schema's ranges and categories were read off the rows, and are not confirmed: a model trained with "
            "them would reveal, e.g., the largest value of a column. Check each entry against public knowledge and set "
            "`confirmed = true`; or make a schema with `noisewise schema FILE.csv --header-only` (nothing is read) or "
            "`--epsilon 0.5` (noised, and in the ledger). If the rows are published, say so: --public, public=True."
        )


def _check_columns(schema: Schema, part: Rows, needed: tuple[str, ...], *, exactly: bool) -> None:
    if lost := [name for name in needed if name not in part.columns]:
        raise _no_column(schema, part, lost)
    if exactly and (extra := [name for name in part.columns if name not in needed]):
        raise DataError(
            f'{part.source}: column {listed(extra)} is not in the schema. Add it there, with kind = "ignore" if it '
            "shall not be used."
        )


def _no_column(schema: Schema, part: Rows, lost: Iterable[str]) -> DataError:
    return DataError(
        f"{part.source}: no column {listed(lost)}. Its header has {listed(part.columns)}; the schema separates "
        f"columns by {schema.separator!r}. Correct the header or the schema."
    )


def _encoded(schema: Schema, part: Rows, public: bool, tally: Tally) -> Data:
    names = {name: kind.names for name, kind in schema.groups.items()}
    groups = {name: torch.from_numpy(_codes(schema, part, name, kind, tally)) for name, kind in schema.groups.items()}
    return Data(
        _features(schema, part, tally, counted_before=schema.groups),
        _labels(schema, part, tally),
        groups,
        schema.target.values if isinstance(schema.target, Classes) else (),
        public=public,
        unit=None if schema.unit is None else owners_of(part, schema.unit, {"", *schema.missing}),
        group_names=names,
        schema=schema,
    )


def _labels(schema: Schema, part: Rows, tally: Tally) -> Tensor:
    labelled = _labelled(schema, part)
    if len(labelled) < len(part):
        index = next(row for row in range(len(part)) if row >= len(labelled) or labelled[row] != row)
        remedy = (
            "Fill it in, remove the row, or leave out rows without a label: --drop-unlabelled, drop_unlabelled=True."
        )
        raise part.error(schema.label, index, "a label is missing", remedy)
    if isinstance(schema.target, Classes):
        return torch.from_numpy(_codes(schema, part, schema.label, Category(schema.target.values, other=False), tally))
    values = parsed(part.columns[schema.label])
    if (wrong := np.isnan(values)).any():
        remedy = "Write it like 1234.5, or remove the row."
        raise part.error(schema.label, int(wrong.argmax()), "not a decimal number", remedy)
    tally.add("outside", schema.label, (values < schema.target.low) | (values > schema.target.high))
    return torch.from_numpy(schema.target.scaled(values).astype(np.float32))


def _features(schema: Schema, part: Rows, tally: Tally, counted_before: Container[str] = ()) -> Tensor:
    x = np.zeros((len(part), schema.width), np.float32)
    at, every = 0, np.arange(len(part))
    for name, kind in schema.columns.items():
        texts, width = part.columns.get(name, []), len(kind.labels(name))
        counting = Tally() if name in counted_before else tally
        match kind:
            case Number():
                values = parsed(texts)
                absent = _absent(schema, part, name, kind, np.isnan(values), counting)
                counting.add("outside", name, ~absent & ((values < kind.low) | (values > kind.high)))
                x[:, at] = kind.scaled(np.where(absent, 0.0 if kind.fill is None else kind.fill, values))
                if kind.indicator:
                    x[:, at + 1] = absent
            case Boolean():
                values = kind.read(texts)
                absent = _absent(schema, part, name, kind, np.isnan(values), counting)
                x[:, at] = np.where(absent, 0.0, values)
                if kind.indicator:
                    x[:, at + 1] = absent
            case Date():
                dates = kind.read(texts)
                absent = _absent(schema, part, name, kind, np.array([date is None for date in dates], bool), counting)
                dates = [None if gone else date for date, gone in zip(dates, absent, strict=True)]
                counting.add("outside", name, kind.outside(dates))
                x[:, at : at + width] = kind.encoded(dates)
            case Category():
                x[every, at + _codes(schema, part, name, kind, counting)] = 1
            case Hashed():
                counting.add("missing", name, _listed_as_missing(schema, texts))
                x[every, at + _places(texts, kind)] = 1
            case Words():
                counting.add("missing", name, _listed_as_missing(schema, texts))
                x[:, at : at + width] = kind.encoded(texts)
        at += width
    return torch.from_numpy(x)


def _absent(
    schema: Schema, part: Rows, name: str, kind: Number | Boolean | Date, unreadable: np.ndarray, tally: Tally
) -> np.ndarray:
    """Where a value is missing, or unreadable and taken as missing; an error names the first for which there is no way."""
    what = {Number: "a decimal number", Boolean: "yes or no", Date: "a date of the declared format"}[type(kind)]
    missing = _listed_as_missing(schema, part.columns[name])
    wrong = unreadable & ~missing
    if kind.invalid is None and wrong.any():
        row = int(wrong.argmax())
        raise part.error(name, row, f"not {what}", _remedy(name, kind, part.columns[name][row]))
    if missing.any() and not _may_be_missing(kind):
        way = (
            "`fill` in the schema (what stands for a missing number)"
            if isinstance(kind, Number)
            else "`indicator = true`"
        )
        reason = "a number is missing" if isinstance(kind, Number) else f"{what} is missing"
        raise part.error(name, int(missing.argmax()), reason, f"Give the column {way}.")
    tally.add("missing", name, missing)
    tally.add("invalid", name, wrong)
    return missing | wrong


def _listed_as_missing(schema: Schema, texts: Sequence[str]) -> np.ndarray:
    absent = {"", *schema.missing}
    return np.array([text in absent for text in texts], bool)


def _remedy(name: str, kind: Number | Boolean | Date, text: str) -> str:
    """What to do about a text that its kind cannot read."""
    by_option, needed = "", "" if _may_be_missing(kind) else "`indicator = true` and "
    match kind:
        case Number():
            way, by_option = "Write it like 1234.5", f"--column {quote(f'{name}=LOW:HIGH:gaps')}, or "
            needed = needed and "`fill = 0` and "
        case Boolean():
            way = "Write it as yes or no, true or false, 1 or 0"
        case Date():
            way = f"Write it {'like 2024-05-31' if kind.format == ISO else f'as {kind.format}'}"
            if other := next((known for known in FORMATS if known != kind.format and reader(known)(text)), None):
                written = quote(f"{name}=date:FIRST:LAST:{other}")
                way += f", declare how dates are written if all are like this (--column {written})"
    by_file = f'in a schema file {needed}`invalid = "missing"`, or this text in `missing`'
    text_instead = f"--column {quote(f'{name}=text')}"
    return f"{way}, let it count as missing ({by_option}{by_file}), or declare another kind, e.g. {text_instead}."


def _codes(schema: Schema, part: Rows, name: str, kind: Category, tally: Tally) -> np.ndarray:
    places = {value: code for code, value in enumerate(kind.values)}
    beyond = len(kind.values)
    codes = np.array([places.get(text, beyond) for text in part.columns[name]], np.int64)
    if not kind.other and (codes == beyond).any():
        index = int((codes == beyond).argmax())
        raise part.error(name, index, f"not one of {listed(kind.values)}", "Add it to the schema, or correct the row.")
    missing = _listed_as_missing(schema, part.columns[name])
    tally.add("missing", name, missing & (codes == beyond))
    tally.add("unseen", name, ~missing & (codes == beyond))
    return codes


def _places(texts: Sequence[str], kind: Hashed) -> np.ndarray:
    place = {text: bucket(text, kind.buckets) for text in set(texts)}
    if kind.kept is not None:
        where = {kept: index for index, kept in enumerate(kind.kept)}
        place = {text: where.get(found, len(kind.kept)) for text, found in place.items()}
    return np.array([place[text] for text in texts], np.int64)


def owners_of(part: Rows, name: str, missing: Container[str]) -> Tensor:
    """One number for each person, a hash of the name: the same in every part and file, whoever else is there.

    Rows whose owner is missing are of nobody knows how many people: as one person they would be protected less.
    """
    texts = part.columns[name]
    if (row := next((row for row, text in enumerate(texts) if text in missing), None)) is not None:
        raise part.error(name, row, "nobody owns this row", "Say whose row it is, or remove it.")
    number = {text: bucket(text, 1 << 63) for text in set(texts)}
    return torch.tensor([number[text] for text in texts], dtype=torch.long)


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
