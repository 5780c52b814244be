from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from noisewise.errors import ConfigError
from noisewise.theory.bu2022 import (
    RULES,
    Instance,
    TableRow,
    clipped_kernel,
    facts,
    loss_rate,
    rule_factors,
    tables,
    turned_over,
    uphill,
)

FIRST, SECOND = np.array([[3.0, -1], [-3, 1]]), np.array([[-2.0, 0], [3, 1]])


def test_flat_clipping_keeps_eigenvalues_and_loses_the_form() -> None:
    matrix = np.array([[1, 0.9], [0.9, 1]]) @ np.diag([1, 0.1])
    assert sorted(np.linalg.eigvals(matrix)) == pytest.approx([0.0176, 1.082], abs=1e-3)
    assert np.linalg.eigvalsh((matrix + matrix.T) / 2) == pytest.approx([-0.119, 1.219], abs=1e-3)
    found = facts(matrix)
    assert found.eigenvalue == pytest.approx(0.0176, abs=1e-4)
    assert found.quadratic == pytest.approx(-0.119, abs=1e-3)
    assert (found.symmetric, found.positive_form, found.positive_eigenvalues) == (False, False, True)


def test_layerwise_clipping_loses_eigenvalues() -> None:
    kernels = [FIRST @ FIRST.T, SECOND @ SECOND.T]
    assert (sum(kernels) == np.array([[14, -16], [-16, 20]])).all()
    assert np.linalg.eigvalsh(sum(kernels)).min() > 0
    matrix = clipped_kernel(kernels, [np.array([0.5, 0.5]), np.array([0.5, 0.1])])
    assert sorted(np.linalg.eigvals(matrix)) == pytest.approx([-0.212, 13.21], abs=5e-3)
    assert not facts(matrix).positive_eigenvalues


def test_real_layerwise_bounds_reach_that_instance() -> None:
    """The same matrix, twice as large, from gradient lengths: the first layer free, the second at C = 2."""
    instance = turned_over()
    factors = rule_factors("local layerwise", instance.norms, instance.bound)
    assert factors == pytest.approx(np.array([[1, 1], [1, 0.2]]))
    assert sorted(np.linalg.eigvals(instance.matrix("local layerwise"))) == pytest.approx([-0.424, 26.42], abs=1e-2)
    assert facts(instance.matrix("local flat")).positive_eigenvalues


def test_the_loss_goes_uphill_under_local_clipping_only() -> None:
    instance = uphill()
    gradient = 3 * instance.slopes
    assert gradient.mean() == pytest.approx(2)
    clipped = rule_factors("local flat", instance.norms, 1.0)[0] * gradient
    assert clipped.sum() == pytest.approx(-1, abs=1e-3)
    assert facts(instance.matrix("none")).quadratic > 0
    rates = {rule: loss_rate(instance.matrix(rule), instance.slopes) for rule in RULES}
    assert {rule for rule in RULES if rates[rule] > 0} == {"local flat", "local layerwise"}


def test_that_loss_really_rises() -> None:
    """A linear model with the instance's Jacobian: one small clipped step, the loss by itself."""
    instance = uphill()
    weights, jacobian, step = np.zeros(4), instance.jacobians[0], 1e-4
    targets = -3 * instance.slopes  # squared error / 2: slope of a unit's loss is f - y
    factors = rule_factors("local flat", instance.norms, 1.0)[0]

    def loss(w: np.ndarray) -> float:
        return float(((jacobian @ w - targets) ** 2).mean() / 2)

    moved = weights - step * ((factors * (jacobian @ weights - targets)) @ jacobian) / 3
    assert (loss(moved) - loss(weights)) / step == pytest.approx(
        loss_rate(instance.matrix("local flat"), instance.slopes), rel=1e-3
    )
    assert loss(moved) > loss(weights)


@cache
def searched() -> dict[str, TableRow]:
    return {row.rule: row for row in tables(600)}


@pytest.mark.parametrize(
    ("rule", "second", "first"),
    [
        ("none", (True, True, True), (True, True, True)),
        ("local flat", (False, False, True), (False, False, True)),
        ("local layerwise", (False, False, False), (False, False, False)),
        ("global flat", (True, True, True), (True, True, True)),
        ("global layerwise", (True, True, True), (True, True, True)),
        # footnote 5: for the flat rule eigenvalues stay, against what it says
        ("global flat, screened", (False, False, True), (False, False, False)),
        ("global layerwise, screened", (False, False, False), (False, False, False)),
    ],
)
def test_tables_of_the_paper(rule: str, second: tuple[bool, ...], first: tuple[bool, ...]) -> None:
    row = searched()[rule]
    assert (row.symmetric, row.quadratic_form, row.eigenvalues) == second
    assert (row.converges, row.monotone, row.to_zero) == first
    assert row.instances > 300


def test_rules_by_their_formulas() -> None:
    norms = np.array([[3.0, 0.3], [4.0, 0.4]])  # lengths 5 and 0.5
    assert rule_factors("local flat", norms, 1.0) == pytest.approx(np.array([[0.2, 1], [0.2, 1]]))
    assert rule_factors("local layerwise", norms, np.sqrt(2)) == pytest.approx(np.array([[1 / 3, 1], [0.25, 1]]))
    assert rule_factors("global flat", norms, 1.0) == pytest.approx(np.full((2, 2), 0.2))
    assert rule_factors("global flat", norms, 1.0, screen=2.0) == pytest.approx(np.array([[0, 0.5], [0, 0.5]]))
    assert rule_factors("global layerwise", norms, np.sqrt(2), 3.5) == pytest.approx(np.array([[1, 1], [0, 1]]) / 3.5)
    with pytest.raises(ConfigError, match="must be one of"):
        rule_factors("flat", norms, 1.0)


def test_an_instance_reads_its_own_norms() -> None:
    instance = Instance("x", (FIRST, SECOND), np.array([1.0, -2.0]) / 2, 1.0)
    assert instance.norms == pytest.approx(np.array([[np.sqrt(10), 2 * np.sqrt(10)], [2, 2 * np.sqrt(10)]]))
