from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from helpers.confident import Told, honest
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError, PrivacyError
from noisewise.repairs.temperature import Scaled, Temperature, temperature
from noisewise.runs.folder import Status

FREE = Status("private", "public")


def test_temperature_is_logistic_regression_of_two_classes() -> None:
    data = honest(800, classes=2, public=True)
    gap = (data.x[:, 1] - data.x[:, 0]).numpy()[:, None] * 3
    theirs = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10).fit(gap, data.y)
    assert 1 / temperature(Told(3.0), data).value == pytest.approx(float(theirs.coef_[0, 0]), rel=1e-4)


def test_temperature_has_the_least_loss() -> None:
    data = honest(600, classes=5, public=True)
    best = minimize_scalar(
        lambda t: log_loss(data.y, (data.x * 2.5 / t).softmax(1)),
        bounds=(0.1, 20),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert temperature(Told(2.5), data).value == pytest.approx(best.x, rel=1e-5)


def test_temperature_of_private_people_is_marked_and_refused() -> None:
    found = temperature(Told(2.0), honest(500))
    assert found.status.status == "not-private"
    with pytest.raises(PrivacyError, match="allow_not_private"):
        Scaled(Told(2.0), found)
    taken = Scaled(Told(2.0), found, allow_not_private=True)
    assert taken.status == found.status
    assert (found.cost, temperature(Told(2.0), honest(500, public=True)).cost) == ("not-private", "free")


def test_a_number_without_a_status_is_refused() -> None:
    with pytest.raises(ConfigError, match="public data"):
        Scaled(Told(), 2.0)
    with pytest.raises(ConfigError, match="above 0"):
        Temperature(0.0, FREE, 10)


def test_scaled_divides_and_changes_no_decision() -> None:
    data, model = honest(50), Told()
    scaled = Scaled(model, Temperature(2.5, FREE, 10))
    assert torch.equal(scaled(data.x), model(data.x) / 2.5)
    assert torch.equal(scaled(data.x).argmax(1), model(data.x).argmax(1))


@pytest.mark.parametrize("labels", ["all right", "all wrong"])
def test_no_best_temperature_is_an_error(labels: str) -> None:
    data = honest(100)
    y = data.x.argmax(1) if labels == "all right" else data.x.argmin(1)
    with pytest.raises(DataError, match="no temperature"):
        temperature(Told(), Data(data.x, y, public=True))
