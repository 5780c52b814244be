"""Each diagnosis is made where its evidence is, and not where it is not."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from helpers.evidence import estimate, evidence, with_shares
from noisewise.advice.evidence import Evidence
from noisewise.advice.rules import RULES, advise
from noisewise.workflow.repair_specs import parse

SURE = {"calibration": {"over-confidence": estimate(0.2)}, "clipping-bias": {"clipped": estimate(0.4)}}
NOISY = evidence(settings={"batch_size": 50, "steps": 1000})
FEW = evidence(coordinates=10_000_000, settings={"model": "cnn"})
CLIPPED = evidence(headlines=SURE)
BEHIND = with_shares(evidence(), difference=estimate(0.05))


def diagnoses(seen: Evidence) -> list[str]:
    return [advice.diagnosis for advice in advise(seen)]


def paying(size: int, cost: float) -> Evidence:
    """Class a has so many people and pays so much."""
    seen = with_shares(evidence(class_sizes={"a": size, "b": 2000 - size}), difference=estimate(-0.05))
    disparity = seen.results["disparity"]
    extremes = disparity.extremes()
    assert extremes.cost is not None
    most = replace(extremes, cost=replace(extremes.cost, name="a", largest=estimate(cost)))
    values = replace(disparity.values, extremes={**disparity.values.extremes, "class": most})
    return replace(seen, results={**seen.results, "disparity": replace(disparity, values=values)})


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (evidence(), []),
        (NOISY, ["noise-bound"]),
        (FEW, ["too few people"]),
        (CLIPPED, ["clipping-bound", "miscalibrated"]),
        (paying(200, -0.3), ["imbalanced"]),
        (evidence(headlines={"calibration": {"over-confidence": estimate(-0.2)}}), ["miscalibrated"]),
        (BEHIND, ["twin badly tuned"]),
    ],
    ids=["healthy", *RULES],
)
def test_each_diagnosis_is_made_by_its_own_evidence(seen: Evidence, expected: list[str]) -> None:
    assert diagnoses(seen) == expected


@pytest.mark.parametrize(
    "seen",
    [
        evidence(settings={"batch_size": 50, "steps": 1000, "sampler": "shuffle"}),
        evidence(settings={"batch_size": 50, "steps": 1000, "repairs": ("lora",)}),
        evidence(settings={"batch_size": 251, "steps": 1000}),
        evidence(settings={"batch_size": 50, "steps": 236}),
        evidence(coordinates=10_000_000),  # its model is made for few people
        evidence(coordinates=10_000_000, settings={"model": "logistic"}),
        evidence(coordinates=10_000, settings={"model": "cnn"}),
        evidence(headlines={**SURE, "calibration": {"over-confidence": estimate(0.05)}}),
        paying(1200, -0.3),
        paying(200, -0.06),
        with_shares(evidence(), difference=estimate(0.005)),
        evidence(results={}),
    ],
)
def test_nothing_is_diagnosed_without_its_evidence(seen: Evidence) -> None:
    assert diagnoses(seen) == []


def test_clipping_is_blamed_only_where_people_are_clipped() -> None:
    few = {**SURE, "clipping-bias": {"clipped": estimate(0.05)}}
    assert diagnoses(evidence(headlines=few)) == ["miscalibrated"]
    assert diagnoses(evidence(headlines=SURE, settings={"clip": "automatic"})) == ["miscalibrated"]


def test_larger_batches_are_as_many_passes_and_at_most_half_the_people() -> None:
    (advice,) = advise(NOISY)
    assert "--set batch_size=200 --set steps=250" in advice.command
    (advice,) = advise(evidence(n=490, settings={"batch_size": 61, "steps": 301}))
    assert "--set batch_size=244 --set steps=76" in advice.command


def test_no_accuracy_is_promised_to_a_regression() -> None:
    (advice,) = advise(
        evidence(task="regression", class_sizes={}, results={}, settings={"batch_size": 50, "steps": 1000})
    )
    assert (advice.aim, advice.gain) == ("squared error", "not measured")


def test_the_noise_is_no_reason_where_the_gradient_is_longer() -> None:
    signal = NOISY.results["feature-noise"]
    loud = [replace(part, whole=estimate(2.0)) for part in signal.values.parts]
    results = {**NOISY.results, "feature-noise": replace(signal, values=replace(signal.values, parts=loud))}
    assert diagnoses(replace(NOISY, results=results)) == []


def test_figures_and_their_intervals_are_the_audits() -> None:
    first, second = advise(CLIPPED)
    for text in ("+20.0 points", "+19.0 to +21.0", "40.0 %", "39.0–41.0 %"):
        assert text in first.evidence
    assert "+20.0 points" in second.evidence
    (twin,) = advise(BEHIND)
    assert "+5.0 points (interval +4.0 to +6.0)" in twin.evidence


def test_repairs_that_are_suggested_can_be_parsed() -> None:
    words = shlex.split(advise(CLIPPED)[0].command)
    repair = parse(words[words.index("--repair") + 1])
    assert vars(repair)["screen"] == 5.0


def test_only_what_trains_costs_epsilon() -> None:
    for seen in (NOISY, FEW, CLIPPED):
        assert "epsilon 3.00 each, 4.50 for both" in advise(seen)[0].privacy
    assert advise(BEHIND)[0].privacy.startswith("None")
    assert "--resume" in advise(BEHIND)[0].command
    assert "--twin-lr 0.1" in advise(BEHIND)[0].command


def test_an_average_class_counts_a_person_with_rows_of_both_twice() -> None:
    """All 2000 people have rows of both classes: each class has 2000, and neither is small."""
    assert evidence(class_sizes={"a": 2000, "b": 2000}).average_class == 2000
    assert evidence().average_class == 1000
