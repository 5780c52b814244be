"""From what a user says to a complete config: `configure`, which fills in defaults, and `plan`, with data and recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from noisewise.data import Splits
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError
from noisewise.sampling import steps_for
from noisewise.workflow.checks import check_recipe, check_together
from noisewise.workflow.choices import takes
from noisewise.workflow.defaults import filled_in
from noisewise.workflow.plan import Planned, splits_of
from noisewise.workflow.recipe_specs import agree
from noisewise.workflow.settings import Config

__all__ = ["Config", "configure", "plan"]

PLAN = (
    "data", "valid", "test", "drop_unlabelled", "epsilon", "delta", "adjacency", "sampler", "batch_size", "steps", "clip",
    "repairs", "recipe",
)  # fmt: skip


def configure(
    base: Config | None = None, *, epochs: float | None = None, schema: Schema | None = None, **given: Any
) -> Config:
    """A complete config from what the user gave: over `base`, else over the defaults of the data set.

    Gives a noise multiplier to a config that has only an epsilon (a few seconds); keeps it where the plan is unchanged.
    """
    return plan(base, epochs=epochs, schema=schema, **given).config


def plan(
    base: Config | None = None, *, epochs: float | None = None, schema: Schema | None = None, **given: Any
) -> Planned:
    """As `configure`, with the data that were loaded and the recipe that was built for it. `schema`: of a table."""
    given = {name: value for name, value in given.items() if value is not None}
    unknown = set(given) - {field.name for field in fields(Config)}
    if unknown:
        raise ConfigError(f"unknown settings {', '.join(sorted(unknown))}.")
    check_together(given, epochs)
    check_recipe(given)
    if base is not None:
        _check_recipe_of(base, given)
    splits: Splits | None = None
    if base is None:
        settings, splits = filled_in(given, epochs, schema)
    else:
        settings = asdict(base) | {name: value for name, value in given.items() if name != "recipe"}
        if not takes(settings["clip"], "screen") and "screen" not in given:
            settings["screen"] = None
        if epochs is not None:
            splits = splits_of(settings, schema)
            settings["steps"] = steps_for(epochs, splits.train.units, settings["batch_size"])
        if "noise_multiplier" in given:
            settings["epsilon"] = None
        elif settings["epsilon"] is not None and any(settings[name] != getattr(base, name) for name in PLAN):
            settings["noise_multiplier"] = None
    config = Config(**settings)
    planned = Planned(config, splits_of(asdict(config), schema) if splits is None else splits)
    recipe = planned.recipe  # refuses what cannot be planned
    if config.noise_multiplier is None:
        config = replace(config, noise_multiplier=recipe.mechanism.noise_at(0))
    return Planned(config, planned.data, recipe)


def _check_recipe_of(base: Config, given: Mapping[str, Any]) -> None:
    """A recipe decides on model, features and how it learns, all of which a config has already: only the same one fits."""
    if given.get("recipe") is not None and (base.recipe is None or not agree(given["recipe"], base.recipe)):
        has = "no recipe" if base.recipe is None else f"the recipe {base.recipe!r}"
        raise ConfigError(
            f"recipe {given['recipe']!r} over settings with {has}: it has a model, features and a plan of its own. Leave it "
            "out, or begin without the config (and in another folder)."
        )
    if base.recipe is not None and given.get("model") not in (None, base.model):
        raise ConfigError(
            f"model {given['model']!r} over settings with the recipe {base.recipe!r}, which has a model of its own. Leave it "
            "out, or begin without the config."
        )
