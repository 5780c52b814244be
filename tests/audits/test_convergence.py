from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from noisewise.audits.convergence import Convergence, convergence, hessian_product, smoothness
from noisewise.clipping import Automatic, Flat
from noisewise.data import Data
from noisewise.errors import ConfigError
from noisewise.losses import cross_entropy, squared_error
from noisewise.mechanism import Mechanism
from noisewise.sampling import Poisson
from noisewise.schedule import Schedule
from noisewise.support import Fixed
from noisewise.theory.zhu2023 import private_bound


def clip(rows: np.ndarray, bound: float) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1, bound / np.maximum(norms, 1e-300))


def regression(n: int = 64, weights: int = 6) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, weights, generator=generator, dtype=torch.float64)
    return Data(x, x @ torch.arange(weights).double() / 3 + torch.randn(n, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("top", [1.2, 2.0])
def test_smoothness_is_found_where_the_spectrum_is_flat(sign: int, top: float) -> None:
    """3,000 eigenvalues between 0.9 and 1 and a single one above: every start is stretched by about 0.95."""
    values = torch.cat([torch.linspace(0.9, 1.0, 3000, dtype=torch.float64), torch.tensor([top], dtype=torch.float64)])
    values = sign * values

    def product(parameters: Sequence[Tensor], direction: Sequence[Tensor]) -> list[Tensor]:
        return [values * direction[0]]

    for seed in range(5):
        found = smoothness(product, [torch.zeros(3001, dtype=torch.float64)], np.random.default_rng(seed))
        assert found == pytest.approx(top, rel=2e-3)
        assert found <= top * (1 + 1e-9)


def test_smoothness_of_nothing_is_zero() -> None:
    product = lambda parameters, direction: [0 * direction[0]]  # noqa: E731
    assert smoothness(product, [torch.zeros(7)], np.random.default_rng(0)) == 0


def test_smoothness_of_a_quadratic_is_its_largest_eigenvalue() -> None:
    data, model = regression(), nn.Linear(6, 1, bias=False).double()
    product = hessian_product(model, data, torch.arange(64), squared_error, chunk=10)
    found = smoothness(product, list(model.parameters()), np.random.default_rng(0), iterations=500)
    true = float(torch.linalg.eigvalsh(2 * data.x.T @ data.x / 64).max())
    assert found == pytest.approx(true, rel=1e-2)
    assert found <= true * (1 + 1e-9)


def test_hessian_products_are_those_of_the_full_hessian() -> None:
    generator = torch.Generator().manual_seed(1)
    data = Data(torch.randn(20, 4, generator=generator), torch.arange(20) % 3, classes=("a", "b", "c"))
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Dropout(0.5), nn.Linear(3, 3))
    names, parameters = zip(*model.named_parameters(), strict=True)
    sizes = [p.numel() for p in parameters]

    def mean_loss(vector: torch.Tensor) -> torch.Tensor:
        pieces = {n: v.view_as(p) for n, v, p in zip(names, vector.split(sizes), parameters, strict=True)}
        outputs = torch.func.functional_call(copy.deepcopy(model).eval(), pieces, (data.x,))
        return nn.functional.cross_entropy(outputs, data.y)

    whole = torch.autograd.functional.hessian(mean_loss, torch.cat([p.detach().flatten() for p in parameters]))
    direction = torch.randn(sum(sizes), generator=generator)
    pieces = [d.view_as(p) for d, p in zip(direction.split(sizes), parameters, strict=True)]
    product = hessian_product(model, data, torch.arange(20), cross_entropy, chunk=7)(parameters, pieces)
    assert torch.allclose(torch.cat([p.flatten() for p in product]), whole @ direction, atol=1e-5)
    found = smoothness(
        hessian_product(model, data, torch.arange(20), cross_entropy), list(parameters), np.random.default_rng(0), 200
    )
    assert found == pytest.approx(float(torch.linalg.eigvalsh(whole).abs().max()), rel=0.02)


def problem() -> tuple[nn.Module, Data, Mechanism]:
    generator = torch.Generator().manual_seed(2)
    data = Data(torch.randn(60, 4, generator=generator), torch.arange(60) % 3, classes=("a", "b", "c"))
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    plan = Mechanism(sampler=Poisson(60, 10), clip=Flat(1.0), noise_multiplier=2.0, steps=30)
    return model, data, plan


def test_the_audit_measures_what_it_says() -> None:
    model, data, plan = problem()
    start = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    result = convergence(model, data, mechanism=plan, lr=0.3, path=[start])
    c = result.constants
    assert (c.steps, c.batch, c.bound, c.noise, c.lr, c.weights) == (30, 10, 1.0, 2.0, 0.3, 43)
    for network, point in zip((start, model), result.points, strict=True):
        losses = cross_entropy(network, (data.x, data.y))
        weights = list(network.parameters())
        slopes = [torch.autograd.grad(loss, weights, retain_graph=True) for loss in losses]
        rows = np.stack([np.concatenate([slope.flatten().numpy() for slope in unit]) for unit in slopes])
        mean = rows.mean(0)
        assert point.loss == pytest.approx(losses.mean().item(), rel=1e-5)
        assert point.gradient == pytest.approx(np.linalg.norm(mean), rel=1e-4)
        assert point.variance == pytest.approx(((rows - mean) ** 2).sum(1).mean(), rel=1e-4)
        assert point.descent == pytest.approx((clip(rows, 1.0) @ mean).mean(), rel=1e-4)
    assert c.loss_gap == result.points[0].loss
    assert c.smoothness == max(point.smoothness for point in result.points)
    assert result.headline["bound"].value == pytest.approx(private_bound(c))
    assert math.isinf(result.headline["bound"].high)  # no interval is claimed
    assert "estimates" in result.sentences()[0]


def test_masks_take_part() -> None:
    model, data, plan = problem()
    mask = torch.zeros(5, 4, dtype=torch.bool)
    mask[0] = True
    frozen = replace(plan, support=Fixed({"0.weight": mask, "2.weight": False}))
    result = convergence(model, data, mechanism=frozen, lr=0.3)
    assert result.constants.weights == 4 + 5 + 3
    full = convergence(model, data, mechanism=plan, lr=0.3)
    assert result.points[0].gradient < full.points[0].gradient
    assert result.constants.smoothness < full.constants.smoothness


def test_what_the_theorems_do_not_cover_is_refused() -> None:
    model, data, plan = problem()
    with pytest.raises(ConfigError, match="flat clipping"):
        convergence(model, data, mechanism=replace(plan, clip=Automatic(1.0)), lr=0.3)
    with pytest.raises(ConfigError, match="lr=0"):
        convergence(model, data, mechanism=plan, lr=0)
    with pytest.raises(ConfigError, match="twin"):
        convergence(model, data, mechanism=plan, lr=0.3, twin=model)


def test_result_is_reloaded_and_drawn() -> None:
    model, data, plan = problem()
    result = convergence(model, data, mechanism=plan, lr=0.3)
    again = Convergence.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again == result
    assert again.status.status == "not-private"
    assert len(again.figures()[0].draw(Figure().add_subplot()).lines) >= 3
    assert [row[0] for row in again.tables()[2].rows] == ["model"]
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def test_momentum_counts_as_a_longer_step_and_is_said() -> None:
    model, data, plan = problem()
    still, moving = (convergence(model, data, mechanism=plan, lr=0.3, momentum=mu) for mu in (0.0, 0.9))
    assert moving.constants.lr == pytest.approx(3.0)
    assert private_bound(moving.constants) == pytest.approx(private_bound(replace(still.constants, lr=3.0)))
    assert any("no momentum" in sentence for sentence in moving.sentences())
    assert not any("momentum" in sentence for sentence in still.sentences())
    with pytest.raises(ConfigError, match="momentum=1"):
        convergence(model, data, mechanism=plan, lr=0.3, momentum=1)


def test_points_are_named_and_a_missing_start_is_said() -> None:
    model, data, plan = problem()
    whole = convergence(model, data, mechanism=plan, lr=0.3, path=[model, model])
    assert [row[0] for row in whole.tables()[2].rows] == ["start", "point 2", "model"]
    assert {"T": "30", "B": "10"}.items() <= dict(whole.tables()[0].rows).items()
    alone = convergence(model, data, mechanism=plan, lr=0.3)
    assert any("No start was given" in sentence for sentence in alone.sentences())
    assert not any("No start was given" in sentence for sentence in whole.sentences())


@pytest.mark.parametrize("change", [{"noise_multiplier": Schedule(((0, 1.0), (5, 2.0)))},
                                    {"clip": Schedule(((0, Flat(1.0)), (5, Flat(2.0))))}])  # fmt: skip
def test_schedules_are_refused(change) -> None:
    model, data, plan = problem()
    with pytest.raises(ConfigError, match="one for all steps"):
        convergence(model, data, mechanism=replace(plan, **change), lr=0.3)
