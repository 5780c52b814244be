"""What is drawn and protected as one: all rows of a person, batches filled to a size."""

import numpy as np
import pytest
import torch

from helpers.drawn_together import clipped, data, expected_weights, loss_fn, model, step
from noisewise import Mechanism, Poisson, Runtime, train
from noisewise.clipping import Flat
from noisewise.errors import ConfigError, PrivacyError

PEOPLE = torch.tensor([4, 2, 4, 9, 2, 4, 7, 9, 4, 2])  # four people with 3, 4, 1 and 2 rows


def test_rows_of_people_are_found_whatever_their_order():
    units = data(PEOPLE)
    rows, mask = units.rows_of(torch.arange(4))
    found = [sorted(r[m].tolist()) for r, m in zip(rows, mask, strict=True)]
    assert found == [np.flatnonzero(PEOPLE.numpy() == person).tolist() for person in (2, 4, 7, 9)]
    assert units.units == 4
    assert len(units) == 10


def test_rows_that_fill_up_belong_to_the_same_person():
    rows, _ = data(PEOPLE).rows_of(torch.tensor([2, 1]))
    assert [set(PEOPLE[r].tolist()) for r in rows] == [{7}, {4}]


def test_nobody_has_no_rows():
    rows, mask = data(PEOPLE).rows_of(torch.tensor([], dtype=torch.long))
    assert rows.shape[0] == mask.shape[0] == 0


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_all_rows_of_a_person_are_averaged_and_clipped_as_one(engine):
    units, network = data(PEOPLE), model()
    mechanism = Mechanism(sampler=Poisson(4, 3), clip=Flat(0.1), steps=1, noise_multiplier=1.0, unit="person")
    got, drawn = step(model(), units, mechanism, runtime=Runtime(engine=engine))
    people = torch.unique(PEOPLE)[drawn]
    contributions = [
        clipped(network, loss_fn(network, (units.x[person == PEOPLE], units.y[person == PEOPLE])), 0.1)
        for person in people
    ]
    assert len(drawn) >= 2
    for mine, other in zip(got, expected_weights(network, contributions, 3), strict=True):
        assert torch.allclose(mine, other, rtol=1e-9, atol=1e-12)


def test_people_must_be_counted_and_named():
    units, network = data(PEOPLE), model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    rows = Mechanism(sampler=Poisson(10, 3), steps=1, noise_multiplier=1.0)
    with pytest.raises(PrivacyError, match=r"protects single rows.*unit='person'"):
        train(network, units, loss_fn, rows, optimizer, progress=False)
    wrong = Mechanism(sampler=Poisson(10, 3), steps=1, noise_multiplier=1.0, unit="person")
    with pytest.raises(PrivacyError, match=r"has 4 units.*n=10"):
        train(network, units, loss_fn, wrong, optimizer, progress=False)


def test_people_can_be_trained_on_and_the_ledger_counts_them():
    network = model()
    plan = Mechanism(sampler=Poisson(4, 1), steps=20, noise_multiplier=1.0, unit="person")
    result = train(network, data(PEOPLE), loss_fn, plan, torch.optim.SGD(network.parameters(), lr=0.1), progress=False)
    assert result.ledger.releases == 20
    assert result.ledger.lines[0].event.sampling_probability == 0.25


def test_padded_batches_give_the_same_step():
    mechanism = Mechanism(sampler=Poisson(10, 4, max_batch=9), clip=Flat(0.1), steps=1, noise_multiplier=1.0)
    padded, drawn = step(model(), data(), mechanism, runtime=Runtime(padded=True))
    plain, _ = step(model(), data(), mechanism)
    assert len(drawn) < 9
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-15) for a, b in zip(padded, plain, strict=True))


def test_padding_needs_a_size():
    mechanism = Mechanism(sampler=Poisson(10, 4), steps=1, noise_multiplier=1.0)
    with pytest.raises(ConfigError, match="give the sampler a max_batch"):
        step(model(), data(), mechanism, runtime=Runtime(padded=True))
