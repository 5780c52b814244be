"""Who pays for privacy, part by part, beside how far each part stands out of the noise."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

import noisewise as nw
from noisewise import audits
from noisewise.data import Data
from noisewise.data.transforms import subsample_class
from noisewise.errors import ConfigError
from noisewise.evaluation import outputs
from noisewise.losses import cross_entropy
from noisewise.reproduce.images import BATCH, DELTA
from noisewise.reproduce.measured import rank_correlation
from noisewise.reproduce.starts import begun_on, near, planned, some

FEWEST = 30  # test rows of a part whose accuracy is worth a look


def who_pays(
    *,
    seed: int,
    device: str,
    data: str,
    model: str,
    batch: int,
    epochs: float,
    lr: float,
    open_lr: float,
    by: str,
    epsilon: float | None = None,
    sigma: float | None = None,
    bound: float = 1.0,
    sizes: dict[str, int] | None = None,
    rows: int | None = None,
    looked: int = 2000,
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A private model and its twin: accuracy of each part, and its ratio by the audit of features and noise.

    Args:
        seed: of everything.
        device: where; tables stay on the CPU.
        data: a set by name.
        model: a model by name, with `options`.
        batch: expected size, of both.
        epochs: of both.
        lr: of the private model.
        open_lr: of the twin.
        by: `class`, or `class and` a group column.
        epsilon: at delta 1e-5, or
        sigma: the noise multiplier.
        bound: C.
        sizes: of classes, others in full.
        rows: that are trained on; all by default.
        looked: training rows whose gradients are measured.
        options: of the model.

    Gives `parts`: by name, `start` and `end` (ratios at the initial and the released weights), `share`, loss and accuracy of
    `private` and `twin` on the test rows, `price` (loss of the private one - of the twin) and `points` (accuracy of the twin -
    of the private one); and the rank `correlation` of each ratio, and of the share, with the price.
    """
    if device == "cpu":
        torch.set_num_threads(1)
    split = nw.load(data, 0, 0)
    where = "cpu" if split.train.groups else device
    whole = split.train
    if sizes is not None:
        whole = subsample_class(whole, {int(label): size for label, size in sizes.items()}, seed)
    train = some(whole, rows, seed)
    train = train if where == "cpu" else replace(train, x=train.x.to(where), y=train.y.to(where))
    recipe = begun_on(train, seed, where, model, options)
    noise: dict[str, Any] = {"epsilon": epsilon} if epsilon is not None else {"sigma": sigma}
    private = planned(recipe, {"batch": batch, "lr": lr, "bound": bound, **noise}, epochs)
    plain = planned(recipe, {"batch": batch, "lr": open_lr}, epochs)
    common: dict[str, Any] = {"seed": seed, "insecure_seed": seed, "delta": DELTA, "progress": False}
    trained = {"private": nw.fit(private, **common).model, "twin": nw.fit(plain, ablation="plain", **common).model}
    seen: dict[str, dict[str, Any]] = {}
    for place, network in (("start", copy.deepcopy(recipe.model)), ("end", trained["private"])):
        found = audits.feature_noise(
            network, near(train), mechanism=private.mechanism, loss_fn=cross_entropy, units=min(looked, len(train)),
            generator=np.random.default_rng(seed),
        )  # fmt: skip
        for part in found.parts(by):
            seen.setdefault(part.name, {"share": part.share.value})[place] = part.ratio.value
    tested = {name: _tested(network, split.test, by) for name, network in trained.items()}
    parts = {}
    for name, of in seen.items():
        if name in tested["private"]:
            private_of, twin_of = tested["private"][name], tested["twin"][name]
            price = {
                "price": private_of["loss"] - twin_of["loss"],
                "points": twin_of["accuracy"] - private_of["accuracy"],
            }
            parts[name] = {**of, "private": private_of, "twin": twin_of, **price}
    if len(parts) < 3:
        raise ConfigError(f"{len(parts)} parts of {data} by {by} are large enough to be compared: a rank needs three.")
    prices = [of["price"] for of in parts.values()]
    correlations = {
        place: rank_correlation([of[place] for of in parts.values()], prices) for place in ("start", "end", "share")
    }
    return {"parts": parts, "correlation": correlations}


def _tested(network: nn.Module, test: Data, by: str) -> dict[str, dict[str, float]]:
    """Loss and accuracy on the parts of the test rows, named as the audit names them."""
    logits, labels = outputs(network, test.x, BATCH), test.y
    right = (logits.argmax(1) == labels).double().numpy()
    losses = nn.functional.cross_entropy(logits, labels, reduction="none").double().numpy()
    parts = {str(name): (labels == place).numpy() for place, name in enumerate(test.classes)}
    column = by.removeprefix("class and ")
    if column != by:
        groups, names = test.groups[column].numpy(), test.group_names[column]
        parts = {
            f"{label}, {name}": rows & (groups == place)
            for label, rows in parts.items()
            for place, name in enumerate(names)
        }
    return {
        name: {"loss": float(losses[rows].mean()), "accuracy": float(right[rows].mean())}
        for name, rows in parts.items()
        if rows.sum() >= FEWEST
    }
