"""Scattering features and one linear layer: seconds of training, and the best that is known here without public data."""

from __future__ import annotations

from typing import ClassVar

from noisewise.recipes.base import NamedRecipe
from noisewise.recipes.scattered import Scattering


class ScatteringLinear(NamedRecipe):
    """One linear layer from zero on scattering features, scaled by made-up images, averaged over views.

    1. Features: `recipes.scattered.Scattering`, fixed wavelets; nothing is learned.
    2. Each channel is divided by what it is over made-up images: free.
    3. Views (mirrored, moved) are averaged as features. For views that form a group, as an image and its mirror image do, the
       best linear model of the averaged loss is symmetric and sees only the average, so nothing is lost; noise in the other
       directions, half of all for mirror images, moves no prediction any more.
    4. Each row is centred and brought to length 100.
    5. A linear layer that begins at zero learns by SGD with flat clipping.
    6. Weights are averaged along the run: free.

    Reference: Tramer, Boneh 2021, arXiv:2011.11660 (linear models on scattering features). Deviations: 2, 3, 4 and 6.
    """

    name: ClassVar[str] = "scattering-linear"
    features: ClassVar[type[Scattering]] = Scattering
    head: ClassVar[str] = "linear-head"
    reference: ClassVar[str] = "Tramer, Boneh 2021, arXiv:2011.11660"
