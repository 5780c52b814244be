from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import nn

from noisewise.adaptive import Quantile
from noisewise.audits.exact_ratio import Factors, exact, noise_of_a_step
from noisewise.clipping import Flat
from noisewise.data import Data
from noisewise.data.synthetic import two_patch_distribution
from noisewise.errors import ConfigError, DataError
from noisewise.losses import cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.models import two_layer_cnn
from noisewise.persample import clipped_sum
from noisewise.sampling import Poisson
from noisewise.schedule import Schedule
from noisewise.training.state import State
from noisewise.training.step import Observation, private_step


def plan(bound: float = 1.0, noise: float = 2.0, n: int = 1000, batch: int = 100, **changes: object) -> Mechanism:
    settings = {"sampler": Poisson(n, batch), "clip": Flat(bound), "steps": 10, "noise_multiplier": noise, **changes}
    return Mechanism(**settings)  # type: ignore[arg-type]


def network(scale: float = 0.1, filters: int = 6, d: int = 30, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return two_layer_cnn((2, d), 2, filters=filters, start=scale)


def test_sigma_n_is_the_noise_that_training_adds() -> None:
    model = nn.Linear(400, 100)
    data = Data(torch.zeros(1000, 400), torch.zeros(1000).long())
    mechanism = plan(bound=3.0, noise=2.0)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.eye(100)[0] * 100)  # everything is learnt: no gradient, only noise
    private_step(
        model, data, cross_entropy, torch.optim.SGD(model.parameters(), 0.0), State.start(mechanism, insecure_seed=0)
    )
    assert model.weight.grad is not None
    assert float(model.weight.grad.std()) == pytest.approx(noise_of_a_step(mechanism), rel=0.02)
    assert noise_of_a_step(mechanism) == pytest.approx(2.0 * 3.0 / 100)
    schedule = replace(mechanism, noise_multiplier=Schedule(((0, 2.0), (5, 4.0))))
    assert noise_of_a_step(schedule) == 2 * noise_of_a_step(schedule, step=0)


def test_ratios_by_hand() -> None:
    source = two_patch_distribution(d=100, norms=(5, 3, 4, 2), sigma_xi=0.2)
    found = exact(source, plan(bound=0.5, noise=4.0), filters=8)
    sigma = 4.0 * 0.5 / 100
    assert [ratio.ratio for ratio in found] == pytest.approx([5 / sigma, 3 / sigma, 4 / sigma, 2 / sigma])
    assert [ratio.proportion for ratio in found] == [0.4, 0.1, 0.4, 0.1]
    proxies = [min(1, 0.5 / math.sqrt((u * u + 0.04 * 100) / 8)) for u in (5, 3, 4, 2)]
    assert [ratio.proxy for ratio in found] == pytest.approx(proxies)
    assert [ratio.factor for ratio in found] == pytest.approx(proxies)
    assert [ratio.effective for ratio in found] == pytest.approx(
        [p * f * u / sigma for p, f, u in zip((0.4, 0.1, 0.4, 0.1), proxies, (5, 3, 4, 2), strict=True)]
    )
    assert {ratio.source for ratio in found} == {"proxy"}
    longest = 0.2 * math.sqrt(chi2.ppf(1 - 1e-6, 96))
    bounds = [0.5 / (math.sqrt(2 / 8) * (u + longest)) for u in (5, 3, 4, 2)]
    assert [ratio.bound for ratio in found] == pytest.approx(bounds)


@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
def test_factors_are_those_of_the_gradient_engine(scale: float) -> None:
    source, model = two_patch_distribution(d=30, sigma_xi=0.3), network(scale)
    found = exact(source, plan(bound=0.3), model, samples=200)
    for label, ratio in enumerate(found):
        alone = tuple(float(k == label) for k in range(4))
        rows = replace(source, proportions=alone).draw(200, torch.Generator().manual_seed(label))
        norms = clipped_sum(model, cross_entropy, (rows.x, rows.y), Flat(0.3)).norms[0].numpy()
        factors = np.minimum(1, 0.3 / np.maximum(norms, 1e-30))
        assert ratio.source == "model"
        assert ratio.factor == pytest.approx(factors.min(), rel=1e-4)
        assert ratio.factor_mean == pytest.approx(factors.mean(), rel=1e-4)
        assert ratio.factor_low == pytest.approx(np.quantile(factors, 0.05), rel=1e-4)
        assert ratio.factor >= ratio.bound


