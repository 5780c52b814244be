"""Kernels, epsilons, regressions."""

import pytest

from noisewise.reproduce.tables import epsilons, kernel_tables, noise_for, train_regression

HERE = {"seed": 0, "device": "cpu"}


def test_epsilons_are_those_of_the_fact_sheet():
    """RDP and GDP-CLT of Bu's MNIST plan at 60 epochs, computed elsewhere: 2.60 and 2.324; PLD 2.38."""
    found = epsilons(**HERE, n=60_000, batch=256, steps=14_063, sigma=1.1, delta=1e-5)
    assert found["gdp"] == pytest.approx(2.324, abs=0.002)
    assert found["rdp"] == pytest.approx(2.60, abs=0.01)
    assert found["pld"] == pytest.approx(2.38, abs=0.01)


def test_kernels_of_every_rule_are_described():
    found = kernel_tables(**HERE, instances=50)
    assert found["none"]["symmetric"] == 1
    assert found["local flat"]["quadratic_form"] == 0
    assert set(found) >= {"global flat, screened", "global layerwise, screened"}


def test_noise_meets_its_epsilon():
    assert noise_for(1000, 100, 50, 1.0) > noise_for(1000, 100, 50, 3.0) > 0
    assert noise_for(1000, None, 50, 3.0) > noise_for(1000, 100, 50, 3.0)  # no amplification by sampling


def test_an_open_regression_fits_and_looks_at_the_part_it_is_told():
    """A linear map explains 4/5 of the variance of y in the made-up data."""
    given = {**HERE, "data": "made up", "epochs": 60, "lr": 1e-2, "batch": 50, "adam": True, "width": 20, "plain": True}
    test, valid = (train_regression(**given, tuning=tuning) for tuning in (False, True))
    assert test["mse"] < 0.8
    assert test["mse"] != valid["mse"]
    assert test["score"] == -test["mse"]


def test_global_and_local_clipping_differ_in_the_rule_only():
    given = {**HERE, "data": "made up", "epochs": 3, "lr": 0.1, "epsilon": 3.0, "width": 10}
    local, screened = train_regression(**given), train_regression(**given, screen=400.0)
    assert local["noise_multiplier"] == screened["noise_multiplier"]
    assert local["mse"] != screened["mse"]
