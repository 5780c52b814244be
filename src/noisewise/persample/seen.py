"""What a captured or examined step has read from Python, once: it must be read anew when one of these is another."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from noisewise.batches import Nest, leaves
from noisewise.persample.held import own_tensors

PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Seen:
    """Modules with all their attributes, parameters, buffers and hooks, where tensors lie, the loss and what it carries.

    Of the loss: its closure, defaults and attributes, and the globals that it and the model's own modules name. Of containers
    and other objects among them, which they are, not what is in them.
    """

    def __init__(self, model: nn.Module, loss_fn: Any, like: Nest):
        self._model, self._loss_fn = model, loss_fn
        self._dictionaries = [(one, dict(one)) for one in _dictionaries(model, loss_fn)]
        self._globals = [(space, name, space[name]) for space, name in _globals(model, loss_fn)]
        self._tensors = list(own_tensors(model).values())
        self._state = self._now(like)

    def _now(self, like: Nest) -> list[Any]:
        tensors = [(tensor.data_ptr(), tensor.requires_grad) for tensor in self._tensors]
        shapes = [(tensor.shape[1:], tensor.dtype, tensor.device) for tensor in leaves(like)]
        autocast = [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")]
        return [*tensors, *shapes, *autocast, *_cells(self._loss_fn)]

    def still(self, model: nn.Module, loss_fn: Any, like: Nest) -> bool:
        """Is all of it as it was, for batches of this form?"""
        try:
            return (
                model is self._model
                and loss_fn is self._loss_fn
                and all(now == then for now, then in self._dictionaries)
                and all(space.get(name, ...) == value for space, name, value in self._globals)
                and self._now(like) == self._state
            )
        except (RuntimeError, ValueError):  # another tensor or array stands somewhere: they have no single truth
            return False


def _dictionaries(model: nn.Module, loss_fn: Any) -> Iterator[dict[str, Any]]:
    """Equal objects in them are told by identity first, so that comparing costs next to nothing."""
    for module in model.modules():
        yield vars(module)
        yield from (vars(module)[key] for key in ("_parameters", "_buffers", "_modules"))
        yield from (value for key, value in vars(module).items() if key.endswith("_hooks"))
    for one in (loss_fn, getattr(loss_fn, "__self__", None)):
        if hasattr(one, "__dict__"):
            yield vars(one)


def _globals(model: nn.Module, loss_fn: Any) -> Iterator[tuple[dict[str, Any], str]]:
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
    if not hasattr(loss_fn, "__code__"):
        yield vars(type(loss_fn)).get("__call__")


def _cells(loss_fn: Any) -> Iterator[Any]:
    """What functions carry along: closures, defaults, given arguments; of objects which they are."""
    while isinstance(loss_fn, functools.partial):
        yield from (_plain(value) for value in (*loss_fn.args, *loss_fn.keywords.values()))
        loss_fn = loss_fn.func
    plain = getattr(loss_fn, "__func__", loss_fn)
    for cell in getattr(plain, "__closure__", None) or ():
        try:
            yield _plain(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    yield from map(_plain, getattr(plain, "__defaults__", None) or ())


def _plain(value: Any) -> Any:
    return value if isinstance(value, PLAIN) else id(value)


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
