"""Images become features row by row, at one length, under the mark of the images."""

from dataclasses import fields, replace

import pytest
import torch

from noisewise.data import Data, Splits
from noisewise.data.marks import mark_of
from noisewise.errors import DataError
from noisewise.recipes import transform as module
from noisewise.recipes.learned import Learned
from noisewise.recipes.scattered import Scattering
from noisewise.recipes.transform import LENGTH, featured, featured_parts, features_of, told

IMAGES = torch.randn(10, 1, 8, 8, generator=torch.Generator().manual_seed(0))
SMALL = Scattering(scales=(1,), angles=2)
DATA = Data(IMAGES, torch.arange(10) % 2, classes=("a", "b"))


def test_rows_are_centred_and_have_one_length():
    rows = features_of(IMAGES, replace(SMALL, scales=(1, 2), views=("same", "up"), average=False))
    assert rows.shape[:2] == (10, 2)
    torch.testing.assert_close(rows.mean(2), torch.zeros(10, 2), rtol=0, atol=1e-4)
    torch.testing.assert_close(rows.norm(dim=2), torch.full((10, 2), LENGTH))
    assert not features_of(torch.zeros(1, 1, 8, 8), replace(SMALL, scaling="none")).any()


@pytest.mark.parametrize("average", [True, False])
def test_one_image_less_or_another_changes_no_other_row(monkeypatch, average):
    """What makes training on features as private as training on images."""
    monkeypatch.setitem(module.ROWS, "cpu", 3)  # in parts whose borders move
    features = replace(SMALL, views=("same", "flip"), average=average)
    whole = features_of(IMAGES, features)
    torch.testing.assert_close(features_of(IMAGES[1:], features), whole[1:])
    changed = IMAGES.clone()
    changed[4] *= -3
    others = torch.arange(10) != 4
    torch.testing.assert_close(features_of(changed, features)[others], whole[others])


def test_averaged_views_do_not_see_a_mirror():
    features = replace(SMALL, views=("same", "flip"))
    torch.testing.assert_close(
        features_of(IMAGES.flip(3), features), features_of(IMAGES, features), rtol=1e-3, atol=1e-3
    )


def test_maps_keep_their_places_and_one_size():
    assert features_of(IMAGES, SMALL, flat=False).shape == (10, 5 - 2, 4, 4)
    with pytest.raises(DataError, match="one number of scales"):
        features_of(IMAGES, replace(SMALL, scales=(1, 2)), flat=False)


def test_no_images_have_no_features_of_the_same_form():
    assert features_of(IMAGES[:0], SMALL).shape == (0, features_of(IMAGES, SMALL).shape[1])


def test_bytes_are_refused():
    with pytest.raises(DataError, match="real numbers"):
        features_of(IMAGES.to(torch.uint8), SMALL)


def test_marks_are_those_of_the_images_and_settings():
    """Features from another device differ by rounding; they are the same people's all the same."""
    one, again = featured(DATA, SMALL), featured(DATA, SMALL)
    assert mark_of(one) == mark_of(again)
    assert mark_of(one) != mark_of(DATA)
    assert mark_of(featured(DATA, replace(SMALL, power=0.5))) != mark_of(one)
    assert mark_of(featured(DATA, replace(SMALL, shape=(1, 8, 8), centre=20.0))) == mark_of(one)  # rows are the same
    assert mark_of(featured(replace(DATA, x=IMAGES + 1e-6), SMALL)) != mark_of(one)
    again.x.add_(0.0)  # touched: its values are read again
    assert mark_of(again) != mark_of(one)


def test_features_of_private_images_are_written_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("NOISEWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "MANY", 5)
    expected = featured(DATA, SMALL)
    assert list(tmp_path.iterdir()) == []
    public = featured(replace(DATA, public=True), SMALL)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1
    assert torch.equal(public.x, expected.x)
    monkeypatch.setattr(module, "features_of", None)  # read, not made
    again = featured(replace(DATA, public=True), SMALL)
    assert torch.equal(again.x, expected.x)
    assert mark_of(again) == mark_of(expected)


def test_every_part_keeps_its_labels():
    parts = featured_parts(Splits(DATA, DATA.take(torch.arange(3)), DATA.take(torch.arange(3, 5))), SMALL)
    assert [len(part) for part in parts] == [10, 3, 2]
    assert torch.equal(parts.test.y, DATA.y[3:5])


def test_settings_are_told_apart_and_usual_ones_are_left_out():
    """Old runs must stay known when a version adds a setting."""
    assert told(SMALL, True) == "scattering 1 [('angles', 2), ('scales', (1,))] True"
    assert told(SMALL, False) != told(SMALL, True)


EARLIER = {  # marks of features are made of these: what the first version said of them
    "learned 1 [('digest', 'D'), ('grid', 2)] True": {"stages": (3, 4), "grid": 2},
    "learned 1 [('digest', 'D'), ('patches', 1.0), ('stages', (2,))] True": {"stages": (2,), "patches": 1.0},
    "learned 1 [('digest', 'D'), ('late', 0.5), ('stages', (2, 3))] True": {"late": 0.5},
}


@pytest.mark.parametrize("said", EARLIER)
def test_features_of_an_earlier_version_have_the_same_mark(said):
    """Else a second run on the same people would be taken for one on others, and its epsilon for all that they paid."""
    features = object.__new__(Learned)
    whole = {field.name: field.default for field in fields(Learned)} | EARLIER[said] | {"digest": "D"}
    for name, value in whole.items():
        object.__setattr__(features, name, value)
    assert told(features, True) == said
