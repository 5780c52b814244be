"""A config: written, read back, refused and changed."""

from __future__ import annotations

import pytest

from noisewise import clipping
from noisewise.errors import ConfigError
from noisewise.workflow.config import Config, configure
from noisewise.workflow.execution import prepare


def quick(**given) -> Config:
    return configure(**({"data": "digits", "noise_multiplier": 4.0, "steps": 3, "batch_size": 64} | given))


@pytest.mark.parametrize("given", [{}, {"ema": 0.9, "microbatch": 16, "insecure_seed": 3, "twin": False}])
def test_a_config_survives_toml(given) -> None:
    config = quick(**given)
    assert Config.from_toml(config.to_toml()) == config


def test_a_global_clip_survives_toml() -> None:
    config = quick(clip="global", screen=3.0)
    assert Config.from_toml(config.to_toml()) == config
    assert prepare(config).mechanism.clip == clipping.Global(0.5, 3.0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("epsilom = 3", "unknown entries epsilom"),
        ("lr = 'fast'", "lr='fast': must be of type float"),
        ("steps = 2.5", "steps=2.5: must be of type int"),
        ("twin = 1", "twin=1: must be of type bool"),
        ("clip = 'round'", "clip='round': must be one of flat"),
        ("optimizer = 'lion'", "optimizer='lion': must be one of sgd"),
        ("sampler = 'any'", "sampler='any'"),
        ("model = 'gpt'", "Known models"),
        ("momentum = 1.5", r"momentum=1.5: must be in \[0, 1\)"),
        ("seed = -1", "seed=-1"),
        ("screen = 2", "only global clipping screens"),
        ("format = 2", "reads `format = 1`"),
        ("lr = ", "not valid TOML"),
        ("# lr", "lr missing; a config is complete"),
    ],
)
def test_damaged_configs_are_refused_with_the_entry(line: str, message: str) -> None:
    key = line.removeprefix("# ").partition(" ")[0]
    kept = [entry for entry in quick().to_toml().splitlines() if entry.partition(" ")[0] != key]
    with pytest.raises(ConfigError, match=message):
        Config.from_toml("\n".join([*kept, line]))


def test_changes_over_a_config_recalibrate_only_where_the_plan_changes() -> None:
    base = configure(data="digits", epsilon=3.0, steps=5)
    assert configure(base, lr=0.1).noise_multiplier == base.noise_multiplier
    assert configure(base, epsilon=3.0) == base
    stricter = configure(base, epsilon=1.0)
    assert stricter.noise_multiplier > 2 * base.noise_multiplier
    assert configure(base, epochs=2.0).steps == 5  # ceil(2 * 1258 / 512)
    for change in ({"steps": 10}, {"batch_size": 256}):
        other = configure(base, **change)
        assert other.noise_multiplier != base.noise_multiplier, change
        assert prepare(other).mechanism.epsilon(other.delta) <= 3.0
    free = configure(base, noise_multiplier=1.0)
    assert (free.epsilon, free.noise_multiplier) == (None, 1.0)


def test_a_rule_without_screen_replaces_one_with() -> None:
    assert configure(quick(clip="global", screen=3.0), clip="flat").screen is None
