"""Batches drawn ahead are those that would be drawn now."""

import os

import numpy as np
import pytest

from noisewise.randomness import Entropy
from noisewise.sampling import FullBatch, Poisson, Shuffle
from noisewise.training.ahead import MISSES, Ahead, draw

RIGHT, WRONG = Entropy.insecure(1), Entropy.insecure(2)


@pytest.mark.parametrize("sampler", [Poisson(100, 10), Poisson(100, 10, max_batch=12), FullBatch(30), Shuffle(30, 10)])
@pytest.mark.parametrize("guess", [RIGHT, WRONG])
def test_whatever_was_guessed_the_batch_is_that_of_the_step(sampler, guess):
    ahead = Ahead()
    for step in range(5):
        ahead.begin(sampler, guess, step + 1)
        assert np.array_equal(ahead.draw(sampler, RIGHT, step), draw(sampler, RIGHT, step))


@pytest.mark.parametrize("other", [Poisson(1000, 500), Poisson(1000, 10, max_batch=12), FullBatch(1000)])
def test_a_batch_that_another_sampler_drew_is_not_used(other):
    ahead, sampler = Ahead(), Poisson(1000, 10)
    ahead.begin(other, RIGHT, 3)
    assert np.array_equal(ahead.draw(sampler, RIGHT, 3), draw(sampler, RIGHT, 3))


def test_a_right_guess_is_used(monkeypatch):
    ahead = Ahead()
    ahead.begin(Poisson(100, 10), RIGHT, 3)
    expected = draw(Poisson(100, 10), RIGHT, 3)
    ahead._drawn[3][1].result()
    monkeypatch.setattr("noisewise.training.ahead.draw", lambda *_: pytest.fail("drawn once more"))
    assert np.array_equal(ahead.draw(Poisson(100, 10), RIGHT, 3), expected)


def test_after_some_wrong_guesses_nothing_is_guessed():
    ahead, sampler = Ahead(), Poisson(100, 10)
    for step in range(MISSES):
        ahead.begin(sampler, WRONG, step)
        ahead.draw(sampler, RIGHT, step)
    ahead.begin(sampler, WRONG, 9)
    assert not ahead._drawn


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_draws_with_a_thread_of_its_own():
    ahead, sampler = Ahead(), Poisson(100, 10)
    ahead.begin(sampler, RIGHT, 0)
    ahead.draw(sampler, RIGHT, 0)
    child = os.fork()
    if child == 0:
        other = Ahead()
        other.begin(sampler, RIGHT, 1)
        os._exit(0 if np.array_equal(other.draw(sampler, RIGHT, 1), draw(sampler, RIGHT, 1)) else 1)
    assert os.waitpid(child, 0)[1] == 0
