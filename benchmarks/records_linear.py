"""Many linear models side by side on one set of features: DP-SGD for a random search on held-out images.

Models share the Poisson batches and differ in noise, bound, learning rate, momentum, schedule and averaging: two matrix
products serve all of them. The steps are those of `noisewise.train` (tests/whole/test_records.py compares clipped sums with
`clipped_sum`, and a whole run without noise with `train`), drawn from another generator. Nothing here leaves the machine as a
private model: chosen settings are run again by the library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from noisewise.rates import LearningRate
from noisewise.recipes.settings import ema_of


@dataclass(frozen=True)
class Candidate:
    """How one model learns. rate: learning rate times bound. averaged: share of the steps that the average looks back over."""

    rate: float
    bound: float
    momentum: float = 0.9
    schedule: str = "constant"
    averaged: float = 0.05

    def decay(self, steps: int) -> float | None:
        """Of the moving average."""
        return ema_of(self.averaged, steps)

    def to_dict(self) -> dict[str, Any]:
        """For a line of results."""
        return asdict(self)


class Heads:
    """Weights of M linear models on D coordinates and C classes, and the state of their optimizers."""

    def __init__(self, candidates: Sequence[Candidate], coordinates: int, classes: int, steps: int, device: Any):
        self.candidates, self.classes, self.steps = list(candidates), classes, steps
        count = len(self.candidates)
        self.weights = torch.zeros(coordinates + 1, count, classes, device=device)  # the last row is the bias
        self.velocity, self.average = torch.zeros_like(self.weights), torch.zeros_like(self.weights)

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, device=device, dtype=torch.float32)[:, None]

        self.bound = column([one.bound for one in candidates])
        self.lr = column([one.rate / one.bound for one in candidates])
        self.momentum = column([one.momentum for one in candidates])
        shapes = [LearningRate.parse(one.schedule) for one in candidates]
        self.factors = torch.tensor(
            [[shape.factor(step, steps) for shape in shapes] for step in range(steps)], device=device
        )[:, :, None]
        self.decay = column([one.decay(steps) or 0.0 for one in candidates])

    def logits(self, x: Tensor) -> Tensor:
        """`[n, M, C]` of rows `[n, D]`."""
        flat = self.weights.flatten(1)
        return torch.addmm(flat[-1], x, flat[:-1]).unflatten(1, (-1, self.classes))

    def sums(self, x: Tensor, y: Tensor, inner: Tensor) -> Tensor:
        """Clipped sums `[D + 1, M, C]` over units `x [n, K, D]`; `inner [n, K, K]`: products of a unit's views, plus one."""
        units, views = x.shape[:2]
        rows = x.flatten(0, 1)
        slopes = self.logits(rows).softmax(2)
        slopes[torch.arange(units * views, device=x.device), :, y.repeat_interleave(views)] -= 1
        slopes /= views
        if views == 1:  # without a product for each unit and model, which would take as long as the two large ones
            squares = inner[:, 0] * slopes.square().sum(2)
        else:
            by_unit = slopes.unflatten(0, (units, views)).movedim(2, 1)  # [n, M, K, C]
            squares = (inner[:, None] * (by_unit @ by_unit.mT)).sum((2, 3))
        factors = (self.bound[:, 0] / squares.clamp(min=1e-30).sqrt()).clamp(max=1)
        slopes = (slopes * factors.repeat_interleave(views, 0)[:, :, None]).flatten(1)
        return torch.cat([rows.T @ slopes, slopes.sum(0, keepdim=True)]).unflatten(1, (-1, self.classes))

    def step(self, answer: Tensor, number: int) -> None:
        """SGD with momentum, then the moving average."""
        self.velocity.mul_(self.momentum).add_(answer)
        self.weights.sub_(self.velocity * (self.lr * self.factors[number]))
        decay = self.decay.clamp(max=(2 + number) / (11 + number))  # begins where the weights do, as in `train`
        self.average.mul_(decay).add_(self.weights * (1 - decay))

    def settle(self) -> None:
        """What is released is the average."""
        self.weights = self.average


def products(x: Tensor) -> Tensor:
    """`<x_k, x_l> + 1` of each unit's views, in parts."""
    return torch.cat([part @ part.mT + 1 for part in x.split(4096)])


def train_side_by_side(
    x: Tensor,
    y: Tensor,
    inner: Tensor,
    candidates: Sequence[Candidate],
    *,
    classes: int,
    batch: int,
    steps: int,
    noise: float,
    seed: int,
) -> Heads:
    """Train all candidates on units `x [n, K, D]` with Poisson batches."""
    n = len(x)
    generator = torch.Generator(x.device).manual_seed(seed)
    heads = Heads(candidates, x.shape[2], classes, steps, x.device)
    for number in range(steps):
        if batch < n:
            drawn = (torch.rand(n, device=x.device, generator=generator) < batch / n).nonzero()[:, 0]
            sums = heads.sums(x[drawn], y[drawn], inner[drawn])
        else:
            sums = sum(heads.sums(*part) for part in zip(x.split(8192), y.split(8192), inner.split(8192), strict=True))
        if noise:
            drawn_noise = torch.randn(sums.shape, device=x.device, generator=generator)
            sums = sums + drawn_noise * (noise * heads.bound)
        heads.step(sums / batch, number)
    heads.settle()
    return heads


def scores(heads: Heads, x: Tensor, y: Tensor) -> list[dict[str, float]]:
    """Accuracy, and that of the worst class, of each candidate on units `x [n, K, D]`; NaN where it diverged."""
    right = []
    for rows in x.split(4096):
        units, views = rows.shape[:2]
        chances = heads.logits(rows.flatten(0, 1)).softmax(2).unflatten(0, (units, views)).mean(1)
        right.append(chances)
    chances = torch.cat(right)  # [n, M, C]
    correct = (chances.argmax(2) == y[:, None]).double()
    of_class = torch.stack([correct[y == label].mean(0) for label in y.unique()])
    bad = chances.isnan().any(2).any(0)
    whole, worst = correct.mean(0), of_class.min(0).values
    return [
        {
            "accuracy": math.nan if bad[place] else float(whole[place]),
            "worst_class": math.nan if bad[place] else float(worst[place]),
        }
        for place in range(len(heads.candidates))
    ]
