"""Likeness to made-up patches and one linear layer."""

from __future__ import annotations

from typing import ClassVar

from noisewise.recipes.base import NamedRecipe
from noisewise.recipes.patches import Patches


class PatchesLinear(NamedRecipe):
    """One linear layer from zero on likeness to patches of made-up images, with or without scattering features beside.

    More of what tells photographs apart than wavelets alone, and nothing is learned from records but the linear layer. Views,
    length and learning as in `scattering-linear`.

    Reference: Coates, Ng, Lee 2011, AISTATS (single-layer networks). Deviation: patches of made-up images.
    """

    name: ClassVar[str] = "patches-linear"
    features: ClassVar[type[Patches]] = Patches
    head: ClassVar[str] = "linear-head"
    reference: ClassVar[str] = "Coates, Ng, Lee 2011, AISTATS"
