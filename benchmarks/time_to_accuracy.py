"""Seconds of private training until an accuracy is reached, against Opacus running the same mechanism.

    python benchmarks/time_to_accuracy.py [--only fashion_mnist] [--seeds 0,1,2] [--device cuda] [--out FOLDER]

Both draw Poisson batches of the same rate, clip at the same bound, add noise of the same multiplier and make the same steps of
SGD on the same model: the noise multiplier is the smallest for epsilon 3 at delta 1e-5. Opacus as its documentation has it:
`PrivacyEngine.make_private` with its own loader, data in a TensorDataset. Accuracy is read on the test part after every epoch,
which is not timed; settings are those of a paper (Zhu & Blaschko 2023) or of `benchmarks/repairs.py`, none were searched here.
Writes time_to_accuracy.json, run by run, each with its commit; runs of other data sets that are there stay.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from noisewise import Mechanism, Poisson, State, models, private_step
from noisewise.clipping import Flat
from noisewise.data import Data, load
from noisewise.losses import cross_entropy
from noisewise.sampling import steps_for

warnings.filterwarnings("ignore")
EPSILON, DELTA = 3.0, 1e-5


@dataclass(frozen=True)
class Task:
    """What is trained, and how far."""

    data: str
    model: str
    goal: float
    batch: int
    epochs: int
    bound: float
    lr: float


TASKS = (
    Task("fashion_mnist", "dp-cnn-s", 0.86, 2048, 40, 1.0, 4.0),
    Task("cifar10", "dp-cnn", 0.60, 1000, 40, 1.0, 1.0),
)


def accuracy(model: nn.Module, data: Data) -> float:
    model.eval()
    with torch.no_grad():
        right = torch.cat([model(x).argmax(1) for x in data.x.split(2000)]) == data.y
    model.train()
    return right.float().mean().item()


def course(epochs: int, goal: float, epoch: Callable[[], None], look: Callable[[], float]) -> dict[str, Any]:
    """Epochs until the goal is reached, with seconds and accuracy after each; the first second counts, start-up included."""
    seconds, curve = 0.0, []
    for _ in range(epochs):
        start = time.perf_counter()
        epoch()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds += time.perf_counter() - start
        curve.append([round(seconds, 3), round(look(), 4)])
        if curve[-1][1] >= goal:
            return {"seconds": seconds, "epochs": len(curve), "curve": curve}
    return {"seconds": None, "epochs": len(curve), "curve": curve}


def ours(task: Task, train: Data, test: Data, plan: Mechanism, seed: int, device: str) -> dict[str, Any]:
    model = models.build(task.model, tuple(train.x.shape[1:]), 10, seed).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr)
    state, units = State.start(plan), (train.x, train.y)
    per_epoch = steps_for(1, len(train), task.batch)

    def epoch() -> None:
        for _ in range(min(per_epoch, plan.steps - state.step)):
            private_step(model, units, cross_entropy, optimizer, state)

    return course(task.epochs, task.goal, epoch, lambda: accuracy(model, test))


def opacus(task: Task, train: Data, test: Data, plan: Mechanism, seed: int, device: str) -> dict[str, Any]:
    from opacus import PrivacyEngine

    model = models.build(task.model, tuple(train.x.shape[1:]), 10, seed).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(train.x, train.y), batch_size=task.batch, num_workers=0
    )
    wrapped, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=plan.noise_at(0),
        max_grad_norm=task.bound,
    )

    def epoch() -> None:
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(wrapped(x.to(device)), y.to(device)).backward()
            optimizer.step()

    return course(task.epochs, task.goal, epoch, lambda: accuracy(wrapped, test))


WAYS = {"noisewise": ours, "Opacus": opacus}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="data sets, separated by commas")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", default="", help="of the code, where it is no git folder")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:  # a first run finds no kernel ready
        os.environ["TRITON_CACHE_DIR"] = empty
        measure(args)


def measure(args: argparse.Namespace) -> None:
    """All runs that are asked for, one after the other."""
    torch.set_float32_matmul_precision("high")
    hardware = torch.cuda.get_device_name() if args.device == "cuda" else platform.machine()
    result: dict[str, Any] = {
        "command": "python benchmarks/time_to_accuracy.py", "epsilon": EPSILON, "delta": DELTA,
        "hardware": hardware, "versions": {"python": platform.python_version(), "torch": torch.__version__,
        "opacus": version("opacus")}, "runs": [],
    }  # fmt: skip
    file = args.out / "time_to_accuracy.json"
    tasks = [task for task in TASKS if not args.only or task.data in args.only.split(",")]
    if file.exists():
        others = json.loads(file.read_text())["runs"]
        result["runs"] = [run for run in others if run["data"] not in {task.data for task in tasks}]
    for task in tasks:
        parts = load(task.data)
        test = Data(parts.test.x.to(args.device), parts.test.y.to(args.device), classes=parts.test.classes, public=True)
        sampler = Poisson(len(parts.train), task.batch)
        plan = Mechanism(
            sampler=sampler, clip=Flat(task.bound), noise_multiplier=1.0,
            steps=steps_for(task.epochs, len(parts.train), task.batch),
        ).calibrated(EPSILON, DELTA)  # fmt: skip
        for seed in map(int, args.seeds.split(",")):
            for way, run in WAYS.items():
                torch.manual_seed(seed)
                found = run(task, parts.train, test, plan, seed, args.device)
                known = {"data": task.data, "goal": task.goal, "way": way, "seed": seed, "commit": args.commit}
                result["runs"].append(known | found)
                file.write_text(json.dumps(result, indent=1) + "\n")
                print(task.data, way, seed, found["seconds"], found["epochs"], found["curve"][-1], flush=True)


if __name__ == "__main__":
    main()
