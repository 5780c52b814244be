"""Watson et al. 2023, arXiv:2311.06839: the loss on segments between models and in random directions.

Instability is that of Frankle et al. 2020, arXiv:1912.05671, which the paper measures between private models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate

STEEP = 3.0  # times the loss at the start of a random direction


class Instability(NamedTuple):
    """How far the loss on a segment rises above its ends."""

    instability: Estimate
    barrier: Estimate
    losses: list[float]


def instability(losses: np.ndarray, at: np.ndarray, level: float = LEVEL) -> Instability:
    """`max_a E_a - (E_0 + E_1)/2` and `max_a E_a - (1-a) E_0 - a E_1`, from losses `[points, rows]` on a segment.

    Guarantee: both intervals allow for the choice of the highest point (paired t over rows, Bonferroni over points).
    Reference: Frankle et al. 2020, arXiv:1912.05671, section 2.
    """
    single = intervals.each(level, len(at))
    middle = (losses[0] + losses[-1]) / 2
    lines = np.outer(1 - at, losses[0]) + np.outer(at, losses[-1])
    above_mean = [intervals.mean_difference(of, middle, single) for of in losses]
    above_line = [intervals.mean_difference(of, line, single) for of, line in zip(losses, lines, strict=True)]
    return Instability(
        intervals.largest(above_mean, level), intervals.largest(above_line, level), losses.mean(1).tolist()
    )


def largest_cosine(size: int, generators: Sequence[np.random.Generator], chunk: int = 1 << 16) -> float | None:
    """Largest cosine of two of the Gaussian directions that `moved` draws from these generators; None for a single one.

    Reference: Watson et al. 2023 state it for their 100 random directions.
    """
    count = len(generators)
    products = np.zeros((count, count))
    for first in range(0, size, chunk):
        pieces = np.stack([generator.standard_normal(min(chunk, size - first)) for generator in generators])
        products += pieces @ pieces.T
    lengths = np.sqrt(np.diag(products))
    cosines = (products / np.outer(lengths, lengths))[np.triu_indices(count, 1)]
    return float(cosines.max()) if len(cosines) else None
