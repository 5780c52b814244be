"""Random waves: the kernel that they stand for, row by row, the same everywhere."""

import math

import pytest
import torch
from sklearn.metrics.pairwise import rbf_kernel

from noisewise.errors import ConfigError
from noisewise.models.heads import LENGTH
from noisewise.recipes import features_of
from noisewise.recipes.scattered import Scattering
from noisewise.recipes.waves import STEEPEST, _directions, check_waves, on_waves

ROWS = torch.randn(6, 12, generator=torch.Generator().manual_seed(3))
ROWS *= LENGTH / ROWS.norm(dim=1, keepdim=True)
IMAGES = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
SMALL = Scattering(scales=(1,), angles=2, waves=7)


@pytest.mark.parametrize("pitch", [0.5, 1.0])
def test_products_of_waves_are_those_of_a_gaussian_kernel(pitch):
    waves = on_waves(ROWS, 40_000, pitch).double()
    kernel = torch.as_tensor(rbf_kernel(ROWS.double().numpy(), gamma=(pitch / LENGTH) ** 2 / 2))
    torch.testing.assert_close(waves @ waves.T / 40_000, kernel, rtol=0, atol=5 / math.sqrt(40_000))
    assert 0.1 < float(kernel.min()) < float(kernel[~torch.eye(6, dtype=torch.bool)].max()) < 0.95


def test_each_wave_is_written_out():
    directions = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    for row, wave in zip(ROWS, on_waves(ROWS, 3, 1.5), strict=True):
        phases = [sum(float(value) * float(way) for value, way in zip(row, one, strict=True)) for one in directions.T]
        turned = [1.5 / LENGTH * phase for phase in phases]
        assert wave.tolist() == pytest.approx([*map(math.cos, turned), *map(math.sin, turned)], abs=1e-5)


def test_waves_are_made_row_by_row_and_are_the_same_whatever_was_drawn_before():
    whole = on_waves(ROWS, 5, 1.0)
    _directions.cache_clear()  # another process
    torch.manual_seed(123)
    torch.testing.assert_close(on_waves(ROWS[2:3], 5, 1.0), whole[2:3])
    changed = ROWS.clone()
    changed[0] = 0.0
    torch.testing.assert_close(on_waves(changed, 5, 1.0)[1:], whole[1:])


@pytest.mark.parametrize("average", [True, False])
def test_features_go_through_waves_to_one_length(average):
    features = Scattering(scales=(1,), angles=2, waves=7, pitch=0.5, views=("same", "up"), average=average)
    rows = features_of(IMAGES, features)
    assert rows.shape == ((5, 14) if average else (5, 2, 14))
    torch.testing.assert_close(rows.norm(dim=-1), torch.full(rows.shape[:-1], LENGTH))
    plain = Scattering(scales=(1,), angles=2, views=("same", "up"), average=average)
    expected = on_waves(features_of(IMAGES, plain).flatten(0, -2), 7, 0.5)
    expected -= expected.mean(1, keepdim=True)
    torch.testing.assert_close(rows.flatten(0, -2), expected * (LENGTH / expected.norm(dim=1, keepdim=True)))


def test_the_steepest_waves_of_a_row_do_not_depend_on_other_rows():
    """But for rounding, which products of fewer rows do otherwise."""
    features = Scattering(scales=(1,), angles=2, waves=256, pitch=STEEPEST)
    images = torch.rand(258, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    whole = features_of(images, features)
    for part in (images[1:], images[-3:], images[-1:]):
        moved = (features_of(part, features) - whole[-len(part) :]).norm(dim=1)
        assert float(moved.max()) < LENGTH / 10_000


def test_a_model_on_maps_takes_no_waves():
    with pytest.raises(ConfigError, match="waves=7: are made of rows"):
        features_of(IMAGES, SMALL, flat=False)


@pytest.mark.parametrize(
    ("count", "pitch", "words"),
    [(-1, 1.0, "waves=-1"), (10**11, 1.0, "waves=100000000000"), (True, 1.0, "waves=True"), (2.0, 1.0, "waves=2.0"),
     (4, 0.0, "pitch=0.0"), (4, 10.5, "pitch=10.5"), (4, math.inf, "pitch=inf"), (4, math.nan, "pitch=nan"),
     (4, True, "pitch=True"), (0, -1.0, "pitch=-1.0"), (0, 2.0, "pitch=2 without waves")],
)  # fmt: skip
def test_what_is_no_number_of_waves_is_refused(count, pitch, words):
    with pytest.raises(ConfigError, match=words):
        check_waves(count, pitch)
    with pytest.raises(ConfigError, match=words):
        Scattering(waves=count, pitch=pitch)
