"""An operation as its rule sees it, and the conditions that rules share: what a proof may use.

A rule takes a `Call` whose inputs hold units and says where the units run in each output, or raises `NotProven` with the
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from torch import Tensor

from noisewise.persample.places import Place


class NotProven(Exception):
    """An operation is not known to act row by row; its text says which and why."""


class Call(Protocol):
    """One operation on tensors, some of which hold units."""

    name: str
    args: dict[str, Any]
    outputs: list[Tensor]
    units: int

    def place(self, tensor: Tensor | None) -> Place | None:
        """Where the unit runs; None for a tensor that holds no units."""
        ...

    def alike(self, tensor: Tensor, place: Place) -> bool:
        """Is a tensor without units the same for each unit, laid beside one with the units at `place`?"""
        ...

    def row_numbers(self, tensor: Tensor, step: int) -> Place | None:
        """Where 0, step, 2 step, ... (one number for each unit) run, if the tensor is known to hold them."""
        ...


Places = Sequence[Place | None]
Rule = Callable[[Call], Places]


def fail(call: Call, reason: str) -> NotProven:
    """What to raise: the operation, and why it is not proven."""
    return NotProven(f"{call.name} {reason}")


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors among an argument."""
    if isinstance(value, Tensor):
        return [value]
    return [item for item in value if isinstance(item, Tensor)] if isinstance(value, list | tuple) else []


def main_input(call: Call) -> Tensor:
    """The main input, under either of its names."""
    tensor: Tensor = call.args["self" if "self" in call.args else "input"]
    return tensor


def place_in(call: Call, name: str = "self") -> Place:
    """Place of the unit in a main input that must hold units."""
    place = call.place(call.args[name])
    if place is None:
        raise fail(call, f"takes {name} from no unit and something else from units")
    return place


def check_shared(call: Call, *names: str) -> None:
    """Inputs that must be the same for all units: weights, tables, scales."""
    for name in names:
        for tensor in tensors_in(call.args.get(name)):
            if call.place(tensor) is not None:
                raise fail(call, f"takes {name} from the units")


def axis_of(dim: int, ndim: int) -> int:
    """A dimension counted from the front."""
    return dim + ndim if dim < 0 else dim


def axes_in(call: Call, ndim: int, name: str = "dim") -> list[int]:
    """The dimensions that an argument names, counted from the front; all if it names none."""
    given = call.args.get(name)
    if given is None or given == []:
        return list(range(ndim))
    return [axis_of(int(dim), ndim) for dim in (given if isinstance(given, list | tuple) else [given])]


def beside(call: Call, tensors: Iterable[Tensor], ndim: int) -> Place:
    """Common place of the unit when tensors are laid over each other, last dimension on last dimension.

    Those without units must be the same for each unit there.
    """
    tensors = list(tensors)
    places = set()
    for tensor in tensors:
        if (place := call.place(tensor)) is not None:
            places.add(place._replace(dim=place.dim + ndim - tensor.dim()))
    if len(places) != 1:
        raise fail(call, "lays units of different places over each other")
    place = places.pop()
    for tensor in tensors:
        if call.place(tensor) is None:
            check_same_for_each(call, tensor, place._replace(dim=place.dim - ndim + tensor.dim()))
    return place


def check_same_for_each(call: Call, tensor: Tensor, place: Place) -> None:
    """Refuse a tensor without units that is not the same for each unit at `place`."""
    if place.dim >= 0 and tensor.numel() and not call.alike(tensor, place):
        raise fail(call, "lays a tensor that differs by position over the units")


def check_agrees(call: Call, tensor: Tensor, place: Place, ndim: int) -> None:
    """A tensor laid beside units at `place` has them there too, or is the same for each."""
    here = place._replace(dim=place.dim - ndim + tensor.dim())
    held = call.place(tensor)
    if held is None:
        check_same_for_each(call, tensor, here)
    elif held != here:
        raise fail(call, "lays units of different places over each other")
