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


def settings_of(
    text: str, rest: str, what: str = "repair", like: str = "random-sparsification:final=0.9"
) -> dict[str, str]:
    """What `key=value,...` says; `text`: the whole, `what` it is and one `like` it, for errors.

    >>> settings_of("lora:rank=4,alpha=2", "rank=4,alpha=2")
    {'rank': '4', 'alpha': '2'}
    """
    settings: dict[str, str] = {}
    for item in rest.split(",") if rest else ():
        key, equals, value = item.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key or not value.strip():
            raise ConfigError(f"{what} {text!r}: {item!r} is no key=value, as in {like}; values hold no commas.")
        if key in settings:
            raise ConfigError(f"{what} {text!r}: {key!r} is given twice.")
        settings[key] = value.strip()
    return settings


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
