"""`noisewise verify`: lines, JSON and exit codes."""

import json

import pytest

from helpers import tiny
from helpers.remembered import remembered  # noqa: F401  accountants with a memory
from noisewise.workflow import verification


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(verification, "TRIALS", 256)
    monkeypatch.setattr(
        verification.verified, "__kwdefaults__", {**verification.verified.__kwdefaults__, "trials": 256}
    )
    tiny.run(
        out=tmp_path / "run", delta=1e-3, about={"task": "classification", "data": {"name": "people", "classes": 3}}
    )
    return tmp_path / "run"


def test_each_check_is_a_line_and_all_that_can_be_checked_holds(noisewise, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    outcome = noisewise("verify", "run")
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= 80
    for name in set(verification.NAMES) - {"scores", "states"}:  # which are spoken of where there are some
        assert any(line.startswith(name) for line in outcome.out.splitlines())
    assert "All that can be checked holds. Not checked: mechanism, weights." in outcome.words


def test_what_fails_ends_with_code_3(noisewise, run):
    (run / "metrics.jsonl").write_text("")
    outcome = noisewise("verify", "run", "--json")
    content = json.loads(outcome.out)
    assert (outcome.code, content["holds"]) == (3, False)
    files = content["checks"][0]
    assert (files["name"], files["verdict"]) == ("files", "fails")
    assert "changed since the run ended: metrics.jsonl" in files["why"]
    assert "Does not hold: files." in noisewise("verify", "run").words


def test_what_is_no_run_is_a_mistake(noisewise):
    outcome = noisewise("verify", "nowhere")
    assert outcome.code == 2
    assert "no finished run" in outcome.words
