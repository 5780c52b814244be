"""Recipes on images to start runs from: an untrained model on some rows of a set, and a way to train it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

import noisewise as nw
from noisewise.clipping import Flat
from noisewise.data import Data, Splits
from noisewise.losses import cross_entropy
from noisewise.models import build
from noisewise.recipe import Recipe
from noisewise.reproduce.images import DELTA, parts_of
from noisewise.reproduce.tables import noise_for


def some(data: Data, rows: int | None, seed: int) -> Data:
    """So many rows at random, the same for a seed; all by default."""
    if rows is None or rows >= len(data):
        return data
    return data.take(torch.from_numpy(np.random.default_rng(seed).permutation(len(data))[:rows]).to(data.y.device))


def near(data: Data) -> Data:
    """On the CPU, where audits count people; they carry rows to the model themselves."""
    return replace(data, x=data.x.cpu(), y=data.y.cpu())


def begun(seed: int, device: str, data: str, model: str, rows: int | None, options: Mapping[str, Any] | None) -> Recipe:
    """A model by name with initial weights, and the training rows of a set; how it is trained is `planned`."""
    if device == "cpu":
        torch.set_num_threads(1)
    train = some(parts_of(data, 0, 0.0, device).train, rows, seed)
    return begun_on(train, seed, device, model, options)


def begun_on(train: Data, seed: int, device: str, model: str, options: Mapping[str, Any] | None) -> Recipe:
    """The same on given rows."""
    network = build(model, tuple(train.x.shape[1:]), len(train.classes), seed, **(options or {})).to(device)
    nothing = train.take(torch.arange(0))
    plan = nw.Mechanism(sampler=nw.Poisson(len(train), 1), clip=Flat(1.0), steps=1, noise_multiplier=1.0)
    return Recipe(
        model=network, data=Splits(train, nothing, nothing), loss_fn=cross_entropy, mechanism=plan,
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )  # fmt: skip


def planned(recipe: Recipe, way: Mapping[str, Any], epochs: float, of: float | None = None) -> Recipe:
    """The recipe for so many epochs of a way: batch, lr, bound (1 by default), and sigma or epsilon, or no noise.

    `of`: epochs of the whole run that an epsilon (at delta 1e-5) is meant for, where these are only a part.
    """
    n = len(recipe.data.train)
    batch = min(int(way["batch"]), n)
    sigma = float(way.get("sigma", 0.0))
    if "epsilon" in way:
        sigma = noise_for(n, batch, nw.steps_for(epochs if of is None else of, n, batch), way["epsilon"], DELTA)
    plan = nw.Mechanism(
        sampler=nw.Poisson(n, batch), clip=Flat(float(way.get("bound", 1.0))), noise_multiplier=sigma,
        steps=nw.steps_for(epochs, n, batch),
    )  # fmt: skip
    return replace(recipe, mechanism=plan, optimizer=partial(torch.optim.SGD, lr=way["lr"]))
