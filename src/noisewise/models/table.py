"""A model for encoded tables: a public map that bends numbers, and a linear layer with a hidden one beside it."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from noisewise.errors import ConfigError

LONGEST = 4.0  # rows of features are shortened to this length: 16 columns of a table as they are
START = 0.1  # bound of the hidden layer's first weights: small sums for rows of that length


class Hats(nn.Module):
    """Each feature v beside hats at `knots` places on either side of 0: `max(0, 1 - K |v - t|)` at `t = +-1/K ... +-1`.

    A linear layer on top is a piecewise linear function of every number in [-1, 1]. A column that is 0 or 1 meets the hat
    at 1 only: no hat is at 0, so that what is absent stays absent. Rows longer than 4 are shortened to 4, which bounds
    every gradient and says which learning rates are stable. Nothing is learned here, and nothing is read off the data: it
    costs no privacy.
    """

    places: Tensor

    def __init__(self, knots: int):
        """`knots` on either side of 0; without any, features are only shortened."""
        super().__init__()
        self.knots = knots
        places = [sign * place / knots for place in range(1, knots + 1) for sign in (-1, 1)]
        self.register_buffer("places", torch.tensor(places, dtype=torch.float32), persistent=False)

    def extra_repr(self) -> str:
        """What it was made with."""
        return f"{self.knots}"

    def forward(self, x: Tensor) -> Tensor:
        """`[n, features]` to `[n, (1 + 2 K) features]`."""
        if self.knots:
            hats = (1 - self.knots * (x.unsqueeze(2) - self.places).abs()).clamp(min=0)
            x = torch.cat([x, hats.flatten(1)], 1)
        length = x.square().sum(1, keepdim=True).clamp(min=LONGEST**2).sqrt()
        return x * (LONGEST / length)


class Beside(nn.Module):
    """A linear layer, and beside it a hidden layer of tanh units whose sum with it starts at 0."""

    def __init__(self, features: int, hidden: int, outputs: int):
        """Only the hidden layer's own weights start at random."""
        super().__init__()
        self.sizes = (features, hidden, outputs)
        self.straight = nn.Linear(features, outputs)
        self.inner = nn.Linear(features, hidden)
        self.outer = nn.Linear(hidden, outputs, bias=False)
        for parameter in (*self.straight.parameters(), self.inner.bias, self.outer.weight):
            nn.init.zeros_(parameter)
        nn.init.uniform_(self.inner.weight, -START, START)

    def extra_repr(self) -> str:
        """What it was made with."""
        return ", ".join(map(str, self.sizes))

    def forward(self, x: Tensor) -> Tensor:
        """Both, added."""
        return self.straight(x) + self.outer(self.inner(x).tanh())


def table(shape: tuple[int, ...], outputs: int, *, knots: int = 4, hidden: int = 0) -> nn.Module:
    """One linear layer on a public map of encoded columns: piecewise linear in each, with `knots` on either side of 0.

    For features in [-1, 1], as a schema makes them, or pixels in [0, 1]. `hidden` tanh units beside it learn what columns
    mean together. The function starts at 0. With `knots=0` features enter as they are, rows longer than 4 shortened.
    """
    for name, value in (("knots", knots), ("hidden", hidden)):
        if type(value) is not int or value < 0:
            raise ConfigError(f"model 'table': {name}={value!r} must be a whole number of at least 0.")
    width = prod(shape) * (1 + 2 * knots)
    if hidden:
        return nn.Sequential(nn.Flatten(), Hats(knots), Beside(width, hidden, outputs))
    linear = nn.Linear(width, outputs)
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Flatten(), Hats(knots), linear)
