"""A run with a recipe on one's own images: trained, opened, audited, resumed, verified, and asked for predictions."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.command_line import command_line
from noisewise.data import Splits, disk, load
from noisewise.errors import ConfigError, DataError, RunError
from noisewise.recipes import features_of
from noisewise.recipes.pretraining import Pretraining, pretrain, save_encoder
from noisewise.workflow import execution
from noisewise.workflow.config import configure, plan
from noisewise.workflow.execution import execute
from noisewise.workflow.image_prediction import images_of, open_image_predictor, predict_images
from noisewise.workflow.opened import audit, open_run
from noisewise.workflow.recipe_specs import complete
from noisewise.workflow.verification import verified

RECIPE = "scattering-linear:scales=1,angles=4,views=same/up,average=false"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Images that a user keeps in a folder; private."""
    digits, folder = load("digits"), tmp_path_factory.mktemp("own") / "images"
    parts = [
        replace(part.take(torch.arange(count)), public=False) for part, count in zip(digits, (400, 50, 60), strict=True)
    ]
    disk.save(Splits(*parts), folder)
    return folder


@pytest.fixture(scope="module")
def run(own, tmp_path_factory):
    """A finished run on them."""
    planned = plan(data=str(own), recipe=RECIPE, noise_multiplier=2.0, delta=1e-4, steps=20, twin=True)
    return execute(planned, tmp_path_factory.mktemp("run") / "run", progress=False)


def test_the_folder_says_everything(run):
    opened = open_run(run.path)
    assert opened.config.model == "linear-head:views=2"
    assert opened.status.status == "private"
    kind, features = complete(opened.config.recipe)
    assert (kind.name, features.shape) == ("scattering-linear", (1, 8, 8))
    assert {check.verdict for check in verified(run.path, trials=1000)} == {"ok"}
    assert audit(opened, "disparity").headline
    assert "predict DIR images.npy" in run.readme.read_text()


def test_predictions_are_the_models_in_their_places(run, own, tmp_path):
    images = disk.open(own).test.x
    np.save(tmp_path / "new.npy", images.numpy())
    assert predict_images(run.path, tmp_path / "new.npy", tmp_path / "out.csv") == 60
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    opened = open_run(run.path)
    x = features_of(images, complete(opened.config.recipe)[1])
    with torch.no_grad():
        chances = opened.model.rows(x.flatten(0, 1)).double().softmax(1).unflatten(0, (60, 2)).mean(1)
    told = torch.tensor([[float(row[f"probability of {label}"]) for label in range(10)] for row in rows])
    torch.testing.assert_close(told.double(), chances, rtol=0, atol=2e-6)
    chosen = torch.tensor([[int(row["prediction"])] for row in rows])
    likeliest = chances.max(1).values - 1e-6  # between equals rounding decides
    assert bool((chances.gather(1, chosen)[:, 0] >= likeliest).all())
    assert torch.equal(images_of(own), images)
    hot = open_image_predictor(run.path, 5.0).chances(images)
    assert bool((hot.max(1).values <= chances.max(1).values + 1e-6).all())


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((2, 1, 8, 8), np.uint8), "real numbers"),
        (np.zeros((2, 64), np.float32), "real numbers"),
        (np.zeros((2, 1, 16, 16), np.float32), "trained on"),
    ],
)
def test_other_images_are_refused(run, tmp_path, array, words):
    np.save(tmp_path / "new.npy", array)
    with pytest.raises(DataError, match=words):
        predict_images(run.path, tmp_path / "new.npy", tmp_path / "out.csv")


def test_what_is_no_file_of_images_is_refused(run, tmp_path):
    (tmp_path / "broken.npy").write_bytes(b"no array")
    for name in ("broken.npy", "missing.npy", "broken.csv"):
        with pytest.raises(DataError, match=r"npy"):
            images_of(tmp_path / name)


def test_values_that_are_no_numbers_have_no_class(run, tmp_path):
    np.save(tmp_path / "new.npy", np.full((1, 1, 8, 8), np.nan, np.float32))
    with pytest.raises(ConfigError, match="not finite"):
        predict_images(run.path, tmp_path / "new.npy", tmp_path / "out.csv")


def test_a_run_without_a_recipe_has_no_images_to_predict(tmp_path):
    config = configure(data="digits", model="logistic", noise_multiplier=4.0, steps=1, batch_size=64, twin=False)
    folder = execute(config, tmp_path / "run", progress=False)
    with pytest.raises(RunError, match="not a run with a recipe"):
        open_image_predictor(folder.path)


def test_the_same_config_is_the_same_plan_on_the_same_people(run, own):
    opened = open_run(run.path)
    again = plan(opened.config)
    assert again.config == opened.config
    assert torch.equal(again.data.train.x, opened.data.train.x)


