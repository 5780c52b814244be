"""suggest: what to do next with a run, on the terminal and as JSON."""

from __future__ import annotations

import json
import shlex

from helpers import tiny
from helpers.evidence import estimate, evidence
from noisewise.advice import advise, rules
from noisewise.runs.files import read_json
from noisewise.workflow import suggest as module

QUICK = ("--data", "digits", "--noise-multiplier", "4", "--steps", "3", "--batch-size", "64")
SURE = {"calibration": {"over-confidence": estimate(0.2)}, "clipping-bias": {"clipped": estimate(0.4)}}


def test_advice_is_printed_kept_and_can_be_followed(noisewise, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rules, "FEWEST", 1)  # the run is as short as tests are
    assert noisewise("train", *QUICK, "--quiet", "--out", "a").code == 0
    printed = noisewise("suggest", "a")
    assert printed.code == 0, printed.err
    for text in (
        "1. noise-bound (for accuracy)",
        "evidence",
        "expected gain",
        "for both together",
        "among the secrets",
    ):
        assert text in printed.words
    kept = read_json(tmp_path / "a/sensitive/suggestions.json")
    assert json.loads(noisewise("suggest", "a", "--json").out) == kept
    followed = noisewise(*shlex.split(kept[0]["command"])[1:], "--no-twin", "--quiet")
    assert followed.code == 0, followed.err
    spent = [
        float(read_json(tmp_path / folder / "summary.json")["privacy"]["epsilon"])
        for folder in ("a", "a-larger-batches")
    ]
    assert spent[1] <= spent[0] * 1.001


def test_it_fits_eighty_columns(noisewise, tmp_path, monkeypatch) -> None:
    tiny.run(out=tmp_path / "a", delta=1e-3)
    seen = evidence(headlines=SURE)
    monkeypatch.setattr(module, "suggest", lambda path, progress: (seen, advise(seen)))
    monkeypatch.setenv("COLUMNS", "80")
    printed = noisewise("suggest", "a")
    assert all(
        len(line) <= 80 or line.lstrip().startswith(("noisewise", "python")) for line in printed.out.splitlines()
    )
    assert "2. miscalibrated" in printed.words
    assert "noisewise temperature " in printed.words
    assert "python -c" not in printed.words


def test_a_run_that_nothing_is_wrong_with(noisewise, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "suggest", lambda path, progress: (evidence(unasked={"calibration": "no rows."}), []))
    tiny.run(out=tmp_path / "a", delta=1e-3)
    printed = noisewise("suggest", "a")
    assert "Nothing to suggest" in printed.words
    assert "Next: noisewise report a" in printed.words
    assert f"Next: noisewise plan --n {2 * tiny.N} --runs a" in printed.words
    assert "calibration could not be asked: no rows." in printed.words
    assert json.loads(noisewise("suggest", "a", "--json").out) == []


def test_a_regression_is_not_sent_to_a_command_that_refuses_it(noisewise, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "suggest", lambda path, progress: (evidence(), []))
    tiny.run(out=tmp_path / "a", delta=1e-3, about={"task": "regression"})
    printed = noisewise("suggest", "a")
    assert "Next: noisewise report a" in printed.words
    assert "noisewise plan" not in printed.words


def test_no_run_is_said(noisewise, tmp_path) -> None:
    refused = noisewise("suggest", "nowhere")
    assert refused.code == 2
    assert "nowhere is no run folder" in refused.words


def test_a_run_made_in_python_has_no_settings_that_a_command_could_change(noisewise) -> None:
    tiny.run(out="python", delta=1e-3)
    said = noisewise("suggest", "python")
    assert said.code == 2
    assert "was made in Python" in said.words
    assert "noisewise audit python --model FILE.py:NAME" in said.words
    assert "noisewise suggest" not in noisewise("report", "python", "--out", "page.html").words
