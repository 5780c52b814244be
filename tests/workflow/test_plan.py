"""The plan of a config keeps what the config states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from noisewise.errors import ConfigError, PrivacyError
from noisewise.workflow.config import Config, configure
from noisewise.workflow.execution import prepare


def quick(**given) -> Config:
    return configure(**({"data": "digits", "noise_multiplier": 4.0, "steps": 3, "batch_size": 64} | given))


def test_a_config_that_understates_its_epsilon_is_refused() -> None:
    config = replace(quick(), epsilon=0.01)
    with pytest.raises(PrivacyError, match=r"more than the epsilon=0.01"):
        prepare(config)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"noise_multiplier": None}, "how private"),
        ({"epsilon": 1.0}, "one follows from the other"),
        ({"epochs": 1.0}, "give one of them"),
        ({"colour": "red"}, "unknown settings colour"),
        ({"data": "nope"}, "Known data sets"),
        ({"batch_size": 5000}, "outside"),
        ({"sampler": "full-batch"}, "leave it out"),
    ],
)
def test_contradictions_are_refused(given, message) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(quick(**given))


def test_per_layer_clipping_keeps_the_bound_in_total() -> None:
    mechanism = prepare(quick(clip="per-layer", bound=0.7)).mechanism
    assert mechanism.clip_at(0).sensitivity == pytest.approx(0.7)
