"""Three readings of the same events: PLD (the guarantee), RDP (a second opinion), GDP-CLT (an approximation).

All are called with the neighbouring relation, so nothing is doubled by hand: sigma is noise std / C for add/remove C.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from noisewise.accounting import losses
from noisewise.accounting.events import check_releases
from noisewise.errors import ConfigError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Events: TypeAlias = "Sequence[tuple[DpEvent, int]]"

FINEST = 1e-4  # discretisation of the privacy loss: dp-accounting's default
SEVERAL = 20  # different releases whose composition takes long
ADJACENCIES = {
    "add-remove": "ADD_OR_REMOVE_ONE",
    "zero-out": "REPLACE_SPECIAL",
    "replace-one": "REPLACE_ONE",
}


@dataclass(frozen=True)
class Spent:
    """One mechanism read by every accountant; a reading that does not exist is None with its reason."""

    epsilon: float
    delta: float
    adjacency: str
    rdp_epsilon: float | None
    rdp_reason: str | None
    gdp_epsilon: float | None
    gdp_reason: str | None


def check_delta(delta: float) -> None:
    """Delta is a probability."""
    if not isinstance(delta, int | float) or not 0 < delta < 1:
        raise ConfigError(f"delta={delta!r}: must be in (0, 1); at most 1/(10 n) for n units is customary.")


def spent(events: Events, delta: float, adjacency: str) -> Spent:
    """All three readings."""
    rdp, rdp_reason = rdp_epsilon(events, delta, adjacency)
    gdp, gdp_reason = gdp_epsilon(events, delta, adjacency)
    return Spent(pld_epsilon(events, delta, adjacency), delta, adjacency, rdp, rdp_reason, gdp, gdp_reason)


def _epsilon(accountant: Any, events: Events, delta: float) -> float:
    for event, count in events:
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


@contextlib.contextmanager
def _without_notes_on_skipped_orders() -> Iterator[None]:
    """RDP leaves orders out whose series does not converge (its bound stays valid) and would say so for each."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _not_private(events: Iterable[tuple[DpEvent, int]]) -> bool:
    import dp_accounting

    return any(isinstance(event, dp_accounting.NonPrivateDpEvent) for event, _ in events)


def _relation(adjacency: str) -> Any:
    import dp_accounting

    if adjacency not in ADJACENCIES:
        raise ConfigError(f"adjacency={adjacency!r}: must be one of {', '.join(ADJACENCIES)}.")
    return dp_accounting.NeighboringRelation[ADJACENCIES[adjacency]]


def pld_epsilon(events: Events, delta: float, adjacency: str) -> float:
    """Upper bound on epsilon by privacy-loss distributions (dp-accounting, pessimistic discretisation).

    The discretisation is refined until that changes epsilon by less than 0.1 %; what is left is far smaller. Plans of many
    different releases, which take long, stop where the next stage would change it by less: a tenth of the grid leaves a
    hundredth of the error (connected dots). Every stage is an upper bound, and large epsilons, whose fine distributions would
    not fit in memory, end at a coarse one. What costs more than about a million is called infinite. Readings are remembered:
    a plan, its run and its report ask the same.
    """
    check_delta(delta)
    check_releases(sum(count for _, count in events))
    return _pld_epsilon(tuple((event, count) for event, count in events), delta, adjacency)


@lru_cache(maxsize=256)
def _pld_epsilon(events: Events, delta: float, adjacency: str) -> float:
    if _not_private(events):
        return math.inf
    if not events:
        return 0.0
    loss = _typical_loss(events)
    if loss > 1e7:
        return math.inf
    coarsest = min(max(math.ceil(math.log10(loss / 1e3 / FINEST)), 0), 6) if loss else 0  # about a thousand points
    grid, finer, epsilon = FINEST * 10**coarsest, 0.1, math.inf
    while True:
        coarser, epsilon = epsilon, _pld_on_a_grid(events, delta, adjacency, grid)
        left = finer**2 / (1 - finer**2) if len(events) > SEVERAL else 1.0  # of the change: errors fall with the square
        too_much = left * (coarser - epsilon) / (1e-3 * epsilon) if epsilon else 0.0
        if too_much <= 1 or grid <= FINEST:
            return epsilon
        finer = max(0.1, 0.9 / math.sqrt(too_much)) if len(events) > SEVERAL else 0.1
        grid = max(FINEST, grid * finer)


