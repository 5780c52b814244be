"""Averaging of weights over training."""

from __future__ import annotations

from dataclasses import dataclass, replace

from noisewise.recipe import Recipe
from noisewise.repairs.base import Repair


@dataclass(frozen=True)
class MovingAverage(Repair):
    """Release the moving average of the weights: decay `min(decay, (1 + t) / (10 + t))`.

    Cost: free: post-processing. Reference: De et al. 2022, arXiv:2204.13650. Deviation: none.
    """

    decay: float = 0.9999
    name = "moving average"
    changes = "the weights that are released"
    reference = "De et al. 2022, arXiv:2204.13650"
    claims = ("average",)
    order = 7

    def apply(self, recipe: Recipe) -> Recipe:
        """Sets the decay."""
        return replace(recipe, ema=self.decay)
