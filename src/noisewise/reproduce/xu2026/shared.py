"""What the experiments of Xu, Chen 2026 share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FOUR, ONE = "two_patch:train_two_patch", "two_patch:train_one_feature"
SETTINGS = (
    "The paper's sizes are not known to us. Ours: PyTorch's own initialisation, second layer 1/m, clip "
    "bound 1, Poisson batches of 128, learning rate 0.5, noise of deviation sigma_n on every coordinate of the "
    "mean gradient, PGD of 20 steps on 400 test points; nothing was tuned."
)


def value(row: Mapping[str, Any], arm: str, *path: str | int) -> float:
    """A number of one seed: of an arm, along a path."""
    found: Any = row[arm]
    for key in path:
        found = found[key]
    return float(found)
