"""Before the first step: optimizers, data and parts that do not fit are refused."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn

from helpers import tiny
from helpers.lineage import other_data
from noisewise.errors import ConfigError, DataError, PrivacyError, PrivacyWarning
from noisewise.training.loop import train
from noisewise.training.state import State
from noisewise.training.step import private_step


def test_other_data_do_not_continue_a_ledger():
    first = tiny.run(plan=tiny.mechanism(steps=2))
    with pytest.raises(
        PrivacyError, match=r"not the data that the ledger counts.*same data.*ledger=None.*identity = None"
    ):
        tiny.run(units=other_data(), ledger=first.ledger)
    assert first.ledger.releases == 2
    first.ledger.identity = None
    assert tiny.run(units=other_data(), ledger=first.ledger).ledger.releases == 2 + tiny.STEPS


def test_data_that_change_under_a_state_are_refused_at_the_next_step():
    network, state, (x, y) = tiny.model(), State.start(tiny.mechanism()), tiny.data()
    optimizer = tiny.sgd(network)
    private_step(network, (x, y), tiny.loss_fn, optimizer, state)
    private_step(network, [x, y], tiny.loss_fn, optimizer, state)
    x[0] += 1
    with pytest.raises(PrivacyError, match="not the data that the ledger counts"):
        private_step(network, (x, y), tiny.loss_fn, optimizer, state)
    assert state.ledger.releases == state.step == 2


# --- budget spent on nothing ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("through", ["train", "private_step"])
def test_an_optimizer_of_another_model_is_refused_before_the_first_step(through):
    network, state = tiny.model(), State.start(tiny.mechanism())
    strangers = [torch.optim.SGD(tiny.model().parameters(), lr=0.1)]
    strangers.append(torch.optim.SGD([*network.parameters(), nn.Parameter(torch.zeros(3))], lr=0.1))
    for stranger in strangers:
        through_train = partial(tiny.run, network, optimizer=lambda _, chosen=stranger: chosen)
        step = partial(private_step, network, tiny.data(), tiny.loss_fn, stranger, state)
        with pytest.raises(ConfigError, match=r"parameters that are not the model's.*Build it on this very model"):
            (through_train if through == "train" else step)()
    assert state.ledger.releases == 0


def test_an_optimizer_of_nothing_that_learns_is_refused():
    network = tiny.model().requires_grad_(False)
    network[2].requires_grad_(True)
    with pytest.raises(ConfigError, match="none of those that learn"):
        tiny.run(network, optimizer=lambda network: torch.optim.SGD(network[0].parameters(), lr=0.1))


def test_what_the_optimizer_leaves_out_is_warned_of():
    with pytest.warns(PrivacyWarning, match=r"does not hold \['0.weight', '0.bias'\].*support=.*requires_grad_"):
        tiny.run(optimizer=lambda network: torch.optim.SGD(network[2].parameters(), lr=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny.run()


# --- parts of a batch that are no tensors -----------------------------------------------------------------------------
@pytest.mark.parametrize("part", ["array", "list", "tuple", "texts", "set", "nested"])
def test_parts_that_every_unit_would_see_whole_are_refused(part):
    x, y = tiny.data()
    extra = {
        "array": y.numpy(), "list": y.tolist(), "tuple": tuple(y.tolist()), "texts": ["a"] * 40, "set": {1, 2},
        "nested": {"deep": [x, y.numpy()]},
    }[part]  # fmt: skip
    with pytest.raises(DataError, match=r"within the data.*every unit would see all of it.*torch.as_tensor"):
        tiny.run(units=(x, y, extra))


def test_single_numbers_texts_and_nothing_are_parts_that_all_may_see():
    network = tiny.model()

    def loss_fn(model, batch):
        return tiny.loss_fn(model, batch["pair"]) * batch["scale"]

    units = {"pair": tiny.data(), "scale": 0.5, "name": "a", "none": None}
    before = tiny.weights(network)
    trained = train(network, units, loss_fn, tiny.mechanism(), tiny.sgd(network), progress=False)
    assert not torch.equal(tiny.weights(trained.model), before)
