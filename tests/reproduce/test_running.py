"""Carrying out: once, resumable, partial results kept, several at a time."""

import json
from dataclasses import replace

import pytest

from helpers import toy_paper
from noisewise.errors import ConfigError, Interrupted, RunError
from noisewise.jobs import Local
from noisewise.reproduce.claims import VERDICTS
from noisewise.reproduce.papers import PAPERS
from noisewise.reproduce.running import COMMIT, commit, reproduce, result_path

QUIET = {"progress": False}


@pytest.fixture
def traced(toy, monkeypatch, tmp_path):
    """The toy experiment with other settings; it leaves a trace of every run."""
    trace = tmp_path / "trace"
    trace.mkdir()

    def made(**settings):
        config = replace(toy.tiers["standard"], trace=str(trace), **settings)
        paper = replace(toy_paper.PAPER, experiments=(replace(toy, tiers={"standard": config, "quick": config}),))
        monkeypatch.setitem(PAPERS, "toy", paper)
        return lambda: len(list(trace.iterdir()))

    return made


def test_a_stage_may_ask_for_more_when_it_has_seen_some(traced, tmp_path):
    traced(shifts=(0.5, 0.75, 1.0))
    (result,) = reproduce(["toy.coin"], tmp_path / "out", **QUIET)
    assert set(result.measured.tuning) == {f"shift {at}" for at in ("0.5", "0.75", "1", "1.33", "1.77", "2.36")}
    assert result.measured.column("chosen", "value").mean() == pytest.approx(1.77, abs=0.2)


def test_a_result_has_what_the_contract_asks_for(toy, tmp_path, monkeypatch):
    monkeypatch.setenv(COMMIT, "abc1234")
    (result,) = reproduce(["toy.coin"], tmp_path, **QUIET)
    raw = json.loads(result_path(tmp_path, "toy", "coin", "standard").read_text())
    assert raw["tier"] == "standard"
    assert raw["seeds"] == list(range(6))
    assert raw["commit"] == "abc1234"
    assert raw["command"] == "noisewise reproduce toy.coin --tier standard"
    assert raw["config"]["shifts"] == [1.0, 2.0, 3.0]
    assert raw["hardware"]
    assert raw["versions"]["noisewise"]
    assert {claim["claim"]: claim["verdict"] for claim in raw["claims"]} == {
        "C1": "reproduced",
        "C2": "not-reproduced",
        "C3": "reproduced",
        "C4": "not-comparable",
        "C5": "reproduced",
    }
    assert {claim["verdict"] for claim in raw["claims"]} <= set(VERDICTS)
    first = raw["claims"][0]
    assert first["published"] == "2"
    assert set(first["findings"][0]["ours"]) == {"value", "low", "high", "n", "level", "method"}
    assert raw["measured"]["arms"]["chosen"]["0"]["device"] == "cpu"
    assert set(raw["measured"]["tuning"]) == {"shift 1", "shift 2", "shift 3"}
    assert result_path(tmp_path, "toy", "coin", "standard").with_suffix(".png").stat().st_size > 1000
    assert result.command == raw["command"]
    assert len(set(result.measured.column("zero", "value"))) == 6  # each seed is a run of its own


def test_the_chosen_setting_is_used(toy, tmp_path):
    (result,) = reproduce(["toy.coin"], tmp_path, **QUIET)
    assert result.measured.mean(0.95, "chosen", "value").value == pytest.approx(2.0, abs=0.2)


def test_nothing_is_done_twice_and_more_seeds_add_only_those(traced, tmp_path):
    runs = traced()
    reproduce(["toy.coin"], tmp_path / "out", seeds=5, **QUIET)
    assert runs() == 3 + 2 * 5
    reproduce(["toy.coin"], tmp_path / "out", seeds=5, **QUIET)
    assert runs() == 13
    reproduce(["toy.coin"], tmp_path / "out", seeds=7, **QUIET)
    assert runs() == 17


