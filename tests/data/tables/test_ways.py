"""Remedies are ones that the caller has: every option and argument that is named exists there."""

import inspect
import re
from dataclasses import astuple

import pytest

from noisewise.cli.tables import schema
from noisewise.cli.train import train
from noisewise.data.tables.propose import propose
from noisewise.data.tables.ways import FIT, PROPOSE, SCHEMA, TRAIN
from noisewise.estimators import PrivateClassifier


@pytest.mark.parametrize(
    ("ways", "caller", "pattern"),
    [
        (PROPOSE, propose, r"\b([a-z_]+)="),
        (FIT, PrivateClassifier, r"\b([a-z_]+)="),
        (SCHEMA, schema, "--([a-z-]+)"),
        (TRAIN, train, "--([a-z-]+)"),
    ],
)
def test_what_is_advised_is_there(ways, caller, pattern) -> None:
    said = " ".join(astuple(ways)).replace("`noisewise schema FILE ... --header-only`", "another command")
    named = {name.replace("-", "_") for name in re.findall(pattern, said)}
    assert len(named) >= 2
    assert named <= set(inspect.signature(caller).parameters)
    assert "{}" in ways.epsilon
