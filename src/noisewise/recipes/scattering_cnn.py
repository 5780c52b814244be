"""Scattering features and two convolutions."""

from __future__ import annotations

from typing import ClassVar

from noisewise.recipes.base import NamedRecipe
from noisewise.recipes.scattered import Scattering


class ScatteringCNN(NamedRecipe):
    """Two convolutions of 64 channels and a linear layer on scattering maps, scaled by made-up images.

    As `scattering-linear`, with maps in place of vectors and one number of scales; views stand side by side, and their losses
    are averaged before clipping, since a map that is averaged with its mirror image says less than both.

    Reference: Tramer, Boneh 2021, arXiv:2011.11660 (CNN on scattering features). Deviation: scaling by made-up images.
    """

    name: ClassVar[str] = "scattering-cnn"
    features: ClassVar[type[Scattering]] = Scattering
    flat: ClassVar[bool] = False
    head: ClassVar[str] = "conv-head"
    reference: ClassVar[str] = "Tramer, Boneh 2021, arXiv:2011.11660"
