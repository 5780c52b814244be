"""Old import paths, for one version: each still gives what lies elsewhere now, and warns."""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

MOVED = {
    "audits.empirical": "audits.engine_epsilon, audits.one_run, attacks.distinguishing, attacks.canaries",
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

NAMES = {  # module that is still there: where its names are now
    "audits.calibration": {
        "audits.confidence": "Binned calibration_error equal_count equal_width largest_error",
    },
    "audits.clipping_bias": {
        "audits.gradients": ("CHUNK SHORT Statistic batch_of block_norms block_sums gradients labels_of rule_factors"),
        "theory.watson2023": "general_bound",
    },
    "audits.disparity": {
        "audits.error_disparity": "ERRORS ErrorPart",
        "audits.fairness": "PARITY_RATIO",
    },
    "audits.feature_noise": {
        "audits.exact_ratio": "Factors exact",
        "theory.xu2026": "FeatureRatio RARE",
        "estimates.lengths": "squared_mean",
    },
    "audits.feature_story": {
        "theory.xu2026": "ASSUMPTIONS",
    },
    "audits.landscape": {
        "audits.states": "CLOUD projected_gradients",
        "audits.over_steps": "OverSteps over_steps",
    },
    "audits.membership": {
        "attacks.members": "EDGE",
    },
    "audits.ntk": {
        "theory.bu2022": (
            "Facts Instance RULES TableRow ZERO clipped_kernel draw_instance facts loss_rate tables turned_over uphill"
        ),
    },
    "audits.reconstruction": {
        "attacks.inversion": "least_squares",
    },
    "audits.result": {
        "estimates.estimate": "LEVEL",
        "audits.codec": "NUMBER",
    },
    "audits.robustness": {
        "attacks.pgd": "Attacked Norm fgsm margin noise pgd",
        "attacks.campaign": "CHUNK POINT STUCK",
    },
    "bounded": {
        "noise": "GRID NOISE_CHUNK",
    },
    "mechanism": {
        "runtime": "Engine Runtime",
        "accounting.events": "LEAST_NOISE MOST_NOISE",
    },
    "persample.examine": {
        "persample.behaviour": "ANOTHER_SIZE MANY TOLERANCE",
        "persample.made_up": "UNITS synthetic",
    },
    "persample.gradients": {
        "persample.formed": "Again ByTap CHUNK CUDA_CHUNK KEPT Kept",
        "persample.convolution": "Convolution",
    },
    "persample.operations": {
        "persample.conditions": "Call NotProven Places beside",
        "persample.choosing": "added_at against_shared gathered indexed joined put repeated selected",
        "persample.rules": (
            "along attention bags batch_norm classes convolution copy cudnn_layers distances drawn gates grids "
            "group_norm lookup margins matrices matrix_vector padding patches pointwise product recurrent_layer "
            "reduction sampled trailing_norm"
        ),
    },
    "persample.proof": {
        "persample.dispatched": "RESHAPING RecordsRead",
        "persample.trace": "SIZES SIZES_OF UNSEEN",
        "persample.watch": "Watch",
    },
    "report": {
        "audits.people": "CROSSED",
    },
    "support": {
        "training.course": "Course",
    },
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


def old_names(module: str) -> Callable[[str], Any]:
    """`__getattr__` for a module that is still there: what `NAMES` says of it comes from elsewhere, with a warning.

    Put it under `if not TYPE_CHECKING:`, so that type checkers know today's names only.
    """
    homes = {
        name: f"noisewise.{home}"
        for home, names in NAMES[module.removeprefix("noisewise.")].items()
        for name in names.split()
    }

    def look_up(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"{module}.{name} is {homes[name]}.{name} now; the old path goes with the next version.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(homes[name]), name)

    return look_up
