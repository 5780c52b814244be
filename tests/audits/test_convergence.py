from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from matplotlib.figure import Figure
from scipy.optimize import minimize_scalar
from torch import nn

from noisewise.audits.convergence import (
    Constants,
    Convergence,
    clipped_bound,
    convergence,
    deviations,
    hessian_product,
    noisy_bound,
    private_bound,
    smoothness,
)
from noisewise.audits.gradients import Moments
from noisewise.clipping import Automatic, Flat
from noisewise.data import Data
from noisewise.errors import ConfigError
from noisewise.losses import cross_entropy, squared_error
from noisewise.mechanism import Mechanism
from noisewise.sampling import Poisson
from noisewise.schedule import Schedule
from noisewise.support import Fixed

KNOWN = Constants(
    steps=100, batch=50, bound=1.0, noise=4.0, lr=0.5, weights=5000, smoothness=2.0,
    loss_gap=2.0, variance=3.0, asymmetry=-0.01,
)  # fmt: skip


def test_constants_by_their_formulas() -> None:
    assert KNOWN.delta_noise == pytest.approx(1.0 * 16 * 5000 * 2 / (2 * 2500))
    assert KNOWN.delta_clip == pytest.approx(2 / 50 + 0.5 * 2 / 2 + 0.01)
    assert KNOWN.best_sparsity == pytest.approx(1 - 0.55 / (0.5 * 32))
    assert KNOWN.best_sparsity != pytest.approx(1 - 0.55 / 32)  # as printed, without the learning rate


@pytest.mark.parametrize("noise", [0.3, 1.0, 2.0, 8.0])
def test_the_best_sparsity_is_where_the_bound_is_least(noise: float) -> None:
    c = replace(KNOWN, noise=noise)
    found = minimize_scalar(
        lambda r: private_bound(c, r), bounds=(0, 0.9999), method="bounded", options={"xatol": 1e-9}
    )
    least = min((found.fun, found.x), (private_bound(c, 0.0), 0.0))
    assert c.best_sparsity == pytest.approx(least[1], abs=1e-4)
    roots = np.sqrt(1 - np.linspace(0, 0.99, 200))[::-1]
    grid = np.linspace(roots[0], roots[-1], 200)
    values = [private_bound(c, max(1 - s**2, 0.0)) for s in grid]
    assert (np.diff(values, 2) > -1e-9).all()  # convex in sqrt(1 - r)


def test_the_best_sparsity_follows_noise_bound_weights_and_batch() -> None:
    base = replace(KNOWN, noise=1.0)
    assert 0 < base.best_sparsity < 1
    assert replace(base, noise=2.0).best_sparsity > base.best_sparsity
    assert replace(base, weights=10_000).best_sparsity > base.best_sparsity
    assert replace(base, bound=2.0, noise=1.0).best_sparsity > base.best_sparsity
    assert replace(base, batch=100).best_sparsity < base.best_sparsity
    assert replace(base, noise=0.0).best_sparsity == 0.0
    assert replace(base, asymmetry=5.0).best_sparsity is None


def test_sparsity_only_hurts_without_noise_or_without_clipping() -> None:
    rates = np.linspace(0, 0.9, 10)
    for bound in (noisy_bound, clipped_bound):
        assert (np.diff([bound(KNOWN, float(r)) for r in rates]) > 0).all()
    silent = replace(KNOWN, noise=0.0)
    assert private_bound(silent, 0.3) == pytest.approx(clipped_bound(silent, 0.3))
    assert private_bound(KNOWN, 0.3, kappa=math.sqrt(0.7)) == pytest.approx(private_bound(KNOWN, 0.3))
    with pytest.raises(ConfigError, match="kappa"):
        private_bound(KNOWN, 0.3, kappa=0.6)
    with pytest.raises(ConfigError, match="sparsity"):
        clipped_bound(KNOWN, 1.0)


def clip(rows: np.ndarray, bound: float) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1, bound / np.maximum(norms, 1e-300))


def moments(rows: np.ndarray, bound: float) -> Moments:
    return Moments.of(rows, np.minimum(1, bound / np.maximum(np.linalg.norm(rows, axis=1), 1e-300)))


def test_deviations_are_those_of_the_definition() -> None:
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(50, 3)) * np.exp(draw.normal(size=(50, 1))) + 0.4
    mean = rows.mean(0)
    found = deviations(moments(rows, 1.5), 1.5)
    straight, mirrored = (clip(points, 1.5) @ mean for points in (rows, 2 * mean - rows))
    assert found["descent"] == pytest.approx(straight.mean())
    assert found["asymmetry"] == pytest.approx(straight.mean() - np.concatenate([straight, mirrored]).mean())
    assert found["close"] == np.mean(np.linalg.norm(rows - mean, axis=1) < 1.125)
    assert 0 < found["close"] < 1
    assert found["variance"] == pytest.approx(((rows - mean) ** 2).sum(1).mean())


