"""Runs in two phases, and the loss between their ends: what Watson et al. 2023 do to tell basins apart."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn

import noisewise as nw
from noisewise import audits
from noisewise.audits.landscape import RandomDirections
from noisewise.data import Data
from noisewise.losses import cross_entropy
from noisewise.recipe import Recipe, continued
from noisewise.reproduce.images import DELTA, SHOWN, parts_of, runtime_for, scores_of
from noisewise.reproduce.starts import begun, begun_on, near, planned
from noisewise.training import Trained

OTHER = 500  # added to the seed of the second of two runs


def two_phases(
    *,
    seed: int,
    device: str,
    data: str,
    model: str,
    ways: dict[str, dict[str, Any]],
    first: str,
    seconds: list[str],
    first_epochs: float,
    epochs: float,
    other_start: bool = False,
    options: dict[str, Any] | None = None,
    rows: int | None = None,
    points: int = 30,
    directions: int = 0,
    curve: bool = False,
) -> dict[str, Any]:
    """One first phase, two second phases that go on from copies of it with other batches, and the loss between all three.

    Args:
        seed: of initial weights, batches and noise of the first phase and of the first copy.
        device: where.
        data: a set of images by name.
        model: a model by name, with `options`.
        ways: how to train, by name: batch, lr, and for DP-SGD bound and epsilon (at delta 1e-5, of
            a run of all epochs) or sigma.
        first: the way of the first phase.
        seconds: the ways of the two second phases, a and b.
        first_epochs: of the first phase; 0 for none.
        epochs: of both phases together.
        other_start: b starts from other initial weights and has a first phase of its own.
        options: of the model.
        rows: that are trained on; all by default.
        points: of each segment.
        directions: random ones of the length of a segment.
        curve: the test loss after every epoch.
    """
    start = begun(seed, device, data, model, rows, options)
    train, test = start.data.train, parts_of(data, 0, 0.0, device).test
    fitted = train.take(torch.arange(min(SHOWN, len(train)), device=train.y.device))
    curves: dict[str, list[dict[str, float]]] = {name: [] for name in ("start", "other", "a", "b")}

    def phase(recipe: Recipe, way: str, part: float, number: int, name: str) -> Trained:
        plan, points = planned(recipe, ways[way], part, epochs), curves[name]
        network = copy.deepcopy(plan.model)
        look = [lambda told: points.append(scores_of(network, test))] if curve else []
        return nw.train(
            network, train, cross_entropy, plan.mechanism, plan.optimizer(network.parameters()), seed=number,
            insecure_seed=number, delta=DELTA, progress=False, ablation="private" if plan.mechanism.noise_at(0) else "plain",
            runtime=runtime_for(device), ledger=plan.ledger, callbacks=look,
        )  # fmt: skip

    def shared(recipe: Recipe, number: int, name: str) -> Recipe:
        return continued(recipe, phase(recipe, first, first_epochs, number, name)) if first_epochs else recipe

    start = shared(start, seed, "start")
    starts = [start, start]
    if other_start:
        starts[1] = shared(begun_on(train, seed + OTHER, device, model, options), seed + OTHER, "other")
    ends = [
        phase(recipe, way, epochs - first_epochs, number, name).model
        for recipe, way, number, name in zip(starts, seconds, (seed, seed + OTHER), "ab", strict=True)
    ]
    models = {"start": start.model, "a": ends[0], "b": ends[1]}
    seen: dict[str, Any] = {
        name: {**scores_of(network, test), "train_loss": scores_of(network, fitted)["loss"]}
        for name, network in models.items()
    }
    seen |= {"curves": curves, **_between(models, near(fitted), seed, points, directions)}
    return seen


def _between(models: dict[str, nn.Module], fitted: Data, seed: int, points: int, directions: int) -> dict[str, Any]:
    """Training loss on the segments between the models, by the audit of landscapes, and in random directions."""
    found = audits.landscape(
        models["a"], fitted, twin=models["b"], start=models["start"], points=points, directions=directions,
        generator=np.random.default_rng(seed),
    )  # fmt: skip
    names = {"private to twin": "a to b", "start to private": "start to a", "start to twin": "start to b"}
    segments, random = {}, {}
    for name, segment in found.segments.items():
        losses = segment.losses
        segments[names[name]] = {
            "losses": losses,
            "highest": max(losses),
            "ends": (losses[0] + losses[-1]) / 2,
            "instability": segment.instability.value,
            "barrier": segment.barrier.value,
            "length": segment.length,
        }
        if isinstance(segment.random, RandomDirections):
            random[names[name]] = {
                "steep": segment.random.steep.value,
                "above": segment.random.above_segment.value,
                "closest": segment.random.closest,
                "losses": segment.random.losses,
            }
    return {"segments": segments, "random": random}
