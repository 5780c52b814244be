"""Who pays for privacy? Private model against its twin, five seeds, on three data sets; a figure each.

    NOISEWISE_DATA=FOLDER python benchmarks/price.py run adult mnist-5 two-patch --out benchmarks/results
    python benchmarks/price.py draw adult mnist-5 two-patch --out benchmarks/results

adult: income from census columns, groups by sex and race (not features), MLP, epsilon 1. mnist-5: LeNet on MNIST with every
class cut to 3,000 images and class 5 to 100, 500, 1,000 or 3,000 (X6 of Xu & Chen 2026), epsilon 3. two-patch: the two-layer
network on the synthetic two-patch data, at growing noise (X1). Learning rates are chosen for private model and twin apart and
for each size of class 5, on the held-out part with seed 100, among those in `RATES`; a best one at the edge of `RATES` is
said. The test part is read once per run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from noisewise import data as sets
from noisewise import models
from noisewise.audits.outputs import outputs
from noisewise.audits.result import FAINT, INK, PRIVATE, TWIN
from noisewise.clipping import Flat
from noisewise.data import Data, Splits
from noisewise.data.transforms import subsample_class
from noisewise.estimates.intervals import mean, mean_difference
from noisewise.losses import cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.runs.folder import hardware, versions
from noisewise.sampling import Poisson, steps_for
from noisewise.training.loop import train

SEEDS, TUNING_SEED, DELTA = (0, 1, 2, 3, 4), 100, 1e-5
RATES = {"private": (0.25, 0.5, 1.0, 2.0, 4.0), "twin": (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)}
SIZES = (100, 500, 1000, 3000)
SIGMAS = (0.05, 0.2, 0.4, 0.8)  # noise on the mean gradient
SMALLEST = 20


def setting(name: str, case: float) -> tuple[Splits, torch.nn.Module, Mechanism]:
    """Data, model (for seed 0) and plan of one case."""
    if name == "adult":
        split = sets.load("adult", 0, 3000)
        model, batch, epochs, epsilon = "mlp", 512, 20, 1.0
    elif name == "mnist-5":
        split = sets.load("mnist", 0, 5000)
        sizes = dict.fromkeys(range(10), 3000) | {5: int(case)}
        split = split._replace(train=subsample_class(split.train, sizes, 0))
        model, batch, epochs, epsilon = "lenet", 512, 30, 3.0
    else:
        split = sets.load("two_patch", 0)
        n = len(split.train)
        plan = Mechanism(sampler=Poisson(n, 128), clip=Flat(1.0), steps=400, noise_multiplier=case * 128)
        return split, models.build("two-layer-cnn", tuple(split.train.x.shape[1:]), 2, 0), plan
    n = len(split.train)
    plan = Mechanism(sampler=Poisson(n, batch), clip=Flat(1.0), steps=steps_for(epochs, n, batch))
    plan = plan.calibrated(epsilon, DELTA)
    return split, models.build(model, tuple(split.train.x.shape[1:]), len(split.train.classes), 0), plan


def run(job: dict) -> dict:
    """Train one model; accuracy and loss of everyone and of each class and group."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() and job["name"] == "mnist-5" else "cpu"
    split, model, plan = setting(job["name"], job["case"])
    with torch.random.fork_rng([]):
        torch.manual_seed(job["seed"])
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    model = model.to(device)
    private = job["which"] == "private"
    train(
        model, replace(split.train, x=split.train.x.to(device), y=split.train.y.to(device)), cross_entropy, plan,
        torch.optim.SGD(model.parameters(), lr=job["lr"]), ablation="private" if private else "plain",
        seed=job["seed"], insecure_seed=job["seed"], delta=DELTA, progress=False,
    )  # fmt: skip
    looked = split.valid if job["tuning"] else split.test
    return {**job, "parts": measured(model.cpu(), looked), "seconds": round(time.perf_counter() - start, 1)}


