"""A private step and private training on a GPU, against the plain step and a plain loop with data on the GPU.

    python benchmarks/gpu.py [--only NAME] [--repeats N] [--steps N] [--no-train] [--profile] [--out FOLDER]

Step: forward pass, clipping, noise, ledger and SGD on exactly B units, ratio to the plain eager step of the same model with
the same settings (fp32 with TF32); ways take turns, the median counts. Train: `train` with Poisson batches of 50,000 units
against a loop over batches of B that lie on the GPU, data and model made anew.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from step import Encoder, dp_cnn, mlp, mnist_cnn, resnet18, unit_losses

import noisewise as nw
from noisewise import Ledger, Poisson, Runtime
from noisewise.bounded import release
from noisewise.clipping import Clip, Flat
from noisewise.persample import clipped_sum, examine
from noisewise.randomness import Entropy
from noisewise.training.captured import Captured
from noisewise.training.moves import Moves

warnings.filterwarnings("ignore")
N = 50_000
WORKLOADS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor], int, int, int]] = {
    "MNIST CNN, batch 1024": (mnist_cnn, lambda n: torch.randn(n, 1, 28, 28), 10, 1024, 50),
    "MLP 784-2048-2048-10, batch 2048": (mlp, lambda n: torch.randn(n, 784), 10, 2048, 50),
    "DP-CNN, batch 1024": (dp_cnn, lambda n: torch.randn(n, 3, 32, 32), 10, 1024, 20),
    "ResNet-18 GroupNorm, batch 256": (resnet18, lambda n: torch.randn(n, 3, 32, 32), 10, 256, 10),
    "encoder 12x768, T 128, batch 32": (
        lambda: Encoder(768, 12, 128), lambda n: torch.randint(0, 10000, (n, 128)), 2, 32, 10,
    ),
    "encoder 12x768, T 1024, batch 8": (
        lambda: Encoder(768, 12, 1024), lambda n: torch.randint(0, 10000, (n, 1024)), 2, 8, 6,
    ),
}  # fmt: skip


STEPS = {
    "DP-CNN, batch 1024": 400,
    "ResNet-18 GroupNorm, batch 256": 200,
    "encoder 12x768, T 128, batch 32": 100,
    "encoder 12x768, T 1024, batch 8": 50,
}


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def private(
    model: nn.Module, x: Tensor, y: Tensor, *, capture: bool, clip: Clip = Flat(1.0), masked: bool = False
) -> Callable[[], Any]:
    """A private step; `masked`: a random half of the coordinates learns."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    layout = examine(model, unit_losses, (x, y))
    sampler, ledger, entropy, captured = Poisson(N, len(x)), Ledger(), Entropy.fresh(), Captured()
    count, weights, moves = iter(range(1 << 30)), dict(model.named_parameters()), Moves()
    support = {name: torch.rand_like(p) < 0.5 for name, p in weights.items()} if masked else {}

    def step() -> None:
        if capture:
            clipped = captured.clipped(
                model, unit_losses, (x, y), clip, support, Runtime(),
                layout=layout, expected=len(x), seed=0, norms=False,
            )  # fmt: skip
        else:
            clipped = clipped_sum(model, unit_losses, (x, y), clip, support, layout=layout)
        grads = release(
            {"gradient": (clipped.grads, 1.0)}, sampler=sampler, ledger=ledger, entropy=entropy, step=next(count)
        )
        moves.move(weights, grads, len(x), optimizer)

    return step


