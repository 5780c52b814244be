"""What may be asked of a plan; the rest is refused with its name and a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from noisewise.errors import ConfigError, RunError
from noisewise.workflow.plan_inputs import EPSILONS, Asked


def test_the_least_that_can_be_asked() -> None:
    assert Asked(n=100, features=3).epsilons == EPSILONS
    assert Asked(n=100, stand_in="digits").seeds == 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"n": 1, "features": 3}, "--n 1"),
        ({"n": 10}, "what do the records look like"),
        ({"n": 10, "features": 0}, "--features 0"),
        ({"n": 10, "features": 3, "classes": 1}, "--classes 1"),
        ({"n": 10, "classes": 3}, "--classes without --features"),
        ({"n": 10, "features": 3, "epsilons": (1.0, 0.0)}, "--epsilon 1, 0"),
        ({"n": 10, "features": 3, "epsilons": ()}, "--epsilon none"),
        ({"n": 10, "features": 3, "epsilons": (float("inf"),)}, "--epsilon inf"),
        ({"n": 10, "features": 3, "epochs": -1.0}, "--epochs -1"),
        ({"n": 10, "features": 3, "batch_size": 11}, "only 10 people"),
        ({"n": 10, "features": 3, "delta": 2.0}, "delta"),
        ({"n": 10, "features": 3, "model": "resnet"}, "'resnet': unknown"),
        ({"n": 10, "features": 3, "seeds": 0}, "--seeds 0"),
        ({"n": 10, "stand_in": "imagenet"}, "Embedded are digits and breast_cancer"),
        ({"n": 10, "features": 3, "plot": Path("a.jpeg")}, "must end in .png"),
        ({"n": 10, "features": 3, "plot": Path("nowhere/a.png")}, "folder that exists"),
        ({"n": 10, "features": 3, "schema": Path("s.json")}, "leave out --features"),
        (
            {"n": 10, "schema": Path("people.csv")},
            "`noisewise schema people.csv --label COLUMN=A,B --header-only --out people.toml`",
        ),
        ({"n": 10, "schema": Path("nowhere.json")}, "nowhere.json does not exist"),
    ],
)
def test_mistakes_are_named(given, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        Asked(**given)
    assert words in str(error.value)


def test_runs_must_be_finished_and_alone(tmp_path) -> None:
    with pytest.raises(RunError, match="no folder of a finished run"):
        Asked(n=10, runs=(tmp_path,))
    (tmp_path / "run.json").write_text('{"state": "complete"}')
    with pytest.raises(ConfigError, match="--stand-in and --runs"):
        Asked(n=10, runs=(tmp_path,), stand_in="digits")
