"""A few steps on one fixed batch, with clipping, with noise, with both and with neither, from two starts."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn

import noisewise as nw
from noisewise.data import Data
from noisewise.losses import cross_entropy
from noisewise.recipe import train_openly
from noisewise.reproduce.images import scores_of
from noisewise.reproduce.starts import begun

WAYS = {"SGD": "plain", "clipped": "clip-only", "noisy": "noise-only", "private": "private"}


def few_steps(
    *,
    seed: int,
    device: str,
    data: str,
    model: str,
    batch: int,
    steps: int,
    lr: float,
    bound: float,
    sigma: float,
    batches: int,
    open_epochs: float,
    open_batch: int,
    open_lr: float,
    rows: int | None = None,
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Loss and length of the mean gradient on a fixed batch, after every step; means over `batches` batches.

    By start (`initial` weights, or `trained` ones after `open_epochs` of SGD) and way (SGD, clipped, noisy, private), lists
    of steps + 1 numbers.
    """
    recipe = begun(seed, device, data, model, rows, options)
    train, initial = recipe.data.train, recipe.model
    trained = train_openly(
        initial, train, cross_entropy, epochs=open_epochs, batch_size=open_batch, lr=open_lr, seed=seed
    )
    draw = np.random.default_rng(seed)
    chosen = [
        torch.from_numpy(draw.choice(len(train), batch, replace=False)).to(train.y.device) for _ in range(batches)
    ]
    seen: dict[str, Any] = {}
    for start, network in (("initial", initial), ("trained", trained)):
        seen[start] = {}
        for name, ablation in WAYS.items():
            walks = [
                _walk(network, train.take(rows), ablation, steps, lr, bound, sigma, 100 * seed + number)
                for number, rows in enumerate(chosen)
            ]
            seen[start][name] = {of: np.mean([walk[of] for walk in walks], 0).tolist() for of in ("loss", "gradient")}
    return seen


def _walk(
    start: nn.Module, fixed: Data, ablation: Any, steps: int, lr: float, bound: float, sigma: float, seed: int
) -> dict[str, list[float]]:
    """All rows of the batch in every step."""
    network = copy.deepcopy(start)
    plan = nw.Mechanism(
        sampler=nw.FullBatch(len(fixed)), clip=nw.clipping.Flat(bound), steps=steps,
        noise_multiplier=sigma if ablation in ("private", "noise-only") else 0.0,
    )  # fmt: skip
    losses, lengths = [scores_of(network, fixed)["loss"]], [mean_gradient(network, fixed)]

    def look(told: Any) -> None:
        losses.append(scores_of(network, fixed)["loss"])
        lengths.append(mean_gradient(network, fixed))

    nw.train(
        network, fixed, cross_entropy, plan, torch.optim.SGD(network.parameters(), lr=lr), ablation=ablation, seed=seed,
        insecure_seed=seed, delta=1e-5, progress=False, runtime=nw.Runtime(capture=False), callbacks=[look],
    )  # fmt: skip
    return {"loss": losses, "gradient": lengths}


def mean_gradient(network: nn.Module, data: Data) -> float:
    """Length of the gradient of the mean loss."""
    loss = cross_entropy(network, (data.x, data.y)).mean()
    grads = torch.autograd.grad(loss, list(network.parameters()))
    return float(torch.cat([grad.flatten() for grad in grads]).norm())
