"""What an examination depends on."""

import sys

import pytest
import torch
from torch import nn

from helpers.looks import X, Y
from helpers.oracles import cross_entropy
from noisewise.clipping import Flat
from noisewise.persample import clipped_sum, examine


def twice(model, batch):
    return 2 * cross_entropy(model, batch)


@pytest.mark.parametrize("change", ["nothing", "autocast", "shape", "type", "mode of a part", "loss"])
def test_whatever_an_examination_depends_on_makes_it_anew(change, monkeypatch):
    asked = []
    monkeypatch.setattr(
        sys.modules["noisewise.persample.clipped_sum"], "examine", lambda *args: asked.append(args) or examine(*args)
    )
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Dropout(0.0), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2, 2))
    x, loss_fn = X[:, None], cross_entropy
    layout = examine(model, loss_fn, (x, Y))
    match change:
        case "shape":
            x = torch.cat([x, x], 2)
        case "type":
            model, x = model.double(), x.double()
        case "mode of a part":
            model[1].eval()
        case "loss":
            loss_fn = twice
    with torch.autocast("cpu", torch.bfloat16, enabled=change == "autocast"):
        clipped_sum(model, loss_fn, (x, Y), Flat(1.0), layout=layout)
    assert len(asked) == (change != "nothing")
