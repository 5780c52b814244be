"""Verdicts: what an interval says of a claim, and how several claims are corrected together."""

import numpy as np
import pytest

from noisewise.errors import ConfigError
from noisewise.estimates.estimate import Estimate
from noisewise.reproduce.claims import Claim, Finding, above, below, exact, judge, more, within
from noisewise.reproduce.measured import Measured


def interval(low, high):
    return Estimate((low + high) / 2, low, high, 5, 0.95, "Student t")


@pytest.mark.parametrize(
    ("finding", "holds", "contradicted"),
    [
        (above("x", interval(1, 2), 0), True, False),
        (above("x", interval(-1, 2), 0), False, False),
        (above("x", interval(-2, -1), 0), False, True),
        (below("x", interval(-2, -1), 0), True, False),
        (below("x", interval(-1, 2), 0), False, False),
        (below("x", interval(1, 2), 0), False, True),
        (within("x", interval(1, 2), 0, 3), True, False),
        (within("x", interval(1, 4), 0, 3), False, False),
        (within("x", interval(4, 5), 0, 3), False, True),
        (within("x", interval(-2, -1), 0, 3), False, True),
        (above("x", exact(0.0), 0), False, False),
    ],
)
def test_an_interval_holds_contradicts_or_leaves_open(finding, holds, contradicted):
    assert (finding.holds, finding.contradicted) == (holds, contradicted)
    assert finding.to_dict()["holds"] is holds


def test_a_finding_has_ends_that_go_with_its_side():
    with pytest.raises(ConfigError, match="'above' with ends 0 and 1"):
        Finding("x", exact(1.0), "above", 0, 1)
    with pytest.raises(ConfigError, match="within"):
        Finding("x", exact(1.0), "within", 0)


def measured_of(values):
    return Measured({"a": {seed: {"value": value} for seed, value in enumerate(values)}}, {})


def positive(config, measured, level):
    return [above("a", measured.mean(level, "a", "value"))]


def verdict(values, claims=None, **more):
    claims = [Claim("P", "positive", "", positive)] if claims is None else claims
    return [
        (judged.verdict, judged.reason.partition(":")[0]) for judged in judge(claims, None, measured_of(values), **more)
    ]


def test_verdicts_and_their_reasons():
    assert verdict([1.0, 1.1, 0.9, 1.0, 1.05]) == [("reproduced", "its finding holds")]
    assert verdict([-1.0, -1.1, -0.9, -1.0, -1.05]) == [("not-reproduced", "contradicted")]
    assert verdict([1.0, -1.1, 0.9, -1.0, 0.2]) == [("not-reproduced", "undecided")]
    assert verdict([1.0, 1.1, 0.9, 1.0]) == [("not-run", "4 of at least 5 seeds are complete")]
    assert verdict([1.0, 1.1, 0.9, 1.0, 1.05], smoke=True) == [("not-run", "the quick tier only shows that it runs")]


def test_what_theory_fixes_needs_no_seeds_and_what_cannot_be_compared_has_no_verdict():
    fixed = Claim("T", "", "", lambda config, measured, level: [above("two", exact(2.0), 1)], theory=True)
    other = Claim("N", "", "", positive, incomparable="another thing")
    absent = Claim("A", "", "", lambda config, measured, level: [])
    found = verdict([1.0], [fixed, other, absent], smoke=True)
    assert found == [
        ("reproduced", "its finding holds"),
        ("not-comparable", "another thing"),
        ("not-run", "this tier leaves its runs out"),
    ]


@pytest.mark.parametrize(("needed", "found"), [(0.5, "reproduced"), (1.5, "not-comparable")])
def test_a_claim_whose_runs_cannot_show_it_is_not_judged(needed, found):
    def learns(config, measured, level):
        return [above("gain", measured.mean(level, "a", "value"), needed)]

    claim = Claim("P", "positive", "", positive, needs=learns)
    (judged,) = judge([claim], None, measured_of([1.0, 1.1, 0.9, 1.0, 1.05]))
    assert judged.verdict == found
    assert found == "reproduced" or "these runs cannot show it: gain 1.01" in judged.reason
    assert judge([claim], None, measured_of([1.0] * 4))[0].verdict == "not-run"


def test_more_claims_have_wider_intervals():
    """Bonferroni: with k claims the level is 1 - 0.05 / k."""
    levels = []

    def noted(config, measured, level):
        levels.append(level)
        return positive(config, measured, level)

    judge([Claim(str(k), "", "", noted) for k in range(10)], None, measured_of([1.0] * 5))
    assert levels == pytest.approx([0.995] * 20)


def test_one_of_several_findings_is_called_wrong_at_a_stricter_level():
    asked = []

    def both(config, measured, level):
        asked.append(level)
        return [above("a", measured.mean(level, "a", "value")), above("a", measured.mean(level, "a", "value"))]

    judge([Claim("B", "", "", both)], None, measured_of([1.0, 1.1, 0.9, 1.0, 1.05]))
    assert asked == pytest.approx([0.95, 0.975])


@pytest.mark.parametrize("claims", [1, 8])
def test_wrong_verdicts_are_as_rare_as_promised(claims):
    """Means that are 0: any claim that they are positive is reproduced in at most 2.5 % of the experiments in all.

    400 experiments of 5 seeds; Clopper-Pearson: more than 20 of 400 has probability below 0.003 at 2.5 %.
    """
    draw = np.random.default_rng(0)
    wrong = 0
    for _ in range(400):
        values = draw.normal(size=(5, claims))
        arms = {f"{k}": {seed: {"value": values[seed, k]} for seed in range(5)} for k in range(claims)}
        checks = [
            Claim(
                str(k), "", "", lambda config, measured, level, k=k: [above("", measured.mean(level, f"{k}", "value"))]
            )
            for k in range(claims)
        ]
        wrong += any(judged.verdict == "reproduced" for judged in judge(checks, None, Measured(arms, {})))
    assert wrong <= 20


def test_more_is_the_paired_difference_of_two_arms():
    runs = {
        "a": {s: {"accuracy": 0.5 + s / 100, "ece": 0.2} for s in range(5)},
        "b": {s: {"accuracy": 0.4, "ece": 0.1} for s in range(5)},
    }
    measured = Measured(runs, {})
    (finding,) = more("a", "b")(None, measured, 0.95)
    assert finding.what == "accuracy, a - b"
    assert finding.ours == measured.difference(0.95, "a", "b", "accuracy")
    assert finding.holds
    (other,) = more("b", "a", "ece", words="ECE")(None, measured, 0.95)
    assert other.words.startswith("ECE, b - a −0.1")
    assert other.contradicted
