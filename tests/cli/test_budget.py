"""`noisewise budget` on the terminal and as JSON."""

import pytest

from helpers import tiny
from helpers.remembered import remembered  # noqa: F401  accountants with a memory


@pytest.fixture
def runs(tmp_path):
    for name, data in (("a", "people"), ("b", "people"), ("c", "others")):
        about = {"task": "classification", "data": {"name": data}}
        tiny.run(out=tmp_path / "runs" / name, delta=1e-3, about=about)
    return tmp_path / "runs"


def test_each_run_and_the_total_are_shown_within_eighty_columns(noisewise, runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    outcome = noisewise("budget", "runs")
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= 80
    for text in ("people: 2 runs", "others: 1 run", "together", "runs/a", "strong", "--same-people"):
        assert text in outcome.words


def test_mistakes_are_said(noisewise, tmp_path):
    (tmp_path / "runs").mkdir()
    for line, words in {
        "budget nowhere": "no folder",
        "budget": "Missing argument",
        "budget runs --delta 2": "delta=2",
    }.items():
        outcome = noisewise(*line.split())
        assert outcome.code == 2
        assert words in outcome.words
