"""Measured results that are committed: they keep the limits that the documents state."""

import json
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
RESULTS = PROJECT / "benchmarks" / "results"
SCALING = json.loads((RESULTS / "scaling_cpu.json").read_text())


@pytest.mark.parametrize("row", SCALING["rows"], ids=lambda row: row["axis"])
def test_a_private_step_grows_no_faster_than_a_plain_one(row):
    assert len(row["sizes"]) == len(row["plain_seconds"]) == len(row["private_seconds"]) >= 4
    assert row["private_exponent"] <= row["plain_exponent"] + SCALING["allowed"]


def test_the_readme_shows_the_picture():
    text = (PROJECT / "README.md").read_text()
    assert "benchmarks/results/scaling_cpu.png" in text
    assert (RESULTS / "scaling_cpu.png").stat().st_size > 10_000


def test_what_train_costs_beside_its_steps_is_within_its_limits():
    measured = json.loads((RESULTS / "overheads.json").read_text())
    assert measured["seconds"].keys() == measured["limits"].keys()
    for name, took in measured["seconds"].items():
        assert took <= measured["limits"][name], name
    assert [run["steps"] for run in measured["runs"]] == [140, 1000]
    for run in measured["runs"]:
        assert run["share"] == pytest.approx(run["epsilon_seconds"] / run["seconds"])
        assert run["share"] < 0.02