def measured(model: torch.nn.Module, data: Data) -> dict:
    found = outputs(model, data.x)
    right = (found.argmax(1) == data.y).double()
    losses = torch.nn.functional.cross_entropy(found, data.y, reduction="none")
    parts = {"everyone": torch.ones(len(data), dtype=torch.bool)}
    parts |= {f"class {label}": data.y == i for i, label in enumerate(data.classes)}
    for by, labels in data.groups.items():
        parts |= {f"{by} {label}": labels == i for i, label in enumerate(data.group_names[by])}
    return {
        part: {"n": int(mask.sum()), "accuracy": right[mask].mean().item(), "loss": losses[mask].mean().item()}
        for part, mask in parts.items()
        if int(mask.sum()) >= SMALLEST
    }


def cases(name: str) -> Iterable[float]:
    return {"adult": (0.0,), "mnist-5": tuple(map(float, SIZES)), "two-patch": SIGMAS}[name]


def measure(name: str, out: Path, workers: int) -> None:
    context = multiprocessing.get_context("spawn")
    base = {"name": name, "tuning": False}
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        if name == "two-patch":  # papers' settings: learning rate 0.5 throughout
            chosen, searched = {case: {"private": 0.5, "twin": 0.5} for case in cases(name)}, []
        else:
            jobs = [
                {**base, "case": case, "which": which, "lr": lr, "seed": TUNING_SEED, "tuning": True}
                for case in cases(name)
                for which, rates in RATES.items()
                for lr in rates
            ]
            searched = list(pool.map(run, jobs))
            chosen = {case: {which: best(searched, case, which) for which in RATES} for case in cases(name)}
        jobs = [
            {**base, "case": case, "which": which, "lr": chosen[case][which], "seed": seed}
            for case in cases(name)
            for which in RATES
            for seed in SEEDS
        ]
        runs = list(pool.map(run, jobs))
    plan = setting(name, max(cases(name)))[2]
    commit = os.environ.get("COMMIT") or subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()  # fmt: skip
    content = {
        "command": f"python benchmarks/price.py run {name}", "commit": commit, "hardware": hardware(),
        "versions": versions(), "seeds": SEEDS, "delta": DELTA, "noise_multiplier": plan.noise_at(0),
        "steps": plan.steps, "chosen": chosen, "searched": searched, "rows": rows(name, runs), "runs": runs,
    }  # fmt: skip
    (out / f"price_{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def best(searched: list[dict], case: float, which: str) -> float:
    """The learning rate with the best held-out accuracy; said if no larger or no smaller one was tried."""
    tried = [item for item in searched if (item["case"], item["which"]) == (case, which)]
    lr = max(tried, key=lambda item: item["parts"]["everyone"]["accuracy"])["lr"]
    if lr in (min(RATES[which]), max(RATES[which])):
        print(f"case {case:g}: the best learning rate of the {which} model, {lr:g}, is at the edge of those tried.")
    return lr


def rows(name: str, runs: list[dict]) -> list[dict]:
    """Mean over seeds of private model, twin and their paired difference, for each case and part."""
    found = []
    for case in cases(name):
        mine = [item for item in runs if item["case"] == case]
        by = {w: sorted((i for i in mine if i["which"] == w), key=lambda i: i["seed"]) for w in RATES}
        for part in by["private"][0]["parts"]:
            for metric in ("accuracy", "loss"):
                values = {w: [item["parts"][part][metric] for item in items] for w, items in by.items()}
                row = {w: vars(mean(v)) for w, v in values.items()}
                row["difference"] = vars(mean_difference(values["private"], values["twin"]))
                n = by["private"][0]["parts"][part]["n"]
                found.append({"case": case, "part": part, "n": n, "metric": metric, **row})
    return found


def draw(name: str, out: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    content = json.loads((out / f"price_{name}.json").read_text())
    figure, ax = pyplot.subplots(figsize=(7.2, 4.2), layout="constrained")
    {"adult": _draw_adult, "mnist-5": _draw_class_5, "two-patch": _draw_two_patch}[name](ax, content)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(colors=INK)
    figure.savefig(out / f"price_{name}.png", dpi=150)


def _points(ax, estimates: list[dict], places: list[float], colour: str, label: str, **style) -> None:  # type: ignore[no-untyped-def]
    values = np.array([100 * e["value"] for e in estimates])
    low, high = (np.array([100 * e[end] for e in estimates]) for end in ("low", "high"))
    ax.errorbar(places, values, [values - low, high - values], color=colour, label=label, capsize=3, **style)


def _draw_adult(ax, content: dict) -> None:  # type: ignore[no-untyped-def]
    shown = [row for row in content["rows"] if row["metric"] == "accuracy" and not row["part"].startswith("class")]
    shown.sort(key=lambda row: -row["difference"]["value"])  # who pays most on top
    for place, row in enumerate(shown):
        e = row["difference"]
        sure = e["high"] < 0 or e["low"] > 0
        ax.plot([100 * e["low"], 100 * e["high"]], [place, place], color=PRIVATE, linewidth=2)
        ax.plot([100 * e["value"]], [place], "o", color=PRIVATE, markerfacecolor=PRIVATE if sure else "white")
    names = [f"{row['part']}  ({row['n']:,})" for row in shown]
    ax.set_yticks(range(len(shown)), labels=names)
    ax.axvline(0, color=INK, linewidth=1)
    ax.grid(axis="x", color=FAINT)
    ax.set_xlabel("private minus twin, points of accuracy (5 seeds)")
    ax.set_title("Adult, epsilon 1: what privacy takes from whom", loc="left", color=INK)


def _draw_class_5(ax, content: dict) -> None:  # type: ignore[no-untyped-def]
    for which, colour, label in (("private", PRIVATE, "private, epsilon 3"), ("twin", TWIN, "twin, not private")):
        mine = [row for row in content["rows"] if row["metric"] == "accuracy" and row["part"] == "class 5"]
        _points(ax, [row[which] for row in mine], [row["case"] for row in mine], colour, label, marker="o", linewidth=2)
    ax.set_xscale("log")
    ax.set_xticks(SIZES, labels=[f"{size:,}" for size in SIZES])
    ax.minorticks_off()
    ax.grid(axis="y", color=FAINT)
    ax.set_xlabel("training images of class 5 (3,000 of every other class)")
    ax.set_ylabel("test accuracy of class 5, %")
    ax.legend(frameon=False, loc="lower right")
    ax.set_title("MNIST: a small class pays for privacy, not only for being small", loc="left", color=INK)


def _draw_two_patch(ax, content: dict) -> None:  # type: ignore[no-untyped-def]
    groups = {"majority": PRIVATE, "minority": "#c0392b"}
    for kind, colour in groups.items():
        for shift, group in enumerate((f"feature class 1 {kind}", f"feature class 2 {kind}")):
            own = [row for row in content["rows"] if row["part"] == group and row["metric"] == "accuracy"]
            places = [row["case"] * (0.96 if shift else 1.04) for row in own]
            for item in content["runs"]:
                if item["which"] == "private":
                    place = places[SIGMAS.index(item["case"])]
                    ax.plot(place, 100 * item["parts"][group]["accuracy"], ".", color=colour, alpha=0.35, markersize=7)
            label = f"{kind} features: common and strong" if kind == "majority" else f"{kind} features: rare and weak"
            style = {"color": colour, "linewidth": 2, "marker": "_", "markersize": 14, "markeredgewidth": 2.5}
            ax.plot(places, [100 * row["private"]["value"] for row in own], label=None if shift else label, **style)
    ax.plot([], [], ".", color=INK, alpha=0.5, label="one of 5 seeds; lines: means of classes 1 and 2")
    ax.axhline(100, color=TWIN, linewidth=1.5)
    ax.annotate("twin: every group", (SIGMAS[0], 100), (0, 4), textcoords="offset points", color=TWIN)
    ax.set_xscale("log")
    ax.set_xticks(SIGMAS, labels=[f"{sigma:g}" for sigma in SIGMAS])
    ax.set_ylim(0, 109)
    ax.minorticks_off()
    ax.grid(axis="y", color=FAINT)
    ax.set_xlabel("noise in the mean gradient")
    ax.set_ylabel("test accuracy, %")
    ax.legend(frameon=False, loc="lower left")
    ax.set_title("Two-patch data: rare and weak features pay first", loc="left", color=INK)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "draw"])
    parser.add_argument("names", nargs="+", choices=["adult", "mnist-5", "two-patch"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    for name in given.names:
        if given.what == "run":
            measure(name, given.out, given.workers)
        else:
            draw(name, given.out)


if __name__ == "__main__":
    main()
