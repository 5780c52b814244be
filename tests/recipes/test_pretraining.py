"""Features learned on made-up images: from their settings alone, by the loss that is stated."""

import hashlib
import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from noisewise.data import made_up
from noisewise.errors import ConfigError, DataError
from noisewise.recipes.learned import INCLUDED, Learned, file_of
from noisewise.recipes.patches import Patches
from noisewise.recipes.pretraining import (
    TEMPERATURE,
    Pretraining,
    _pictures,
    contrast,
    pretrain,
    read_encoder,
    save_encoder,
    versions,
)
from noisewise.recipes.scattered import MADE_UP, SEED

HOW = Pretraining(shape=(1, 8, 8), images=40, steps=3, batch=8, width=2, kind="leaves/spectrum")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("encoder") / "encoder.safetensors"
    save_encoder(pretrain(HOW)[0], HOW, 3, path)
    return path


def test_the_loss_is_infonce_written_out():
    placed = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double()
    units = placed / placed.norm(dim=1, keepdim=True)
    losses = []
    for i in range(6):
        alike = {j: math.exp(float(units[i] @ units[j]) / TEMPERATURE) for j in range(6) if j != i}
        losses.append(-math.log(alike[(i + 3) % 6] / sum(alike.values())))
    assert float(contrast(placed)) == pytest.approx(sum(losses) / 6)


def test_an_encoder_follows_from_its_settings():
    one, again = (pretrain(HOW)[0].state_dict() for _ in range(2))
    other = pretrain(Pretraining(**{**vars(HOW), "seed": 1}))[0].state_dict()
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_versions_of_an_image_follow_from_it_and_chance():
    images = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    changed = images.clone()
    changed[1] += 1
    one, other = (versions(x, torch.Generator().manual_seed(3)) for x in (images, changed))
    assert one.shape == images.shape
    assert [torch.equal(a, b) for a, b in zip(one, other, strict=True)] == [True, False, True, True, True]


def test_time_can_end_it():
    assert pretrain(Pretraining(**{**vars(HOW), "steps": 100_000}), seconds=0.3)[1] < 100_000


