"""`noisewise sweep` on the terminal: the price before and after, the choice, going on."""

import json
import re

import pytest

from helpers.remembered import remembered  # noqa: F401  accountants with a memory
from noisewise.errors import Interrupted
from noisewise.workflow import sweep as module

FILE = """
[train]
data = "digits"
model = "logistic"
noise_multiplier = 6.0
steps = 2
batch_size = 64

[sweep]
lr = [0.01, 2.0]
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "sweep.toml").write_text(FILE)
    return tmp_path / "sweep.toml"


def test_price_table_and_choice(noisewise, file, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    dry = noisewise("sweep", "--config", "sweep.toml", "--out", "out", "--dry-run")
    assert dry.code == 0
    assert "together epsilon" in dry.words
    assert not (file.parent / "out").exists()
    outcome = noisewise("sweep", "--config", "sweep.toml", "--out", "out")
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= 80
    for text in ("lr=2.0", "exact accuracy", "Together the runs", "Chosen: run-", "Next: noisewise audit out/run-"):
        assert text in outcome.words
    again = json.loads(noisewise("sweep", "--config", "sweep.toml", "--out", "out", "--json").out)
    assert [row["run"] for row in again["runs"]] == ["run-01", "run-02"]
    assert again["chosen"] == max(again["runs"], key=lambda row: row["score"])["run"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("insecure_seed = 7\nsteps", "noise reproducible: do not publish"),
        ("repairs = ['ranked-sparsification:unnoised=true']\nsteps", "a part of it carries no noise"),
    ],
)
def test_runs_that_are_not_private_promise_nothing_before_and_after(noisewise, file, change, why):
    choose = "[choose]\nby = 'noised-valid'\nepsilon = 0.1\n"
    file.write_text(FILE.replace("steps", change) + choose)
    line = ("sweep", "--config", "sweep.toml", "--out", "out")
    before, priced = noisewise(*line, "--dry-run"), json.loads(noisewise(*line, "--dry-run", "--json").out)
    assert before.code == 0
    assert f"status not-private: {why}" in before.words
    assert "together epsilon ∞: nothing is promised" in before.words
    assert (priced["status"], priced["reason"], priced["epsilon"]) == ("not-private", why, "inf")
    after = noisewise(*line)
    assert after.code == 0
    assert "Not private: run-01, run-02." in after.words
    for outcome in (before, after):
        assert not re.search(r"strong|reasonable|epsilon [0-9]", outcome.words)


def test_a_stand_in_ends_with_the_command_for_the_real_data(noisewise, file):
    file.write_text(FILE.replace('"digits"', '"clinic.csv"') + '[stand_in]\ndata = "digits"\n')
    outcome = noisewise("sweep", "--config", "sweep.toml", "--out", "out")
    assert outcome.code == 0
    assert "noisewise train --data clinic.csv --set model=logistic --set noise_multiplier=6.0" in outcome.words


def test_ctrl_c_says_how_to_go_on(noisewise, file, monkeypatch):
    def stop(*args, **how):
        raise Interrupted("stopped")

    monkeypatch.setattr(module, "execute", stop)
    outcome = noisewise("sweep", "--config", "sweep.toml", "--out", "out")
    assert outcome.code == 130
    assert "0 of 2 done; nothing is lost. Go on with: noisewise sweep --config sweep.toml --out out" in outcome.words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sweep", "Missing option"),
        ("sweep --config nowhere.toml --out out", "cannot be read"),
        ("sweep --config sweep.toml --out sweep.toml", "is a file"),
        ("sweep --config sweep.toml --out out --jobs 0", "jobs=0"),
        ("sweep --config sweep.toml --out out --per-gpu 2", "--per-gpu 2 without --ray"),
        ("sweep --config sweep.toml --out out --ray ray://host:10001", "a client far from the cluster"),
        ("sweep --config bad.toml --out out", "unknown settings colour"),
    ],
)
def test_mistakes_are_said(noisewise, file, line, words):
    (file.parent / "bad.toml").write_text(FILE + "colour = [1]\n")
    outcome = noisewise(*line.split())
    assert outcome.code == 2
    assert words in outcome.words
    assert not (file.parent / "out").exists()
