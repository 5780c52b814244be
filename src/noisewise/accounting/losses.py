"""Privacy losses of Gaussian releases on a grid: dp-accounting's distributions, with all grid points computed at once.

dp-accounting asks for the divergence at one grid point after the other, in Python; a schedule of hundreds of noise levels
takes a minute there. The bounds, tails, distribution functions and the pessimistic rounding are dp-accounting's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def composed(releases: Iterable[tuple[float, float, int]], adjacency: Any, grid: float) -> Any:
    """The privacy loss of all releases together: (sampling rate, sigma, count) of each; `adjacency` is dp-accounting's.

    Guarantee: pessimistic, as dp-accounting's: epsilon at any delta is not below the true one, up to rounding of float64.
    """
    from dp_accounting.pld.privacy_loss_distribution import identity

    total = identity(grid)
    for rate, sigma, count in releases:
        total = total.compose(several(rate, sigma, count, adjacency, grid))
    return total


def several(rate: float, sigma: float, count: int, adjacency: Any, grid: float) -> Any:
    """The privacy loss of `count` equal releases; without sampling that of one with less noise, exactly."""
    if rate == 1:
        return once(rate, sigma * count**-0.5, adjacency, grid)
    return once(rate, sigma, adjacency, grid).self_compose(count)


def once(rate: float, sigma: float, adjacency: Any, grid: float) -> Any:
    """The privacy loss of one Gaussian release of a Poisson sample, connected dots on a grid.

    `delta(e) = P[x <= t] - exp(e) Q[x <= t]` with t where the loss ln P(x)/Q(x) is e; for Gaussians of sensitivity 1 with
    sampling rate q the loss e of the mixture is the loss `l(e) = ln(1 + (exp(e) - 1)/q)` of the release alone, at
    `t = -1/2 - sigma^2 l(e)` where the unit is removed, and mirrored where it is added.
    Reference: Doroshenko et al. 2022, arXiv:2207.04380; dp-accounting's supplementary material.
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as distributions
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType

    if adjacency == NeighboringRelation.REPLACE_ONE:
        return distributions.from_gaussian_mechanism(
            sigma, value_discretization_interval=grid, sampling_prob=rate, neighboring_relation=adjacency
        )
    ways = (AdjacencyType.REMOVE,) if rate == 1 else (AdjacencyType.REMOVE, AdjacencyType.ADD)
    return distributions.PrivacyLossDistribution(*(_one_way(rate, sigma, way, grid) for way in ways))


def _one_way(rate: float, sigma: float, way: Any, grid: float) -> Any:
    import numpy as np
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    release = GaussianPrivacyLoss(sigma, sampling_prob=rate, adjacency_type=way)
    bounds = release.connect_dots_bounds()
    lowest, highest = math.floor(bounds.epsilon_lower / grid), math.ceil(bounds.epsilon_upper / grid)
    losses = np.arange(lowest, highest + 1) * grid
    sign = 1 if way == AdjacencyType.REMOVE else -1
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = -sign / 2 - sign * sigma**2 * _without_sampling(sign * losses, rate)
        deltas = release.mu_upper_cdf(ends) - np.exp(losses + release.mu_lower_log_cdf(ends))
    if rate < 1:  # the loss has an end on one side: nothing is beyond it, or everything
        if sign == 1:
            deltas = np.where(losses > math.log1p(-rate), deltas, -np.expm1(np.minimum(losses, 0)))
        else:
            deltas = np.where(losses < -math.log1p(-rate), deltas, 0.0)
    return create_pmf_pessimistic_connect_dots_fixed_gap(grid, lowest, highest, np.clip(deltas, 0, 1))


def _without_sampling(losses: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """`ln(1 + (exp(e) - 1)/q)`, for losses of any size; -infinity where the mixture's loss cannot be."""
    import numpy as np

    small, large = np.minimum(losses, 0), np.maximum(losses, 0)
    below = np.log1p(np.maximum(np.expm1(small) / rate, -1))
    above = large - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-large))
    return np.where(losses > 0, above, below)
