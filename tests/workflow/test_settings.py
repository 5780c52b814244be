"""A config: written, read back, refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from noisewise import clipping
from noisewise.errors import ConfigError
from noisewise.workflow.config import configure
from noisewise.workflow.execution import prepare
from noisewise.workflow.settings import Config, parsed_settings


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


def test_settings_are_written_as_the_config_has_them() -> None:
    texts = ["lr=0.5", "twin=no", "microbatch=none", "batch-size=64", "repairs=lora:rank=2 moving-average"]
    assert parsed_settings(texts) == {
        "lr": 0.5, "twin": False, "microbatch": None, "batch_size": 64, "repairs": ("lora:rank=2", "moving-average"),
    }  # fmt: skip


@pytest.mark.parametrize("text", ["lr", "speed=3", "steps=2.5", "twin=perhaps"])
def test_settings_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=text.partition("=")[0]):
        parsed_settings([text])


def test_a_config_is_read_without_torch() -> None:
    program = (
        "import sys; from noisewise.workflow.settings import Config, parsed_settings; parsed_settings(['lr=1']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], env=dict(os.environ), check=False).returncode == 0
