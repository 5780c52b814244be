"""What the memory of tensors holds during a pass: units, and where, or values that are the same for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from noisewise.persample.conditions import NotProven
from noisewise.persample.dispatched import (
    Operation,
    tensors_of,
)
from noisewise.persample.places import FRONT, Place, Rows, locate, rows_of


class Shared(NamedTuple):
    """A storage without units: what is known of how its entries differ.

    alike: all entries are equal. chance: drawn entry by entry. even: byte strides of dimensions as long as the batch along
    which nothing changes. numbers: 0, numbers, 2 numbers, ... one for each unit. blank: nothing was written yet. made: in
    this pass.
    """

    alike: bool = False
    chance: bool = False
    even: frozenset[int] = frozenset()
    numbers: int = 0
    blank: bool = False
    made: bool = True


BEFORE = Shared(made=False)


def memory_of(tensor: Tensor) -> Any:
    """What a tensor is a view of, and how."""
    return (
        tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype,
        tensor.is_conj(), tensor.is_neg(),
    )  # fmt: skip


def last_byte(tensor: Tensor) -> int:
    """Where a tensor ends in its storage."""
    last = tensor.storage_offset() + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(last + 1) * tensor.element_size()


def entries_of(flags: np.ndarray, tensor: Tensor) -> np.ndarray:
    """The same view of one flag for each entry of a storage."""
    return np.lib.stride_tricks.as_strided(flags[tensor.storage_offset() :], tuple(tensor.shape), tensor.stride())


def covers_its_memory(tensor: Tensor) -> bool:
    """Does a tensor have every byte of its storage, once?"""
    whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
    return whole and torch._prims_common.is_non_overlapping_and_dense_or_false(tensor)


class Labels:
    """What is known of the memory of each tensor in a pass on a batch of `units`: whose entries it holds, and where."""

    def __init__(self, units: int, references: list[StorageWeakRef]):
        super().__init__()
        self.units = units
        self._references = references  # keep addresses of foreign tensors from being used again
        self._labels: dict[int, tuple[StorageWeakRef, Rows | Shared, Any]] = {}
        self._views: dict[Any, Any] = {}  # memory of a view -> the step that made it
        self._parts: dict[int, tuple[int, np.ndarray]] = {}  # which entries of memory that was blank have been written
        self._drawn: dict[int, tuple[int, ...]] = {}  # storage of draws -> where its rows begin, by first use
        self._inputs: set[int] = set()

    def _begin(self, tensor: Tensor, number: int) -> None:
        if type(tensor) is not Tensor:
            raise NotProven(f"the batch holds a {type(tensor).__name__}")
        if tensor.numel() == 0:
            return
        storage = tensor.untyped_storage()
        rows = Rows(0, storage.nbytes(), storage.nbytes())
        if self.units > 1:  # what lies behind the batch in the same memory is somebody else's
            rows = rows_of(tensor, FRONT)._replace(end=last_byte(tensor))
            if storage._cdata in self._inputs and isinstance(other := self.label(tensor), Rows):
                rows = rows._replace(end=max(rows.end, other.end))
        self._inputs.add(storage._cdata)
        self._set(tensor, rows, ("input", number))

    def _set(self, tensor: Tensor, label: Rows | Shared, source: Any) -> None:
        self._set_memory(tensor, memory_of(tensor), label, source)

    def _set_memory(self, tensor: Tensor, memory: Any, label: Rows | Shared, source: Any) -> None:
        self._labels[memory[0]] = (StorageWeakRef(tensor.untyped_storage()), label, source)
        self._drawn.pop(memory[0], None)
        self._views[memory] = source

    def _known(self, tensor: Tensor) -> tuple[Rows | Shared, Any]:
        """Label of the tensor's storage, and where this view of it comes from."""
        return self.known_as(tensor, memory_of(tensor))

    def known_as(self, tensor: Tensor, memory: Any) -> tuple[Rows | Shared, Any]:
        """Label of the tensor's storage, and where this view of it comes from; `memory` is the tensor's."""
        known = self._labels.get(memory[0])
        if known is None:  # there before the pass: a constant of the model or the loss
            self._set_memory(tensor, memory, BEFORE, memory[0])
            self._references.append(StorageWeakRef(tensor.untyped_storage()))
            return BEFORE, memory[0]
        view = self._views.get(memory)
        return known[1], (known[2], *memory[1:]) if view is None else view

    def label(self, tensor: Tensor) -> Rows | Shared:
        """What the tensor's storage holds."""
        known = self._labels.get(tensor.untyped_storage()._cdata)
        return self._known(tensor)[0] if known is None else known[1]

    def place(self, tensor: Tensor) -> Place | None:
        """Where the unit runs in a tensor; None if it holds no units; refused if it holds units in another way."""
        label = self.label(tensor)
        if isinstance(label, Shared) or tensor.numel() == 0:
            return None
        place = FRONT if self.units == 1 else locate(tensor, label, self.units)
        if place is None:
            raise NotProven(f"a view of shape {list(tensor.shape)} does not hold every unit in its order")
        return place

    def alike(self, tensor: Tensor, place: Place) -> bool:
        """Is a tensor without units the same for each unit at `place`?"""
        label = self.label(tensor)
        assert isinstance(label, Shared)
        if label.alike or label.chance or tensor.shape[place.dim] == 1 or tensor.stride(place.dim) == 0:
            return True
        end = tensor.untyped_storage().nbytes()
        return any(locate(tensor, Rows(0, stride, end), self.units) == place for stride in label.even)

    def _alike_throughout(self, tensor: Tensor) -> bool:
        """Is a tensor the same for each unit along every dimension that follows the size of the batch?"""
        follow = {dim for dim, size in enumerate(tensor.shape) if size and size % self.units == 0}
        if follow and isinstance(label := self.label(tensor), Shared) and label.chance:
            return False  # the largest of many draws is larger than that of few
        return follow <= {place.dim for place in self._alike_places(tensor)}

    def _alike_places(self, tensor: Tensor) -> list[Place]:
        """Where a tensor without units could hold them: dimensions along which it is the same for each."""
        label = self.label(tensor)
        assert isinstance(label, Shared)
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        places = [
            Place(dim, 1, size // self.units)
            for dim, (size, step) in enumerate(steps)
            if size and size % self.units == 0 and (label.alike or label.chance or step == 0)
        ]
        end = tensor.untyped_storage().nbytes()
        even = [locate(tensor, Rows(0, stride, end), self.units) for stride in sorted(label.even)]
        return places + [place for place in even if place is not None and place not in places]

    def _follows_size(self, tensor: Tensor, made: bool = True) -> int:
        """How many dimensions are a multiple of the number of units; of a tensor that was there before, those widened."""
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        return sum(size > 0 and size % self.units == 0 and (made or step == 0) for size, step in sizes)

    def _write_part(self, out: Tensor, named: Mapping[str, Any]) -> None:
        """Of memory that was blank, remember which entries have been written."""
        key, entries = out.untyped_storage()._cdata, out.untyped_storage().nbytes() // out.element_size()
        if isinstance(label := self.label(out), Shared) and label.blank and out.numel():
            self._parts[key] = (out.element_size(), np.zeros(entries, bool))
        if key in self._parts and out.element_size() == self._parts[key][0]:
            flags = self._parts[key][1]
            within = named.get("src") is not None and named["src"].untyped_storage()._cdata == key
            entries_of(flags, out)[...] = entries_of(flags, named["src"]).copy() if within else True

    def _moves_within(self, operation: Operation, named: Mapping[str, Any]) -> bool:
        """Memory copied within one storage (circular padding): what was not written there is not written here."""
        if operation.bare != "copy":
            return False
        here, there = named["self"], named["src"]
        key = here.untyped_storage()._cdata
        return key in self._parts and there.untyped_storage()._cdata == key and here.dtype == there.dtype

    def _is_written(self, tensor: Tensor) -> bool:
        if not tensor.numel():
            return True
        if isinstance(label := self.label(tensor), Shared) and label.blank:
            return False
        size, entries = self._parts.get(tensor.untyped_storage()._cdata, (0, None))
        return entries is None or (size == tensor.element_size() and bool(entries_of(entries, tensor).all()))

    def _beside_what_was_there(self, operation: Operation, out: Tensor, label: Rows | Shared) -> Rows | Shared:
        """What a storage holds after a part of it, the view `out`, was written."""
        had = self.label(out)
        if isinstance(had, Rows):
            place = locate(out, had, self.units)
            same = isinstance(label, Shared) and (label.alike or label.chance or had.stride in label.even)
            if place is None or not (same or (isinstance(label, Rows) and locate(out, label, self.units) == place)):
                raise NotProven(f"{operation.full} writes into rows of other units")
            return had
        if isinstance(label, Rows):
            if not (had.alike or had.chance or label.stride in had.even):
                raise NotProven(f"{operation.full} writes units beside values that differ by position")
            return label._replace(base=label.base % (label.stride * self.units))
        end = out.untyped_storage().nbytes()
        steps = {out.stride(dim) * out.element_size() for dim, size in enumerate(out.shape) if size == self.units}
        even = {
            step
            for step in steps | had.even | label.even
            if step
            and locate(out, Rows(0, step, end), self.units) is not None
            and (had.alike or had.chance or step in had.even)
            and (label.alike or label.chance or step in label.even)
        }
        return Shared(even=frozenset(even))

    def holds_units(self, values: Iterable[Any]) -> bool:
        """Does any of these tensors hold units?"""
        return any(
            isinstance(self.label(t), Rows) for t in tensors_of(values) if type(t) in (Tensor, torch.nn.Parameter)
        )

    def in_front(self, tensor: Tensor) -> bool:
        """Is row i of the tensor unit i's? A tensor that is the same for each unit counts: from here on it holds units."""
        if tensor.dim() == 0 or tensor.shape[0] != self.units:
            return False
        if self.units > 1 and isinstance(self.label(tensor), Shared):
            made = self.label(tensor) != BEFORE
            if not made or tensor.stride(0) == 0 or not self.alike(tensor, FRONT):
                return False
            if locate(tensor, rows := rows_of(tensor, FRONT), self.units) != FRONT:
                return False
            self._set(tensor, rows, self._known(tensor)[1])
        return self.place(tensor) == FRONT

    def alike_or_in_front(self, tensor: Tensor) -> bool:
        """Is row i of the tensor unit i's, or the same for each?"""
        if tensor.dim() == 0 or tensor.shape[0] != self.units:
            return False
        if isinstance(self.label(tensor), Shared) and self.units > 1:
            return self.alike(tensor, FRONT)
        return self.place(tensor) == FRONT

    def beside(self, tensor: Tensor, place: Place) -> bool:
        """Does a tensor hold the units at a place, or the same entry throughout?"""
        label = self.label(tensor)
        return label.alike if isinstance(label, Shared) else self.place(tensor) == place

    def kept(self, batch: Iterable[Tensor] = ()) -> bool:
        """Is a copy of the batch, or something computed from it, still held after all that the pass gave back is gone?"""
        theirs = {part.untyped_storage()._cdata for part in batch}
        return any(
            isinstance(label, Rows) and key not in theirs and not reference.expired()
            for key, (reference, label, _) in self._labels.items()
        )


class Asked:
    """One operation, as its rule sees it (`conditions.Call`)."""

    def __init__(
        self,
        known: Labels,
        operation: Operation,
        args: dict[str, Any],
        outputs: list[Tensor],
        places: Mapping[int, Place] | None = None,
    ):
        self.name, self.outputs, self.units = f"aten::{operation.bare}", outputs, known.units
        self.args = {**operation.defaults, **args}
        self.counted: set[int] = set()  # tensors that were used as numbers of the rows
        self._known = known
        self._places: dict[int, Place | None] = dict(places or {})

    def place(self, tensor: Tensor | None) -> Place | None:
        """Where the unit runs; None for a tensor that holds no units."""
        if tensor is None:
            return None
        key = id(tensor)
        if key not in self._places:
            self._places[key] = self._known.place(tensor)
        return self._places[key]

    def alike(self, tensor: Tensor, place: Place) -> bool:
        """Is a tensor without units the same for each unit at `place`?"""
        return self._known.alike(tensor, place)

    def row_numbers(self, tensor: Tensor, step: int) -> Place | None:
        """Where 0, step, 2 step, ... (one number for each unit) run, if the tensor is known to hold them."""
        label = self._known.label(tensor)
        if not isinstance(label, Shared) or label.numbers != step:
            return None
        size = tensor.element_size()
        if tensor.untyped_storage().nbytes() != size * self.units:  # seen as another type
            return None
        self.counted.add(id(tensor))
        return locate(tensor, Rows(0, size, size * self.units), self.units)
