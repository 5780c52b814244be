"""What a data set is: tensors with the unit in front, targets, groups; parts are cut by a public seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from noisewise.errors import ConfigError, DataError

if TYPE_CHECKING:
    from noisewise.data.tables.schema import Schema


@dataclass(frozen=True, repr=False)
class Data:
    """Inputs `x [n, ...]`, targets `y [n]`, and labels of groups of people; `public`: metrics on it may be published.

    `unit [n]` says which rows belong to one person: all of them are sampled, averaged and clipped as one.
    Whole-number targets are classes, named by `classes`; real-valued targets make it a regression. `group_names` names a
    group column's labels 0, 1, ...; `schema` says how raw columns became `x`.
    """

    x: Tensor
    y: Tensor
    groups: dict[str, Tensor] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    public: bool = False
    unit: Tensor | None = None
    group_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    schema: Schema | None = None

    def __repr__(self) -> str:
        """How much there is and what it is called; no record."""
        kind = f"{len(self.classes)} classes" if self.classes else str(self.y.dtype).removeprefix("torch.") + " targets"
        groups = f", groups {', '.join(self.groups)}" if self.groups else ""
        units = "" if self.unit is None else f" of {self.units} units"
        return (
            f"Data({len(self.x)} rows {list(self.x.shape[1:])}{units}, {kind}{groups}, "
            f"{'public' if self.public else 'not public'})"
        )

    def __post_init__(self) -> None:
        """One target and one label of each group for every row; classes that there are; owners that can be told apart."""
        if not isinstance(self.groups, Mapping):
            raise DataError(f"groups is a {type(self.groups).__name__}: must be a dict, e.g. {{'sex': labels}}.")
        if isinstance(self.classes, str) or not isinstance(self.classes, Sequence):
            raise DataError(f"classes={self.classes!r}: must be a tuple of names, e.g. ('no', 'yes').")
        owned = [*self.groups.items(), *([] if self.unit is None else [("unit", self.unit)])]
        for name, values in [("x", self.x), ("y", self.y), *owned]:
            if not isinstance(values, Tensor):
                raise DataError(
                    f"{name} is a {type(values).__name__}: must be a tensor with the unit as first dimension, e.g. "
                    "torch.as_tensor(array), or of a loader: loader.dataset.tensors."
                )
        for name, labels in [("y", self.y), *owned]:
            if not self.x.dim() or labels.shape[:1] != self.x.shape[:1]:
                raise DataError(
                    f"{name} has shape {list(labels.shape)}, x {list(self.x.shape)}: the first dimension is the unit, "
                    "so both must have the same length."
                )
        for name, labels in owned:
            if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex():
                raise DataError(
                    f"{name} has shape {list(labels.shape)} and type {labels.dtype}: must be one whole number for each row."
                )
        for name, names in [("classes", self.classes), *self.group_names.items()]:
            if len(set(names)) < len(names):
                raise DataError(f"{name} {tuple(names)!r}: a name occurs twice, so audits would take two for one.")
        if self.task == "classification" and self.classes and len(self):
            low, high = int(self.y.min()), int(self.y.max())
            if low < 0 or high >= len(self.classes):
                raise DataError(
                    f"y holds the class {low if low < 0 else high}, the {len(self.classes)} named classes are 0 to "
                    f"{len(self.classes) - 1}: name every class, or correct the labels."
                )

    def __len__(self) -> int:
        """Number of rows."""
        return self.x.shape[0]

    @property
    def task(self) -> str:
        """`classification` or `regression`, by the type of the targets."""
        return "regression" if self.y.is_floating_point() else "classification"

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

    @property
    def label_scale(self) -> float:
        """By how much differences of `y` are multiplied to speak of the label as its table does; see `Target`."""
        return getattr(None if self.schema is None else self.schema.target, "spoken", 1.0)

    def rows_of(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """Row numbers `[units, rows]` of some people, and which of them count: the others repeat a person's first row."""
        ends = self._ends[units]
        starts = torch.where(units > 0, self._ends[(units - 1).clamp(min=0)], 0)
        places = torch.arange(int((ends - starts).max()) if len(units) else 1)
        mask = places < (ends - starts).unsqueeze(1)
        return self._order[torch.where(mask, starts.unsqueeze(1) + places, starts.unsqueeze(1))], mask

    def take(self, index: Tensor) -> Data:
        """Some of the rows."""
        groups = {name: labels[index] for name, labels in self.groups.items()}
        unit = None if self.unit is None else self.unit[index]
        return replace(self, x=self.x[index], y=self.y[index], groups=groups, unit=unit)


class Splits(NamedTuple):
    """train is protected, valid chooses settings, test is read by audits only."""

    train: Data
    valid: Data
    test: Data


def check_seed(seed: Any) -> None:
    """A public seed is a number: None would be another split each time."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed={seed!r}: must be a whole number >= 0.")


def split(data: Data, seed: int, *sizes: int) -> list[Data]:
    """Disjoint random parts of the given sizes, and the rest, by a public seed.

    Sizes count people where `unit` is given: all rows of one person are in the same part, in their order. For data whose
    parts are fixed: with one unit more, any other one may be in another part. `load_table` cuts private tables so that
    none is.
    """
    what = "rows" if data.unit is None else "people's rows"
    owner = None if data.unit is None else torch.unique(data.unit, return_inverse=True)[1]
    units = len(data) if owner is None else int(owner.max()) + 1 if len(data) else 0
    for size in sizes:
        if not isinstance(size, int) or size < 0:
            raise ConfigError(f"a part of {size!r} {what}: must be a whole number >= 0.")
    if sum(sizes) >= units:
        raise ConfigError(f"parts of {list(sizes)} {what} leave none of {units} for training: hold out fewer.")
    check_seed(seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(units))
    parts = order.split([*sizes, units - sum(sizes)])
    if owner is not None:
        parts = tuple(torch.isin(owner, part).nonzero()[:, 0] for part in parts)
    return [data.take(part) for part in parts]
