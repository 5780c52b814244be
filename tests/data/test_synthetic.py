from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from noisewise.data import Data, load, signal_noise, two_patch
from noisewise.data.synthetic import (
    FEATURES,
    SignalNoise,
    TwoPatch,
    rotated_features,
    two_patch_distribution,
)
from noisewise.errors import ConfigError


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def feature_patch(source: TwoPatch, data: Data) -> torch.Tensor:
    """Which patch is the row's feature: found by comparing, one row at a time."""
    places = []
    for x, feature in zip(data.x, data.groups["feature"], strict=True):
        u = source.features[feature].float()
        same = [torch.equal(x[0], u), torch.equal(x[1], u)]
        assert sum(same) == 1
        places.append(same.index(True))
    return torch.tensor(places)


@pytest.mark.parametrize("basis", ["random", "unit"])
def test_features_are_orthogonal_and_have_their_norms(basis) -> None:
    source = two_patch_distribution(3, basis=basis)
    gram = source.features @ source.features.T
    np.testing.assert_allclose(gram.numpy(), np.diag([25.0, 9.0, 16.0, 4.0]), atol=1e-12)
    np.testing.assert_allclose(source.norms.numpy(), [5, 3, 4, 2])
    assert source.features.shape == (4, 200)
    if basis == "unit":
        assert torch.equal(source.features.argmax(1), torch.arange(4))
    else:
        assert not torch.equal(source.features, two_patch_distribution(4).features)
        assert torch.equal(source.features, two_patch_distribution(3, sigma_xi=1.0).features)


def test_every_row_is_its_feature_beside_noise() -> None:
    source = two_patch_distribution()
    data = source.draw(500, seeded())
    place = feature_patch(source, data)
    assert data.x.shape == (500, 2, 200)
    assert data.x.dtype == torch.float32
    assert torch.equal(data.y, torch.div(data.groups["feature"], 2, rounding_mode="floor"))
    assert data.classes == ("1", "2")
    assert data.group_names == {"feature": FEATURES}
    assert data.public
    assert stats.binomtest(int(place.sum()), 500).pvalue > 0.001
    assert stats.binomtest(round(0.6 * 500), 500).pvalue < 0.001  # a coin of 0.6 would be seen
    agree = int((place == data.y).sum())  # and it is no coin of the class
    assert stats.binomtest(agree, 500).pvalue > 0.001


def test_groups_are_drawn_by_their_proportions() -> None:
    source = two_patch_distribution(proportions=(0.35, 0.15, 0.4, 0.1))
    counts = source.draw(4000, seeded(1)).groups["feature"].bincount(minlength=4).numpy()
    assert stats.chisquare(counts, 4000 * np.array([0.35, 0.15, 0.4, 0.1])).pvalue > 0.001
    assert stats.chisquare(counts, 4000 * np.array([0.4, 0.1, 0.4, 0.1])).pvalue < 1e-6


def noise_of(source: TwoPatch, n: int) -> torch.Tensor:
    data = source.draw(n, seeded(2))
    return data.x[torch.arange(n), 1 - feature_patch(source, data)].double()


def test_noise_has_no_part_along_the_features_and_its_deviation_elsewhere() -> None:
    source = two_patch_distribution(sigma_xi=0.3, d=50)
    noise = noise_of(source, 1000)
    unit = source.features / source.norms.unsqueeze(1)
    assert (noise @ unit.T).abs().max() < 1e-6
    energy = float(noise.square().sum()) / 0.3**2  # chi-square with 1000 (50 - 4) degrees of freedom
    law = stats.chi2(1000 * 46)
    assert 0.001 < law.cdf(energy) < 0.999
    assert law.cdf(energy * 50 / 46) > 1 - 1e-9  # noise in all 50 dimensions would be seen
    rest = torch.linalg.qr(torch.cat([unit.T, torch.eye(50, dtype=torch.float64)], 1)).Q[:, 4:50]
    assert stats.kstest((noise @ rest).flatten().numpy() / 0.3, "norm").pvalue > 0.001


def test_noise_in_all_directions_is_an_option() -> None:
    source = two_patch_distribution(sigma_xi=0.3, d=50, project=False)
    along = noise_of(source, 1000) @ (source.features / source.norms.unsqueeze(1)).T
    assert stats.kstest(along.flatten().numpy() / 0.3, "norm").pvalue > 0.001
    assert stats.kstest(along.flatten().numpy() / 0.33, "norm").pvalue < 0.001


def test_the_loader_draws_from_the_distribution_of_its_seed() -> None:
    parts = two_patch(5, valid=20, n=30, test=40, d=10, norms=(1, 2, 3, 4))
    source = two_patch_distribution(5, d=10, norms=(1, 2, 3, 4))
    assert [len(part) for part in parts] == [30, 20, 40]
    for part in parts:
        feature_patch(source, part)
    other = two_patch(5, valid=7, n=30, test=10, d=10, norms=(1, 2, 3, 4))
    assert torch.equal(other.train.x, parts.train.x)  # the size of one part does not change another
    alike = two_patch(5, valid=30, n=30, test=30, d=10, norms=(1, 2, 3, 4))
    rows = {x.numpy().tobytes() for part in alike for x in part.x}
    assert len(rows) == 90  # no row is in two parts
    assert not torch.equal(two_patch(6, n=30, d=10).train.x, two_patch(5, n=30, d=10).train.x)


