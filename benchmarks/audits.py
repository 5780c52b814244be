"""How long audits of a MNIST LeNet take: each one's wall time, private model and twin, official test images.

    NOISEWISE_DATA=FOLDER python benchmarks/audits.py [--lira] [--out benchmarks/results/audits.json]

The models are trained for two epochs only: time does not depend on how good they are. `--lira` also trains 16 shadow models
(10,000 images, 8 epochs each) and attacks one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from noisewise import data as sets
from noisewise.audits import AUDITS, engine_epsilon, lira, train_shadows
from noisewise.losses import cross_entropy
from noisewise.models import build
from noisewise.recipe import train_openly
from noisewise.runs.folder import hardware, versions
from noisewise.workflow.config import configure
from noisewise.workflow.execution import execute, prepare
from noisewise.workflow.opened import audit, open_run

NAMES = ("disparity", "calibration", "robustness", "membership", "clipping-bias", "feature-noise", "engine-epsilon")


def timed_audits() -> dict[str, float]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        config = configure(data="mnist", model="lenet", epochs=2, epsilon=3.0, batch_size=1024)
        execute(config, Path(folder) / "run")
        run = open_run(Path(folder) / "run")
        for name in (*NAMES, *(name for name in AUDITS if name not in NAMES)):
            start = time.perf_counter()
            audit(run, name)
            found[name] = round(time.perf_counter() - start, 1)
            print(f"{name}: {found[name]} s", flush=True)
        start = time.perf_counter()
        engine_epsilon(run.model, run.data.test, mechanism=prepare(config).mechanism, loss_fn=cross_entropy)
        found["engine-epsilon, on the model"] = round(time.perf_counter() - start, 1)
    return found


def timed_lira() -> dict[str, float]:
    whole = sets.load("mnist", 0, 0).train
    data = whole.take(torch.arange(10_000))

    def fit(part: sets.Data, seed: int) -> torch.nn.Module:
        model = build("lenet", (1, 28, 28), 10, seed)
        return train_openly(model, part, cross_entropy, epochs=8, batch_size=128, lr=0.1, momentum=0.9, seed=seed)

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        shadows = train_shadows(
            fit, data, folder, recipe={"model": "lenet", "epochs": 8, "batch_size": 128, "lr": 0.1}, count=16
        )
        trained = time.perf_counter() - start
        inside = np.random.default_rng(1).permutation(len(data)) < len(data) // 2
        target = fit(data.take(torch.from_numpy(inside)), 99)
        start = time.perf_counter()
        result = lira(target, data, inside=inside, shadows=shadows)
        attacked = time.perf_counter() - start
    print({name: estimate.value for name, estimate in result.headline.items()})
    return {"LiRA, training 16 shadows": round(trained, 1), "LiRA, the attack": round(attacked, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lira", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "audits.json")
    given = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    seconds: dict[str, float] = {}
    for part in (timed_audits, timed_lira) if given.lira else (timed_audits,):
        seconds |= part()
        given.out.write_text(json.dumps(about(commit, given.lira, seconds), indent=1) + "\n")


def about(commit: str, lira: bool, seconds: dict[str, float]) -> dict:
    return {
        "command": f"python benchmarks/audits.py{' --lira' if lira else ''}",
        "commit": commit,
        "hardware": hardware(),
        "load": [round(value, 1) for value in os.getloadavg()],
        "versions": versions(),
        "seconds": seconds,
    }


if __name__ == "__main__":
    main()
