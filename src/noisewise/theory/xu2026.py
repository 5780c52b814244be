"""Xu, Chen 2026, arXiv:2603.04881: features against the noise of a step in the two-layer network on two-patch data.

A feature u of proportion phi, m filters for each class, patch noise of deviation sigma_xi in d dimensions, learning rate eta,
and `sigma_n = sigma C / B` on every coordinate of the averaged gradient.
Deviation: the displays of the paper are not known to us; formulas follow its prose, constants are ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from noisewise.errors import ConfigError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate

RARE = 1e-6  # share of noise patches that may be longer than the hard bound assumes


def step_noise(noise_multiplier: float, sensitivity: float, batch_size: int) -> float:
    """`sigma_n = sigma C / B`: deviation of the noise on every coordinate of the averaged gradient. Eq. (3).

    >>> step_noise(2.0, 3.0, 100)
    0.06
    """
    return noise_multiplier * sensitivity / batch_size


def feature_to_noise(norm: float, sigma_n: float) -> float:
    """`FNR = ||u|| / sigma_n`; infinite without noise. Definition 3.3."""
    return norm / sigma_n if sigma_n > 0 else math.inf


def usual_gradient(norm: float, sigma_xi: float, d: int, filters: int) -> float:
    """`G = sqrt((||u||^2 + sigma_xi^2 d) / m)`: length of a gradient with half of the filters active and 1 - p_y = 1."""
    return math.sqrt((norm**2 + sigma_xi**2 * d) / filters)


def longest_patch(sigma_xi: float, freedom: int) -> float:
    """Length that one noise patch in a million exceeds; `freedom`: dimensions that the noise has."""
    from scipy.stats import chi2

    return sigma_xi * math.sqrt(float(chi2.ppf(1 - RARE, freedom))) if freedom else 0.0


def longest_gradient(norm: float, patch: float, filters: int) -> float:
    """`sqrt(2/m) (||u|| + ||xi||)`: no gradient is longer, with every filter active and 1 - p_y = 1."""
    return math.sqrt(2 / filters) * (norm + patch)


@dataclass(frozen=True)
class FeatureRatio:
    """One feature of a synthetic distribution against the noise: the three factors of its effective ratio.

    Args:
        name: of the feature.
        label: class that owns it.
        norm: ||u||.
        proportion: phi, its probability.
        ratio: FNR = ||u|| / sigma_n; infinite without noise.
        factor: Lambda, the smallest clipping factor of its rows.
        factor_low: 5th percentile of the factors.
        factor_mean: their mean.
        proxy: the rule's factor at `G = sqrt((||u||^2 + sigma_xi^2 d) / m)`.
        bound: the rule's factor at the longest gradient that is possible.
        source: of the factors: `recorded` in training, of a `model`, or the `proxy`.
    """

    name: str
    label: int
    norm: float
    proportion: float
    ratio: float
    factor: float
    factor_low: float
    factor_mean: float
    proxy: float
    bound: float
    source: str

    @property
    def effective(self) -> float:
        """EFNR = phi Lambda FNR."""
        return self.proportion * self.factor * self.ratio

    @property
    def effective_mean(self) -> float:
        """The same with the mean factor in place of the smallest."""
        return self.proportion * self.factor_mean * self.ratio


def expected_signal(lr: float, proportion: float, weight: float, active: float, filters: int, norm: float) -> float:
    """`eta phi E[f (1 - p_y)] (rho/m) ||u||^2`: what a step adds to the own class's output on a feature. Section J.

    weight: mean of clipping factor times residual, `E[f (1 - p_y)]`; active: rho, share of the class's filters.
    """
    return lr * (proportion * weight) * active / filters * norm**2


def expected_noise(lr: float, sigma_n: float, norm: float, active: float, filters: int) -> float:
    """`eta sigma_n ||u|| sqrt(rho/m)`: deviation that the noise of a step gives to the same output. Section J."""
    return lr * sigma_n * norm * math.sqrt(active / filters)


def noise_norm(lr: float, sigmas: Sequence[float], d: int) -> float:
    """`eta sqrt(d sum_t sigma_n(t)^2)`: length of a filter that noise alone moved; at one sigma_n `eta sigma_n sqrt(T d)`."""
    return lr * math.sqrt(d * sum(sigma**2 for sigma in sigmas))


def norm_exponent(steps: Sequence[int], norms: Sequence[Sequence[float]], level: float = LEVEL) -> Estimate:
    """Slope of `log ||w_r||` over `log T`, mean over filters r with Student's t interval over them.

    Weights that noise dominates grow as `eta sigma_n sqrt(T d)`: 1/2 at a fixed sigma_n, 1 where a fixed budget makes
    sigma_n grow as sqrt T. `norms [steps, filters]`; steps of 0 are left out, since 0 has no logarithm.
    Reference: Xu, Chen 2026, arXiv:2603.04881, remark on Eq. (6). Deviation: exponents derived here, theirs are not known.
    """
    kept = [(step, row) for step, row in zip(steps, norms, strict=True) if step > 0]
    if len(kept) < 2:
        raise ConfigError(f"{len(kept)} steps above 0: a slope needs at least two.")
    x, y = np.log([step for step, _ in kept]), np.log([row for _, row in kept])
    x = x - x.mean()
    return intervals.mean(x @ (y - y.mean(0)) / float(x @ x), level)


def ordered_pairs(effective: Sequence[float], losses: Sequence[float]) -> tuple[int, int]:
    """Pairs of features whose losses are ordered as the effective ratio says, less where there is more signal; all pairs."""
    pairs = list(combinations(range(len(losses)), 2))
    return sum((effective[a] - effective[b]) * (losses[b] - losses[a]) > 0 for a, b in pairs), len(pairs)


@dataclass(frozen=True)
class Limits:
    """Where an assumption counts as met. The theory's own constants are not known: these are ours, to be changed.

    Args:
        spread: largest relative deviation of a noise vector's squared length from its expectation.
        batch: least B / n.
        feature: least ||u|| / (sigma_xi sqrt d).
        ratio: least ||u|| / sigma_n.
        step: most that an output may move in one step.
        residual: least 1 - p_y on any test point.
        active: least share of a class's filters that its feature activates.
    """

    spread: float = 0.3
    batch: float = 0.1
    feature: float = 1.0
    ratio: float = 1.0
    step: float = 1.0
    residual: float = 0.01
    active: float = 0.25


ASSUMPTIONS = {
    "patch noise": "noise patches are of nearly equal length (d is large)",
    "step noise": "noise on a filter's gradient is of nearly equal length (d is large)",
    "batch": "a batch is a fixed share of the data",
    "feature over patch": "a feature is longer than the patch noise",
    "feature over noise": "a feature is longer than the step's noise",
    "small steps": "no step moves an output far (small learning rate)",
    "non-perfect": "no test point is ever learnt perfectly",
    "active filters": "a fixed share of a class's filters is active on its feature",
}


@dataclass(frozen=True)
class Assumption:
    """An assumption of the theory: in how many checks it held, and the value furthest from holding."""

    name: str
    statement: str
    limit: str
    held: int
    checks: int
    worst: float


def checked(
    name: str, values: Sequence[float] | np.ndarray, limit: float, kind: Literal["at least", "at most", "1 ±"]
) -> Assumption:
    """One of `ASSUMPTIONS`, checked for each of at least one value against `limit`."""
    column = np.asarray(values, dtype=np.float64).reshape(-1)
    held, worst = {
        "at least": (column >= limit, column.min()),
        "at most": (column <= limit, column.max()),
        "1 ±": (np.abs(column - 1) <= limit, column[np.abs(column - 1).argmax()]),
    }[kind]
    return Assumption(name, ASSUMPTIONS[name], f"{kind} {limit:g}", int(held.sum()), len(column), float(worst))