def test_the_hard_bound_is_attained() -> None:
    source = two_patch_distribution(d=30, sigma_xi=0.0)
    model = network(filters=6)
    with torch.no_grad():  # every filter sees the feature; class 1 is sure to be called class 2
        u = (source.features[0] / source.norms[0]).float()
        model.filters.weight.copy_(torch.cat([u.expand(6, -1) * 1e-3, u.expand(6, -1) * 10]))
    ratio = exact(source, plan(bound=0.01), model)[0]
    assert ratio.factor == pytest.approx(ratio.bound, rel=1e-5)


def test_the_effective_ratio_does_not_depend_on_a_bound_that_clips_everyone() -> None:
    source, model = two_patch_distribution(d=30, sigma_xi=0.3), network()
    small, smaller, large, larger = (exact(source, plan(bound=bound), model) for bound in (0.02, 0.002, 1e4, 1e5))
    assert max(ratio.factor for ratio in small) < 1
    assert min(ratio.factor for ratio in large) == 1
    assert [r.effective for r in small] == pytest.approx([r.effective for r in smaller], rel=1e-6)
    assert [r.effective_mean for r in small] == pytest.approx([r.effective_mean for r in smaller], rel=1e-6)
    assert [r.effective for r in large] == pytest.approx([10 * r.effective for r in larger], rel=1e-6)


def test_recorded_factors_cover_all_steps() -> None:
    source, model = two_patch_distribution(d=30, sigma_xi=0.3), network()
    data = source.draw(300, torch.Generator().manual_seed(1))
    mechanism = plan(bound=0.3, n=300, batch=60, clip=Schedule(((0, Flat(0.3)), (3, Flat(0.6)))), steps=6)
    recorded, norms = Factors(mechanism, data.groups["feature"]), []
    state = State.start(mechanism, insecure_seed=0)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)

    def record(observation: Observation) -> None:
        bound = 0.3 if observation.step < 3 else 0.6
        norms.append((data.groups["feature"][observation.units], (bound / observation.norms[0]).clamp(max=1)))

    for _ in range(6):
        private_step(model, data, cross_entropy, optimizer, state, recorders=[recorded, record])
    found = exact(source, mechanism, recorded=recorded)
    for label, ratio in enumerate(found):
        mine = torch.cat([factors[labels == label] for labels, factors in norms]).double()
        assert len(mine) > 0
        assert ratio.source == "recorded"
        assert ratio.factor == pytest.approx(float(mine.min()), rel=1e-6)
        assert ratio.factor_mean == pytest.approx(float(mine.mean()), rel=1e-6)
        assert ratio.factor_low == pytest.approx(float(mine.quantile(0.05)), rel=1e-6)


def test_exact_refuses_what_it_cannot_know() -> None:
    source = two_patch_distribution(d=30)
    with pytest.raises(ConfigError, match="moves during training"):
        exact(source, plan(clip=Quantile()))
    with pytest.raises(DataError, match="no row of 'class 1 majority'"):
        exact(source, plan(), recorded=Factors(plan(), torch.zeros(1000).long()))
    assert exact(source, plan(noise=0.0))[0].ratio == math.inf


def test_padding_is_not_recorded() -> None:
    """Norms of padded batches end with zeros of rows that are not there: their factor would be 1."""
    plain, padded = (Factors(plan(), torch.tensor([0, 0, 1])) for _ in range(2))
    norms = torch.tensor([[2.0, 0.5, 4.0]])
    plain(Observation(0, torch.tensor([0, 1, 2]), norms))
    padded(Observation(0, torch.tensor([0, 1, 2]), torch.cat([norms, torch.zeros(1, 4)], 1)))
    assert padded.of(0).tolist() == plain.of(0).tolist() == [0.5, 1.0]
    assert padded.of(1).tolist() == plain.of(1).tolist() == [0.25]
