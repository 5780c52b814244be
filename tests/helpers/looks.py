"""An examination of a small problem, and losses that look at other units."""

import torch
import torch.nn.functional as F
from torch import nn

from helpers.oracles import cross_entropy
from noisewise.persample import examine

X, Y = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 1])


def look(model, loss_fn=cross_entropy, like=(X, Y), **kwargs):
    return examine(model, loss_fn, like, **kwargs)


def batch_mean_subtracted(model, batch):
    hidden = model[0](batch[0])
    return F.cross_entropy(model[2](torch.tanh(hidden - hidden.mean(0))), batch[1], reduction="none")


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


class Running(nn.Module):
    """Keeps the mean of what it sees in a buffer, without using it."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.head = nn.Linear(6, 2)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        if self.how == "not at all":
            return self.head(x)
        mean = x.detach().mean(0)
        if self.how == "in place":
            self.seen.mul_(0.9).add_(mean, alpha=0.1)
        elif self.how == "through data":
            self.seen.data.add_(mean)
        elif self.how == "by assignment":
            self.seen = 0.9 * self.seen + 0.1 * mean
        return self.head(x)
