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
    "audits.empirical": "audits.engine_epsilon, audits.one_run, attacks.distinguishing",
    "audits.intervals": "estimates.intervals",
    "audits.parts": "audits.people, audits.show",
    "audits.roc": "estimates.roc",
    "audits.shadows": "attacks.shadows",
    "augmentation": "training.augmentation",
    "communication": "training.summary",
    "config": "workflow",
    "convert": "models.convert",
    "defaults": "accounting.defaults",
    "entropy": "randomness",
    "lineage": "training.lineage",
    "modelcheck": "testing.modelcheck",
    "nest": "batches",
    "persample.losses": "losses",
    "proposal": "data.tables.propose",
    "recorders": "audits.recorder",
    "repairs.tuning": "theory.zhu2023",
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
        homes = [importlib.import_module(f"noisewise.{home}") for home in _homes(self.__name__)]
        return getattr(next((home for home in homes if hasattr(home, name)), homes[0]), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.train(*args, **kwargs)


def _homes(old: str) -> list[str]:
    return MOVED[old.removeprefix("noisewise.")].split(", ")


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for moved modules."""
        return ModuleSpec(fullname, self) if fullname.removeprefix("noisewise.") in MOVED else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """What hands out the names."""
        new = " and ".join(f"noisewise.{home}" for home in _homes(spec.name))
        warnings.warn(
            f"{spec.name} is {new} now; the old path goes with the next version.",
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
