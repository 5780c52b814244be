"""What a model and its loss hold between two passes: in attributes, containers, closures, classes, globals and caches.

A private step may change none of it: what is left behind by one unit would reach the gradients of others, without noise.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import sysconfig
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noisewise.errors import PrivacyError
from noisewise.persample.lent import is_lent

DEPTH = 6
PLAIN = (bool, int, float, complex, str, bytes, bytearray, array, np.generic, np.ndarray, Tensor)


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def held(model: nn.Module, loss_fn: Any) -> dict[str, Any]:
    """Name -> what stands there now, in a form that can be compared: a digest of the content, or the number itself."""
    return {name: _content(value) for name, value in reachable(model, loss_fn)}


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Names of what was changed, added or removed; whole numbers may count on."""
    return [
        name
        for name in {**before, **after}
        if not _same(before.get(name, _NOTHING), after.get(name, _NOTHING))
        and not (type(before.get(name)) is type(after.get(name)) is int and not name.startswith("len("))
    ]


def self_changing(names: list[str]) -> PrivacyError:
    """The error for layers that a forward pass changes."""
    return PrivacyError(
        f"a forward pass changes {names}: running statistics, renormed weights or a memory of earlier units would let records "
        "out without noise. Switch this off (model.eval(), track_running_stats=False, max_norm=None, keep no activations) or "
        "replace BatchNorm by GroupNorm with noisewise.models.convert.batchnorm_to_groupnorm(model)."
    )


_NOTHING = object()


def _same(one: Any, two: Any) -> bool:
    return one is two or one == two or (one != one and two != two)  # not a number is what it was


def _content(value: Any) -> Any:
    if isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value):
        return object()  # got out of a unit's own evaluation: like nothing that was there before
    if isinstance(value, Tensor) and is_lent(value):
        return id(value)
    if isinstance(value, Tensor):
        return (tuple(value.shape), str(value.dtype), _checksum(value))
    if isinstance(value, np.ndarray):
        return (value.shape, str(value.dtype), hashlib.blake2b(np.ascontiguousarray(value).tobytes()).hexdigest())
    return bytes(value) if isinstance(value, bytearray | array) else value


def counts(model: nn.Module, loss_fn: Any) -> dict[str, int]:
    """Name -> whole number; a pass may count on, but not by what it sees."""
    return {name: value for name, value in reachable(model, loss_fn) if type(value) is int}


