"""Views of a row: averaged before clipping, each changed by itself."""

from dataclasses import replace

import pytest
import torch
from torch.utils.data import TensorDataset

from helpers import compose, tiny
from helpers.drawn_together import clipped, data, expected_weights, loss_fn, model, step
from helpers.steps import drawn as batch_of
from noisewise import Mechanism, Poisson
from noisewise.clipping import Flat
from noisewise.data import Data
from noisewise.data.indexed import Indexed
from noisewise.errors import ConfigError, CoupledSamples
from noisewise.training.augmentation import Augment, augmented, check_augment


def shift(rows, generator):
    x, y = rows
    return x + torch.randn(x.shape, generator=generator).double(), y


def test_views_are_averaged_before_clipping():
    units, network = data(), model()
    mechanism = Mechanism(sampler=Poisson(10, 5), clip=Flat(0.1), steps=1, noise_multiplier=1.0)
    seen = []

    def remember(rows, generator):
        seen.append(shift(rows, generator))
        return seen[-1]

    got, drawn = step(model(), units, mechanism, augment=Augment(remember, 4))
    x, y = seen[-1]  # the first ones are made-up rows of the check
    assert x.shape[0] == 4 * len(drawn)
    contributions = [
        clipped(network, loss_fn(network, (x[4 * i : 4 * i + 4], y[4 * i : 4 * i + 4])), 0.1) for i in range(len(drawn))
    ]
    for mine, other in zip(got, expected_weights(network, contributions, 5), strict=True):
        assert torch.allclose(mine, other, rtol=1e-9, atol=1e-12)


def test_one_view_that_changes_nothing_is_no_augmentation():
    units = data()
    mechanism = Mechanism(sampler=Poisson(10, 5), clip=Flat(0.1), steps=1, noise_multiplier=1.0)
    with_views, _ = step(model(), units, mechanism, augment=Augment(lambda rows, _: rows, 3))
    without, _ = step(model(), units, mechanism)
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(with_views, without, strict=True))


def test_an_augmentation_that_loses_rows_is_refused():
    mechanism = Mechanism(sampler=Poisson(10, 5), steps=1, noise_multiplier=1.0)
    with pytest.raises(ConfigError, match="one for each"):
        step(model(), data(), mechanism, augment=Augment(lambda rows, _: tuple(r[:1] for r in rows), 3))


def test_units_are_changed_each_in_its_own_way_and_the_same_way_again():
    """Given one at a time, each unit has draws of its own: equal rows become different versions."""

    def noisy(rows, generator):
        return rows + torch.rand(rows.shape, generator=generator)

    seen, again = (augmented(noisy, torch.zeros(12, 4), 3, 5, None) for _ in range(2))
    assert torch.equal(seen, again)
    assert len({tuple(row) for row in seen.tolist()}) == 12
    assert not torch.equal(seen, augmented(noisy, torch.zeros(12, 4), 3, 6, None))


def mixup(rows, generator):
    share = torch.rand(1, generator=generator)
    return share * rows[0] + (1 - share) * rows[0].roll(1, 0), rows[1]


def by_number(rows, generator):
    return rows[0] / len(rows[0]), rows[1]


def by_place(rows, generator):
    return rows[0] * (torch.arange(len(rows[0])) % 2).view(-1, 1, 1, 1), rows[1]


@pytest.mark.parametrize("function", [by_number, by_place])
def test_versions_that_depend_on_number_or_place_of_rows_are_refused(function):
    like = (torch.zeros(0, 1, 4, 4), torch.zeros(0, dtype=torch.long))
    with pytest.raises(CoupledSamples, match="leaving one row out changed the versions of the others"):
        check_augment(function, like)


def rarely(rows, generator):
    return mixup(rows, generator) if torch.rand(1, generator=generator) < 0.2 else rows


def test_mixing_that_happens_now_and_then_is_found():
    like = (torch.zeros(0, 1, 4, 4), torch.zeros(0, dtype=torch.long))
    with pytest.raises(CoupledSamples, match="replacing one row"):
        check_augment(rarely, like)


def test_other_sources_of_randomness_and_lost_rows_are_refused():
    def elsewhere(rows, generator):
        return rows[0] + torch.rand(()), rows[1]

    def shorter(rows, generator):
        return rows[0][1:], rows[1][1:]

    like = (torch.zeros(0, 1, 4, 4), torch.zeros(0, dtype=torch.long))
    for function, message in ((elsewhere, "different versions for the same generator"), (shorter, "39 rows for 40")):
        with pytest.raises(ConfigError, match=message):
            check_augment(function, like)
    assert check_augment(compose.turned, like) is not None


def _length(row):
    length = float(row.norm())
    if not length:
        raise ValueError("a blank row")
    return length


@pytest.mark.parametrize(
    "function",
    [
        lambda rows, generator: (rows[0] * 1.1, rows[1]),
        lambda rows, generator: (rows[0] + torch.randn(rows[0].shape, generator=generator), rows[1]),
        lambda rows, generator: (torch.stack([row.sort().values for row in rows[0]]), rows[1]),  # not of no rows
        lambda rows, generator: (torch.stack([row / _length(row) for row in rows[0]]), rows[1]),  # nor of blank ones
    ],
    ids=["proven", "drawn", "one by one", "of some length"],
)
@pytest.mark.parametrize("kind", ["rows", "people", "read"])
def test_a_batch_of_nobody_is_a_step_like_any_other(function, kind):
    plan = tiny.mechanism(sampler=Poisson(tiny.N, 2), steps=20)
    assert not all(len(batch_of(plan, 1, step)) for step in range(20))
    units = tiny.data()
    if kind == "people":
        units, plan = Data(*units, unit=torch.arange(tiny.N)), replace(plan, unit="person")
    elif kind == "read":
        units = Indexed(TensorDataset(*units), identity="the tiny ones")
    run = tiny.run(units=units, plan=plan, augment=Augment(function, 2), insecure_seed=1)
    assert run.ledger.releases == 20


def test_versions_of_nobody_have_the_shape_of_versions():
    rows = (torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.long))
    x, y = augmented(lambda rows, _: (rows[0][..., 2:6, 2:6].flatten(1), rows[1]), rows, 2, 0, None)
    assert (x.shape, y.shape, y.dtype) == ((0, 48), (0,), torch.long)
