"""The claimed epsilon, and what was measured beside it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from noisewise.audits.engine_epsilon import engine_epsilon
from noisewise.report.measured import measured


@pytest.fixture(scope="module")
def found():
    return engine_epsilon(trials=2_000, generator=np.random.default_rng(0))


def test_claim_and_measurement_stand_side_by_side(found):
    (row,) = measured([found])
    low, claimed = found.headline["empirical epsilon"].low, found.claimed
    assert row.claimed == f"{math.ceil(100 * claimed) / 100:.2f} at δ = 10⁻⁵"
    assert row.proven == f"at least {math.floor(100 * low) / 100:.2f} (99.9 % sure)"
    assert f"on one noisy step: ε = {row.claimed.partition(' ')[0]} is claimed for it" in row.short
    assert (row.kept, row.verdict) == (True, "not exceeded")
    assert measured([]) == []


def test_more_than_claimed_is_said_loudly(found):
    name, statistic = next(iter(found.values.statistics.items()))
    faulty = replace(found, values=replace(found.values, statistics={name: replace(statistic, exceeds=True)}))
    (row,) = measured([faulty])
    assert (row.kept, row.verdict) == (False, "more than claimed: do not publish")
