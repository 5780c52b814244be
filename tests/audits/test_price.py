"""Cards on who pays."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from noisewise.audits.people import Cost, Extremes, WorstError
from noisewise.audits.price import cards_of_errors
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
