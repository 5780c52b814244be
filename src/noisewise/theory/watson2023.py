"""Watson et al. 2023, arXiv:2311.06839: how far clipping turns a step, the loss between models and in random directions.

Instability is that of Frankle et al. 2020, arXiv:1912.05671, which the paper measures between private models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate

STEEP = 3.0  # times the loss at the start of a random direction


def printed_bound(bound: float, ratio: float) -> float:
    """`C (1 - R/2)`: Theorem 3.2 as printed. It does not hold; kept to be compared with.

    Reference: Watson et al. 2023, arXiv:2311.06839, Theorem 3.2. Deviation: none, and that is why it is only shown.
    """
    return bound * (1 - ratio / 2)


def corrected_bound(bound: float, ratio: float) -> float:
    """`<c, gbar/||gbar||> >= C (1 - R) / (1 + R)` where every gradient has length C after clipping; sharp.

    Guarantee: `E[cos+] >= 1/(1+R)` (Cauchy-Schwarz) and `E[cos] >= 2 E[cos+] - 1`.
    """
    return bound * (1 - ratio) / (1 + ratio) if math.isfinite(ratio) else -bound


def one_sided_bound(bound: float, ratio: float) -> float:
    """`<c, gbar/||gbar||> >= C / (1 + R)` where, besides, no gradient points away from the mean; sharp."""
    return bound / (1 + ratio)


def general_bound(norms: np.ndarray, factors: np.ndarray, mean_norms: np.ndarray) -> float:
    """The bound that always holds, whoever is clipped and by whichever rule of factors f >= 0.

    One block: `<c, gbar/||gbar||> >= 2 ||gbar||^2 / mean(||g_i|| / f_i) - mean(f_i ||g_i||)`; for flat clipping the two
    means are of `max(||g||, ||g||^2/C)` and `min(||g||, C)`. Several blocks: each block's bound, weighted by
    `||gbar_l|| / ||gbar||`.

    Args:
        norms: of each block and unit, `[blocks, units]`.
        factors: of each block and unit.
        mean_norms: of the mean gradient's blocks.
    """
    lengths = (factors * norms).mean(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        stretched = np.where(norms > 0, norms / factors, 0.0).mean(1)
        signal = np.where(np.isfinite(stretched) & (stretched > 0), mean_norms**2 / stretched, 0.0)
    total = math.sqrt(float((mean_norms**2).sum()))
    return float(((2 * signal - lengths) * mean_norms).sum()) / total if total > 0 else -math.inf


class Instability(NamedTuple):
    """How far the loss on a segment rises above its ends."""

    instability: Estimate
    barrier: Estimate
    losses: list[float]


def instability(
    losses: np.ndarray, at: np.ndarray, level: float = LEVEL, owner: np.ndarray | None = None
) -> Instability:
    """`max_a E_a - (E_0 + E_1)/2` and `max_a E_a - (1-a) E_0 - a E_1`, from losses `[points, rows]` on a segment.

    Guarantee: both intervals allow for the choice of the highest point (paired t, Bonferroni over points), over
    rows, or over people where `owner` says whose row each is.
    Reference: Frankle et al. 2020, arXiv:1912.05671, section 2.
    """
    single = intervals.each(level, len(at))
    middle = (losses[0] + losses[-1]) / 2
    lines = np.outer(1 - at, losses[0]) + np.outer(at, losses[-1])
    above_mean = [intervals.mean_difference(of, middle, single, owner) for of in losses]
    above_line = [intervals.mean_difference(of, line, single, owner) for of, line in zip(losses, lines, strict=True)]
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
