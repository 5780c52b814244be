"""Likeness to made-up patches: the formula written out, row by row, from public numbers alone."""

import pytest
import torch
import torch.nn.functional as F

from noisewise.data import made_up
from noisewise.errors import ConfigError, DataError
from noisewise.recipes.patches import FLAT, Patches, _alike, _kernels, _standard
from noisewise.recipes.scattered import SEED

SMALL = Patches(count=5, side=3, grid=2, kind="leaves")


def test_likeness_is_the_product_of_standard_patches_written_out():
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    made = _alike(images, "leaves", 5, 3, 0.25, 1)
    kernels, shift = _kernels("leaves", 5, 3, 1)
    assert float(kernels.flatten(1).mean(1).abs().max()) < 1e-6 * float(kernels.abs().mean())
    for image, row in zip(images, made, strict=True):
        sums = torch.zeros(10)
        for top in range(6):
            for left in range(6):
                patch = image[0, top : top + 3, left : left + 3].flatten()
                standard = (patch - patch.mean()) / (patch.var(unbiased=False) + FLAT).sqrt()
                r = kernels.flatten(1) @ standard - shift
                sums += torch.cat([(r - 0.25).clamp(min=0), (-r - 0.25).clamp(min=0)])
        torch.testing.assert_close(row.flatten(), sums / 36, rtol=1e-4, atol=1e-5)


def test_over_made_up_patches_likeness_has_deviation_one_and_pixels_are_pulled_apart():
    kernels, shift = _kernels("leaves", 40, 3, 1)
    images = made_up.images("leaves", 300, (1, 32, 32), seed=SEED + 7)
    rows = _standard(F.unfold(images, 3).movedim(1, 2).flatten(0, 1))
    r = rows @ kernels.flatten(1).T - shift
    assert 0.9 < float(r.std()) < 1.1
    assert abs(float(r.mean())) < 0.1


@pytest.mark.parametrize(("scattering", "whiten"), [(0.0, 0.0), (2.0, 0.0), (0.0, 0.5)])
def test_features_are_made_row_by_row(scattering, whiten):
    features = Patches(count=5, side=3, grid=2, kind="leaves", scattering=scattering, whiten=whiten)
    images = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    parts = features.maps(images)
    assert parts[0].shape == (4, 10, 2, 2)
    assert len(parts) == (2 if scattering else 1)
    for part, one in zip(parts, features.maps(images[2:3]), strict=True):
        torch.testing.assert_close(part[2:3], one, rtol=1e-4, atol=1e-4)


def test_pulled_apart_channels_hardly_go_together_over_other_made_up_images():
    """The largest variance of any mixture: as it is, its square root, or one."""
    images = made_up.images("leaves", 400, (1, 16, 16), seed=SEED + 5)

    def together(whiten):
        (maps,) = Patches(count=20, side=3, grid=4, kind="leaves", whiten=whiten).maps(images)
        rows = maps.movedim(1, 3).flatten(0, 2).double()
        return torch.cov(rows.T)

    def largest(covariance):
        return float(torch.linalg.eigvalsh(covariance)[-1])

    raw, half, whole = (together(share) for share in (0.0, 0.5, 1.0))
    assert largest(raw) > 3
    assert 0.8 * largest(raw) ** 0.5 < largest(half) < 1.25 * largest(raw) ** 0.5
    assert largest(whole) < 1.5


def test_what_holds_no_patch_is_refused():
    with pytest.raises(DataError, match=r"side=3 for grid=2 .* 4x4 .* smaller side"):
        SMALL.check((1, 3, 3))
    with pytest.raises(DataError, match="shape"):
        Patches(shape=(1, 8, 8)).check((3, 8, 8))


@pytest.mark.parametrize(
    "settings",
    [
        {"count": 0},
        {"side": 0},
        {"grid": 1.5},
        {"kind": "cats"},
        {"threshold": -1.0},
        {"scattering": 1e9},
        {"whiten": 1.5},
    ],
)
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(ConfigError, match="|".join(settings)):
        Patches(**settings)
