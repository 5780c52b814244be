"""What a recipe is: features that cost no privacy, a small model on them, and how it learns."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import fields
from inspect import signature
from typing import Any, ClassVar

from noisewise.errors import ConfigError
from noisewise.models import MODELS
from noisewise.recipes.features import Features
from noisewise.recipes.settings import Course, course_for

OF_ROWS = ("waves", "pitch")  # which maps do not take
NOTED = ("shape", "digest")  # in a config's text by the project's own hand
NOMINAL = 3.0  # epsilon for which settings are taken where noise is given instead


class NamedRecipe(ABC):
    """All choices of a run on images by one name; each subclass says in its first line what it is.

    name: in `train --recipe NAME`. features: the class of its features, whose fields may be set: `NAME:key=value,...`. flat:
    features are vectors, else maps. head: the model on them, by name. reference: where it comes from.
    """

    name: ClassVar[str]
    features: ClassVar[type[Any]]
    flat: ClassVar[bool] = True
    head: ClassVar[str]
    reference: ClassVar[str]

    @classmethod
    def known(cls) -> list[str]:
        """What may be set; shapes and digests are written down, so that other images and files are noticed."""
        hidden = NOTED if cls.flat else (*NOTED, *OF_ROWS)
        return [field.name for field in fields(cls.features) if field.name not in hidden]

    @classmethod
    def usual(cls) -> dict[str, Any]:
        """What may be set, and what it is if nobody says."""
        return {field.name: field.default for field in fields(cls.features) if field.name in cls.known()}

    @classmethod
    def course(cls, n: int, epsilon: float | None, channels: int, data: str | None = None) -> Course:
        """How it learns with n units at an epsilon."""
        return course_for(cls.name, n, NOMINAL if epsilon is None else epsilon, channels, data)

    @classmethod
    def made(cls, given: Mapping[str, Any], course: Course | None = None) -> Features:
        """Its features: those of a course, with what is given in their place."""
        unknown = [key for key in given if key not in {field.name for field in fields(cls.features)}]
        if unknown:
            raise ConfigError(f"recipe {cls.name!r}: there is no {unknown[0]!r}. Known are {', '.join(cls.known())}.")
        usual = {} if course is None else {key: _frozen(value) for key, value in course.features.items()}
        features: Features = cls.features(**{**usual, **given})
        return features

    @classmethod
    def model(cls, features: Features) -> str:
        """The model, as `Config.model` has it."""
        views = 1 if features.average else len(features.views)
        if features.centre and "centred" not in signature(MODELS[cls.head]).parameters:
            raise ConfigError(f"recipe {cls.name!r}: its model cannot be centred. Leave centre out.")
        options = [*([f"views={views}"] if views > 1 else []), *(["centred=true"] if features.centre else [])]
        return f"{cls.head}:{','.join(options)}" if options else cls.head


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
