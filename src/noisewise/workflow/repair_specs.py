"""Repairs as a user writes them: `NAME` or `NAME:key=value,...`, e.g. `random-sparsification:final=0.9`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from noisewise import userfiles
from noisewise.adaptive import rule_for
from noisewise.clipping import Clip
from noisewise.data import load
from noisewise.errors import ConfigError
from noisewise.repairs import (
    REPAIRS,
    AtRandom,
    Augmentation,
    EarlierEpochs,
    FirstPhase,
    MagnitudePruning,
    Pretraining,
    PrivateRecords,
    PublicTraining,
    Repair,
)
from noisewise.workflow.written import converted, settings_of

SOURCES: dict[str, type] = {"random": AtRandom, "earlier-epochs": EarlierEpochs, "private-records": PrivateRecords}
FROM_OWN_FILES = ("optimizer", "weights", "augment", "progress")  # settings that only code can give


def slug(name: str) -> str:
    """A repair's name without spaces: `random sparsification` is `random-sparsification`."""
    return name.lower().replace(" ", "-")


BY_SLUG: dict[str, type[Repair]] = {slug(name): repair for name, repair in REPAIRS.items()}


def parse(text: str) -> Repair:
    """A repair from `NAME:key=value,...`; lists are written `0.2/0.4`.

    Where weights or a mask come from: `source=mnist` (a public data set, with `epochs`, `batch_size`, `lr`, `seed` of its
    training), `source=random`, `source=earlier-epochs` or `source=private-records`. `FILE.py:NAME` takes a repair of one's
    own: an instance, or a function or class that makes one.
    """
    if ".py:" in text:
        return _of_file(text)
    name, _, rest = text.partition(":")
    if name not in BY_SLUG:
        raise ConfigError(f"repair {name!r}: unknown. Known repairs: {', '.join(BY_SLUG)}; or FILE.py:NAME.")
    kind, settings = BY_SLUG[name], settings_of(text, rest)
    try:
        given = _converted(kind, settings)
    except ConfigError as error:
        raise ConfigError(f"repair {text!r}: {error}") from None
    needed = [item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING]  # type: ignore[arg-type]
    if lost := [key for key in needed if key not in given]:
        raise ConfigError(f"repair {text!r}: needs {', '.join(lost)}, e.g. {example(kind)}.")
    return kind(**given)


def example(kind: type[Repair]) -> str:
    """How a repair is written, with its settings."""
    return EXAMPLES.get(slug(kind.name), slug(kind.name))


EXAMPLES = {
    "global-clipping": "global-clipping:screen=25",
    "local-then-global-clipping": "local-then-global-clipping:share=0.95",
    "global-adapt": "global-adapt:screen=100",
    "group-bounds": "group-bounds:group=sex",
    "random-sparsification": "random-sparsification:final=0.9",
    "ranked-sparsification": "ranked-sparsification:final=0.9",
    "stage-wise-freezing": "stage-wise-freezing:shares=0.39/0.63/0.77",
    "magnitude-pruning": "magnitude-pruning:source=mnist,share=0.3",
    "augmentation": "augmentation:views=4",
    "moving-average": "moving-average:decay=0.99",
    "public-pretraining": "public-pretraining:source=mnist,epochs=10",
    "fine-tuning-of-a-part": "fine-tuning-of-a-part:what=biases",
    "lora": "lora:rank=4",
    "first-phase": "first-phase:epochs=5,clip=global",
}


def _of_file(text: str) -> Repair:
    if "=" in text.rpartition(":")[2]:
        raise ConfigError(
            f"repair {text!r}: one of your own takes no settings here. NAME may be an instance that has them, or a function "
            "that makes one."
        )
    made = userfiles.load(text)
    repair = userfiles.called(text, made) if callable(made) and not isinstance(made, Repair) else made
    if not isinstance(repair, Repair):
        raise ConfigError(f"{text!r} is {type(repair).__name__}: must be a noisewise.repairs.Repair, or make one.")
    return repair


def _converted(kind: type[Repair], settings: dict[str, str]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    known = [item.name for item in fields(kind) if item.name not in FROM_OWN_FILES]  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    if kind in (MagnitudePruning, Pretraining) and "source" in settings:
        source = settings.pop("source")
        shared = {key: settings.pop(key) for key in list(settings) if key not in known}
        given["source"] = _source(kind, source, shared)
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(f"there is no {key!r}. Known are {', '.join(known) or 'no settings'}.")
        if (kind, key) == (FirstPhase, "clip"):
            given[key] = _rule(value)
        elif (kind, key) == (Augmentation, "function"):
            given[key] = userfiles.load(value)
        else:
            given[key] = converted(key, value, hints[key])
    return given


def _rule(text: str) -> Clip:
    """A clipping rule by name, with bound 1, or of one's own file."""
    return userfiles.load(text) if ".py:" in text else rule_for(text, 1.0, None)


def _source(kind: type[Repair], text: str, settings: Mapping[str, str]) -> Any:
    if text in SOURCES and kind is Pretraining:
        raise ConfigError(f"source={text}: pretraining needs public data, e.g. source=mnist.")
    maker = SOURCES.get(text, PublicTraining)
    hints = get_type_hints(maker)
    known = [item.name for item in fields(maker) if item.name not in (*FROM_OWN_FILES, "data")]
    if extra := [key for key in settings if key not in known]:
        raise ConfigError(f"there is no {extra[0]!r} for source={text}. Known are {', '.join(known)}.")
    given = {key: converted(key, value, hints[key]) for key, value in settings.items()}
    return maker(load(text).train, **given) if maker is PublicTraining else maker(**given)
