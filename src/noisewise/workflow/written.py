"""Values as a user writes them in `key=value`: texts become what a type hint asks for."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any, Literal, Union, get_args, get_origin

from noisewise.errors import ConfigError


def converted(name: str, text: str, hint: Any) -> Any:
    """A text as what a type hint asks for: numbers, yes or no, names, lists of them.

    >>> converted("shares", "0.2/0.4", tuple[float, ...])
    (0.2, 0.4)
    """
    kinds = [kind for kind in _alternatives(hint) if kind is not type(None)]
    if len(kinds) < len(_alternatives(hint)) and text == "none":
        return None
    for kind in kinds:
        if get_origin(kind) is Literal and text in get_args(kind):
            return text
        if get_origin(kind) in (tuple, list, Sequence):
            inner = get_args(kind)[0]
            return tuple(converted(name, part, inner) for part in text.split("/"))
        if kind is bool and text.lower() in YES_OR_NO:
            return YES_OR_NO[text.lower()]
        if kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        if kind is str:
            return text
    raise ConfigError(f"{name}={text}: must be {_words(kinds)}.")


YES_OR_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _words(kinds: list[Any]) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}
    words = [
        f"one of {', '.join(get_args(kind))}" if get_origin(kind) is Literal else names.get(kind, "written in code")
        for kind in kinds
    ]
    return " or ".join(words)
