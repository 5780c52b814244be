"""Data: tensors with the unit in front, labels, groups; loaders are functions that split by a public seed."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from noisewise.errors import ConfigError, DataError


@dataclass(frozen=True)
class Data:
    """Inputs `x [n, ...]`, targets `y [n]`, and labels of groups of people; `public`: metrics on it may be published.

    `unit [n]` says which rows belong to one person: all of them are sampled, averaged and clipped as one.
    """

    x: Tensor
    y: Tensor
    groups: dict[str, Tensor] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    public: bool = False
    unit: Tensor | None = None

    def __post_init__(self) -> None:
        """One target and one label of each group for every unit."""
        owner = {} if self.unit is None else {"unit": self.unit}
        for name, values in {"x": self.x, "y": self.y, **self.groups, **owner}.items():
            if not isinstance(values, Tensor):
                raise DataError(
                    f"{name} is a {type(values).__name__}: must be a tensor with the unit as first dimension, e.g. "
                    "torch.as_tensor(array), or of a loader: loader.dataset.tensors."
                )
        for name, labels in {"y": self.y, **self.groups, **owner}.items():
            if labels.shape[:1] != self.x.shape[:1]:
                raise DataError(
                    f"{name} has shape {list(labels.shape)}, x {list(self.x.shape)}: the first dimension is the unit, "
                    "so both must have the same length."
                )

    def __len__(self) -> int:
        """Number of rows."""
        return self.x.shape[0]

    @property
    def units(self) -> int:
        """Number of units: people where `unit` is given, else rows."""
        return len(self) if self.unit is None else len(self._ends)

    @cached_property
    def _order(self) -> Tensor:
        """Rows, one person's side by side."""
        assert self.unit is not None
        return torch.argsort(self.unit, stable=True)

    @cached_property
    def _ends(self) -> Tensor:
        """Where each person's rows end in that order."""
        assert self.unit is not None
        return torch.unique(self.unit, return_counts=True)[1].cumsum(0)

    def rows_of(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """Row numbers `[units, rows]` of some people, and which of them count: the others repeat a person's first row."""
        ends = self._ends[units]
        starts = torch.where(units > 0, self._ends[(units - 1).clamp(min=0)], 0)
        places = torch.arange(int((ends - starts).max()) if len(units) else 1)
        mask = places < (ends - starts).unsqueeze(1)
        return self._order[torch.where(mask, starts.unsqueeze(1) + places, starts.unsqueeze(1))], mask

    def take(self, index: Tensor) -> Data:
        """Some of the units."""
        groups = {name: labels[index] for name, labels in self.groups.items()}
        unit = None if self.unit is None else self.unit[index]
        return Data(self.x[index], self.y[index], groups, self.classes, self.public, unit)


class Splits(NamedTuple):
    """train is protected, valid chooses settings, test is read by audits only."""

    train: Data
    valid: Data
    test: Data


def split(data: Data, seed: int, *sizes: int) -> list[Data]:
    """Disjoint random parts of the given sizes, and the rest, by a public seed."""
    for size in sizes:
        if not isinstance(size, int) or size < 0:
            raise ConfigError(f"a part of {size!r} rows: must be a whole number >= 0.")
    if sum(sizes) >= len(data):
        raise ConfigError(f"parts of {list(sizes)} rows leave none of {len(data)} for training: hold out fewer.")
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(data)))
    return [data.take(part) for part in order.split([*sizes, len(data) - sum(sizes)])]


def digits(seed: int = 0, valid: int = 180) -> Splits:
    """Handwritten digits, 1797 images of 8x8 pixels in [0, 1], 10 classes: bundled with scikit-learn, a public set.

    A fifth (359) is the test part, `valid` more are held out for choosing settings; the rest, 1258, is trained on.
    Reference: E. Alpaydin, C. Kaynak 1998, UCI Optical Recognition of Handwritten Digits.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16
    y = torch.from_numpy(bunch.target).long()
    test, held, train = split(Data(x, y, classes=tuple("0123456789"), public=True), seed, 359, valid)
    return Splits(train, held, test)


def mnist(seed: int = 0, valid: int = 5000) -> Splits:
    """MNIST: 60,000 + 10,000 grey images of 28x28 pixels, 10 classes; a public set.

    Pixels in [0, 1], normalised by the published mean 0.1307 and standard deviation 0.3081. The test part is the
    official one; `valid` of the 60,000 are held out for choosing settings (0: train on all of them).
    Reads the official idx files from `$NOISEWISE_DATA/mnist/`. Reference: LeCun, Cortes, Burges 1998.
    """
    train, test = (
        Data(
            ((_idx("mnist", f"{part}-images-idx3-ubyte.gz", 3).float() / 255 - 0.1307) / 0.3081).unsqueeze(1),
            _idx("mnist", f"{part}-labels-idx1-ubyte.gz", 1).long(),
            classes=tuple("0123456789"),
            public=True,
        )
        for part in ("train", "t10k")
    )
    held, rest = split(train, seed, valid)
    return Splits(rest, held, test)


def _idx(folder: str, name: str, dimensions: int) -> Tensor:
    """An idx file of bytes: 0, 0, type 8 (unsigned byte), number of dimensions, big-endian sizes, values."""
    root = os.environ.get("NOISEWISE_DATA")
    wanted = f"{folder}/{name}"
    if not root:
        raise DataError(
            f"{folder}: NOISEWISE_DATA is not set. Put {name} and the other files of the official distribution into a "
            f"folder {folder}/, and set NOISEWISE_DATA to the folder above it: it must hold {wanted}."
        )
    try:
        raw = gzip.decompress((Path(root) / folder / name).read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"{folder}: $NOISEWISE_DATA/{wanted} does not exist. Put {name} of the official distribution there."
        ) from None
    except (OSError, EOFError) as error:
        raise DataError(
            f"{folder}: $NOISEWISE_DATA/{wanted} cannot be read ({error}). Put the original file there."
        ) from None
    sizes = np.frombuffer(raw[4 : 4 + 4 * dimensions], ">u4")
    if raw[:4] != bytes([0, 0, 8, dimensions]) or len(raw) != 4 + 4 * dimensions + int(np.prod(sizes, dtype=np.int64)):
        raise DataError(
            f"{folder}: $NOISEWISE_DATA/{wanted} is no idx file of {dimensions}-dimensional bytes. Put the original "
            "file there."
        )
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(tuple(sizes)).copy())


DATASETS: dict[str, Callable[..., Splits]] = {"digits": digits, "mnist": mnist}


def load(name: str, seed: int = 0, valid: int | None = None) -> Splits:
    """Train, valid and test part of a data set by name; `valid` rows held out for choosing settings."""
    if name not in DATASETS:
        raise ConfigError(f"data {name!r}: unknown. Known data sets: {', '.join(DATASETS)}.")
    return DATASETS[name](seed) if valid is None else DATASETS[name](seed, valid)
