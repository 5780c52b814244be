"""Images drawn again from their gradients with absolute noise and random masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import noisewise as nw
from noisewise import audits
from noisewise.attacks.inversion import Attack
from noisewise.clipping import Flat
from noisewise.models import build
from noisewise.reproduce.images import parts_of

UNBOUNDED = 1e4  # a bound that no gradient of an untrained model reaches


def inverted_images(
    *,
    seed: int,
    device: str,
    data: str,
    model: str,
    rates: list[float],
    variance: float,
    images: int,
    steps: int,
    variation: float = 1e-4,
    signed: bool = True,
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Mean squared error of inverted gradients, without noise and by sparsity with noise of a variance on every coordinate.

    The audit of reconstruction on an untrained model, whose bound is so large that nothing is clipped: `plain`, `blind` (the
    mean image) and one number for each rate. The attacker knows label and mask and compares what is kept.
    """
    if device == "cpu":
        torch.set_num_threads(1)
    test = parts_of(data, 0, 0.0, "cpu").test
    network = build(model, tuple(test.x.shape[1:]), len(test.classes), seed, **(options or {})).to(device)
    plan = nw.Mechanism(
        sampler=nw.FullBatch(1), clip=Flat(UNBOUNDED), noise_multiplier=variance**0.5 / UNBOUNDED, steps=1
    )
    seen: dict[str, Any] = {"rates": {}}
    for rate in rates:
        found = audits.reconstruction(
            network, test, mechanism=plan, sparsity=rate, images=images, generator=np.random.default_rng(seed),
            attack=Attack(steps=steps, variation=variation, signed=signed),
        )  # fmt: skip
        seen["rates"][f"{rate:g}"] = found.error("sparse").value
        seen |= {name: found.error(name).value for name in ("plain", "clipped", "noisy", "blind")}
    return seen
