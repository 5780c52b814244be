"""epsilon and calibrate: the numbers of the library, its readings side by side, words for people."""

from __future__ import annotations

import json

import pytest

from noisewise.mechanism import Mechanism
from noisewise.sampling import Poisson, Shuffle

KEYS = {
    "epsilon", "delta", "noise_multiplier", "steps", "rate", "accountant", "adjacency", "sampler", "rdp_epsilon",
    "gdp_epsilon", "rdp_reason", "gdp_reason",
}  # fmt: skip


# --- epsilon and calibrate
def test_epsilon_prints_what_the_mechanism_says(noisewise) -> None:
    found = noisewise(
        "epsilon", "--n", "60000", "--batch-size", "256", "--epochs", "60", "--noise-multiplier", "1.1", "--delta",
        "1e-5", "--json",
    )  # fmt: skip
    facts = json.loads(found.out)
    assert found.code == 0
    assert found.err == ""
    assert set(facts) == KEYS
    plan = Mechanism(sampler=Poisson(60_000, 256), steps=14_063, noise_multiplier=1.1)
    spent = plan.spent(1e-5)
    assert facts["steps"] == 14_063
    assert facts["epsilon"] == spent.epsilon == pytest.approx(2.38, abs=0.01)
    assert (facts["rdp_epsilon"], facts["gdp_epsilon"]) == (spent.rdp_epsilon, spent.gdp_epsilon)
    assert (facts["accountant"], facts["adjacency"], facts["sampler"]) == ("pld", "add-remove", "poisson")
    assert facts["rate"] == 256 / 60_000


def test_calibrate_meets_the_budget(noisewise) -> None:
    found = noisewise("calibrate", "--n", "1000", "--batch-size", "100", "--steps", "20", "--epsilon", "3", "--json")
    facts = json.loads(found.out)
    assert set(facts) == KEYS
    assert 2.99 < facts["epsilon"] <= 3
    assert facts["delta"] == 1e-4
    plan = Mechanism(sampler=Poisson(1000, 100), steps=20, noise_multiplier=facts["noise_multiplier"])
    assert plan.epsilon(1e-4) == facts["epsilon"]


def test_three_accountants_side_by_side_with_steps_and_words(noisewise) -> None:
    found = noisewise("epsilon", "--n", "1000", "--batch-size", "100", "--epochs", "2.5", "--noise-multiplier", "2")
    for text in ("PLD", "the guarantee", "RDP", "GDP-CLT", "approximation, no guarantee", "steps 25", "rate 0.1"):
        assert text in found.words
    assert "whether or not any one row was in the data" in found.words


def test_shuffle_says_which_neighbours_it_protects(noisewise) -> None:
    plan = ("--n", "1000", "--batch-size", "100", "--epochs", "2", "--noise-multiplier", "2", "--sampler", "shuffle")
    found = noisewise("epsilon", *plan)
    assert "zero-out (the shuffle sampler is proven for these only)" in found.words
    facts = json.loads(noisewise("epsilon", *plan, "--json").out)
    expected = Mechanism(sampler=Shuffle(1000, 100), steps=20, noise_multiplier=2.0, adjacency="zero-out")
    assert facts["epsilon"] == expected.epsilon(1e-4)


def test_an_accountant_that_does_not_cover_a_mechanism_says_why(noisewise) -> None:
    found = noisewise(
        "epsilon", "--n", "1000", "--batch-size", "100", "--steps", "2", "--noise-multiplier", "2", "--adjacency",
        "replace-one", "--json",
    )  # fmt: skip
    facts = json.loads(found.out)
    assert (facts["rdp_epsilon"], facts["gdp_epsilon"]) == (None, None)
    assert "RDP" in facts["rdp_reason"]
    assert "GDP" in facts["gdp_reason"]


def test_no_noise_is_valid_json_too(noisewise) -> None:
    found = noisewise(
        "epsilon", "--n", "1000", "--sampler", "full-batch", "--steps", "2", "--noise-multiplier", "0", "--json"
    )
    assert json.loads(found.out)["epsilon"] == "inf"


def test_a_large_delta_is_noted(noisewise) -> None:
    found = noisewise(
        "epsilon", "--n", "1000", "--sampler", "full-batch", "--steps", "1", "--noise-multiplier", "5", "--delta",
        "0.01", "--json",
    )  # fmt: skip
    json.loads(found.out)
    assert "not below 1/n" in found.err
