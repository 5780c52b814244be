from __future__ import annotations

import math
from dataclasses import replace

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from scipy.optimize import minimize_scalar
from torch import nn

from noisewise.errors import ConfigError
from noisewise.theory.zhu2023 import (
    Constants,
    Deviations,
    best_sparsity,
    bound_at_sparsity,
    bound_for_momentum,
    clipped_bound,
    deviations,
    energy_asymmetry,
    noise_term,
    noisy_bound,
    private_bound,
    symmetry_p_value,
)


@pytest.mark.parametrize(
    ("clip", "noise", "lr"), [(1.0, 20.0, 0.1), (0.3, 5.0, 1.0), (0.01, 40.0, 0.05), (2.0, 3.0, 0.2)]
)
def test_the_best_sparsity_is_the_numeric_minimum(clip, noise, lr):
    found = minimize_scalar(
        lambda rate: bound_at_sparsity(rate, clip, noise, lr),
        bounds=(0, 1 - 1e-9),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert best_sparsity(clip, noise, lr) == pytest.approx(found.x, abs=1e-4)


def test_the_best_sparsity_grows_with_noise_bound_and_size_and_falls_with_the_batch():
    base = {"bound": 1.0, "noise_multiplier": 1.0, "batch_size": 100, "parameters": 100_000, "smoothness": 1.0}

    def best(**changed):
        return best_sparsity(1.0, noise_term(**{**base, **changed}), 0.5)

    assert noise_term(**base) == pytest.approx(1.0 * 100_000 / (2 * 100**2))
    for changed in ({"noise_multiplier": 1.5}, {"bound": 1.5}, {"parameters": 200_000}, {"batch_size": 80}):
        assert best(**changed) > best() > 0


def test_momentum_moves_weights_by_one_over_one_minus_mu():
    """The rule keeps the displacement that one gradient causes in the end, measured on a torch optimizer."""
    moved = []
    for momentum in (0.0, 0.5, 0.9):
        weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = torch.optim.SGD([weight], lr=1.0, momentum=momentum)
        for step in range(400):
            weight.grad = torch.full(
                (1,), bound_for_momentum(1.0, 0.0, momentum) if step == 0 else 0.0, dtype=torch.float64
            )
            optimizer.step()
        moved.append(-weight.item())
    np.testing.assert_allclose(moved, 1.0, rtol=1e-9)
    for wrong in (-0.1, 1.0, math.nan):
        with pytest.raises(ConfigError, match=r"must be in \[0, 1\)"):
            bound_for_momentum(1.0, 0.0, wrong)


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


def around(rows: np.ndarray, bound: float) -> Deviations:
    mean = rows.mean(0)
    return deviations(np.linalg.norm(rows, axis=1), rows @ mean, float(np.linalg.norm(mean)), bound)


def test_deviations_are_those_of_the_definition() -> None:
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(50, 3)) * np.exp(draw.normal(size=(50, 1))) + 0.4
    mean = rows.mean(0)
    found = around(rows, 1.5)
    straight, mirrored = (clip(points, 1.5) @ mean for points in (rows, 2 * mean - rows))
    assert found.descent == pytest.approx(straight.mean())
    assert found.asymmetry == pytest.approx(straight.mean() - np.concatenate([straight, mirrored]).mean())
    assert found.close == np.mean(np.linalg.norm(rows - mean, axis=1) < 1.125)
    assert 0 < found.close < 1
    assert found.variance == pytest.approx(((rows - mean) ** 2).sum(1).mean())


def test_symmetric_deviations_have_no_asymmetry() -> None:
    draw = np.random.default_rng(1)
    half = draw.normal(size=(30, 4))
    rows = np.concatenate([half, -half]) + 0.7
    assert around(rows, 1.0).asymmetry == pytest.approx(0, abs=1e-12)


numbers = st.floats(-100, 100).map(lambda value: round(value, 3))


some_rows = arrays.arrays(np.float64, st.tuples(st.integers(2, 8), st.just(2)), elements=numbers)


