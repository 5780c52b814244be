"""Does the first advice of `noisewise suggest` help? Against doing nothing and against a random repair, at equal epsilon.

    NOISEWISE_DATA=FOLDER python benchmarks/advice.py cut --out FOLDER
    NOISEWISE_DATA=FOLDER python benchmarks/advice.py run --cuts FOLDER --log FILE.jsonl [--only NAME ...]
    python benchmarks/advice.py write --logs FILE.jsonl ...

`cut` makes small sets of MNIST, Fashion-MNIST and CIFAR-10 with half the pixels each way, as of somebody with a few thousand
small images of their own, as columns; in `mnist-5` class 5 is cut to a tenth. `run` trains with the library's defaults, asks
`suggest` with audits of the held-out part, types its first command into the command line, and a repair drawn by a public seed
among all that apply; the test part is read once per run, at the end. Equal seeds have equal splits, initial weights, batches
and noise, so differences are paired. `write` makes benchmarks/results/advice.json, docs/advice.md and the figures that the
package shows as expected gains.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shlex
import shutil
import subprocess
import sys
import time
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

import advice_page
import numpy as np
import torch

from noisewise import cli
from noisewise import data as sets
from noisewise.advice import Advice, advise
from noisewise.audits.outputs import logits
from noisewise.data import Data, Splits, disk, split
from noisewise.data.images import SCALES
from noisewise.repairs.temperature import temperature
from noisewise.runs.folder import hardware, versions
from noisewise.workflow.config import Config, plan
from noisewise.workflow.execution import execute
from noisewise.workflow.opened import open_run
from noisewise.workflow.suggest import gathered

SEEDS = (0, 1, 2, 3, 4)
SIZES = dict.fromkeys(("mnist", "fashion_mnist", "cifar10"), (3_000, 2_000))  # images: training, test
IMAGES = ("mnist-5", "fashion_mnist", "cifar10")
CASES = (
    ("mnist-5", 3.0), ("fashion_mnist", 3.0), ("cifar10", 3.0), ("digits", 3.0), ("digits", 1.0),
    ("compas", 3.0), ("german_credit", 3.0),
)  # fmt: skip
NAMES = tuple(dict.fromkeys(name for name, _ in CASES))
AUDITED = 200  # held-out rows that `suggest` looks at
SMALLEST = 20
GROUPS = {"compas": "race", "german_credit": "sex"}
REPAIRS = (
    "global-clipping:screen=25", "local-then-global-clipping:share=0.95", "global-adapt:screen=100",
    "random-sparsification:final=0.9", "ranked-sparsification:final=0.9", "stage-wise-freezing", "moving-average:decay=0.99",
    "fine-tuning-of-a-part:what=biases", "lora:rank=4",
)  # fmt: skip


def cut(out: Path) -> None:
    """Random images of each set, as bytes."""
    out.mkdir(parents=True, exist_ok=True)
    for name, sizes in SIZES.items():
        whole, generator, kept = sets.load(name, 0, 0), np.random.default_rng(0), {}
        mean, std = (torch.tensor(scale).view(1, -1, 1, 1) for scale in SCALES[name])
        for part, size in zip(("train", "test"), sizes, strict=True):
            data = getattr(whole, part)
            rows = torch.from_numpy(generator.permutation(len(data))[:size])
            pixels = torch.nn.functional.avg_pool2d(data.x[rows] * std + mean, 2)
            kept[f"{part}_x"] = (pixels * 255).round().clamp(0, 255).to(torch.uint8).numpy()
            kept[f"{part}_y"] = data.y[rows].numpy().astype(np.uint8)
        np.savez_compressed(out / f"{name}.npz", **kept)


def images(name: str, seed: int, cuts: Path, work: Path) -> str:
    """A folder with the parts of a set of images: a fifth of the training part is held out by the seed."""
    folder = work / f"data-{name}-{seed}"
    if folder.exists():
        return str(folder)
    source = name.removesuffix("-5")
    raw, (mean, std) = np.load(cuts / f"{source}.npz"), (torch.tensor(s).view(1, -1, 1, 1) for s in SCALES[source])
    parts = []
    for part in ("train", "test"):
        x = torch.from_numpy(raw[f"{part}_x"]).float() / 255
        labels = torch.from_numpy(raw[f"{part}_y"]).long()
        parts.append(Data(((x - mean) / std).flatten(1), labels, classes=tuple("0123456789"), public=True))
    held, rest = split(parts[0], seed, len(parts[0]) // 5)
    if name.endswith("-5"):
        fives = (rest.y == 5).nonzero()[:, 0]
        keep = torch.ones(len(rest), dtype=torch.bool)
        keep[fives[len(fives) // 10 :]] = False
        rest = rest.take(keep.nonzero()[:, 0])
    disk.save(Splits(rest, held, parts[1]), folder)
    return str(folder)


def begin(job: dict) -> Path:
    """The run with the library's defaults, planned; trained where the job is about it."""
    name, seed, work = job["name"], job["seed"], Path(job["work"])
    source = images(name, seed, Path(job["cuts"]), work) if name in IMAGES else name
    steps = {} if job["steps"] is None else {"steps": job["steps"]}
    device = None if name in IMAGES else "cpu"
    planned = plan(
        None, data=source, epsilon=job["epsilon"], seed=seed, insecure_seed=seed, device=device, twin=False, **steps
    )
    out = work / f"run-{name}-{job['epsilon']:g}-{seed}-{job['arm']}"
    shutil.rmtree(out, ignore_errors=True)
    if job["arm"] == "nothing":
        execute(planned, out, progress=False)
    else:
        out.mkdir(parents=True)
        (out / "config.toml").write_text(planned.config.to_toml())
        if planned.data.train.schema is not None:
            (out / "schema.json").write_text(json.dumps(planned.data.train.schema.to_dict()))
    return out


