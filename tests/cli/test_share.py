"""`noisewise report --shareable`: what is written, said and refused."""

import pytest
from huggingface_hub import ModelCard

from helpers import tiny
from helpers.remembered import remembered  # noqa: F401  accountants with a memory


@pytest.fixture
def run(tmp_path):
    tiny.run(
        out=tmp_path / "run", delta=1e-3, about={"task": "classification", "data": {"name": "people"}, "model": "mlp"}
    )
    return tmp_path / "run"


def test_three_files_and_what_is_left_out(noisewise, run):
    outcome = noisewise("report", "run", "--shareable", "--license", "mit")
    assert outcome.code == 0
    assert sorted(path.name for path in (run / "shareable").iterdir()) == ["PRIVACY.md", "README.md", "report.html"]
    for text in (
        "Page: run/shareable/report.html",
        "Left out:",
        "exact figures of held-out people",
        "--contact fills it",
    ):
        assert text in outcome.words
    assert ModelCard.load(run / "shareable" / "README.md").data.license == "mit"


def test_what_may_not_leave_is_refused_with_code_3(noisewise, tmp_path):
    tiny.run(out=tmp_path / "open", insecure_seed=1, about={"data": {"name": "people"}})
    outcome = noisewise("report", "open", "--shareable")
    assert outcome.code == 3
    assert "nothing to share: not-private" in outcome.words
    assert not (tmp_path / "open" / "shareable").exists()


@pytest.mark.parametrize(
    "line",
    [
        "report run --contact me",
        "report run --license mit",
        "report run --score-epsilon 1",
        "report nowhere --shareable",
        "report run --shareable --score-epsilon 0",
        "report run --shareable --out page.html",
        "report run --dry-run",
    ],
)
def test_mistakes_are_said(noisewise, run, line):
    assert noisewise(*line.split()).code == 2


def test_a_dry_run_says_what_a_score_would_be_and_buys_nothing(noisewise, tmp_path):
    quick = ("--data", "digits", "--model", "logistic", "--noise-multiplier", "4", "--steps", "3", "--batch-size", "64")
    assert noisewise("train", *quick, "--no-twin", "--out", "run").code == 0
    asked = ("report", "run", "--shareable", "--dry-run", "--score-epsilon")
    outcome = noisewise(*asked, "1")
    assert outcome.code == 0
    for text in ("A score would cost epsilon 1.00", "noise of standard deviation", "Nothing was written"):
        assert text in outcome.words
    drowned = noisewise(*asked, "0.01")
    assert drowned.code == 2
    assert "drown the score" in drowned.words
    assert not (tmp_path / "run" / "shareable").exists()
    assert not (tmp_path / "run" / "scores.json").exists()
    bought = noisewise("report", "run", "--shareable", "--score-epsilon", "1")
    assert bought.code == 0
    assert "of standard deviation" in bought.words
    verified = noisewise("verify", "run")
    assert "one score was bought" in verified.words
