"""What a captured step has read from Python, once: it must be computed anew when one of these is another."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, MutableMapping
from typing import Any

import numpy as np
from torch import nn

from noisewise.persample.held import own_tensors

PLAIN = (bool, int, float, complex, str, bytes, type(None))
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Seen:
    """Numbers, words and switches of modules and loss, the modules and hooks there are, and where tensors lie.

    Of the loss: closure, defaults, attributes, the globals that it names; what lies deeper, in containers, is not looked at.
    """

    def __init__(self, model: nn.Module, loss_fn: Any):
        self._model, self._loss_fn = model, loss_fn
        self._places = [(where, key, where[key]) for where, key in _places(model, loss_fn)]
        self._state = self._now()

    def _now(self) -> tuple[Any, ...]:
        modules = tuple((id(module), *(len(getattr(module, name)) for name in HOOKS)) for module in self._model.modules())
        tensors = tuple((id(t), t.data_ptr(), t.requires_grad) for t in own_tensors(self._model).values())
        return (modules, tensors, tuple(_cells(self._loss_fn)))

    def still(self) -> bool:
        """Is all of it as it was?"""
        missing = object()
        same = all((now := where.get(key, missing)) is value or now == value for where, key, value in self._places)
        return same and self._now() == self._state


def _places(model: nn.Module, loss_fn: Any) -> Iterator[tuple[MutableMapping[str, Any], str]]:
    dictionaries = [vars(module) for module in model.modules()]
    for function in _functions(loss_fn):
        owner = getattr(function, "__self__", None)
        dictionaries += [vars(owner)] if hasattr(owner, "__dict__") and not isinstance(owner, nn.Module) else []
    if hasattr(loss_fn, "__dict__"):
        dictionaries.append(vars(loss_fn))
    for dictionary in dictionaries:
        yield from ((dictionary, key) for key, value in dictionary.items() if isinstance(value, PLAIN))
    forwards = {type(module).forward for module in model.modules() if not type(module).__module__.startswith("torch.")}
    for function in (*_functions(loss_fn), *forwards):
        plain = getattr(function, "__func__", function)
        if hasattr(plain, "__code__"):
            space = plain.__globals__
            yield from ((space, name) for name in plain.__code__.co_names if isinstance(space.get(name, ...), PLAIN))


def _functions(loss_fn: Any) -> Iterator[Any]:
    while isinstance(loss_fn, functools.partial):
        loss_fn = loss_fn.func
    yield loss_fn
    call = getattr(type(loss_fn), "__call__", None)
    if not hasattr(loss_fn, "__code__") and hasattr(call, "__code__"):
        yield call.__get__(loss_fn)


def _cells(loss_fn: Any) -> Iterator[Any]:
    """What functions carry along: closures, defaults, given arguments."""
    while isinstance(loss_fn, functools.partial):
        yield from (value for value in (*loss_fn.args, *loss_fn.keywords.values()) if isinstance(value, PLAIN))
        loss_fn = loss_fn.func
    plain = getattr(loss_fn, "__func__", loss_fn)
    for cell in getattr(plain, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        yield value if isinstance(value, PLAIN) else id(value)
    yield from (value for value in getattr(plain, "__defaults__", None) or () if isinstance(value, PLAIN))


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
