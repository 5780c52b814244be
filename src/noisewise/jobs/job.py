"""A job: a function by its name, settings as JSON, and a key. So it can be written down, compared, and sent."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from noisewise.errors import ConfigError

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+-]{0,119}")


@dataclass(frozen=True)
class Job:
    """`function(**settings)`, known by its key.

    Args:
        key: names the file of its result.
        function: of a module, where another process shall do the job: it is found there by its name.
        settings: as JSON, and so is what the function returns.
        gpu: does it need a GPU? Ray then gives it one, or a share.
        of: what the result depends on, as JSON, if that is something else than the function's name and the settings.
    """

    key: str
    function: Callable[..., Any]
    settings: Mapping[str, Any]
    gpu: bool = False
    of: Any = None

    def __post_init__(self) -> None:
        """A key that names a file, settings that can be written down."""
        if not KEY.fullmatch(self.key):
            raise ConfigError(f"job {self.key!r}: a key has at most 120 letters, digits and . _ = , + - only.")
        try:
            json.dumps([dict(self.settings), self.of], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"job {self.key}: its settings cannot be written as JSON ({error}).") from None

    @property
    def digest(self) -> str:
        """Of what the result depends on: a stored result must be of the same."""
        known = (
            [self.function.__module__, self.function.__qualname__, dict(self.settings)] if self.of is None else self.of
        )
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def name_of(function: Callable[..., Any]) -> str:
    """`module:name`, by which another process finds a function; one that it could not find is refused."""
    module, name = getattr(function, "__module__", "") or "", getattr(function, "__qualname__", "")
    if module == "__main__" or getattr(sys.modules.get(module), name, None) is not function:
        raise ConfigError(
            f"{function!r} is no function of a module, so no other process could find it: define it at the top of a file that "
            "can be imported, or use one local process."
        )
    return f"{module}:{name}"


def named(name: str) -> Callable[..., Any]:
    """The function that `name_of` has named."""
    module, _, attribute = name.partition(":")
    try:
        function: Callable[..., Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{name} cannot be imported here ({error}): its file must be installed, or on PYTHONPATH, wherever jobs run."
        ) from None
    return function


def described(function: Callable[..., Any]) -> dict[str, Any]:
    """A function of a module, or a `functools.partial` of one with named settings, as JSON; see `name_of`.

    >>> from functools import partial
    >>> described(partial(sorted, reverse=True))
    {'function': 'builtins:sorted', 'settings': {'reverse': True}}
    """
    if not isinstance(function, partial):
        return {"function": name_of(function), "settings": {}}
    if function.args:
        raise ConfigError(f"{function!r}: give its settings by name, e.g. partial(SGD, lr=0.5).")
    try:
        json.dumps(function.keywords, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{function!r}: its settings cannot be written as JSON ({error}).") from None
    return {"function": name_of(function.func), "settings": dict(function.keywords)}


def rebuilt(description: Mapping[str, Any]) -> Callable[..., Any]:
    """What `described` has described."""
    function = named(description["function"])
    return partial(function, **description["settings"]) if description["settings"] else function
