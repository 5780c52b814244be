"""Models as a user writes them: `NAME`, `NAME:key=value,...` or `FILE.py:FUNCTION`, e.g. `mlp:widths=200/100`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

from torch import nn

from noisewise.errors import ConfigError
from noisewise.models import MODELS, build
from noisewise.workflow.written import converted


def build_model(text: str, shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
    """The model that a text names, initialised by a public seed."""
    if ".py:" in text:
        return build(text, shape, outputs, seed)
    name, _, rest = text.partition(":")
    return build(name, shape, outputs, seed, **options(name, rest))


def options(name: str, text: str) -> dict[str, Any]:
    """A model's own settings from `key=value,...`; lists are written `200/100`."""
    if not text or name not in MODELS:
        return {}
    hints, known = get_type_hints(MODELS[name]), list(inspect.signature(MODELS[name]).parameters)[2:]
    given: dict[str, Any] = {}
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in known:
            raise ConfigError(
                f"model {name}:{text}: {item!r} must be KEY=VALUE with one of {', '.join(known) or 'none'}."
            )
        given[key] = converted(key, value, hints[key])
    return given


def named(name: str, settings: Mapping[str, Any]) -> str:
    """The text of a model with its settings.

    >>> named("table", {"knots": 6, "hidden": 0})
    'table:knots=6,hidden=0'
    """
    words = ",".join(f"{key}={value}" for key, value in settings.items())
    return f"{name}:{words}" if words else name
