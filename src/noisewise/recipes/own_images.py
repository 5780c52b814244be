"""A named recipe for one's own images: the `Recipe` that `fit` carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch

from noisewise.accounting.calibrate import check_epsilon
from noisewise.clipping import Flat
from noisewise.data import Data, Splits
from noisewise.errors import ConfigError
from noisewise.losses import LossFn, cross_entropy, outputs_for, views_cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.models import build
from noisewise.rates import LearningRate
from noisewise.recipe import Recipe, at_epsilon
from noisewise.recipes.base import NamedRecipe
from noisewise.recipes.centre import centred, noised_centre, worth_it
from noisewise.recipes.features import Features
from noisewise.recipes.named import recipe_named
from noisewise.recipes.settings import Course, fitting
from noisewise.recipes.transform import featured_parts
from noisewise.sampling import Poisson


def completed(
    kind: type[NamedRecipe], data: Data, epsilon: float | None, given: Mapping[str, Any], name: str | None = None
) -> tuple[Features, Course]:
    """A recipe's features for these images, and how it learns on them, with what is given in place of what is usual.

    name: of the data set, which may have settings of its own. A centre that nobody asked for is left out where few rows would
    put it in the wrong place.
    """
    if data.x.dim() != 4 or data.task != "classification":
        raise ConfigError(
            f"recipe {kind.name!r} on inputs of shape {list(data.x.shape[1:])} ({data.task}): needs images [channels, height, "
            "width] with classes. Leave the recipe out: tables and texts have defaults of their own."
        )
    shape = tuple(map(int, data.x.shape[1:]))
    if given.get("shape", shape) != shape:
        raise ConfigError(
            f"recipe {kind.name!r} with shape={given['shape']} on images of shape {shape}: it is read off the images. Leave it "
            "out."
        )
    course = kind.course(data.units, epsilon, shape[0], name)
    features = kind.made({"shape": shape, **fitting(course, shape), **given}, course)
    features.check(shape)
    if "centre" not in given and features.centre and not worth_it(features, shape, data.units):
        features = replace(cast(Any, features), centre=0.0)
    return features, course


def ready(
    parts: Splits,
    recipe: type[NamedRecipe] | str,
    *,
    epsilon: float,
    delta: float,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: bool = False,
    insecure_seed: int | None = None,
    **given: Any,
) -> Recipe:
    """The recipe for images in `parts`, calibrated: `fit(ready(parts, "scattering-linear", epsilon=1, delta=1e-5))`.

    Images become features here, each by itself, which costs no privacy; where the recipe has a centre, that is released here,
    with noise, and in the recipe's ledger. `given`: settings of the features. `insecure_seed`: of that noise, for tests.
    """
    check_epsilon(epsilon)
    if isinstance(recipe, str):
        recipe = recipe_named(recipe)
    features, course = completed(recipe, parts.train, epsilon, given)
    seen = featured_parts(parts, features, flat=recipe.flat, device=device, progress=progress)
    settings = course.settings(seen.train.units, epsilon)
    views = views_of(features)
    options: dict[str, Any] = {
        **({"views": views} if views > 1 else {}),
        **({"centred": True} if features.centre else {}),
    }
    model = build(recipe.head, tuple(seen.train.x.shape[1:]), outputs_for(seen.train), seed, **options).to(device)
    n, unit = seen.train.units, "row" if seen.train.unit is None else "person"
    plan = Mechanism(
        sampler=Poisson(n, settings["batch_size"]), clip=Flat(settings["bound"]), steps=settings["steps"], unit=unit,
        noise_multiplier=1.0,
    )  # fmt: skip
    lr, momentum = settings["lr"], settings["momentum"]
    made = Recipe(
        model=model,
        data=seen,
        loss_fn=loss_of(views),
        mechanism=plan,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum),
        ema=settings["ema"],
        schedule=None if settings["schedule"] is None else LearningRate.parse(settings["schedule"]),
    )
    if features.centre:
        centre, ledger = noised_centre(seen.train, features.centre, views=views, insecure_seed=insecure_seed)
        made = centred(made, centre, ledger)
    return at_epsilon(made, epsilon, delta)


def views_of(features: Features) -> int:
    """How many views stand side by side in a unit."""
    return 1 if features.average else len(features.views)


def loss_of(views: int) -> LossFn:
    """Cross entropy; of several views side by side their mean."""
    return cross_entropy if views == 1 else views_cross_entropy
