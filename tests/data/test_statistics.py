"""Noised statistics of features: the definition in NumPy, the bound of one unit, the ledger, and a recipe that pays."""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting as dp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from noisewise.bounded import Bounded
from noisewise.clipping import Flat
from noisewise.data import Data, Splits
from noisewise.data import statistics as s
from noisewise.errors import ConfigError, DataError, PrivacyError
from noisewise.mechanism import Mechanism
from noisewise.models import build
from noisewise.recipe import Recipe, at_epsilon, fit
from noisewise.sampling import Poisson

BOUNDS = (2.0, 3.0)
UNITS = s.Bounds(2.0, 3.0, torch.linspace(-1, 1, 5).double(), torch.linspace(0.2, 3, 5).double())


def features(n=40, channels=5, seed=0, **more):
    generator = torch.Generator().manual_seed(seed)
    x = 0.5 + torch.rand(n, channels, 3, 2, generator=generator) * torch.linspace(0.1, 2.0, channels).view(-1, 1, 1)
    return Data(x, torch.arange(n) % 2, classes=("a", "b"), **more)


def by_definition(x, bounds):
    """Sums of shortened channel means and mean squares, one image at a time."""
    sums = [np.zeros(x.shape[1]), np.zeros(x.shape[1])]
    for image in x:
        for place, vector in enumerate((image.mean(axis=(1, 2)), (image**2).mean(axis=(1, 2)))):
            sums[place] += vector / max(1.0, np.linalg.norm(vector) / bounds[place])
    return sums


def test_answers_are_the_definition_with_the_stated_noise() -> None:
    data = features()
    first, second = by_definition(data.x.double().numpy(), BOUNDS)
    found = [s.noised_statistics(data, BOUNDS, noise_multiplier=0.5, insecure_seed=seed) for seed in range(400)]
    means = np.array([one.mean.double().numpy() for one in found])
    off = (means * 40 - first) / (0.5 * 2.0)  # standard normal
    assert abs(off.mean()) < 4 / math.sqrt(off.size)
    assert off.std() == pytest.approx(1, abs=4 / math.sqrt(2 * off.size))
    squares = np.array([(one.std.double().square() + one.mean.double().square()).numpy() for one in found])
    floor = 0.5 * 3.0 / 40
    free = np.array([one.std.double().square().numpy() for one in found]) > 1.01 * floor
    assert free[:, -1].all()  # the last channel varies most: no floor in its way
    off = (squares[:, -1] * 40 - second[-1]) / (0.5 * 3.0)
    assert abs(off.mean()) < 4 / math.sqrt(off.size)
    assert off.std() == pytest.approx(1, abs=4 / math.sqrt(2 * off.size))
    assert not free.all()
    assert min(float(one.std.min()) for one in found) == pytest.approx(math.sqrt(floor), rel=1e-5)


@pytest.mark.parametrize("bounds", [(100.0, 100.0), UNITS._replace(means=500.0, squares=500.0)])
def test_little_noise_and_wide_bounds_give_the_statistics_of_a_batch_norm(bounds) -> None:
    data = features(400)
    found = s.noised_statistics(data, bounds, noise_multiplier=1e-3, insecure_seed=0)
    norm = torch.nn.BatchNorm2d(5, momentum=1.0)
    norm(data.x)
    torch.testing.assert_close(found.mean, norm.running_mean, rtol=0.01, atol=0)
    torch.testing.assert_close(found.std.square(), norm.running_var, rtol=0.05, atol=3e-3)


def spread(n, seed, **more):
    """Channels of very different size around 3."""
    x = (
        3
        + torch.randn(n, 3, 2, 2, generator=torch.Generator().manual_seed(seed))
        * torch.tensor([10, 0.5, 0.01])[:, None, None]
    )
    return Data(x, torch.zeros(n, dtype=torch.long), **more)


def test_in_units_of_public_features_small_channels_are_seen_beside_large_ones() -> None:
    """Public features vary half as much. With little room all are shortened alike; as they are, a small one is lost."""
    data, public = spread(2000, 0), spread(500, 1, public=True)
    public = replace(public, x=3 + 0.5 * (public.x - 3))
    known, true = s.bounds_of(public), data.x.std((0, 2, 3))
    assert known.centre is not None
    found = s.noised_statistics(data, known, insecure_seed=0)
    assert bool(((found.std / true - 1).abs() < 0.2).all())
    assert bool(((found.mean - 3).abs() < 0.2 * true).all())
    share = s.noised_statistics(data, s.bounds_of(public, room=1.0), insecure_seed=0).std / true
    assert 0.4 < share.min() <= share.max() < 1.2 * share.min() < 0.8
    raw = s.noised_statistics(
        data, [values.norm(dim=1).median().item() for values in s.moments(public)], insecure_seed=0
    )
    assert raw.std[2] > 10 * true[2]


