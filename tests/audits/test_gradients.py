"""Moments of gradients: debiased on average, bounded in general, clipped as training would."""

from __future__ import annotations

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from noisewise.audits.gradients import Moments, general_bound, measure
from noisewise.clipping import Flat, per_layer
from noisewise.data import Data
from noisewise.losses import cross_entropy
from noisewise.persample import clipped_sum
from noisewise.testing import reveal


def flat(rows: np.ndarray, bound: float) -> Moments:
    return Moments.of(rows, np.minimum(1, bound / np.linalg.norm(rows, axis=1)))


def cloud(share: float, small: list[list[float]]) -> np.ndarray:
    """A share of gradients e1/share, the others the given small ones in turn: 1000 in all."""
    big = round(1000 * share)
    return np.array([[1 / share, 0.0]] * big + [small[k % len(small)] for k in range(1000 - big)])


rows_of_any_size = arrays.arrays(np.float64, st.tuples(st.integers(2, 8), st.just(2)), elements=st.floats(-1e3, 1e3))


@settings(max_examples=200, deadline=None)
@given(rows=rows_of_any_size, bound=st.floats(1e-3, 1e3))
def test_the_general_form_always_holds(rows: np.ndarray, bound: float) -> None:
    norms = np.linalg.norm(rows, axis=1)
    mean = np.linalg.norm(rows.mean(0))
    if mean < max(1e-6 * norms.max(), 1e-100):  # squares of the smallest numbers vanish
        return
    factors = np.minimum(1, np.divide(bound, norms, out=np.ones_like(norms), where=norms > 0))
    found = Moments.of(rows, factors)
    slack = 1e-9 * max(bound, norms.max()) * (norms.max() / mean)
    assert found.projection >= found.general_bound - slack
    printed_in_papers = 2 * mean**2 / np.maximum(norms, norms**2 / bound).mean() - np.minimum(norms, bound).mean()
    assert found.general_bound == pytest.approx(printed_in_papers, rel=1e-6, abs=slack)


def test_a_slightly_larger_general_bound_is_caught() -> None:
    found = flat(cloud(0.7, [[-1e-6, 0.0]]), 1e-7)
    assert found.projection >= found.general_bound - 1e-15
    assert found.projection < found.general_bound + 1e-5 * 1e-7


def test_dropped_units_make_the_general_bound_trivial_not_wrong() -> None:
    norms = np.array([[1.0, 5.0]])
    factors = np.array([[0.5, 0.0]])
    assert general_bound(norms, factors, np.array([2.0])) == pytest.approx(-0.25)


def test_debiasing_is_right_on_average_and_the_plain_figure_is_not() -> None:
    draw = np.random.default_rng(1)
    rows = draw.normal(size=(600, 40)) * np.exp(draw.normal(size=(600, 1)) / 2) + 0.1
    whole = flat(rows, 4.0)
    square, clipped_dot = whole.mean_norm**2, whole.on_clipped.mean()
    products, dots, plain, covered = [], [], [], []
    for _ in range(400):
        index = draw.choice(600, 60, replace=False)
        norms = np.linalg.norm(rows[index], axis=1)
        part = Moments.of(rows[index], np.minimum(1, 4.0 / norms), population=600)
        products.append(part._product("g", "g", drop=False).product[0])
        dots.append(part._product("c", "g", drop=False).product[0])
        plain.append(part.mean_norm**2)
        interval = part.ratio()
        covered.append(interval.low <= whole.plain_ratio <= interval.high)

    def off(values: list[float], truth: float) -> float:
        return abs(np.mean(values) - truth) / (np.std(values) / np.sqrt(len(values)))

    assert off(products, square) < 4
    assert off(dots, clipped_dot) < 4
    assert off(plain, square) > 20
    assert np.mean(covered) > 0.85
    assert whole.ratio().value == pytest.approx(whole.plain_ratio)
    assert whole.ratio().low == whole.ratio().high


def test_leaving_one_out_is_what_it_says() -> None:
    draw = np.random.default_rng(2)
    rows, factors = draw.normal(size=(7, 3)) + 1, draw.uniform(0.2, 1, 7)
    quick = Moments.of(rows, factors, population=20)._product("c", "g", drop=True)
    for i in range(7):
        kept = np.arange(7) != i
        slow = Moments.of(rows[kept], factors[kept], population=20)._product("c", "g", drop=False)
        assert quick.product[i] == pytest.approx(slow.product[0])
        assert quick.trace[i] == pytest.approx(slow.trace[0])


def small_model(dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 3)).to(dtype)


def people(n: int = 90, dtype: torch.dtype = torch.float64, **extra) -> Data:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(n, 6, generator=generator, dtype=dtype) * torch.exp(
        torch.randn(n, 1, generator=generator, dtype=dtype)
    )
    y = torch.arange(n) % 3
    return Data(x, y, groups={"sex": (torch.arange(n) < 30).long()}, classes=("a", "b", "c"), **extra)


def test_the_clipped_mean_is_what_training_would_release(monkeypatch) -> None:
    monkeypatch.setattr("noisewise.audits.gradients.CHUNK", 7 * 53)  # seven units at a time
    data = people()
    model = small_model()
    rule = per_layer(dict(model.named_parameters()), Flat(0.4), by="layer")
    mask = {"0.weight": torch.rand(5, 6, generator=torch.Generator().manual_seed(0)) < 0.5, "3.bias": False}
    found = measure(model, data, torch.arange(90), loss_fn=cross_entropy, clip=rule, support=mask)
    sums = reveal(clipped_sum(model, cross_entropy, (data.x, data.y), rule, mask).grads)
    released = torch.cat([sums[name].flatten() for name in sums])
    assert torch.allclose(found.clipped * 90, released.double(), rtol=1e-6, atol=1e-9)
    assert found.moments.norms.shape == (2, 90)
    assert found.moments.projection >= found.moments.general_bound
