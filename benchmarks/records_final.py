"""Final runs: chosen settings on all training images, with real Poisson sampling and noise, five seeds; the test part is read
once by each run, after it has ended.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from records_power import Meter, metered
from records_search import DELTA, FOLDER
from torch import nn

from noisewise import __version__
from noisewise.adaptive import rule_for
from noisewise.data import Data, Splits, images, load
from noisewise.evaluation import outputs
from noisewise.losses import cross_entropy, outputs_for
from noisewise.mechanism import Mechanism
from noisewise.models import build
from noisewise.rates import LearningRate
from noisewise.recipe import Recipe, at_epsilon, fit
from noisewise.recipes.centre import centred, noised_centre, planned_ledger
from noisewise.recipes.features import Features
from noisewise.recipes.learned import Learned, file_of
from noisewise.recipes.own_images import loss_of, views_of
from noisewise.recipes.pretraining import read_encoder
from noisewise.recipes.settings import fitting
from noisewise.recipes.transform import featured
from noisewise.reproduce.running import commit
from noisewise.runs.files import read_json, write_json
from noisewise.runtime import Runtime
from noisewise.sampling import Poisson
from noisewise.workflow.model_specs import build_model
from noisewise.workflow.recipe_specs import agree, parsed, written
from noisewise.workflow.recommended import recommended

SEEDS = (0, 1, 2, 3, 4)
TABLES = ("adult",)
ELSEWHERE = "give another --out, or move the file away."
FRONTIER = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0)


def path_of(name: str, recipe: str, epsilon: float, device: str = "cuda", folder: Path = FOLDER) -> Path:
    """Where a record lies; those of a CPU beside those of a GPU."""
    where = "" if device.startswith("cuda") else ".cpu"
    return folder / f"{name}.{recipe.partition(':')[0]}.{epsilon:g}{where}.json"


def final(
    name: str,
    epsilon: float,
    *,
    recipe: str = "scattering-linear",
    seeds: Sequence[int] = SEEDS,
    device: str = "cuda",
    folder: Path = FOLDER,
    most: int | None = None,
) -> dict[str, Any]:
    """Runs that are not in the file yet, and the file. `most`: training and test rows at most, for a trial of this script."""
    if device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
    path = path_of(name, "defaults" if name in TABLES else recipe, epsilon, device, folder)
    record = read_json(path) if path.exists() else {"runs": []}
    if record["runs"] and name not in TABLES and not agree(recipe, record["recipe"]):
        raise SystemExit(f"{path.name} has runs of {record['recipe']}, not of {recipe}: {ELSEWHERE}")
    missing = [seed for seed in seeds if seed not in {run["seed"] for run in record["runs"]}]
    if not missing:
        return record
    if name in TABLES:
        made, about, test = _of_table(name, epsilon, device)
    else:
        made, about, test = of_images(name, epsilon, recipe, device, most)
    if record["runs"] and not same_settings(record, about):
        raise SystemExit(f"{path.name} has runs of other settings than those of {about['recipe']} now: {ELSEWHERE}")
    for seed in missing:
        record["runs"].append(_run(made, seed, test, device, about.get("centre", 0.0), about.get("views", 1)))
        accuracies = [100 * run["accuracy"] for run in record["runs"]]
        print(f"{path.stem} seed {seed}: {accuracies[-1]:.2f} %", flush=True)
        record = _summed(record, {**about, "epsilon": epsilon, "delta": DELTA, **made_by(device)})
        how = "" if name in TABLES else f" --recipe {recipe}"
        record["command"] = f"python benchmarks/records.py final {name} --epsilon {epsilon:g}{how} --device {device}"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
    return record


def same_settings(record: dict[str, Any], about: dict[str, Any]) -> bool:
    """Are the runs of a file of the settings at hand? Settings that are younger than the file were as usual then."""
    first, second = (
        {**one["settings"], "twin_lr": None} for one in (record, about)
    )  # no run of a record uses the twin's
    if first != second or record["n"] != about["n"]:
        return False
    if about["data"] in TABLES:
        return True
    kind, given = parsed(record["recipe"])
    now = {"shape": None, **parsed(about["recipe"])[1]}
    return {**kind.usual(), "shape": None, **given} | {"weights": None} == now | {"weights": None}


def of_images(
    name: str, epsilon: float, text: str, device: str, most: int | None, *, parts: int = 2
) -> tuple[Recipe, dict[str, Any], Data]:
    """The recipe on all training images, with features on the device; the test part's features too, whose labels wait.

    `parts=1`: of the training images alone, to time them.
    """
    kind, given = parsed(text)
    raw = _raw(name, most)
    course = kind.course(len(raw.train), epsilon, int(raw.train.x.shape[1]), name)
    features = kind.made({**fitting(course, raw.train.x.shape[1:]), **given}, course)
    train, test, meter = _features(name, features, kind.flat, device, most, parts)
    settings = course.settings(len(train), epsilon)
    views = views_of(features)
    model = build_model(kind.model(features), tuple(train.x.shape[1:]), outputs_for(train), 0).to(device)
    made = _recipe(model, train, settings, loss_of(views))
    if features.centre:
        made = replace(made, ledger=planned_ledger(len(train), features.centre, "add-remove", "row"))
    made = at_epsilon(made, epsilon, DELTA)
    about = {
        "data": name, "recipe": written(kind, features), "settings": settings, "n": len(train),
        "coordinates": int(train.x[0].numel()) // views, "feature_seconds": round(meter.seconds, 2),
        "feature_joules": None if meter.joules is None else round(meter.joules, 1),
        "centre": features.centre, "views": views, "found_at": {"data": course.data, "n": course.n, "epsilon": course.epsilon},
        "noise_multiplier": made.mechanism.noise_at(0), "spent": made.epsilon(DELTA),
    }  # fmt: skip
    if isinstance(features, Learned):
        about["pretraining"] = read_encoder(file_of(features.weights))[1]
    return made, about, test


@lru_cache(maxsize=1)
def _raw(name: str, most: int | None) -> Splits:
    """Official training and test images."""
    parts = getattr(images, name)(0, 0)
    shown = (part if most is None else part.take(torch.arange(min(most, len(part)))) for part in parts)
    return Splits(*shown)


@lru_cache(maxsize=1)
def _features(
    name: str, features: Features, flat: bool, device: str, most: int | None, parts: int
) -> tuple[Data, Data, Meter]:
    """Features of training and test images on the device, once for all epsilons that share them.

    They are computed, not read from the user's cache: their seconds count. With `parts=1` the test part stays what it was.
    """
    raw = _raw(name, most)
    images = [replace(part, public=False) for part in (raw.train, raw.test)]
    with metered(device) as meter:
        seen = [featured(part, features, flat=flat, device=device, keep=device) for part in images[:parts]]
    train, test = (replace(part, y=part.y.to(device)) for part in (*seen, *images[parts:]))
    return train, test, meter


def _of_table(name: str, epsilon: float, device: str) -> tuple[Recipe, dict[str, Any], Data]:
    """A table by the library's defaults; the public map of its model is applied once, before training."""
    parts = load(name, 0, 1)
    settings, public, model = by_defaults(parts.train, epsilon)
    with metered(device) as meter:
        train, test = (mapped(part, public, device) for part in (parts.train, parts.test))
    made = at_epsilon(_recipe(model.to(device), train, settings, cross_entropy), epsilon, DELTA)
    about = {
        "data": name, "recipe": "the defaults for tables", "settings": settings, "n": len(train),
        "coordinates": int(train.x.shape[1]), "feature_seconds": round(meter.seconds, 2),
        "feature_joules": None if meter.joules is None else round(meter.joules, 1),
        "noise_multiplier": made.mechanism.noise_at(0), "spent": made.epsilon(DELTA),
    }  # fmt: skip
    return made, about, test


