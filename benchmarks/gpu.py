"""A private step and private training on a GPU, against the plain step and a plain loop with data on the GPU.

    python benchmarks/gpu.py [--only NAMES] [--ways NAMES] [--repeats N] [--steps N] [--no-train] [--no-bf16] [--out FOLDER]

Step: forward pass, clipping, noise, ledger and SGD on exactly B units, ratio to the plain eager step of the same model with
the same settings (fp32 with TF32; or bfloat16 by autocast, against plain bfloat16); ways take turns, the median counts.
Train: `train` with Poisson batches of 50,000 units against a loop over batches of B that lie on the GPU, data and model made
anew. Writes gpu.json; `python benchmarks/pages.py` makes README's table and gpu.png of it.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from step import Encoder, dp_cnn, mlp, mnist_cnn, opacus_ghost, opacus_hooks, plain, resnet18, unit_losses, vmap

import noisewise as nw
from noisewise import Ledger, Poisson, Runtime
from noisewise.bounded import release
from noisewise.clipping import Clip, Flat, Global
from noisewise.persample import clipped_sum, examine
from noisewise.randomness import Entropy
from noisewise.repairs.random_sparsification import masks_from_flat, random_subset
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


def private(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    capture: bool,
    clip: Clip = Flat(1.0),
    masked: bool = False,
    renewed: bool = False,
) -> Callable[[], Any]:
    """A private step; `masked`: a random half of the coordinates learns, another one in every epoch if `renewed`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    layout = examine(model, unit_losses, (x, y))
    sampler, ledger, entropy, captured = Poisson(N, len(x)), Ledger(), Entropy.fresh(), Captured()
    count, weights, moves = iter(range(1 << 30)), dict(model.named_parameters()), Moves()
    everything = torch.ones(sum(p.numel() for p in weights.values()), dtype=torch.bool, device=x.device)

    @lru_cache(maxsize=1)
    def support_of(epoch: int) -> dict[str, Tensor]:
        return masks_from_flat(random_subset(everything, len(everything) // 2, epoch), weights) if masked else {}

    def step() -> None:
        number = next(count)
        support = support_of(number * len(x) // N if renewed else 0)
        if capture:
            clipped = captured.clipped(
                model, unit_losses, (x, y), clip, support, Runtime(),
                layout=layout, expected=len(x), seed=0, norms=False,
            )  # fmt: skip
        else:
            clipped = clipped_sum(model, unit_losses, (x, y), clip, support, layout=layout)
        grads = release(
            {"gradient": (clipped.grads, 1.0)}, sampler=sampler, ledger=ledger, entropy=entropy, step=number
        )
        moves.move(weights, grads, len(x), optimizer, observed=False)  # as in training that nobody watches

    return step


def timed(ways: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median milliseconds; each measurement is several steps in a row, as in training, but not more than 0.3 seconds."""

    def seconds(way: Callable[[], Any], count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            way()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    in_a_row = {}
    for name, way in ways.items():
        seconds(way, 4)
        in_a_row[name] = max(1, min(repeats, int(0.3 / seconds(way, 1))))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, way in ways.items():
            times[name].append(seconds(way, in_a_row[name]) / in_a_row[name] * 1e3)
    return {name: sorted(ts)[len(ts) // 2] for name, ts in times.items()}


def train_times(
    make: Callable[[], nn.Module], inputs: Callable[[int], Tensor], classes: int, size: int, steps: int
) -> dict[str, Any]:
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
    return {"steps": steps, "seconds": seconds, "ratio": seconds["train"] / seconds["plain"]}


def profile(step: Callable[[], Any], path: Path | None, name: str) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    for _ in range(8):  # SGD's own step is captured after a few alike
        step()
    torch.cuda.synchronize()
    start = time.thread_time()
    for _ in range(20):
        step()
    host = (time.thread_time() - start) / 20 * 1e6
    with profiled(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    kernels = [e for e in record.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    kernels.sort(key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in kernels) / 3
    lines = [f"{name}: {total:.0f} us on the GPU a step, {host:.0f} us of the processor's thread"]
    lines += [f"  {e.self_device_time_total / 3:8.0f} us {e.count // 3:4d} x {e.key[:110]}" for e in kernels[:22]]
    if path is not None:
        with path.open("a") as file:
            file.write("\n".join(lines) + "\n")


def plain_graph(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    """The plain step as one CUDA graph: what a private step could be compared with too."""
    step = plain(model, x, y)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()

    def replay() -> Callable[[], Any]:
        graph.replay()
        return step  # which holds the weights that the graph writes to

    return replay


WAYS: dict[str, Callable[[nn.Module, Tensor, Tensor], Callable[[], Any]]] = {
    "plain": plain,
    "plain captured": plain_graph,
    "noisewise": partial(private, capture=True),
    "global clipping": partial(private, capture=True, clip=Global(1.0, 10.0)),
    "elementwise masks": partial(private, capture=True, masked=True),
    "random sparsification": partial(private, capture=True, masked=True, renewed=True),
    "Opacus hooks": opacus_hooks,
    "Opacus ghost": opacus_ghost,
    "vmap(grad)": vmap,
}
PEERS = ("Opacus hooks", "Opacus ghost", "vmap(grad)")


def precision(kind: torch.dtype | None) -> AbstractContextManager[Any]:
    """An autocast, or nothing."""
    return nullcontext() if kind is None else torch.autocast("cuda", kind)


def measured(name: str, ways: list[str], repeats: int, kind: torch.dtype | None) -> dict[str, Any]:
    """Medians, ratios and peak memory of some ways that take turns; a way that fails is left out, with its reason."""
    make, inputs, classes, size, usual = WORKLOADS[name]
    torch.manual_seed(0)
    x, y = inputs(size).cuda(), torch.randint(0, classes, (size,)).cuda()
    ready: dict[str, Callable[[], Any]] = {}
    failed, memory = {}, {}
    with precision(kind):
        for way in ways:
            gc.collect()  # what an earlier way leaves behind in circles would be freed meanwhile
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            try:
                step = WAYS[way](make().cuda(), x, y)
                for _ in range(2):
                    step()
                torch.cuda.synchronize()
                ready[way] = step
                memory[way] = (torch.cuda.max_memory_allocated() - before) / 2**20
            except Exception as error:
                failed[way] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        milliseconds = timed(ready, repeats or usual)
    return {
        "ms": milliseconds,
        "ratio": {way: ms / milliseconds["plain"] for way, ms in milliseconds.items()},
        "peak_mib": memory,
        "failed": failed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="steps of a training run (0: the workload's own)")
    parser.add_argument("--only", default="", help="workloads whose name contains one of these, separated by commas")
    parser.add_argument("--ways", default=",".join(WAYS), help="separated by commas")
    parser.add_argument("--no-train", action="store_true")
    parser.add_argument("--no-bf16", action="store_true")
    parser.add_argument("--profile", type=Path, default=None, help="file for the kernels of captured steps")
    parser.add_argument("--commit", default="", help="of the code, where it is no git folder")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "gpu.json"
    result = {
        "command": "python benchmarks/gpu.py",
        "commit": args.commit,
        "seeds": [0],
        "versions": versions(),
        "rows": {},
    }
    names = [name for name in WORKLOADS if any(word.lower() in name.lower() for word in args.only.split(","))]
    for name in names:
        row = result["rows"][name] = {}
        make, inputs, classes, size, _ = WORKLOADS[name]
        parts: dict[str, Callable[[], Any]] = {
            "step": lambda name=name: measured(name, args.ways.split(","), args.repeats, None),
            "bf16": lambda name=name: measured(name, ["plain", "noisewise"], args.repeats, torch.bfloat16),
        }
        parts["train"] = lambda row=row, name=name, size=size, make=make, inputs=inputs, classes=classes: train_times(
            make, inputs, classes, size, args.steps or STEPS.get(name, 1000)
        )
        left_out = [part for part in ("bf16", "train") if getattr(args, f"no_{part}")]
        for part, measure in parts.items():
            if part in left_out:
                continue
            try:
                row[part] = measure()
            except Exception:
                row[part] = {"error": traceback.format_exc()[-900:]}
            torch.cuda.empty_cache()
            file.write_text(json.dumps(result, indent=1) + "\n")
        if args.profile:
            for kind in [None] if args.no_bf16 else [None, torch.bfloat16]:
                x, y = inputs(size).cuda(), torch.randint(0, classes, (size,)).cuda()
                looked_at = [way for way in args.ways.split(",") if way not in ("plain", *PEERS)]
                for way in [way for way in looked_at if kind is None or way in ("plain captured", "noisewise")]:
                    with precision(kind):
                        profile(WAYS[way](make().cuda(), x, y), args.profile, f"{name}, {way}, {kind or 'float32'}")
        print(name, json.dumps(row), flush=True)
    ratios = [row["step"]["ratio"]["noisewise"] for row in result["rows"].values() if "ratio" in row.get("step", {})]
    print(f"geometric mean of {len(ratios)}: {math.prod(ratios) ** (1 / len(ratios)):.2f} x plain")


def versions() -> dict[str, str]:
    """What the figures depend on."""
    packages = {name: version(name) for name in ("torch", "triton", "opacus", "numpy") if find_spec(name)}
    return {"python": platform.python_version(), "gpu": torch.cuda.get_device_name(), **packages}


if __name__ == "__main__":
    main()