@settings(max_examples=200, deadline=None)
@given(rows=some_rows, bound=st.floats(0.01, 100))
def test_the_step_behind_the_theorem_always_holds(rows: np.ndarray, bound: float) -> None:
    mean = float(np.linalg.norm(rows.mean(0)))
    found = around(rows, bound)
    slack = 1e-9 * (1 + np.abs(rows).max()) * (1 + mean)
    assert found.descent >= found.close * min(mean, bound / 4) * mean + found.asymmetry - slack


def test_without_the_asymmetry_that_step_fails() -> None:
    rows = np.array([[10.0]] + [[-2.0]] * 2)  # clipped to 1 the step points away from the mean
    found = around(rows, 1.0)
    assert found.descent < 0
    assert found.asymmetry < 0


def regression(n: int = 64, weights: int = 6) -> tuple[np.ndarray, np.ndarray]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, weights, generator=generator, dtype=torch.float64)
    y = x @ torch.arange(weights).double() / 3 + torch.randn(n, generator=generator, dtype=torch.float64)
    return x.numpy(), y.numpy()


class Descent:
    """Least squares by (clipped, noised) SGD in numpy, with everything that the theorems speak of known."""

    def __init__(self, noise: float, bound: float | None, lr: float | None, steps: int = 200, batch: int = 16):
        self.x, self.y = regression()
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
            found = around(rows, bound or 1.0)
            left.append(found.close * min(mean, (bound or 1.0) / 4) * mean)
            squares.append(mean**2)
            variances.append(found.variance)
            asymmetries.append(found.asymmetry)
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


@pytest.mark.parametrize("sparsity", [0.0, 0.4])
def test_noise_counts_by_its_size_whatever_the_bound(sparsity):
    """Noise of sigma C: half the multiplier at twice the bound is the same noise, twice the multiplier is not."""
    c = replace(KNOWN, bound=1.5)
    assert noisy_bound(replace(c, bound=3.0, noise=c.noise / 2), sparsity) == pytest.approx(noisy_bound(c, sparsity))
    assert noisy_bound(replace(c, bound=3.0), sparsity) == pytest.approx(
        noisy_bound(replace(c, noise=2 * c.noise), sparsity)
    )
    assert noisy_bound(replace(c, noise=2 * c.noise), sparsity) > noisy_bound(c, sparsity)


def test_energy_distance_is_scipys_in_one_dimension() -> None:
    generator = np.random.default_rng(0)
    for sample in (generator.normal(size=70), generator.exponential(size=51), generator.normal(2, 1, size=20)):
        assert energy_asymmetry(sample[:, None])[0] == pytest.approx(scipy.stats.energy_distance(sample, -sample))


def test_energy_distance_is_the_double_sum_in_two_dimensions() -> None:
    cloud = np.random.default_rng(1).gamma(1.0, size=(23, 2)) - 0.7
    sums = np.mean([math.dist(a, -b) for a in cloud for b in cloud])
    gaps = np.mean([math.dist(a, b) for a in cloud for b in cloud])
    distance, asymmetry = energy_asymmetry(cloud)
    assert distance == pytest.approx(math.sqrt(2 * sums - 2 * gaps))
    assert asymmetry == pytest.approx((sums - gaps) / sums)
    assert energy_asymmetry(7 * cloud)[1] == pytest.approx(asymmetry)
    assert energy_asymmetry(np.concatenate([cloud, -cloud]))[0] == pytest.approx(0, abs=1e-7)
    assert energy_asymmetry(np.zeros((5, 2))) == (0.0, 0.0)


def test_skewed_clouds_are_rejected_and_symmetric_ones_are_not() -> None:
    """60 clouds of 60 points at 5 %: more than 8 false alarms has probability 0.003; the power must be above 0.8."""
    generator = np.random.default_rng(0)
    false_alarms = found = 0
    for _ in range(60):
        false_alarms += symmetry_p_value(generator.standard_t(4, size=(60, 2)) + 5, generator, 39) <= 0.05
        found += symmetry_p_value(generator.exponential(size=(60, 2)), generator, 39) <= 0.05
    assert false_alarms <= 8
    assert found >= 48
