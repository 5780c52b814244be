"""Accuracy that held-out people paid for: the noise is what the ledger says, the ledger is the budget."""

import copy
import math
import os
import pickle

import dp_accounting
import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from helpers import tiny
from noisewise.data import Data
from noisewise.errors import BudgetSpent, ConfigError, DataError, PrivacyError
from noisewise.training import paid as paid_module
from noisewise.training.paid import PaidAccuracy

N = 60


class Says(nn.Module):
    """Class 1 wherever the input is above 0."""

    def forward(self, x):
        return torch.stack([-x[:, 0], x[:, 0]], 1)


def held_out(unit=None):
    x = torch.linspace(-1, 1, N)[:, None]
    y = (x[:, 0] > 0).long()
    y[: N // 4] = 1  # a quarter is wrong
    return Data(x, y, unit=unit)


def test_readings_are_the_accuracy_with_the_noise_that_is_accounted():
    readings = 400
    paid = PaidAccuracy(held_out(), epsilon=30, readings=readings, insecure_seed=1)
    values = np.array([paid(Says()) for _ in range(readings)])
    expected = stats.norm(0.75, paid.mechanism.noise_at(0) / N)
    assert stats.kstest(values, expected.cdf).pvalue > 1e-3
    assert stats.kstest(values, stats.norm(0.75, 0.7 * paid.std).cdf).pvalue < 1e-3  # the test can tell


def test_the_ledger_is_the_budget():
    paid = PaidAccuracy(held_out(), epsilon=1, readings=4)
    for _ in range(4):
        paid(Says())
    accountant = dp_accounting.pld.PLDAccountant()
    for line in paid.ledger.lines:
        accountant.compose(line.event, line.count)
    assert 0.99 < accountant.get_epsilon(paid.delta) <= 1
    with pytest.raises(BudgetSpent, match="all 4 readings are taken"):
        paid(Says())
    assert paid.ledger.releases == 4


class Adapting(Says):
    """Takes the mean of those who are asked together."""

    def forward(self, x):
        return super().forward(x - x.mean(0) * (len(x) > 1))


class Remembering(Says):
    """Takes the mean of those who were asked before."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x):
        self.mean += x.mean()
        return super().forward(x - self.mean)


def with_one_far_away():
    data = held_out()
    return Data(torch.cat([data.x, torch.full((1, 1), 1e9)]), torch.cat([data.y, torch.ones(1).long()]))


def test_one_person_moves_the_count_by_at_most_one():
    """Also where the model, asked of many at once, would couple them: a person far away would make half of them wrong."""
    paid = [PaidAccuracy(data, epsilon=1e6, readings=1, insecure_seed=0) for data in (held_out(), with_one_far_away())]
    without, more = (reading(Adapting()) * reading.n for reading in paid)
    assert abs(more - without) < 1.1


def test_a_model_that_remembers_who_was_asked_is_refused():
    paid = PaidAccuracy(held_out(), epsilon=1, readings=1)
    with pytest.raises(PrivacyError, match="changes when it is asked"):
        paid(Remembering())
    assert paid.ledger.releases == 0


def test_a_person_counts_once_however_many_rows():
    """One person owns the wrong quarter, another the last ten rows: all but one are right, each as a share of 1."""
    owners = torch.where(torch.arange(N) < N // 4, 0, torch.arange(N).clamp(max=N - 10))
    paid = PaidAccuracy(held_out(owners), epsilon=1e6, readings=1, insecure_seed=0)
    assert paid.n == N - N // 4 + 1 - 9
    assert paid(Says()) == pytest.approx(1 - 1 / paid.n, abs=1e-2)
    assert paid.ledger.unit == "person"


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps, lambda paid: copy.deepcopy({"a": [paid]})])
def test_a_copy_that_would_share_noise_is_refused(way):
    with pytest.raises(PrivacyError, match=r"a copy of a PaidAccuracy: .*same noise.*Build one for each run"):
        way(PaidAccuracy(held_out(), epsilon=1, readings=2))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_takes_no_reading():
    paid, refused = PaidAccuracy(held_out(), epsilon=1, readings=2), 7
    child = os.fork()
    if child == 0:
        try:
            paid(Says())
        except PrivacyError as error:
            os._exit(refused if "another process" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == refused


def test_readings_of_two_objects_differ():
    assert len({PaidAccuracy(held_out(), epsilon=1, readings=1)(Says()) for _ in range(3)}) == 3


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: PaidAccuracy((1, 2), epsilon=1, readings=1), DataError, "a tuple"),
        (lambda: PaidAccuracy(Data(torch.zeros(3, 1), torch.zeros(3)), epsilon=1, readings=1), DataError, "classes"),
        (lambda: PaidAccuracy(held_out(), epsilon=1, readings=0), ConfigError, "readings=0"),
        (lambda: PaidAccuracy(held_out(), epsilon=-1, readings=1), ConfigError, "epsilon=-1"),
        (lambda: PaidAccuracy(held_out(), epsilon=1, readings=1, delta=math.nan), ConfigError, "delta=nan"),
        (lambda: PaidAccuracy(held_out().take(torch.zeros(0).long()), epsilon=1, readings=1), DataError, "no rows"),
    ],
)
def test_what_means_nothing_is_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_readings_of_a_secure_run_have_secure_noise(monkeypatch):
    drawn = []
    genuine = paid_module.release
    monkeypatch.setattr(
        paid_module, "release", lambda *asked, **how: drawn.append(how["entropy"].secure) or genuine(*asked, **how)
    )
    data = Data(*tiny.data())
    for secure in (True, False):
        PaidAccuracy(data, epsilon=1.0, readings=1, delta=1e-3, secure=secure)(tiny.model())
    assert drawn == [True, False]
