from __future__ import annotations

import json
import sys

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from noisewise.audits.ntk import Ntk, jacobians, measured_rate, ntk, output_slopes
from noisewise.clipping import Flat, Global, per_layer
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError
from noisewise.losses import cross_entropy, squared_error


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
        assert entry.measured_rate == pytest.approx(entry.rate, rel=1e-5)
        assert -1 - 1e-9 <= entry.relative_rate <= 1 + 1e-9
    mine, free = result.rules["this run"], result.rules["none"]
    assert abs(mine.rate - free.rate) > 0.01 * abs(free.rate)  # a kernel without C would be found out
    assert not mine.symmetric
    assert free.symmetric
    assert free.positive_form
    assert free.relative_rate == pytest.approx(-1)
    assert sum(result.values.layers.values()) == pytest.approx(1)
    if not layers:
        assert mine.rate == pytest.approx(result.rules["local flat"].rate)
        assert mine.positive_eigenvalues


def test_global_clipping_scales_the_kernel() -> None:
    result = ntk(classifier(), people(), clip=Global(1.0, 1e3), rows=10)
    mine, free = result.rules["this run"], result.rules["none"]
    assert mine.rate == pytest.approx(free.rate / 1e3)
    assert mine.symmetric


def test_one_output_and_a_regression() -> None:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
    data = Data(people().x, people().x.sum(1))
    result = ntk(model, data, clip=Flat(1.0), rows=8)
    mine = result.rules["this run"]
    assert mine.measured_rate == pytest.approx(mine.rate, rel=1e-5)
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
    assert result.values.layers == {"weight": 0.0}
    assert result.headline["predicted"].value == 0
