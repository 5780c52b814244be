"""A table by its schema, cut into parts by a public seed; what does not fit into memory goes to disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from noisewise.data import disk
from noisewise.data.base import Data, Splits, check_seed, split_rows
from noisewise.data.tables.counts import Counts
from noisewise.data.tables.encode import counted_parts, joined, rows_at_once
from noisewise.data.tables.kinds import Classes
from noisewise.data.tables.rows import name_of, short
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, DataError

LIMIT = 2 << 30  # bytes of encoded rows that are held in memory
TEST, VALID, TRAIN = range(3)  # the order in which rows are drawn


@dataclass(frozen=True)
class TableSplits:
    """Parts of a table, and what was odd in its rows.

    `counts` are of the whole table, `test_counts` of the other file where the test part comes from one, and `shared` is
    the number of people in both. They are about private rows: for the user's eyes, in nothing that is released.
    """

    splits: Splits
    counts: Counts
    test_counts: Counts | None = None
    shared: int = 0

    @property
    def train(self) -> Data:
        """What is protected."""
        return self.splits.train

    @property
    def valid(self) -> Data:
        """What settings are chosen with."""
        return self.splits.valid

    @property
    def test(self) -> Data:
        """What audits read."""
        return self.splits.test

    def sentences(self) -> list[str]:
        """What was odd, for people."""
        other = [] if self.test_counts is None else self.test_counts.sentences()
        both = [f"{self.shared:,} people are in the test file too: they are no test."] if self.shared else []
        return [*self.counts.sentences(), *(f"In the test file: {sentence}" for sentence in other), *both]


def load_table(
    source: Any,
    schema: Schema,
    *,
    seed: int = 0,
    test: Any = 0.2,
    valid: float = 0,
    drop_unlabelled: bool = False,
    public: bool = False,
    folder: str | os.PathLike[str] | None = None,
    limit: int = LIMIT,
) -> TableSplits:
    """A CSV or Parquet file, or a table in memory, as `schema` says: train, valid and test part by a public seed.

    Args:
        source: path, pandas DataFrame, or dict of columns.
        schema: what the columns are.
        seed: public; the same seed gives the same parts.
        test: for audits: a share, a number of rows, or another table (a path, a DataFrame, a dict of columns),
            which is held in memory.
        valid: for choosing settings: a share, or a number of rows. Shares and numbers count people where the schema has a
            unit: all rows of one person are in the same part.
        drop_unlabelled: leave rows without a label out, and count them; else they stop.
        public: the rows are published.
        folder: where encoded rows above the limit are kept, for `data.disk.open`; None: in a place that is given back when
            the program ends.
        limit: bytes of encoded rows that may be held in memory; more than that is written to disk and mapped.

    Guarantee: a row's encoding depends on the schema and on that row; every row is in exactly one part, or counted as
    dropped, or an error names it. A table above the limit is read four times and never held whole; the parts have the
    same rows as if it were held, in the order of the table.
    """
    check_seed(seed)
    if type(limit) is not int or limit <= 0:
        raise ConfigError(f"limit={limit!r}: must be a number of bytes above 0.")
    held, counts, units = _read(source, schema, drop_unlabelled, public, limit)
    rows, people = counts.rows, counts.rows if units is None else len(units.unique())
    if not rows:
        raise DataError(f"{name_of(source)}: no row has a label. Check the schema's label {schema.label!r}.")
    is_share = isinstance(test, int | float) and not isinstance(test, bool)
    sizes = [_size("test", test if is_share else 0, people, schema), _size("valid", valid, people, schema)]
    parts = split_rows(rows, units, seed, *sizes)
    if held is not None:
        whole = joined(held)
        tested, chosen, train = (whole.take(part) for part in parts)
        splits = Splits(train, chosen, tested)
    else:
        splits = _on_disk(source, schema, parts, rows, drop_unlabelled, public, folder)
    test_counts, shared = None, 0
    if not is_share:
        other, test_counts, _ = _read(test, schema, drop_unlabelled, public, None)
        assert other is not None
        splits = splits._replace(test=joined(other))
        shared = _shared(splits)
    _check_classes(schema, splits.train)
    return TableSplits(splits, counts, test_counts, shared)


def _read(
    source: Any, schema: Schema, drop_unlabelled: bool, public: bool, limit: int | None
) -> tuple[list[Data] | None, Counts, Tensor | None]:
    """The encoded parts, or None where they exceed the limit; what was odd; and who owns each row."""
    held: list[Data] | None = []
    counts, units, size = Counts(), list[Tensor](), 0
    several = rows_at_once(schema)
    for part, odd in counted_parts(schema, source, rows=several, public=public, drop_unlabelled=drop_unlabelled):
        counts += odd
        size += part.x.nbytes
        if held is not None:
            held.append(part)
        if limit is not None and size > limit:
            held = None
        if part.unit is not None:
            units.append(part.unit)
    return held, counts, torch.cat(units) if units else None


def _size(name: str, wanted: Any, people: int, schema: Schema) -> int:
    """How many rows, or people, a share is; rounded down, in exact fractions."""
    who = "rows" if schema.unit is None else "people"
    if isinstance(wanted, bool) or not isinstance(wanted, int | float) or not 0 <= wanted < max(people, 1):
        raise ConfigError(
            f"{name}={short(wanted)}: must be a share below 1, or a number of {who} below the {people} there are."
        )
    if isinstance(wanted, int):
        return wanted
    if not wanted < 1:
        raise ConfigError(f"{name}={wanted!r}: a share must be below 1; for a number of {who} write {wanted:.0f}.")
    size = int(Fraction(repr(float(wanted))) * people)
    if wanted and not size:
        raise DataError(
            f"{people} {who}: a share of {wanted:g} for the {name} part is less than one. Give more rows, or {name}=0."
        )
    return size


def _check_classes(schema: Schema, train: Data) -> None:
    if isinstance(schema.target, Classes) and len(train) and bool((train.y == train.y[0]).all()):
        name = schema.target.values[int(train.y[0])]
        raise DataError(
            f"every row to train on has the label {name!r}: there is nothing to learn. Give rows of other classes too."
        )


def _shared(splits: Splits) -> int:
    if splits.test.unit is None or splits.train.unit is None:
        return 0
    known = splits.train.unit if splits.valid.unit is None else torch.cat([splits.train.unit, splits.valid.unit])
    return int(torch.isin(splits.test.unit.unique(), known).sum())


def _on_disk(
    source: Any,
    schema: Schema,
    parts: list[Tensor],
    rows: int,
    drop_unlabelled: bool,
    public: bool,
    folder: str | os.PathLike[str] | None,
) -> Splits:
    """The parts written one after the other, and mapped. Without a folder their files are unlinked as soon as they are."""
    place = torch.empty(rows, dtype=torch.uint8)
    for number, part in enumerate(parts):
        place[part] = number

    def rows_of(number: int) -> Iterator[Data]:
        first, several = 0, rows_at_once(schema)
        for part, _ in counted_parts(schema, source, rows=several, public=public, drop_unlabelled=drop_unlabelled):
            yield part.take((place[first : first + len(part)] == number).nonzero()[:, 0])
            first += len(part)
        if first != rows:
            raise DataError(f"{name_of(source)} has changed while it was read. Read it again when nobody writes it.")

    streams = {"train": rows_of(TRAIN), "valid": rows_of(VALID), "test": rows_of(TEST)}
    if folder is not None:
        disk.write(streams, folder)
        return _opened(Path(folder))
    with tempfile.TemporaryDirectory(prefix="noisewise-") as scratch:
        disk.write(streams, Path(scratch) / "table")
        return _opened(Path(scratch) / "table")  # the mapping outlives the name of its file


def _opened(folder: Path) -> Splits:
    splits = disk.open(folder)
    assert isinstance(splits, Splits)
    return splits
