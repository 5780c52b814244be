"""Rules of thumb of the documents, as functions."""

from __future__ import annotations

from noisewise.errors import ConfigError


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
