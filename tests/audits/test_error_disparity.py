"""Errors of a regression by group."""

from __future__ import annotations

import json
import re

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from helpers.tables_of_answers import Table
from noisewise.audits.disparity import ErrorDisparity, disparity
from noisewise.data import Data
from noisewise.errors import DataError


@pytest.mark.parametrize("width", [0, 1])
def test_errors_of_a_regression_are_scikit_learns(width: int) -> None:
    from fairlearn.metrics import MetricFrame
    from sklearn.metrics import mean_absolute_error, mean_squared_error

    generator = torch.Generator().manual_seed(0)
    y, group = torch.randn(400, generator=generator), torch.arange(400) % 3
    data = Data(torch.arange(400).float().unsqueeze(1), y, groups={"site": group}, group_names={"site": tuple("abc")})
    noise = torch.randn(400, generator=generator)
    said = {"private": y + noise * (0.5 + group) + 0.3, "twin": y + noise * 0.5}
    models = {which: Table(values.unsqueeze(1) if width else values) for which, values in said.items()}
    result = disparity(models["private"], data, twin=models["twin"])
    assert isinstance(result, ErrorDisparity)
    for which in said:
        values = said[which].double().numpy()
        for measure, theirs in (("mse", mean_squared_error), ("mae", mean_absolute_error)):
            frame = MetricFrame(
                metrics=theirs, y_true=y.double().numpy(), y_pred=values, sensitive_features=group.numpy()
            )
            assert getattr(result.everyone, measure)[which].value == pytest.approx(frame.overall)
            found = [getattr(part, measure)[which].value for part in result.parts("site")]
            assert found == pytest.approx(list(frame.by_group))
        assert result.everyone.bias[which].value == pytest.approx((values - y.double().numpy()).mean())
    extremes = result.extremes("site")
    assert (extremes.worst.name, extremes.cost.name) == ("c", "c")
    values = [part.mse["private"].value for part in result.parts("site")]
    assert extremes.worst.gap.value == pytest.approx(max(values) - min(values))
    assert extremes.worst.ratio.value == pytest.approx(min(values) / max(values))
    assert extremes.cost.largest.low > 1
    assert extremes.cost.excess_gap.low > 0
    assert result.headline["cost"].low > 0
    assert result.headline["bias"].low > 0
    assert "accuracy" not in json.dumps(result.to_dict())
    assert ErrorDisparity.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    (figure,) = result.figures()
    assert len(figure.draw(Figure().add_subplot()).lines) == 16
    assert len(result.tables()) == 3
    assert any("site c pays most" in sentence for sentence in result.sentences())


def test_a_regression_needs_one_number_per_row() -> None:
    data = Data(torch.arange(30.0).unsqueeze(1), torch.randn(30, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(DataError, match="one number per row"):
        disparity(Table(torch.zeros(30, 2)), data)


def test_a_regression_counts_people_too() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(90, 1, generator=generator), torch.randn(90, generator=generator)
    three = torch.arange(90).repeat_interleave(3)
    model = nn.Linear(1, 1)
    once = disparity(model, Data(x, y, groups={"g": torch.arange(90) % 2}))
    often = disparity(model, Data(x[three], y[three], groups={"g": three % 2}, unit=three))
    for by in ("everyone", "g"):
        for mine, theirs in zip(often.parts(by), once.parts(by), strict=True):
            assert (mine.n, mine.mse["private"].high) == (theirs.n, pytest.approx(theirs.mse["private"].high))
    assert often.extremes("g").worst.gap.high == pytest.approx(once.extremes("g").worst.gap.high)
    assert "on 270 test rows of 90 people" in often.sentences()[0]


def test_large_errors_are_written_with_thousands() -> None:
    """Squared errors of incomes have many digits: in cards, sentences and tables alike."""
    generator = torch.Generator().manual_seed(0)
    y = 20_000 + 5_000 * torch.randn(100, generator=generator)
    data = Data(torch.arange(100).float().unsqueeze(1), y, groups={"site": torch.arange(100) % 2})
    result = disparity(Table(y + 3_000), data, twin=Table(y + 1_000 + 100 * torch.randn(100, generator=generator)))
    cells = [cell for table in result.tables() for row in table.rows for cell in row]
    texts = " ".join([*result.sentences(), *map(str, result.cards()), *cells])
    assert f"{result.headline['mse'].value:,.2f}" in texts
    assert f"+{result.headline['cost'].value:,.2f}" in texts
    assert re.findall(r"\d{4,}\.\d", texts) == []
