"""Recipes as a user writes them: `NAME` or `NAME:key=value,...`, e.g. `scattering-linear:views=same/flip`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast, get_type_hints

from noisewise.data import Data
from noisewise.errors import ConfigError
from noisewise.recipes import Course, Features, NamedRecipe, recipe_named
from noisewise.recipes.own_images import completed
from noisewise.workflow.written import converted, settings_of


def parsed(text: str) -> tuple[type[NamedRecipe], dict[str, Any]]:
    """The recipe that a text names, and the settings of its features that it gives; lists are written `same/flip`."""
    name, _, rest = text.partition(":")
    kind = recipe_named(name)
    hints, given = get_type_hints(kind.features), dict[str, Any]()
    for key, value in settings_of(text, rest, "recipe", "scattering-linear:scales=2/3").items():
        if key not in hints or key == "version":
            raise ConfigError(f"recipe {text!r}: there is no {key!r}. Known are {', '.join(kind.known())}.")
        try:
            given[key] = converted(key, value, hints[key])
        except ConfigError as error:
            raise ConfigError(f"recipe {text!r}: {error}") from None
    return kind, given


def complete(text: str, weights: Path | None = None) -> tuple[type[NamedRecipe], Features]:
    """The recipe of a config, whose text says everything. `weights`: a copy of its encoder, in place of the one it names."""
    kind, given = parsed(text)
    if weights is not None and weights.exists() and "weights" in kind.known():
        given["weights"] = str(weights)
    return kind, kind.made(given)


def agree(said: str, whole: str) -> bool:
    """Does a text name the recipe of a complete text, and nothing that differs from it?"""
    (kind, given), (other, settings) = parsed(said), parsed(whole)
    settings = {**other.usual(), **settings}
    return kind is other and all(settings.get(key) == value for key, value in given.items())


def sides_of(text: str) -> int:
    """How many views stand side by side in a unit by a config's text; the encoder may be elsewhere by now."""
    kind, given = parsed(text)
    whole = {**kind.usual(), **given}
    return 1 if whole["average"] else len(whole["views"])


def weights_of(text: str | None) -> str | None:
    """The encoder of a recipe that has one, by its file or as what is included."""
    if text is None:
        return None
    kind, given = parsed(text)
    weights: str | None = {**kind.usual(), **given}.get("weights")
    return weights


def filled(text: str, data: Data, epsilon: float | None, name: str) -> tuple[str, Course]:
    """The text with everything that was not said, and how the recipe learns on these images. `name`: of the data set."""
    kind, given = parsed(text)
    features, course = completed(kind, data, epsilon, given, name)
    return written(kind, features), course


def written(kind: type[NamedRecipe], features: Features) -> str:
    """The text of a recipe with all its settings."""
    settings: Mapping[str, Any] = asdict(cast(Any, features))
    return f"{kind.name}:" + ",".join(f"{key}={_text(value)}" for key, value in settings.items() if value != ())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return "/".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
