"""Privacy losses of Gaussian releases on a grid: dp-accounting's distributions, with all grid points computed at once.

dp-accounting asks for the divergence at one grid point after the other, in Python; a schedule of hundreds of noise levels
takes a minute there. The bounds, tails, distribution functions and the pessimistic rounding are dp-accounting's own; equal
releases are composed, and epsilon is read, by its formulas in a third of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TAIL = 1e-15  # of the probability of equal releases together, called infinite; dp-accounting's
ORDERS = 20  # at which tails are bounded, either way; dp-accounting's


def composed(releases: Iterable[tuple[float, float, int]], adjacency: Any, grid: float) -> Any:
    """The privacy loss of all releases together: (sampling rate, sigma, count) of each; `adjacency` is dp-accounting's.

    Guarantee: pessimistic, as dp-accounting's: epsilon at any delta is not below the true one, up to rounding of float64.
    """
    from dp_accounting.pld.privacy_loss_distribution import identity

    parts = [several(rate, sigma, count, adjacency, grid) for rate, sigma, count in releases]
    return reduce(lambda total, part: total.compose(part), parts) if parts else identity(grid)


def several(rate: float, sigma: float, count: int, adjacency: Any, grid: float) -> Any:
    """The privacy loss of `count` equal releases; without sampling that of one with less noise, exactly."""
    if rate == 1:
        return once(rate, sigma * count**-0.5, adjacency, grid)
    return repeated(once(rate, sigma, adjacency, grid), count)


def epsilon_of(total: Any, delta: float) -> float:
    """The smallest epsilon of a privacy loss at `delta`, either way: dp-accounting's, with all grid points at once."""
    return max(_epsilon_one_way(way, delta) for way in _ways(total))


def _epsilon_one_way(way: Any, delta: float) -> float:
    """Where `P[L > e] - exp(e) Q[L > e]` falls to delta: losses above e are added up from the largest on."""
    import numpy as np

    first, points, infinite = way._lower_loss, way.size, way._infinity_mass
    if infinite > delta:
        return math.inf
    lowest = max(first, 1)  # losses up to 0 add nothing to epsilons above 0
    losses = np.arange(first + points - 1, lowest - 1, -1) * way._discretization
    if losses.size and losses[0] > 700:  # exp(-loss) leaves the range of floats
        return float(way.get_epsilon_for_delta(delta))
    probabilities = way._probs[lowest - first :][::-1]
    upper = np.cumsum(np.append(infinite, probabilities))
    lower = np.cumsum(np.append(0.0, np.exp(-losses) * probabilities))
    with np.errstate(divide="ignore", invalid="ignore"):
        epsilons = np.log((upper - delta) / lower)  # if the losses so far are all that lie above
    enough = (upper > delta) & (lower > 0) & (epsilons >= np.append(losses, 0.0))
    return float(epsilons[np.argmax(enough)]) if enough.any() else 0.0


def repeated(one: Any, count: int) -> Any:
    """A privacy loss composed with itself `count` times: dp-accounting's `self_compose`."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    return one if count == 1 else PrivacyLossDistribution(*(_repeated_one_way(way, count) for way in _ways(one)))


def _repeated_one_way(way: Any, count: int) -> Any:
    """By a real Fourier transform, whose power is taken by squaring, within bounds on the tails."""
    import numpy as np
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from scipy.fft import irfft, next_fast_len, rfft

    low, high = _within(way._probs, count)
    length = next_fast_len(max(high - low + 1, way.size), real=True)
    around = irfft(_power(rfft(way._probs, length), count), length)
    probabilities = np.roll(around, -low)[: high - low + 1]
    infinite = TAIL - math.expm1(count * math.log1p(-way._infinity_mass))
    return DensePLDPmf(way._discretization, way._lower_loss * count + low, probabilities, infinite, True)


def _within(probabilities: NDArray[np.float64], count: int) -> tuple[int, int]:
    """Between which sums of places all but `TAIL` of the probability lies: Chernoff bounds."""
    import numpy as np

    size = len(probabilities)
    low, high, room = 0, (size - 1) * count, math.log(2 / TAIL)
    growth = np.exp(np.arange(size) / size)
    above, below = probabilities.copy(), probabilities.copy()
    for order in range(1, ORDERS + 1):
        above, below = above * growth, below / growth
        high = min(high, math.ceil((count * math.log(above.sum()) + room) * size / order))
        low = max(low, math.floor(-(count * math.log(below.sum()) + room) * size / order))
    return low, high


def _power(base: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """`base ** count` by squaring: complex powers of NumPy go by logarithms, which take ten times as long."""
    half = base if count == 1 else _power(base, count // 2)
    twice = half if count == 1 else half * half
    return twice * base if count % 2 and count > 1 else twice


def _ways(loss: Any) -> list[Any]:
    """Its distributions where the unit is removed and where it is added, with all points of the grid."""
    pair = (loss._pmf_remove,) if loss._symmetric else (loss._pmf_remove, loss._pmf_add)
    return [way.to_dense_pmf() for way in pair]


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
