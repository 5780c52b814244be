from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from noisewise.clipping import Flat
from noisewise.data import Data, transforms
from noisewise.data.transforms import (
    crop,
    flip,
    flip_and_crop,
    normalize,
    only_classes,
    pad_and_resize,
    padding,
    rotate,
    subsample_class,
)
from noisewise.errors import ConfigError, DataError
from noisewise.mechanism import Mechanism
from noisewise.sampling import FullBatch
from noisewise.training.augmentation import Augment
from noisewise.training.loop import train


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


DETERMINISTIC = {
    "normalize": lambda x: normalize(x, 0.3, 2.0),
    "pad_and_resize": lambda x: pad_and_resize(x, 0.5, -1.0),
    "pad_and_resize, two nearest": lambda x: pad_and_resize(x, 0.3, antialias=False),
    "rotate": lambda x: rotate(x, 33, 0.5),
    "flip": lambda x: flip(x, torch.arange(len(x)) % 2 == 0),
    "crop": lambda x: crop(x, torch.arange(len(x)) % 5, torch.arange(len(x)) % 3, 2),
    "flip_and_crop": lambda x: flip_and_crop(2)(x, torch.Generator().manual_seed(0)),
}


@pytest.mark.parametrize("change", DETERMINISTIC.values(), ids=DETERMINISTIC.keys())
def test_every_image_is_changed_on_its_own(change, monkeypatch) -> None:
    monkeypatch.setattr(transforms, "CHUNK", 4)
    x = noise(11, 3, 8, 8)
    other = x.clone()
    other[6] = noise(3, 8, 8, seed=1) * 100
    kept = x.clone()
    first, second = change(x), change(other)
    assert torch.equal(x, kept)  # nothing is changed in place
    others = torch.arange(11) != 6
    assert torch.equal(first[others], second[others])
    assert not torch.equal(first[6], second[6])
    assert first.shape == x.shape
    assert first.dtype == x.dtype


@pytest.mark.parametrize("change", DETERMINISTIC.values(), ids=DETERMINISTIC.keys())
def test_data_and_empty_batches(change) -> None:
    data = Data(noise(4, 1, 6, 6), torch.zeros(4).long(), classes=("a",), public=True)
    changed = change(data) if change is not DETERMINISTIC["flip_and_crop"] else None
    if isinstance(changed, Data):
        assert torch.equal(changed.x, change(data.x))
        assert (changed.y is data.y, changed.classes, changed.public) == (True, ("a",), True)
    assert change(noise(0, 3, 6, 6)).shape == (0, 3, 6, 6)
    with pytest.raises(DataError, match="real-valued"):
        change(torch.zeros(2, 3, 6, 6, dtype=torch.uint8))
    with pytest.raises(DataError, match="real-valued"):
        change(torch.zeros(2, 6, 6))


def test_normalize_works_on_channels() -> None:
    x = noise(5, 3, 4, 4, dtype=torch.float64)
    mean, std = (0.1, 0.2, 0.3), (1.0, 2.0, 4.0)
    expected = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], 1)
    torch.testing.assert_close(normalize(x, mean, std), expected)
    torch.testing.assert_close(normalize(x, torch.tensor(mean), 2.0)[:, 1], (x[:, 1] - 0.2) / 2, rtol=1e-6, atol=1e-6)
    with pytest.raises(ConfigError, match=r"mean of shape \[2\].*3 channels"):
        normalize(x, (0.1, 0.2), 1.0)


def test_padding_meets_the_published_ratios() -> None:
    assert [padding(28, ratio) for ratio in (0, 0.26, 0.5, 0.62, 0.75)] == [0, 5, 14, 23, 42]
    assert [padding(32, ratio) for ratio in (0, 0.26, 0.5, 0.62, 0.75)] == [0, 6, 16, 26, 48]
    for side in (8, 28, 33):
        for ratio in np.linspace(0, 0.95, 39):
            errors = [abs(2 * k / (side + 2 * k) - ratio) for k in range(20 * side)]
            assert errors[padding(side, ratio)] == min(errors)
    for ratio in (-0.1, 1.0, math.nan):
        with pytest.raises(ConfigError, match="ratio="):
            padding(28, ratio)