def by_defaults(train: Data, epsilon: float) -> tuple[dict[str, Any], nn.Module, nn.Module]:
    """The library's settings for a table, and its model in two parts: the map, which learns nothing, and what learns."""
    chosen = recommended(len(train), train.x.shape[1], epsilon, "classification", outputs_for(train))
    whole = build(chosen.model, tuple(train.x.shape[1:]), outputs_for(train), 0, **chosen.options)
    *public, learning = whole.children()
    settings = chosen.config() | {"schedule": None, "options": dict(chosen.options)}
    return settings, nn.Sequential(*public), nn.Sequential(learning)


def mapped(data: Data, public: nn.Module, device: str) -> Data:
    """Rows after the map, each by itself, on the device; groups stay."""
    x = torch.cat([public(rows) for rows in data.x.split(4096)])
    groups = {column: labels.to(device) for column, labels in data.groups.items()}
    return Data(x.to(device), data.y.to(device), groups, data.classes, True, group_names=data.group_names)


def _recipe(model: nn.Module, train: Data, settings: dict[str, Any], loss_fn: Any) -> Recipe:
    lr, momentum = settings["lr"], settings["momentum"]
    empty = train.take(torch.zeros(0, dtype=torch.long, device=train.y.device))
    return Recipe(
        model=model,
        data=Splits(train, empty, empty),
        loss_fn=loss_fn,
        mechanism=Mechanism(
            sampler=Poisson(len(train), settings["batch_size"]), clip=rule_for(settings["clip"], settings["bound"], None),
            steps=settings["steps"], noise_multiplier=1.0,
        ),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum),
        ema=settings["ema"],
        schedule=None if settings["schedule"] is None else LearningRate.parse(settings["schedule"]),
    )  # fmt: skip


