"""What a captured or examined step has read from Python, once: it must be read anew when one of these is another."""

from __future__ import annotations

import functools
import hashlib
import random
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noisewise.batches import Nest, leaves
from noisewise.persample.held import attributes_of, globals_named, reachable

PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Seen:
    """Modules and all else that they and the loss reach: attributes, containers, closures, globals, where tensors lie.

    What stands there is told by identity; numbers, texts and arrays by value. Contents of tensors may change: a graph reads
    them anew.
    """

    def __init__(self, model: nn.Module, loss_fn: Any, like: Nest):
        self._model, self._loss_fn = model, loss_fn
        visited: dict[int, Any] = {}
        leaves_found = [value for _, value in reachable(model, loss_fn, visited)]
        owners = [*visited.values(), loss_fn]
        self._dictionaries = [(one, dict(one)) for one in _dictionaries(owners)]
        self._lists = [(one, list(one)) for one in owners if isinstance(one, list | deque)]
        self._places = [(read, read()) for one in owners for read in _readers(one)]
        self._single = [
            (one, key, value)
            for one, then in self._dictionaries
            for key, value in then.items()
            if isinstance(value, Tensor) and value.numel() == 1  # equal to others, which are not it
        ]
        self._tensors = [value for value in leaves_found if isinstance(value, Tensor)]
        arrays = [value for value in leaves_found if isinstance(value, np.ndarray | bytearray | array)]
        self._arrays = [(value, _digest(value)) for value in arrays]
        self._state = self._now(like)

    def _now(self, like: Nest) -> list[Any]:
        tensors = [(tensor.data_ptr(), tensor.requires_grad) for tensor in self._tensors]
        shapes = [(tensor.shape[1:], tensor.dtype, tensor.device) for tensor in leaves(like)]
        return [*tensors, *shapes, *autocasts()]

    def still(self, model: nn.Module, loss_fn: Any, like: Nest) -> bool:
        """Is all of it as it was, for batches of this form?"""
        try:
            return (
                model is self._model
                and loss_fn is self._loss_fn
                and all(now == then for now, then in self._dictionaries)
                and all(one.get(key) is value for one, key, value in self._single)
                and all(_all_same(list(now), then) for now, then in self._lists)
                and all(_same(read(), then) for read, then in self._places)
                and all(_digest(now) == then for now, then in self._arrays)
                and self._now(like) == self._state
            )
        except (RuntimeError, ValueError):  # another tensor or array stands somewhere: they have no single truth
            return False


def autocasts() -> tuple[Any, ...]:
    """To what types each device casts now; None where it does not."""
    kinds = ("cpu", "cuda")
    return tuple(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds)


def _dictionaries(owners: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Equal objects in them are told by identity first, so that comparing costs next to nothing."""
    for one in owners:
        if isinstance(one, dict):
            yield one
        elif hasattr(one, "__dict__") and not isinstance(one, type):
            yield vars(one)
        if isinstance(one, nn.Module):
            yield from (vars(one)[key] for key in ("_parameters", "_buffers", "_modules"))


def _readers(one: Any) -> Iterator[Callable[[], Any]]:
    """What functions, classes and objects with slots carry along."""
    if isinstance(one, type):
        yield lambda: tuple(vars(one).values())
    elif isinstance(one, functools.partial):
        yield lambda: (one.func, *one.args, *one.keywords.values())
    elif isinstance(one, FunctionType | MethodType):
        function: Any = getattr(one, "__func__", one)
        space = function.__globals__
        named = [name for name in sorted(globals_named(function.__code__)) if name in space]
        cells = function.__closure__ or ()
        yield lambda: (function.__code__, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        yield lambda: tuple(space.get(name, ...) for name in named)
        yield lambda: tuple(map(_filled, cells))
    elif not hasattr(one, "__dict__") and hasattr(type(one), "__slots__"):
        yield lambda: tuple(value for _, value in attributes_of(one))


def _digest(values: Any) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(values).tobytes()).digest()


def _filled(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return ...


def _all_same(now: Sequence[Any], then: Sequence[Any]) -> bool:
    return len(now) == len(then) and all(map(_same, now, then))


def _same(now: Any, then: Any) -> bool:
    if now is then:
        return True
    if type(now) is tuple and type(then) is tuple:
        return _all_same(now, then)
    return type(now) is type(then) and isinstance(now, PLAIN) and now == then


class Chance:
    """Have Python's or NumPy's generators been drawn from? A graph would repeat what they said once."""

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), _numpy()

    def untouched(self) -> bool:
        """Is nothing drawn since?"""
        return random.getstate() == self._python and _numpy() == self._numpy


def _numpy() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state(legacy=True)
    return (kind, np.asarray(keys).tobytes(), *rest)
