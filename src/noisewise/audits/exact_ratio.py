"""The exact feature-to-noise ratio: for the two-patch distribution, whose features are known.

`noisewise.theory.xu2026` has the formulas; here are the noise of a mechanism and clipping factors, recorded or of a model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from noisewise.adaptive import Adaptive
from noisewise.audits.gradients import rule_factors
from noisewise.errors import ConfigError, DataError
from noisewise.theory.xu2026 import (
    FeatureRatio,
    feature_to_noise,
    longest_gradient,
    longest_patch,
    step_noise,
    usual_gradient,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from noisewise.clipping import Clip
    from noisewise.data.synthetic import TwoPatch
    from noisewise.mechanism import Mechanism
    from noisewise.models import TwoLayerCNN
    from noisewise.training.step import Observation


def noise_of_a_step(mechanism: Mechanism, clip: Clip | None = None, step: int | None = None) -> float:
    """`sigma_n = sigma C / B`: deviation of the noise on every coordinate of the averaged gradient.

    `clip`: the rule in force, where the mechanism's own adapts; `step`: the last one by default.
    """
    step = mechanism.steps - 1 if step is None else step
    rule = mechanism.clip_at(step) if clip is None else clip
    return step_noise(mechanism.noise_at(step), rule.sensitivity, mechanism.expected_batch_size)


class Factors:
    """A recorder that keeps the clipping factor of every unit of every step, by group; as private as the records."""

    def __init__(self, mechanism: Mechanism, labels: Tensor):
        """`labels [n]`: group of each unit of the training data."""
        _refuse_adaptive(mechanism)
        self._mechanism, self._labels = mechanism, labels
        self._recorded: list[tuple[np.ndarray, np.ndarray]] = []

    def __call__(self, observation: Observation) -> None:
        """Record a step; `train` and `private_step` call this."""
        units = observation.units.cpu()
        norms = observation.norms[:, : len(units)]  # what is behind them is padding
        factors = rule_factors(self._mechanism.clip_at(observation.step), norms).amin(0)
        self._recorded.append((self._labels[units].numpy(), factors.double().cpu().numpy()))

    def of(self, label: int) -> np.ndarray:
        """Factors of a group's units over all steps so far."""
        return np.concatenate([np.empty(0), *(factors[labels == label] for labels, factors in self._recorded)])


def exact(
    distribution: TwoPatch,
    mechanism: Mechanism,
    model: TwoLayerCNN | None = None,
    *,
    recorded: Factors | None = None,
    filters: int = 10,
    samples: int = 500,
    generator: torch.Generator | None = None,
    step: int | None = None,
) -> list[FeatureRatio]:
    """FNR, clipping factor and proportion of each feature of a two-patch distribution, and what they make together.

    `EFNR = phi * Lambda * FNR`, `FNR = ||u|| / sigma_n`, `sigma_n = sigma C / B`, `Lambda = min min(1, C / ||g||)` over
    rows of the feature (and steps, where they were recorded). The combination is what the signal of a step is in units of
    its noise: losses should be ordered by it, not scale with it. Where every row is clipped it does not depend on C.

    Args:
        distribution: the features, their proportions and the patch noise.
        mechanism: rule, noise and batch size.
        model: whose gradients are taken at `samples` rows of each feature, in closed form; or
        recorded: the factors of a whole training run, labels being the group `feature`; without either Lambda is `proxy`.
        filters: m, where no model says it.
        samples: rows drawn for each feature.
        generator: draws them; a fixed one by default.
        step: whose rule and noise count; the last by default.

    Reference: Xu, Chen 2026, arXiv:2603.04881, Definition 3.3 (FNR, clipping factor, proportion).
    Deviation: the definitions' formulas are not known to us; these follow the paper's prose. The product is ours. The
    hard bound `sqrt(2/m) (||u|| + ||xi||)` takes for ||xi|| a length that one patch in a million exceeds.
    """
    _refuse_adaptive(mechanism)
    step = mechanism.steps - 1 if step is None else step
    rule, sigma = mechanism.clip_at(step), noise_of_a_step(mechanism, step=step)
    count, d = distribution.features.shape
    if model is not None:
        filters = model.filters.out_features // model.outputs
    freedom = d - count if distribution.project else d
    patch = longest_patch(distribution.sigma_xi, freedom)
    ratios = []
    for label, norm in enumerate(distribution.norms.tolist()):
        proxy = _factor_at(rule, usual_gradient(norm, distribution.sigma_xi, d, filters))
        factors, source = np.array([proxy]), "proxy"
        if recorded is not None:
            factors, source = recorded.of(label), "recorded"
        elif model is not None:
            factors, source = _factors_of(distribution, label, model, rule, samples, generator), "model"
        if not len(factors):
            raise DataError(
                f"no row of {distribution.names[label]!r} was recorded: record more steps, or give labels of this group."
            )
        ratios.append(
            FeatureRatio(
                name=distribution.names[label],
                label=distribution.labels[label],
                norm=norm,
                proportion=distribution.proportions[label],
                ratio=feature_to_noise(norm, sigma),
                factor=float(factors.min()),
                factor_low=float(np.quantile(factors, 0.05)),
                factor_mean=float(factors.mean()),
                proxy=proxy,
                bound=_factor_at(rule, longest_gradient(norm, patch, filters)),
                source=source,
            )
        )
    return ratios


def _refuse_adaptive(mechanism: Mechanism) -> None:
    if isinstance(mechanism.clip, Adaptive):
        raise ConfigError(
            f"the bound of {mechanism.clip!r} moves during training: the exact ratio needs one that is known, e.g. Flat(1.0)."
        )


def _factor_at(rule: Clip, norm: float) -> float:
    import torch

    return float(rule_factors(rule, torch.tensor([[norm]], dtype=torch.float64)))


def _factors_of(
    distribution: TwoPatch,
    label: int,
    model: TwoLayerCNN,
    rule: Clip,
    samples: int,
    generator: torch.Generator | None,
) -> np.ndarray:
    """Factors of rows that all carry one feature."""
    import torch

    from noisewise.models import gradient_norms

    alone = tuple(float(place == label) for place in range(len(distribution.labels)))
    draw = torch.Generator().manual_seed(label) if generator is None else generator
    rows = replace(distribution, proportions=alone).draw(samples, draw)
    weight = model.filters.weight
    norms = gradient_norms(model, rows.x.to(weight.device, weight.dtype), rows.y.to(weight.device))
    return rule_factors(rule, norms.double().unsqueeze(0))[0].cpu().numpy()
