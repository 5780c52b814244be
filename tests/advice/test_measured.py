"""Expected gains are those of the committed measurement, and the page says the same."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from scipy.stats import ttest_1samp, ttest_ind

from noisewise.advice import measured
from noisewise.advice.rules import RULES

PROJECT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("advice_page", PROJECT / "benchmarks" / "advice_page.py")
assert SPEC is not None
assert SPEC.loader is not None
page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(page)
RESULTS = json.loads((PROJECT / "benchmarks" / "results" / "advice.json").read_text())
TRIED = json.loads((PROJECT / "benchmarks" / "results" / "advice_held_out.json").read_text())
PRICE = json.loads((PROJECT / "benchmarks" / "results" / "price_mnist-5.json").read_text())


def test_the_page_says_what_was_measured() -> None:
    assert page.page(RESULTS, TRIED, PRICE) == (PROJECT / "docs" / "advice.md").read_text()


def test_rows_follow_from_the_runs() -> None:
    runs = [
        {**run, "made": {key: RESULTS[key] for key in ("commit", "hardware", "versions")}} for run in RESULTS["runs"]
    ]
    assert json.loads(json.dumps(page.summary(runs))) == RESULTS


def test_the_package_shows_the_measured_gains() -> None:
    assert measured.gains() == json.loads(json.dumps(page.gains(RESULTS)))


def test_six_data_sets_and_five_seeds() -> None:
    assert len({row["name"] for row in RESULTS["rows"]}) >= 6
    assert all(row["seeds"] == [0, 1, 2, 3, 4] for row in RESULTS["rows"])
    assert set(page.RULES) == set(RULES)


def test_a_gain_is_a_mean_over_data_sets_by_hand() -> None:
    for diagnosis, metrics in measured.gains().items():
        if diagnosis == "miscalibrated":
            continue
        for metric, entry in metrics.items():
            by_case: dict = {}
            for run in RESULTS["runs"]:
                if run["arm"] == "nothing" and run["followed"]["diagnosis"] == diagnosis:
                    before, after = (page.value(test, metric) for test in (run["test"], run["followed"]["test"]))
                    change = (after - before) / (before if metric == "ece" else 1)
                    by_case.setdefault((run["name"], run["epsilon"]), []).append(change)
            means = [sum(values) / len(values) for values in by_case.values() if len(values) > 1]
            assert entry["change"]["value"] == pytest.approx(sum(means) / len(means))


def test_intervals_over_data_sets_are_welchs_for_two_and_students_for_one() -> None:
    first, second = [1.0, 2.0, 4.0, 3.0], [0.5, 0.7, 0.2]
    alone = page.stratified([first], 0.95)
    assert (alone.low, alone.high) == pytest.approx(ttest_1samp(first, 0).confidence_interval(0.95))
    both = page.stratified([first, [-value for value in second]], 0.95)
    welch = ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert (2 * both.low, 2 * both.high) == pytest.approx((welch.low, welch.high))
    assert page.stratified([[0.0, 0.0]], 0.95).high == 0.0


def test_what_was_not_measured_is_said_so(monkeypatch) -> None:
    assert measured.gain("twin badly tuned", "twin accuracy") == "not measured"
    raw = {"value": 0.05, "low": -0.01, "high": 0.11, "n": 4, "level": 0.95, "method": "t"}
    monkeypatch.setattr(measured, "gains", lambda: {"x": {"accuracy": {"change": raw, "sets": 1, "seeds": 5}}})
    text = measured.gain("x", "accuracy")
    assert "+5" in text
    assert "chance can explain" in text
    assert "1 data set, 5 seeds" in text
