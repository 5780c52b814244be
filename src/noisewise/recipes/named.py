"""All recipes by name."""

from __future__ import annotations

from noisewise.errors import ConfigError
from noisewise.recipes.base import NamedRecipe
from noisewise.recipes.made_up_linear import MadeUpLinear
from noisewise.recipes.patches_linear import PatchesLinear
from noisewise.recipes.scattering_cnn import ScatteringCNN
from noisewise.recipes.scattering_linear import ScatteringLinear

RECIPES: dict[str, type[NamedRecipe]] = {
    kind.name: kind for kind in (ScatteringLinear, ScatteringCNN, PatchesLinear, MadeUpLinear)
}


def recipe_named(name: str) -> type[NamedRecipe]:
    """A recipe by its name."""
    if name not in RECIPES:
        raise ConfigError(f"recipe {name!r}: unknown. Known recipes: {', '.join(RECIPES)}.")
    return RECIPES[name]