@pytest.mark.parametrize("ratio", [0.26, 0.5, 0.75])
def test_padded_images_are_those_of_pillow(ratio: float) -> None:
    """Pillow pads and resizes by its own code."""
    x, fill, k = noise(3, 1, 28, 28), -0.42, padding(28, ratio)
    changed = pad_and_resize(x, ratio, fill)
    for image, ours in zip(x[:, 0], changed[:, 0], strict=True):
        wide = Image.new("F", (28 + 2 * k, 28 + 2 * k), fill)
        wide.paste(Image.fromarray(image.numpy()), (k, k))
        theirs = np.asarray(wide.resize((28, 28), Image.Resampling.BILINEAR))
        np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-5)
    plain = F.interpolate(F.pad(x, (k,) * 4, value=fill), (28, 28), mode="bilinear", align_corners=False)
    torch.testing.assert_close(pad_and_resize(x, ratio, fill, antialias=False), plain)
    assert (changed - plain).abs().max() > 0.01


def test_the_border_is_the_fill_of_each_channel() -> None:
    x = noise(2, 3, 8, 8)
    fill = (-1.0, 0.5, 2.0)
    changed = pad_and_resize(x, 0.5, fill)
    for channel, value in enumerate(fill):
        torch.testing.assert_close(changed[:, channel, 0], torch.full((2, 8), value))
        torch.testing.assert_close(changed[:, channel, :, -1], torch.full((2, 8), value))
    assert torch.equal(pad_and_resize(x, 0, fill), x)
    with pytest.raises(DataError, match="8x6 pixels"):
        pad_and_resize(noise(1, 1, 8, 6), 0.5)


@pytest.mark.parametrize("side", [7, 28])
def test_quarter_turns_are_those_of_torch(side: int) -> None:
    x = noise(2, 3, side, side)
    for quarter in range(-3, 5):
        expected = torch.rot90(x, quarter, (-2, -1))
        torch.testing.assert_close(rotate(x, 90 * quarter, (0.5, -1, 2)), expected, atol=1e-4, rtol=1e-4)
    assert (rotate(x, 90) - torch.rot90(x, -1, (-2, -1))).abs().max() > 0.5


@pytest.mark.parametrize(("degrees", "fill"), [(30, 0.0), (-75, 0.7), (200, -1.0)])
def test_rotation_is_bilinear_reading_at_turned_places(degrees: float, fill: float) -> None:
    x = noise(1, 1, 7, 10, dtype=torch.float64)
    ours = rotate(x, degrees, fill)[0, 0]
    image, cos, sin = x[0, 0], math.cos(math.radians(degrees)), math.sin(math.radians(degrees))

    def at(r: int, c: int) -> float:
        return float(image[r, c]) if 0 <= r < 7 and 0 <= c < 10 else fill

    for r in range(7):
        for c in range(10):
            row, column = r - 3.0, c - 4.5
            u, v = row * cos + column * sin + 3.0, column * cos - row * sin + 4.5
            top, left = math.floor(u), math.floor(v)
            a, b = u - top, v - left
            upper = (1 - b) * at(top, left) + b * at(top, left + 1)
            lower = (1 - b) * at(top + 1, left) + b * at(top + 1, left + 1)
            assert float(ours[r, c]) == pytest.approx((1 - a) * upper + a * lower, abs=1e-9)


def test_rotation_refuses_what_is_no_angle() -> None:
    with pytest.raises(ConfigError, match="degrees=nan"):
        rotate(noise(1, 1, 4, 4), math.nan)


def test_flip_exchanges_left_and_right() -> None:
    x = torch.arange(12.0).view(2, 1, 2, 3)
    assert flip(x, torch.tensor([True, False])).tolist() == [[[[2, 1, 0], [5, 4, 3]]], x[1].tolist()]


@pytest.mark.parametrize("fill", [None, 0.0, (1.0, 2.0)])
def test_crop_is_a_slice_of_the_padded_image(fill) -> None:
    x = noise(49, 2, 5, 6)
    top, left = torch.arange(49) // 7, torch.arange(49) % 7
    ours = crop(x, top, left, 3, fill)
    for i in range(49):
        if fill is None:
            wide = F.pad(x[i], (3,) * 4, mode="reflect")
        else:
            values = (fill, fill) if isinstance(fill, float) else fill
            wide = torch.stack([F.pad(x[i, c], (3,) * 4, value=values[c]) for c in range(2)])
        assert torch.equal(ours[i], wide[:, top[i] : top[i] + 5, left[i] : left[i] + 6])
    assert torch.equal(ours[3 * 7 + 3], x[3 * 7 + 3])


