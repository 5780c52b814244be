"""Scattering features at equal scale: free of records, and at the scale that is promised."""

import pytest
import torch

from noisewise.data import made_up
from noisewise.data.scatter import scatter
from noisewise.errors import ConfigError, DataError
from noisewise.recipes.scattered import FLOOR, MADE_UP, OPPONENT, SEED, Scattering, constants

IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("settings", [{"power": 0.5}, {"scaling": "leaves", "scales": (1, 2), "chroma": 1.0}])
def test_made_up_images_have_features_of_mean_0_and_deviation_1(settings):
    features = Scattering(angles=4, **settings)
    images = made_up.images(features.scaling, MADE_UP, (3, 16, 16), seed=SEED)
    for part in features.maps(images):
        mean, deviation = part.double().mean((0, 2, 3)), part.double().std((0, 2, 3))
        torch.testing.assert_close(mean, torch.zeros_like(mean), rtol=0, atol=1e-4)
        torch.testing.assert_close(deviation, torch.ones_like(deviation), rtol=1e-4, atol=0)


def test_whitening_makes_channels_of_made_up_images_independent():
    images = made_up.images("leaves", MADE_UP, (1, 16, 16), seed=SEED)
    (part,) = Scattering(angles=2, scaling="leaves", whiten=1.0).maps(images)
    flat = part.double().movedim(1, 3).flatten(0, 2)
    (plain,) = Scattering(angles=2, scaling="leaves").maps(images)
    covariance = flat.T @ flat / len(flat)
    before = plain.double().movedim(1, 3).flatten(0, 2)
    values = torch.linalg.eigvalsh(before.T @ before / len(before))
    torch.testing.assert_close(torch.linalg.eigvalsh(covariance), values / (values + FLOOR), rtol=1e-3, atol=1e-3)


def test_without_scaling_they_are_the_transform():
    (part,) = Scattering(scaling="none", angles=4).maps(IMAGES)
    assert torch.equal(part, scatter(IMAGES, scales=2, angles=4))


def test_constants_follow_from_settings_and_shape_alone():
    """No record can enter: they are the same before and after images were looked at, and in a fresh computation."""
    given = ("spectrum", 1, 4, 1.0, False, (1, 8, 8))
    before = constants(*given)
    Scattering(scales=(1,), angles=4).maps(100 * IMAGES[:, :1, :8, :8])
    constants.cache_clear()
    assert all(torch.equal(one, other) for one, other in zip(before, constants(*given), strict=True))


def test_a_row_is_a_function_of_its_own_image():
    features = Scattering(angles=4, scales=(1, 2), power=0.75, chroma=2.0)
    changed = IMAGES.clone()
    changed[2] += 5
    for one, other in zip(features.maps(IMAGES), features.maps(changed), strict=True):
        same = [torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(one, other, strict=True)]
        assert same == [True, True, False, True]


def test_colours_are_turned_without_stretching():
    turn = torch.tensor(OPPONENT, dtype=torch.float64)
    torch.testing.assert_close(turn @ turn.T, torch.eye(3, dtype=torch.float64))
    grey = IMAGES[:, :1].expand(-1, 3, -1, -1)
    (part,) = Scattering(scaling="none", chroma=3.0, scales=(1,), angles=2).maps(grey)
    plain, chroma = part[:, :3], part[:, 3:]
    assert float(chroma.abs().max()) < 1e-4 < float(plain.abs().max())


@pytest.mark.parametrize(
    "settings",
    [
        {"scales": ()},
        {"scales": (0,)},
        {"angles": 0},
        {"scaling": "cats"},
        {"power": 0.0},
        {"whiten": 2.0},
        {"chroma": -1.0},
        {"views": ()},
    ],
)
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(ConfigError, match="|".join(settings) if "views" not in settings else "view"):
        Scattering(**settings)


@pytest.mark.parametrize(("shape", "settings"), [((3, 4, 4), {}), ((10,), {}), ((3, 8, 8), {"shape": (3, 16, 16)})])
def test_inputs_that_do_not_fit_are_refused(shape, settings):
    with pytest.raises(DataError, match="shape"):
        Scattering(**settings).check(shape)


def test_colours_need_three_channels():
    with pytest.raises(ConfigError, match="chroma"):
        Scattering(chroma=1.0).check((1, 8, 8))