def test_likeness_to_patches_may_stand_beside(tmp_path, monkeypatch):
    assert Learned(count=5, side=7).beside == Patches(count=5, side=7, whiten=0.5)
    few = Patches(count=5, kind="spectrum", whiten=0.5)
    monkeypatch.setattr(Learned, "beside", property(lambda self: replace(few, count=self.count, side=self.side)))
    how = Pretraining(shape=(1, 12, 12), images=4, steps=1, batch=2, width=2, kind="spectrum")
    save_encoder(pretrain(how)[0], how, 1, path := tmp_path / "encoder.safetensors")
    images = torch.randn(3, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    alone, beside = (
        Learned(weights=str(path), stages=(1,), patches=share, count=5).maps(images) for share in (0.0, 2.0)
    )
    torch.testing.assert_close(beside[0], alone[0])
    (likeness,) = few.maps(images)
    torch.testing.assert_close(beside[1], 2 * likeness)
    assert len(beside) == len(alone) + 1
    Learned(weights=str(path)).check((1, 8, 8))
    with pytest.raises(DataError, match="9x9"):
        Learned(weights=str(path), patches=1.0).check((1, 8, 8))
    Learned(weights=str(path), patches=1.0, side=5).check((1, 8, 8))


def test_a_late_stage_may_count_less(weights):
    images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    whole, less = (Learned(weights=str(weights), stages=(1, 2), late=late).maps(images) for late in (1.0, 0.5))
    torch.testing.assert_close(less[0], whole[0], rtol=0, atol=0)
    torch.testing.assert_close(less[1], 0.5 * whole[1], rtol=0, atol=0)
    alone, same = (Learned(weights=str(weights), stages=(2,), late=late).maps(images) for late in (1.0, 0.5))
    torch.testing.assert_close(alone[0], same[0], rtol=0, atol=0)  # there is no other to compare it with


@pytest.mark.parametrize("wrong", [{"late": 0}, {"late": -1.0}, {"count": 0}, {"side": 1}, {"patches": -1.0}])
def test_features_that_mean_nothing_are_refused(weights, wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Learned(weights=str(weights), **wrong)


def test_files_may_hold_the_first_stages_alone(tmp_path):
    """Those of an encoder that learned with more; or an encoder has fewer from the start."""
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    whole = pretrain(HOW)[0].stages(images)
    cut = Pretraining(**{**vars(HOW), "kept": 2})
    save_encoder(pretrain(cut)[0], cut, 3, path := tmp_path / "cut.safetensors")
    encoder, about = read_encoder(path)
    assert (about["stages"], about["kept"], len(encoder.stages(images))) == (4, 2, 2)
    for part, expected in zip(encoder.stages(images), whole, strict=False):
        torch.testing.assert_close(part, expected, rtol=2e-2, atol=2e-2)  # kept in half precision
    with pytest.raises(ConfigError, match="holds the first 2 alone"):
        Learned(weights=str(path), stages=(2, 3))
    Learned(weights=str(path), stages=(2,)).check((1, 8, 8))
    small = Pretraining(**{**vars(HOW), "stages": 2})
    assert [part.shape[1] for part in pretrain(small)[0].stages(images)] == [2, 4]


def test_files_of_earlier_versions_hold_all_stages(weights, tmp_path):
    about = read_encoder(weights)[1]
    old = {key: value for key, value in about.items() if key not in ("stages", "kept")}
    save_file(load_file(weights), tmp_path / "old.safetensors", metadata={"pretraining": json.dumps(old)})
    assert len(read_encoder(tmp_path / "old.safetensors")[0].parts) == 4


def test_an_encoder_of_colour_images_is_included():
    """It says how it was made."""
    encoder, about = read_encoder(file_of(INCLUDED))
    assert about["shape"] == [3, 32, 32]
    assert set(about["kind"].split("/")) <= set(made_up.KINDS)
    assert about["made_steps"] > 1000
    assert len(encoder.parts) == about["kept"] == 3
    assert Learned().digest == hashlib.sha256(file_of(INCLUDED).read_bytes()).hexdigest()
    with pytest.raises(
        DataError, match=r"encoder included makes features of images with 3 channels.*noisewise pretrain"
    ):
        Learned(stages=(2,)).check((1, 28, 28))


def test_files_say_how_they_were_made(weights):
    encoder, about = read_encoder(weights)
    assert about["kind"] == "leaves/spectrum"
    assert (about["seed"], about["made_steps"], about["torch"]) == (0, 3, torch.__version__)
    assert about["seconds"] is None
    assert not encoder.training
    made = pretrain(HOW)[0].state_dict()
    for name, value in encoder.state_dict().items():
        torch.testing.assert_close(value, made[name].half().to(value.dtype), rtol=0, atol=0)


@pytest.mark.parametrize("whiten", [0.0, 1.0])
def test_learned_features_are_made_row_by_row(weights, whiten):
    features = Learned(weights=str(weights), stages=(1, 4), grid=2, whiten=whiten)
    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    parts = features.maps(images)
    assert [part.shape for part in parts] == [(4, 2, 2, 2), (4, 16, 2, 2)]
    alone = features.maps(images[2:3])
    for part, one in zip(parts, alone, strict=True):
        torch.testing.assert_close(part[2:3], one, rtol=1e-4, atol=1e-4)


def test_stages_beyond_the_last_wanted_are_not_computed(weights):
    encoder = read_encoder(weights)[0]
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    every = encoder.stages(images)
    for place in (2, 3):
        encoder.parts[place] = torch.nn.Module()  # which computes nothing
    for part, whole in zip(encoder.stages(images, 2), every[:2], strict=True):
        torch.testing.assert_close(part, whole, rtol=0, atol=0)


def test_channels_are_pulled_apart_as_on_the_images_it_learned_on(weights):
    """On the very made-up images: mean 0, and no two channels go together."""
    images = made_up.images("leaves", MADE_UP, (1, 8, 8), seed=SEED)
    (part,) = Learned(weights=str(weights), stages=(1,), grid=4, whiten=1.0).maps(images)
    flat = part.double().movedim(1, 3).flatten(0, 2)
    torch.testing.assert_close(flat.mean(0), torch.zeros(2).double(), rtol=0, atol=1e-4)
    together = flat.T @ flat / len(flat)
    assert abs(float(together[0, 1])) < 0.03  # the floor of a variance leaves a hundredth
    assert ((together.diag() > 0.9) & (together.diag() < 1.01)).all()


def test_other_weights_than_those_trained_with_are_refused(weights, tmp_path):
    digest = Learned(weights=str(weights)).digest
    other = tmp_path / "other.safetensors"
    save_encoder(pretrain(Pretraining(**{**vars(HOW), "seed": 5}))[0], HOW, 3, other)
    with pytest.raises(DataError, match="Give the file back"):
        Learned(weights=str(other), digest=digest)
    with pytest.raises(DataError, match="1 channels"):
        Learned(weights=str(weights)).check((3, 8, 8))


def test_what_is_no_encoder_is_refused(tmp_path):
    with pytest.raises(DataError, match="noisewise pretrain"):
        Learned(weights=str(tmp_path / "none.safetensors"))
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors", metadata={"pretraining": json.dumps({})})
    with pytest.raises(DataError, match="no encoder"):
        read_encoder(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "cats"},
        {"images": 1},
        {"steps": 0},
        {"batch": 100},
        {"shape": (1, 4, 4)},
        {"lr": 0.0},
        {"width": 0},
        {"stages": 5},
        {"kept": 0},
    ],
)
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(ConfigError, match="|".join(settings)):
        Pretraining(**{**vars(HOW), **settings})


@pytest.mark.parametrize(
    "settings", [{"stages": (5,)}, {"stages": ()}, {"grid": 0}, {"whiten": 2.0}, {"patches": -1.0}]
)
def test_features_that_do_not_exist_are_refused(weights, settings):
    with pytest.raises(ConfigError, match="|".join(settings)):
        Learned(weights=str(weights), **settings)


@pytest.mark.parametrize("images", [9, 10, 5000, 13_000])
def test_kinds_take_turns_and_have_equal_shares(images, monkeypatch):
    drawn = dict[str, int]()

    def counted(kind, count, shape, **settings):
        drawn[kind] = drawn.get(kind, 0) + count
        return torch.zeros(count, 1, 1, 1)

    monkeypatch.setattr(made_up, "images", counted)
    how = Pretraining(shape=(1, 8, 8), images=images, steps=1, batch=8, width=2, kind="leaves/spectrum/woven")
    assert len(_pictures(how, torch.device("cpu"), False)) == images == sum(drawn.values())
    assert max(drawn.values()) - min(drawn.values()) <= 9  # rounding, in each of three turns