def test_runs_of_several_machines_and_commits_are_told_apart(toy, tmp_path, monkeypatch):
    monkeypatch.setenv(COMMIT, "one")
    reproduce(["toy.coin"], tmp_path, seeds=5, **QUIET)
    before = next((tmp_path / "cells").glob("*.json"))
    before.write_text(
        json.dumps({key: value for key, value in json.loads(before.read_text()).items() if key != "note"})
    )
    monkeypatch.setenv(COMMIT, "two")
    reproduce(["toy.coin"], tmp_path, seeds=7, **QUIET)
    made = json.loads(result_path(tmp_path, "toy", "coin", "standard").read_text())["made"]
    assert {part.get("commit"): part["runs"] for part in made} == {"one": 12, "two": 4, None: 1}
    assert all(part["hardware"]["machine"] and part["versions"]["torch"] for part in made if "commit" in part)


def test_what_is_read_again_took_its_time_before(toy, tmp_path):
    reproduce(["toy.coin"], tmp_path, **QUIET)
    path = result_path(tmp_path, "toy", "coin", "standard")
    raw = json.loads(path.read_text())
    path.write_text(json.dumps({**raw, "seconds": 100.0}))
    reproduce(["toy.coin"], tmp_path, **QUIET)
    assert json.loads(path.read_text())["seconds"] >= 100
    path.write_text(json.dumps({**raw, "seconds": 100.0, "config": {**raw["config"], "shifts": [7.0]}}))
    reproduce(["toy.coin"], tmp_path, **QUIET)
    assert json.loads(path.read_text())["seconds"] < 100


def test_ctrl_c_loses_nothing_and_what_is_there_is_judged(traced, tmp_path):
    runs, told = traced(stop_at=3), []
    with pytest.raises(Interrupted, match="nothing is lost"):
        reproduce(["toy.coin"], tmp_path / "out", told=told.append, **QUIET)
    assert runs() == 3 + 2 * 3
    assert told[0].measured.seeds == [0, 1, 2]
    raw = json.loads(result_path(tmp_path / "out", "toy", "coin", "standard").read_text())
    assert raw["seeds"] == [0, 1, 2]
    verdicts = {claim["claim"]: claim["verdict"] for claim in raw["claims"]}
    assert verdicts["C1"] == "not-run"
    assert verdicts["C3"] == "reproduced"
    (partial,) = reproduce(["toy.coin"], tmp_path / "out", partial=True, **QUIET)
    assert partial.measured.seeds == [0, 1, 2]
    assert runs() == 9


def test_partial_needs_a_complete_seed(toy, tmp_path):
    with pytest.raises(RunError, match="no seed of tier standard is complete"):
        reproduce(["toy.coin"], tmp_path, partial=True, **QUIET)


def test_several_processes_give_the_same_result(toy, tmp_path):
    (one,) = reproduce(["toy.coin"], tmp_path / "one", tier="quick", **QUIET)
    (two,) = reproduce(["toy.coin"], tmp_path / "two", tier="quick", where=Local(2), **QUIET)
    assert one.measured.to_dict() == two.measured.to_dict()


def test_quick_gives_no_verdict_but_on_theory(toy, tmp_path):
    (result,) = reproduce(["toy.coin"], tmp_path, tier="quick", **QUIET)
    verdicts = {judged.claim.name: judged.verdict for judged in result.judged}
    assert verdicts == {"C1": "not-run", "C2": "not-run", "C3": "reproduced", "C4": "not-comparable", "C5": "not-run"}


@pytest.mark.parametrize(
    ("names", "more", "words"),
    [
        (["toy.moon"], {}, "experiment 'toy.moon': unknown"),
        (["toy.coin", "toy.coin"], {}, "named twice"),
        (["toy.coin"], {"device": "tpu"}, "must be 'cpu' or 'cuda'"),
        (["toy.coin"], {"seeds": 0}, "seeds=0"),
    ],
)
def test_mistakes_are_named_before_anything_runs(names, more, words, toy, tmp_path):
    with pytest.raises(ConfigError, match=words):
        reproduce(names, tmp_path / "out", **more, **QUIET)
    assert not (tmp_path / "out").exists()


def test_a_device_that_there_is_not_is_refused(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA device"):
        reproduce(["toy.coin"], tmp_path, device="cuda", **QUIET)


def test_the_commit_is_known_or_said_to_be_unknown(monkeypatch):
    monkeypatch.delenv(COMMIT, raising=False)
    monkeypatch.setenv("PATH", "")
    assert commit() == "unknown"
