"""What a model and its loss hold between two passes: tensors, arrays and numbers in attributes, containers and closures.

A private step may change none of it: what is left behind by one unit would reach the gradients of others, without noise.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noisewise.errors import PrivacyError

DEPTH = 6


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def held(model: nn.Module, loss_fn: Any) -> dict[str, Any]:
    """Name -> what stands there now, in a form that can be compared: a digest of the content, or the number itself."""
    return {name: _content(value) for name, value in _reachable(model, loss_fn)}


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
        "replace BatchNorm by GroupNorm with noisewise.convert.batchnorm_to_groupnorm(model)."
    )


_NOTHING = object()


def _same(one: Any, two: Any) -> bool:
    return one is two or one == two or (one != one and two != two)  # not a number is what it was


def _content(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (tuple(value.shape), str(value.dtype), _checksum(value))
    if isinstance(value, np.ndarray):
        return (value.shape, str(value.dtype), hashlib.blake2b(np.ascontiguousarray(value).tobytes()).hexdigest())
    return value


def _checksum(tensor: Tensor) -> tuple[int, ...]:
    """Two sums over the bits of a tensor, one of them weighted by position: equal for equal tensors, on its device."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if not flat.numel():
        return ()
    spare = -flat.numel() % 8
    words = torch.nn.functional.pad(flat, (0, spare)).view(torch.int64)
    weights = torch.arange(1, len(words) + 1, device=words.device)
    return tuple(torch.stack([words.sum(), (words * weights).sum()]).tolist())


def _reachable(model: nn.Module, loss_fn: Any) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for name, module in model.named_modules():
        seen.add(id(module))
        for key, value in vars(module).items():
            if key == "_modules" or key.endswith("_hooks") or "_hooks_" in key:
                continue
            prefix = f"{name}." if name else ""
            if key in ("_parameters", "_buffers"):
                yield from ((f"{prefix}{k}", v) for k, v in value.items() if v is not None)
            else:
                yield from _walk(f"{prefix}{key}", value, seen, DEPTH)
    yield from _walk_function("loss_fn", loss_fn, seen, DEPTH)


def _walk(name: str, value: Any, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    if value is None or isinstance(value, bool | int | float | complex | Tensor | np.ndarray):
        yield name, value
    elif isinstance(value, str | bytes | type | torch.dtype | torch.device) or depth == 0 or id(value) in seen:
        return
    else:
        seen.add(id(value))
        if isinstance(value, Mapping):
            parts = [(f"{name}[{key!r}]", item) for key, item in value.items()]
        elif isinstance(value, list | tuple | set | frozenset):
            yield f"len({name})", len(value)
            parts = [(f"{name}[{place}]", item) for place, item in enumerate(value)]
        elif isinstance(value, nn.Module):
            parts = [(f"{name}.{key}", item) for key, item in own_tensors(value).items()]
        elif callable(value) and hasattr(value, "__code__"):
            yield from _walk_function(name, value, seen, depth - 1)
            return
        elif dataclasses.is_dataclass(value) or type(value).__module__ not in ("builtins", "torch"):
            parts = [(f"{name}.{key}", item) for key, item in getattr(value, "__dict__", {}).items()]
        else:
            return
        for part, item in parts:
            yield from _walk(part, item, seen, depth - 1)


def _walk_function(name: str, function: Any, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """What a function has in its closure, its defaults, the object it is bound to, and the globals that it names."""
    owner = getattr(function, "__self__", None)
    if owner is not None:
        yield from _walk(f"{name}.__self__", owner, seen, depth)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        yield from _walk(name, vars(function) if hasattr(function, "__dict__") else None, seen, depth)
        return
    for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield from _walk(f"{name}.{key}", cell.cell_contents, seen, depth)
        except ValueError:  # not filled yet
            continue
    yield from _walk(f"{name}.defaults", (function.__defaults__, function.__kwdefaults__), seen, depth)
    for key in code.co_names:
        value = function.__globals__.get(key)
        if isinstance(value, Tensor | np.ndarray | list | dict | set):
            yield from _walk(f"{name}.{key}", value, seen, depth)
