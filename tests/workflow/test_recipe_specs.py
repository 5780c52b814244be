"""Recipes as texts: complete in a config, refused where they mean nothing."""

import pytest
import torch

from noisewise.data import Data
from noisewise.errors import ConfigError
from noisewise.recipes import RECIPES, Scattering
from noisewise.recipes.learned import INCLUDED, file_of
from noisewise.workflow.choices import RECIPE_NAMES
from noisewise.workflow.recipe_specs import agree, complete, filled, parsed, sides_of, weights_of, written

GREY = Data(torch.zeros(50, 1, 8, 8), torch.arange(50) % 2, classes=("a", "b"))


def test_names_are_known_without_importing_them():
    assert list(RECIPE_NAMES) == list(RECIPES)


def test_texts_are_read_and_written():
    text = "scattering-linear:scales=1/2,power=0.5,views=same/flip+up,average=no"
    kind, given = parsed(text)
    assert given == {"scales": (1, 2), "power": 0.5, "views": ("same", "flip+up"), "average": False}
    features = kind.made(given)
    assert complete(written(kind, features)) == (kind, features)


def test_a_config_says_everything_and_the_shape():
    text, course = filled("scattering-linear:angles=4", GREY, 1.0, "own")
    features = complete(text)[1]
    assert features.angles == 4
    assert features.shape == (1, 8, 8)
    assert course.channels == 1
    assert "views=" in text
    assert "power=" in text


def test_what_was_found_on_larger_images_is_made_to_fit():
    tiny = Data(torch.zeros(50, 2, 6, 6), GREY.y, classes=GREY.classes)
    _, features = complete(filled("scattering-linear", tiny, 1.0, "own")[0])
    assert isinstance(features, Scattering)
    assert max(features.scales) == 1
    assert not features.chroma


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scattering", "Known recipes"),
        ("scattering-linear:scale=2", "there is no 'scale'"),
        ("scattering-linear:scales", "no key=value"),
        ("scattering-linear:angles=many", "angles=many"),
        ("scattering-linear:angles=2,angles=3", "given twice"),
    ],
)
def test_mistakes_are_named(text, words):
    with pytest.raises(ConfigError, match=words):
        parsed(text)


@pytest.mark.parametrize("x", [torch.zeros(50, 5), torch.zeros(50, 8, 8)])
def test_other_inputs_than_images_are_refused(x):
    with pytest.raises(ConfigError, match="needs images"):
        filled("scattering-linear", Data(x, GREY.y, classes=GREY.classes), 1.0, "own")


def test_weights_are_those_that_are_named():
    assert weights_of(None) is None
    assert weights_of("scattering-linear") is None
    assert weights_of("made-up-linear:weights=a.safetensors") == "a.safetensors"
    assert weights_of("made-up-linear:grid=2") == "included"


def test_a_copy_takes_the_place_of_the_encoder_whether_it_was_named_or_not(tmp_path):
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(file_of(INCLUDED).read_bytes())
    for text in (
        "made-up-linear:grid=2",
        "made-up-linear:grid=2,weights=included",
        "made-up-linear:grid=2,weights=gone.safetensors",
    ):
        assert complete(text, copy)[1].weights == str(copy)
    assert complete("scattering-linear", copy)[1] == complete("scattering-linear")[1]


def test_what_is_usual_agrees_with_a_text_that_is_older_than_the_setting():
    assert agree("made-up-linear:late=1,stages=2", "made-up-linear:weights=a.safetensors,stages=2,patches=1")
    assert not agree("made-up-linear:late=0.5", "made-up-linear:weights=a.safetensors,stages=2,patches=1")


def test_texts_agree_where_nothing_said_differs():
    whole = filled("scattering-linear:angles=4,views=same/flip", GREY, 1.0, "own")[0]
    for said in (
        "scattering-linear",
        "scattering-linear:angles=4",
        "scattering-linear:views=same/flip,angles=4",
        whole,
    ):
        assert agree(said, whole)
    for said in (
        "scattering-linear:angles=8",
        "scattering-linear:waves=256",
        "patches-linear",
        "scattering-cnn:angles=4",
    ):
        assert not agree(said, whole)


@pytest.mark.parametrize(("text", "views"), [("", 1), (":views=same/flip", 1), (":views=same/up,average=no", 2)])
def test_views_side_by_side_are_told_by_the_text(text, views):
    assert sides_of(f"scattering-linear{text}") == views
    assert sides_of(f"made-up-linear:weights=gone.safetensors{text.replace(':', ',')}") == views


def test_numbers_are_written_in_full():
    features = Scattering(waves=3, pitch=0.123456789)
    assert "pitch=0.123456789" in written(RECIPES["scattering-linear"], features)
    assert complete(written(RECIPES["scattering-linear"], features))[1] == features


def test_a_shape_is_read_off_the_images():
    with pytest.raises(ConfigError, match="read off the images"):
        filled("scattering-linear:shape=3/8/8", GREY, 1.0, "own")
