"""`train --seeds`: what each run promises, what they cost together, and how to go on."""

from pathlib import Path

from noisewise.errors import Interrupted
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
