"""The claimed epsilon, and what was measured beside it."""

from __future__ import annotations

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
    assert row.claimed == f"{claimed:.2f} at δ = 10⁻⁵"
    assert row.proven == f"at least {low:.2f} (99.9 % sure)" or row.proven.startswith(f"at least {low:.3g}")
    assert row.short.endswith(f"of {claimed:.2f} claimed")
    assert (row.kept, row.verdict) == (True, "not exceeded")
    assert measured([]) == []


def test_more_than_claimed_is_said_loudly(found):
    name, statistic = next(iter(found.values.statistics.items()))
    faulty = replace(found, values=replace(found.values, statistics={name: replace(statistic, exceeds=True)}))
    (row,) = measured([faulty])
    assert (row.kept, row.verdict) == (False, "more than claimed: do not publish")
