"""Counts of masks: exact sizes, Kolmogorov-Smirnov as scipy's, noise makes ranking random."""

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from noisewise.reproduce.masks import Counter, distance, mask_counts
from noisewise.training import Observation


def test_the_distance_is_scipys():
    draw = np.random.default_rng(0)
    first, second = draw.integers(0, 9, 200) / 9, draw.integers(1, 12, 150) / 9
    assert distance(first, second) == pytest.approx(ks_2samp(first, second).statistic)
    assert distance(first, first) == 0


def test_steps_in_which_a_coordinate_does_not_learn_are_counted():
    counter = Counter({"a": torch.zeros(2, 2), "b": torch.zeros(3), "c": torch.zeros(1)})
    mask = torch.tensor([[True, False], [True, True]])
    for support in ({"a": mask, "b": False}, {"a": True}, {}, None):
        counter(Observation(0, torch.zeros(0), torch.zeros(1, 0), None, support))
    assert counter.shares.tolist() == [0.0, 0.25, 0.0, 0.0, 0.25, 0.25, 0.25, 0.0]


def test_what_is_sent_is_what_the_schedule_says_and_noise_makes_ranks_random():
    seen = mask_counts(
        seed=0,
        device="cpu",
        data="digits",
        model="cnn",
        batch=50,
        epochs=5,
        lr=0.5,
        sigma=4.0,
        bound=1.0,
        final=0.8,
        rows=200,
    )
    for kind in ("random", "ranked", "ranked without noise"):
        assert seen[kind]["payload"] == pytest.approx(1 - 0.8 / 2, abs=1e-3)
        assert sum(seen[kind]["histogram"]) == pytest.approx(1)
    assert 0 < seen["random"]["ks"] < 0.03  # another draw of random masks
    assert seen["ranked"]["ks"] < 0.03 < seen["ranked without noise"]["ks"]
