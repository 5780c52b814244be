"""Samplers: who is in a batch, how often, how independently. Each statistical check also rejects a wrong sampler.

Every check raises a false alarm with probability at most 1e-6; seeds are fixed.
"""

import math
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from noisewise import Mechanism
from noisewise.accounting import Ledger
from noisewise.errors import ConfigError
from noisewise.randomness import Entropy
from noisewise.sampling import SAMPLERS, FullBatch, Poisson, Shuffle, roomy, steps_for

FALSE_ALARM = 1e-6
UNITS, RATE, STEPS = 60, 0.1, 4000


def drawn(sampler, steps, seed=0, first=0):
    return [batch.tolist() for batch in sampler.batches(Entropy.insecure(seed), first, first + steps)]


def inclusion(batches, n=UNITS):
    """Truth values `[steps, units]`."""
    joined = np.zeros((len(batches), n), bool)
    for step, batch in enumerate(batches):
        joined[step, batch] = True
    return joined


# ------------------------------------------------------------------------------------- checks that can reject


def has_rate(joined, rate):
    """Each unit's count and the total are binomial: exact tests, Bonferroni over units; false alarms 1e-6."""
    steps, units = joined.shape
    each = min(stats.binomtest(int(count), steps, rate).pvalue for count in joined.sum(0))
    total = stats.binomtest(int(joined.sum()), joined.size, rate).pvalue
    return each > FALSE_ALARM / 2 / units and total > FALSE_ALARM / 2


def has_independent_units(joined):
    """Correlations of all pairs of units within a step: z-tests, Bonferroni; false alarms 1e-6."""
    return _largest(np.corrcoef(joined.T) - np.eye(joined.shape[1]), joined.shape[1] ** 2) * math.sqrt(len(joined)) < 1


def has_independent_steps(joined):
    """Correlations between a step and the next, all pairs of units; false alarms 1e-6."""
    units = joined.shape[1]
    between = np.corrcoef(joined[:-1].T, joined[1:].T)[:units, units:]
    return _largest(between, units**2) * math.sqrt(len(joined)) < 1


def _largest(correlations, tests):
    return np.abs(correlations).max() / stats.norm.isf(FALSE_ALARM / 2 / tests)


def has_binomial_sizes(joined, rate):
    """Chi-square test of the batch sizes against Binomial(n, rate); false alarms 1e-6."""
    steps, units = joined.shape
    expected = stats.binom.pmf(np.arange(units + 1), units, rate) * steps
    common = expected >= 5
    counts = np.bincount(joined.sum(1), minlength=units + 1)
    pooled = np.append(counts[common], counts[~common].sum()), np.append(expected[common], expected[~common].sum())
    return stats.chisquare(*pooled).pvalue > FALSE_ALARM


@pytest.fixture(scope="module")
def poisson():
    """Seed 0."""
    return inclusion(drawn(Poisson(n=UNITS, batch_size=6), STEPS))


def wrong_rate(factor):
    return np.random.default_rng(1).random((STEPS, UNITS)) < RATE * factor


def test_every_unit_is_included_at_the_stated_rate(poisson):
    assert has_rate(poisson, RATE)
    assert not has_rate(wrong_rate(0.9), RATE)
    assert not has_rate(wrong_rate(1.1), RATE)
    assert has_rate(wrong_rate(1.0), RATE)


def test_one_unit_that_is_drawn_more_often_shows(poisson):
    favoured = poisson.copy()
    favoured[:, 7] |= np.random.default_rng(2).random(STEPS) < RATE
    assert not has_rate(favoured, RATE)


def test_units_are_drawn_independently_of_each_other(poisson):
    assert has_independent_units(poisson)
    in_pairs = poisson.copy()
    in_pairs[:, 1::2] = in_pairs[:, ::2]
    assert not has_independent_units(in_pairs)
    assert has_rate(in_pairs, RATE)


def test_steps_are_drawn_independently_of_each_other(poisson):
    assert has_independent_steps(poisson)
    assert not has_independent_steps(poisson.repeat(2, 0))
    assert not has_independent_steps(np.roll(poisson, 1, 1) | np.vstack([poisson[1:], poisson[:1]]))


def test_batch_sizes_are_binomial(poisson):
    assert has_binomial_sizes(poisson, RATE)
    assert not has_binomial_sizes(wrong_rate(0.9), RATE)
    assert not has_binomial_sizes(wrong_rate(1.1), RATE)
    fixed = inclusion([np.random.default_rng(k).choice(UNITS, 6, replace=False) for k in range(STEPS)])
    assert has_rate(fixed, RATE)
    assert not has_binomial_sizes(fixed, RATE)


def test_a_batch_may_be_empty_and_is_never_cut():
    """Seed 3: 1000 steps at a mean of one unit; P(empty) = 0.368, P(more than 3) = 0.019."""
    sizes = [len(batch) for batch in drawn(Poisson(n=1000, batch_size=1), 1000, seed=3)]
    assert sizes.count(0) > 250
    assert max(sizes) > 3


