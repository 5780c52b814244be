"""What the page about several processes says was measured."""

import importlib.util
import json
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(PROJECT / "benchmarks")
    spec = importlib.util.spec_from_file_location("distributed_benchmark", PROJECT / "benchmarks" / "distributed.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_what_was_measured(benchmark):
    content = json.loads((PROJECT / "benchmarks" / "results" / "distributed.json").read_text())
    page = (PROJECT / "docs" / "several_processes.md").read_text()
    for part in benchmark.parts_of_page(content):
        assert part in page


def turn(one, two):
    """Seconds of a step, of a processor, and bytes, one way and the other."""
    names = ("step_seconds", "cpu_seconds", "payload", "loopback")
    return {"one process, two cores": dict(zip(names, one, strict=True)),
            "two processes, one core each": dict(zip(names, two, strict=True))}  # fmt: skip


def test_efficiency_is_the_middle_one_of_the_turns(benchmark):
    """One turn that something else on the machine disturbed does not count."""
    seen = {
        "cnn": [
            [turn((1, 2, 0, 0), (1.25, 2.5, 8, 9)), turn((1, 2, 0, 0), (9, 2.5, 8, 9))],
            [turn((1, 2, 0, 0), (1, 2, 8, 9))],
        ]
    }
    figures = benchmark.halves(seen, True)
    assert (figures["efficiency"]["wall"], figures["efficiency"]["processor"]) == (0.8, 0.8)
    assert figures["scaling"]["two processes, one core each"]["step_seconds"] == 1.25
    assert benchmark.halves({"cnn": []}, False) == {}


def test_the_cost_of_a_group_is_that_of_the_worst_workload(benchmark):
    def ways(none, group, joins):
        given = {"payload": 0, "captured": 0, "weights": 1.0}
        names = [way.name for way in benchmark.GROUPS]
        return {name: {"step_seconds": s, **given} for name, s in zip(names, (none, group, joins), strict=True)}

    seen = {"wide": [[ways(1, 1.02, 1.1)]], "cnn": [[ways(1, 1.04, 1.2), ways(2, 2.0, 2.4), ways(1, 3.0, 1.2)], []]}
    figures = benchmark.group_cost("cpu", seen, False)
    assert figures["cost"] == pytest.approx(1.04)
    assert not figures["met"]
    assert not figures["finished"]
    assert benchmark.group_cost("cpu", {"wide": [], "cnn": []}, False)["cost"] is None
    words = benchmark.group_of_one({"one rank": {"cuda": figures}})
    assert "cnn 1000.00 ms without, x 1.040 with a group, x 1.200 if it joins" in words
    assert benchmark.group_of_one({}).endswith("not run.")


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
