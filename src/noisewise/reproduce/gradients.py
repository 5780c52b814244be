"""Gradients of single images along a run: how far clipping turns their mean, what masks do to R, how symmetric they are."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import noisewise as nw
from noisewise import audits, repairs
from noisewise.clipping import Flat
from noisewise.data import Data
from noisewise.recipe import Recipe
from noisewise.repairs.random_sparsification import masks_from_flat, random_subset
from noisewise.reproduce.images import DELTA, repairs_of
from noisewise.reproduce.starts import begun, near, planned, some


def turned_gradients(
    *,
    seed: int,
    device: str,
    data: str,
    model: str,
    ways: dict[str, dict[str, Any]],
    epochs: float,
    states: int,
    bound: float,
    shares: list[float],
    mask: dict[str, Any],
    rows: int | None = None,
    looked: int = 2000,
    batches: int = 50,
    batch: int = 64,
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """R, the bounds of Theorem 3.2 and what clipping does, at states along runs; R under masks at the start.

    Args:
        seed: of everything.
        device: where.
        data: a set of images by name.
        model: a model by name, with `options`.
        ways: runs by name: batch, lr, ablation, sigma.
        epochs: of each run.
        states: looked at in each run, the start first, the end last.
        bound: C.
        shares: of weights that masks remove, or of coordinates that they hold.
        mask: a magnitude mask, see `images.repairs_of`, without its share.
        rows: that are trained on; all by default.
        looked: training images whose gradients are measured.
        batches: random ones on which the bounds are checked.
        batch: their size.
        options: of the model.
    """
    recipe = begun(seed, device, data, model, rows, options)
    shown = near(some(recipe.data.train, looked, seed))
    bias = partial(_bias, data=shown, batches=batches, batch=batch, seed=seed)
    seen: dict[str, Any] = {"runs": {}, "magnitude": {}, "random": {}, "held": {}}
    for name, way in ways.items():
        course = []
        for step, network in _states(recipe, way, epochs, bound, states, seed):
            course.append({"step": step, **bias(network, clip=Flat(bound))})
        seen["runs"][name] = course
    weights = {name: weight.detach() for name, weight in recipe.model.named_parameters()}
    for share in shares:
        key = f"{share:g}"
        for kind, given in (
            ("magnitude", {**mask, "share": share}),
            ("random", {"kind": "random mask", "share": share}),
        ):
            pruned = repairs.repaired(recipe, *repairs_of(given, seed, device)) if share else recipe
            seen[kind][key] = bias(pruned.model, mechanism=pruned.mechanism, batches=0)
        seen["held"][key] = bias(
            recipe.model, clip=Flat(bound), support=random_support(weights, share, seed), batches=0
        )
    return seen


def random_support(weights: dict[str, Tensor], share: float, seed: int) -> dict[str, Tensor]:
    """Which coordinates learn: all but a random share, drawn over all of them jointly."""
    size = sum(weight.numel() for weight in weights.values())
    keep = ~random_subset(torch.ones(size, dtype=torch.bool), round(share * size), seed)
    device = next(iter(weights.values())).device
    return {name: mask.to(device) for name, mask in masks_from_flat(keep, weights).items()}


def _states(
    recipe: Recipe, way: dict[str, Any], epochs: float, bound: float, states: int, seed: int
) -> list[tuple[int, nn.Module]]:
    """The model at equal distances over a run, the start first, the end last."""
    made = repairs.repaired(planned(recipe, {**way, "bound": bound}, epochs), *repairs_of(way.get("repair"), seed))
    trained = nw.fit(
        made, ablation=way.get("ablation", "private"), seed=seed, insecure_seed=seed, delta=DELTA, progress=False,
        keep_states=states - 1,
    )  # fmt: skip
    found = []
    for step, state in trained.states:
        network = copy.deepcopy(recipe.model)
        network.load_state_dict(state)
        found.append((step, network))
    return [*found, (made.mechanism.steps, trained.model)]


def _bias(network: nn.Module, *, data: Data, batches: int, batch: int, seed: int, **rule: Any) -> dict[str, Any]:
    """What the audit of clipping finds, of all the given images and of random batches of them."""
    found = audits.clipping_bias(
        network, data, generator=np.random.default_rng(seed), batches=batches, batch_size=batch, **rule
    )
    seen: dict[str, Any] = {
        "ratio": found.headline["R"].value if "R" in found.headline else None,
        "cosine": found.headline["cosine"].value if "cosine" in found.headline else None,
        "clipped": found.headline["clipped"].value,
        "alignment": found.values.alignment,
        "general": float(found.bounds["general"].holds),
    }
    if found.batches:
        count = len(found.batches)
        seen["batches"] = {
            "ratio": float(np.median([each.ratio for each in found.batches])),
            "printed": sum(each.alignment >= each.printed - 1e-9 for each in found.batches) / count,
            "corrected": sum(each.alignment >= each.corrected - 1e-9 for each in found.batches) / count,
            "general": sum(each.projection >= each.general - 1e-9 for each in found.batches) / count,
            "printed_says": sum(each.printed > 0 for each in found.batches) / count,
            "corrected_says": sum(each.corrected > 0 for each in found.batches) / count,
        }
    return seen


def asymmetries(
    *,
    seed: int,
    device: str,
    data: str,
    model: str,
    ways: dict[str, dict[str, Any]],
    epochs: float,
    states: int,
    bound: float,
    rows: int | None = None,
    looked: int = 500,
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """How asymmetric the deviations of gradients are in a random plane, at states along runs: `{way: [{step, ...}]}`.

    asymmetry: energy distance between the cloud and its mirror image, squared, over its largest possible value; p: that the
    cloud is symmetric. By the audit of landscapes, `looked` training images.
    """
    recipe = begun(seed, device, data, model, rows, options)
    shown = near(some(recipe.data.train, looked, seed))
    seen = {}
    for name, way in ways.items():
        course = []
        for step, network in _states(recipe, way, epochs, bound, states, seed):
            found = audits.landscape(network, shown, generator=np.random.default_rng(seed), directions=0)
            symmetry = found.symmetry["private"]
            course.append({"step": step, "asymmetry": symmetry.asymmetry, "p": symmetry.p_value})
        seen[name] = course
    return seen
