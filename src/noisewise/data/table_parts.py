"""A table by its schema, cut into parts by a public seed; what does not fit into memory goes to disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noisewise.data import disk
from noisewise.data.base import Data, Splits, check_seed
from noisewise.data.cut import Marks, marks_of, parts_of
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

    `counts` are of the whole table, `test_counts` of the other file where the test part comes from one. They are about
    private rows: for the user's eyes, in nothing that is released.
    """

    splits: Splits
    counts: Counts
    test_counts: Counts | None = None

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
        return [*self.counts.sentences(), *(f"In the test file: {sentence}" for sentence in other)]


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
        test: for audits: a share, which chance rounds, a number of rows, or another table (a path, a DataFrame, a dict of
            columns), which is held in memory. Another table that has people of `source` in it is refused.
        valid: for choosing settings: a share, or a number of rows. Shares and numbers count people where the schema has a
            unit: all rows of one person are in the same part.
        drop_unlabelled: leave rows without a label out, and count them; else they stop.
        public: the rows are published.
        folder: where encoded rows above the limit are kept, for `data.disk.open`; None: in a place that is given back when
            the program ends.
        limit: bytes of encoded rows that may be held in memory; more than that is written to disk and mapped.

    Guarantee: a row's encoding depends on the schema and on that row; every row is in exactly one part, or counted as
    dropped, or an error names it. One person more in the table is at most one person more in the part to train on, and moves
    nobody else out of it (`cut.parts_of`). A table above the limit is read four times and never held whole; the parts have
    the same rows as if it were held, in the order of the table.
    """
    check_seed(seed)
    if type(limit) is not int or limit <= 0:
        raise ConfigError(f"limit={limit!r}: must be a number of bytes above 0.")
    held, counts, marks = _read(source, schema, drop_unlabelled, public, limit)
    rows, people = counts.rows, counts.rows if schema.unit is None else len(np.unique(marks))
    if not rows:
        raise DataError(f"{name_of(source)}: no row has a label. Check the schema's label {schema.label!r}.")
    is_share = isinstance(test, int | float) and not isinstance(test, bool)
    wanted = _sizes(test if is_share else 0, valid, people, schema)
    parts = [torch.from_numpy(part) for part in parts_of(marks, seed, *wanted, people=schema.unit is not None)]
    _check_parts(parts, wanted, people, schema)
    other, test_counts = (
        (None, None) if is_share else _other_people(test, source, marks, schema, drop_unlabelled, public)
    )
    if held is not None:
        whole = joined(held)
        tested, chosen, train = (whole.take(part) for part in parts)
        splits = Splits(train, chosen, tested)
    else:
        splits = _on_disk(source, schema, parts, rows, drop_unlabelled, public, folder)
    if other is not None:
        splits = splits._replace(test=other)
    _check_classes(schema, splits.train)
    return TableSplits(splits, counts, test_counts)


def _read(
    source: Any, schema: Schema, drop_unlabelled: bool, public: bool, limit: int | None, encoding: str | None = None
) -> tuple[list[Data] | None, Counts, Marks]:
    """The encoded parts, or None where they exceed the limit; what was odd; and what tells units apart."""
    held: list[Data] | None = []
    counts, marks, size = Counts(), [np.empty(0, np.uint64)], 0
    how: dict[str, Any] = {"public": public, "drop_unlabelled": drop_unlabelled, "encoding": encoding}
    for part, odd in counted_parts(schema, source, rows=rows_at_once(schema), **how):
        counts += odd
        size += part.x.nbytes
        if held is not None:
            held.append(part)
        if limit is not None and size > limit:
            held = None
        marks.append(marks_of(part))
    return held, counts, np.concatenate(marks)


def _sizes(test: Any, valid: Any, people: int, schema: Schema) -> tuple[float, float]:
    """Sizes of test and valid part: numbers as they are; the share of the second is of what the first leaves."""
    who = "rows" if schema.unit is None else "people"
    for name, wanted in (("test", test), ("valid", valid)):
        if isinstance(wanted, bool) or not isinstance(wanted, int | float) or not 0 <= wanted < max(people, 1):
            raise ConfigError(
                f"{name}={short(wanted)}: must be a share below 1, or a number of {who} below the {people} there are."
            )
        if isinstance(wanted, float) and not wanted < 1:
            raise ConfigError(f"{name}={wanted!r}: a share must be below 1; for a number of {who} write {wanted:.0f}.")
        if 0 < wanted * people < 1:
            without = ", or valid=0" if name == "valid" else ""
            raise DataError(
                f"{people} {who}: a share of {wanted:g} for the {name} part is less than one. Give more rows{without}."
            )
    counted = [wanted if isinstance(wanted, int) else wanted * people for wanted in (test, valid)]
    if sum(counted) >= people:
        raise ConfigError(f"test={test} and valid={valid} leave none of {people} {who} for training: hold out fewer.")
    if isinstance(test, float) and isinstance(valid, float):
        return test, valid / (1 - test)
    return test, valid


def _check_parts(parts: list[Tensor], wanted: tuple[float, float], people: int, schema: Schema) -> None:
    """Chance may leave a part of a small table empty."""
    who = "rows" if schema.unit is None else "people"
    for name, part, size in zip(("test", "valid", "training"), parts, (*wanted, 1), strict=True):
        if size and not len(part):
            raise DataError(
                f"none of {people} {who} fell into the {name} part: each falls by itself, and they are few. Hold out a number "
                f"of {who} instead of a share, e.g. {max(1, people // 5)}, or give another file for the test part."
            )


def _check_classes(schema: Schema, train: Data) -> None:
    if isinstance(schema.target, Classes) and len(train) and bool((train.y == train.y[0]).all()):
        name = schema.target.values[int(train.y[0])]
        raise DataError(
            f"every row to train on has the label {name!r}: there is nothing to learn. Give rows of other classes too."
        )


def _other_people(
    test: Any, source: Any, marks: Marks, schema: Schema, drop_unlabelled: bool, public: bool
) -> tuple[Data, Counts]:
    """The rows of another table, to test on; refused where they are of people that are trained on.

    Without a unit, equal rows may be of two people: then only the very same table is known to be no other one.
    """
    share = "hold out a share instead (--test 0.2, test=0.2), which keeps all rows of a person together"
    if test is source or _same_file(test, source):
        raise DataError(
            f"{name_of(test)} is the table to train on: whoever is trained on is no test. Give other rows, or {share}."
        )
    held, counts, tested = _read(test, schema, drop_unlabelled, public, None, schema.encoding_of(test))
    assert held is not None
    shared = 0 if schema.unit is None else int(np.isin(np.unique(tested), marks).sum())
    if shared:
        who = f"{shared:,} {'person' if shared == 1 else 'people'} (by {schema.unit!r})"
        where = f"in {name_of(source)}, to train on, and in {name_of(test)}, to test on"
        raise DataError(
            f"{who} {'is' if shared == 1 else 'are'} {where}: whoever is trained on is no test. Leave them out of one of the "
            f"two, or {share}."
        )
    return joined(held), counts


def _same_file(one: Any, other: Any) -> bool:
    paths = [Path(source) for source in (one, other) if isinstance(source, str | os.PathLike)]
    return len(paths) == 2 and all(path.exists() for path in paths) and paths[0].samefile(paths[1])


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
