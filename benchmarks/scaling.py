"""How the cost of a private step grows: against batch size, width, depth, sequence length and parameters, beside a plain step.

    python benchmarks/scaling.py [--device cpu|cuda] [--repeats N] [--out FOLDER]

Along each axis one number doubles and the others stay; private and plain steps take turns in one process, and the least of
their times is taken: on a CPU of gradients, in one thread, in its own seconds; on a GPU of whole steps, the private one as it
is captured in training, the plain one as a graph too, of larger models. The exponent is the slope of log time against log
size over the upper half of an axis: a private step whose exponent exceeds the plain one's would be dearer the larger the
work. What every step costs whatever its size (the proof above all) makes exponents of small steps smaller.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisewise.clipping import Flat
from noisewise.persample import clipped_sum, examine

sys.path.insert(0, str(Path(__file__).parent))

warnings.filterwarnings("ignore")
ALLOWED = 0.15  # by which an exponent may exceed the plain one's: it is measured


class Words(nn.Module):
    """A transformer encoder on tokens, as PyTorch has it."""

    def __init__(self, width: int = 64, depth: int = 1, length: int = 32):
        super().__init__()
        self.tokens, self.places = nn.Embedding(1000, width), nn.Parameter(torch.randn(1, length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.tokens(x) + self.places).mean(1))


def words(batch: int = 16, length: int = 32) -> Tensor:
    return torch.randint(0, 1000, (batch, length))


def convolutions(width: int = 16, depth: int = 3) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * width, 2))


def perceptron(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))


AXES: dict[str, tuple[tuple[int, ...], Callable[[int], tuple[nn.Module, Tensor]]]] = {
    "batch size, CNN": ((16, 32, 64, 128), lambda size: (convolutions(), torch.randn(size, 3, 16, 16))),
    "batch size, encoder": ((8, 16, 32, 64), lambda size: (Words(), words(size))),
    "width, CNN": ((8, 16, 32, 64), lambda size: (convolutions(size), torch.randn(32, 3, 16, 16))),
    "depth, encoder": ((1, 2, 4, 8), lambda size: (Words(depth=size), words())),
    "sequence length, encoder": ((16, 32, 64, 128, 256), lambda size: (Words(length=size), words(8, size))),
    "width, MLP (parameters: its square)": (
        (256, 512, 1024, 2048),
        lambda size: (perceptron(size), torch.randn(64, 256)),
    ),
}


CUDA_AXES: dict[str, tuple[tuple[int, ...], Callable[[int], tuple[nn.Module, Tensor]]]] = {
    "batch size, CNN": ((256, 512, 1024, 2048), lambda size: (convolutions(32), torch.randn(size, 3, 32, 32))),
    "batch size, encoder": ((16, 32, 64, 128), lambda size: (Words(256, 2, 64), words(size, 64))),
    "width, CNN": ((32, 64, 128, 256, 512), lambda size: (convolutions(size), torch.randn(256, 3, 32, 32))),
    "depth, encoder": ((2, 4, 8, 16), lambda size: (Words(256, size, 64), words(64, 64))),
    "sequence length, encoder": ((64, 128, 256, 512, 1024), lambda size: (Words(256, 2, size), words(16, size))),
    "width, MLP (parameters: its square)": (
        (512, 1024, 2048, 4096),
        lambda size: (perceptron(size), torch.randn(1024, 256)),
    ),
}


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def times(model: nn.Module, x: Tensor, repeats: int, device: str) -> tuple[float, float]:
    """Seconds of a plain and of a private gradient, by turns, the least of each."""
    model, x = model.to(device), x.to(device)
    batch = (x, torch.randint(0, 2, (len(x),), device=device))
    layout = examine(model, losses, batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def plain() -> None:
        optimizer.zero_grad()
        losses(model, batch).mean().backward()

    clock = time.process_time if device == "cpu" else time.perf_counter  # one thread: other work does not count
    ways: tuple[Callable[[], Any], ...] = (plain, lambda: clipped_sum(model, losses, batch, Flat(1.0), layout=layout))
    if device == "cuda":
        from gpu import plain_graph, private

        ways = (plain_graph(deepcopy(model), *batch), private(model, *batch, capture=True))
        for way in ways:
            for _ in range(5):  # captured on the way
                way()
        torch.cuda.synchronize()
    taken: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 1):
        for way, seconds in zip(ways, taken, strict=True):
            start = clock()
            way()
            if device == "cuda":
                torch.cuda.synchronize()
            if repeat:
                seconds.append(clock() - start)
    return min(taken[0]), min(taken[1])


def exponent(sizes: tuple[int, ...], seconds: list[float]) -> float:
    """Slope of log time against log size, over the upper half of the axis."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half - 1 :]), np.log(seconds[half - 1 :]), 1)[0])


def measured(repeats: int, device: str) -> list[dict[str, Any]]:
    rows = []
    for name, (sizes, build) in (CUDA_AXES if device == "cuda" else AXES).items():
        torch.manual_seed(0)
        pairs = [times(*build(size), repeats, device) for size in sizes]
        plain, private = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        row = {
            "axis": name, "sizes": list(sizes), "plain_seconds": plain, "private_seconds": private,
            "plain_exponent": exponent(sizes, plain), "private_exponent": exponent(sizes, private),
        }  # fmt: skip
        rows.append(row)
        ratios = " ".join(f"{b / a:.2f}" for a, b in pairs)
        print(f"{name:38} plain ~ size^{row['plain_exponent']:.2f}, private ~ size^{row['private_exponent']:.2f}; "
              f"ratios {ratios}", flush=True)  # fmt: skip
    return rows


def plot(path: Path, rows: list[dict[str, Any]], device: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, LogLocator

    figure, axes = plt.subplots(2, 3, figsize=(11, 6))
    for axis, row in zip(axes.flat, rows, strict=True):
        for way, colour in (("plain", "0.5"), ("private", "C0")):
            label = f"{way}, size^{row[f'{way}_exponent']:.2f}"
            axis.loglog(row["sizes"], [1e3 * s for s in row[f"{way}_seconds"]], "o-", color=colour, label=label)
        axis.set_xticks(row["sizes"], [str(size) for size in row["sizes"]])
        axis.minorticks_off()
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_xlabel(row["axis"])
        axis.set_ylabel("ms a step")
        axis.legend(fontsize=8, frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"A private step beside a plain one ({device})", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--commit", default="", help="of the code, where it is no git folder")
    parser.add_argument("--out", type=Path, default=None, help="folder for scaling_DEVICE.json and .png")
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)
    else:
        torch.set_float32_matmul_precision("high")
    rows = measured(args.repeats, args.device)
    if args.out:
        kind = torch.cuda.get_device_name() if args.device == "cuda" else platform.machine()
        content = {
            "command": f"python benchmarks/scaling.py --device {args.device} --out benchmarks/results",
            "commit": args.commit,
            "hardware": {"device": kind, "cores": os.cpu_count(), "threads": torch.get_num_threads()},
            "versions": {"python": platform.python_version(), "torch": version("torch")},
            "repeats": args.repeats,
            "allowed": ALLOWED,
            "rows": rows,
        }
        (args.out / f"scaling_{args.device}.json").write_text(json.dumps(content, indent=1) + "\n")
        plot(args.out / f"scaling_{args.device}.png", rows, args.device)


if __name__ == "__main__":
    main()
