"""Who pays by difficulty: tenths of the rows by a reference's loss."""

from __future__ import annotations

import pytest
import torch

from helpers.tables_of_answers import Table, model_with, people
from noisewise.audits.disparity import disparity
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError


def test_difficulty_is_the_reference_ensembles_and_hard_rows_pay() -> None:
    """Reference losses rise with the row's number; the private model fails on the last tenth, the twin does not."""
    data = people([200, 200])
    rows = torch.arange(400.0)
    hard = Table(torch.nn.functional.one_hot(data.y, 2) * (8 - rows / 50).unsqueeze(1))
    noisy = Table(hard.logits.detach() + 0.3)
    wrong = torch.where(rows.long() >= 360, 1 - data.y, data.y)
    model, twin = Table(torch.nn.functional.one_hot(wrong, 2) * 3.0), model_with(data, {})
    result = disparity(model, data, twin=twin, reference=[hard, noisy])
    assert [part.n for part in result.deciles] == [40] * 10
    assert [part.accuracy["private"].value for part in result.deciles] == [1.0] * 9 + [0.0]
    assert [part.accuracy["twin"].value for part in result.deciles] == [1.0] * 10
    assert result.difficulty.drop.value == -1
    assert result.difficulty.largest_rise.value == 0
    extra = result.headline["extra cost of the hardest tenth"]
    assert (extra.value, extra.excludes_zero) == (-1, True)
    easiest = result.deciles[0].accuracy["difference"]
    hardest = result.deciles[-1].accuracy["difference"]
    assert extra.high == pytest.approx(-1 + ((hardest.high + 1) ** 2 + easiest.low**2) ** 0.5)
    assert any("hard rows pay more" in sentence for sentence in result.sentences())
    assert result.status.status == "not-private"
    # the same failures among the easy rows: no extra cost of the hard ones
    easy = Table(torch.nn.functional.one_hot(torch.where(rows.long() < 40, 1 - data.y, data.y), 2) * 3.0)
    other = disparity(easy, data, twin=twin, reference=[hard])
    assert other.difficulty.extra_cost.low > 0
    assert other.difficulty.largest_rise.low > 0


def test_a_reference_must_be_apart_and_the_tenths_large() -> None:
    data = people([150, 150])
    model, twin = model_with(data, {}), model_with(data, {0: 0.1})
    with pytest.raises(ConfigError, match="one of the audited"):
        disparity(model, data, twin=twin, reference=[twin])
    small = people([60, 60])
    with pytest.raises(DataError, match="tenths of fewer than 20"):
        disparity(model_with(small, {}), small, reference=[model_with(small, {})])
    with pytest.raises(ConfigError, match="real-valued"):
        disparity(model, Data(data.x, data.y.float()), reference=[twin])


def test_tenths_of_many_rows_but_few_people() -> None:
    """1,200 rows, five of each person side by side in difficulty: the rise allows for it; 19 people a tenth are refused."""
    data = people([600, 600])
    judge, model = model_with(data, {0: 0.2}, seed=1), model_with(data, {0: 0.2, 1: 0.3})
    owned = Data(data.x, data.y, unit=torch.arange(1200) // 5, classes=data.classes)
    rows, own = (disparity(model, part, reference=[judge]).difficulty.largest_rise for part in (data, owned))
    assert own.value == rows.value
    assert own.high - own.low > rows.high - rows.low
    few = Data(data.x, data.y, unit=torch.arange(1200) % 200 + 200 * (torch.arange(1200) < 600), classes=data.classes)
    assert disparity(model, few, reference=[judge]).deciles
    with pytest.raises(DataError, match="fewer than 20"):
        disparity(model, Data(data.x, data.y, unit=torch.arange(1200) // 7, classes=data.classes), reference=[judge])
