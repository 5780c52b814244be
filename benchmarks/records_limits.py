"""What limits a record, by the project's attribution: features, clipping or noise, on held-out training images."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from records_final import _recipe
from records_search import DELTA, FOLDER, cut, training_images

from noisewise.data import Data
from noisewise.evaluation import outputs
from noisewise.losses import outputs_for
from noisewise.recipe import at_epsilon, fit
from noisewise.recipes.centre import centred, noised_centre
from noisewise.recipes.own_images import loss_of, views_of
from noisewise.recipes.settings import TWIN_LR
from noisewise.recipes.transform import featured
from noisewise.runs.files import write_json
from noisewise.workflow.model_specs import build_model
from noisewise.workflow.recipe_specs import parsed

SEEDS = (200, 201, 202)  # of cuts and noise
PLAIN = {"share": 1 / 32, "epochs": 60, "lr": TWIN_LR}


def measure(
    name: str,
    epsilon: float,
    *,
    recipe: str = "scattering-linear",
    device: str = "cpu",
    seeds: Sequence[int] = SEEDS,
    folder: Path = FOLDER,
) -> dict[str, Any]:
    """Accuracy of the private plan, of the same without noise, and of ordinary training."""
    kind, given = parsed(recipe)
    whole = training_images(name, device)
    course = kind.course(len(whole), epsilon, int(whole.x.shape[1]), name)
    features = kind.made(given, course)
    seen = featured(whole, features, flat=kind.flat, device=device, keep=device)
    runs = {mode: list[float]() for mode in ("plain", "clip-only", "private")}
    views = views_of(features)
    for seed in seeds:
        look, rest = cut(len(seen), seed, seen.x.device)
        train, held = (Data(seen.x[rows], seen.y[rows], classes=seen.classes, public=True) for rows in (rest, look))
        model = build_model(kind.model(features), tuple(train.x.shape[1:]), outputs_for(train), seed).to(device)
        settings = course.settings(len(train), epsilon)
        private = _recipe(model, train, settings, loss_of(views))
        if features.centre:
            private = centred(private, *noised_centre(train, features.centre, views=views, insecure_seed=seed))
        private = at_epsilon(private, epsilon, DELTA)
        batch = max(1, round(PLAIN["share"] * len(train)))
        steps = round(PLAIN["epochs"] * len(train) / batch)
        plain = {
            **settings,
            "batch_size": batch,
            "steps": steps,
            "lr": PLAIN["lr"],
            "momentum": 0.9,
            "schedule": "linear",
            "ema": None,
        }
        open_one = _recipe(private.model, train, plain, loss_of(views))
        for mode, made in (("plain", open_one), ("clip-only", private), ("private", private)):
            runs[mode].append(
                _accuracy(
                    fit(replace(made), ablation=mode, seed=seed, insecure_seed=seed, delta=DELTA, progress=False), held
                )
            )
            print(
                f"{name} {kind.name} epsilon {epsilon:g} {mode} seed {seed}: {100 * runs[mode][-1]:.2f} %", flush=True
            )
    record = {
        "format": 1, "data": name, "recipe": kind.name, "epsilon": epsilon, "seeds": list(seeds), "runs": runs,
        "means": {mode: statistics.mean(values) for mode, values in runs.items()},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.{kind.name}.{epsilon:g}.limits.json", record)
    return record


def _accuracy(trained: Any, held: Data) -> float:
    model = trained.model
    if trained.averaged is not None:
        model.load_state_dict(model.state_dict() | trained.averaged)
    with torch.no_grad():
        said = outputs(model.eval(), held.x)
    return float((said.argmax(1) == held.y.cpu()).double().mean())
