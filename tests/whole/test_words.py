"""Words follow the number in a run's files, in the terminal, on the page and in the documents."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from helpers import tiny
from noisewise import cli, report
from noisewise.errors import RunError
from noisewise.runs.files import read_json, write_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.summary import read_summary
from noisewise.wording import (
    PUBLISHABLE,
    STRENGTHS,
    promise,
    promised,
)

PROJECT = Path(__file__).parents[2]


def test_no_text_of_the_product_judges_without_the_number() -> None:
    files = [
        *(PROJECT / "src").rglob("*.py"), *(PROJECT / "src").rglob("*.html"), *PROJECT.glob("*.md"),
        *(PROJECT / "docs").glob("*.md"),
    ]  # fmt: skip
    for path in files:
        assert not re.search(r"(?i)almost\s+the\s+same|can\s+hardly\s+tell", path.read_text()), path


def test_no_promised_bound_is_rounded_to_the_nearest() -> None:
    """They are written by `at_most`; what a user gave is no bound of ours."""
    nearest = re.compile(r"\bnumber\([^)]*\b(\w*epsilon|claimed|delta|together|total)\b(?!\.)")
    given = "number(config.epsilon)"
    for path in (PROJECT / "src").rglob("*.py"):
        assert [line for line in path.read_text().splitlines() if nearest.search(line.replace(given, ""))] == [], path


def test_the_table_of_the_readme_is_what_is_said() -> None:
    rows = re.findall(r"^\| ([\d.]+) \| (.*) \| (.*) \| (.*) \|$", (PROJECT / "README.md").read_text(), re.MULTILINE)
    assert {row[1] for row in rows} == set(STRENGTHS)
    for epsilon, *shown in rows:
        words = promise(float(epsilon), 1e-5, 60_000)
        assert shown == [words.strength, words.badge, words.guess]


# --- summary.json
@pytest.fixture(scope="module")
def weak(tmp_path_factory) -> RunFolder:
    """A finished run with epsilon above 10."""
    folder = tmp_path_factory.mktemp("weak") / "run"
    tiny.run(plan=tiny.mechanism(noise_multiplier=0.4), out=folder, delta=1e-3)
    return RunFolder(folder)


def test_a_summary_says_how_strong_beside_its_status(weak: RunFolder) -> None:
    privacy = read_summary(weak)["privacy"]
    assert privacy["epsilon"] > 10
    assert (privacy["status"], privacy["strength"]) == ("private", "weak")
    assert promised(read_summary(weak)) == promise(privacy["epsilon"], 1e-3, tiny.N)


@pytest.mark.parametrize("written", ["strong", "reasonable", "none", "", None, 3])
def test_a_strength_that_the_numbers_contradict_is_refused(weak: RunFolder, tmp_path, written) -> None:
    folder = copied(weak, tmp_path)
    summary = read_json(weak.summary)
    write_json(folder.summary, summary | {"privacy": summary["privacy"] | {"strength": written}})
    with pytest.raises(RunError, match=r"strength is .*'weak'"):
        read_summary(folder)


def test_a_summary_of_an_earlier_version_has_no_strength(weak: RunFolder, tmp_path) -> None:
    folder = copied(weak, tmp_path)
    summary = read_json(weak.summary)
    del summary["privacy"]["strength"]
    write_json(folder.summary, summary)
    assert promised(read_summary(folder)).badge == "private, weakly"


def copied(folder: RunFolder, tmp_path: Path) -> RunFolder:
    """The files that are read together, to be changed."""
    copy = RunFolder(tmp_path / "copy")
    copy.create()
    for path in (folder.run, folder.ledger, folder.summary):
        (copy.path / path.name).write_bytes(path.read_bytes())
    return copy


# --- terminal and page, on real runs
RUNS = {
    "0.5": ("strong", "private", "at most 62.3 % of the time"),
    "3": ("reasonable", "private", "at most 95.3 % of the time"),
    "20": ("weak", "private, weakly", "at most 99.9999998 % of the time"),
    "1e6": ("none", "no guarantee", "every time"),
    "delta": ("none", "no guarantee", "at most 75.0 % of the time"),
}


@pytest.mark.parametrize("name", RUNS)
def test_terminal_and_page_follow_the_number(name: str, monkeypatch, capsys, tmp_path) -> None:
    word, mark, guess = RUNS[name]
    budget = ["--epsilon", "0.5", "--delta", "0.5"] if name == "delta" else ["--epsilon", name]
    quick = ["--data", "digits", "--model", "logistic", "--steps", "2", "--batch-size", "64", "--no-twin"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    shown = ""
    for arguments in (["train", *quick, *budget, "--out", "a"], ["audit", "a", "--only", "disparity"]):
        monkeypatch.setattr(sys, "argv", ["noisewise", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert not stopped.value.code
        shown += capsys.readouterr().out
    shown = " ".join(shown.split())
    page = " ".join(re.sub(r"<[^>]*>", " ", report.render("a").partition("</style>")[2]).split())
    good, privacy = word in PUBLISHABLE, read_json(tmp_path / "a/summary.json")["privacy"]
    assert (privacy["status"], privacy["strength"]) == ("private", word)
    why = "every release is in the ledger" if good else "although every release is in the ledger"
    assert f"status {mark}: {why}" in shown
    assert f"status: {mark} ({why})" in shown
    assert f"strength {word}" in shown
    assert f"{mark} {why[0].upper()}{why[1:]}" in page
    assert f"Status of these figures: {mark}, {why}" in page
    assert ("may be published" in shown) == good
    for text in (shown, page):
        assert f"can be right {guess}" in text
        assert promised(read_summary(RunFolder("a"))).meaning in text
        if not good:
            assert not re.search(r"(?i)may be published|almost the same|strong\b|reasonable guarantee", text)
            assert not re.search(r"\bprivate(?=[:.(]| Every| \(every)", text)
    assert ("trained with differential privacy" in page) == good
    assert ("trained with weak differential privacy" in page) == (word == "weak")
    assert ("without a privacy guarantee" in page) == (word == "none")
    assert ("o not publish the model" in page) != good


def test_a_reproducible_run_has_no_strength(tmp_path) -> None:
    """As summary.json is written, before anybody checks it."""
    tiny.run(out=tmp_path, insecure_seed=1, delta=1e-3)
    privacy = read_json(tmp_path / "summary.json")["privacy"]
    assert (privacy["status"], privacy["strength"], privacy["epsilon"]) == ("not-private", "none", "inf")
