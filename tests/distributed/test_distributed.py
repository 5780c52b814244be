"""What the page about several processes says was measured."""

import importlib.util
import json
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


def benchmark():
    spec = importlib.util.spec_from_file_location("distributed_benchmark", PROJECT / "benchmarks" / "distributed.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_what_was_measured():
    content = json.loads((PROJECT / "benchmarks" / "results" / "distributed.json").read_text())
    page = (PROJECT / "docs" / "several_processes.md").read_text()
    assert benchmark().table(content) in page
    assert benchmark().memory_table(content) in page


def test_spread_parameters_need_less_memory():
    """And what is sent is what must be: weights twice, sums once, each but for a rank's own rows."""
    content = json.loads((PROJECT / "benchmarks" / "results" / "distributed.json").read_text())
    rows = {(row["processes"], row["sharded"]): row for row in content["spread"]}
    for processes in (2, 4):
        spread, whole = rows[processes, True], rows[processes, False]
        assert spread["memory"] < 0.6 * whole["memory"]
        assert spread["payload"] / (4 * spread["coordinates"]) == pytest.approx(3 * (1 - 1 / processes), rel=0.05)
    assert rows[4, True]["memory"] < rows[2, True]["memory"]


def test_masked_coordinates_do_not_travel():
    """Payload and the kernel's own count of bytes shrink with the kept share, at any number of ranks."""
    content = json.loads((PROJECT / "benchmarks" / "results" / "distributed.json").read_text())
    rows = {(row["processes"], row["sparsity"]): row for row in content["traffic"]}
    assert {processes for processes, _ in rows} == {2, 4}
    for (processes, sparsity), row in rows.items():
        dense = rows[processes, 0.0]
        kept = row["coordinates"] - round(sparsity * row["coordinates"])
        assert row["payload"] == 4 * kept
        assert abs(row["loopback"] / dense["loopback"] - (1 - sparsity)) < 0.01
        assert abs(row["loopback"] / row["payload"] - 2 * (processes - 1)) < 0.1