def test_symmetric_deviations_have_no_asymmetry() -> None:
    draw = np.random.default_rng(1)
    half = draw.normal(size=(30, 4))
    rows = np.concatenate([half, -half]) + 0.7
    assert deviations(moments(rows, 1.0), 1.0)["asymmetry"] == pytest.approx(0, abs=1e-12)


numbers = st.floats(-100, 100).map(lambda value: round(value, 3))
some_rows = arrays.arrays(np.float64, st.tuples(st.integers(2, 8), st.just(2)), elements=numbers)


@settings(max_examples=200, deadline=None)
@given(rows=some_rows, bound=st.floats(0.01, 100))
def test_the_step_behind_the_theorem_always_holds(rows: np.ndarray, bound: float) -> None:
    mean = float(np.linalg.norm(rows.mean(0)))
    found = deviations(moments(rows, bound), bound)
    slack = 1e-9 * (1 + np.abs(rows).max()) * (1 + mean)
    assert found["descent"] >= found["close"] * min(mean, bound / 4) * mean + found["asymmetry"] - slack


def test_without_the_asymmetry_that_step_fails() -> None:
    rows = np.array([[10.0]] + [[-2.0]] * 2)  # clipped to 1 the step points away from the mean
    found = deviations(moments(rows, 1.0), 1.0)
    assert found["descent"] < 0
    assert found["asymmetry"] < 0


def regression(n: int = 64, weights: int = 6) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, weights, generator=generator, dtype=torch.float64)
    return Data(x, x @ torch.arange(weights).double() / 3 + torch.randn(n, generator=generator, dtype=torch.float64))


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


class Descent:
    """Least squares by (clipped, noised) SGD in numpy, with everything that the theorems speak of known."""

    def __init__(self, noise: float, bound: float | None, lr: float | None, steps: int = 200, batch: int = 16):
        data = regression()
        self.x, self.y = data.x.numpy(), data.y.numpy()
        draw = np.random.default_rng(3)
        hessian = 2 * self.x.T @ self.x / len(self.x)
        self.smoothness = float(np.linalg.eigvalsh(hessian).max())
        lr = 1 / (self.smoothness * math.sqrt(steps)) if lr is None else lr
        best = np.linalg.lstsq(self.x, self.y, rcond=None)[0]
        w = np.zeros(6)
        gap = self.loss(w) - self.loss(best)
        left, squares, variances, asymmetries = [], [], [], []
        for _ in range(steps):
            rows = 2 * (self.x @ w - self.y)[:, None] * self.x
            mean = float(np.linalg.norm(rows.mean(0)))
            found = deviations(moments(rows, bound or 1.0), bound or 1.0)
            left.append(found["close"] * min(mean, (bound or 1.0) / 4) * mean)
            squares.append(mean**2)
            variances.append(found["variance"])
            asymmetries.append(found["asymmetry"])
            chosen = rows[draw.choice(len(rows), batch, replace=False)]
            chosen = chosen if bound is None else clip(chosen, bound)
            w = w - lr * (chosen.sum(0) + noise * (bound or 1.0) * draw.normal(size=6)) / batch
        self.left, self.square = float(np.mean(left)), float(np.mean(squares))
        self.constants = Constants(
            steps=steps, batch=batch, bound=bound or 1.0, noise=noise, lr=lr, weights=6, smoothness=self.smoothness,
            loss_gap=gap, variance=max(variances), asymmetry=float(np.mean(asymmetries)),
        )  # fmt: skip

    def loss(self, w: np.ndarray) -> float:
        return float(((self.x @ w - self.y) ** 2).mean())


@pytest.mark.parametrize("noise", [0.0, 20.0, 100.0])
def test_real_noisy_descent_keeps_theorem_3_2(noise: float) -> None:
    run = Descent(noise, None, None)
    assert run.square <= noisy_bound(run.constants)
    if noise == 100:  # the noise term is needed
        assert run.square > noisy_bound(replace(run.constants, noise=0.0, variance=0.0))


@pytest.mark.parametrize("noise", [0.0, 2.0, 10.0])
def test_real_private_descent_keeps_theorems_3_4_and_3_5(noise: float) -> None:
    run = Descent(noise, 4.0, 0.02)
    assert run.left > 0
    assert run.left <= private_bound(run.constants)
    if noise == 0:
        assert run.left <= clipped_bound(run.constants)


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


@pytest.mark.parametrize("sparsity", [0.0, 0.4])
def test_noise_counts_by_its_size_whatever_the_bound(sparsity):
    """Noise of sigma C: half the multiplier at twice the bound is the same noise, twice the multiplier is not."""
    c = replace(KNOWN, bound=1.5)
    assert noisy_bound(replace(c, bound=3.0, noise=c.noise / 2), sparsity) == pytest.approx(noisy_bound(c, sparsity))
    assert noisy_bound(replace(c, bound=3.0), sparsity) == pytest.approx(
        noisy_bound(replace(c, noise=2 * c.noise), sparsity)
    )
    assert noisy_bound(replace(c, noise=2 * c.noise), sparsity) > noisy_bound(c, sparsity)
