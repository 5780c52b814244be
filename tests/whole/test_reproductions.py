"""docs/reproductions.md: no verdict without a committed result, and none that its numbers do not give."""

import importlib.util
import re
from pathlib import Path

import pytest

from noisewise.reproduce.claims import judge
from noisewise.reproduce.experiment import config_from
from noisewise.reproduce.measured import Measured
from noisewise.reproduce.papers import PAPERS, find
from noisewise.reproduce.running import reproduce
from noisewise.runs.files import finite, read_json

PROJECT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("reproductions_benchmark", PROJECT / "benchmarks" / "reproductions.py")
PAGES = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(PAGES)
FILES = sorted(path for name in PAPERS for path in (PAGES.RESULTS / name).glob("*.json"))
ROW = re.compile(
    r"^\| \*?(?P<claim>[^|*]+?)\*?( \(control\))? \|.*\| \*\*(?P<verdict>[a-z ]+)\*\*( \((?P<tier>\w+)(; [^)]*)?\))?: "
)


def test_there_are_results():
    assert len(FILES) >= 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_verdicts_are_those_of_the_measured_numbers(path):
    """Claims are judged again on what the runs measured: a verdict or an interval that was edited, or is old, is seen."""
    raw = read_json(path)
    paper, experiment = find(f"{raw['paper']}.{raw['experiment']}")
    assert path.name == f"{experiment.name}.{raw['tier']}.json"
    assert raw["tier"] in PAGES.TIERS
    config = config_from(type(experiment.tiers[raw["tier"]]), raw["config"])
    measured = Measured.from_dict(raw["measured"])
    assert measured.seeds == raw["seeds"]
    again = [finite(judged.to_dict()) for judged in judge(experiment.claims, config, measured)]
    assert [entry["claim"] for entry in raw["claims"]] == [entry["claim"] for entry in again]
    for old, new in zip(raw["claims"], again, strict=True):
        assert (old["verdict"], old["says"], old["published"]) == (new["verdict"], new["says"], new["published"])
        for was, now in zip(old["findings"], new["findings"], strict=True):
            for end in ("value", "low", "high"):
                assert float(was["ours"][end]) == pytest.approx(float(now["ours"][end]), rel=1e-6, abs=1e-9)
    assert raw["commit"] != "unknown"
    assert path.with_suffix(".png").exists()
    assert paper.name == path.parent.name


def test_the_page_is_what_the_results_say():
    """`python benchmarks/reproductions.py page` writes it."""
    assert PAGES.PAGE.read_text() == PAGES.page()


def rows_of_page(text):
    """(experiment, claim, verdict, tier) of every row."""
    rows, name = [], ""
    for line in text.splitlines():
        if match := re.match(r"`(\w+\.\w+)`, ", line):
            name = match[1]
        elif match := ROW.match(line):
            rows.append((name, match["claim"], as_judged(match["verdict"].replace(" ", "-")), match["tier"]))
    return rows


def as_judged(words):
    """The verdict behind the words; questions of our own are answered."""
    return {"yes": "reproduced", "not-shown": "not-reproduced"}.get(words, words)


def test_no_verdict_stands_there_without_a_committed_result():
    rows = rows_of_page(PAGES.PAGE.read_text())
    assert len(rows) == sum(len(e.claims) for paper in PAPERS.values() for e in paper.experiments)
    for name, claim, verdict, tier in rows:
        if verdict == "not-run" and tier is None:
            continue
        paper, _, experiment = name.partition(".")
        raw = read_json(PAGES.RESULTS / paper / f"{experiment}.{tier}.json")
        assert {entry["claim"]: entry["verdict"] for entry in raw["claims"]}[claim] == verdict


def test_what_another_tier_says_stands_beside_where_it_differs():
    """Of all claims with a verdict in both tiers: the smaller one's is told if and only if it is another."""
    both = differing = 0
    for paper in PAPERS.values():
        for experiment in paper.experiments:
            results = PAGES.committed(paper.name, experiment.name)
            if set(results) != {"full", "standard"}:
                continue
            full, small = (
                {entry["claim"]: entry for entry in results[tier]["claims"]} for tier in ("full", "standard")
            )
            for row in PAGES.rows_of(paper, experiment):
                if {full[row.name]["verdict"], small[row.name]["verdict"]} & {"not-run"}:
                    continue
                words = [PAGES.in_words(each[row.name]) for each in (full, small)]
                both, differing = both + 1, differing + (words[0] != words[1])
                assert row.otherwise == ("" if words[0] == words[1] else f"standard: {words[1]}")
    assert both > differing > 5


