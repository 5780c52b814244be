"""`train --seeds`: what each run promises, what they cost together, and how to go on."""

import json
import shutil
from pathlib import Path

import pytest

from noisewise import Mechanism, Poisson
from noisewise.errors import Interrupted
from noisewise.wording import at_most
from noisewise.workflow import sweep as module

QUICK = ("--data", "digits", "--model", "logistic", "--noise-multiplier", "4", "--steps", "2", "--no-twin")


def test_each_run_is_named_in_eighty_columns_and_the_total_is_said(noisewise, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = noisewise("train", *QUICK, "--out", "a", "--seeds", "2")
    assert outcome.code == 0, outcome.words
    assert all(len(line) <= 80 for line in outcome.out.splitlines())
    for name in ("a/seed-0 private", "a/seed-1 private", "2 runs on the same people spent epsilon"):
        assert name in outcome.words
    assert Path("a/seed-1/model.safetensors").exists()


def test_ctrl_c_says_how_to_go_on(noisewise, monkeypatch) -> None:
    def stop(*args, **how):
        raise Interrupted("stopped")

    with monkeypatch.context() as patched:
        patched.setattr(module, "execute", stop)
        outcome = noisewise("train", *QUICK, "--out", "a", "--seeds", "3")
    assert outcome.code == 130
    assert "0 of 3 done; nothing is lost. Go on with: noisewise train --resume --seeds 3 --out a" in outcome.words
    assert noisewise("train", "--resume", "--seeds", "3", "--out", "a", *QUICK, "--quiet").code == 0
    assert Path("a/seed-2/model.safetensors").exists()


def test_the_total_counts_every_run_in_the_folder(noisewise) -> None:
    assert noisewise("train", *QUICK, "--batch-size", "64", "--out", "a", "--seeds", "3", "--quiet").code == 0
    shutil.copytree("a/seed-1", "a/seed-10")
    shutil.rmtree("a/seed-10/sensitive")
    Path("a/seed-10/ledger.json").unlink()  # as if it had not ended
    said = noisewise("train", "--resume", "--out", "a", "--seeds", "2")
    told = json.loads(noisewise("train", "--resume", "--out", "a", "--seeds", "2", "--json").out)
    assert list(told) == ["a/seed-0", "a/seed-1", "together"]
    together = told["together"]
    assert together["runs"] == ["a/seed-0", "a/seed-1", "a/seed-2"]
    assert together["unfinished"] == ["a/seed-10"]
    plan = Mechanism(sampler=Poisson(1258, 64), steps=6, noise_multiplier=4.0)
    assert together["epsilon"] == pytest.approx(plan.epsilon(together["delta"]), rel=1e-6)
    assert f"3 runs on the same people spent epsilon {at_most(together['epsilon'])} together" in said.words
    assert "a/seed-2 private" in said.words
    assert "not yet finished: a/seed-10." in said.words


def test_runs_that_do_not_add_up_have_no_total(noisewise) -> None:
    assert noisewise("train", *QUICK, "--out", "a", "--seeds", "2", "--quiet").code == 0
    shutil.rmtree("a/seed-0")
    more = ("--adjacency", "zero-out", "--out", "a", "--seeds", "1")
    outcome = noisewise("train", *QUICK, *more)
    assert outcome.code == 0, outcome.words
    assert "No total: Epsilons for neighbours of several kinds" in outcome.words
    told = json.loads(noisewise("train", "--resume", "--out", "a", "--seeds", "1", "--json").out)
    assert told["together"]["epsilon"] is None
    assert "neighbours" in told["together"]["reason"]
