"""Every recipe of the list: what it says of itself, what it needs, which model it has."""

import pytest

from noisewise.models import MODELS
from noisewise.recipes import RECIPES, Scattering


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_say_what_they_are_and_what_may_be_set(name):
    kind = RECIPES[name]
    assert kind.name == name
    assert kind.head in MODELS
    assert (kind.__doc__ or "").splitlines()[0].endswith(".")
    assert kind.reference in " ".join((kind.__doc__ or "").split())
    assert {"views", "average"} <= set(kind.known())
    assert not {"shape", "digest", "version"} & set(kind.known())  # nobody need say them
    assert set(kind.usual()) == set(kind.known())


def test_views_side_by_side_are_the_models_too():
    linear = RECIPES["scattering-linear"]
    assert linear.model(Scattering(views=("same", "flip"))) == "linear-head"
    assert linear.model(Scattering(views=("same", "flip"), average=False)) == "linear-head:views=2"


def test_nothing_must_be_said():
    """An encoder of colour images is included."""
    for kind in RECIPES.values():
        kind.made({}, kind.course(50_000, 1.0, 3)).check((3, 32, 32))


def test_a_course_fills_in_what_is_not_said():
    linear = RECIPES["scattering-linear"]
    course = linear.course(1000, None, 3)
    features = linear.made({"angles": 3}, course)
    assert features.angles == 3
    assert features.views == tuple(course.features["views"])
