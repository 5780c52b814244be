"""Old import paths, for one version: each still gives what lies elsewhere now, and warns."""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

MOVED = {
    "audits.intervals": "estimates.intervals",
    "audits.roc": "estimates.roc",
    "audits.shadows": "attacks.shadows",
    "augmentation": "training.augmentation",
    "communication": "training.communication",
    "config": "workflow",
    "convert": "models.convert",
    "defaults": "accounting.defaults",
    "entropy": "randomness",
    "lineage": "training.lineage",
    "modelcheck": "testing.modelcheck",
    "nest": "batches",
    "proposal": "data.tables.propose",
    "recorders": "audits.recorder",
    "scatter": "data.scatter",
    "schema": "data.tables.schema",
    "table": "data.tables.rows",
    "train": "training",
    "transforms": "data.transforms",
    "words": "wording",
}


class _Moved(types.ModuleType):
    """A module that lies elsewhere; `noisewise.train` is a function as well."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(f"noisewise.{MOVED[self.__name__.removeprefix('noisewise.')]}"), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.train(*args, **kwargs)


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for moved modules."""
        return ModuleSpec(fullname, self) if fullname.removeprefix("noisewise.") in MOVED else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """What hands out the names."""
        new = MOVED[spec.name.removeprefix("noisewise.")]
        warnings.warn(
            f"{spec.name} is noisewise.{new} now; the old path goes with the next version.",
            DeprecationWarning,
            stacklevel=2,
        )
        return _Moved(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is run."""


def install() -> None:
    """Look here for what is found nowhere else."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