def timed(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median milliseconds; each measurement is several steps in a row, as in training."""
    for way in ways.values():
        for _ in range(3):
            way()
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, way in ways.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(repeats):
                way()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / repeats * 1e3)
    return {name: sorted(ts)[len(ts) // 2] for name, ts in times.items()}


def difference(make: Callable[[], nn.Module], x: Tensor, y: Tensor) -> float:
    """Relative distance of the captured clipped sum from the ordinary one."""
    from noisewise.testing import reveal

    torch.manual_seed(0)
    model = make().cuda()
    layout = examine(model, unit_losses, (x, y))
    eager = reveal(clipped_sum(model, unit_losses, (x, y), Flat(1.0), layout=layout).grads)
    captured = Captured()
    for _ in range(2):  # the second is a replay
        result = captured.clipped(
            model, unit_losses, (x, y), Flat(1.0), {}, Runtime(), layout=layout, expected=len(x), seed=0, norms=False
        )
    got = reveal(result.grads)
    error = math.sqrt(sum((got[k] - eager[k]).double().square().sum().item() for k in eager))
    return error / math.sqrt(sum(value.double().square().sum().item() for value in eager.values()))


def train_times(
    make: Callable[[], nn.Module], inputs: Callable[[int], Tensor], classes: int, size: int, steps: int
) -> dict[str, float]:
    x, y = inputs(N), torch.randint(0, classes, (N,))
    model = make().cuda()
    near_x, near_y = x.cuda(), y.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(count: int) -> None:
        for _ in range(count):
            index = torch.randint(0, N, (size,), device="cuda")
            optimizer.zero_grad()
            F.cross_entropy(model(near_x[index]), near_y[index]).backward()
            optimizer.step()
        torch.cuda.synchronize()

    loop(5)
    start = time.perf_counter()
    loop(steps)
    seconds = {"plain": time.perf_counter() - start}
    near_x = near_y = None  # free them

    def ours(count: int) -> float:
        network = make().cuda()
        plan = nw.Mechanism(sampler=Poisson(N, size), clip=Flat(1.0), noise_multiplier=1.0, steps=count)
        plan.epsilon(1e-6)  # as calibrating does
        start = time.perf_counter()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        nw.train(network, (x, y), unit_losses, plan, optimizer, progress=False)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds["train, 5 steps"] = ours(5)
    seconds["train"] = ours(steps)
    return seconds


def profile(step: Callable[[], Any], path: Path | None, name: str) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    with profiled(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    kernels = [e for e in record.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    kernels.sort(key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in kernels) / 3
    lines = [f"{name}: {total:.0f} us on the GPU a step"]
    lines += [f"  {e.self_device_time_total / 3:8.0f} us {e.count // 3:4d} x {e.key[:110]}" for e in kernels[:22]]
    if path is not None:
        with path.open("a") as file:
            file.write("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="steps of a training run (0: the workload's own)")
    parser.add_argument("--only", default="")
    parser.add_argument("--eager", action="store_true", help="time the step that is not captured too")
    parser.add_argument("--no-train", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Any] = {}
    for name, (make, inputs, classes, size, repeats) in WORKLOADS.items():
        if not any(word.lower() in name.lower() for word in args.only.split(",")):
            continue
        row: dict[str, Any] = {}
        rows[name] = row
        try:
            torch.manual_seed(0)
            x, y = inputs(size).cuda(), torch.randint(0, classes, (size,)).cuda()
            row["difference"] = difference(make, x, y)
            ways: dict[str, Callable[[], Any]] = {"plain": plain(make().cuda(), x, y)}
            ways["captured"] = private(make().cuda(), x, y, capture=True)
            if args.eager:
                ways["eager"] = private(make().cuda(), x, y, capture=False)
            row["ms"] = timed(ways, args.repeats or repeats)
            row["ratio"] = row["ms"]["captured"] / row["ms"]["plain"]
            if args.profile:
                profile(ways["captured"], args.out and args.out / "profile.txt", name)
            row["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
            del ways
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        except Exception:
            row["error"] = traceback.format_exc()[-900:]
        try:
            if not args.no_train:
                row["steps"] = args.steps or STEPS.get(name, 1000)
                row["train"] = train_times(make, inputs, classes, size, row["steps"])
                row["train_ratio"] = row["train"]["train"] / row["train"]["plain"]
            torch.cuda.empty_cache()
        except Exception:
            row["train_error"] = traceback.format_exc()[-900:]
        print(name, json.dumps(row, default=str), flush=True)
        if args.out:
            facts = {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "gpu": torch.cuda.get_device_name(),
            }
            (args.out / "gpu.json").write_text(json.dumps({"versions": facts, "rows": rows}, indent=1) + "\n")
    ratios = [row["ratio"] for row in rows.values() if "ratio" in row]
    if ratios:
        print(f"geometric mean of {len(ratios)}: {math.prod(ratios) ** (1 / len(ratios)):.2f} x plain")


if __name__ == "__main__":
    main()
