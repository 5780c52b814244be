"""A finished run as rules of advice see it, made up: a run that nothing is wrong with, and ways to spoil it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

from noisewise import audits
from noisewise.advice import Evidence
from noisewise.clipping import Flat
from noisewise.data import Data
from noisewise.estimates.estimate import Estimate
from noisewise.losses import cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.sampling import Poisson

SETTINGS: dict[str, Any] = {
    "sampler": "poisson", "batch_size": 500, "steps": 100, "repairs": (), "model": "table:knots=2", "clip": "flat",
    "bound": 0.5, "twin_lr": 0.3, "epsilon": 3.0,
}  # fmt: skip


def estimate(value: float, half: float = 0.01) -> Estimate:
    return Estimate(value, value - half, value + half, 400, 0.95, "made up")


@cache
def results() -> dict[str, audits.Result]:
    """Real audits of a small linear model and a twin that is exactly as good."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(80, 4, generator=generator), torch.arange(80) % 2
    model = torch.nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
        model.weight[1, 0] = 2.0
    x[:, 0] = torch.where(y == 1, 0.4, -0.4)
    data, plan = (
        Data(x, y, classes=("a", "b")),
        Mechanism(sampler=Poisson(80, 40), clip=Flat(0.5), noise_multiplier=200.0, steps=10),
    )
    asked = {"twin": model, "generator": np.random.default_rng(0)}
    return {
        "disparity": audits.disparity(model, data, **asked),
        "calibration": audits.calibration(model, data, **asked),
        "clipping-bias": audits.clipping_bias(model, data, mechanism=plan, loss_fn=cross_entropy, **asked),
        "feature-noise": audits.feature_noise(model, data, mechanism=plan, loss_fn=cross_entropy, **asked),
    }


def evidence(*, headlines: dict[str, dict[str, Estimate]] | None = None, **changes: Any) -> Evidence:
    """Two thousand people in large batches; `headlines`: figures of audits that are to be otherwise, by audit."""
    found = results()
    for name, figures in {"calibration": {"over-confidence": estimate(0.0)}, **(headlines or {})}.items():
        found = {**found, name: replace(found[name], headline={**found[name].headline, **figures})}
    settings = {**SETTINGS, **changes.pop("settings", {})}
    given = {
        "folder": "runs/a", "settings": settings, "task": "classification", "epsilon": 3.0, "twice": 4.5, "n": 2000,
        "noise_multiplier": 3.0, "coordinates": 500, "class_sizes": {"a": 1000, "b": 1000}, "results": found,
    }  # fmt: skip
    return Evidence(**{**given, **changes})


def with_shares(whole: Evidence, **shares: Estimate) -> Evidence:
    """The same, with other accuracies of everyone: private, twin, difference."""
    disparity = whole.results["disparity"]
    parts = [
        replace(part, accuracy={**part.accuracy, **shares}) if part.by == "everyone" else part
        for part in disparity.values.parts
    ]
    changed = replace(disparity, values=replace(disparity.values, parts=parts))
    return replace(whole, results={**whole.results, "disparity": changed})
