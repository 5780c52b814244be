"""Augmentation multiplicity: several random versions of each row, averaged before clipping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from noisewise.data.transforms import flip_and_crop
from noisewise.errors import ConfigError
from noisewise.recipe import Recipe
from noisewise.repairs.base import Repair
from noisewise.training.augmentation import Augment

MOST_CHANNELS = 4  # of an image: grey or colours, with or without transparency


@dataclass(frozen=True)
class Augmentation(Repair):
    """`g_i = mean over K views of grad l(view(x_i))`, clipped once: sensitivity stays C however many views there are.

    `function(rows, generator)` changes each row on its own; what mixes rows, such as mixup, couples units and is refused
    before training. None: for images of more than 28 pixels flips and crops by 4 as in the paper,
    for smaller ones crops by 1 without flips, chosen on held-out Fashion-MNIST images (docs/repairs_measured.md).
    Inputs of more than four channels are features, not images, and need a `function`.
    Cost: free. Reference: De et al. 2022, arXiv:2204.13650, figure 3. Deviation: none.
    """

    views: int = 4
    function: Callable[[Any, Any], Any] | None = None
    name = "augmentation"
    changes = "the versions in which a row is seen"
    reference = "De et al. 2022, arXiv:2204.13650"
    claims = ("views",)
    order = 7

    def apply(self, recipe: Recipe) -> Recipe:
        """Sets function and multiplicity."""
        if type(self.views) is not int or self.views < 1:
            raise ConfigError(f"views={self.views!r}: a whole number of versions of each row, at least 1.")
        function = self.function
        if function is None:
            if recipe.data.train.x.dim() != 4:
                raise ConfigError(
                    f"augmentation: flips and crops need images [n, channels, height, width], the inputs have shape "
                    f"{list(recipe.data.train.x.shape)}. Pass function=."
                )
            if recipe.data.train.x.shape[1] > MOST_CHANNELS:
                raise ConfigError(
                    f"augmentation: inputs of {recipe.data.train.x.shape[1]} channels are features, not images, e.g. of "
                    "scattering: a mirrored map is no map of a mirrored image. Leave this repair out, or pass function=, which "
                    "knows what such a row is."
                )
            small = recipe.data.train.x.shape[-1] <= 28
            function = flip_and_crop(pad=1, flips=False) if small else flip_and_crop(pad=4)
        return replace(recipe, augment=Augment(function, self.views))