def test_other_images_than_those_trained_on_are_noticed(run, own, tmp_path):
    moved = own.with_name("elsewhere")
    own.rename(moved)
    try:
        parts = disk.open(moved)
        changed = parts.train.x.clone()
        changed[7] += 0.5
        disk.save(parts._replace(train=replace(parts.train, x=changed)), own)
        with pytest.raises(DataError, match="not what"):
            open_run(run.path)
    finally:
        for path in own.iterdir():
            path.unlink()
        own.rmdir()
        moved.rename(own)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"data": "digits", "model": "cnn"}, "a model of its own"),
        ({"data": "adult"}, "for images"),
        ({"data": "people.csv"}, "for images"),
    ],
)
def test_what_does_not_go_with_a_recipe_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        plan(recipe="scattering-linear", epsilon=1.0, **given)


def test_given_settings_come_before_the_recipes():
    config = configure(data="digits", recipe=RECIPE, noise_multiplier=4.0, batch_size=100, bound=0.5, momentum=0.5)
    usual = configure(data="digits", recipe=RECIPE, noise_multiplier=4.0)
    assert (config.batch_size, config.bound, config.momentum) == (100, 0.5, 0.5)
    assert config.lr == pytest.approx(usual.lr * usual.bound / 0.5)
    assert config.steps * 100 == pytest.approx(usual.steps * usual.batch_size, rel=0.02)


def test_a_recipe_over_other_settings_is_the_same_or_refused(run):
    config = open_run(run.path).config
    assert plan(config, recipe=RECIPE).config == config
    with pytest.raises(ConfigError, match="a plan of its own"):
        plan(config, recipe="scattering-linear:waves=64")
    with pytest.raises(ConfigError, match="which has a model of its own"):
        plan(config, model="mlp")
    plain = configure(data="digits", model="logistic", noise_multiplier=4.0, steps=1, batch_size=64, twin=False)
    with pytest.raises(ConfigError, match="over settings with no recipe"):
        plan(plain, recipe="scattering-linear")


def test_predictions_know_what_a_repair_added(own, tmp_path):
    planned = plan(
        data=str(own), recipe="scattering-linear:scales=1,angles=2", noise_multiplier=2.0, delta=1e-4, steps=3, twin=False,
        repairs=("lora:rank=2",),
    )  # fmt: skip
    folder = execute(planned, tmp_path / "run", progress=False)
    images = disk.open(own).test.x[:5]
    opened = open_run(folder.path)
    with torch.no_grad():
        expected = opened.model(opened.data.test.x[:5]).double().softmax(1)
    torch.testing.assert_close(open_image_predictor(folder.path).chances(images), expected)


def test_a_run_needs_its_own_copy_of_an_encoder_alone(own, tmp_path):
    how = Pretraining(shape=(1, 8, 8), images=40, steps=1, batch=8, width=2, kind="leaves")
    save_encoder(pretrain(how)[0], how, 1, weights := tmp_path / "encoder.safetensors")
    recipe = f"made-up-linear:weights={weights},stages=1,patches=0"
    planned = plan(data=str(own), recipe=recipe, noise_multiplier=2.0, delta=1e-4, steps=2, twin=False)
    folder = execute(planned, tmp_path / "run", progress=False)
    assert folder.features.read_bytes() == weights.read_bytes()
    assert 'Path("features.safetensors")' in folder.readme.read_text()
    before = open_image_predictor(folder.path).chances(disk.open(own).test.x)
    weights.unlink()
    assert audit(open_run(folder.path), "disparity").headline
    assert torch.equal(open_image_predictor(folder.path).chances(disk.open(own).test.x), before)


def test_the_copy_of_an_encoder_is_there_before_training(own, tmp_path, monkeypatch):
    how = Pretraining(shape=(1, 8, 8), images=40, steps=1, batch=8, width=2, kind="leaves")
    save_encoder(pretrain(how)[0], how, 1, weights := tmp_path / "encoder.safetensors")
    planned = plan(
        data=str(own), recipe=f"made-up-linear:weights={weights},stages=1,patches=0", noise_multiplier=2.0, delta=1e-4, steps=2,
        twin=False,
    )  # fmt: skip
    genuine = execution._fit

    def vanishing(*given, **settings):
        weights.unlink()
        return genuine(*given, **settings)

    monkeypatch.setattr(execution, "_fit", vanishing)
    folder = execute(planned, tmp_path / "run", progress=False)
    assert folder.readme.exists()
    assert {check.verdict for check in verified(folder.path, trials=1000)} == {"ok"}


def test_the_test_part_of_a_named_set_is_that_of_the_run():
    assert torch.equal(images_of("digits", 5), load("digits", 5).test.x)
    assert not torch.equal(images_of("digits", 5), images_of("digits"))


def test_readme_says_how_features_of_a_convolution_are_made(own, tmp_path):
    planned = plan(
        data=str(own), recipe="scattering-cnn:scales=1,angles=2", noise_multiplier=2.0, delta=1e-4, steps=1, batch_size=20,
        twin=False,
    )  # fmt: skip
    folder = execute(planned, tmp_path / "run", progress=False)
    assert "features_of(images, features, flat=False)" in folder.readme.read_text()


def test_a_table_is_no_input_of_a_run_on_images(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "new.csv").write_text("a,b\n1,2\n")
    noisewise = command_line(monkeypatch, capsys, tmp_path, columns=200)
    told = noisewise("predict", str(run.path), "new.csv", "--out", "out.csv")
    assert told.code != 0
    assert "was trained on images" in told.words
