"""What updates weigh on the wire when a part of their coordinates is masked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from noisewise.errors import ConfigError

VALUE_BITS = 32
SEED_BITS = 64


@dataclass(frozen=True)
class Payload:
    """Bits that a worker sends over a whole run, by the way masks are told.

    dense: every coordinate in every step. values: the kept coordinates alone, where the receiver knows the mask. indices:
    the positions of the kept coordinates, `ceil(log2 P)` bits each, once for every mask. seeds: one number for every mask
    instead; None where masks do not follow from a seed. share: values over dense.
    """

    dense: int
    values: int
    indices: int
    seeds: int | None
    share: float


def payload(
    coordinates: int,
    steps: int,
    *,
    values: int,
    indices: int,
    masks: int,
    seeded: bool = True,
    value_bits: int = VALUE_BITS,
) -> Payload:
    """Payload of `steps` updates of a model with P coordinates.

    values: kept coordinates, summed over steps. indices: kept coordinates, summed over masks. With gradual cooling to r*, the
    share of values is about 1 - r* / 2. A model without any mask sends no index. Reference: Zhu & Blaschko 2023,
    arXiv:2112.00845, section 5.

    >>> payload(1000, 10, values=6500, indices=6500, masks=10)
    Payload(dense=320000, values=208000, indices=65000, seeds=640, share=0.65)
    """
    if (
        coordinates < 1
        or steps < 0
        or not 0 <= values <= coordinates * steps
        or not 0 <= indices <= coordinates * masks
    ):
        raise ConfigError(
            f"{values} values in {steps} steps and {indices} indices in {masks} masks of {coordinates} coordinates: more are "
            "kept than there are."
        )
    dense = coordinates * steps * value_bits
    whole = indices == coordinates * masks
    each = 0 if whole else math.ceil(math.log2(coordinates)) if coordinates > 1 else 1
    return Payload(
        dense=dense,
        values=values * value_bits,
        indices=indices * each,
        seeds=(0 if whole else masks * SEED_BITS) if seeded else None,
        share=values / (coordinates * steps) if steps else 1.0,
    )
