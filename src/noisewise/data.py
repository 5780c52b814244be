"""Data: tensors with the unit in front, labels, groups; loaders are functions that split by a public seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from noisewise.errors import ConfigError


@dataclass(frozen=True)
class Data:
    """Inputs `x [n, ...]`, targets `y [n]`, and labels of groups of people; `public`: metrics on it may be published."""

    x: Tensor
    y: Tensor
    groups: dict[str, Tensor] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    public: bool = False

    def __len__(self) -> int:
        """Number of units."""
        return self.x.shape[0]

    def take(self, index: Tensor) -> Data:
        """Some of the units."""
        groups = {name: labels[index] for name, labels in self.groups.items()}
        return Data(self.x[index], self.y[index], groups, self.classes, self.public)


class Splits(NamedTuple):
    """train is protected, valid chooses settings, test is read by audits only."""

    train: Data
    valid: Data
    test: Data


def split(data: Data, seed: int, valid: float = 0.1, test: float = 0.2) -> Splits:
    """Random parts by a public seed."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(data)))
    tests, valids = round(test * len(data)), round(valid * len(data))
    return Splits(
        data.take(order[tests + valids :]), data.take(order[tests : tests + valids]), data.take(order[:tests])
    )


def digits(seed: int = 0) -> Splits:
    """Handwritten digits, 1797 images of 8x8 pixels in [0, 1], 10 classes: bundled with scikit-learn, a public set.

    Reference: E. Alpaydin, C. Kaynak 1998, UCI Optical Recognition of Handwritten Digits.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16
    y = torch.from_numpy(bunch.target).long()
    return split(Data(x, y, classes=tuple("0123456789"), public=True), seed)


DATASETS: dict[str, Callable[..., Splits]] = {"digits": digits}


def load(name: str, seed: int = 0) -> Splits:
    """Train, valid and test part of a data set by name."""
    if name not in DATASETS:
        raise ConfigError(f"data {name!r}: unknown. Known data sets: {', '.join(DATASETS)}.")
    return DATASETS[name](seed)
