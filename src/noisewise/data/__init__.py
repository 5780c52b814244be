"""Data: tensors with the unit in front, labels, groups; loaders are functions that split by a public seed."""

from __future__ import annotations

from collections.abc import Callable

from noisewise.data.base import Data, Splits, split
from noisewise.data.images import digits, mnist
from noisewise.errors import ConfigError

__all__ = ["DATASETS", "Data", "Splits", "digits", "load", "mnist", "split"]

DATASETS: dict[str, Callable[..., Splits]] = {"digits": digits, "mnist": mnist}


def load(name: str, seed: int = 0, valid: int | None = None) -> Splits:
    """Train, valid and test part of a data set by name; `valid` rows held out for choosing settings."""
    if name not in DATASETS:
        raise ConfigError(f"data {name!r}: unknown. Known data sets: {', '.join(DATASETS)}.")
    return DATASETS[name](seed) if valid is None else DATASETS[name](seed, valid)
