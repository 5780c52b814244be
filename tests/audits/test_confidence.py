"""Errors of confidence by bins: other software's numbers, ties, intervals."""

from __future__ import annotations

import numpy as np
import pytest
from torchmetrics.functional.classification import multiclass_calibration_error

from helpers.confident import honest
from noisewise.audits.confidence import (
    Answers,
    bootstrapped,
    calibration_error,
    chance_of,
    equal_count,
    equal_width,
    from_zero,
    largest_error,
)
from noisewise.data import Data


def silent(count: int = 1, **_: object) -> None:
    """No bar."""


def confidence_and_hits(data: Data, sharpness: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    confidence, said = (data.x * sharpness).softmax(1).max(1)
    return confidence.numpy(), (said == data.y).double().numpy()


# --- the numbers
@pytest.mark.parametrize("bins", [10, 15, 20])
@pytest.mark.parametrize("sharpness", [0.4, 1.0, 3.0])
def test_errors_are_torchmetrics(bins: int, sharpness: float) -> None:
    data = honest(500)
    confidence, hits = confidence_and_hits(data, sharpness)
    bin_of = equal_width(confidence, bins)
    shares = (data.x * sharpness).softmax(1)
    theirs = {
        norm: float(multiclass_calibration_error(shares, data.y, 4, n_bins=bins, norm=norm)) for norm in ("l1", "max")
    }
    assert calibration_error(confidence, hits, bin_of) == pytest.approx(theirs["l1"], abs=1e-6)
    assert largest_error(confidence, hits, bin_of) == pytest.approx(theirs["max"], abs=1e-6)


def test_bins_hold_their_upper_edge() -> None:
    confidence = np.array([0.0, 0.1, 0.1000001, 0.25, 0.5, 0.999, 1.0])
    slow = [next(b for b in range(10) if c <= np.linspace(0, 1, 11)[b + 1]) for c in confidence]
    assert equal_width(confidence, 10).tolist() == slow == [0, 0, 1, 2, 4, 9, 9]


@pytest.mark.parametrize("n", [3, 15, 100, 101])
def test_equal_counts(n: int) -> None:
    confidence = np.random.default_rng(0).permutation(np.linspace(0.2, 1, n))
    found = np.bincount(equal_count(confidence, 15), minlength=15)
    assert found.sum() == n
    assert found.max() - found.min() <= 1
    order = np.argsort(confidence)
    assert (np.diff(equal_count(confidence, 15)[order]) >= 0).all()


def test_ties_stay_together_whatever_the_order_of_rows() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.choice([0.3, 0.7, 1.0], 200)
    hits = (generator.random(200) < confidence).astype(float)
    order = generator.permutation(200)
    first = calibration_error(confidence, hits, equal_count(confidence, 15))
    assert calibration_error(confidence[order], hits[order], equal_count(confidence[order], 15)) == pytest.approx(first)
    slow = sum(abs((hits - confidence)[confidence == c].sum()) for c in (0.3, 0.7, 1.0)) / 200
    assert first == pytest.approx(slow)


# --- intervals
@pytest.mark.parametrize("truth", [0.0, 0.02, 0.2])
def test_the_interval_of_ece_holds_the_truth(truth: float) -> None:
    """The same gap in every bin, 500 people, 60 trials; fewer than 51 hits have probability 0.0007 at 95 %.

    At a gap of 0.02 ECE of the sample is about twice as large, and at 0 it is nothing but chance.
    """
    generator, held, width, plain, other = np.random.default_rng(0), [], [], [], []
    for _ in range(60):
        confidence = generator.uniform(0.5, 1.0, 500)
        hits = (generator.random(500) < confidence - truth).astype(float)
        second = (generator.random(500) < confidence - 0.1).astype(float)
        bin_of = equal_width(confidence, 15)
        models = {"private": hits, "twin": second}
        binned = {"ECE": {which: (Answers(np.arange(500), confidence, h, h, h), bin_of) for which, h in models.items()}}
        chance = {
            "ECE": {
                which: chance_of(a, {"ECE": bin_of}, generator, 200, silent)["ECE"]
                for which, (a, _) in binned["ECE"].items()
            }
        }
        raw = bootstrapped(binned, np.arange(500), generator, 0.95, 200, silent)
        found = from_zero(raw, chance, 0.95)["ECE"]
        held.append(found["private"].low <= truth <= found["private"].high)
        width.append(found["private"].high - found["private"].low)
        other.append(found["difference"].low <= truth - 0.1 <= found["difference"].high)
        plain.append(raw["ECE"]["private"].low <= truth)
    assert sum(held) >= 51
    assert sum(other) >= 51
    assert np.mean(width) < 0.12
    if not truth:
        assert sum(plain) < 51  # without the test of perfect calibration it would not hold


def test_chance_lets_rows_of_one_person_fall_together() -> None:
    """200 people with 20 rows each that end alike: by chance ECE is that of 200 rows, not of 4,000."""
    confidence, generator = np.full(4000, 0.8), np.random.default_rng(0)
    bin_of = equal_width(confidence, 15)

    def mean(owner: np.ndarray) -> float:
        a = Answers(owner, confidence, np.ones(4000), confidence, confidence)
        return chance_of(a, {"ECE": bin_of}, generator, 400, silent)["ECE"].mean

    expected = np.sqrt(2 / np.pi * 0.16 / np.array([4000, 200]))  # mean of |N(0, p (1 - p) / n)|
    assert [mean(np.arange(4000)), mean(np.arange(4000) // 20)] == pytest.approx(expected, rel=0.15)
