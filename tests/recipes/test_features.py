"""What all kinds of features share: settings that are looked at, and no kind without its answers."""

from dataclasses import fields

import pytest

from noisewise.errors import ConfigError
from noisewise.recipes import RECIPES
from noisewise.recipes.features import Features
from noisewise.recipes.patches import Patches
from noisewise.recipes.scattered import Scattering

KINDS = (Scattering, Patches)  # that need no file
SHARED = {"views", "average", "shape", "centre", "waves", "pitch"}


def test_every_recipe_has_the_shared_settings():
    assert {field.name for field in fields(Features)} == SHARED
    for kind in RECIPES.values():
        assert issubclass(kind.features, Features)
        assert set(kind.known()) >= SHARED - ({"shape"} if kind.flat else {"shape", "waves", "pitch"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("given", "words"),
    [({"views": ("turned",)}, "view 'turned'"), ({"centre": -1.0}, "centre=-1.0"), ({"waves": -5}, "waves=-5")],
)
def test_shared_settings_are_looked_at_whatever_the_kind(kind, given, words):
    with pytest.raises(ConfigError, match=words):
        kind(**given)


def test_a_kind_that_answers_nothing_is_none():
    with pytest.raises(TypeError, match="abstract"):
        Features()