@pytest.mark.parametrize("secure", [False, True])
def test_who_stays_in_a_batch_that_is_cut_is_everybody_alike(secure):
    """A unit is in with probability `rate E[min(1, cap / (1 + others))]`, wherever it stands."""
    units, cap = 12, 6
    batches = list(Poisson(units, cap, max_batch=cap).batches(Entropy.insecure(0, secure=secure), 0, STEPS))
    others = np.arange(units)
    rate = np.minimum(1, cap / (1 + others)) @ stats.binom.pmf(others, units - 1, 0.5) / 2
    assert has_rate(inclusion(batches, units), rate)
    first = [batch[:cap] for batch in drawn(Poisson(units, cap), STEPS)]
    assert not has_rate(inclusion(first, units), rate)


def test_rate_one_takes_everybody():
    assert drawn(Poisson(n=5, batch_size=5), 3) == [[0, 1, 2, 3, 4]] * 3


# -------------------------------------------------------------------------------------------------- the others


def test_full_batch_takes_everybody_always():
    sampler = FullBatch(n=4)
    assert drawn(sampler, 3) == [[0, 1, 2, 3]] * 3
    assert (sampler.batch_size, sampler.rate, sampler.steps_per_event) == (4, 1.0, 1)


@pytest.mark.parametrize(
    ("n", "batch_size", "sizes"), [(12, 4, [4, 4, 4]), (10, 4, [4, 4, 2]), (5, 5, [5]), (7, 1, [1] * 7)]
)
def test_a_shuffled_epoch_takes_each_unit_exactly_once(n, batch_size, sizes):
    sampler = Shuffle(n=n, batch_size=batch_size)
    assert sampler.steps_per_event == len(sizes)
    for epoch in range(3):
        batches = drawn(sampler, len(sizes), first=epoch * len(sizes))
        assert [len(batch) for batch in batches] == sizes
        assert sorted(unit for batch in batches for unit in batch) == list(range(n))


def test_shuffled_epochs_differ():
    epochs = [drawn(Shuffle(n=50, batch_size=5), 10, first=10 * epoch) for epoch in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]


def are_in_any_batch_alike(counts):
    """Chi-square test of `[units, batches]` counts with equal rows and columns; false alarms 1e-6."""
    statistic = float(((counts - counts.mean()) ** 2).sum() / counts.mean())
    return stats.chi2.sf(statistic, (counts.shape[0] - 1) * (counts.shape[1] - 1)) > FALSE_ALARM


def test_a_shuffled_unit_is_in_any_batch_of_the_epoch_alike():
    """Seed 4, 3000 epochs of 4 batches of 2 units."""
    counts = np.zeros((8, 4))
    for step, batch in enumerate(drawn(Shuffle(n=8, batch_size=2), 4 * 3000, seed=4)):
        counts[batch, step % 4] += 1
    assert are_in_any_batch_alike(counts)
    badly_mixed = counts + 75 * np.array([[1, -1, 0, 0], [-1, 1, 0, 0]] * 4)  # 10 % too often in one batch
    assert not are_in_any_batch_alike(badly_mixed)


@pytest.mark.parametrize("sampler", [Poisson(n=40, batch_size=7), Shuffle(n=40, batch_size=7), FullBatch(n=40)])
def test_draws_are_a_function_of_root_and_step_only(sampler):
    whole = drawn(sampler, 20, seed=5)
    assert whole == drawn(sampler, 20, seed=5)
    for first in (0, 1, 6, 13, 19):
        assert drawn(sampler, 1, seed=5, first=first) == whole[first : first + 1]
        assert drawn(sampler, 20 - first, seed=5, first=first) == whole[first:]


@pytest.mark.parametrize("sampler", [Poisson(n=40, batch_size=7), Shuffle(n=40, batch_size=7)])
def test_other_roots_draw_other_batches(sampler):
    assert drawn(sampler, 5, seed=6) != drawn(sampler, 5, seed=7)
    fresh = [[batch.tolist() for batch in sampler.batches(Entropy.fresh(), 0, 5)] for _ in range(2)]
    assert fresh[0] != fresh[1]


# ------------------------------------------------------------------------------------------------------ events


def test_the_event_is_that_of_the_sampling():
    inner = dp_accounting.GaussianDpEvent(1.5)
    assert Poisson(n=40, batch_size=10).event(inner) == dp_accounting.PoissonSampledDpEvent(0.25, inner)
    assert FullBatch(n=40).event(inner) == inner
    assert Shuffle(n=40, batch_size=10).event(inner) == inner


def test_a_shuffle_promises_nothing_about_added_units():
    assert Shuffle.adjacencies == ("zero-out",)
    assert set(Poisson.adjacencies) == set(FullBatch.adjacencies) == {"add-remove", "zero-out", "replace-one"}


def test_samplers_are_known_by_their_kind():
    assert {"poisson": Poisson, "full-batch": FullBatch, "shuffle": Shuffle} == SAMPLERS


