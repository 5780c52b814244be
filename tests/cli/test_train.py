"""train and demo: from a config, stopped and resumed, data loaded once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from noisewise.audits import AUDITS
from noisewise.data import DATASETS
from noisewise.mechanism import Mechanism
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder, Status
from noisewise.sampling import Poisson
from noisewise.wording import at_most
from noisewise.workflow.config import Config, plan
from noisewise.workflow.execution import execute
from noisewise.workflow.model_specs import build_model
from noisewise.workflow.plan import plan_of

QUICK = ("--data", "digits", "--noise-multiplier", "4", "--steps", "3", "--batch-size", "64")


def test_config_reruns_the_same_plan_and_takes_changes(noisewise, tmp_path) -> None:
    assert noisewise("train", *QUICK, "--out", "a", "--no-twin", "--quiet").out == ""
    assert noisewise("train", "--config", "a/config.toml", "--out", "b", "--quiet").code == 0
    assert (tmp_path / "a/config.toml").read_text() == (tmp_path / "b/config.toml").read_text()
    assert noisewise("train", "--config", "a/config.toml", "--out", "c", "--lr", "0.125", "--quiet").code == 0
    assert Config.read(tmp_path / "c/config.toml").lr == 0.125
    text = (tmp_path / "a/config.toml").read_text()
    (tmp_path / "d.toml").write_text(f"{text}learning_rate = 3\n")
    found = noisewise("train", "--config", "d.toml", "--out", "d")
    assert found.code == 2
    assert "unknown entries learning_rate" in found.words


def test_runs_whose_noise_repeats_have_no_total(noisewise) -> None:
    outcome = noisewise("train", *QUICK, "--out", "a", "--no-twin", "--seeds", "2", "--insecure-seed", "1")
    assert outcome.code == 0
    assert "No total: nothing bounds what a/seed-0, a/seed-1 released." in outcome.words
    assert "together" not in outcome.words


def test_the_guarantee_is_explained_once(noisewise) -> None:
    words = noisewise("train", *QUICK, "--out", "a", "--no-twin").words
    assert words.count("can be right") == 1
    assert words.index("can be right") < words.index("takes")  # before it begins


def test_several_seeds_add_up(noisewise) -> None:
    found = noisewise("train", *QUICK, "--out", "a", "--no-twin", "--seeds", "2")
    assert found.code == 0, found.words
    assert {path.name for path in Path("a").iterdir()} == {"jobs", "seed-0", "seed-1"}
    one = read_json(Path("a/seed-0/summary.json"))["privacy"]
    both = Mechanism(sampler=Poisson(1258, 64), steps=6, noise_multiplier=4.0).epsilon(one["delta"])
    assert both > 1.2 * one["epsilon"]
    assert f"together epsilon {at_most(both)} for all 2: " in found.words  # before
    assert f"2 runs on the same people spent epsilon {at_most(both)} together" in found.words  # and after
    again = noisewise("train", *QUICK, "--out", "a", "--no-twin", "--seeds", "2")
    assert (again.code, "holds a finished run" in again.words) == (2, True)


def test_an_insecure_seed_is_shown_as_not_private(noisewise) -> None:
    found = noisewise("train", *QUICK, "--out", "a", "--no-twin", "--insecure-seed", "1")
    assert "not-private: noise reproducible: do not publish" in found.words
    assert "epsilon ∞" in found.words
    assert "may be published" not in found.words


def test_a_twin_that_is_still_missing_is_asked_for(noisewise) -> None:
    assert noisewise("train", *QUICK, "--out", "a", "--quiet").code == 0
    (Path("a") / "sensitive" / "twin.safetensors").unlink()
    found = noisewise("audit", "a", "--only", "disparity")
    assert "noisewise train --resume --twin --out a trains one beside it" in found.words


WATCHED = """
import os, runpy, sys, threading, time

def stop():
    while not os.path.exists(file):
        time.sleep(0.001)
    os.kill(os.getpid(), int(number))

