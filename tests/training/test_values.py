"""Values that the loss cannot take are named before anything is spent."""

import math
from dataclasses import replace

import pytest
import torch
from torch.utils.data import TensorDataset

from helpers import tiny
from noisewise.accounting import Ledger
from noisewise.data import Data, disk
from noisewise.data.indexed import Indexed
from noisewise.errors import DataError
from noisewise.training import values
from noisewise.training.augmentation import Augment
from noisewise.training.loop import train


def with_value(where, row, value):
    units = [tensor.clone() for tensor in tiny.data()]
    units[where].view(tiny.N, -1)[row, -1] = value
    return tuple(units)


@pytest.mark.parametrize("as_items", [False, True])
@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        (1, 3, r"row 7 of the data holds 3 in its targets.*IndexError: Target 3 is out of bounds"),
        (1, -1, r"row 7 of the data holds -1 in its targets"),
        (0, math.nan, r"row 7 of the data holds nan in its inputs.*its loss is nan"),
        (0, math.inf, r"row 7 of the data holds inf in its inputs.*its gradient is not finite"),
    ],
)
def test_a_row_that_the_loss_cannot_take_is_named(where, value, words, as_items):
    units = with_value(where, 7, value)
    ledger = Ledger("add-remove", unit="row")
    with pytest.raises(DataError, match=words):
        tiny.run(units=Indexed(TensorDataset(*units)) if as_items else units, ledger=ledger)
    assert ledger.lines == []


def test_a_model_with_a_way_for_missing_numbers_is_trained():
    class Filled(torch.nn.Sequential):
        def forward(self, x):
            return super().forward(x.nan_to_num(0.0))

    network = Filled(torch.nn.Linear(5, 3))
    run = train(
        network, with_value(0, 7, math.nan), tiny.loss_fn, tiny.mechanism(), tiny.sgd(network), progress=False
    )  # fmt: skip
    assert run.ledger.lines == tiny.mechanism().lines()


def test_rows_are_asked_as_the_augmentation_leaves_them():
    augment = Augment(lambda rows, generator: (rows[0].nan_to_num(0.0), rows[1]))
    run = tiny.run(units=with_value(0, 7, math.nan), augment=augment)
    assert run.ledger.lines == tiny.mechanism().lines()


def taken_late(units, tmp_path, kind, **settings):
    """A run on rows that nobody has looked through; what its ledger holds at its end."""
    if kind == "named":
        units = Indexed(TensorDataset(*units), identity="the tiny ones")
    else:
        disk.save(Data(*units, unit=torch.arange(tiny.N) if kind == "people" else None), tmp_path / "data")
        units = disk.open(tmp_path / "data", verify=kind == "verified")
    ledger = Ledger("add-remove", unit="person" if kind == "people" else "row")
    plan = replace(tiny.mechanism(), unit="person") if kind == "people" else tiny.mechanism()
    try:
        tiny.run(units=units, ledger=ledger, plan=plan, **settings)
    except DataError as error:
        return str(error), ledger.releases
    return None, ledger.releases


@pytest.mark.parametrize("kind", ["verified", "unread", "people", "named"])
@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        (1, 3, "holds 3 in its targets"),
        (0, math.nan, "holds nan in its inputs"),
        (0, math.inf, "holds inf in its inputs"),
    ],
)
def test_rows_on_disk_are_looked_at_when_they_are_verified_or_taken(tmp_path, kind, where, value, words):
    refusal, releases = taken_late(with_value(where, 7, value), tmp_path, kind, insecure_seed=1)
    assert f"row 7 of the data {words}" in refusal
    assert 0 <= releases < tiny.STEPS
    assert ("before it was read" in refusal) == (kind != "verified")
    assert f"({releases} steps were released" in refusal or kind == "verified"
    assert releases == 0 or kind != "verified"


@pytest.mark.parametrize("kind", ["unread", "named"])
def test_what_the_loss_takes_is_asked_once(tmp_path, kind, monkeypatch):
    asked = []
    monkeypatch.setattr(values, "_refused", lambda *_: asked.append(1))
    units = tiny.data()
    units[0][:, 0] = math.nan
    refusal, releases = taken_late(units, tmp_path, kind, insecure_seed=1)
    assert (refusal, releases) == (None, tiny.STEPS)
    assert 1 <= len(asked) <= 1 + 3  # one that is no number, and the three classes at most


def test_a_run_on_rows_that_are_looked_at_later_is_the_same_run(tmp_path):
    disk.save(Data(*tiny.data()), tmp_path / "data")
    runs = [tiny.run(units=disk.open(tmp_path / "data", verify=verify), insecure_seed=1) for verify in (True, False)]
    assert torch.equal(tiny.weights(runs[0].model), tiny.weights(runs[1].model))


def test_looking_leaves_the_random_state_and_the_gradients_alone():
    network = tiny.model(dropout=0.5)
    before = torch.get_rng_state()
    state = tiny.run(network, insecure_seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(
        tiny.weights(state.model), tiny.weights(tiny.run(tiny.model(dropout=0.5), insecure_seed=1).model)
    )
