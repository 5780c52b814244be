from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from noisewise.errors import DataError
from noisewise.estimates.estimate import Estimate
from noisewise.estimates.intervals import (
    difference,
    each,
    independent_difference,
    largest,
    mean,
    mean_difference,
    ratio,
    share,
    share_difference,
    smallest,
    spread,
)


@pytest.mark.parametrize("level", [0.9, 0.95, 0.995])
@pytest.mark.parametrize(("hits", "n"), [(0, 1), (1, 1), (0, 36), (36, 36), (7, 21), (180, 359), (9_999, 10_000)])
def test_share_is_scipys_wilson_interval(hits: int, n: int, level: float) -> None:
    ours = share([True] * hits + [False] * (n - hits), level)
    theirs = scipy.stats.binomtest(hits, n).proportion_ci(level, method="wilson")
    assert ours.value == hits / n
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert 0 <= ours.low <= ours.value <= ours.high <= 1


def test_mean_is_scipys_t_interval() -> None:
    values = np.random.default_rng(0).exponential(size=37)
    theirs = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    ours = mean(values)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert mean(values, floor=theirs.low + 0.1).low == theirs.low + 0.1


def test_mean_difference_is_scipys_paired_t_interval() -> None:
    generator = np.random.default_rng(1)
    first = generator.normal(size=50)
    second = first + generator.normal(0.2, 0.1, size=50)
    theirs = scipy.stats.ttest_rel(first, second).confidence_interval(0.95)
    ours = mean_difference(first, second)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))


def pairs(both: int, first: int, second: int, neither: int) -> tuple[list[int], list[int]]:
    return (
        [1] * both + [1] * first + [0] * second + [0] * neither,
        [1] * both + [0] * first + [1] * second + [0] * neither,
    )


def test_share_difference_is_the_published_score_interval() -> None:
    """Airway hyper-responsiveness, 1/1/7/12: Fagerland, Lydersen, Laake 2014, Statistics in Medicine 33:2850."""
    ours = share_difference(*pairs(1, 1, 7, 12))
    assert ours.value == pytest.approx(-6 / 21)
    assert (ours.low, ours.high) == pytest.approx((-0.517, -0.026), abs=5e-4)


def test_share_difference_leaves_zero_out_exactly_when_mcnemars_test_rejects() -> None:
    limit = scipy.stats.chi2.ppf(0.95, 1)
    for first in range(0, 13):
        for second in range(0, 13):
            if first + second:
                rejects = (first - second) ** 2 / (first + second) > limit
                assert share_difference(*pairs(9, first, second, 5)).excludes_zero == rejects, (first, second)


@pytest.mark.parametrize(
    "table", [(36, 0, 0, 0), (0, 0, 0, 5), (0, 36, 0, 0), (0, 0, 36, 0), (0, 1, 0, 0), (3, 0, 1, 0)]
)
def test_share_difference_has_an_interval_at_the_edges_too(table: tuple[int, ...]) -> None:
    ours, mirrored = share_difference(*pairs(*table)), share_difference(*reversed(pairs(*table)))
    assert -1 <= ours.low <= ours.value <= ours.high <= 1
    assert ours.high - ours.low > 0.05
    assert (ours.low, ours.high) == pytest.approx((-mirrored.high, -mirrored.low), abs=1e-9)


def test_share_difference_covers_the_truth_as_often_as_it_says() -> None:
    """400 samples, nominal 95 %: fewer than 91 % has probability under 1e-3; a half-width cut by a third is caught."""
    generator = np.random.default_rng(0)
    covered = narrow = 0
    for _ in range(400):
        u = generator.random(60)
        first, second = u < 0.8, np.where(generator.random(60) < 0.7, u, generator.random(60)) < 0.9
        e = share_difference(first, second)
        covered += e.low <= -0.1 <= e.high
        narrow += e.value - (e.value - e.low) * 0.6 <= -0.1 <= e.value + (e.high - e.value) * 0.6
    assert covered >= 0.91 * 400
    assert narrow < 0.91 * 400


def test_extremes_cover_the_truth_although_they_were_picked() -> None:
    """Ten equally good classes: the true spread is 0, the sample's is not, and the interval must say so."""
    generator = np.random.default_rng(0)
    zero = worst = 0
    for _ in range(200):
        estimates = [share(generator.random(40) < 0.9, each(0.95, 10)) for _ in range(10)]
        zero += spread(estimates, 0.95).low == 0
        lowest = smallest(estimates, 0.95)
        worst += lowest.low <= 0.9 <= lowest.high
    assert zero >= 0.91 * 200
    assert worst >= 0.91 * 200


def test_spread_and_difference_add_up_the_worst_cases() -> None:
    estimates = [Estimate(0.5, 0.4, 0.6, 30, 0.99, "Wilson"), Estimate(0.9, 0.8, 0.95, 20, 0.99, "Wilson")]
    found = spread(estimates, 0.95)
    assert (found.value, found.low, found.high) == pytest.approx((0.4, 0.2, 0.55))
    assert (found.n, found.level, found.method) == (20, 0.95, "Wilson, Bonferroni")
    excess = difference(found, Estimate(0.1, 0.0, 0.3, 10, 0.95, "x"), 0.95)
    assert (excess.value, excess.low, excess.high) == pytest.approx((0.3, -0.1, 0.55))


def test_largest_mirrors_smallest() -> None:
    generator = np.random.default_rng(0)
    estimates = [share(generator.random(40) < p, 0.99) for p in (0.2, 0.5, 0.9)]
    mirrored = [Estimate(-e.value, -e.high, -e.low, e.n, e.level, e.method) for e in estimates]
    high, low = largest(estimates, 0.95), smallest(mirrored, 0.95)
    assert (high.value, high.low, high.high) == (-low.value, -low.high, -low.low)
    assert largest([high], 0.95).method == "Wilson, Bonferroni"


