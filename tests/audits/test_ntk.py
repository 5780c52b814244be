from __future__ import annotations

import json
import sys
from functools import cache

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from noisewise.audits.ntk import (
    RULES,
    Instance,
    Ntk,
    TableRow,
    clipped_kernel,
    facts,
    jacobians,
    loss_rate,
    measured_rate,
    ntk,
    output_slopes,
    rule_factors,
    tables,
    turned_over,
    uphill,
)
from noisewise.clipping import Flat, Global, per_layer
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError
from noisewise.losses import cross_entropy, squared_error

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


def classifier() -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3))


def people(n: int = 40, **extra) -> Data:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(n, 4, generator=generator) * torch.exp(torch.randn(n, 1, generator=generator))
    return Data(x, torch.arange(n) % 3, classes=("a", "b", "c"), **extra)


def test_the_kernel_is_that_of_an_autograd_loop() -> None:
    model, x = classifier().double().eval(), people(5).x.double()
    found = dict(jacobians(model, x))
    assert list(found) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        slow = [torch.autograd.grad(model(row[None])[0, k], parameter)[0].flatten() for row in x for k in range(3)]
        assert torch.allclose(found[name], torch.stack(slow))


def test_masks_empty_columns_of_the_jacobian() -> None:
    model, x = classifier().double().eval(), people(5).x.double()
    mask = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    plain, masked = dict(jacobians(model, x)), dict(jacobians(model, x, {"0.weight": mask, "3.bias": False}))
    assert "3.bias" not in masked
    assert torch.equal(masked["0.weight"], plain["0.weight"] * mask.flatten())


@pytest.mark.parametrize("layers", [False, True])
def test_prediction_and_measurement_agree(layers: bool) -> None:
    model = classifier()
    rule = per_layer(dict(model.named_parameters()), Flat(0.05)) if layers else Flat(0.5)
    result = ntk(model, people(), clip=rule, rows=12)
    for entry in result.rules.values():
        assert entry["measured_rate"] == pytest.approx(entry["rate"], rel=1e-5)
        assert -1 - 1e-9 <= entry["relative_rate"] <= 1 + 1e-9
    mine, free = result.rules["this run"], result.rules["none"]
    assert abs(mine["rate"] - free["rate"]) > 0.01 * abs(free["rate"])  # a kernel without C would be found out
    assert not mine["symmetric"]
    assert free["symmetric"]
    assert free["positive_form"]
    assert free["relative_rate"] == pytest.approx(-1)
    assert sum(result.values["layers"].values()) == pytest.approx(1)
    if not layers:
        assert mine["rate"] == pytest.approx(result.rules["local flat"]["rate"])
        assert mine["positive_eigenvalues"]


def test_global_clipping_scales_the_kernel() -> None:
    result = ntk(classifier(), people(), clip=Global(1.0, 1e3), rows=10)
    mine, free = result.rules["this run"], result.rules["none"]
    assert mine["rate"] == pytest.approx(free["rate"] / 1e3)
    assert mine["symmetric"]


def test_one_output_and_a_regression() -> None:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
    data = Data(people().x, people().x.sum(1))
    result = ntk(model, data, clip=Flat(1.0), rows=8)
    mine = result.rules["this run"]
    assert mine["measured_rate"] == pytest.approx(mine["rate"], rel=1e-5)
    double = Data(data.x.double(), data.y.double())
    slopes = output_slopes(model.double(), double, squared_error)
    assert torch.allclose(slopes, 2 * (model(double.x)[:, 0] - double.y) / 40)


def test_a_loss_of_more_than_outputs_is_refused() -> None:
    def looks_inside(network, batch):
        return cross_entropy(network, batch) + network[0].weight.square().sum()

    def penalised(network, batch):
        extra = 0.0 if not isinstance(network, nn.Module) else 1.0
        return cross_entropy(network, batch) + extra

    with pytest.raises((ConfigError, TypeError)):
        ntk(classifier(), people(), clip=Flat(1.0), loss_fn=looks_inside, rows=4)
    with pytest.raises(ConfigError, match="no function of"):
        ntk(classifier(), people(), clip=Flat(1.0), loss_fn=penalised, rows=4)


def test_what_does_not_fit_is_refused(monkeypatch) -> None:
    with pytest.raises(ConfigError, match="rows=41"):
        ntk(classifier(), people(), clip=Flat(1.0), rows=41)
    with pytest.raises(DataError, match="several rows"):
        ntk(classifier(), people(unit=torch.arange(40) // 2), clip=Flat(1.0), rows=4)
    monkeypatch.setattr(sys.modules["noisewise.audits.ntk"], "LARGEST", 10)
    with pytest.raises(ConfigError, match="fewer rows"):
        ntk(classifier(), people(), clip=Flat(1.0), rows=4)


def test_a_step_of_nothing_changes_nothing() -> None:
    model, data = classifier().double().eval(), people()
    assert measured_rate(model, data, cross_entropy, {"0.bias": torch.zeros(6, dtype=torch.float64)}) == 0.0


def test_result_is_reloaded_and_drawn() -> None:
    model = classifier()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = ntk(model, people(public=True), clip=Flat(0.5), twin=classifier(), rows=6)
    again = Ntk.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again == result
    assert again.headline["twin predicted"] == again.headline["predicted"]
    assert again.status.status == "not-private"
    assert again.sentences()
    assert len(again.tables()[0].rows) == 6
    for figure in again.figures():
        assert len(figure.draw(Figure().add_subplot()).lines) >= 6
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert next(model.parameters()).dtype == torch.float32


def test_an_instance_reads_its_own_norms() -> None:
    instance = Instance("x", (FIRST, SECOND), np.array([1.0, -2.0]) / 2, 1.0)
    assert instance.norms == pytest.approx(np.array([[np.sqrt(10), 2 * np.sqrt(10)], [2, 2 * np.sqrt(10)]]))


def test_as_many_rows_as_there_are_and_fit(monkeypatch) -> None:
    """The classifier's widest parameter has so many weights; every row has three outputs."""
    model, few = classifier(), people().take(torch.arange(9))
    assert ntk(model, few, clip=Flat(1.0)).settings["rows"] == 9
    widest = max(parameter.numel() for parameter in model.parameters())
    outputs = model(few.x[:1]).numel()
    monkeypatch.setattr(sys.modules["noisewise.audits.ntk"], "LARGEST", 5 * outputs * widest + 1)
    result = ntk(model, people(), clip=Flat(1.0))
    assert result.settings["rows"] == 5
    assert "On 5 rows" in result.sentences()[0]


def test_outputs_that_no_weight_moves_have_a_kernel_of_zeros() -> None:
    model = nn.Linear(3, 2, bias=False)
    still = Data(torch.zeros(6, 3), torch.arange(6) % 2, classes=("a", "b"))
    result = ntk(model, still, clip=Flat(1.0))
    assert result.values["layers"] == {"weight": 0.0}
    assert result.headline["predicted"].value == 0
