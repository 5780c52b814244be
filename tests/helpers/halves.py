"""Steps under an autocast, compared with one unit after the other."""

import torch
import torch.nn.functional as F
from torch import nn

from noisewise import Runtime
from noisewise.clipping import Flat
from noisewise.persample import clipped_sum, examine
from noisewise.testing import reveal
from noisewise.training.captured import Captured

UNITS = 6


def padded_under_autocast(device, dtype, kernel, *, captured=False):
    """Convolutions with padding="same" behind each other and behind a norm layer: how far sums are from the loop's."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 16, kernel, padding="same"), nn.Tanh(), nn.Conv2d(16, 16, kernel, padding="same"),
            nn.GroupNorm(4, 16), nn.Conv2d(16, 8, kernel, padding="same"), nn.Tanh(), nn.AvgPool2d(4), nn.Flatten(),
            nn.Linear(32, 4),
        ).to(device)  # fmt: skip
        batch = torch.randn(UNITS, 3, 8, 8, device=device), torch.arange(UNITS, device=device) % 4
    clip = Flat(0.5)
    with torch.autocast(device, dtype):
        expected = reveal(clipped_sum(model, loss_fn, batch, clip, runtime=Runtime(engine="loop")).grads)
        if captured:
            layout = examine(model, loss_fn, batch)
            found = Captured().clipped(
                model, loss_fn, batch, clip, {}, Runtime(), layout=layout, expected=UNITS, seed=0, norms=False
            )
        else:
            found = clipped_sum(model, loss_fn, batch, clip)
        got = reveal(found.grads)
    apart = sum((got[name] - expected[name]).double().square().sum() for name in expected).sqrt()
    return (apart / sum(value.double().square().sum() for value in expected.values()).sqrt()).item()


def loss_fn(model, batch):
    x, y = batch
    return F.cross_entropy(model(x).float(), y, reduction="none")