def trained_by(recipe: Recipe, seed: int, device: str, centre: float = 0.0, views: int = 1) -> tuple[Any, Meter]:
    """One training from the seed's noise and batches, a released centre first."""
    with metered(device) as meter:
        if centre:
            released = noised_centre(recipe.data.train, centre, views=views, insecure_seed=10_000 + seed)
            recipe = centred(recipe, *released, planned=recipe.ledger)
        trained = fit(
            recipe, seed=seed, insecure_seed=seed, delta=DELTA, progress=False, runtime=runtime_for(recipe.data.train)
        )
    return trained, meter


def _run(recipe: Recipe, seed: int, test: Data, device: str, centre: float = 0.0, views: int = 1) -> dict[str, Any]:
    """One training, then the test part, once."""
    trained, meter = trained_by(recipe, seed, device, centre, views)
    model = trained.model
    if trained.averaged is not None:
        model.load_state_dict(model.state_dict() | trained.averaged)
    with torch.no_grad():
        said = outputs(model.eval(), test.x)
    y = test.y.cpu()
    right = (said.argmax(1) == y).double()
    classes = {
        name: float(right[y == label].mean()) for label, name in enumerate(test.classes) if bool((y == label).any())
    }
    groups = {
        f"{column}: {word}": float(right[labels.cpu() == place].mean())
        for column, labels in test.groups.items()
        for place, word in enumerate(test.group_names.get(column, ()))
        if int((labels == place).sum()) >= 20
    }
    return {
        "seed": seed, "accuracy": float(right.mean()), "classes": classes, "groups": groups, "test_rows": len(test),
        "seconds": round(meter.seconds, 3), "joules": None if meter.joules is None else round(meter.joules, 1),
        "measured": meter.how, "epsilon": at_ledger(trained), "when": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def runtime_for(data: Data) -> Runtime | None:
    """On a CPU 16 MB of features at a time: batches of hundreds of MB do not stay in its cache, and take longer."""
    if data.x.is_cuda or not len(data):
        return None
    return Runtime(microbatch=max(1, (1 << 24) // (data.x[0].numel() * data.x.element_size())))


def at_ledger(trained: Any) -> float:
    """What the ledger of a run says."""
    return float(trained.ledger.epsilon(DELTA))


def _summed(record: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """Means over seeds, with the worst class and group beside them."""
    runs = record["runs"]
    scores = [run["accuracy"] for run in runs]
    together = {part: _mean_of(run[part] for run in runs) for part in ("classes", "groups")}
    worst = {part: min(values, key=values.__getitem__) if values else None for part, values in together.items()}
    joules = [run["joules"] for run in runs if run["joules"] is not None]
    return {
        "format": 1, **about,
        "accuracy": statistics.mean(scores), "deviation": statistics.stdev(scores) if len(scores) > 1 else None,
        "worst_class": [worst["classes"], together["classes"].get(worst["classes"])],
        "worst_group": [worst["groups"], together["groups"].get(worst["groups"])],
        "seconds": statistics.median(run["seconds"] for run in runs),  # one may have waited for other work
        "joules": statistics.mean(joules) if joules else None,
        "runs": runs,
    }  # fmt: skip


def _mean_of(several: Any) -> dict[str, float]:
    rows = list(several)
    return {name: statistics.mean(row[name] for row in rows) for name in rows[0]} if rows else {}


def made_by(device: str) -> dict[str, Any]:
    """Commit, versions and hardware."""
    versions = {"noisewise": __version__, "torch": torch.__version__}
    return {"commit": commit(), "versions": versions, "device": _hardware(device)}


def _hardware(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return (
        f"{platform.machine()}, {torch.get_num_threads()} of {os.cpu_count()} cores, Python {platform.python_version()}"
    )
