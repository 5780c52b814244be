"""Rules and optimizers by their names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from noisewise.errors import ConfigError
from noisewise.sampling import SAMPLERS
from noisewise.workflow.choices import CLIPS, OPTIMIZERS
from noisewise.workflow.config import Config, configure
from noisewise.workflow.execution import execute, prepare


def quick(**given) -> Config:
    return configure(**({"data": "digits", "noise_multiplier": 4.0, "steps": 3, "batch_size": 64} | given))


@pytest.mark.parametrize("clip", CLIPS)
def test_every_rule_can_be_named_and_keeps_the_stated_epsilon(clip):
    config = configure(data="digits", epsilon=3.0, delta=1e-3, steps=5, batch_size=64, clip=clip)
    recipe = prepare(config)
    assert recipe.mechanism.epsilon(config.delta) <= 3.0
    assert recipe.mechanism.epsilon(config.delta) > 2.99


def test_a_rule_that_asks_something_leaves_the_gradient_more_noise():
    plan = {"data": "digits", "epsilon": 3.0, "delta": 1e-3, "steps": 5, "batch_size": 64}
    flat, asking = (configure(**plan, clip=clip) for clip in ("flat", "quantile"))
    assert asking.noise_multiplier > flat.noise_multiplier
    changed = configure(flat, clip="quantile")
    assert changed.noise_multiplier == pytest.approx(asking.noise_multiplier)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_every_optimizer_takes_a_step(name: str, tmp_path) -> None:
    folder = execute(quick(optimizer=name, steps=1, twin=False), tmp_path / name, progress=False)
    assert folder.complete


def test_rules_and_optimizers_are_offered_in_their_order() -> None:
    words = "flat global automatic normalized per-sample per-layer quantile global-adapt"
    assert list(CLIPS) == words.split()
    assert list(OPTIMIZERS) == ["sgd", "adam", "adamw", "rmsprop"]
    for option, known in {"clip": CLIPS, "optimizer": OPTIMIZERS, "sampler": SAMPLERS}.items():
        with pytest.raises(ConfigError, match=f"{option}='no': must be one of {', '.join(known)}."):
            replace(quick(), **{option: "no"})