def test_the_defaults_are_loaded_by_name() -> None:
    parts = load("two_patch", 1, 0)
    assert [len(part) for part in parts] == [1000, 0, 1000]
    assert torch.equal(parts.train.x, two_patch(1, 0).train.x)
    assert load("signal_noise").train.x.shape == (1000, 200)


def test_global_random_numbers_are_not_used() -> None:
    before = torch.random.get_rng_state()
    two_patch(n=5, d=8)
    signal_noise(n=5)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("degrees", [0, 30, 45, 90, -20])
def test_rotated_features_have_the_angle_and_stay_orthogonal(degrees: float) -> None:
    before, after = rotated_features(degrees, seed=2, d=30, norm=3.0)
    (u1, u2), (v1, v2) = before.features, after.features
    t = math.radians(degrees)
    assert float(u1 @ v1) / 9 == pytest.approx(math.cos(t))
    assert float(u2 @ v2) / 9 == pytest.approx(math.cos(t))
    assert float(u2 @ v1) / 9 == pytest.approx(math.sin(t))
    assert float(u1 @ v2) / 9 == pytest.approx(-math.sin(t))
    assert float(v1 @ v2) == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(after.norms.numpy(), [3, 3])
    np.testing.assert_allclose(before.norms.numpy(), [3, 3])


def test_rotated_features_are_drawn_with_the_prior() -> None:
    _, after = rotated_features(60, prior=0.8)
    data = after.draw(1000, seeded(4))
    feature_patch(after, data)
    assert torch.equal(data.y, data.groups["feature"])
    assert stats.binomtest(int((data.y == 0).sum()), 1000, 0.8).pvalue > 0.001
    assert [len(part) for part in after.splits(0, 5, n=6, test=7)] == [6, 5, 7]


def test_signal_and_noise_have_their_moments() -> None:
    source = SignalNoise(ds=5, dn=10, norm=1.5, deviation=0.7)
    data = source.draw(20_000, seeded(5))
    assert data.task == "regression"
    assert sorted(set(data.y.tolist())) == [-1, 1]
    assert stats.binomtest(int((data.y > 0).sum()), 20_000).pvalue > 0.001
    mean = np.r_[np.full(5, 1.5 / math.sqrt(5)), np.zeros(10)]
    assert np.linalg.norm(source.mean.numpy()) == pytest.approx(1.5)
    residual = (data.x.double() * data.y.double().unsqueeze(1)).numpy() - mean
    z = residual.mean(0) / 0.7 * math.sqrt(20_000)
    assert stats.chi2(15).sf(np.sum(z**2)) > 0.001
    assert stats.chi2(15).sf(np.sum((z + 5) ** 2)) < 1e-6
    assert stats.kstest(residual.flatten() / 0.7, "norm").pvalue > 0.001
    assert stats.kstest(residual.flatten() / 0.72, "norm").pvalue < 0.001
    assert np.abs(np.corrcoef(residual.T) - np.eye(15)).max() < 5 / math.sqrt(20_000)


def test_the_minimum_is_that_of_least_squares() -> None:
    source = SignalNoise(ds=4, dn=3)
    data = source.draw(40_000, seeded(6))
    fit = np.linalg.lstsq(data.x.double().numpy(), data.y.double().numpy(), rcond=None)[0]
    assert np.abs(fit - source.minimum.numpy()).max() < 0.01
    assert float(source.minimum @ source.mean) == pytest.approx(4 / 5)  # ||v||^2/(||v||^2 + s^2)


def test_the_loader_of_signal_and_noise() -> None:
    parts = signal_noise(1, 5, n=6, test=7, ds=3, dn=2, norm=1.0, deviation=0.0)
    assert [len(part) for part in parts] == [6, 5, 7]
    expected = parts.train.y.unsqueeze(1) * torch.tensor([1 / math.sqrt(3)] * 3 + [0.0] * 2)
    torch.testing.assert_close(parts.train.x, expected)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"proportions": (0.4, 0.1, 0.4, 0.2)}, "proportions="),
        ({"proportions": (1.2, -0.2, 0.0, 0.0)}, "proportions="),
        ({"proportions": (0.5, 0.5)}, "a label, a proportion"),
        ({"norms": (1, 2, 3)}, "give four"),
        ({"norms": (1, 2, 3, 0)}, "norm above 0"),
        ({"sigma_xi": -1}, "sigma_xi=-1"),
        ({"d": 3}, "d=3"),
        ({"basis": "random walk"}, "basis="),
        ({"n": 0}, "n=0"),
        ({"valid": -1}, "-1 rows"),
        ({"test": 1.5}, "1.5 rows"),
    ],
)
def test_impossible_settings_are_refused(settings: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        two_patch(**settings)


def test_other_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="not orthogonal"):
        TwoPatch(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), (0, 1), (0.5, 0.5), 0.1, ("a", "b"))
    for wrong in ({"ds": 0}, {"dn": -1}, {"norm": 0.0}, {"deviation": math.inf}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            SignalNoise(**wrong)
    with pytest.raises(ConfigError, match="degrees="):
        rotated_features(math.inf)