@pytest.fixture
def released(monkeypatch):
    """What is handed to the door."""
    seen: list[Bounded] = []

    def door(parts, **settings):
        seen.extend(bounded for bounded, _ in parts.values())
        return {name: bounded._values for name, (bounded, _) in parts.items()}

    monkeypatch.setattr(s, "release", door)
    return seen


@pytest.mark.parametrize("bounds", [BOUNDS, UNITS])
def test_one_unit_moves_the_sums_by_at_most_the_bounds(released, bounds) -> None:
    x = features(6).x
    x[2] *= 1000
    x[3, 1, 0, 0] = math.nan
    x[4, 0, 0, 0] = math.inf
    whole = Data(x, torch.zeros(6, dtype=torch.long))
    s.noised_statistics(whole, bounds, insecure_seed=0)
    for left in range(6):
        released.clear()
        s.noised_statistics(whole, bounds, insecure_seed=0)
        s.noised_statistics(whole.take(torch.arange(6) != left), bounds, insecure_seed=0)
        moves = [float((released[k]._values["sum"] - released[k + 2]._values["sum"]).norm()) for k in range(2)]
        assert [bounded.sensitivity for bounded in released[:2]] == list(BOUNDS)
        assert all(move <= bound * (1 + 1e-12) for move, bound in zip(moves, BOUNDS, strict=True))
        assert (max(moves) > 0) == (left not in (3, 4))


@pytest.mark.parametrize("bounds", [BOUNDS, UNITS])
def test_the_rows_of_a_person_are_averaged_before_they_are_shortened(released, bounds) -> None:
    data = features(6, unit=torch.tensor([0, 0, 1, 1, 1, 2]))
    s.noised_statistics(data, bounds, insecure_seed=0)
    means = data.x.double().mean((2, 3))
    means = (means - UNITS.centre) / UNITS.scale if bounds is UNITS else means
    people = torch.stack([means[:2].mean(0), means[2:5].mean(0), means[5]])
    expected = sum(person / max(1.0, float(person.norm()) / BOUNDS[0]) for person in people)
    torch.testing.assert_close(released[0]._values["sum"], expected)


