"""`noisewise budget` on the terminal and as JSON."""

import json

import pytest

from helpers import tiny


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


def test_json_is_what_the_table_says(noisewise, runs):
    content = json.loads(noisewise("budget", "runs", "--json").out)
    by_name = {group["data"]: group for group in content["groups"]}
    total, each = by_name["people"]["epsilon"], [run["epsilon"] for run in by_name["people"]["runs"]]
    assert max(each) < total < sum(each)
    assert content["unfinished"] == []
    together = json.loads(noisewise("budget", "runs", "--json", "--same-people", "--delta", "1e-5").out)
    assert [len(group["runs"]) for group in together["groups"]] == [3]
    assert together["groups"][0]["delta"] == 1e-5


def test_mistakes_are_said(noisewise, runs):
    for line, words in {
        "budget nowhere": "no folder",
        "budget": "Missing argument",
        "budget runs --delta 2": "delta=2",
    }.items():
        outcome = noisewise(*line.split())
        assert outcome.code == 2
        assert words in outcome.words
