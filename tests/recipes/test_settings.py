"""How recipes learn: found at the nearest signal, slower where it is weaker."""

from dataclasses import replace

import pytest
import torch

from noisewise.data import load
from noisewise.errors import ConfigError
from noisewise.evaluation import outputs
from noisewise.recipe import fit
from noisewise.recipes import RECIPES, ready, settings
from noisewise.recipes.settings import Course, course_for, courses, ema_of

COURSE = Course(
    data="a", channels=1, n=1000, epsilon=1.0, features={}, share=0.25, epochs=10, rate=0.5, bound=2.0, momentum=0.9,
    schedule="constant", averaged=0.1,
)  # fmt: skip


def test_settings_are_those_that_were_found():
    made = COURSE.settings(1000, 1.0)
    assert (made["batch_size"], made["steps"], made["lr"], made["ema"], made["schedule"]) == (250, 40, 0.25, 0.75, None)
    assert COURSE.settings(100_000, 3.0)["lr"] == 0.25  # a stronger signal changes no rate


def test_a_weaker_signal_has_a_lower_rate_in_proportion():
    assert COURSE.settings(100, 1.0)["lr"] == pytest.approx(0.025)
    assert COURSE.settings(500, 0.5)["lr"] == pytest.approx(0.0625)
    assert COURSE.settings(3, 1.0)["batch_size"] == 1


@pytest.mark.parametrize(("momentum", "expected"), [(0.0, 0.03), (0.9, 0.003)])
def test_the_twin_steps_as_far_with_momentum_as_without(momentum, expected):
    assert replace(COURSE, momentum=momentum).settings(1000, 1.0)["twin_lr"] == expected


@pytest.mark.parametrize("name", ["scattering-linear", "scattering-cnn"])
def test_the_twin_of_a_recipe_learns(name):
    """A twin below its private model would say that privacy helps. Seed 0: other batches give 90 to 95 %."""
    parts = load("digits")
    made = ready(parts, RECIPES[name], epsilon=3, delta=1e-4, angles=4)
    course = RECIPES[name].course(parts.train.units, 3, 1)
    chosen = course.settings(parts.train.units, 3)
    twin = replace(made, optimizer=lambda p: torch.optim.SGD(p, chosen["twin_lr"], chosen["momentum"]))
    trained = fit(twin, ablation="plain", seed=0, insecure_seed=0, delta=1e-4, progress=False)
    held = made.data.valid
    assert float((outputs(trained.model.eval(), held.x).argmax(1) == held.y).double().mean()) > 0.9


def test_averages_of_a_step_or_two_are_none():
    assert (ema_of(0.0, 100), ema_of(0.01, 150), ema_of(0.1, 100)) == (None, None, 0.9)


def test_the_nearest_signal_counts_within_the_same_set_or_colours(monkeypatch):
    made = [("a", 1, 1.0), ("a", 1, 4.0), ("b", 3, 1.0)]
    several = tuple(
        Course(**{**vars(COURSE), "data": data, "channels": channels, "epsilon": epsilon})
        for data, channels, epsilon in made
    )
    monkeypatch.setattr(settings, "courses", lambda recipe: several)
    assert course_for("any", 1000, 1.9, 1).epsilon == 1.0
    assert course_for("any", 1000, 2.1, 1).epsilon == 4.0
    assert course_for("any", 4000, 1.0, 1).epsilon == 4.0
    assert course_for("any", 1000, 4.0, 3).data == "b"
    assert course_for("any", 1000, 4.0, 1, "b").data == "b"
    monkeypatch.setattr(settings, "courses", lambda recipe: ())
    with pytest.raises(ConfigError, match="no settings"):
        course_for("any", 1000, 1.0, 1)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_settings_for_grey_and_coloured_images(name):
    channels = {course.channels for course in courses(name)}
    assert channels == {1, 3}
    for course in courses(name):
        assert RECIPES[name].made({}, course).views