def test_the_ledger_holds_one_gaussian_of_both_answers() -> None:
    ledger = s.noised_statistics(features(), BOUNDS, noise_multiplier=8.0).ledger
    (line,) = ledger.lines
    assert (line.purpose, line.count) == ("feature means + feature squares", 1)
    assert line.event == dp.GaussianDpEvent(pytest.approx(8 / math.sqrt(2)))
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp.ComposedDpEvent([dp.GaussianDpEvent(8.0)] * 2))
    assert ledger.epsilon(1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def recipe(data, statistics):
    model = build("h-cnn-s", tuple(data.x.shape[1:]), 2, 0, statistics=(statistics.mean, statistics.std))
    return Recipe(
        model=model,
        data=Splits(data, data, data),
        loss_fn=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
        mechanism=Mechanism(sampler=Poisson(len(data), 8), clip=Flat(0.1), steps=4, noise_multiplier=2.0),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        ledger=statistics.ledger,
    )


def test_a_recipe_pays_for_its_statistics() -> None:
    data = features(40, 81)
    statistics = s.noised_statistics(data, BOUNDS, noise_multiplier=4.0)
    plan = at_epsilon(recipe(data, statistics), 3.0, 1e-3)
    alone = replace(plan, ledger=None)
    assert alone.epsilon(1e-3) < plan.epsilon(1e-3) <= 3.0
    trained = fit(plan, progress=False)
    assert [line.purpose for line in trained.ledger.lines] == ["feature means + feature squares", "gradient"]
    assert trained.ledger.epsilon(1e-3) == plan.epsilon(1e-3)
    assert trained.status.status == "private"


def test_statistics_belong_to_their_data_and_reproducible_noise_is_marked() -> None:
    data, other = features(40, 81), features(40, 81, seed=1)
    statistics = s.noised_statistics(data, BOUNDS)
    with pytest.raises(PrivacyError, match="ledger"):
        fit(recipe(other, statistics), progress=False)
    marked = fit(recipe(data, s.noised_statistics(data, BOUNDS, insecure_seed=0)), progress=False)
    assert marked.status.status == "not-private"
    one, again = (s.noised_statistics(data, BOUNDS) for _ in range(2))
    assert not torch.equal(one.mean, again.mean)


def test_noise_may_be_secure() -> None:
    """On the grid of `noise.secure_answer`, and as strong as without."""
    data = features()
    first, _ = by_definition(data.x.double().numpy(), BOUNDS)
    found = [s.noised_statistics(data, BOUNDS, noise_multiplier=0.5, insecure_seed=k, secure=True) for k in range(100)]
    off = (np.array([one.mean.double().numpy() for one in found]) * 40 - first) / (0.5 * 2.0)
    assert abs(off.mean()) < 4 / math.sqrt(off.size)
    assert off.std() == pytest.approx(1, abs=4 / math.sqrt(2 * off.size))
    plain = s.noised_statistics(data, BOUNDS, noise_multiplier=0.5, insecure_seed=0)
    assert not torch.equal(found[0].mean, plain.mean)
    one, again = (s.noised_statistics(data, BOUNDS, secure=True) for _ in range(2))
    assert not torch.equal(one.mean, again.mean)
    assert (found[0].ledger.reproducible, one.ledger.reproducible) == (True, False)


def test_bounds_come_from_public_data() -> None:
    public = features(41, public=True)
    x = public.x.double().numpy()
    centre, scale = x.mean((0, 2, 3)), x.std((0, 2, 3))
    z = (x - centre[:, None, None]) / scale[:, None, None]
    expected = [
        float(np.median([np.linalg.norm(v) for v in values])) for values in (z.mean((2, 3)), (z**2).mean((2, 3)))
    ]
    found = s.bounds_of(public, room=2.0)
    assert found[:2] == pytest.approx([2 * length for length in expected], rel=1e-5)
    np.testing.assert_allclose(found.centre, centre, rtol=1e-5)
    np.testing.assert_allclose(found.scale, scale, rtol=1e-5)
    with pytest.raises(PrivacyError, match="a release without noise"):
        s.bounds_of(features())
    assert s.bounds_of(public)[:2] == pytest.approx([s.ROOM * length for length in expected], rel=1e-5)
    with pytest.raises(ConfigError, match="room=0"):
        s.bounds_of(public, room=0)
    broken = public.x.clone()
    broken[3, 0, 0, 0] = math.nan
    for x, message in (
        (broken, "1 of them are not finite"),
        (public.x[:1], "there are 1, and 10 are needed"),
        (torch.ones(12, 5, 3, 2), "do not vary"),
    ):
        with pytest.raises(DataError, match=message):
            s.bounds_of(Data(x, torch.zeros(len(x), dtype=torch.long), public=True))


def test_a_channel_that_is_constant_in_public_features_has_units_all_the_same() -> None:
    public = features(41, public=True)
    public.x[:, 2] = 7.0
    found = s.bounds_of(public)
    assert found.scale[2] == pytest.approx(1e-3 * float(found.scale.max()))
    told = s.noised_statistics(features(), found, insecure_seed=0)
    assert bool((told.std > 0).all())
    assert bool(told.mean.isfinite().all())


@pytest.mark.parametrize(
    ("data", "bounds", "noise", "error", "message"),
    [
        (features(), (1.0,), 8.0, ConfigError, "two numbers"),
        (features(), (1.0, 2.0, 3.0), 8.0, ConfigError, "two numbers"),
        (features(), UNITS._replace(scale=None), 8.0, ConfigError, "belong together"),
        (features(), UNITS._replace(scale=[1.0] * 5), 8.0, ConfigError, "as tensors"),
        (features(), UNITS._replace(scale=torch.full((5,), 1e-320).double()), 8.0, ConfigError, "above 0"),
        (features(channels=4), UNITS, 8.0, ConfigError, "one number for each channel"),
        (features(), UNITS._replace(scale=torch.zeros(5)), 8.0, ConfigError, "scale finite and above 0"),
        (features(), UNITS._replace(centre=torch.full((5,), math.nan)), 8.0, ConfigError, "centre must be finite"),
        (features(), (1.0, 0.0), 8.0, ConfigError, "finite and above 0"),
        (features(), BOUNDS, 0.0, ConfigError, "no noise would protect"),
        (features(), BOUNDS, math.nan, ConfigError, "noise_multiplier"),
        (Data(torch.zeros(3, 2, dtype=torch.long), torch.zeros(3)), BOUNDS, 8.0, DataError, "real features"),
        (features().take(torch.arange(0)), BOUNDS, 8.0, ConfigError, "n=0"),
    ],
)
def test_what_has_no_meaning_is_refused(data, bounds, noise, error, message) -> None:
    with pytest.raises(error, match=message):
        s.noised_statistics(data, bounds, noise_multiplier=noise)
