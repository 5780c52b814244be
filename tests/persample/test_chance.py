"""What one unit moves in the clipped sum if gradients or draws follow the number of units or the place of a row."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from noisewise.clipping import Flat
from noisewise.persample import clipped_sum, engines, examine
from noisewise.persample.chance import random_state, reseed
from noisewise.testing import reveal
from noisewise.training.augmentation import check_augment

BOUND = 1e-3
G = torch.Generator().manual_seed(0)
X, Y = torch.randn(40, 6, generator=G).double(), torch.randint(0, 3, (40,), generator=G)


class Net(nn.Module):
    """Two layers; what happens in between is given."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(6, 8).double(), nn.Linear(8, 3).double()
        self.between = between

    def forward(self, x):
        """Logits."""
        return self.head(self.between(self, x))


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def moved(model, layout, units):
    """How far leaving out the first unit moves the clipped sum, in units of the sensitivity."""

    def total(first):
        batch = (X[first:units], Y[first:units])
        clipped = clipped_sum(model, cross_entropy, batch, Flat(BOUND), layout=layout, seed=7_000_000_007)
        return torch.cat([value.flatten() for value in reveal(clipped.grads).values()])

    return float((total(0) - total(1)).norm() / BOUND)


def hidden(model, x):
    return torch.tanh(model.body(x))


def detached(model, x):
    return hidden(model, x).detach() if len(x) > 20 else hidden(model, x)


def without_gradients(model, x):
    with torch.set_grad_enabled(len(x) <= 20):
        return hidden(model, x)


def detached_weight(model, x):
    weight = model.body.weight.detach() if len(x) > 20 else model.body.weight
    return torch.tanh(F.linear(x, weight, model.body.bias))


@pytest.mark.parametrize("between", [detached, without_gradients, detached_weight])
@pytest.mark.parametrize("units", [5, 20, 21, 22, 40])
def test_where_gradients_go_does_not_follow_the_number_of_units(between, units):
    """Losses are the same at all sizes, gradients are not: one unit more would change what all the others add."""
    model = Net(between)
    layout = examine(model, cross_entropy, (X[:0], Y[:0]))
    assert moved(model, layout, units) <= 1 + 1e-6


def own_generator(model, x):
    drawn = torch.rand(len(x), 8, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    return hidden(model, x) * (drawn > 0.5 if model.training else 1)


def seeded(model, x):
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return F.dropout(hidden(model, x), 0.5, model.training)


def seeded_beside_an_unknown_operation(model, x):
    return seeded(model, x) * torch.linalg.matrix_norm(x.unsqueeze(-1), "nuc").unsqueeze(-1)


@pytest.mark.parametrize("between", [own_generator, seeded, seeded_beside_an_unknown_operation])
@pytest.mark.parametrize("units", [2, 3, 6, 40])
def test_draws_that_follow_the_place_of_a_row_are_made_for_each_unit_alone(between, units):
    """Leaving out the first unit would give all others the draws of their neighbours, which whoever has the code knows."""
    model = Net(between)
    layout = examine(model, cross_entropy, (X[:0], Y[:0]))
    assert not layout.proven
    assert moved(model, layout, units) <= 1 + 1e-6


def test_ordinary_dropout_is_proven():
    model = Net(lambda model, x: F.dropout(hidden(model, x), 0.5, model.training))
    assert examine(model, cross_entropy, (X[:0], Y[:0])).proven


def test_an_augmentation_that_brings_its_own_generator_is_given_one_unit_at_a_time():
    def at_given_chance(rows, generator):
        return rows + torch.rand(rows.shape, generator=generator)

    def also_at_its_own(rows, generator):
        own = torch.rand(rows.shape, generator=torch.Generator().manual_seed(0))
        return at_given_chance(rows, generator) + own

    like = torch.zeros(0, 6)
    assert check_augment(at_given_chance, like) is not None
    assert check_augment(also_at_its_own, like) is None


def test_chance_of_python_and_numpy_is_secret_and_put_back():
    seen = []

    def between(model, x):
        draws = (random.random(), np.random.rand(), torch.rand(()).item())
        if model.recording:
            seen.append(draws)
        return hidden(model, x)

    model = Net(between)
    model.recording = False
    layout = examine(model, cross_entropy, (X[:0], Y[:0]))
    model.recording = True
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = (random.random(), np.random.rand(), torch.rand(()).item())
    drawn = []
    for seed in (1, 1, 2):
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        seen.clear()
        clipped_sum(model, cross_entropy, (X, Y), Flat(BOUND), layout=layout, seed=seed)
        drawn.append(seen[0])
        assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected
    assert drawn[0] == drawn[1]
    assert all(a != b for a, b in zip(drawn[0], drawn[2], strict=True))
    assert all(a != b for a, b in zip(drawn[0], expected, strict=True))


def test_generators_are_put_back_after_an_error():
    reseed(3)
    expected = (random.random(), np.random.rand(), torch.rand(()).item())
    reseed(3)
    with pytest.raises(ZeroDivisionError), random_state([], 4):
        raise ZeroDivisionError
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected


def test_skipping_a_layer_by_pythons_own_chance_is_not_taken_for_coupling():
    model = Net(lambda model, x: hidden(model, x) * (2 if model.training and random.random() < 0.5 else 1))
    layout = examine(model, cross_entropy, (X[:0], Y[:0]))
    assert clipped_sum(model, cross_entropy, (X, Y), Flat(BOUND), layout=layout, seed=1).norms.isfinite().all()


@pytest.mark.parametrize("units", [2, 8])
def test_which_way_is_taken_does_not_depend_on_the_number_of_units(units, monkeypatch):
    """Each unit's own coin decides for that unit: else the ways of all would change with the number of coins."""
    model = Net(lambda model, x: hidden(model, x) * (2 if model.tossing and random.random() < 0.5 else 1))
    model.tossing = False
    layout = examine(model, cross_entropy, (X[:0], Y[:0]))
    assert layout.proven
    whole = []
    alone = engines.alone
    monkeypatch.setattr(engines, "alone", lambda *args: whole.append(1) or alone(*args))
    model.tossing, tosses = True, 100
    for seed in range(tosses):
        clipped_sum(model, cross_entropy, (X[:units], Y[:units]), Flat(BOUND), layout=layout, seed=seed)
    share, expected = len(whole) / tosses, 1 / 4  # the batch's coin and the rehearsal's
    assert abs(share - expected) < 4 * (expected * (1 - expected) / tosses) ** 0.5


def test_the_largest_of_many_draws_is_not_proven():
    """The more units there are, the larger it is."""

    def between(model, x):
        largest = torch.poisson(torch.full((len(x), 1), 0.3, dtype=x.dtype)).amax(0)
        return hidden(model, x) * (largest if model.training else 1)

    assert not examine(Net(between), cross_entropy, (X[:0], Y[:0])).proven
