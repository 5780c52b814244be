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
    ],
)
def test_mistakes_are_said(noisewise, run, line):
    assert noisewise(*line.split()).code == 2
