"""Labelled texts and pairs of texts as rows of tokens: published sets, and one's own CSV, Parquet or JSON-lines file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from noisewise.data.base import Data, Splits, check_seed, split
from noisewise.data.cut import marks_of, parts_of
from noisewise.data.files import find, zipped
from noisewise.data.tables.encode import owners_of
from noisewise.data.tables.rows import CHUNK, UTF8, Rows, name_of
from noisewise.data.tables.rows import parts_of as rows_of
from noisewise.data.tables.schema import MISSING
from noisewise.data.tokens import LENGTH, HashedWords, Tokens
from noisewise.errors import ConfigError, DataError

INFERENCE = ("entailment", "neutral", "contradiction")
FEELINGS = ("negative", "positive")
UNDECIDED = "-"  # SNLI: no label that most annotators agree on
WORDS = HashedWords()


# --------------------------------------------------------------------------------------------------------- published sets


def sst2(seed: int = 0, valid: int = 5000, *, tokens: Tokens = WORDS, length: int = LENGTH) -> Splits:
    """SST-2: 67,349 + 872 phrases of film reviews as tokens, negative or positive; a public set.

    The test part is GLUE's dev part, since the labels of its test part are not published; `valid` of the others are held out
    for choosing settings. Reads `train.tsv` and `dev.tsv` of GLUE's archive, from `$NOISEWISE_DATA/text/` (`sst2_train.tsv`,
    `sst2_dev.tsv`) or downloaded. Reference: Socher et al. 2013; Wang et al. 2019, arXiv:1804.07461.
    """
    train, test = (
        _public(
            _tsv(f"text/sst2_{part}.tsv", "sentence", None, "label"),
            dict(zip("01", FEELINGS, strict=True)),
            tokens,
            length,
        )
        for part in ("train", "dev")
    )
    return _official(train, test, seed, valid)


def sick(seed: int = 0, valid: int | None = None, *, tokens: Tokens = WORDS, length: int = LENGTH) -> Splits:
    """SICK: 4,500 + 500 + 4,927 pairs of sentences as tokens: entailment, neutral or contradiction; a public set.

    Parts as published: train, trial (held out) and test; with another `valid`, so many of the first two together are held
    out. Reads `$NOISEWISE_DATA/text/sick_train.tsv`, `sick_trial.tsv` and `sick_test.tsv`, or downloads them.
    Reference: Marelli et al. 2014, SemEval-2014 task 1; CC BY-NC-SA 3.0.
    """
    names = {name.upper(): name for name in INFERENCE}
    train, trial, test = (
        _public(_tsv(f"text/sick_{part}.tsv", "sentence_A", "sentence_B", "entailment_judgment"), names, tokens, length)
        for part in ("train", "trial", "test")
    )
    if valid is None or valid == len(trial):
        return Splits(train, trial, test)
    both = Data(torch.cat([train.x, trial.x]), torch.cat([train.y, trial.y]), classes=INFERENCE, public=True)
    return _official(both, test, seed, valid)


def snli(seed: int = 0, valid: int | None = None, *, tokens: Tokens = WORDS, length: int = LENGTH) -> Splits:
    """SNLI: 549,367 + 9,842 + 9,824 pairs of sentences as tokens: entailment, neutral or contradiction; a public set.

    Parts as published, without the pairs (785, 158 and 176) on which annotators did not agree; with another `valid`, so many
    of train and dev part together are held out. Reads `$NOISEWISE_DATA/snli/snli_1.0.zip` as published, or downloads it.
    Reference: Bowman et al. 2015, arXiv:1508.05326; CC BY-SA 4.0.
    """
    archive = find("snli/snli_1.0.zip")
    names = {name: name for name in INFERENCE}
    train, dev, test = (
        _public(
            _agreed(zipped(f"snli_1.0/snli_1.0_{part}.jsonl")(archive), f"snli_1.0_{part}.jsonl"), names, tokens, length
        )
        for part in ("train", "dev", "test")
    )
    if valid is None or valid == len(dev):
        return Splits(train, dev, test)
    both = Data(torch.cat([train.x, dev.x]), torch.cat([train.y, dev.y]), classes=INFERENCE, public=True)
    return _official(both, test, seed, valid)


def _official(train: Data, test: Data, seed: int, valid: int) -> Splits:
    held, rest = split(train, seed, valid)
    return Splits(rest, held, test)


def _tsv(name: str, first: str, second: str | None, label: str) -> Rows:
    """A publisher's file: tabs between fields, no quotes."""
    text = find(name).read_text(encoding="utf-8")
    lines = list(csv.reader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE))
    header = [field.strip() for field in lines[0]] if lines else []
    wanted = [column for column in (first, second, label) if column is not None]
    if any(column not in header for column in wanted) or any(len(line) != len(header) for line in lines[1:]):
        raise DataError(f"{name} has no columns {', '.join(wanted)} in every line. Put the publisher's file there.")
    columns = {column: [line[header.index(column)].strip() for line in lines[1:]] for column in wanted}
    return Rows(name, columns, 1)


def _agreed(content: bytes, name: str) -> Rows:
    """Pairs of a JSON-lines file with a label that most annotators gave."""
    columns = _json_columns(content.decode().splitlines(), name, ("sentence1", "sentence2", "gold_label"))
    kept = [place for place, label in enumerate(columns["gold_label"]) if label != UNDECIDED]
    return Rows(name, columns, 1).take(kept)


