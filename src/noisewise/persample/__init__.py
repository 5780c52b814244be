"""Clipped sums of per-unit gradients: exact, one forward pass, no trace left on the model."""

from __future__ import annotations

from noisewise.losses import LossFn
from noisewise.persample.clipped_sum import ClippedBatch, clipped_sum
from noisewise.persample.examine import examine
from noisewise.persample.layout import Layout
from noisewise.support import live_parameters

__all__ = ["ClippedBatch", "Layout", "LossFn", "clipped_sum", "examine", "live_parameters"]
