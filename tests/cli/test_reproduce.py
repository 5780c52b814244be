"""`noisewise reproduce`: the list, a table with verdicts, mistakes, and what a program reads."""

import json

import pytest

from helpers import toy_paper
from helpers.command_line import command_line
from noisewise.jobs import Local, Ray
from noisewise.reproduce.papers import PAPERS


@pytest.fixture
def noisewise(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(PAPERS, "toy", toy_paper.PAPER)
    return command_line(monkeypatch, capsys, tmp_path, columns=80)


def test_the_list_names_every_experiment(noisewise):
    shown = noisewise("reproduce", "--list")
    assert shown.code == 0
    for name in ("xu2026.figure3", "bu2022.tables", "toy.coin", "C6 is not run: no moon"):
        assert name in shown.words
    assert max(map(len, shown.out.splitlines())) <= 80
    rows = json.loads(noisewise("reproduce", "--list", "--json").out)
    assert {row["name"]: row["claims"] for row in rows}["toy.coin"] == ["C1", "C2", "C3", "C4", "C5"]


def test_a_table_shows_paper_ours_and_verdict(noisewise, tmp_path):
    shown = noisewise("reproduce", "toy.coin", "--out", "here")
    assert shown.code == 0
    assert "toy.coin: A coin with a known mean" in shown.words
    assert "tier standard, 6 seeds" in shown.words
    assert "not reproduced" in shown.words
    assert "contradicted" in shown.words
    assert "another coin" in shown.words
    assert max(map(len, shown.out.splitlines())) <= 80
    assert (tmp_path / "here" / "toy" / "coin.standard.json").exists()


def test_json_is_the_result_file_and_nothing_else(noisewise, tmp_path):
    shown = noisewise("reproduce", "toy.coin", "--tier", "quick", "--seeds", "2", "--out", "here", "--json")
    (printed,) = json.loads(shown.out)
    written = json.loads((tmp_path / "here" / "toy" / "coin.quick.json").read_text())
    assert printed["claims"] == written["claims"]
    assert printed["seeds"] == [0, 1]
    assert shown.err == ""


def test_ctrl_c_says_how_to_go_on(noisewise, monkeypatch):
    stopping = toy_paper.Shift(stop_at=2)
    paper = toy_paper.replace_tiers(stopping)
    monkeypatch.setitem(PAPERS, "toy", paper)
    shown = noisewise("reproduce", "toy.coin", "--out", "here", "--quiet")
    assert shown.code == 130
    assert "The same command goes on; with --partial it judges what is there" in shown.words
    assert noisewise("reproduce", "toy.coin", "--out", "here", "--partial").code == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["reproduce"], "no experiment is named"),
        (["reproduce", "xu2026.figure9"], "experiment 'xu2026.figure9': unknown"),
        (["reproduce", "toy.coin", "--device", "tpu"], "must be 'cpu' or 'cuda'"),
        (["reproduce", "toy.coin", "--seeds", "2000"], "seeds=2000"),
    ],
)
def test_mistakes_are_named(line, words, noisewise):
    shown = noisewise(*line)
    assert shown.code == 2
    assert words in shown.words


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], {}),
        (["--tier", "full"], {"tier": "full"}),
        (["--seeds", "7"], {"seeds": 7}),
        (["--device", "cuda"], {"device": "cuda"}),
        (["--jobs", "3"], {"where": Local(3)}),
        (["--ray", "local"], {"where": Ray("local")}),
        (["--ray", "auto", "--jobs", "4", "--per-gpu", "2"], {"where": Ray("auto", 4, 2)}),
        (["--out", "there"], {"out": "there"}),
        (["--partial"], {"partial": True}),
        (["--quiet"], {"progress": False, "told": False}),
    ],
)
def test_every_option_reaches_the_library(given, expected, noisewise, monkeypatch):
    asked = {}

    def carry_out(names, out, *, told, **settings):
        asked.update(names=names, out=str(out), told=told is not None, **settings)
        return []

    monkeypatch.setattr("noisewise.reproduce.running.reproduce", carry_out)
    assert noisewise("reproduce", "toy.coin", *given).code == 0
    usual = {
        "names": ["toy.coin"],
        "out": "reproductions",
        "told": True,
        "tier": "standard",
        "seeds": None,
        "device": None,
    }
    assert asked == {**usual, "where": Local(), "partial": False, "progress": True, **expected}
