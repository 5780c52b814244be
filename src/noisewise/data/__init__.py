"""Data: tensors with the unit in front, labels, groups; loaders are functions that split by a public seed.

Loaders are imported when they are first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from noisewise.data.base import Data, Splits, split
from noisewise.errors import ConfigError

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


def load(name: str, seed: int = 0, valid: int | None = None) -> Splits:
    """Train, valid and test part of a data set by name; `valid` rows held out for choosing settings."""
    if name not in DATASETS:
        raise ConfigError(f"data {name!r}: unknown. Known data sets: {', '.join(DATASETS)}.")
    return DATASETS[name](seed) if valid is None else DATASETS[name](seed, valid)
