"""Runs without images: the tangent kernel by search, epsilons by three accountants, regressions on tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import noisewise as nw
from noisewise.accounting import smallest_noise
from noisewise.accounting.events import gaussian, joint_multiplier
from noisewise.clipping import Clip, Flat, Global
from noisewise.data import Data, Splits
from noisewise.data.synthetic import SignalNoise, signal_noise
from noisewise.data.tabular import california_housing, wine_quality
from noisewise.errors import ConfigError
from noisewise.evaluation import outputs
from noisewise.losses import squared_error
from noisewise.models import build, linear_minimum
from noisewise.theory import watson2023, zhu2023
from noisewise.theory.bu2022 import tables

if TYPE_CHECKING:
    from dp_accounting import DpEvent

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


def sparsified(
    *, seed: int, device: str, weights: int, rates: tuple[float, ...], draws: int, bound: float = 1.0
) -> dict[str, Any]:
    """Random masks on noise, on clipped gradients and on what a least-squares attack knows, by sparsity r.

    noise: `||m n|| / ||n||`; kept: norm of the kept part of a gradient that is masked, then clipped, over that of one that
    is clipped, then masked; error: of the attack, `sigma^2 E[1 / ||m k||^2]` over its value at r = 0; bound: 1 / (1 - r).
    """
    draw = np.random.default_rng(seed)
    key, seen = draw.normal(size=weights), {}
    for rate in rates:
        count = round(weights * (1 - rate))
        noise, kept, errors = [], [], []
        for _ in range(draws):
            mask = np.zeros(weights)
            mask[draw.permutation(weights)[:count]] = 1
            shaken, gradient = draw.normal(size=(2, weights))
            noise.append(np.linalg.norm(mask * shaken) / np.linalg.norm(shaken))
            masked, whole = float(np.linalg.norm(mask * gradient)), float(np.linalg.norm(gradient))
            first, last = min(masked, bound), masked * min(1.0, bound / whole)
            kept.append(first / last)
            errors.append((key @ key) / ((mask * key) @ (mask * key)))
        seen[f"{rate:g}"] = {
            "noise": float(np.mean(noise)), "kept": float(np.mean(kept)), "error": float(np.mean(errors)),
            "bound": 1 / (1 - rate),
        }  # fmt: skip
    return seen


def best_sparsities(*, seed: int, device: str, lrs: tuple[float, ...]) -> dict[str, Any]:
    """Where the bound of Theorem 3.5 is smallest, by search, against the formula with and without the learning rate."""
    draw = np.random.default_rng(seed)
    clip, noise = (float(draw.uniform(*ends)) for ends in ((0.1, 1.0), (20.0, 60.0)))
    rates, seen = np.linspace(0, 0.9999, 20_001), {}
    for lr in lrs:
        values = [zhu2023.bound_at_sparsity(float(rate), clip, noise, lr) for rate in rates]
        searched = float(rates[int(np.argmin(values))])
        printed = max(0.0, 1 - clip / noise)
        seen[f"{lr:g}"] = {"with": zhu2023.best_sparsity(clip, noise, lr) - searched, "printed": printed - searched}
    return seen


def turned_by_clipping(*, seed: int, device: str, draws: int, units: int = 10, dimensions: int = 2) -> dict[str, Any]:
    """Theorem 3.2 of Watson et al.: how often bounds hold for clouds of gradients that are all clipped.

    heavy: lengths over several orders of magnitude; round: isotropic around a mean; by hand: 70 % of the gradients along the
    mean, the others short, half of them either way across it. least: smallest value minus bound, in units of C.
    """
    draw = np.random.default_rng(seed)
    seen: dict[str, Any] = {}
    for kind in ("heavy", "round", "by hand"):
        gaps: dict[str, list[float]] = {"printed": [], "corrected": [], "general": []}
        for _ in range(1 if kind == "by hand" else draws):
            if kind == "by hand":
                cloud = np.array([[1 / 0.7, 0.0]] * 14 + [[0.0, 0.01]] * 3 + [[0.0, -0.01]] * 3)
            else:
                cloud = draw.normal(size=(units, dimensions)) + 2 * draw.normal(size=dimensions)
            if kind == "heavy":
                cloud *= 10 ** draw.normal(0, 1.5, size=(units, 1))
            for name, gap in _above_bounds(cloud).items():
                gaps[name].append(gap)
        for name, values in gaps.items():
            broken = float((np.array(values) < -1e-9).mean())
            seen[f"{kind}, {name}"] = {"least": float(np.min(values)), "broken": broken}
    return seen


def _above_bounds(cloud: np.ndarray) -> dict[str, float]:
    """`<c, gbar/||gbar||>` minus each bound, over C, at the bound C at which everyone is just clipped."""
    mean, lengths = cloud.mean(0), np.linalg.norm(cloud, axis=1)
    length, bound = float(np.linalg.norm(mean)), float(lengths.min())
    factors = bound / lengths
    value = float((factors[:, None] * cloud).mean(0) @ mean) / length
    ratio = float(((cloud - mean) ** 2).sum(1).mean()) / length**2
    limits = {
        "printed": watson2023.printed_bound(bound, ratio),
        "corrected": watson2023.corrected_bound(bound, ratio),
        "general": watson2023.general_bound(lengths[None, :], factors[None, :], np.array([length])),
    }
    return {name: (value - limit) / bound for name, limit in limits.items()}


def signal_and_noise(
    *, seed: int, device: str, shares: tuple[float, ...], steps: int, rows: int = 400
) -> dict[str, Any]:
    """Watson's toy: R of the linear network's gradients after the first layer is pruned by magnitude, by pruned share.

    A balanced start, gradient descent to near the minimum, columns that face noise close to 0: those go first.
    """
    distribution = SignalNoise()
    data = distribution.draw(rows, torch.Generator().manual_seed(seed))
    width = distribution.ds + distribution.dn
    model = build("two-layer-linear", (width,), 1, seed, balanced=True).double()
    x, y = data.x.double(), data.y.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        (0.5 * (model(x).squeeze(1) - y).square()).mean().backward()
        optimizer.step()
    first = next(model.parameters()).detach()
    magnitude, initial = first.abs(), build("two-layer-linear", (width,), 1, seed, balanced=True).double()
    start, head = (weight.detach() for weight in initial.parameters())
    columns = torch.zeros(width)
    seen: dict[str, Any] = {}
    for share in shares:
        order = magnitude.flatten().argsort()
        mask = torch.ones_like(order, dtype=torch.float64)
        mask[order[: round(share * len(order))]] = 0
        kept = mask.view_as(first)
        seen[f"{share:g}"] = {"ratio": _ratio(kept * start, head, kept, x, y)}
        columns = kept.mean(0)
    signal = distribution.ds
    seen["kept"] = {"signal": float(columns[:signal].mean()), "noise": float(columns[signal:].mean())}
    return seen


def balanced_minimum(*, seed: int, device: str, steps: int, lr: float) -> dict[str, dict[str, float]]:
    """Theorem 3.3 of Watson et al.: gradient descent on the expected loss of the toy, from a balanced start and another.

    Small steps stand for gradient flow. facing_noise: share of the first layer's length in the columns that face noise;
    product: distance of W2 W1 from the minimum, and first: length of W1, both over the printed minimum's; balance:
    `||W2^T W2 - W1 W1^T||`.
    """
    toy = SignalNoise()
    mean, width = toy.mean, toy.ds + toy.dn
    least, _ = linear_minimum(mean[: toy.ds], toy.deviation, toy.dn, torch.ones(1, dtype=torch.float64))
    best = mean / (float(mean.square().sum()) + toy.deviation**2)
    seen = {}
    for name, balanced in (("balanced", True), ("ordinary", False)):
        model = build("two-layer-linear", (width,), 1, seed, balanced=balanced).double()
        first, second = (weight.detach().clone() for weight in model.parameters())
        for _ in range(steps):
            product = second @ first
            residual = toy.deviation**2 * product + (product @ mean - 1) * mean
            first, second = first - lr * second.T @ residual, second - lr * residual @ first.T
        seen[name] = {
            "facing_noise": float(first[:, toy.ds :].norm() / first.norm()),
            "product": float((second @ first - best).norm() / best.norm()),
            "first": float(first.norm() / least.norm()),
            "balance": float((second.T @ second - first @ first.T).norm()),
        }
    return seen


def _ratio(first: torch.Tensor, second: torch.Tensor, kept: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> float:
    """`R = mean ||g_i - gbar||^2 / ||gbar||^2` of `(W2 W1 x - y)^2 / 2` at masked weights, masked coordinates left out."""
    residual = (x @ first.T @ second.T).squeeze(1) - y
    outer = residual[:, None, None] * second.T[None] * x[:, None, :] * kept[None]
    inner = residual[:, None] * (x @ first.T)
    gradients = torch.cat([outer.flatten(1), inner], 1)
    mean = gradients.mean(0)
    return float((gradients - mean).square().sum(1).mean() / mean.square().sum())


@cache
def noise_for(
    n: int, batch: int | None, steps: int, epsilon: float, delta: float = 1e-5, *, statistics: float | None = None
) -> float:
    """The least noise multiplier that meets epsilon; found once for each plan. No batch: all rows in every step.

    `statistics`: noise multiplier of means and squares of features that are released before.
    """
    plan = nw.Mechanism(sampler=nw.FullBatch(n) if batch is None else nw.Poisson(n, batch), steps=steps)
    if statistics is None:
        return float(plan.calibrated(epsilon, delta).noise_at(0))
    before = [(release_of_statistics(n, statistics), 1)]
    return smallest_noise(lambda noise: [*before, *plan.scaled(noise).events()], epsilon, delta, plan.adjacency)


def release_of_statistics(n: int, noise: float) -> DpEvent:
    """The event of `noised_statistics` on n rows: two Gaussians of all of them."""
    return gaussian(nw.FullBatch(n), joint_multiplier([noise, noise]))


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
    sigma: float | None = None,
    plain: bool = False,
    tuning: bool = False,
) -> dict[str, Any]:
    """Fit a number with a network of one hidden layer; mean squared error in units of the target's deviation.

    batch: Poisson batches; None for full-batch gradient descent. screen: global clipping with this Z, else local. sigma: in
    place of epsilon at delta 1e-5.
    """
    split = _standardised(data)
    model = build("mlp", tuple(split.train.x.shape[1:]), 1, seed, widths=(width,)).to(device)
    n = len(split.train)
    rule: Clip = Flat(bound) if screen is None else Global(bound, screen)
    sampler = nw.FullBatch(n) if batch is None else nw.Poisson(n, batch)
    steps = epochs if batch is None else nw.steps_for(epochs, n, batch)
    if sigma is None:
        sigma = 0.0 if epsilon is None else noise_for(n, batch, steps, epsilon)
    plan = nw.Mechanism(sampler=sampler, clip=rule, steps=steps, noise_multiplier=sigma)
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(model.parameters(), lr=lr) if adam else torch.optim.SGD(model.parameters(), lr=lr)
    )
    here = Data(split.train.x.to(device), split.train.y.to(device), public=True)
    nw.train(
        model, here, squared_error, plan, optimizer, ablation="plain" if plain else "private" if sigma else "clip-only",
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
