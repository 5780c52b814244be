"""A named recipe for one's own images, from Python."""

from dataclasses import replace

import pytest
import torch

from noisewise.data import load
from noisewise.errors import ConfigError
from noisewise.recipe import fit
from noisewise.recipes import RECIPES, ready
from noisewise.recipes.own_images import loss_of, views_of
from noisewise.recipes.scattered import Scattering

DIGITS = load("digits")
PARTS = replace(DIGITS.train.take(torch.arange(300)), public=False)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("scattering-linear", {}),
        ("scattering-linear", {"views": ("same", "up"), "average": False}),
        ("scattering-cnn", {"views": ("same", "up"), "average": False, "scales": (1,)}),
    ],
)
def test_images_are_learned_privately(name, given):
    parts = DIGITS._replace(train=PARTS)
    recipe = ready(parts, RECIPES[name], epsilon=8, delta=1e-4, **{"angles": 2, **given})
    short = replace(recipe, mechanism=replace(recipe.mechanism, steps=3))
    trained = fit(short, delta=1e-4, progress=False)
    assert trained.status.status == "private"
    assert trained.ledger.epsilon(1e-4) == pytest.approx(short.epsilon(1e-4))
    assert trained.model(recipe.data.test.x[:5]).shape == (5, 10)


def test_all_of_it_costs_the_epsilon_that_was_asked_for():
    recipe = ready(DIGITS._replace(train=PARTS), RECIPES["scattering-linear"], epsilon=8, delta=1e-4, angles=2)
    assert 7.5 < recipe.epsilon(1e-4) <= 8


def test_people_with_several_images_are_protected_as_one():
    parts = DIGITS._replace(train=replace(PARTS, unit=torch.arange(300) // 2))
    assert ready(parts, RECIPES["scattering-linear"], epsilon=8, delta=1e-4, angles=2).mechanism.unit == "person"


def test_views_side_by_side_have_their_own_loss():
    assert views_of(Scattering(views=("same", "up"))) == 1
    assert views_of(Scattering(views=("same", "up"), average=False)) == 2
    assert loss_of(1) is not loss_of(2)


def test_unknown_settings_are_refused():
    with pytest.raises(ConfigError, match="there is no 'scale'"):
        ready(DIGITS, RECIPES["scattering-linear"], epsilon=1, delta=1e-4, scale=2)


def test_recipes_have_names():
    made = ready(DIGITS._replace(train=PARTS), "scattering-linear", epsilon=8, delta=1e-4, angles=2)
    assert (
        made.lines()
        == ready(DIGITS._replace(train=PARTS), RECIPES["scattering-linear"], epsilon=8, delta=1e-4, angles=2).lines()
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epsilon": 0}, "epsilon=0"),
        ({"recipe": "scattering"}, "Known recipes"),
        ({"shape": (3, 8, 8)}, "read off the images"),
    ],
)
def test_what_cannot_be_is_said_before_any_features_are_made(given, words):
    with pytest.raises(ConfigError, match=words):
        ready(DIGITS, **{"recipe": "scattering-linear", "epsilon": 1, "delta": 1e-4, **given})


def test_rows_of_a_table_are_no_images():
    flat = DIGITS._replace(train=replace(PARTS, x=PARTS.x.flatten(1)))
    with pytest.raises(ConfigError, match="needs images"):
        ready(flat, "scattering-linear", epsilon=1, delta=1e-4)
