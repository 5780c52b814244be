"""Recipes: all choices of a run on images by one name, found on public sets, usable on one's own images.

`RECIPES` has them by name; `ready(parts, name, epsilon=1, delta=1e-5)` gives the `Recipe` that `fit` carries out, and
`noisewise train --recipe NAME` does both.
"""

from __future__ import annotations

from noisewise.recipes.base import NamedRecipe
from noisewise.recipes.features import Features
from noisewise.recipes.learned import Learned
from noisewise.recipes.made_up_linear import MadeUpLinear
from noisewise.recipes.named import RECIPES, recipe_named
from noisewise.recipes.own_images import ready
from noisewise.recipes.patches import Patches
from noisewise.recipes.patches_linear import PatchesLinear
from noisewise.recipes.scattered import Scattering
from noisewise.recipes.scattering_cnn import ScatteringCNN
from noisewise.recipes.scattering_linear import ScatteringLinear
from noisewise.recipes.settings import Course, course_for
from noisewise.recipes.transform import featured, featured_parts, features_of

__all__ = [
    "RECIPES",
    "Course",
    "Features",
    "Learned",
    "MadeUpLinear",
    "NamedRecipe",
    "Patches",
    "PatchesLinear",
    "Scattering",
    "ScatteringCNN",
    "ScatteringLinear",
    "course_for",
    "featured",
    "featured_parts",
    "features_of",
    "ready",
    "recipe_named",
]
