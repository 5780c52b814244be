"""What limits a record, by the project's attribution: features, clipping or noise, on held-out training images."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from records_final import TABLES, _recipe, by_defaults, made_by, mapped, runtime_for
from records_search import DELTA, FOLDER, cut, training_images

from noisewise.data import Data, load
from noisewise.evaluation import outputs
from noisewise.losses import cross_entropy, outputs_for
from noisewise.recipe import Recipe, at_epsilon, fit
from noisewise.recipes.centre import centred, noised_centre
from noisewise.recipes.own_images import loss_of, views_of
from noisewise.recipes.settings import TWIN_LR, fitting
from noisewise.recipes.transform import featured
from noisewise.runs.files import read_json, write_json
from noisewise.workflow.model_specs import build_model
from noisewise.workflow.recipe_specs import parsed

SEEDS = (200, 201, 202)  # of cuts and noise
MODES = ("plain", "clip-only", "private")
TUNING_SEED = 199  # of the cut on which ordinary training is chosen
PLAINS = [
    {"share": 1 / 32, "epochs": epochs, "lr": lr}
    for lr in (TWIN_LR / 30, TWIN_LR / 10, TWIN_LR / 3)
    for epochs in (20, 60)
]


def measure(
    name: str,
    epsilon: float,
    *,
    recipe: str = "scattering-linear",
    device: str = "cpu",
    seeds: Sequence[int] = SEEDS,
    folder: Path = FOLDER,
) -> dict[str, Any]:
    """Accuracy of the private plan, of the same without noise, and of ordinary training; seeds that are in the file stay."""
    lane = "defaults" if name in TABLES else recipe.partition(":")[0]
    path = folder / f"{name}.{lane}.{epsilon:g}.limits.json"
    record = read_json(path) if path.exists() else {"seeds": [], "runs": {mode: [] for mode in MODES}}
    missing = [seed for seed in seeds if seed not in record["seeds"]]
    if not missing:
        return record
    made = _of_table(name, epsilon, device) if name in TABLES else of_images(name, epsilon, recipe, device)
    chosen = record["plain"] if "plain" in record else _best_plain(made, [{}] if name in TABLES else PLAINS)
    for seed in missing:
        plain, private, held = made(seed, chosen)
        for mode, one in zip(MODES, (plain, private, private), strict=True):
            trained = fit(
                replace(one), ablation=mode, seed=seed, insecure_seed=seed, delta=DELTA, progress=False,
                runtime=runtime_for(one.data.train),
            )  # fmt: skip
            record["runs"][mode].append(accuracy_of(trained, held))
            print(
                f"{name} {lane} epsilon {epsilon:g} {mode} seed {seed}: {100 * record['runs'][mode][-1]:.2f} %",
                flush=True,
            )
        record = {
            "format": 1, "data": name, "recipe": lane, "epsilon": epsilon, "seeds": [*record["seeds"], seed], "plain": chosen,
            "runs": record["runs"], "means": {mode: statistics.mean(values) for mode, values in record["runs"].items()},
            **made_by(device),
        }  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
    return record


Plain = Mapping[str, float]  # how ordinary training learns, where that is not known
Made = Callable[[int, Plain], tuple[Recipe, Recipe, Data]]  # ordinary training, the private plan, what is held out


def _best_plain(made: Made, ways: Sequence[Plain]) -> Plain:
    """Ordinary training that does best on a cut of its own: a weak one would say that clipping helps."""
    if len(ways) == 1:
        return ways[0]

    def score(way: Plain) -> float:
        plain, _, held = made(TUNING_SEED, way)
        return accuracy_of(fit(plain, ablation="plain", seed=TUNING_SEED, delta=DELTA, progress=False), held)

    return max(ways, key=score)


def of_images(name: str, epsilon: float, text: str, device: str) -> Made:
    """Features of all training images once; a cut for each seed. Ordinary training has a plan of its own."""
    kind, given = parsed(text)
    whole = training_images(name, device)
    course = kind.course(len(whole), epsilon, int(whole.x.shape[1]), name)
    features = kind.made({**fitting(course, whole.x.shape[1:]), **given}, course)
    views, seen = views_of(features), featured(whole, features, flat=kind.flat, device=device, keep=device)

    def made(seed: int, way: Plain) -> tuple[Recipe, Recipe, Data]:
        train, held = _cut(seen, seed)
        model = build_model(kind.model(features), tuple(train.x.shape[1:]), outputs_for(train), seed).to(device)
        settings = course.settings(len(train), epsilon)
        private = _recipe(model, train, settings, loss_of(views))
        if features.centre:
            private = centred(private, *noised_centre(train, features.centre, views=views, insecure_seed=seed))
        batch = max(1, round(way["share"] * len(train)))
        steps = round(way["epochs"] * len(train) / batch)
        own = {
            "batch_size": batch,
            "steps": steps,
            "lr": way["lr"],
            "momentum": 0.9,
            "schedule": "linear",
            "ema": None,
        }
        plain = _recipe(private.model, train, settings | own, loss_of(views))
        return plain, at_epsilon(private, epsilon, DELTA), held

    return made


def _of_table(name: str, epsilon: float, device: str) -> Made:
    """A table by the defaults; plain steps are those of its twin."""
    whole = load(name, 0, 1).train
    settings, public, model = by_defaults(whole, epsilon)
    seen = mapped(whole, public, device)

    def made(seed: int, _: Plain) -> tuple[Recipe, Recipe, Data]:
        train, held = _cut(seen, seed)
        chosen = settings | {"batch_size": round(settings["batch_size"] * len(train) / len(seen))}
        private = _recipe(model.to(device), train, chosen, cross_entropy)
        plain = _recipe(private.model, train, chosen | {"lr": settings["twin_lr"]}, cross_entropy)
        return plain, at_epsilon(private, epsilon, DELTA), held

    return made


def _cut(seen: Data, seed: int) -> tuple[Data, Data]:
    held, rest = cut(len(seen), seed, seen.x.device)
    train, look = (Data(seen.x[rows], seen.y[rows], classes=seen.classes, public=True) for rows in (rest, held))
    return train, look


def accuracy_of(trained: Any, held: Data) -> float:
    """Of what is released, on held-out images."""
    model = trained.model
    if trained.averaged is not None:
        model.load_state_dict(model.state_dict() | trained.averaged)
    with torch.no_grad():
        said = outputs(model.eval(), held.x)
    return float((said.argmax(1) == held.y.cpu()).double().mean())