def _public(rows: Rows, classes: dict[str, str], tokens: Tokens, length: int) -> Data:
    """Rows with one or two texts, then the label."""
    *texts, label = rows.columns
    return _data(rows, texts, label, classes, tokens, length, public=True)


# ------------------------------------------------------------------------------------------------------- one's own texts


def load_texts(
    source: Any,
    *,
    text: str,
    label: str,
    classes: Sequence[str],
    second: str | None = None,
    unit: str | None = None,
    tokens: Tokens = WORDS,
    length: int = LENGTH,
    seed: int = 0,
    test: float = 0.2,
    valid: float = 0.1,
    separator: str = ",",
    encoding: str = UTF8,
    public: bool = False,
) -> Splits:
    """Labelled texts of a CSV, Parquet or `.jsonl` file, a DataFrame or a dict of columns: train, valid and test part.

    Args:
        source: path, pandas DataFrame, or dict of columns.
        text: column of the text; `second`: of the other text, where rows are pairs.
        label: column of the label, one of `classes`, which are public: a label that is not among them stops.
        classes: in the order of the outputs.
        second: see text.
        unit: column that says whose row it is; then people are protected, and a row of nobody stops.
        tokens: how texts become numbers: `HashedWords()`, or `WordPieces.read(path of a vocab.txt)`.
        length: tokens of a row; what is longer loses its end.
        seed: public; the same seed gives the same parts.
        test: share for audits, or a number of rows (people where there is a unit).
        valid: likewise, for choosing settings.
        separator: between fields of a CSV file.
        encoding: of a CSV file.
        public: the rows are published.

    Guarantee: a row's tokens depend on that row alone; one unit more moves nobody else to another part (`cut.parts_of`).
    """
    check_seed(seed)
    names = {name: name for name in classes}
    wanted = [column for column in (text, second) if column is not None]
    rows = _all_rows(source, separator, encoding, [*wanted, label, *([] if unit is None else [unit])])
    data = _data(rows, wanted, label, names, tokens, length, public=public, unit=unit)
    parts = parts_of(marks_of(data), seed, test, valid, people=unit is not None)
    tested, held, train = (data.take(torch.from_numpy(part)) for part in parts)
    if not len(train):
        raise ConfigError(
            f"test={test}, valid={valid}: nothing of {len(data)} rows is left to train on. Hold out less."
        )
    return Splits(train, held, tested)


def _all_rows(source: Any, separator: str, encoding: str, wanted: Sequence[str]) -> Rows:
    if isinstance(source, str | Path) and Path(source).suffix in (".jsonl", ".ndjson"):
        try:
            lines = Path(source).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{name_of(source)}: {error}. Give a file of JSON lines in UTF-8.") from None
        return Rows(name_of(source), _json_columns(lines, name_of(source), wanted), 1)
    columns: dict[str, list[str]] = {name: [] for name in wanted}
    for part in rows_of(source, separator, CHUNK, encoding):
        if missing := [name for name in wanted if name not in part.columns]:
            raise DataError(
                f"{name_of(source)}: no column {', '.join(map(repr, missing))}; it has {', '.join(map(repr, part.columns))}."
            )
        for name in wanted:
            columns[name] += part.columns[name]
    return Rows(name_of(source), columns, 1)


def _json_columns(lines: Iterable[str], source: str, wanted: Sequence[str]) -> dict[str, list[str]]:
    columns: dict[str, list[str]] = {name: [] for name in wanted}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            held = json.loads(line)
            values = [held[name] for name in wanted]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{source}, line {number}: no JSON object with {', '.join(wanted)} ({error!r}).") from None
        for name, value in zip(wanted, values, strict=True):
            columns[name].append(_as_text(value))
    return columns


def _as_text(value: Any) -> str:
    """A value of JSON as text; nothing for null and NaN, as in a table."""
    if isinstance(value, str):
        return value.strip()
    return "" if value is None or value != value else json.dumps(value)


def _data(
    rows: Rows, texts: Sequence[str], label: str, classes: dict[str, str], tokens: Tokens, length: int, *,
    public: bool, unit: str | None = None,
) -> Data:  # fmt: skip
    """Tokens, labels and owners; `classes`: what a label in the rows stands for."""
    names = tuple(classes.values())
    if len(classes) < 2 or len(set(names)) < len(names):
        raise ConfigError(f"classes={names!r}: must be at least two different names.")
    if not len(rows):
        raise DataError(f"{rows.source}: no rows. Give at least one.")
    numbers = {written: number for number, written in enumerate(classes)}
    labels = rows.columns[label]
    if (wrong := next((row for row, name in enumerate(labels) if name not in numbers), None)) is not None:
        raise rows.error(label, wrong, f"none of the classes {', '.join(classes)}", "Name every class, or correct it.")
    owners = None if unit is None else owners_of(rows, unit, MISSING)
    first, second = rows.columns[texts[0]], rows.columns[texts[1]] if len(texts) > 1 else None
    y = torch.tensor([numbers[name] for name in labels])
    return Data(tokens.encode(first, second, length), y, classes=names, public=public, unit=owners)
