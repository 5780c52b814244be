"""How a step is computed, which privacy must not depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from noisewise.errors import ConfigError

MEETING = "NOISEWISE_MEETING"  # in the environment: the file by which processes of `train --processes` find each other
Engine = Literal["auto", "ghost", "dense", "loop"]
Memory = Literal["ample", "small"]
PARTS = 2  # micro-batches of a step that is to need little memory: a half with its gradients is about a plain batch


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """How a step is computed; never changes its result beyond rounding.

    engine: auto (ghost, where a layer has no ghost rule dense, where that cannot be vectorised loop), ghost or dense
        (refuse otherwise), loop.
    microbatch: largest number of units in memory at once; None for the whole batch.
    memory: ample (as much as is fastest), or small: about as much as a plain step, at some of its time. Batches are computed
        in halves, unless `microbatch` says otherwise, and no gradient that was formed for a norm is kept for the sum.
    padded: fill batches up to the sampler's `max_batch`, so that all have one shape.
    capture: compute steps in a few fixed shapes, on a GPU as CUDA graphs. None: on a GPU, where that can be, otherwise the
        ordinary way; True: refuse where it cannot be; False: never.
        What the model and the loss read from Python is then read once, and again when a number of theirs changes.
    """

    engine: Engine = "auto"
    microbatch: int | None = None
    memory: Memory = "ample"
    padded: bool = False
    capture: bool | None = None

    def __post_init__(self) -> None:
        """Known engines, whole micro-batches."""
        if self.engine not in ("auto", "ghost", "dense", "loop"):
            raise ConfigError(f"engine={self.engine!r}: must be 'auto', 'ghost', 'dense' or 'loop'.")
        if self.memory not in ("ample", "small"):
            raise ConfigError(f"memory={self.memory!r}: must be 'ample' or 'small'.")
        if self.capture not in (None, True, False):
            raise ConfigError(f"capture={self.capture!r}: must be True, False or None.")
        if self.microbatch is not None and (not isinstance(self.microbatch, int) or self.microbatch <= 0):
            raise ConfigError(f"microbatch={self.microbatch!r}: must be a whole number above 0, or None.")

    def units_at_once(self, units: int) -> int:
        """Of a batch of so many units, how many are computed at a time."""
        if self.microbatch is not None:
            return self.microbatch
        return max(1, -(-units // PARTS)) if self.memory == "small" else max(1, units)
