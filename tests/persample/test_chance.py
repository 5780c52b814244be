"""What one unit moves in the clipped sum if gradients or draws follow the number of units or the place of a row."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from helpers.self_seeding import BOUND, SELF_SEEDING, Net, X, Y, cross_entropy, hidden, moved
from noisewise.batches import Views
from noisewise.clipping import Flat
from noisewise.persample import clipped_sum, engines, examine
from noisewise.persample.chance import Seeds, random_state, reseed
from noisewise.persample.conditions import NotProven
from noisewise.persample.units_alone import loop
from noisewise.training.augmentation import check_augment


def torch_draw():
    return torch.rand(())


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


@pytest.mark.parametrize("between", SELF_SEEDING)
@pytest.mark.parametrize("units", [2, 3, 6, 40])
def test_draws_that_follow_the_place_of_a_row_are_made_for_each_unit_alone(between, units):
    """Leaving out the first unit would give all others the draws of their neighbours, which whoever has the code knows."""
    model = Net(between)
    layout = examine(model, cross_entropy, (X[:0], Y[:0]))
    assert not layout.proven
    assert moved(model, layout, units) <= 1 + 1e-6


def forked_twice(model, x):
    with torch.random.fork_rng([]):
        first = F.dropout(hidden(model, x), 0.5, model.training)
    return first + F.dropout(hidden(model, x), 0.5, model.training)


def rewound(model, x):
    state = torch.get_rng_state()
    first = F.dropout(hidden(model, x), 0.5, model.training)
    torch.set_rng_state(state)
    return first + F.dropout(hidden(model, x), 0.5, model.training)


@pytest.mark.parametrize("between", [forked_twice, rewound])
def test_draws_that_are_repeated_within_a_pass_are_not_proven(between):
    assert not examine(Net(between), cross_entropy, (X[:0], Y[:0])).proven


def test_a_pass_does_not_repeat_the_draws_of_another():
    with random_state(5):
        draws = []
        for _ in range(3):
            Seeds()
            state = torch.get_rng_state()
            draws.append(torch.rand(()).item())
            torch.set_rng_state(state)  # as a model might, or fork_rng
    assert len(set(draws)) == 3


def test_what_one_pass_seeds_is_not_taken_for_the_secret_of_the_next():
    seeds = []
    for _ in range(2):
        with random_state(5):
            Seeds()
            assert torch.initial_seed() == 5
            for chosen in (0, 0, 5000):
                torch.manual_seed(chosen)  # as a model might
                Seeds()
                seeds.append(torch.initial_seed())
    assert len(set(seeds)) == 3
    assert seeds[:3] == seeds[3:]
    assert not {0, 5, 5000} & set(seeds)


@pytest.mark.parametrize(
    ("draw", "seed"),
    [(torch_draw, torch.manual_seed), (random.random, random.seed), (np.random.rand, np.random.seed)],
    ids=["torch", "python", "numpy"],
)
def test_no_unit_alone_draws_from_what_the_one_before_it_seeded(draw, seed):
    seen = []

    def between(model, x):
        seen.append(float(draw()))
        seed(0)
        return hidden(model, x)

    model, runs = Net(between), []
    for _ in range(2):
        seen.clear()
        with random_state(5):
            loop(model, cross_entropy, Views.single((X, Y)), dict(model.named_parameters()))
        assert len(set(seen)) == len(X)
        runs.append(list(seen))
    assert runs[0] == runs[1]


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
    with pytest.raises(ZeroDivisionError), random_state(4):
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


def test_a_seed_on_one_device_says_nothing_of_another(monkeypatch):
    class Beside(torch.Generator):
        """Stands for the generator of a GPU, which a model left with the seed 0."""

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "default_generators", (Beside().manual_seed(0),))
    monkeypatch.setattr(Seeds, "_states", lambda _: [])  # which would show it too
    torch.default_generator.manual_seed(7)
    seeds = Seeds()
    seeds.check(torch.ops.aten.bernoulli.p, {})
    torch.default_generator.manual_seed(0)
    with pytest.raises(NotProven, match="seeds itself"):
        seeds.check(torch.ops.aten.bernoulli.p, {})
