"""The steps of a pass, and what differs between passes of other sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from noisewise.persample.dispatched import (
    Operation,
    tensors_of,
)
from noisewise.persample.places import Place

SIZES = {"size", "output_size", "repeats", "split_size", "split_sizes", "num_samples"}  # the result's shape shows them
SIZES_OF = {"arange": {"end"}, "slice": {"end"}, "native_group_norm": {"N"}, "_reshape_alias": {"stride"}}
UNSEEN = {"layout", "device", "pin_memory", "memory_format", "generator"}  # change no value


class Made(NamedTuple):
    """What an operation makes: with units the place and the shape of one unit's part, without units the shape.

    `loose`: dimensions along which entries are equal, or equal for each unit, so that they may follow the number of units.
    """

    kind: str  # rows | shared | elsewhere (nobody may read it)
    shape: tuple[int, ...] = ()
    place: Place | None = None
    dtype: torch.dtype | None = None
    loose: tuple[bool, ...] = ()


class Step(NamedTuple):
    """One operation of a trace: what it is, its constants, which views it takes, what it makes, and where gradients go."""

    operation: str
    constants: tuple[Any, ...]
    sources: tuple[Any, ...]
    made: tuple[Made, ...]
    differentiable: tuple[bool, ...] = ()  # is autograd on, and does a gradient go to each input


@dataclass
class Trace:
    """The operations of a pass, in order."""

    units: int
    steps: list[Step] = field(default_factory=list)
    references: list[StorageWeakRef] = field(default_factory=list)  # of foreign tensors: no address is used again
    answers: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)  # of passes held to this one

    def difference(self, other: Trace) -> str | None:
        """What differs from a pass of another size, in words: constants, operations, or shapes that are no multiples."""
        for here, there in zip(self.steps, other.steps, strict=False):
            if (reason := differs(here, there, self.units, other.units)) is not None:
                return reason
        if len(self.steps) != len(other.steps):
            return "the number of operations differs between passes"
        return None


def differs(one: Step, two: Step, units: int, others: int) -> str | None:
    """What differs between two steps of passes with `units` and `others` units, in words."""
    if one == two:
        return None
    if one.operation != two.operation:
        return f"{one.operation} in one pass is {two.operation} in another"
    if one.constants != two.constants:
        return f"{one.operation} has other constants in passes of other sizes: {one.constants} and {two.constants}"
    if one.sources != two.sources:
        return f"{one.operation} takes its inputs from elsewhere in another pass"
    if one.differentiable != two.differentiable:
        return f"gradients go through {one.operation} in one pass and not in another"
    for here, there in zip(one.made, two.made, strict=True):
        if not _fits(here, there, units, others):
            return f"{one.operation} makes another shape in a pass of another size: {here} and {there}"
    return None


def _fits(one: Made, two: Made, units: int, others: int) -> bool:
    """The same kind, place and type; equal sizes, or where that is allowed the same multiple of the number of units."""
    if (one.kind, one.place, one.dtype, len(one.shape)) != (two.kind, two.place, two.dtype, len(two.shape)):
        return False
    if one.kind != "shared":
        return one.shape == two.shape
    return all(
        a == b or (free and too and a % units == 0 and b % others == 0 and a // units == b // others)
        for a, b, free, too in zip(one.shape, two.shape, one.loose, two.loose, strict=True)
    )


def constants_of(operation: Operation, named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Arguments that are no tensors, without those that say how large a result is: its shape shows them."""
    unseen = _unseen(operation.bare)
    return tuple([(name, _constant(value)) for name, value in named.items() if name not in unseen])


@cache
def _unseen(bare: str) -> frozenset[str]:
    """Arguments that say how large a result is, or change no value."""
    return frozenset(SIZES | UNSEEN | SIZES_OF.get(bare, set()))


def _constant(value: Any) -> Any:
    if isinstance(value, Tensor):
        return None
    if isinstance(value, list | tuple):
        return tuple(_constant(item) for item in value)
    return value


def differentiable(named: Mapping[str, Any]) -> tuple[bool, ...]:
    """Whether autograd is on, and which inputs a gradient goes to: a model may detach by the number of units."""
    return (torch.is_grad_enabled(), *(tensor.requires_grad for tensor in tensors_of(named.values())))


def content_of(tensor: Tensor) -> Any:
    """Shape, type and entries of a constant."""
    return (tuple(tensor.shape), str(tensor.dtype), tuple(tensor.detach().flatten().tolist()))
