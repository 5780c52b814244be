"""A quick run on the digits."""

from __future__ import annotations

import pytest

from noisewise.workflow.config import Config, configure
from noisewise.workflow.execution import execute


def quick(**given) -> Config:
    return configure(**({"data": "digits", "noise_multiplier": 4.0, "steps": 3, "batch_size": 64} | given))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return execute(quick(), tmp_path_factory.mktemp("run") / "a", progress=False)
