"""Runs on the two-patch data."""

import math

import pytest

from noisewise.reproduce.two_patch import train_one_feature, train_two_patch

SMALL = {"device": "cpu", "d": 40, "n": 200, "test": 200, "steps": 30, "lr": 2.0}


def test_noise_that_dominates_gives_the_weights_their_length():
    """||w|| = eta sigma_n sqrt(T d): 20 filters of 40 coordinates are known to 3 %."""
    seen = train_two_patch(seed=0, sigma_n=0.5, **SMALL)
    assert seen["norm"] == pytest.approx(2.0 * 0.5 * math.sqrt(30 * 40), rel=0.1)


def test_without_noise_the_common_features_are_learnt_first():
    seen = train_two_patch(seed=0, sigma_n=0.0, **SMALL)
    loss = [group["loss"] for group in seen["groups"]]
    assert loss[0] < loss[1]
    assert loss[2] < loss[3]
    assert seen["loss"] < math.log(2)


def test_a_seed_fixes_everything_and_another_changes_it():
    first, same, other = (train_two_patch(seed=seed, sigma_n=0.1, **SMALL) for seed in (1, 1, 2))
    assert first == same
    assert first["loss"] != other["loss"]


def test_attacks_raise_the_loss_with_their_radius():
    seen = train_one_feature(seed=0, radii={"l2": [0.1, 1.0]}, radius={"linf": 0.05}, **SMALL)
    assert seen["loss"] < seen["l2 0"]["loss"] < seen["l2 1"]["loss"]
    assert seen["linf"]["loss"] > seen["loss"]


def test_epsilon_sets_the_noise():
    seen = train_one_feature(seed=0, epsilon=1.0, **SMALL)
    assert seen["sigma_n"] == pytest.approx(seen["noise_multiplier"] / 128)
    assert seen["noise_multiplier"] > 1
    assert train_one_feature(seed=0, epsilon=0.5, **SMALL)["sigma_n"] > seen["sigma_n"]


def test_pretraining_on_the_same_features_helps_and_on_turned_ones_less():
    short = {**SMALL, "steps": 3, "sigma_n": 0.05}
    scratch = train_one_feature(seed=0, **short)
    loss = [train_one_feature(seed=0, pretraining=40, degrees=turned, **short)["loss"] for turned in (0.0, 90.0)]
    assert loss[0] < scratch["loss"]
    assert loss[0] < loss[1]
