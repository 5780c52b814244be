"""Results of audits as JSON and back, by the types that they declare.

A dataclass becomes an object with its fields as entries (`metadata={"key": ...}` where the entry is called otherwise,
`metadata={"absent": True}` where it is left out while it is None, `metadata={"inline": True}` where the entries of a
dataclass, unless it is None, stand among those of the outer one), an `Estimate` likewise; lists, tuples, dicts with text as
keys, text, numbers and None as they are. JSON has no infinite numbers: they are `{"number": "inf"}`, since a text may be "inf".
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from noisewise.errors import ConfigError
from noisewise.estimates.estimate import Estimate

NUMBER = "number"  # key of a number that is not finite
_PLAIN: dict[Any, tuple[type, ...]] = {str: (str,), bool: (bool,), int: (int,), float: (int, float)}
_ESTIMATE = {field.name for field in fields(Estimate)}


def encode(value: Any) -> Any:
    """The JSON form."""
    if isinstance(value, Estimate):
        return asdict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _encode_dataclass(value)
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {NUMBER: str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        f"a {type(value).__name__} in a result: only numbers, text, estimates, lists, dicts and dataclasses are saved."
    )


def decode(raw: Any, hint: Any = Any) -> Any:
    """A value of type `hint` from its JSON form; KeyError, TypeError or ValueError if it is none."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _decode_union(raw, arguments)
    if origin in (list, tuple) and isinstance(raw, list):
        if origin is tuple and Ellipsis not in arguments:
            return tuple(decode(item, part) for item, part in zip(raw, arguments, strict=True))
        items = [decode(item, arguments[0] if arguments else Any) for item in raw]
        return tuple(items) if origin is tuple else items
    if origin in (dict, Mapping) and isinstance(raw, Mapping) and not _is_infinite(raw):
        return {key: decode(item, arguments[1]) for key, item in raw.items()}
    if hint is Estimate:
        return Estimate.from_dict(raw)
    if is_dataclass(hint):
        return _decode_dataclass(raw, hint)
    if hint is float and isinstance(raw, Mapping):
        return _infinite(raw)
    if hint is Any or hint is dict or hint is list:
        return _decode_anything(raw)
    if raw is None and hint in (None, type(None)):
        return None
    if hint in _PLAIN and isinstance(raw, _PLAIN[hint]) and (hint is bool or not isinstance(raw, bool)):
        return raw
    raise TypeError(f"{raw!r} where {getattr(hint, '__name__', hint)} is expected")


def _decode_union(raw: Any, hints: tuple[Any, ...]) -> Any:
    for hint in hints:
        try:
            return decode(raw, hint)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    raise TypeError(f"{raw!r} fits none of {hints}")


def _encode_dataclass(value: Any) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for field in fields(value):
        part = getattr(value, field.name)
        if field.metadata.get("inline"):
            entries |= {} if part is None else encode(part)
        elif part is not None or not field.metadata.get("absent"):
            entries[_key(field)] = encode(part)
    return entries


def _decode_dataclass(raw: Any, kind: Any) -> Any:
    hints, known, given = _hints(kind), set(), {}
    for field in fields(kind):
        hint = hints[field.name]
        if field.metadata.get("inline"):
            given[field.name], keys = _decode_inline(raw, hint)
            known |= keys
        elif _key(field) in raw or not field.metadata.get("absent"):
            given[field.name] = decode(raw[_key(field)], hint)
            known.add(_key(field))
    if unknown := set(raw) - known:
        raise KeyError(f"unknown entries {sorted(unknown)}")
    return kind(**given)


def _decode_inline(raw: Any, hint: Any) -> tuple[Any, set[str]]:
    """A dataclass (one of several) from the entries around it, and which these are; None where it has none."""
    wanted = [{_key(field) for field in fields(part)} for part in get_args(hint) if part is not type(None)]
    entries = {key: item for key, item in raw.items() if any(key in keys for keys in wanted)}
    return decode(entries, hint) if entries else None, set(entries)


def _decode_anything(raw: Any) -> Any:
    if isinstance(raw, Mapping):
        if set(raw) == _ESTIMATE:
            return Estimate.from_dict(raw)
        if _is_infinite(raw):
            return _infinite(raw)
        return {key: _decode_anything(item) for key, item in raw.items()}
    return [_decode_anything(item) for item in raw] if isinstance(raw, list) else raw


def _infinite(raw: Mapping[str, Any]) -> float:
    return float(raw[NUMBER])


def _is_infinite(raw: Any) -> bool:
    return isinstance(raw, Mapping) and set(raw) == {NUMBER} and isinstance(raw[NUMBER], str)


def _key(field: Any) -> str:
    return str(field.metadata.get("key", field.name))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
