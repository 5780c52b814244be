"""Small runs of other data, and runs that stopped in between."""

import pytest
from torch import nn

from helpers import tiny

DELTA, SEED = 1e-3, 5


class Crash(Exception):
    pass


def crash(observation):
    if observation.step == 5:
        raise Crash


def interrupted(folder, **settings):
    """A run that ended in its sixth step."""
    with pytest.raises(Crash):
        tiny.run(out=folder, checkpoint_seconds=0, recorders=[crash], **settings)
    return folder


def other_data():
    x, y = tiny.data()
    x = x.clone()
    x[3, 2] += 1e-6
    return x, y


def fresh_model():
    """Weights that no run has seen: random ones, since equal starts are one start."""
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
