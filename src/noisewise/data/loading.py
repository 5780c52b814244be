"""Data by name or by path: a set of the catalog, a CSV or Parquet file with its schema, or a folder that `disk.save` wrote."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from noisewise.data import disk
from noisewise.data.base import Splits
from noisewise.data.catalog import CATALOG
from noisewise.data.tables import schema as schemas
from noisewise.data.tabular import table
from noisewise.errors import ConfigError, DataError


def _loader(name: str) -> Callable[..., Splits]:
    """The loader of a set of the catalog, whose module is imported when it is called."""

    def loader(*arguments: Any, **settings: Any) -> Splits:
        home = importlib.import_module(f"noisewise.data.{CATALOG[name].home}")
        return getattr(home, name)(*arguments, **settings)

    return loader


DATASETS: dict[str, Callable[..., Splits]] = {name: _loader(name) for name in CATALOG}


def load(
    name: str | os.PathLike[str], seed: int = 0, valid: int | None = None, *, schema: Any = None, public: bool = False
) -> Splits:
    """Train, valid and test part of a data set by name, of a CSV or Parquet file, or of a folder that `disk.save` wrote.

    `valid` rows are held out for choosing settings. A CSV file needs a `schema` (a `Schema`, or the file of one) that says
    how its columns become numbers; `public`: its rows are published. A folder's parts are as they were saved.
    """
    if not isinstance(name, str | os.PathLike):
        raise ConfigError(f"data {name!r}: must be the name of a data set, e.g. 'digits', or a path.")
    path = Path(name)
    if (schema is not None or public) and (name in DATASETS or path.is_dir()):
        raise ConfigError(
            f"data {str(name)!r} with a schema, or public=True: these are for a CSV file. Leave them out."
        )
    if name in DATASETS:
        return DATASETS[str(name)](seed) if valid is None else DATASETS[str(name)](seed, valid)
    if path.is_dir():
        saved = disk.open(path)
        if not isinstance(saved, Splits):
            raise DataError(f"{path} holds one part only: a run needs train, valid and test.")
        if valid not in (None, len(saved.valid)):
            raise ConfigError(f"valid={valid}: {path} was saved with {len(saved.valid)} held-out rows. Leave it out.")
        return saved
    if not path.is_file():
        raise ConfigError(
            f"data {str(name)!r}: unknown. Known data sets: {', '.join(DATASETS)}; or the path of a CSV file or of a folder "
            "written by noisewise.data.disk."
        )
    if schema is None:
        raise ConfigError(
            f"{path.name} without a schema: which columns are numbers, in which ranges, must be said. `noisewise schema "
            f"{path.name} --label COLUMN` writes a proposal to read and confirm."
        )
    if not isinstance(schema, schemas.Schema | str | os.PathLike):
        raise ConfigError(
            f"schema={schema!r}: must be a noisewise.data.tables.schema.Schema, or the path of a schema file."
        )
    known = schema if isinstance(schema, schemas.Schema) else schemas.read(schema)
    return table(path, known, seed, valid, public=public)