class Refused(Exception):
    """The command line refused it: a repair that does not apply to this model or data."""


def typed(words: list[str]) -> None:
    """A command line, as somebody would type it."""
    sys.argv = [*words, "--quiet"]
    try:
        cli.main()
    except SystemExit as stopped:
        if stopped.code in (2, 3):
            raise Refused(shlex.join(words)) from None
        if stopped.code:
            raise RuntimeError(f"{shlex.join(words)} ended with {stopped.code}") from None


def drawn(name: str, seed: int) -> list[str]:
    """Repairs in an order that a public seed draws for a data set: the first that applies to it is taken."""
    choices = REPAIRS
    if name in GROUPS:
        choices += (f"group-bounds:group={GROUPS[name]}",)
    if name == "digits":
        choices += ("augmentation:views=4",)
    order = np.random.default_rng([NAMES.index(name), seed]).permutation(len(choices))
    return [choices[place] for place in order]


def run(job: dict) -> dict:
    """One job: `nothing` also asks for advice and follows it; `random` is a random repair."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    about = {key: job[key] for key in ("name", "seed", "epsilon", "arm")}
    try:
        return {**about, **(_with_advice(job) if job["arm"] == "nothing" else _with_repair(job)), **_took(start)}
    except Exception:
        return {**about, "error": traceback.format_exc()[-2000:], **_took(start)}


def _took(start: float) -> dict:
    return {"seconds": round(time.perf_counter() - start, 1)}


def _with_advice(job: dict) -> dict:
    out = begin(job)
    trained = open_run(out)
    held = trained.data.valid.take(torch.arange(min(AUDITED, len(trained.data.valid))))
    advice = advise(gathered(replace(trained, data=trained.data._replace(test=held)), str(out)))
    warm = temperature(trained.model, trained.data.valid).value
    record = {
        "config": settings(Config.read(out / "config.toml")), "n": trained.data.train.units,
        "advice": [without_paths(one, out) for one in advice],
        "test": measured(trained.model, trained.data.test), "temperature": warm,
        "scaled": measured(trained.model, trained.data.test, warm),
    }  # fmt: skip
    return {**record, "followed": _followed(advice, record)}


def _followed(advice: list[Advice], record: dict) -> dict:
    """The first advice carried out: measured on the test part. Without advice nothing changes."""
    if not advice:
        return {"diagnosis": None, "test": record["test"]}
    first, words = advice[0], shlex.split(advice[0].command)
    if first.diagnosis == "miscalibrated":
        return {"diagnosis": first.diagnosis, "test": record["scaled"]}
    if words[:2] != ["noisewise", "train"] or "--config" not in words:
        return {"diagnosis": first.diagnosis, "test": record["test"]}  # nothing is trained
    typed(words)
    changed = open_run(words[words.index("--out") + 1])
    assert changed.config is not None
    return {
        "diagnosis": first.diagnosis,
        "config": settings(changed.config),
        "test": measured(changed.model, changed.data.test),
    }


def _with_repair(job: dict) -> dict:
    out, refused = begin(job), []
    for repair in drawn(job["name"], job["seed"]):
        try:
            typed(
                ["noisewise", "train", "--config", f"{out}/config.toml", "--repair", repair, "--out", f"{out}-repaired"]
            )
        except Refused:
            refused.append(repair)
            continue
        changed = open_run(f"{out}-repaired")
        return {"repair": repair, "refused": refused, "test": measured(changed.model, changed.data.test)}
    raise RuntimeError(f"no repair applies to {job['name']}")


def without_paths(advice: Advice, out: Path) -> dict:
    """As the command line shows it for a run in DIR."""
    return {name: text.replace(str(out), "DIR") for name, text in advice.to_dict().items() if name != "privacy"}


def settings(config: Config) -> dict:
    """Without paths."""
    return {name: value for name, value in vars(config).items() if name not in ("data", "device")}


def measured(model: torch.nn.Module, data: Data, warm: float = 1.0) -> dict:
    """Accuracy of everyone, of the worst class and group, and calibration error in 15 bins."""
    found = logits(model.cpu().eval(), data) / warm
    right = (found.argmax(1) == data.y).double()
    sure = found.double().softmax(1).amax(1)
    bins = (sure * 15).long().clamp(max=14)
    misjudged = sum(abs(float((sure - right)[bins == place].sum())) for place in range(15)) / len(right)
    parts = {"class": data.y, **data.groups}
    worst = {
        by: min(
            float(right[labels == label].mean()) for label in labels.unique() if (labels == label).sum() >= SMALLEST
        )
        for by, labels in parts.items()
    }
    return {"accuracy": float(right.mean()), "ece": misjudged, "over": float((sure - right).mean()), "worst": worst}


def measure(given: argparse.Namespace) -> None:
    """All jobs in parallel; each result is written down at once, and what is written down is not done again."""
    start = time.perf_counter()
    given.work.mkdir(parents=True, exist_ok=True)
    log, done = given.log, set()
    if log.exists():
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        done = {(line["name"], line["epsilon"], line["seed"], line["arm"]) for line in lines if "error" not in line}
    common = {"work": str(given.work), "cuts": str(given.cuts), "steps": given.steps}
    jobs = [
        {"name": name, "epsilon": epsilon, "seed": seed, "arm": arm, **common}
        for seed in given.seeds
        for arm in ("nothing", "random")
        for name, epsilon in CASES
        if name in (given.only or NAMES) and (name, epsilon, seed, arm) not in done
    ]
    for name, seed in {(job["name"], job["seed"]) for job in jobs if job["name"] in IMAGES}:
        images(name, seed, given.cuts, given.work)
    made = {"commit": given.commit or commit(), "hardware": hardware(), "versions": versions()}
    pool = ProcessPoolExecutor(given.workers, mp_context=multiprocessing.get_context("spawn"))
    with log.open("a") as file:
        try:
            for future in as_completed([pool.submit(run, job) for job in jobs], timeout=given.limit):
                result = {**future.result(), "made": made}
                file.write(json.dumps(result) + "\n")
                file.flush()
                what = result.get("error") or result.get("repair") or result["followed"]["diagnosis"]
                passed = round(time.perf_counter() - start)
                print(
                    passed,
                    result["name"],
                    result["epsilon"],
                    result["arm"],
                    result["seed"],
                    what,
                    result["seconds"],
                    flush=True,
                )
        except TimeoutError:
            print("out of time: what is missing is done by the same command again", flush=True)
            for process in list(pool._processes.values()):
                process.kill()
            os._exit(0)
    pool.shutdown()


def commit() -> str:
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cut", "run", "write"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cuts", type=Path, default=Path("cuts"))
    parser.add_argument(
        "--work", type=Path, default=Path("advice-work"), help="folder for data and runs, deleted by you"
    )
    parser.add_argument("--log", type=Path)
    parser.add_argument("--logs", type=Path, nargs="*", default=[])
    parser.add_argument("--only", nargs="*", choices=NAMES)
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--steps", type=int, help="for a short trial")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=86_400)
    parser.add_argument("--commit")
    given = parser.parse_args()
    if given.what == "cut":
        cut(given.out)
    elif given.what == "run":
        measure(given)
    else:
        advice_page.write(given.logs)


if __name__ == "__main__":
    main()
