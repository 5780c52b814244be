"""Numbers by arm and seed."""

import numpy as np
import pytest
from scipy import stats

from noisewise.errors import ConfigError
from noisewise.reproduce.measured import Measured, crossing, slope

DRAW = np.random.default_rng(0)
VALUES = {arm: DRAW.normal(size=6) for arm in ("a", "b")}
ARMS = {
    arm: {seed: {"groups": [{"loss": float(v)}]} for seed, v in enumerate(values)} for arm, values in VALUES.items()
}
MEASURED = Measured(ARMS, {"try 1": {9: {"score": 1.0}}, "try 2": {9: {"score": 3.0}, 10: {"score": 2.0}}})
PATH = ("groups", 0, "loss")


def test_means_and_paired_differences_are_those_of_scipy():
    mean = MEASURED.mean(0.99, "a", *PATH)
    low, high = stats.t.interval(0.99, 5, VALUES["a"].mean(), stats.sem(VALUES["a"]))
    assert (mean.low, mean.high) == pytest.approx((low, high))
    paired = stats.ttest_rel(VALUES["a"], VALUES["b"]).confidence_interval(0.95)
    for found in (
        MEASURED.difference(0.95, "a", "b", *PATH),
        MEASURED.contrast(0.95, ("a", *PATH), ("b", *PATH)),
        MEASURED.each_seed(0.95, lambda row, arm: row[arm]["groups"][0]["loss"] - row["b"]["groups"][0]["loss"], "a"),
    ):
        assert (found.low, found.high) == pytest.approx((paired.low, paired.high))


def test_only_seeds_that_all_arms_have_count():
    some = Measured({"a": ARMS["a"], "b": {2: ARMS["b"][2], 4: ARMS["b"][4]}}, {})
    assert some.seeds == [2, 4]
    assert some.column("a", *PATH) == pytest.approx(VALUES["a"][[2, 4]])
    assert Measured({}, {}).seeds == []


def test_an_arm_that_there_is_not_is_named():
    with pytest.raises(ConfigError, match="arm 'c'"):
        MEASURED.column("c", "loss")


def test_it_is_written_and_read():
    again = Measured.from_dict(MEASURED.to_dict())
    assert again.column("b", *PATH) == pytest.approx(VALUES["b"])
    assert again.tuning == MEASURED.tuning


def test_the_best_setting_is_that_of_the_largest_mean():
    assert MEASURED.best({1.0: "try 1", 2.0: "try 2"}, "score") == 2.0


def test_slopes_are_those_of_least_squares():
    x = np.arange(6.0)
    assert slope(x, VALUES["a"]) == pytest.approx(np.polyfit(x, VALUES["a"], 1)[0])


@pytest.mark.parametrize(("level", "where"), [(0.9, 0.5), (0.8, 1.0), (0.1, 2.0), (1.0, 0.0), (0.5, 1.5)])
def test_where_a_curve_falls_to_a_level(level, where):
    assert crossing([0, 1, 2], [1.0, 0.8, 0.2], level) == pytest.approx(where)
