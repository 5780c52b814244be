"""What settings may be, one by one: known names and numbers in range. Light, so that mistakes are said at once."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, get_args

from noisewise.accounting.accountants import ADJACENCIES, check_delta
from noisewise.data.catalog import CATALOG
from noisewise.errors import ConfigError
from noisewise.rates import LearningRate
from noisewise.runtime import Engine, Memory
from noisewise.sampling import SAMPLERS
from noisewise.workflow.choices import CLIPS, MODEL_NAMES, OPTIMIZERS, RECIPE_NAMES, REPAIR_NAMES, takes

WHOLE = {
    "batch_size": 1,
    "steps": 1,
    "microbatch": 1,
    "valid": 0,
    "seed": 0,
    "insecure_seed": 0,
    "seeds": 1,
    "processes": 1,
    "keep_states": 1,
}  # and the least each may be
ABOVE_ZERO = {"epsilon": "3", "epochs": "20", "lr": "0.1", "twin_lr": "0.1", "bound": "1", "screen": "10"}
CHOICES = {
    "clip": tuple(CLIPS), "optimizer": tuple(OPTIMIZERS), "sampler": tuple(SAMPLERS), "adjacency": tuple(ADJACENCIES),
    "engine": get_args(Engine), "memory": get_args(Memory),
}  # fmt: skip


NUMBERS = {**ABOVE_ZERO, "noise_multiplier": "1.0", "momentum": "0.9", "ema": "0.9999", "delta": "1e-5"}
TEXTS = {"clip": "flat", "model": "mlp", "recipe": "scattering-linear", "schedule": "linear", "device": "cpu"}


def _check_kinds(said: Mapping[str, Any]) -> None:
    """Numbers, texts and a list of texts; a file of settings may hold anything."""
    for name, example in NUMBERS.items():
        if name in said and (isinstance(said[name], bool) or not isinstance(said[name], int | float)):
            raise ConfigError(f"{name}={said[name]!r}: must be a number, e.g. {example}.")
    for name, example in TEXTS.items():
        if name in said and not isinstance(said[name], str):
            raise ConfigError(f"{name}={said[name]!r}: must be a text, e.g. {example!r}.")
    repairs = said.get("repairs", ())
    if not isinstance(repairs, list | tuple) or not all(isinstance(text, str) for text in repairs):
        raise ConfigError(f"repairs={repairs!r}: must be a list of texts, e.g. ['moving-average'].")


def check_settings(given: Mapping[str, Any]) -> None:
    """Refuse a setting that can mean nothing; those that are not given, or None, are passed over."""
    said = {name: value for name, value in given.items() if value is not None}
    _check_kinds(said)
    for name, least in WHOLE.items():
        if name in said and (type(said[name]) is not int or said[name] < least):
            raise ConfigError(f"{name}={said[name]!r}: must be a whole number >= {least}.")
    for name, example in ABOVE_ZERO.items():
        if name in said and not 0 < said[name] < math.inf:
            raise ConfigError(f"{name}={said[name]}: must be a number above 0, e.g. {example}.")
    for name, known in CHOICES.items():
        own = name == "clip" and ".py:" in str(said.get(name))
        if name in said and said[name] not in known and not own:
            or_own = ", or FILE.py:NAME" if name == "clip" else ""
            raise ConfigError(f"{name}={said[name]!r}: must be one of {', '.join(known)}{or_own}.")
    if "noise_multiplier" in said and not 0 <= said["noise_multiplier"] < math.inf:
        raise ConfigError(f"noise_multiplier={said['noise_multiplier']}: must be a finite number >= 0.")
    if "momentum" in said and not 0 <= said["momentum"] < 1:
        raise ConfigError(f"momentum={said['momentum']}: must be in [0, 1), e.g. 0.9, or 0 for none.")
    if "ema" in said and not 0 < said["ema"] < 1:
        raise ConfigError(f"ema={said['ema']}: a decay in (0, 1), e.g. 0.9999, or none.")
    if "keep_states" in said and said["keep_states"] > said.get("steps", math.inf):
        raise ConfigError(f"keep_states={said['keep_states']} of {said['steps']} steps: at most as many as steps.")
    if "schedule" in said:
        LearningRate.parse(said["schedule"])
    if "screen" in said and "clip" in said and not takes(said["clip"], "screen"):
        raise ConfigError(f"screen={said['screen']} with clip={said['clip']!r}: only global clipping screens.")
    if "delta" in said:
        check_delta(said["delta"])
    if "device" in said:
        check_device(said["device"])
    if "model" in said:
        check_model_name(said["model"])
    if "recipe" in said:
        check_recipe_name(said["recipe"])
    for text in said.get("repairs", ()):
        check_repair_name(text)


def check_together(given: Mapping[str, Any], epochs: float | None) -> None:
    """Refuse settings of which one follows from the other."""
    if given.get("steps") is not None and epochs is not None:
        raise ConfigError(f"epochs={epochs} and steps={given['steps']}: give one of them.")
    if given.get("epsilon") is not None and given.get("noise_multiplier") is not None:
        raise ConfigError(
            f"epsilon={given['epsilon']} and noise_multiplier={given['noise_multiplier']}: one follows from the other; "
            "give one of them."
        )


def check_recipe(given: Mapping[str, Any]) -> None:
    """Refuse a model beside a recipe, which names its own, and data that a recipe is not for."""
    if given.get("recipe") is None:
        return
    if given.get("model") is not None:
        raise ConfigError(
            f"recipe {given['recipe']!r} and model {given['model']!r}: a recipe has a model of its own. Give one of them."
        )
    data = str(given.get("data"))
    if data.lower().endswith((".csv", ".parquet")) or (data in CATALOG and CATALOG[data].home != "images"):
        raise ConfigError(
            f"recipe {given['recipe']!r} with {data}: recipes are for images. Leave it out: tables and texts have defaults of "
            "their own."
        )


def check_recipe_name(text: str) -> None:
    """A recipe by name."""
    if text.partition(":")[0] not in RECIPE_NAMES:
        raise ConfigError(f"recipe {text.partition(':')[0]!r}: unknown. Known recipes: {', '.join(RECIPE_NAMES)}.")


def check_privacy(given: Mapping[str, Any]) -> None:
    """Refuse a run of which nobody said how private it shall be."""
    if given.get("epsilon") is None and given.get("noise_multiplier") is None:
        raise ConfigError("how private? Give epsilon (e.g. 3; smaller is more private) or noise_multiplier.")


def check_device(name: str) -> None:
    """A device is a word, with a number after a colon where there are several; torch says which there are."""
    if not re.fullmatch(r"[a-z]+(:[0-9]+)?", name):
        raise ConfigError(f"device={name!r}: must be cpu, cuda, cuda:1, ... Leave it out to have one chosen.")


def check_model_name(name: str) -> None:
    """A model by name, or one of the user's own as `path.py:function`."""
    if name.partition(":")[0] not in MODEL_NAMES and ".py:" not in name:
        raise ConfigError(f"model {name!r}: unknown. Known models: {', '.join(MODEL_NAMES)}; or FILE.py:FUNCTION.")


def check_repair_name(text: str) -> None:
    """A repair by name, or one of the user's own."""
    name = text.partition(":")[0]
    if name not in REPAIR_NAMES and ".py:" not in text:
        raise ConfigError(f"repair {name!r}: unknown. Known repairs: {', '.join(REPAIR_NAMES)}; or FILE.py:NAME.")
