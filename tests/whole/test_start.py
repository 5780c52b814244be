"""`benchmarks/start.py` counts every second of a first run once."""

import importlib.util
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import noisewise

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "start.py"
SPEC = importlib.util.spec_from_file_location("start_benchmark", SCRIPT)
start = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(start)


def test_a_part_within_another_counts_for_itself_alone(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    clock = start.Clock("cpu")  # at 0
    with clock.part("outer"), clock.part("inner"):  # at 1 and 2, until 3 and 4
        pass
    assert clock.taken() == {"other": 2, "outer": 2, "inner": 1}
    assert clock.taken() == {"other": 1}


def test_other_threads_are_not_counted():
    clock, module = start.Clock("cpu"), SimpleNamespace(work=lambda: 1)
    clock.around(module, "work", "work")
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(module.work).result() == 1
    assert clock.taken().keys() == {"other"}
    assert module.work() == 1
    assert clock.taken().keys() == {"other", "work"}


def test_a_first_run_is_taken_apart(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(noisewise.__file__).parents[1]))
    steps = ("--steps", "12")  # a median of fewer would stall with the machine
    command = [sys.executable, SCRIPT, "--alone", "--device", "cpu", "--only", "tiny", *steps]
    run = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert {"imports", "examination", "proof", "first pass on padding", "captures"} <= run["parts"].keys()
    assert all(seconds >= 0 for seconds in run["parts"].values())
    assert run["first step"] == pytest.approx(
        sum(run["parts"][part] for part in run["parts"] if part not in start.BEFORE)
    )
    assert 0 < run["a step"] < run["first step"]
    assert run["sizes"]