@pytest.mark.parametrize("top", [torch.tensor([0, 7]), torch.tensor([-1, 0]), torch.tensor([0])])
def test_windows_outside_are_refused(top: torch.Tensor) -> None:
    with pytest.raises(DataError, match="from 0 to 6 for each of 2"):
        crop(noise(2, 1, 8, 8), top, torch.zeros(2, dtype=torch.long), 3)


def test_borders_that_cannot_be_mirrored_are_refused() -> None:
    zero = torch.zeros(1, dtype=torch.long)
    with pytest.raises(ConfigError, match="pad=4: a mirrored border"):
        crop(noise(1, 1, 4, 4), zero, zero, 4)
    assert crop(noise(1, 1, 4, 4), zero, zero, 4, 0.0).abs().sum() == 0
    with pytest.raises(ConfigError, match="pad=-1"):
        flip_and_crop(-1)


def chi_square(counts: torch.Tensor) -> float:
    from scipy.stats import chisquare

    return float(chisquare(counts.numpy()).pvalue)


def test_flips_and_windows_are_uniform_and_independent() -> None:
    """Each image shows its own place, so the outcome can be read off it; every one of 18 is equally likely."""
    place = torch.arange(1.0, 26.0).view(1, 1, 5, 5)
    seen = flip_and_crop(1, 0.0)(place.expand(18_000, 1, 5, 5), torch.Generator().manual_seed(0))[:, 0]
    middle, right = seen[:, 2, 2].long() - 1, seen[:, 2, 3].long() - 1
    outcome = (middle // 5 - 1) * 3 + (middle % 5 - 1) + 9 * (right < middle)
    counts = outcome.bincount(minlength=18)
    assert len(counts) == 18
    assert chi_square(counts) > 0.001
    assert chi_square(counts + torch.tensor([150] + [0] * 17)) < 0.001  # the test would see 15 % more of one
    unflipped = flip_and_crop(1, 0.0, flips=False)(place.expand(50, 1, 5, 5), torch.Generator().manual_seed(0))[:, 0]
    assert (unflipped[:, 2, 3] > unflipped[:, 2, 2]).all()


def test_the_generator_decides_and_the_rest_of_a_row_is_kept() -> None:
    x, y = noise(30, 1, 6, 6), torch.arange(30)
    change = flip_and_crop(2)
    before = torch.random.get_rng_state()
    first = change((x, y), torch.Generator().manual_seed(1))
    assert type(first) is tuple
    assert first[1] is y
    assert torch.equal(first[0], change([x, y], torch.Generator().manual_seed(1))[0])
    assert torch.equal(first[0], change(x, torch.Generator().manual_seed(1)))
    assert not torch.equal(first[0], change(x, torch.Generator().manual_seed(2)))
    assert torch.equal(torch.random.get_rng_state(), before)
    with pytest.raises(DataError, match="rows are a dict"):
        change({"x": x}, torch.Generator())


def test_training_takes_it_as_augmentation() -> None:
    def run(augment: Augment | None) -> torch.Tensor:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Flatten(), nn.Linear(36, 2))
        plan = Mechanism(sampler=FullBatch(6), clip=Flat(1.0), noise_multiplier=5.0, steps=2)
        data = Data(noise(6, 1, 6, 6), torch.arange(6) % 2, public=True)
        train(
            model, data, lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none"), plan,
            torch.optim.SGD(model.parameters(), lr=0.5), insecure_seed=1, progress=False, augment=augment,
        )  # fmt: skip
        return model[1].weight.detach()

    plain, still = run(None), run(Augment(flip_and_crop(0, flips=False), 2))
    torch.testing.assert_close(plain, still)
    moved = run(Augment(flip_and_crop(1), 2))
    assert torch.equal(moved, run(Augment(flip_and_crop(1), 2)))
    assert (moved - plain).abs().max() > 1e-4


