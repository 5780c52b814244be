"""Recipes as a user writes them: `NAME` or `NAME:key=value,...`, e.g. `scattering-linear:views=same/flip`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast, get_type_hints

from noisewise.data import Data
from noisewise.errors import ConfigError
from noisewise.recipes import RECIPES, Course, Features, NamedRecipe
from noisewise.recipes.centre import worth_it
from noisewise.recipes.settings import fitting
from noisewise.workflow.written import converted, settings_of


def parsed(text: str) -> tuple[type[NamedRecipe], dict[str, Any]]:
    """The recipe that a text names, and the settings of its features that it gives; lists are written `same/flip`."""
    name, _, rest = text.partition(":")
    if name not in RECIPES:
        raise ConfigError(f"recipe {name!r}: unknown. Known recipes: {', '.join(RECIPES)}.")
    kind = RECIPES[name]
    hints, given = get_type_hints(kind.features), dict[str, Any]()
    for key, value in settings_of(text, rest, "recipe", "scattering-linear:scales=2/3").items():
        if key not in kind.known():
            raise ConfigError(f"recipe {text!r}: there is no {key!r}. Known are {', '.join(kind.known())}.")
        try:
            given[key] = converted(key, value, hints[key])
        except ConfigError as error:
            raise ConfigError(f"recipe {text!r}: {error}") from None
    return kind, given


def complete(text: str, weights: Path | None = None) -> tuple[type[NamedRecipe], Features]:
    """The recipe of a config, whose text says everything. `weights`: a copy of its encoder, in place of the one it names."""
    kind, given = parsed(text)
    if weights is not None and weights.exists() and "weights" in given:
        given["weights"] = str(weights)
    return kind, kind.made(given)


def weights_of(text: str | None) -> str | None:
    """The file of the encoder that a recipe names, if it does."""
    return None if text is None else parsed(text)[1].get("weights")


def filled(text: str, data: Data, epsilon: float | None, name: str) -> tuple[str, Course]:
    """The text with everything that was not said, and how the recipe learns on these images. `name`: of the data set."""
    kind, given = parsed(text)
    if data.x.dim() != 4 or data.task != "classification":
        raise ConfigError(
            f"recipe {kind.name!r} on inputs of shape {list(data.x.shape[1:])} ({data.task}): needs images [channels, height, "
            "width] with classes. Leave --recipe out: tables and texts have defaults of their own."
        )
    course = kind.course(data.units, epsilon, int(data.x.shape[1]), name)
    shape = tuple(map(int, data.x.shape[1:]))
    features = kind.made({"shape": shape, **fitting(course, shape), **given}, course)
    features.check(shape)
    if "centre" not in given and features.centre and not worth_it(features, shape, data.units):
        features = replace(cast(Any, features), centre=0.0)
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
    return f"{value:g}" if isinstance(value, float) else str(value)
