"""Runs that crash, and what they leave."""

import itertools
from pathlib import Path

import pytest

from helpers import tiny
from noisewise.runs.folder import RunFolder

SEED = 5

ROOT = 0x1234567890ABCDEF1234567890ABCDEF1234567890ABCDEF1234567890ABCDEF


class Crash(Exception):
    pass


def crashing(optimizer, step):
    """Builds an optimizer that fails in one of its steps, after the release."""

    def fail(*_):
        if next(calls) == step:
            raise Crash

    def build(network):
        chosen = optimizer(network)
        chosen.register_step_pre_hook(fail)
        return chosen

    calls = itertools.count()
    return build


def crashed(folder, step=6, optimizer=tiny.sgd, **how):
    """A run that ended with an error in the middle; its last checkpoint is of the steps before."""
    with pytest.raises(Crash):
        tiny.run(out=folder, checkpoint_seconds=0, optimizer=crashing(optimizer, step), **how)
    return RunFolder(folder)


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())
