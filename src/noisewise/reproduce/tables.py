"""Runs without images: the tangent kernel by search, epsilons by three accountants, regressions on tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

import noisewise as nw
from noisewise.clipping import Clip, Flat, Global
from noisewise.data import Data, Splits
from noisewise.data.synthetic import signal_noise
from noisewise.data.tabular import california_housing, wine_quality
from noisewise.errors import ConfigError
from noisewise.evaluation import outputs
from noisewise.losses import squared_error
from noisewise.models import build
from noisewise.theory.bu2022 import tables

REGRESSIONS: dict[str, Callable[[], Splits]] = {
    "wine": lambda: wine_quality(colour="red"),
    "california": california_housing,
    "made up": lambda: signal_noise(n=200, valid=50, test=100),
}
PROPERTIES = ("symmetric", "quadratic_form", "eigenvalues", "converges", "monotone", "to_zero")


def kernel_tables(*, seed: int, device: str, instances: int) -> dict[str, Any]:
    """Tables 1 and 2 of Bu et al. by search over random instances, and global rules with screening."""
    rows = tables(instances, np.random.default_rng(seed))
    return {
        row.rule: {
            **{name: int(getattr(row, name)) for name in PROPERTIES},
            "worst_form": row.worst_form,
            "worst_eigenvalue": row.worst_eigenvalue,
        }
        for row in rows
    }


def epsilons(*, seed: int, device: str, n: int, batch: int, steps: int, sigma: float, delta: float) -> dict[str, float]:
    """What a plan costs by PLD and RDP, which are bounds, and by the GDP approximation, which is none."""
    spent = nw.Mechanism(sampler=nw.Poisson(n, batch), steps=steps, noise_multiplier=sigma).spent(delta)
    if spent.rdp_epsilon is None or spent.gdp_epsilon is None:
        raise ConfigError(f"sigma {sigma}, {steps} steps: {spent.rdp_reason or spent.gdp_reason}.")
    return {"pld": spent.epsilon, "rdp": spent.rdp_epsilon, "gdp": spent.gdp_epsilon}


@cache
def noise_for(n: int, batch: int | None, steps: int, epsilon: float, delta: float = 1e-5) -> float:
    """The least noise multiplier that meets epsilon; found once for each plan. No batch: all rows in every step."""
    sampler = nw.FullBatch(n) if batch is None else nw.Poisson(n, batch)
    return float(nw.Mechanism(sampler=sampler, steps=steps).calibrated(epsilon, delta).noise_at(0))


def train_regression(
    *,
    seed: int,
    device: str,
    data: str,
    epochs: int,
    lr: float,
    width: int = 100,
    batch: int | None = None,
    adam: bool = False,
    bound: float = 1.0,
    screen: float | None = None,
    epsilon: float | None = None,
    plain: bool = False,
    tuning: bool = False,
) -> dict[str, Any]:
    """Fit a number with a network of one hidden layer; mean squared error in units of the target's deviation.

    batch: Poisson batches; None for full-batch gradient descent. screen: global clipping with this Z, else local.
    """
    split = _standardised(data)
    model = build("mlp", tuple(split.train.x.shape[1:]), 1, seed, widths=(width,)).to(device)
    n = len(split.train)
    rule: Clip = Flat(bound) if screen is None else Global(bound, screen)
    sampler = nw.FullBatch(n) if batch is None else nw.Poisson(n, batch)
    steps = epochs if batch is None else nw.steps_for(epochs, n, batch)
    sigma = 0.0 if epsilon is None else noise_for(n, batch, steps, epsilon)
    plan = nw.Mechanism(sampler=sampler, clip=rule, steps=steps, noise_multiplier=sigma)
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(model.parameters(), lr=lr) if adam else torch.optim.SGD(model.parameters(), lr=lr)
    )
    here = Data(split.train.x.to(device), split.train.y.to(device), public=True)
    nw.train(
        model, here, squared_error, plan, optimizer, ablation="plain" if plain else "private" if epsilon else "clip-only",
        seed=seed, insecure_seed=seed, delta=1e-5, progress=False,
    )  # fmt: skip
    look = split.valid if tuning else split.test
    error = float((outputs(model, look.x).squeeze(1) - look.y).square().mean())
    return {"mse": error, "noise_multiplier": float(plan.noise_at(0)), "steps": steps, "score": -error}


def _standardised(name: str) -> Splits:
    """Inputs and targets with mean 0 and deviation 1 on the training rows, which are public here."""
    split = REGRESSIONS[name]()
    x, y = split.train.x.double(), split.train.y.double()
    middle, spread = x.mean(0), x.std(0).clamp(min=1e-6)
    return Splits(
        *(
            Data(((part.x - middle) / spread).float(), ((part.y - y.mean()) / y.std()).float(), public=True)
            for part in split
        )
    )
