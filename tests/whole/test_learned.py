"""docs/what_we_learned.md and docs/questions.md: sentences that committed results choose, numbers that they hold."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from noisewise.estimates.estimate import Estimate
from noisewise.reproduce.claims import above, exact
from noisewise.reproduce.papers import PAPERS, find

SPEC = importlib.util.spec_from_file_location(
    "learned_benchmark", Path(__file__).parents[2] / "benchmarks" / "learned.py"
)
LEARNED = importlib.util.module_from_spec(SPEC)
sys.modules["learned_benchmark"] = LEARNED
SPEC.loader.exec_module(LEARNED)
STATEMENT = LEARNED.Statement("zhu2023.table2/Z3.fmnist.gain1", "gains {0:points}", "loses {0:points}", "open: {0}")


def row(verdict, reason="", value=0.0123, tier="full"):
    ours = Estimate(value, value - 0.005, value + 0.005, 5, 0.95, "Student t")
    return SimpleNamespace(
        name="Z3.fmnist.gain1",
        says="it gains",
        verdict=verdict,
        reason=reason,
        tier=tier,
        findings=[above("gain", ours)],
    )


def test_the_page_is_what_the_results_say():
    """`python benchmarks/learned.py` writes it."""
    assert LEARNED.PAGE.read_text() == LEARNED.page()
    assert LEARNED.ANSWERED.read_text() == LEARNED.answers()


@pytest.mark.parametrize("needed", [needed for _, needed in LEARNED.BRIEF], ids=lambda needed: next(iter(needed)))
def test_brief_sentences_rest_on_statements_of_the_pages(needed):
    assert set(needed) <= {statement.claim for statement in LEARNED.EVERY}
    assert set(needed.values()) <= {"yes", "no"}


def test_a_brief_sentence_goes_with_its_verdict(monkeypatch):
    first = f"- {LEARNED.BRIEF[0][0]}"
    assert first in LEARNED.brief()
    monkeypatch.setattr(LEARNED, "outcome", lambda row, full=False: "open")
    assert LEARNED.brief() == []


@pytest.mark.parametrize("statement", LEARNED.EVERY, ids=lambda statement: statement.claim)
def test_statements_are_about_claims_that_there_are(statement):
    _, experiment = find(statement.experiment)
    assert statement.claim.partition("/")[2] in {claim.name for claim in experiment.claims}
    assert statement.yes
    assert statement.no


def test_no_statement_is_made_without_a_committed_verdict():
    text = LEARNED.ANSWERED.read_text() + LEARNED.PAGE.read_text()
    stated, _, waiting = text.partition("## Not yet judged")
    for statement in LEARNED.EVERY:
        claim = LEARNED.row_of(statement.claim)
        path = LEARNED.RESULTS.RESULTS / statement.experiment.replace(".", "/")
        committed = list(path.parent.glob(f"{path.name}.*.json"))
        assert (f"[{claim.name}](" in stated) == bool(LEARNED.outcome(claim, statement.full))
        if not committed:
            assert f"[{claim.name}](" not in stated
            assert claim.name in waiting


def test_what_small_sizes_cannot_say_waits_for_the_full_one():
    (statement,) = [one for one in LEARNED.EVERY if one.claim == "zhu2023.table2_hcnn_cifar/Z3.hcnn.cifar.gain1"]
    row = LEARNED.row_of(statement.claim)
    assert statement.full
    assert LEARNED.outcome(row._replace(tier="standard", verdict="reproduced"), True) == ""
    assert LEARNED.outcome(row._replace(tier="standard", verdict="reproduced")) == "yes"
    assert LEARNED.outcome(row._replace(tier="full", verdict="reproduced"), True) == "yes"


def test_every_question_has_a_figure_and_at_most_five_lines():
    asked = [experiment.name for experiment in PAPERS["questions"].experiments]
    assert len(asked) == len(LEARNED.QUESTIONS) == 8
    for name, (_, statements) in zip(asked, LEARNED.QUESTIONS, strict=True):
        assert f"questions.{name}" in {statement.experiment for statement in statements}
        assert 1 <= len(statements) <= 5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (row("reproduced"), "gains +1.2 points (+0.7 to +1.7)"),
        (row("not-reproduced", "contradicted: gain", -0.0123), "loses −1.2 points (−1.7 to −0.7)"),
        (row("not-reproduced", "undecided: gain", 0.004), "open: 0.004 (−0.001 to 0.009)"),
    ],
)
def test_the_verdict_chooses_the_sentence(given, words):
    told = LEARNED.sentence(STATEMENT, given)
    assert told.startswith(words)
    assert told.endswith("zhu2023/table2.full.png))")


def test_small_sizes_are_said_and_exact_numbers_have_no_interval():
    assert LEARNED.sentence(STATEMENT, row("reproduced", tier="standard")).endswith("small sizes)")
    assert f"{LEARNED.Shown(exact(0.25)):points}" == "+25.0 points"
    assert f"{LEARNED.Shown(exact(-0.25)):size}" == "0.25"
    assert f"{LEARNED.Shown(exact(0.25))}" == "0.25"
    assert LEARNED.outcome(row("not-run")) == LEARNED.outcome(row("not-comparable")) == ""