def test_ratio_holds_the_truth_as_often_as_it_says_and_a_single_interval_does_not() -> None:
    """Four groups of equal truth: the ratio is 1, the sample's is below; picking without allowance misses it."""
    generator = np.random.default_rng(0)
    covered = careless = 0
    for _ in range(300):
        flags = [generator.random(60) < 0.6 for _ in range(4)]
        covered += ratio([share(f, each(0.95, 4)) for f in flags], 0.95).high >= 1
        careless += ratio([share(f, 0.5) for f in flags], 0.95).high >= 1
    assert covered >= 0.91 * 300
    assert careless < 0.91 * 300
    found = ratio([Estimate(0.4, 0.3, 0.5, 9, 0.99, "x"), Estimate(0.8, 0.7, 0.9, 7, 0.99, "x")], 0.95)
    assert (found.value, found.low, found.high, found.n) == pytest.approx((0.5, 0.3 / 0.9, 0.5 / 0.7, 7))
    assert ratio([share([False] * 9), share([False] * 5)], 0.95) is None


def test_independent_difference_of_shares_is_newcombes_interval() -> None:
    """56/70 against 48/80: Newcombe 1998, Statistics in Medicine 17:873, Table II (a), method 10: 0.0524 to 0.3339."""
    found = independent_difference(share([1] * 56 + [0] * 14), share([1] * 48 + [0] * 32))
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_single_and_infinite_values_have_no_ends() -> None:
    assert mean([1.0]).high == math.inf
    assert mean([1.0, math.inf]).high == math.inf
    assert math.isinf(mean([math.nan, 1.0], floor=0.0).high) or math.isnan(mean([math.nan, 1.0]).high)


@pytest.mark.parametrize("values", [[], [[1.0]]])
def test_empty_and_misshapen_values_are_refused(values: list) -> None:
    with pytest.raises(DataError, match="one value per person"):
        share(values)


def test_pairs_must_be_of_the_same_people() -> None:
    with pytest.raises(DataError, match="same people"):
        share_difference([True], [True, False])


# --- people with several rows


def test_copies_of_a_persons_row_add_nothing() -> None:
    """Five equal rows of each of 40 people: the mean is known as from one row each, a share as from 39 (z/t)^2 rows."""
    generator, owner = np.random.default_rng(0), np.repeat(np.arange(40), 5)
    values, others = generator.exponential(size=40), generator.exponential(size=40)
    for once, five in (
        (mean(values), mean(values[owner], owner=owner)),
        (mean_difference(values, others), mean_difference(values[owner], others[owner], owner=owner)),
    ):
        assert (five.value, five.low, five.high, five.n) == pytest.approx((once.value, once.low, once.high, 40))
        assert five.method == f"{once.method}, by person"
    hits = generator.random(40) < 0.7
    found = share(hits[owner], owner=owner)
    z, t = scipy.stats.norm.ppf(0.975), scipy.stats.t.ppf(0.975, 39)
    n, p = 39 * (z / t) ** 2, hits.mean()
    root = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    ends = ((p + z**2 / (2 * n) - root) / (1 + z**2 / n), (p + z**2 / (2 * n) + root) / (1 + z**2 / n))
    assert (found.low, found.high) == pytest.approx(ends)
    assert (found.value, found.n, found.method) == (pytest.approx(p), 40, "Wilson, by person")


def test_rows_that_all_end_alike_count_as_one_for_each_person() -> None:
    owner = np.repeat(np.arange(30), 10)
    single = share(np.ones(30)).low
    assert share(np.ones(300), owner=owner).low == pytest.approx(single, abs=0.015)
    assert share(np.ones(300), owner=owner).low < single  # t, not z
    assert (
        share_difference(np.ones(300), np.ones(300), owner=owner).high
        > share_difference(np.ones(300), np.ones(300)).high
    )
    assert share(np.ones(7), owner=np.zeros(7)).n == 1
    assert mean(np.arange(7.0), owner=np.zeros(7)).high == math.inf


def test_owners_of_one_row_each_change_nothing() -> None:
    generator = np.random.default_rng(0)
    first, second, owner = generator.random(50) < 0.6, generator.random(50) < 0.7, generator.permutation(50)
    assert share(first, owner=owner) == share(first)
    assert share_difference(first, second, owner=owner) == share_difference(first, second)
    assert mean(first, owner=owner) == mean(first)
    with pytest.raises(DataError, match="owners of 49 rows for 50"):
        share(first, owner=owner[:49])


def test_intervals_by_person_hold_and_intervals_by_row_do_not() -> None:
    """400 samples of 40 people with 1 to 14 rows and a rate of their own (mean 0.85; the second model loses a tenth)."""
    generator, held = np.random.default_rng(0), dict.fromkeys(("share", "mean", "difference", "by row"), 0)
    for _ in range(400):
        owner = np.repeat(np.arange(40), generator.integers(4, 12, 40))
        first = generator.random(len(owner)) < generator.beta(1.7, 0.3, 40)[owner]
        second = first & (generator.random(len(owner)) >= generator.beta(1, 9, 40)[owner])
        found = {
            "share": (share(first, owner=owner), 0.85),
            "mean": (mean(second, owner=owner), 0.765),
            "difference": (share_difference(second, first, owner=owner), -0.085),
            "by row": (share(first), 0.85),
        }
        for name, (e, truth) in found.items():
            held[name] += e.low <= truth <= e.high
    assert all(held[name] >= 0.91 * 400 for name in ("share", "mean", "difference"))
    assert held["by row"] < 0.8 * 400
