"""Models that seed what they draw from, and how far one unit moves their clipped sum."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from noisewise.clipping import Flat
from noisewise.persample import clipped_sum
from noisewise.testing import reveal

BOUND = 1e-3
G = torch.Generator().manual_seed(0)
X, Y = torch.randn(40, 6, generator=G).double(), torch.randint(0, 3, (40,), generator=G)


class Net(nn.Module):
    """Two layers; what happens in between is given."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(6, 8).double(), nn.Linear(8, 3).double()
        self.between = between

    def forward(self, x):
        """Logits."""
        return self.head(self.between(self, x))


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def moved(model, layout, units):
    """How far leaving out the first unit moves the clipped sum, in units of the sensitivity."""

    device = next(model.parameters()).device

    def total(first):
        batch = (X[first:units].to(device), Y[first:units].to(device))
        clipped = clipped_sum(model, cross_entropy, batch, Flat(BOUND), layout=layout, seed=7_000_000_007)
        return torch.cat([value.flatten() for value in reveal(clipped.grads).values()])

    return float((total(0) - total(1)).norm() / BOUND)


def hidden(model, x):
    return torch.tanh(model.body(x))


def own_generator(model, x):
    drawn = torch.rand(len(x), 8, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    return hidden(model, x) * (drawn > 0.5 if model.training else 1)


def seeded(model, x):
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return F.dropout(hidden(model, x), 0.5, model.training)


def seeded_beside_an_unknown_operation(model, x):
    return seeded(model, x) * torch.linalg.matrix_norm(x.unsqueeze(-1), "nuc").unsqueeze(-1)


def seeded_for_good(model, x):
    torch.manual_seed(0)
    return F.dropout(hidden(model, x), 0.5, model.training)


def seeded_for_good_beside_an_unknown_operation(model, x):
    return seeded_for_good(model, x) * torch.linalg.matrix_norm(x.unsqueeze(-1), "nuc").unsqueeze(-1)


SELF_SEEDING = (
    own_generator, seeded, seeded_beside_an_unknown_operation, seeded_for_good, seeded_for_good_beside_an_unknown_operation,
)  # fmt: skip