def _pld_on_a_grid(events: Events, delta: float, adjacency: str, grid: float) -> float:
    from dp_accounting.pld import PLDAccountant

    gaussians = _gaussians(events)
    if gaussians is None:
        return _epsilon(PLDAccountant(_relation(adjacency), grid), events, delta)
    return losses.epsilon_of(losses.composed(gaussians, _relation(adjacency), grid), delta)


def _typical_loss(events: Events) -> float:
    """Order of magnitude of the privacy loss: what is expected of all releases, and what one can bring."""
    gaussians = _gaussians(events) or ()
    expected = math.fsum(rate * count / (2 * sigma**2) for rate, sigma, count in gaussians)
    return expected + max((sigma**-2 for _, sigma, _ in gaussians), default=0.0)


def _gaussians(events: Events) -> list[tuple[float, float, int]] | None:
    """(sampling rate, sigma, count) of each event, None if one of them is of another kind."""
    import dp_accounting as dp

    mechanisms = []
    for event, count in events:
        match event:
            case dp.PoissonSampledDpEvent(event=dp.GaussianDpEvent(noise_multiplier=sigma), sampling_probability=rate):
                mechanisms.append((rate, sigma, count))
            case dp.GaussianDpEvent(noise_multiplier=sigma):
                mechanisms.append((1.0, sigma, count))
            case _:
                return None
    return mechanisms


def rdp_epsilon(events: Events, delta: float, adjacency: str) -> tuple[float | None, str | None]:
    """Upper bound on epsilon by Renyi divergences, or None and why RDP does not cover the events; remembered as PLD's is."""
    check_delta(delta)
    return _rdp_epsilon(tuple((event, count) for event, count in events), delta, adjacency)


@lru_cache(maxsize=1024)  # a calibration asks a dozen
def _rdp_epsilon(events: Events, delta: float, adjacency: str) -> tuple[float | None, str | None]:
    from dp_accounting import UnsupportedEventError
    from dp_accounting.rdp import RdpAccountant

    if adjacency == "replace-one":
        # dp-accounting's RDP reads a Gaussian's multiplier as relative to the replace-one sensitivity 2C, ours is
        # relative to C: its figure would be too small.
        return None, "RDP does not cover replace-one neighbours with a noise multiplier stated for add/remove"
    if _not_private(events):
        return math.inf, None
    if not events:
        return 0.0, None
    try:
        with _without_notes_on_skipped_orders():
            return _epsilon(RdpAccountant(neighboring_relation=_relation(adjacency)), events, delta), None
    except UnsupportedEventError as error:
        return None, f"RDP does not cover this mechanism: {error}"


def gdp_epsilon(events: Events, delta: float, adjacency: str) -> tuple[float | None, str | None]:
    """Epsilon by the central limit theorem of Gaussian DP: an approximation, NOT a bound.

    `mu^2 = sum_steps q^2 (exp(1/sigma^2) - 1)` for Poisson sampling (1/sigma^2 without sampling, where it is exact);
    `delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)`.
    Reference: Dong, Roth, Su 2019, arXiv:1905.02383; Bu et al. 2020, arXiv:1911.11607. Badly optimistic for small
    sigma and small q.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    check_delta(delta)
    if adjacency == "replace-one":
        return None, "the GDP approximation is stated for add/remove and zero-out neighbours"
    if _not_private(events):
        return math.inf, None
    gaussians = _gaussians(events)
    if gaussians is None:
        return None, "the GDP approximation covers Gaussian releases only"
    squared = math.fsum(
        count * (sigma**-2 if rate == 1 else rate**2 * math.expm1(min(sigma**-2, 700.0)))
        for rate, sigma, count in gaussians
    )
    if not squared:
        return 0.0, None
    mu = math.sqrt(squared)

    def excess(epsilon: float) -> float:
        # e^eps Phi(..) by logarithms: both factors leave the range of floats on their own
        tail = math.exp(min(epsilon + norm.logcdf(-epsilon / mu - mu / 2), 0.0))
        return float(norm.cdf(-epsilon / mu + mu / 2)) - tail - delta

    if excess(0.0) <= 0:
        return 0.0, None
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-10)), None
