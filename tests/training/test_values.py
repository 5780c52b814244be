"""Values that the loss cannot take are named before anything is spent."""

import math

import pytest
import torch
from torch.utils.data import TensorDataset

from helpers import tiny
from noisewise.accounting import Ledger
from noisewise.data.indexed import Indexed
from noisewise.errors import DataError
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


def test_looking_leaves_the_random_state_and_the_gradients_alone():
    network = tiny.model(dropout=0.5)
    before = torch.get_rng_state()
    state = tiny.run(network, insecure_seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(
        tiny.weights(state.model), tiny.weights(tiny.run(tiny.model(dropout=0.5), insecure_seed=1).model)
    )
