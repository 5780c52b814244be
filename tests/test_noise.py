"""Secure noise: cryptographic bits, answers on a grid that does not depend on the data, the right distribution."""

import hashlib

import numpy as np
import pytest
import torch
from scipy import stats

from noisewise import Ledger, Poisson, Shuffle
from noisewise.bounded import Bounded, release
from noisewise.errors import PrivacyError
from noisewise.noise import GRID
from noisewise.randomness import Entropy

SECURE = Entropy.insecure(7, secure=True)


def released(value, sigma=1.5, sensitivity=2.0, step=0, entropy=SECURE, support=None):
    part = {"gradient": (Bounded({"w": value}, sensitivity, support or {}), sigma)}
    return release(part, sampler=Poisson(10, 5), ledger=Ledger(), entropy=entropy, step=step)["gradient"]["w"]


def widened(count, sigma=1.5):
    return 1 / (1 - sigma * GRID * count**0.5)


def normal(sample, std):
    """Kolmogorov-Smirnov against N(0, std^2); false alarms 1 in 1000."""
    return stats.kstest(sample, "norm", (0, std)).pvalue > 1e-3


def test_noise_has_the_right_distribution_and_a_wrong_scale_shows():
    sample = released(torch.zeros(60_000, dtype=torch.float64)).numpy()
    assert normal(sample, 3.0)
    assert not normal(sample * 0.97, 3.0)
    assert not normal(np.abs(sample), 3.0)


def test_far_tails_are_there():
    sample = np.abs(released(torch.zeros(4_000_000, dtype=torch.float64)).numpy()) / 3.0
    expected = 4_000_000 * 2 * stats.norm.sf(4.0)  # 253
    assert abs((sample > 4.0).sum() - expected) < 4 * expected**0.5


@pytest.mark.parametrize("value", [0.0, 1 / 3, -1e-7, 12345.678])
def test_answers_lie_on_one_grid_whatever_the_data(value):
    count = 1000
    answers = released(torch.full((count,), value, dtype=torch.float64)).numpy()
    steps = answers / (3.0 * widened(count) * GRID)
    assert np.abs(steps - np.rint(steps)).max() < 1e-6 * max(1.0, abs(value))
    assert answers.mean() == pytest.approx(value, abs=5 * 3.0 / count**0.5)


def test_ordinary_noise_is_not_on_that_grid():
    answers = released(torch.full((1000,), 1 / 3, dtype=torch.float64), entropy=Entropy.insecure(7)).numpy()
    steps = answers / (3.0 * widened(1000) * GRID)
    assert np.abs(steps - np.rint(steps)).max() > 0.4


@pytest.mark.parametrize("sigma", [1e-3, 1.0, 1e3, 1e5, 2e5])
def test_the_grid_is_paid_for_exactly_by_its_definition(sigma):
    """Noise over true sensitivity is the stated multiplier: neighbours C apart, plus one grid step in every coordinate."""
    count, bound = 1000, 2.0
    answers = released(torch.zeros(count, dtype=torch.float64), sigma, bound).numpy()
    zero = released(torch.zeros(count, dtype=torch.float64), 1.5, bound).numpy()  # the same draws
    std = 1.5 * bound * widened(count) * np.median(answers / zero)
    assert std / (bound + GRID * std * count**0.5) == pytest.approx(sigma, rel=1e-9)


def test_noise_beside_which_the_grid_is_coarse_is_refused():
    most = 0.5 / (GRID * 1000**0.5)
    with pytest.raises(PrivacyError, match=r"on 1000 coordinates.*less noise.*support=.*secure=False"):
        released(torch.zeros(1000), 1.001 * most)
    assert released(torch.zeros(1000), 0.999 * most).isfinite().all()


def test_rounding_to_the_grid_is_paid_for_with_noise():
    assert widened(25_000_000) == pytest.approx(1.00045, abs=5e-5)  # a large model: below one part in a thousand


def test_steps_and_parameters_have_noise_of_their_own_and_positions_repeat():
    zeros = torch.zeros(5000, dtype=torch.float64)
    first, again, later = released(zeros), released(zeros), released(zeros, step=1)
    assert torch.equal(first, again)
    assert abs(np.corrcoef(first, later)[0, 1]) < 0.06  # four standard deviations


def test_masked_coordinates_stay_zero():
    mask = torch.arange(100) % 2 == 0
    answer = released(torch.zeros(100), support={"w": mask})
    assert torch.equal(answer != 0, mask)


def test_words_are_shake_128_of_root_and_position():
    key = b"".join(number.to_bytes(32, "little") for number in (7, 1, 3, 4))
    assert SECURE.words(5, "noise", 3, 4).tobytes() == hashlib.shake_128(key).digest(40)


@pytest.mark.parametrize("sampler", [Poisson(2000, 200), Shuffle(2000, 200)])
def test_batches_come_from_the_cryptographic_stream(sampler):
    secure = next(sampler.batches(SECURE, 0, 1))
    ordinary = next(sampler.batches(Entropy.insecure(7), 0, 1))
    assert not np.array_equal(secure, ordinary)
    assert abs(len(secure) - 200) < 60  # over four standard deviations


def test_a_secure_root_is_fresh_each_time():
    assert Entropy.fresh(secure=True).root != Entropy.fresh(secure=True).root
    assert Entropy.fresh(secure=True).secure