def _checksum(tensor: Tensor) -> tuple[int, ...]:
    """Two sums over the bits of a tensor, one of them weighted by position: equal for equal tensors, on its device."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if not flat.numel():
        return ()
    spare = -flat.numel() % 8
    words = torch.nn.functional.pad(flat, (0, spare)).view(torch.int64)
    weights = torch.arange(1, len(words) + 1, device=words.device)
    return tuple(torch.stack([words.sum(), (words * weights).sum()]).tolist())


def reachable(model: nn.Module, loss_fn: Any, seen: dict[int, Any] | None = None) -> Iterator[tuple[str, Any]]:
    """Name -> numbers, texts, arrays and tensors that a pass can reach; `seen` takes up by id what they were found in."""
    seen = {} if seen is None else seen  # the objects too, so that no other gets the number of one that is gone
    for name, module in model.named_modules():
        seen[id(module)] = module
        yield from _walk_module(f"{name}." if name else "", module, seen, DEPTH)
    yield from _walk("loss_fn", loss_fn, seen, DEPTH)


def _walk_module(prefix: str, module: nn.Module, seen: dict[int, Any], depth: int) -> Iterator[tuple[str, Any]]:
    """What one module has, without the modules in it: parameters, buffers, other attributes, and those of its class."""
    for key, value in vars(module).items():
        if key == "_modules":
            continue
        if key in ("_parameters", "_buffers"):
            yield from ((f"{prefix}{k}", v) for k, v in value.items() if v is not None)
        else:
            yield from _walk(f"{prefix}{key}", value, seen, depth)
    yield from _walk_class(type(module), seen, depth)


def _walk_class(kind: type, seen: dict[int, Any], depth: int) -> Iterator[tuple[str, Any]]:
    """What a class and those that it is made of share among their objects, and what their functions reach."""
    for part in kind.__mro__:
        if part.__module__.partition(".")[0] in ("builtins", "torch", "noisewise") or id(part) in seen:
            continue
        seen[id(part)] = part
        for key, value in vars(part).items():
            value = getattr(value, "__func__", getattr(value, "fget", value))  # static, of the class, a property
            if not key.startswith("__") or isinstance(value, FunctionType):
                yield from _walk(f"{part.__name__}.{key}", value, seen, depth)


def _walk(name: str, value: Any, seen: dict[int, Any], depth: int) -> Iterator[tuple[str, Any]]:
    if value is None or isinstance(value, PLAIN):
        yield name, value
    elif isinstance(value, torch.Generator):
        yield f"{name}.get_state()", value.get_state()
    elif isinstance(value, type | ModuleType | torch.dtype | torch.device) or depth == 0 or id(value) in seen:
        return
    else:
        seen[id(value)] = value
        parts: Iterable[tuple[str, Any]] = ()
        if isinstance(value, Mapping):
            parts = [(f"{name}[{key!r}]", item) for key, item in value.items()]
        elif isinstance(value, list | tuple | set | frozenset | deque):
            yield f"len({name})", len(value)
            parts = [(f"{name}[{place}]", item) for place, item in enumerate(value)]
        elif isinstance(value, nn.Module):
            for key, module in value.named_modules():
                yield from _walk_module(f"{name}.{key}." if key else f"{name}.", module, seen, depth - 1)
        elif isinstance(value, FunctionType | MethodType):
            yield from _walk_function(name, value, seen, depth - 1)
        elif isinstance(value, functools.partial):
            parts = [(f"{name}.func", value.func), (f"{name}.args", value.args), (f"{name}.keywords", value.keywords)]
        elif hasattr(value, "cache_info") and hasattr(value, "__wrapped__"):
            yield f"len({name})", value.cache_info().currsize
            parts = [(name, value.__wrapped__)]
        elif dataclasses.is_dataclass(value) or type(value).__module__ not in ("builtins", "torch"):
            parts = [(f"{name}.{key}", item) for key, item in attributes_of(value)]
            yield from _walk_class(type(value), seen, depth - 1)
        for part, item in parts:
            yield from _walk(part, item, seen, depth - 1)


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    """What an object has, in its dictionary or in slots."""
    slots = [slot for kind in type(value).__mro__ for slot in _names(vars(kind).get("__slots__", ()))]
    return [*getattr(value, "__dict__", {}).items(), *((slot, getattr(value, slot, None)) for slot in slots)]


def _names(slots: Any) -> Iterable[str]:
    names = (slots,) if isinstance(slots, str) else slots
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _walk_function(name: str, function: Any, seen: dict[int, Any], depth: int) -> Iterator[tuple[str, Any]]:
    """What a function has in its closure, its defaults, its attributes, the object it is bound to, and the globals it names.

    Of functions that come with a library the globals are left alone.
    """
    owner = getattr(function, "__self__", None)
    if owner is not None:
        yield from _walk(f"{name}.__self__", owner, seen, depth)
    function = getattr(function, "__func__", function)
    code = function.__code__
    for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield from _walk(f"{name}.{key}", cell.cell_contents, seen, depth)
        except ValueError:  # not filled yet
            continue
    yield from _walk(f"{name}.defaults", (function.__defaults__, function.__kwdefaults__), seen, depth)
    yield from _walk(name, vars(function), seen, depth)
    for key in () if _of_a_library(code.co_filename) else globals_named(code):
        value = function.__globals__.get(key)
        if value is not None and not (isinstance(value, FunctionType) and _of_a_library(value.__code__.co_filename)):
            yield from _walk(f"{name}.{key}", value, seen, depth)


def globals_named(code: CodeType) -> set[str]:
    """Names of globals and attributes in a function and in those that it defines."""
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*map(globals_named, inner))


@functools.cache
def _of_a_library(file: str) -> bool:
    roots = (sysconfig.get_path("stdlib"), os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return "site-packages" in file or "dist-packages" in file or file.startswith(roots)
