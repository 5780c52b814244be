"""Cards on who pays."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from noisewise.audits.disparity import disparity
from noisewise.audits.people import POOR_TWIN, Cost, Extremes, WorstError
from noisewise.audits.price import cards_of_errors
from noisewise.data import Data
from noisewise.estimates.estimate import Estimate


@pytest.mark.parametrize("order", [("age", "sex"), ("sex", "age")])
def test_whoever_pays_most_among_all_columns_is_named(order):
    """In a regression there are no classes: the card compares the group columns."""

    def estimate(value):
        return Estimate(value, value - 0.05, value + 0.05, 100, 0.95, "paired t")

    costs = {"sex": ("women", 0.1), "age": ("over 60", 0.5)}
    found = SimpleNamespace(
        headline={"mse": estimate(2.0), "twin mse": estimate(1.5), "cost": estimate(0.5)},
        settings={"rows": 100},
        everyone=SimpleNamespace(n=100),
        partitions=list(order),
        extremes=lambda by: Extremes(
            0,
            0,
            WorstError(costs[by][0], estimate(3.0), estimate(1.0), None),
            Cost(costs[by][0], estimate(costs[by][1]), estimate(1.0), estimate(0.0)),
        ),
    )
    _, pays = cards_of_errors(found)
    assert (pays.place, pays.value) == ("pays", "age over 60")
    assert "0.50 above the twin's (interval 0.45 to 0.55" in pays.lines[0]


def twins(offset: float) -> tuple[Data, nn.Module, nn.Module]:
    """A private model that is right, and a twin that is wrong by `offset` (or decides by a coin)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=generator)
    right, wrong = nn.Linear(2, 1), nn.Linear(2, 1)
    with torch.no_grad():
        for model, bias in ((right, 0.0), (wrong, offset)):
            model.weight.copy_(torch.tensor([[1.0, 0.0]]))
            model.bias.fill_(bias)
    noise = 0.1 * torch.randn(400, generator=generator)
    return Data(x, x[:, 0] + noise), right, wrong


def test_a_twin_that_is_behind_is_no_gain_of_privacy():
    data, right, wrong = twins(2.0)
    for private, twin, flagged in ((right, wrong, True), (wrong, right, False)):
        found = disparity(private, data, twin=twin)
        assert (POOR_TWIN in found.sentences()) == flagged
        assert (POOR_TWIN in found.cards()[0].note) == flagged
    classes = Data(data.x, (data.x[:, 0] > 0).long(), classes=("no", "yes"))
    sure, coin = nn.Linear(2, 2), nn.Linear(2, 2)
    with torch.no_grad():
        sure.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        coin.weight.copy_(torch.tensor([[0.0, -1.0], [0.0, 1.0]]))
        sure.bias.zero_(), coin.bias.zero_()
    for private, twin, flagged in ((sure, coin, True), (coin, sure, False)):
        found = disparity(private, classes, twin=twin)
        assert (POOR_TWIN in " ".join(found.sentences())) == flagged
        assert (POOR_TWIN in found.cards()[0].note) == flagged
        assert "gained" not in " ".join(found.sentences())
