"""One private step against a plain PyTorch step and the peers: interleaved, medians, ratios in one run.

    python benchmarks/step.py [--repeats N] [--only NAME] [--out FOLDER]

Each workload runs forward, per-unit clipping, noise and SGD on one fixed batch. Time: all methods take turns in one
process, the median of their times is reported as a ratio to plain. Memory: each method alone in a process of its own with
all libraries loaded, the peak resident memory during a later step above what was resident before the first, as a ratio to
plain; blocks above 1 MB go back to the system when they are freed, for all methods (what glibc keeps of them differs from run
to run by a fifth, and is in no use). Proof: the forward pass as it is and followed (proof that units are separate, and
tape), interleaved; and the one examination of a run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ratios
import torch
import torch.nn.functional as F
from torch import Tensor, nn

warnings.filterwarnings("ignore")
METHODS = ("plain", "noisewise", "noisewise small", "opacus hooks", "opacus ghost", "torch.func vmap")


# ---------------------------------------------------------------------------------------------------- workloads


def mnist_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def dp_cnn() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 32, 0, 64, 64, 0, 128, 128, 0):
        layers += [nn.MaxPool2d(2)] if width == 0 else [nn.Conv2d(channels, width, 3, padding=1), nn.Tanh()]
        channels = width or channels
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(32, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(32, outputs)
        self.short = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(32, outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


def resnet18() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(32, 64), nn.ReLU()]
    channels = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(channels, width, stride), Block(width, width, 1)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(width, width // 64), nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    def __init__(self, width: int = 256, depth: int = 4, length: int = 64, vocabulary: int = 10000):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(EncoderLayer(width) for _ in range(depth))
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device).repeat(x.shape[0], 1)  # Opacus needs the batch in front
        h = self.tokens(x) + self.positions(places)
        for layer in self.layers:
            h = layer(h)
        return self.head(h[:, 0])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))


WORKLOADS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], int, int]] = {
    "MNIST CNN, batch 256": (mnist_cnn, lambda: torch.randn(256, 1, 28, 28), 10, 30),
    "DP-CNN, batch 256": (dp_cnn, lambda: torch.randn(256, 3, 32, 32), 10, 7),
    "ResNet-18 GroupNorm, batch 64": (resnet18, lambda: torch.randn(64, 3, 32, 32), 10, 3),
    "encoder 4x256, sequence 64, batch 32": (Encoder, lambda: torch.randint(0, 10000, (32, 64)), 2, 11),
    "MLP 784-2048-2048-10, batch 512": (mlp, lambda: torch.randn(512, 784), 10, 11),
    "MLP 784-2048-2048-10, batch 64": (mlp, lambda: torch.randn(64, 784), 10, 21),
}
SKIPPED = {  # would need more memory than the machine has, or minutes a step
    ("MLP 784-2048-2048-10, batch 512", "opacus hooks"): "out of memory (11 GB of gradients, twice)",
    ("MLP 784-2048-2048-10, batch 512", "torch.func vmap"): "out of memory (11 GB of gradients, twice)",
}


# ---------------------------------------------------------------------------------------------------- methods


def unit_losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def noisewise_small(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    return noisewise(model, x, y, memory="small")


def noisewise(model: nn.Module, x: Tensor, y: Tensor, memory: str = "ample") -> Callable[[], Any]:
    import dp_accounting  # noqa: F401  the ledger asks for it at its first line: a library, as those of the peers below

    from noisewise import Ledger, Poisson
    from noisewise.bounded import release
    from noisewise.clipping import Flat
    from noisewise.persample import clipped_sum, examine
    from noisewise.randomness import Entropy
    from noisewise.runtime import Runtime

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runtime = Runtime(memory=memory)
    layout = examine(model, unit_losses, (x, y))
    sampler, ledger, entropy = Poisson(50000, len(x)), Ledger(), Entropy.fresh()
    count = iter(range(1 << 30))

    def step() -> None:
        optimizer.zero_grad()
        clipped = clipped_sum(model, unit_losses, (x, y), Flat(1.0), runtime=runtime, layout=layout)
        grads = release(
            {"gradient": (clipped.grads, 1.0)},
            sampler=sampler, ledger=ledger, entropy=entropy, step=next(count), owned=True,
        )  # fmt: skip
        for name, parameter in model.named_parameters():
            parameter.grad = grads["gradient"][name].div_(len(x))
        optimizer.step()

    return step


def opacus_hooks(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=0.1),
        noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=len(x),
    )  # fmt: skip

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.step()

    return step


def opacus_ghost(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(wrapped.parameters(), lr=0.1),
        noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=len(x),
    )  # fmt: skip
    criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

    def step() -> None:
        optimizer.zero_grad()
        criterion(wrapped(x), y).backward()
        optimizer.step()

    return step


def vmap(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Any]:
    from torch.func import functional_call, grad
    from torch.func import vmap as vectorise

    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)

    def loss(values: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, values, (one.unsqueeze(0),)), label.unsqueeze(0))

    per_unit = vectorise(grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        grads = per_unit({name: p.detach() for name, p in parameters.items()}, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factors = (1.0 / norms).clamp(max=1.0)
        for name, p in parameters.items():
            total = torch.einsum("b,b...->...", factors, grads[name])
            p.grad = (total + torch.randn_like(total)) / len(x)
        optimizer.step()

    return step


BUILD = dict(zip(METHODS, (plain, noisewise, noisewise_small, opacus_hooks, opacus_ghost, vmap), strict=True))


def problem(workload: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    build, inputs, classes, _ = WORKLOADS[workload]
    x = inputs()
    return build(), x, torch.randint(0, classes, (len(x),))


def prepare(workload: str, method: str) -> Callable[[], Any]:
    return BUILD[method](*problem(workload))


# ---------------------------------------------------------------------------------------------------- measuring


def measure_times(workload: str, methods: list[str], repeats: int) -> dict[str, list[float]]:
    steps = {}
    for method in methods:
        steps[method] = prepare(workload, method)
        steps[method]()
    times: dict[str, list[float]] = {method: [] for method in methods}
    for _ in range(repeats):
        for method, step in steps.items():
            start = time.perf_counter()
            step()
            times[method].append(time.perf_counter() - start)
    return times


def measure_proof(workload: str, repeats: int) -> dict[str, float]:
    """Milliseconds that following a forward pass adds to it, and that the examination takes."""
    from noisewise.persample import examine, live_parameters
    from noisewise.persample.engines import follow
    from noisewise.persample.images import with_channels_last

    model, x, y = problem(workload)
    live, seconds = live_parameters(model, {}), {"forward": [], "followed": []}
    start = time.perf_counter()
    layout = examine(model, unit_losses, (x, y))
    examined = time.perf_counter() - start
    assert layout.trace is not None, f"{workload} is not proven"
    last = layout.channels_last
    given = with_channels_last(x) if last else x
    ways = {
        "forward": lambda: unit_losses(model, (given, y)),
        "followed": lambda: follow(model, unit_losses, (x, y), live, against=layout.trace, channels_last=last),
    }
    for way in ways.values():
        way()
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    forward, followed = (1e3 * sorted(seconds[name])[repeats // 2] for name in ways)
    return {"forward_ms": forward, "proof_ms": followed - forward, "examination_ms": 1e3 * examined}


def peak_memory(workload: str, method: str) -> float | None:
    """MiB above the resting state during a step, in a process of its own (Linux)."""
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}  # a fixed one: glibc raises its own as it goes
    done = subprocess.run(
        [sys.executable, __file__, "--memory", workload, method], capture_output=True, text=True, env=environment
    )
    return float(done.stdout.split()[-1]) if done.returncode == 0 and done.stdout else None


def print_memory(workload: str, method: str) -> None:
    def status(key: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return float(next(line for line in lines if line.startswith(key)).split()[1]) / 1024

    model, x, y = problem(workload)
    plain(model, x[:2], y[:2])()  # what PyTorch loads at first use is nobody's step
    del model, x, y
    step = prepare(workload, method)
    before = status("VmRSS")  # model and data alone: what a method keeps between its steps counts
    step()
    peaks = []
    for _ in range(2):
        Path("/proc/self/clear_refs").write_text("5")
        step()
        peaks.append(status("VmHWM") - before)
    print(max(max(peaks), 1.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=0, help="repeats per workload (0: the workload's own)")
    parser.add_argument("--only", default="", help="workloads and methods whose name contains this")
    parser.add_argument("--methods", default="", help="comma-separated methods")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--out", type=Path, default=None, help="folder for step.json and step.png")
    parser.add_argument("--memory", nargs=2, metavar=("WORKLOAD", "METHOD"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory:
        return print_memory(*args.memory)
    rows, proofs = [], {}
    for workload, (*_, repeats) in WORKLOADS.items():
        if args.only.lower() not in workload.lower():
            continue
        chosen = [m for m in METHODS if not args.methods or m in args.methods.split(",")]
        methods = [m for m in chosen if (workload, m) not in SKIPPED]
        times = measure_times(workload, methods, args.repeats or repeats)
        median = {m: sorted(ts)[len(ts) // 2] for m, ts in times.items()}
        memory = {} if args.no_memory else {m: peak_memory(workload, m) for m in methods}
        for method in chosen:
            reason = SKIPPED.get((workload, method))
            seconds = median.get(method)
            ratio = seconds / median["plain"] if seconds else None
            space = memory.get(method)
            base = memory.get("plain")
            space_ratio = space / base if space and base else None
            rows.append(
                {
                    "workload": workload, "method": method, "ms": seconds and seconds * 1e3, "time_ratio": ratio,
                    "memory_mib": space, "memory_ratio": space_ratio, "reason": reason, "repeats": args.repeats or repeats,
                }
            )  # fmt: skip
            shown = reason or f"{seconds * 1e3:9.1f} ms {ratio:6.2f} x  memory {space_ratio or math.nan:6.2f} x"
            print(f"{workload:38} {method:16} {shown}", flush=True)
        step = median.get("noisewise")
        if step:
            proofs[workload] = measure_proof(workload, args.repeats or repeats)
            proofs[workload]["share_of_step"] = proofs[workload]["proof_ms"] / (1e3 * step)
            added, share, once = (proofs[workload][key] for key in ("proof_ms", "share_of_step", "examination_ms"))
            print(
                f"{workload:38} {'proof':16} {added:9.1f} ms {share:6.1%} of a step; examination {once:.0f} ms",
                flush=True,
            )
    ours = [r["time_ratio"] for r in rows if r["method"] == "noisewise"]
    print(f"noisewise, geometric mean over {len(ours)} workloads: {math.prod(ours) ** (1 / len(ours)):.2f} x plain")
    if args.out:
        write(args.out, rows, proofs)


def write(folder: Path, rows: list[dict[str, Any]], proofs: dict[str, dict[str, float]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    packages = ("torch", "opacus", "numpy")
    content = {
        "command": "make bench",
        "commit": commit,
        "hardware": {"machine": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
        "versions": {"python": platform.python_version(), **{p: version(p) for p in packages}},
        "rows": rows,
        "proof": proofs,
    }
    (folder / "step.json").write_text(json.dumps(content, indent=1) + "\n")
    plot(folder / "step.png", rows)


def plot(path: Path, rows: list[dict[str, Any]]) -> None:
    """The picture of README."""
    methods = [method for method in METHODS if method != "plain"]
    names = list(dict.fromkeys(row["workload"] for row in rows))

    def of(key: str) -> ratios.Ratios:
        return {
            name: {row["method"]: row[key] for row in rows if row["workload"] == name and row["method"] in methods}
            for name in names
        }

    ratios.draw(path, of("time_ratio"), of("memory_ratio"), methods)


if __name__ == "__main__":
    main()