def labelled() -> Data:
    y = torch.tensor([0] * 20 + [1] * 30 + [2] * 40)[torch.randperm(90, generator=torch.Generator().manual_seed(3))]
    return Data(torch.arange(90.0).unsqueeze(1), y, {"g": torch.arange(90) % 2}, classes=("a", "b", "c"), public=True)


def test_subsampling_meets_the_sizes_and_leaves_the_rest() -> None:
    data = labelled()
    part = subsample_class(data, {1: 7, "c": 0}, seed=1)
    assert part.y.bincount(minlength=3).tolist() == [20, 7, 0]
    rows = part.x.flatten().long()
    assert torch.equal(rows, rows.sort().values)
    assert torch.equal(part.y, data.y[rows])
    assert torch.equal(part.groups["g"], data.groups["g"][rows])
    assert set(torch.nonzero(data.y == 0).flatten().tolist()) <= set(rows.tolist())
    assert torch.equal(part.x, subsample_class(data, {"c": 0, 1: 7}, seed=1).x)
    assert not torch.equal(part.x, subsample_class(data, {1: 7, 2: 0}, seed=2).x)


def test_the_size_of_one_class_does_not_change_who_is_chosen_of_another() -> None:
    data = labelled()
    few, many = (subsample_class(data, {1: 7, 2: size}) for size in (3, 30))
    assert torch.equal(few.x[few.y == 1], many.x[many.y == 1])
    assert set(few.x.flatten().tolist()) <= set(many.x.flatten().tolist())  # smaller parts are parts of larger ones


def test_classes_are_chosen_from_independently() -> None:
    data = Data(torch.arange(100.0).unsqueeze(1), torch.arange(100) // 50)
    first, second = (subsample_class(data, {0: 20, 1: 20}).x.flatten() % 50).split(20)
    assert not torch.equal(first, second)


def test_every_row_of_a_class_is_as_likely_to_be_chosen() -> None:
    data = labelled()
    chosen = sum(
        (data.x.flatten()[:, None] == subsample_class(data, {1: 6}, seed).x.flatten()).any(1) for seed in range(400)
    )
    counts = chosen[data.y == 1]
    assert int(counts.sum()) == 2400
    assert chi_square(counts) > 0.001
    assert chi_square(torch.cat([counts[:15] - 16, counts[15:] + 16])) < 0.001


def test_some_classes_are_numbered_anew_and_nobody_else_is_left() -> None:
    data = labelled()
    part = only_classes(data, ["c", 0])
    rows = part.x.flatten().long()
    assert part.classes == ("c", "a")
    assert torch.equal(rows, torch.nonzero(data.y != 1).flatten())
    assert torch.equal(part.y, (data.y[rows] == 0).long())
    assert torch.equal(part.groups["g"], data.groups["g"][rows])


@pytest.mark.parametrize("names", [[1], ["a", 0], ["a", "z"], []])
def test_classes_that_leave_nothing_to_tell_apart_are_refused(names: list) -> None:
    with pytest.raises(ConfigError, match=r"class"):
        only_classes(labelled(), names)


@pytest.mark.parametrize("sizes", [{1: 31}, {1: -1}, {1: 2.5}, {1: True}, {9: 1}, {"z": 1}, {1: 3, "b": 4}])
def test_impossible_sizes_are_refused(sizes: dict) -> None:
    with pytest.raises(ConfigError, match=r"class"):
        subsample_class(labelled(), sizes)


def test_regressions_have_no_classes() -> None:
    with pytest.raises(DataError, match="no classes"):
        subsample_class(Data(torch.zeros(3, 1), torch.zeros(3)), {0: 1})
    with pytest.raises(DataError, match="no classes"):
        only_classes(Data(torch.zeros(3, 1), torch.zeros(3)), [0, 1])


def test_what_a_window_sees_outside_the_image_is_the_fill() -> None:
    images = torch.ones(400, 1, 6, 6)
    moved = flip_and_crop(pad=2, fill=-7.0)(images, torch.Generator().manual_seed(0))
    assert set(moved.unique().tolist()) == {-7.0, 1.0}
    mirrored = flip_and_crop(pad=2)(images, torch.Generator().manual_seed(0))
    assert set(mirrored.unique().tolist()) == {1.0}
