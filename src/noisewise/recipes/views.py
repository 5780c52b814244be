"""Versions of an image that show the same thing: mirrored, or moved by two pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from noisewise.errors import ConfigError, DataError

MOVED = 2  # pixels; what comes in at the border mirrors what is there
MOVES = {"up": (-MOVED, 0), "down": (MOVED, 0), "left": (0, -MOVED), "right": (0, MOVED)}
SAME, FLIP = "same", "flip"
ATOMS = (SAME, FLIP, *MOVES)


def view(images: Tensor, name: str) -> Tensor:
    """One version of each image `[n, channels, height, width]`: changes joined by `+`, from left to right.

    Guarantee: row i of the result depends on row i of the images only.

    >>> import torch
    >>> view(torch.tensor([[[[1.0, 2.0]]]]), "flip").tolist()
    [[[[2.0, 1.0]]]]
    """
    for change in name.split("+"):
        if change == FLIP:
            images = images.flip(3)
        elif change in MOVES:
            down, right = MOVES[change]
            height, width = images.shape[2:]
            wide = F.pad(images, (MOVED, MOVED, MOVED, MOVED), mode="reflect")
            images = wide[..., MOVED - down : MOVED - down + height, MOVED - right : MOVED - right + width]
    return images


def check_views(names: Sequence[str]) -> None:
    """Known changes, no version twice."""
    for name in names:
        if not isinstance(name, str) or not set(name.split("+")) <= set(ATOMS):
            raise ConfigError(
                f"view {name!r}: must be one of {', '.join(ATOMS)}, or some of them joined, e.g. flip+up."
            )
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"views {'/'.join(names)!r}: must be at least one, and each once, e.g. same/flip.")


def check_shape(known: Sequence[int], shape: Sequence[int]) -> None:
    """Images of the shape that features were made for; any, where none is known yet."""
    if known and tuple(known) != tuple(shape):
        raise DataError(
            f"images of shape {list(shape)}: the model was trained on {list(known)} [channels, height, width]. Bring them to "
            "that shape."
        )


def check_centre(noise: float) -> None:
    """A noise multiplier, or 0 for no release."""
    if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise < math.inf:
        raise ConfigError(f"centre={noise!r}: must be a noise multiplier, e.g. 20, or 0 for none.")
