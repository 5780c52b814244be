"""Zhu, Blaschko 2023, TMLR, arXiv:2112.00845: bounds on how small the gradient gets, sparsity, momentum, symmetry.

Mean loss L with a G-Lipschitz gradient, T steps of size eta on batches of B, bound C, noise multiplier sigma, P weights,
sparsity r. `Delta_L = L(w_1) - min L`, `Delta_sigma = C^2 sigma^2 P G / (2 B^2)`.

    noisy SGD   mean ||grad||^2            <= 2 G Delta_L / ((1-r) sqrt T) + (sigma_g^2 / B + P (sigma C)^2 / B^2) / sqrt T
    clipped SGD mean P_t h(grad) ||grad||  <= Delta_C / kappa,   Delta_C = Delta_L / (eta T) + eta G C^2 / 2 - mean b
    DP-SGD      mean P_t h(grad) ||grad||  <= (Delta_C + (1-r) eta Delta_sigma) / kappa

`h(x) = min(||x||, C/4)`, `P_t = Pr(||xi|| < 3C/4)` for the deviations xi = g_i - grad, b what their asymmetry does to the
clipped step, kappa in (1-r, 1), for which the paper guesses sqrt(1-r). Theorems 3.2, 3.4, 3.5; appendices F and H.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from noisewise.errors import ConfigError

FLIPS = 199  # of the test of symmetry


def bound_for_momentum(bound: float, momentum: float, new_momentum: float) -> float:
    """The bound that goes with another heavy-ball momentum: `C' = C (1 - mu') / (1 - mu)`, C / (1 - mu) kept constant.

    A noise vector moves the weights by 1 / (1 - mu) of itself in all, so this keeps signal and noise per step. Not for Adam,
    whose step does not grow with momentum. Reference: Zhu & Blaschko 2023, arXiv:2112.00845, appendix H. Deviation: the
    printed algebra adds noise linearly; the rule rests on the total displacement.

    >>> round(bound_for_momentum(0.1, 0.9, 0.0), 12), round(bound_for_momentum(1.0, 0.0, 0.5), 12)
    (1.0, 0.5)
    """
    for name, value in (("momentum", momentum), ("new_momentum", new_momentum)):
        if not 0 <= value < 1:
            raise ConfigError(f"{name}={value!r}: must be in [0, 1).")
    return bound * (1 - new_momentum) / (1 - momentum)


def noise_term(bound: float, noise_multiplier: float, batch_size: int, parameters: int, smoothness: float) -> float:
    """`Delta_sigma = C^2 sigma^2 P G / (2 B^2)`: what noise adds to the bound of DP-SGD per unit of learning rate."""
    return (bound * noise_multiplier / batch_size) ** 2 * parameters * smoothness / 2


def bound_at_sparsity(rate: float, clip_term: float, noise_term: float, lr: float) -> float:
    """`U(r) = Delta_C / sqrt(1 - r) + sqrt(1 - r) eta Delta_sigma`: the convergence bound at sparsity r.

    Reference: Zhu & Blaschko 2023, Theorem 3.5 with kappa = sqrt(1 - r).
    """
    if not 0 <= rate < 1:
        raise ConfigError(f"rate={rate!r}: a sparsity in [0, 1).")
    return clip_term / (1 - rate) ** 0.5 + (1 - rate) ** 0.5 * lr * noise_term


def best_sparsity(clip_term: float, noise_term: float, lr: float) -> float:
    """`r* = max(0, 1 - Delta_C / (eta Delta_sigma))`: the sparsity with the smallest `bound_at_sparsity`.

    Reference: Zhu & Blaschko 2023, section 3.3. Deviation: the learning rate, which equation 113 has and 114 drops.

    >>> best_sparsity(clip_term=1.0, noise_term=20.0, lr=0.1), best_sparsity(3.0, 20.0, 0.1)
    (0.5, 0.0)
    """
    for name, value in (("clip_term", clip_term), ("noise_term", noise_term), ("lr", lr)):
        if not value > 0:
            raise ConfigError(f"{name}={value!r}: must be above 0.")
    return max(0.0, 1 - clip_term / (lr * noise_term))


@dataclass(frozen=True)
class Constants:
    """What the bounds are made of. `steps`, `batch`, `bound`, `noise`, `lr`, `weights` are public; the rest is measured."""

    steps: int
    batch: int
    bound: float
    noise: float
    lr: float
    weights: int
    smoothness: float
    loss_gap: float
    variance: float
    asymmetry: float

    @property
    def delta_noise(self) -> float:
        """`Delta_sigma = C^2 sigma^2 P G / (2 B^2)`."""
        return noise_term(self.bound, self.noise, self.batch, self.weights, self.smoothness)

    @property
    def delta_clip(self) -> float:
        """`Delta_C = Delta_L / (eta T) + eta G C^2 / 2 - mean b`."""
        return self.loss_gap / (self.lr * self.steps) + self.lr * self.smoothness * self.bound**2 / 2 - self.asymmetry

    @property
    def best_sparsity(self) -> float | None:
        """`r* = max(0, 1 - Delta_C / (eta Delta_sigma))`; None where Delta_C <= 0, since the bound then says nothing.

        Deviation: the paper prints `1 - Delta_C / Delta_sigma`; its Eq. 114 drops the learning rate of Eq. 113.
        """
        if self.delta_clip <= 0:
            return None
        return best_sparsity(self.delta_clip, self.delta_noise, self.lr) if self.delta_noise > 0 else 0.0


def noisy_bound(c: Constants, sparsity: float = 0.0) -> float:
    """Theorem 3.2 on `mean ||grad||^2`, at the step size `1 / (G sqrt T)` that it is stated for; sparsity only hurts.

    Deviation: the paper's noise has standard deviation sigma on the sum (C = 1); here it is sigma C.
    """
    start = 2 * c.smoothness * c.loss_gap / (1 - sparsity)
    spread = c.variance / c.batch + c.weights * (c.noise * c.bound / c.batch) ** 2
    return (start + spread) / math.sqrt(c.steps)


def clipped_bound(c: Constants, sparsity: float = 0.0, kappa: float | None = None) -> float:
    """Theorem 3.4 on `mean P_t h(grad) ||grad||`: `Delta_C / kappa`; sparsity only hurts. kappa: `sqrt(1-r)` if not given."""
    return c.delta_clip / _kappa(sparsity, kappa)


def private_bound(c: Constants, sparsity: float = 0.0, kappa: float | None = None) -> float:
    """Theorem 3.5: `U(r) = (Delta_C + (1-r) eta Delta_sigma) / kappa`; with `kappa = sqrt(1-r)` smallest at r*."""
    if kappa is None:
        return bound_at_sparsity(sparsity, c.delta_clip, c.delta_noise, c.lr)
    return (c.delta_clip + (1 - sparsity) * c.lr * c.delta_noise) / _kappa(sparsity, kappa)


def _kappa(sparsity: float, kappa: float | None) -> float:
    if not 0 <= sparsity < 1:
        raise ConfigError(f"sparsity={sparsity!r}: a share in [0, 1).")
    if kappa is not None and not 1 - sparsity <= kappa <= 1:
        raise ConfigError(f"kappa={kappa!r}: the theorem has it between 1 - r = {1 - sparsity:g} and 1.")
    return math.sqrt(1 - sparsity) if kappa is None else kappa


class Deviations(NamedTuple):
    """How gradients g_i lie around their mean gbar: `E||g_i - gbar||^2`, P_t, b, and `mean <gbar, clip(g_i)>`."""

    variance: float
    close: float
    asymmetry: float
    descent: float


def deviations(lengths: np.ndarray, along: np.ndarray, mean_length: float, bound: float) -> Deviations:
    """P_t, b and the descent of flat clipping from `||g_i||`, `<g_i, gbar>` and `||gbar||`.

    Guarantee: `descent = mean <gbar, clip(g_i)> >= P_t h(gbar) ||gbar|| + b`, always: clipping is a projection, hence
    monotone along gbar, pairs +xi and -xi cancel at 0, and nothing is clipped within C/4 + 3C/4.
    """
    square = mean_length**2
    apart = np.sqrt(np.maximum(lengths**2 - 2 * along + square, 0.0))
    # mirrored at the mean: 2 gbar - g_i
    mirrored = np.sqrt(np.maximum(4 * square - 4 * along + lengths**2, 0.0))
    straight = float((_shortened(lengths, bound) * along).mean())
    reflected = float((_shortened(mirrored, bound) * (2 * square - along)).mean())
    return Deviations(
        variance=float((lengths**2).mean() - square),
        close=float((apart < 0.75 * bound).mean()),
        asymmetry=(straight - reflected) / 2,
        descent=straight,
    )


def _shortened(lengths: np.ndarray, bound: float) -> np.ndarray:
    return np.minimum(1.0, np.divide(bound, lengths, out=np.ones_like(lengths), where=lengths > 0))


def energy_asymmetry(cloud: np.ndarray) -> tuple[float, float]:
    """Energy distance between a cloud `[n, d]` and its mirror image -cloud, and its share of the largest possible.

    `D^2 = 2 E|X + Y| - 2 E|X - Y|` with X, Y drawn from the cloud; `asymmetry = D^2 / (2 E|X + Y|)` is in [0, 1] and does
    not change with the cloud's scale. D = 0 exactly for a cloud that is its own mirror image.
    Reference: Székely, Rizzo 2013, Journal of Statistical Planning and Inference 143:1249.
    """
    sums, gaps = _mean_distance(cloud, -cloud), _mean_distance(cloud, cloud)
    squared = max(2 * (sums - gaps), 0.0)
    return math.sqrt(squared), squared / (2 * sums) if sums > 0 else 0.0


def symmetry_p_value(
    cloud: np.ndarray, generator: np.random.Generator, flips: int = FLIPS, owner: np.ndarray | None = None
) -> float:
    """P-value of symmetry about the centre: `(1 + #{D(flipped) >= D}) / (1 + flips)`.

    A symmetric cloud looks the same after every point is mirrored with probability 1/2; rows of one person (`owner`)
    are mirrored together, since they are not independent. Deviation from an exact test: the centre is the sample's mean, so
    each flipped cloud is centred again, and the level holds for many people only.
    """
    centred = cloud - cloud.mean(0)
    observed = energy_asymmetry(centred)[0]
    whose = np.arange(len(centred)) if owner is None else np.unique(owner, return_inverse=True)[1]
    as_large = 0
    for _ in range(flips):
        flipped = centred * generator.choice([-1.0, 1.0], size=(int(whose.max()) + 1, 1))[whose]
        as_large += energy_asymmetry(flipped - flipped.mean(0))[0] >= observed * (1 - 1e-12)
    return (1 + as_large) / (1 + flips)


def _mean_distance(first: np.ndarray, second: np.ndarray) -> float:
    from scipy.spatial.distance import cdist

    return float(cdist(first, second).mean())