file, number, *sys.argv[1:] = sys.argv[1:]
threading.Thread(target=stop, daemon=True).start()
runpy.run_module("noisewise", run_name="__main__", alter_sys=True)
"""


def stopped_when(file: Path, out: Path, *arguments: str, by: signal.Signals) -> int:
    """Run the command in a process of its own, which gets the signal as soon as the file is there; its exit code.

    A thread of that process looks for the file: on a busy machine another process may see it only after the run.
    """
    watched = [sys.executable, "-c", WATCHED, str(file), str(by.value)]
    command = [*watched, "train", "--out", str(out), "--quiet", *arguments]
    ended = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600, check=False
    )
    if by is signal.SIGINT:
        assert f"Go on with: noisewise train --resume --out {out}" in ended.stderr
        assert "Traceback" not in ended.stderr
    return ended.returncode


def test_stopped_twice_and_resumed_a_run_ends_as_if_nothing_had_happened(noisewise, tmp_path) -> None:
    """Ctrl-C while the private model trains, SIGKILL while its twin does."""
    settings = (
        "--data",
        "digits",
        "--noise-multiplier",
        "4",
        "--steps",
        "240",
        "--batch-size",
        "32",
        "--insecure-seed",
        "1",
    )
    out = RunFolder(tmp_path / "a")
    assert stopped_when(out.metrics, out.path, *settings, by=signal.SIGINT) == 130
    assert read_json(out.run)["state"] == "interrupted"
    twin = RunFolder(out.sensitive / "twin")
    code = stopped_when(twin.metrics, out.path, "--resume", *settings, by=signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert out.complete
    assert not twin.complete
    refused = noisewise("train", "--out", "a", "--resume", "--lr", "0.25")
    assert refused.code == 2
    assert "lr was 0.5, now 0.25" in refused.words
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert noisewise("train", "--out", "a", "--resume", "--quiet").code == 0
        whole = execute(Config.read(out.config), tmp_path / "whole", progress=False)
    finally:
        torch.set_num_threads(threads)
    for path in (out.model, out.ledger, out.summary, out.metrics, out.twin_weights):
        assert path.read_bytes() == (whole.path / path.relative_to(out.path)).read_bytes(), path.name
    assert not twin.path.exists()
    assert not out.checkpoint.exists()
    assert (
        "status" in noisewise("train", "--out", "a", "--resume").words
    )  # nothing left to do, and it says where things are


def test_demo_takes_a_new_folder_and_takes_up_an_unfinished_one(noisewise, monkeypatch, tmp_path) -> None:
    small = plan(data="digits", noise_multiplier=4.0, steps=3, batch_size=64)
    monkeypatch.setattr("noisewise.workflow.config.plan", lambda **_: small)
    wanted = {"disparity": AUDITS["disparity"]}
    monkeypatch.setattr("noisewise.audits.AUDITS", wanted)
    first = noisewise("demo", "--out", "runs/demo")
    assert first.code == 0
    assert "Report: runs/demo/sensitive/report.html" in first.words
    assert (tmp_path / "runs/demo/sensitive/report.html").exists()
    assert "Report: runs/demo-2/sensitive/report.html" in noisewise("demo", "--out", "runs/demo").words
    RunFolder("runs/demo").twin_weights.unlink()
    assert "Report: runs/demo/sensitive/report.html" in noisewise("demo", "--out", "runs/demo").words


@pytest.fixture
def counted(monkeypatch) -> dict[str, int]:
    """How often the digits are loaded, a plan is built and a model is initialised."""
    counts = dict.fromkeys(("data", "plan", "model"), 0)

    def counting(what, real):
        def call(*arguments, **settings):
            counts[what] += 1
            return real(*arguments, **settings)

        return call

    monkeypatch.setitem(DATASETS, "digits", counting("data", DATASETS["digits"]))
    monkeypatch.setattr("noisewise.workflow.plan.plan_of", counting("plan", plan_of))
    monkeypatch.setattr("noisewise.workflow.plan.build_model", counting("model", build_model))
    return counts


def test_a_command_loads_data_once_and_builds_its_plan_once(noisewise, counted, monkeypatch) -> None:
    assert noisewise("train", *QUICK, "--out", "a").code == 0
    assert counted == {"data": 1, "plan": 1, "model": 1}  # and copied for what is rebuilt
    counted.update(data=0, plan=0)
    assert noisewise("train", "--resume", "--epochs", "1", "--out", "a", "--quiet").code == 2  # other settings
    assert (counted["data"], counted["plan"]) == (1, 1)
    wanted = {
        name: AUDITS[name] for name in ("disparity", "clipping-bias", "landscape", "convergence", "feature-noise")
    }
    asked = [need for audit in wanted.values() for need in audit.needs]
    assert min(asked.count("mechanism"), asked.count("start") + asked.count("path")) > 1
    light = {name: replace(audit, run=lambda *_, **__: Silent()) for name, audit in wanted.items()}
    monkeypatch.setattr("noisewise.audits.AUDITS", light)
    counted.update(data=0, plan=0, model=0)
    assert noisewise("audit", "a", "--all").code == 0
    assert counted == {"data": 1, "plan": 1, "model": 1}


class Silent:
    """A result that says nothing."""

    status = Status("not-private", "none")

    def sentences(self) -> list[str]:
        return []

    def to_dict(self) -> dict[str, str]:
        return {}
