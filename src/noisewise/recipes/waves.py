"""Random waves over rows of features: a linear layer on them says what a smooth function of the features can say."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from noisewise.errors import ConfigError
from noisewise.models.heads import LENGTH

MOST, STEEPEST = 65_536, 10.0  # waves and pitch; above it a product's rounding would turn waves
SEED = 0  # of the directions of all waves; a constant of the method


def on_waves(rows: Tensor, count: int, pitch: float) -> Tensor:
    """`cos <w_k, f>` for each of `count` waves, then `sin <w_k, f>`, of rows f of length 100; `w_k ~ N(0, (pitch / 100)^2 I)`.

    Products of two such rows, divided by `count`, are `exp(-pitch^2 |f - g|^2 / (2 100^2))` up to `1 / sqrt(count)`: a
    Gaussian kernel. Noise on a linear model moves a prediction by as much as the row is long, whatever its number of
    coordinates, so that many waves cost no accuracy, only time. A small pitch is close to the features themselves; a large one
    tells neighbours apart, for which weights must be longer, and so must the way that noise adds up on.

    Guarantee: directions are drawn from a constant seed and no record enters, so row i of the result is a function of public
    numbers and row i, up to rounding of products, which a pitch of at most 10 keeps below a ten-thousandth of a row.
    Reference: Rahimi, Recht 2007, Random features for large-scale kernel machines.

    >>> on_waves(torch.zeros(1, 3), 2, 1.0).tolist()
    [[1.0, 1.0, 0.0, 0.0]]
    """
    phases = (rows @ _directions(rows.shape[1], count, rows.device).to(rows)) * (pitch / LENGTH)
    return torch.cat([phases.cos(), phases.sin()], 1)


@lru_cache(maxsize=2)
def _directions(coordinates: int, count: int, device: torch.device) -> Tensor:
    """`[coordinates, count]` standard normal numbers, drawn on the CPU so that every device has the same waves."""
    return torch.randn(coordinates, count, generator=torch.Generator().manual_seed(SEED)).to(device)


def check_waves(count: int, pitch: float) -> None:
    """A number of waves, 0 for none, and how fast they turn."""
    if type(count) is not int or not 0 <= count <= MOST:
        raise ConfigError(f"waves={count!r}: must be a whole number up to {MOST:,}, e.g. 2048, or 0 for none.")
    if isinstance(pitch, bool) or not isinstance(pitch, int | float) or not 0 < pitch <= STEEPEST:
        raise ConfigError(f"pitch={pitch!r}: must be a number above 0, at most {STEEPEST:g}, e.g. 1.")
    if not count and pitch != 1:
        raise ConfigError(f"pitch={pitch:g} without waves would do nothing: say how many, e.g. waves=2048.")
