"""Parquet files, read by row groups: names of columns, and values in parts. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from noisewise.errors import ConfigError, DataError

ENDINGS = (".parquet", ".pq")
MAGIC = b"PAR1"


def is_parquet(path: Path) -> bool:
    """By its ending, or by its first bytes."""
    if path.suffix.lower() in ENDINGS:
        return True
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError:  # whoever reads it says what is wrong
        return False


def parquet_names(path: Path) -> list[str]:
    """Names of the columns as the file has them."""
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def parquet_parts(path: Path, rows: int) -> Iterator[list[list[Any]]]:
    """The values of each column, of at most `rows` rows at a time; one row group is held at once."""
    with _opened(path) as file:
        for batch in file.iter_batches(batch_size=rows):
            yield [column.to_pylist() for column in batch.columns]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            f"{path.name}: reading Parquet needs pyarrow. Install it with: pip install 'noisewise[parquet]'"
        ) from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for field in file.schema_arrow:
                plain = pyarrow.types.is_nested, pyarrow.types.is_binary, pyarrow.types.is_large_binary
                if any(is_kind(field.type) for is_kind in plain):
                    raise DataError(
                        f"{path.name}, column {field.name!r} holds {field.type}: a column must hold single numbers, texts, "
                        "dates or yes and no. Write the file without it, or with columns of such values."
                    )
            yield file
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. Give the path of a CSV or Parquet file.") from None
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise DataError(f"{path.name} cannot be read as Parquet: {reason}. Write it anew, or save it as CSV.") from None
