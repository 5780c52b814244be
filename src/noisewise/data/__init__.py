"""Data: tensors with the unit in front, labels, groups; loaders are functions that split by a public seed.

Loaders are imported when they are first used.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisewise.data.base import Data, Splits, split
from noisewise.errors import ConfigError, DataError

if TYPE_CHECKING:
    from noisewise.data.images import cifar10 as cifar10
    from noisewise.data.images import digits as digits
    from noisewise.data.images import fashion_mnist as fashion_mnist
    from noisewise.data.images import mnist as mnist
    from noisewise.data.synthetic import signal_noise as signal_noise
    from noisewise.data.synthetic import two_patch as two_patch

_HOMES = {
    "digits": "images",
    "mnist": "images",
    "fashion_mnist": "images",
    "cifar10": "images",
    "adult": "tabular",
    "german_credit": "tabular",
    "compas": "tabular",
    "california_housing": "tabular",
    "wine_quality": "tabular",
    "two_patch": "synthetic",
    "signal_noise": "synthetic",
}
_MODULES = ("base", "disk", "files", "images", "synthetic", "tabular")

__all__ = ["DATASETS", "Data", "Splits", "load", "split", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"noisewise.data.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"noisewise.data.{name}")
    raise AttributeError(f"module 'noisewise.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})


def _loader(name: str) -> Callable[..., Splits]:
    def loader(*arguments: Any, **settings: Any) -> Splits:
        return __getattr__(name)(*arguments, **settings)

    return loader


DATASETS: dict[str, Callable[..., Splits]] = {name: _loader(name) for name in _HOMES}


def load(
    name: str | os.PathLike[str], seed: int = 0, valid: int | None = None, *, schema: Any = None, public: bool = False
) -> Splits:
    """Train, valid and test part of a data set by name, of a CSV file, or of a folder that `disk.save` wrote.

    `valid` rows are held out for choosing settings. A CSV file needs a `schema` (a `Schema`, or the file of one) that says
    how its columns become numbers; `public`: its rows are published. A folder's parts are as they were saved.
    """
    path = Path(name)
    if (schema is not None or public) and (name in DATASETS or path.is_dir()):
        raise ConfigError(
            f"data {str(name)!r} with a schema, or public=True: these are for a CSV file. Leave them out."
        )
    if name in DATASETS:
        return DATASETS[str(name)](seed) if valid is None else DATASETS[str(name)](seed, valid)
    if path.is_dir():
        from noisewise.data import disk

        found = disk.open(path)
        if not isinstance(found, Splits):
            raise DataError(f"{path} holds one part only: a run needs train, valid and test.")
        if valid not in (None, len(found.valid)):
            raise ConfigError(f"valid={valid}: {path} was saved with {len(found.valid)} held-out rows. Leave it out.")
        return found
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
    from noisewise.data.tables import schema as schemas
    from noisewise.data.tabular import table

    if not isinstance(schema, schemas.Schema | str | os.PathLike):
        raise ConfigError(
            f"schema={schema!r}: must be a noisewise.data.tables.schema.Schema, or the path of a schema file."
        )
    known = schema if isinstance(schema, schemas.Schema) else schemas.read(schema)
    return table(path, known, seed, valid, public=public)