# ------------------------------------------------------------------------------------------------ steps and errors


@pytest.mark.parametrize(
    ("epochs", "n", "batch_size", "steps"),
    [
        (3, 75, 1, 225),
        (3, 7500, 100, 225),
        (1, 10, 3, 4),
        (2, 10, 3, 7),
        (0.1, 1000, 10, 10),
        ("0.1", 30, 1, 3),
        (0.7, 10, 1, 7),
        (1e-3, 1000, 1, 1),
        (Fraction(1, 3), 9, 1, 3),
        ("1/3", 9, 1, 3),
        (60, 60000, 256, 14063),
        (10**6, 10**9, 1, 10**15),
    ],
)
def test_steps_are_exact(epochs, n, batch_size, steps):
    assert steps_for(epochs, n, batch_size) == steps


@pytest.mark.parametrize("epochs", [0, -1, "0", "ten", "", math.nan, math.inf, None, "1/0"])
def test_epochs_that_are_no_positive_number_are_refused(epochs):
    with pytest.raises(ConfigError, match="epochs="):
        steps_for(epochs, 10, 2)


@pytest.mark.parametrize("kind", [Poisson, Shuffle])
def test_a_rate_above_one_names_value_and_remedy(kind):
    with pytest.raises(
        ConfigError, match=r"batch_size=12 with n=10: .*1\.2 is outside \(0, 1\].*at most 10.*FullBatch\(n=10\)"
    ):
        kind(n=10, batch_size=12)


@pytest.mark.parametrize("kind", [Poisson, Shuffle])
@pytest.mark.parametrize("value", [0, -3, 2.5, "8", None])
def test_sizes_that_are_no_whole_number_above_0_are_named(kind, value):
    with pytest.raises(ConfigError, match=r"batch_size=.*whole number above 0"):
        kind(n=10, batch_size=value)
    with pytest.raises(ConfigError, match=r"n=.*whole number above 0"):
        kind(n=value, batch_size=1)
    with pytest.raises(ConfigError, match=r"n=.*whole number above 0"):
        FullBatch(n=value)


@pytest.mark.parametrize("sampler", [Poisson(50, 20), Poisson(50, 20, 22), FullBatch(50), Shuffle(50, 20)], ids=repr)
def test_units_of_a_batch_are_in_ascending_order(sampler):
    for batch in sampler.batches(Entropy.insecure(1), 0, 20):
        assert bool((np.diff(batch) > 0).all())


@pytest.mark.parametrize("batch_size", [1, 16, 100, 1024])
def test_hardly_any_batch_needs_more_room_than_roomy(batch_size):
    """Poisson batches of many units are at most binomial in spread: one in 10^8 is larger."""
    cap = roomy(batch_size)
    assert cap == batch_size + math.ceil(6 * math.sqrt(batch_size))
    assert stats.binom.sf(cap, 100 * batch_size, 0.01) < 1e-4 / batch_size


def test_truncated_batches_never_exceed_their_cap_and_are_often_cut():
    sampler = Poisson(200, 50, max_batch=52)
    sizes = [len(batch) for batch in sampler.batches(Entropy.insecure(0), 0, 300)]
    assert max(sizes) == 52
    assert sum(size == 52 for size in sizes) > 50


def test_a_cut_batch_keeps_everybody_alike():
    sampler = Poisson(40, 20, max_batch=20)
    counts = sum(np.bincount(batch, minlength=40) for batch in sampler.batches(Entropy.insecure(1), 0, 4000))
    mean = counts.mean()
    chi_square = float(((counts - mean) ** 2 / mean).sum())
    assert chi_square < 72  # 39 degrees of freedom, false alarms below 1 in 1000; keeping the first 20 gives thousands
    assert mean < 2000


@pytest.mark.parametrize(("cap", "epsilon"), [(300, 3.46), (350, 2.38)])
def test_truncation_costs_what_dp_accounting_says(cap, epsilon):
    mechanism = Mechanism(sampler=Poisson(60000, 256, max_batch=cap), steps=14063, noise_multiplier=1.1)
    assert mechanism.epsilon(1e-5) == pytest.approx(epsilon, abs=0.006)
    assert mechanism.epsilon(1e-5, "rdp") is None
    assert mechanism.spent(1e-5).gdp_epsilon is None


def test_truncated_events_survive_the_ledger():
    ledger = Ledger()
    ledger.lines.extend(Mechanism(sampler=Poisson(100, 10, max_batch=12), steps=3, noise_multiplier=2.0).lines())
    assert Ledger.from_dict(ledger.to_dict()).lines == ledger.lines
    mechanism = Mechanism(sampler=Poisson(100, 10, max_batch=12), steps=3, noise_multiplier=2.0)
    assert Mechanism.from_dict(mechanism.to_dict()) == mechanism


def test_a_cap_below_the_expected_batch_is_refused_with_a_better_one():
    with pytest.raises(ConfigError, match=f"max_batch=200.*{roomy(256)} costs next to nothing"):
        Poisson(60000, 256, max_batch=200)
