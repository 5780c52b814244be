"""The price of privacy by part, beside the ratio of its feature to the noise."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from noisewise.errors import ConfigError
from noisewise.reproduce.who_pays import who_pays

GIVEN = {
    "seed": 0,
    "device": "cpu",
    "data": "digits",
    "model": "logistic",
    "batch": 100,
    "epochs": 4,
    "lr": 1.0,
    "open_lr": 1.0,
    "by": "class",
}


def test_prices_are_what_the_twin_has_more():
    seen = who_pays(sigma=8.0, **GIVEN)
    prices = []
    for part in seen["parts"].values():
        assert part["price"] == pytest.approx(part["private"]["loss"] - part["twin"]["loss"])
        assert part["points"] == pytest.approx(part["twin"]["accuracy"] - part["private"]["accuracy"])
        assert part["start"] > 0
        prices.append(part["price"])
    assert np.mean(prices) > 0
    ratios = [part["start"] for part in seen["parts"].values()]
    assert seen["correlation"]["start"] == pytest.approx(spearmanr(ratios, prices).statistic)


def test_a_small_class_has_a_smaller_ratio_and_a_larger_price():
    seen = who_pays(sigma=4.0, sizes={"6": 25}, **GIVEN)["parts"]
    others = [part for name, part in seen.items() if name != "6"]
    assert seen["6"]["share"] < 0.03
    assert all(seen["6"]["start"] < part["start"] for part in others)
    assert all(seen["6"]["price"] > part["price"] for part in others)


def test_too_few_parts_stop():
    with pytest.raises(ConfigError, match="a rank needs three"):
        who_pays(sigma=4.0, rows=60, **GIVEN)
