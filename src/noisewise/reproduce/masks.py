"""Which coordinates masks leave out over a run: how often each one, and how much is left to send."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import noisewise as nw
from noisewise import repairs
from noisewise.reproduce.images import DELTA
from noisewise.reproduce.starts import begun, planned
from noisewise.training import Observation

KINDS: dict[str, Any] = {
    "random": repairs.RandomSparsification,
    "ranked": repairs.RankedSparsification,
    "ranked without noise": partial(repairs.RankedSparsification, unnoised=True),
}


def mask_counts(
    *,
    seed: int,
    device: str,
    data: str,
    model: str,
    batch: int,
    epochs: float,
    lr: float,
    sigma: float,
    bound: float,
    final: float,
    rows: int | None = None,
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """In how many steps each coordinate is masked, for random masks, ranked ones, and ranked ones without noise.

    By kind: `histogram` of the share of steps (20 bins), `ks` distance of its distribution to that of the random masks,
    `deviation` of the share over coordinates, `payload`: numbers sent over those of a dense run. The distance of random masks
    to themselves is that to a second draw.
    """
    way = {"batch": batch, "lr": lr, "sigma": sigma, "bound": bound}
    recipe = planned(begun(seed, device, data, model, rows, options), way, epochs)
    shares: dict[str, np.ndarray] = {}
    for name, number in (*((kind, seed) for kind in KINDS), ("random again", seed + 500)):
        counter = Counter(dict(recipe.model.named_parameters()))
        nw.fit(
            repairs.repaired(recipe, KINDS.get(name, repairs.RandomSparsification)(final)), recorders=[counter],
            seed=number, insecure_seed=number, delta=DELTA, progress=False, runtime=nw.Runtime(capture=False),
        )  # fmt: skip
        shares[name] = counter.shares
    return {
        name: {
            "histogram": (np.histogram(masked, np.linspace(0, 1, 21))[0] / len(masked)).tolist(),
            "ks": distance(masked, shares["random again" if name == "random" else "random"]),
            "deviation": float(masked.std()),
            "payload": float(1 - masked.mean()),
        }
        for name, masked in shares.items()
    }


class Counter:
    """Counts for each coordinate the steps in which it does not learn. A recorder."""

    def __init__(self, weights: Mapping[str, Tensor]):
        """All coordinates in the order of the weights."""
        self.counts = {name: torch.zeros(weight.shape, device=weight.device) for name, weight in weights.items()}
        self.steps = 0

    def __call__(self, observed: Observation) -> None:
        """One step."""
        self.steps += 1
        for name, mask in (observed.support or {}).items():
            if isinstance(mask, Tensor):
                self.counts[name] += (~mask.bool()).to(self.counts[name])
            elif not mask:
                self.counts[name] += 1

    @property
    def shares(self) -> np.ndarray:
        """Of the steps, by coordinate."""
        flat = torch.cat([count.flatten() for count in self.counts.values()])
        return (flat / max(1, self.steps)).cpu().double().numpy()


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance of two samples: the largest gap between their distribution functions.

    >>> distance(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    0.5
    """
    values = np.union1d(first, second)
    below = [np.searchsorted(np.sort(sample), values, side="right") / len(sample) for sample in (first, second)]
    return float(np.abs(below[0] - below[1]).max())