def test_a_verdict_that_somebody_wrote_by_hand_would_be_seen():
    line = "| X4.a | says | 97 | – | **reproduced** (full): all 4 findings hold |"
    assert rows_of_page(f"`xu2026.padding`, table.\n{line}") == [("xu2026.padding", "X4.a", "reproduced", "full")]


def test_counts_at_the_top_are_those_of_the_rows():
    text = PAGES.PAGE.read_text()
    total = re.search(r"\| \*\*together\*\* \| (.*) \|", text)[1].split(" | ")
    papers = [paper for paper in PAPERS.values() if not paper.ours]
    controls = {claim.name for paper in papers for e in paper.experiments for claim in e.claims if claim.control}
    rows = [row for row in rows_of_page(text) if not PAPERS[row[0].partition(".")[0]].ours]
    verdicts = [verdict for _, claim, verdict, _ in rows if claim not in controls]
    verdicts += ["not-run"] * sum(len(paper.unrun) for paper in papers)
    reproduced, wrong = verdicts.count("reproduced"), verdicts.count("not-reproduced")
    rest = [verdicts.count("not-comparable"), verdicts.count("not-run")]
    assert [int(n) for n in total] == [len(verdicts), reproduced + wrong, reproduced, wrong, *rest, len(controls)]


def finding(value, low, high):
    ours = {"value": value, "low": low, "high": high, "n": 5, "level": 0.95, "method": "Student t"}
    return {"what": "gap", "ours": ours, "side": "above", "low": 0.0, "high": None}


def test_a_rerun_within_the_interval_agrees_and_one_outside_is_named():
    def result(value):
        return {"claims": [{"claim": "A", "findings": [finding(value, 0.5, 1.5)]}]}

    assert PAGES.differences(result(1.0), result(1.4)) == []
    assert PAGES.differences(result(1.0), result(1.6)) == ["A: gap was 1.00, is 1.60"]


def test_small_results_can_be_run_again():
    for name, tier in PAGES.small():
        raw = read_json(PAGES.RESULTS / name.partition(".")[0] / f"{name.partition('.')[2]}.{tier}.json")
        assert raw["seconds"] <= PAGES.SMALL
    assert len(PAGES.small()) >= 2


def test_runs_are_kept_until_a_result_has_them(tmp_path, monkeypatch):
    """An experiment that was stopped goes on elsewhere from what is committed; when it is done nothing is kept twice."""
    monkeypatch.setattr(PAGES, "UNFINISHED", tmp_path / "unfinished.jsonl")
    monkeypatch.setattr(PAGES, "RESULTS", tmp_path / "no results")
    (result,) = reproduce(["zhu2023.theory"], tmp_path / "here", tier="quick", progress=False)
    runs = {path.stem: read_json(path) for path in (tmp_path / "here" / "cells").glob("*.json")}
    assert PAGES.keep(tmp_path / "here") == len(runs) > 0
    assert PAGES.keep(tmp_path / "nowhere") == len(runs) == PAGES.bring(tmp_path / "there")
    assert {path.stem: read_json(path) for path in (tmp_path / "there" / "cells").glob("*.json")} == runs
    (again,) = reproduce(["zhu2023.theory"], tmp_path / "there", tier="quick", partial=True, progress=False)
    assert finite(again.measured.to_dict()) == finite(result.measured.to_dict())

    monkeypatch.setattr(PAGES, "RESULTS", tmp_path / "there")
    monkeypatch.setattr(PAGES, "TIERS", ("quick",))
    written = {key: {**run, "threads": runs[key]["threads"]} for key, run in PAGES.used().items()}
    assert written == runs
    assert PAGES.keep(tmp_path / "there") == 0
    assert PAGES.bring(tmp_path / "anew") == len(runs)
    (anew,) = reproduce(["zhu2023.theory"], tmp_path / "anew", tier="quick", partial=True, progress=False)
    assert anew.made == result.made


def test_no_kept_run_is_part_of_a_result():
    assert not PAGES.unfinished().keys() & PAGES.used().keys()
