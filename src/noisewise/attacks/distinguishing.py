"""Telling two worlds apart: tests by threshold and guesses at canaries, and the mu and epsilon that their errors prove.

Lower bounds: above the claim is proof of a fault, below it proves nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from noisewise.accounting import gdp_epsilon
from noisewise.errors import ConfigError, DataError

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # of the canaries that are guessed in, or out


def epsilon_of(mu: float, delta: float) -> float:
    """Epsilon at `delta` of distinguishing N(0, 1) from N(mu, 1), exactly.

    `delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)`.
    Reference: Balle, Wang 2018, arXiv:1805.06530, Theorem 8. Deviation: none.
    """
    import dp_accounting

    if mu <= 0:
        return 0.0
    if math.isinf(mu):
        return math.inf
    return gdp_epsilon([(dp_accounting.GaussianDpEvent(1 / mu), 1)], delta, "add-remove")[0] or 0.0


@dataclass(frozen=True)
class Errors:
    """Of a threshold test: `false_alarms` of `outside` trials without, `misses` of `inside` trials with the canary."""

    false_alarms: int
    outside: int
    misses: int
    inside: int

    @classmethod
    def counted(cls, inside: np.ndarray, outside: np.ndarray, threshold: float) -> Errors:
        """Above the threshold the test says: the canary was there."""
        return cls(int((outside > threshold).sum()), len(outside), int((inside <= threshold).sum()), len(inside))


def mu_bounds(errors: Errors, level: float) -> tuple[float, float, float]:
    """Estimate and ends of the mu that a test's errors imply: `mu = Phi^-1(1 - FPR) - Phi^-1(FNR)`.

    Guarantee: mu of the mechanism is above the lower end with probability `level`, whatever the statistic: it holds
    exactly (Clopper-Pearson, half of the error to each rate), and no test tells a mu-GDP mechanism's worlds apart better.
    The estimate counts half an error more, so that it is finite; the upper end says how far the *test* could go.
    Reference: Nasr et al. 2023, arXiv:2302.07956; Dong, Roth, Su 2019, arXiv:1905.02383. Deviation: none.
    """
    from scipy.stats import binomtest, norm

    most, least, likely = [], [], []
    for wrong, trials in ((errors.false_alarms, errors.outside), (errors.misses, errors.inside)):
        if not trials:
            raise DataError("a test without trials on one side: make more trials.")
        rate = binomtest(wrong, trials).proportion_ci(level, method="exact")
        most.append(float(rate.high))
        least.append(float(rate.low))
        likely.append((wrong + 0.5) / (trials + 1))
    value, low, high = (-float(norm.ppf(rates).sum()) for rates in (likely, most, least))
    return value, low, high


def best_threshold(inside: np.ndarray, outside: np.ndarray, level: float) -> float:
    """Threshold with the largest lower bound on mu on these trials; the middle one of several that are equally good.

    The exact upper ends of all candidates' rates at once, as quantiles of the beta distribution: scipy's `binomtest` has
    one rate at a time.
    """
    from scipy.stats import beta, norm

    each = 1 - (1 - level) / 2
    candidates = np.quantile(np.concatenate([inside, outside]), np.linspace(0.005, 0.995, 199))
    inside, outside = np.sort(inside), np.sort(outside)
    alarms = len(outside) - np.searchsorted(outside, candidates, "right")
    misses = np.searchsorted(inside, candidates, "right")
    rates = (
        np.where(wrong < trials, beta.ppf(each, wrong + 1, np.maximum(trials - wrong, 1)), 1.0)
        for wrong, trials in ((alarms, len(outside)), (misses, len(inside)))
    )
    bounds = -sum(norm.ppf(rate) for rate in rates)
    best = np.flatnonzero(bounds >= bounds.max() - 1e-12) if np.isfinite(bounds.max()) else np.arange(len(candidates))
    if np.isfinite(bounds.max()) and (alarms[best] + misses[best] == 0).any():  # a gap: its middle is the safest
        return float((inside[0] + outside[-1]) / 2)
    return float(candidates[best[len(best) // 2]])


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Chance, at most, of so many right guesses if training were (epsilon, delta)-private.

    `beta + 2 m delta max_i (P[W >= v - i] - beta)/i`, `beta = P[W >= v]`, `W ~ Binomial(r, e^eps/(1 + e^eps))`.
    Reference: Steinke, Nasr, Jagielski 2023, arXiv:2305.08846, Theorem 5.2 and Appendix D. Deviation: none.
    """
    from scipy.special import expit
    from scipy.stats import binom

    if not 0 <= right <= guesses <= canaries:
        raise ConfigError(f"{right} right of {guesses} guesses at {canaries} canaries: must ascend from 0.")
    tails = binom.sf(right - 1 - np.arange(right + 1), guesses, float(expit(epsilon)))  # P[W >= v - i], i = 0 .. v
    alpha = float(((tails[1:] - tails[0]) / np.arange(1, right + 1)).max(initial=0.0))
    return min(1.0, float(tails[0]) + 2 * canaries * delta * alpha)


def one_run_bound(canaries: int, guesses: int, right: int, delta: float, level: float) -> float:
    """Lower bound on epsilon at confidence `level`: the epsilon up to which so many right guesses are too unlikely."""

    def rejected(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, right, epsilon, delta) <= 1 - level

    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high):
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def discriminant(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Fisher's weights `S^-1 (mean with - mean without)`, S the pooled covariance, with a millionth of its trace added."""
    pooled = np.cov(inside) + np.cov(outside)
    pooled += 1e-6 * max(np.trace(pooled), 1e-30) * np.eye(len(pooled))
    return np.linalg.solve(pooled, inside.mean(1) - outside.mean(1))


class Guess(NamedTuple):
    """How many of the `tested` canaries were guessed in and out, how many rightly, and the epsilon that this proves."""

    bound: float
    tested: int
    guessed_in: int
    guessed_out: int
    right: int


def guess(scores: np.ndarray, coins: np.ndarray, delta: float, level: float) -> Guess:
    """How many to guess from the first half of the canaries, the bound from the second: they stand in random order."""
    half = len(scores) // 2

    def attempt(scores: np.ndarray, coins: np.ndarray, shares: tuple[float, float]) -> Guess:
        order, m = np.argsort(scores, kind="stable"), len(scores)
        top, bottom = (min(round(share * m), m // 2) for share in shares)
        right = int(coins[order[m - top :]].sum() + (~coins[order[:bottom]]).sum())
        return Guess(one_run_bound(m, top + bottom, right, delta, level), m, top, bottom, right)

    def merit(shares: tuple[float, float]) -> tuple[float, float]:
        tried = attempt(scores[:half], coins[:half], shares)
        guesses = tried.guessed_in + tried.guessed_out
        return tried.bound, -one_run_p_value(half, guesses, tried.right, 0.0, 0.0)

    best = max(((top, bottom) for top in SHARES for bottom in SHARES), key=merit)
    return attempt(scores[half:], coins[half:], best)
