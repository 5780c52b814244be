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
