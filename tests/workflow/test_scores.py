"""Scores of runs on held-out people: exact for public rows, noised and in a ledger for others."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from noisewise.data import Data
from noisewise.errors import ConfigError, DataError, PrivacyError
from noisewise.workflow import scores
from noisewise.workflow.scores import exact_score, noised_scores, right_answers


class Sign(nn.Module):
    def forward(self, x):
        return torch.stack([-x[:, 0], x[:, 0]], 1)


def people(unit=None, public=False):
    x = torch.tensor([[1.0], [-1.0], [1.0], [1.0]])
    return Data(x, torch.tensor([1, 0, 0, 1]), classes=("a", "b"), public=public, unit=unit)


def test_right_answers_count_each_unit_once():
    assert right_answers(Sign(), people()) == 3
    assert right_answers(Sign(), people(torch.tensor([5, 5, 9, 9]))) == 1.5  # both right, one of two right
    assert exact_score(Sign(), people(public=True)) == 0.75


class Centring(nn.Module):
    """Answers that depend on who else is asked, in large batches only, as no look at a few made-up rows would show."""

    def forward(self, x):
        said = torch.stack([-x[:, 0], x[:, 0]], 1)
        return said - said.mean(0) if len(x) > 64 else said


def test_people_who_are_not_public_are_asked_one_at_a_time():
    x = torch.linspace(-1, 3, 100)[:, None]
    data = Data(x, (x[:, 0] > 0).long(), classes=("a", "b"))
    assert right_answers(Centring(), data) == 100
    assert right_answers(Centring(), Data(data.x, data.y, classes=("a", "b"), public=True)) < 100


def test_one_unit_moves_the_scores_by_at_most_what_the_noise_is_scaled_to():
    units = torch.tensor([0, 0, 1, 2])
    whole = right_answers(Sign(), people(units))
    for unit in range(3):
        keep = units != unit
        part = Data(people().x[keep], people().y[keep], classes=("a", "b"), unit=units[keep])
        assert abs(whole - right_answers(Sign(), part)) <= 1


def test_noise_has_the_deviation_that_is_said_and_the_mean_is_right():
    runs = 4_000
    scores = noised_scores(
        [50.0] * runs, [100] * runs, epsilon=1.0, delta=1e-5, adjacency="add-remove", unit="row", insecure_seed=3
    )
    drawn = np.array(scores.shares)
    assert drawn.mean() == pytest.approx(0.5, abs=5 * scores.deviation / math.sqrt(runs))
    assert drawn.std() == pytest.approx(scores.deviation, rel=0.06)
    sigma = scores.ledger.lines[0].event.noise_multiplier
    assert scores.deviation == pytest.approx(sigma * math.sqrt(runs) / 100)  # one person moves every score
    assert scores.ledger.reproducible


def test_scores_that_cannot_be_are_refused():
    number = Data(torch.zeros(3, 1), torch.zeros(3), public=True)
    with pytest.raises(ConfigError, match="regression"):
        right_answers(Sign(), number)
    with pytest.raises(PrivacyError, match="not public"):
        exact_score(Sign(), people())
    with pytest.raises(DataError, match="held out"):
        exact_score(Sign(), people(public=True).take(torch.zeros(0, dtype=torch.long)))
    with pytest.raises(DataError, match="held out"):
        noised_scores([0.0], [0], epsilon=1, delta=1e-5, adjacency="add-remove", unit="row")
    assert exact_score(nn.Linear(1, 1, bias=False), number) == 0


def test_secure_scores_lie_on_a_grid(monkeypatch):
    drawn = []
    genuine = scores.release
    monkeypatch.setattr(
        scores, "release", lambda *asked, **how: drawn.append(how["entropy"].secure) or genuine(*asked, **how)
    )
    for secure in (True, False):
        noised_scores([3.0], [5], epsilon=1.0, delta=1e-5, adjacency="add-remove", unit="row", secure=secure)
    assert drawn == [True, False]
