"""Settings by data set, for what a user does not say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noisewise.accounting.defaults import default_adjacency, default_delta
from noisewise.data import Data, Splits
from noisewise.data.catalog import CATALOG
from noisewise.data.tables.kinds import Target
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError
from noisewise.losses import outputs_for
from noisewise.recipes.base import NOMINAL
from noisewise.sampling import FullBatch, steps_for
from noisewise.workflow.checks import check_privacy
from noisewise.workflow.model_specs import named
from noisewise.workflow.plan import raw_splits, splits_of, with_features
from noisewise.workflow.recipe_specs import complete, filled
from noisewise.workflow.recommended import recommended

ADAPTIVE_LR = 0.01  # Adam and the like, where no learning rate is given


def filled_in(
    given: Mapping[str, Any], epochs: float | None, schema: Schema | None = None
) -> tuple[dict[str, Any], Splits]:
    """All settings of a run from those that were given, and the data, which some of them depend on."""
    check_privacy(given)
    data, seed = given.get("data", "digits"), given.get("seed", 0)
    known = dict(CATALOG[data].settings) if data in CATALOG else {}
    asked = {**given, "data": data, "seed": seed, "valid": given.get("valid", known.get("valid"))}
    splits, of_recipe = (splits_of(asked, schema), {}) if "recipe" not in given else _of_recipe(asked)
    n = splits.train.units
    sampler = given.get("sampler", "poisson")
    known = {**_for_tables(given, splits.train), **known, **of_recipe}
    batch_size = given.get("batch_size", n if sampler == FullBatch.kind else known.get("batch_size", 256))
    if sampler == FullBatch.kind and batch_size != n:
        raise ConfigError(
            f"batch_size={batch_size} with the full-batch sampler: leave it out, every step sees all {n}."
        )
    planned = known.get("steps") if epochs is None else None
    epochs = known.pop("epochs", 30) if epochs is None else epochs
    steps = given["steps"] if "steps" in given else planned or steps_for(epochs, n, batch_size)
    adaptive = given.get("optimizer", "sgd") != "sgd"
    lr = given.get("lr", ADAPTIVE_LR if adaptive else _rate(given, known))
    settings = {
        "data": data,
        "valid": len(splits.valid),
        "model": known.get("model", _model_for(splits.train)),
        "seed": seed,
        "delta": default_delta(n),
        "adjacency": default_adjacency(sampler),
        "sampler": sampler,
        "batch_size": batch_size,
        "steps": steps,
        "clip": "flat",
        "bound": known.get("bound", 1.0),
        "optimizer": "sgd",
        "lr": lr,
        "momentum": 0.9,
        "ema": known.get("ema"),
        "twin": True,
        "twin_lr": lr if adaptive else known.get("twin_lr", 0.1),
        "engine": "auto",
    }
    settings |= {
        name: of_recipe[name] for name in ("recipe", "momentum", "schedule") if of_recipe.get(name) is not None
    }
    given = {name: value for name, value in given.items() if name != "recipe"}
    return settings | given, splits


def _of_recipe(asked: Mapping[str, Any]) -> tuple[Splits, dict[str, Any]]:
    """Features in place of images, and the settings with which a recipe learns on them.

    Another batch size than the recipe's sees each unit as often.
    """
    parts = raw_splits(asked)
    text, course = filled(asked["recipe"], parts.train, asked.get("epsilon"), asked["data"])
    kind, features = complete(text)
    entries = course.settings(parts.train.units, asked.get("epsilon", NOMINAL)) | {
        "recipe": text,
        "model": kind.model(features),
    }
    if "batch_size" in asked or "sampler" in asked:
        entries["epochs"] = entries.pop("steps") * entries.pop("batch_size") / parts.train.units
    return with_features(parts, {**asked, "recipe": text}), entries


def _rate(given: Mapping[str, Any], known: Mapping[str, Any]) -> float:
    """The usual learning rate; that of a recipe is for its bound, and another bound keeps their product."""
    usual = float(known.get("lr", 0.5))
    return usual * known["bound"] / given["bound"] if "recipe" in known and "bound" in given else usual


def _for_tables(given: Mapping[str, Any], data: Data) -> dict[str, Any]:
    """Settings that need no search, for columns that a schema made; none where the user chose the model.

    Another batch size or sampler than the recommended one keeps model and optimizer, and sees each row as often.
    """
    target = None if data.schema is None else data.schema.target
    if (
        "model" in given
        or data.x.dim() != 2
        or target is None
        or (isinstance(target, Target) and target.offset is None)
    ):
        return {}
    settings = recommended(data.units, data.x.shape[1], given.get("epsilon", NOMINAL), data.task, outputs_for(data))
    entries = settings.config() | {"model": named(settings.model, settings.options)}
    if "batch_size" in given or "sampler" in given:
        entries["epochs"] = entries.pop("steps") * entries.pop("batch_size") / data.units
    return entries


def _model_for(data: Data) -> str:
    """A model that fits the inputs: convolutions for images, layers for columns, word vectors for tokens."""
    if data.x.dim() == 2 and not data.x.is_floating_point():
        return "words"
    return {4: "cnn", 3: "two-layer-cnn"}.get(data.x.dim(), "mlp")
