"""What rules see of a run."""

from __future__ import annotations

import pytest

from helpers.evidence import evidence
from noisewise.advice.noise import smallest_class


def test_rates_and_voices_follow_the_plan() -> None:
    seen = evidence()
    assert seen.rate == 0.25
    assert seen.drowned == pytest.approx(smallest_class(0.25, 100, 3.0, 500))


def test_results_are_found_by_name_and_kind() -> None:
    seen = evidence()
    kinds = (seen.disparity, seen.calibration, seen.clipping, seen.signal)
    assert [result.kind for result in kinds if result is not None] == list(seen.results)
    swapped = evidence(results={"disparity": seen.results["calibration"]})
    assert swapped.disparity is swapped.calibration is swapped.clipping is swapped.signal is None
