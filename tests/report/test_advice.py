"""What to do next."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from noisewise.errors import RunError
from noisewise.report.advice import Step, next_steps
from noisewise.runs.folder import RunFolder
from noisewise.wording import promise

GOOD, WEAK = promise(3.0, 1e-5, 1000), promise(20.0, 1e-5, 1000)
TWIN, ALONE = SimpleNamespace(has_twin=True), SimpleNamespace(has_twin=False)
ADVICE = {
    "advice": "Clip less.",
    "evidence": "98 % are clipped.",
    "command": "noisewise train --bound 4",
    "gain": "+1 point",
    "aim": "x",
}


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.create()
    return folder


def commands(steps: list[Step]) -> list[str]:
    return [step.command for step in steps]


def test_without_audits_the_next_step_is_to_measure(folder):
    assert commands(next_steps(folder, [], GOOD)) == ["noisewise audit DIR"]


def test_without_suggestions_their_command_is_named(folder):
    assert commands(next_steps(folder, [TWIN], GOOD)) == ["noisewise suggest DIR"]
    (first, last) = next_steps(folder, [ALONE], GOOD)
    assert "twin" in first.advice
    assert last.command == "noisewise suggest DIR"


def test_a_twin_that_is_newer_than_the_audits_costs_no_other_run(folder):
    folder.twin_weights.touch()
    for results in ([ALONE], [TWIN, ALONE]):
        first = next_steps(folder, results, GOOD)[0]
        assert first.command == "noisewise audit DIR"
        assert "the twin is newer" in first.advice
        assert "costs no privacy" in first.evidence
    assert commands(next_steps(folder, [TWIN, SimpleNamespace()], GOOD)) == ["noisewise suggest DIR"]


def test_a_twin_that_is_missing_is_trained_on_the_same_run(folder):
    assert next_steps(folder, [ALONE], GOOD)[0].command == ""  # a run of Python, which only Python can train
    folder.config.write_text("format = 1\n")
    first = next_steps(folder, [ALONE], GOOD)[0]
    assert first.command == "noisewise train --resume --twin --out DIR"
    assert "no more privacy is spent" in first.evidence


@pytest.mark.parametrize("content", [[ADVICE], {"format": 1, "suggestions": [ADVICE]}])
def test_suggestions_of_the_file_are_shown_in_its_place(folder, content):
    folder.suggestions.write_text(json.dumps(content))
    wanted = Step("Clip less.", "98 % are clipped.", "noisewise train --bound 4", "+1 point")
    assert next_steps(folder, [TWIN], GOOD) == [wanted]
    (nothing,) = next_steps(folder, [TWIN], GOOD, suggested=[])
    assert (nothing.advice, nothing.command) == ("Nothing to repair was found.", "")


def test_a_weak_guarantee_comes_first(folder):
    first = next_steps(folder, [TWIN], WEAK)[0]
    assert first.advice == "Do not publish this model."
    assert "epsilon is above 10" in first.evidence


@pytest.mark.parametrize(
    "content", ["3", '{"suggestions": 3}', '[{"advice": "x"}]', "[3]", '[{"advice": 1, "evidence": "", "command": ""}]']
)
def test_damaged_suggestions_are_refused(folder, content):
    folder.suggestions.write_text(content)
    with pytest.raises(RunError, match="noisewise suggest DIR"):
        next_steps(folder, [TWIN], GOOD)
