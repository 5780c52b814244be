"""noisewise: train PyTorch models with differential privacy, see what privacy costs and whom, and get it back.

Names are loaded when they are first used, so that `import noisewise` is light and the accounting part needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from noisewise import _moved

__version__ = "0.1.0"

_moved.install()

_HOMES = {
    "Mechanism": "mechanism",
    "Runtime": "runtime",
    "Poisson": "sampling",
    "FullBatch": "sampling",
    "Shuffle": "sampling",
    "steps_for": "sampling",
    "Schedule": "schedule",
    "LearningRate": "rates",
    "Ledger": "accounting",
    "clipped_sum": "persample",
    "release": "bounded",
    "private_step": "training",
    "train": "training",
    "State": "training",
    "Data": "data",
    "load": "data",
    "Indexed": "data.indexed",
    "Schema": "data.tables.schema",
    "Recipe": "recipe",
    "fit": "recipe",
    "repaired": "repairs",
    "PrivateClassifier": "estimators",
    "PrivateRegressor": "estimators",
}
_MODULES = (
    "accounting", "audits", "clipping", "data", "distributed", "jobs", "losses", "models", "repairs", "report", "sampling",
    "support", "testing",
)  # fmt: skip

__all__ = [*_HOMES, *_MODULES]

if TYPE_CHECKING:
    from noisewise.accounting import Ledger as Ledger
    from noisewise.bounded import release as release
    from noisewise.data import Data as Data
    from noisewise.data import load as load
    from noisewise.data.indexed import Indexed as Indexed
    from noisewise.data.tables.schema import Schema as Schema
    from noisewise.estimators import PrivateClassifier as PrivateClassifier
    from noisewise.estimators import PrivateRegressor as PrivateRegressor
    from noisewise.mechanism import Mechanism as Mechanism
    from noisewise.persample.clipped_sum import clipped_sum as clipped_sum
    from noisewise.rates import LearningRate as LearningRate
    from noisewise.recipe import Recipe as Recipe
    from noisewise.recipe import fit as fit
    from noisewise.repairs import repaired as repaired
    from noisewise.runtime import Runtime as Runtime
    from noisewise.sampling import FullBatch as FullBatch
    from noisewise.sampling import Poisson as Poisson
    from noisewise.sampling import Shuffle as Shuffle
    from noisewise.sampling import steps_for as steps_for
    from noisewise.schedule import Schedule as Schedule
    from noisewise.training import State as State
    from noisewise.training import private_step as private_step
    from noisewise.training import train as train


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"noisewise.{_HOMES[name]}"), name)
    if name in _MODULES or name in _moved.MOVED:
        return importlib.import_module(f"noisewise.{name}")
    raise AttributeError(f"module 'noisewise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
