"""What a GPU must say before a way is chosen: one call of two minutes, which prints tables and writes choices.json.

    python benchmarks/choices.py [--parts NAMES] [--out FOLDER] [--seconds N] [--dry]

cut: do tensor cores round factors of TF32, or leave bits out (`rounding.SHORTENED`)? norms: those of the kernels against
gradients formed in float64, on this GPU. half: is the encoder at T 1024 in bfloat16 explained, and by how much? steps: plain
and private steps, with and without masks. layers: each way to norm and sum of each convolution. tiles: of `_taps`.
profile: kernels of a step. train: where the processor's time goes. `--dry` runs all but steps on a CPU, with tiny layers.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib
import io
import itertools
import json
import math
import pstats
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from step import Encoder, mlp, unit_losses

import noisewise as nw
from noisewise.clipping import Flat
from noisewise.persample import kernels
from noisewise.persample.convolution import Convolution, HalfConvolution
from noisewise.persample.examine import ROUNDING, _noise, ghost
from noisewise.persample.formed import ByTap, keep_formed
from noisewise.persample.made_up import losses_of, nothing_changed, perturbed, units_and_others
from noisewise.persample.rounding import uncut
from noisewise.persample.steady import steady

warnings.filterwarnings("ignore")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYERS = [  # channels, out, size, kernel, stride, batch
    (64, 64, 32, 3, 1, 256), (64, 128, 32, 3, 2, 256), (128, 128, 16, 3, 1, 256), (128, 256, 16, 3, 2, 256),
    (256, 256, 8, 3, 1, 256), (256, 512, 8, 3, 2, 256), (512, 512, 4, 3, 1, 256), (256, 512, 8, 1, 2, 256),
    (32, 32, 32, 3, 1, 1024), (32, 64, 16, 3, 1, 1024), (64, 64, 16, 3, 1, 1024), (64, 128, 8, 3, 1, 1024),
    (128, 128, 8, 3, 1, 1024),
]  # fmt: skip
FIRST = [(3, 32, 32, 3, 1, 1024), (3, 64, 32, 3, 1, 256)]  # channels that do not fill a tile
TINY = [(9, 40, 4, 3, 1, 3), (9, 33, 8, 3, 2, 3)]


def layer_of(shape: tuple[int, ...], kind: torch.dtype = torch.float32) -> Convolution:
    channels, out, size, kernel, stride, batch = shape
    torch.manual_seed(0)
    given, side = torch.randn(batch, channels, size, size, device=DEVICE, dtype=kind).relu(), size // stride
    grad = torch.randn(batch, out, side, side, device=DEVICE, dtype=kind)
    return Convolution(given, grad, (kernel,) * 2, (stride,) * 2, ((kernel // 2,) * 2,) * 2, (1, 1), 1)


def milliseconds(call: Callable[[], Any], seconds: float = 0.05) -> float:
    """Of a captured call: the median of five rounds."""
    if DEVICE == "cpu":
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    times, count = [], 1
    for turn in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / count)
        count = max(1, min(200, int(seconds / 5 * 1e3 / max(times[0], 1e-3)))) if turn == 0 else count
    return sorted(times[1:])[2]


def cut() -> dict[str, str]:
    """1 + 3/4 of the last bit of TF32, times 1: 1 if bits are left out, one bit more if they are rounded."""
    last = 2.0**-10
    value = 1 + 0.75 * last

    def said(result: Tensor) -> str:
        found = (float(result.flatten()[0]) - 1) / last
        return "left out" if abs(found) < 0.01 else "rounded" if abs(found - 1) < 0.01 else f"in full ({found:.2f})"

    found = {}
    for size in (64, 1024, 4096):
        one = torch.zeros(size, size, device=DEVICE)
        one[0, 0] = 1
        found[f"matmul {size}"] = said((one * value) @ one)
    batch = torch.zeros(256, 64, 256, device=DEVICE)
    batch[:, 0, 0] = 1
    found["bmm"] = said(torch.bmm(batch * value, batch.transpose(1, 2)))
    few = DEVICE == "cpu"
    for channels, size in ((64, 2),) if few else ((64, 32), (512, 4)):
        image = torch.zeros(2 if few else 256, channels, size, size, device=DEVICE)
        weight, grad = torch.zeros(channels, channels, 3, 3, device=DEVICE), torch.zeros_like(image)
        image[:, 0, 1, 1], weight[0, 0, 1, 1], grad[0, 0, 1, 1] = value, 1, 1
        found[f"convolution {channels}"] = said(F.conv2d(image, weight, padding=1)[0, 0, 1, 1])
        summed = torch.ops.aten.convolution_backward(
            grad, image, weight, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, (False, True, False)
        )[1]
        found[f"its weight gradient {channels}"] = said(summed[0, 0, 1, 1])
        if kernels.walks(grad, image):
            walked, _ = kernels.form_taps(grad, image, (3, 3), (1, 1), ((1, 1),) * 2, (1, 1), None, cut=True)
            found[f"our taps {channels}"] = said(walked[4, 0, 0, 0])
    return found


def norms(shapes: list[tuple[int, ...]]) -> list[dict[str, Any]]:
    """The least and the most of `norm / exact norm` of each way; never below 1."""
    rows = []
    for shape in shapes:
        layer = layer_of((*shape[:5], min(shape[5], 64)))
        given, grad = layer.input.double().split(8), layer.grad.double().split(8)
        parts = [replace(layer, input=one, grad=other).formed() for one, other in zip(given, grad, strict=True)]
        exact = torch.cat([part.flatten(1).norm(dim=1) for part in parts])
        with steady(layer.units):
            ways = ways_of(layer)
        row = {"layer": shape}
        for name, (measure, _) in ways.items():
            with steady(layer.units):
                ratio = measure()[0].sqrt() / exact
            row[name] = (round(float(ratio.min()), 6), round(float(ratio.max()), 6))
        rows.append(row)
    return rows


def ways_of(layer: Convolution, *, masked: bool = False) -> dict[str, tuple[Callable[[], Any], float]]:
    """Ways to norms, and what is summed later; the last number: floats that are kept."""
    size = math.prod(layer.kernel) * layer.input.shape[1] * layer.grad.shape[1]
    mask = torch.rand(layer.grad.shape[1], layer.input.shape[1], *layer.kernel, device=DEVICE) < 0.5 if masked else None
    ways: dict[str, tuple[Callable[[], Any], float]] = {}
    setup = (layer.kernel, layer.stride, layer.padding, layer.dilation)
    if (
        layer.input.shape[1] < 8
    ):  # today unfolded: would the kernel, whose tiles are empty for the most part, be faster?
        form = partial(kernels.form_taps, layer.grad, layer.input, *setup, mask, cut=True)
        return {"unfolded": (lambda: keep_formed(layer, mask), 0), "by tap": (lambda: (None, ByTap(*form())), 0)}
    if layer.units * size <= 2**29:
        ways["formed and kept"] = (lambda: keep_formed(layer, mask), layer.units * size)
    ways["walked, sum anew"] = (lambda: (layer._walked(mask), layer.with_mask(mask)), 0)
    walk = partial(kernels.form_taps, layer.grad, layer.input, *setup, mask, cut=True, stored=False)
    ways["walked by _taps, sum anew"] = (lambda: (walk()[1], layer.with_mask(mask)), 0)
    if not masked and math.prod(layer.grad.shape[2:]) <= 64:
        ways["Gram kernel, sum anew"] = (lambda: (layer._tap_grams(), layer), 0)
    if not masked and layer._shifts and math.prod(layer._sizes()) <= 400:
        ways["shifted Gram, sum anew"] = (lambda: (layer._shifted_gram(layer._roundoff).most.square(), layer), 0)
    return ways


def layers(shapes: list[tuple[int, ...]]) -> list[dict[str, Any]]:
    """Milliseconds of norm and sum of each way, without and with a mask, and in bfloat16 where that is another way."""
    rows = []
    for shape in shapes:
        layer = layer_of(shape)
        row: dict[str, Any] = {"layer": shape, "chosen": "Gram kernel" if _asked(layer) else "other"}
        factors = torch.rand(layer.units, dtype=torch.float64, device=DEVICE)
        for masked in (False, True):
            for name, (measure, _) in ways_of(layer, masked=masked).items():
                both = partial(_norm_and_sum, layer.units, measure, factors)
                row[f"{name}{', masked' if masked else ''}"] = _or_error(partial(milliseconds, both))
        if shape[0] < 8:
            narrow = layer_of(shape, torch.bfloat16)
            form = partial(kernels.form_taps, narrow.grad, narrow.input, narrow.kernel, narrow.stride, narrow.padding)
            tap = partial(_by_tap, form, narrow.dilation)
            row["by tap, bfloat16"] = _or_error(
                partial(milliseconds, partial(_norm_and_sum, layer.units, tap, factors))
            )
        half = HalfConvolution(layer_of(shape, torch.bfloat16))
        both = partial(_norm_and_sum, layer.units, partial(_widened_anew, half), factors)
        row["bfloat16"] = _or_error(partial(milliseconds, both))
        rows.append(row)
        torch.cuda.empty_cache() if DEVICE == "cuda" else None
    return rows


def _asked(layer: Convolution) -> bool:
    with steady(layer.units):
        return layer._in_one_tile


def _norm_and_sum(units: int, measure: Callable[[], Any], factors: Tensor) -> None:
    with steady(units):
        measure()[1].weighted_sum(factors)


def _by_tap(form: Callable[..., Any], dilation: tuple[int, ...]) -> Any:
    return None, ByTap(*form(dilation, None, cut=True))


def _widened_anew(half: HalfConvolution) -> Any:
    return HalfConvolution(half.narrow).measure(None)


def _or_error(call: Callable[[], Any]) -> Any:
    try:
        found = call()
        return round(found, 4) if isinstance(found, float) else found
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"


TILES = [  # out, in, positions, warps, stages
    (128, 64, 32, 4, 2), (128, 64, 32, 4, 3), (128, 64, 64, 4, 2), (128, 128, 32, 8, 2), (128, 128, 32, 8, 3),
         (64, 64, 32, 4, 3), (64, 64, 64, 4, 3), (128, 64, 16, 4, 3), (256, 64, 32, 8, 2), (64, 32, 32, 4, 3)]  # fmt: skip


def tiles(shapes: list[tuple[int, ...]], until: float) -> list[dict[str, Any]]:
    """Milliseconds of `_taps` alone, stored, for tiles (out, in, positions, warps, stages); the first is that of today."""
    tk = kernels._kernels()
    given, rows = tk._launch, []

    def launch(kernel: Any, grid: Any, *args: Any, **settings: Any) -> None:
        if kernel is not tk._taps:
            return given(kernel, grid, *args, **settings)
        out, inside, block, warps, stages = tile
        outputs, inputs, positions = args[4:7]
        out, inside = (
            min(out, max(16, 1 << (outputs - 1).bit_length())),
            min(inside, max(16, 1 << (inputs - 1).bit_length())),
        )
        across = -(-inputs // inside)
        count = across * -(-outputs // out)
        args = (*args[:11], across, *args[12:-2], count, -(-positions // block))
        squares = torch.empty(grid[0], grid[1] * settings["TAPS"] * count, dtype=torch.float64, device=DEVICE)
        args = (*args[:3], squares, *args[4:])
        settings |= {"OUT": out, "IN": inside, "BLOCK": block, "num_warps": warps, "num_stages": stages}
        return given(kernel, (grid[0], grid[1], count), *args, **settings)

    tk._launch = launch
    try:
        for kind, shape in itertools.product((torch.float32, torch.bfloat16), shapes):
            layer = layer_of(shape, kind)
            row: dict[str, Any] = {"layer": shape, "type": str(kind)}
            setup = (layer.kernel, layer.stride, layer.padding, layer.dilation)
            form = partial(kernels.form_taps, layer.grad, layer.input, *setup, None, cut=True)
            with steady(layer.units):
                with kernels.rehearsal(layer.grad.device):
                    for tile in TILES:  # noqa: B007  compiled all at once; `launch` reads it
                        _or_error(form)
                for tile in TILES:
                    if time.monotonic() > until:
                        return [*rows, row]
                    row[str(tile)] = _or_error(partial(milliseconds, form, 0.02))
            rows.append(row)
    finally:
        tk._launch = given
    return rows


def half(width: int = 768, depth: int = 12, time_steps: int = 1024) -> list[dict[str, Any]]:
    """Keys' biases of the encoder in bfloat16: how far ghost and plain gradients are apart, and what excuses that."""
    torch.manual_seed(0)
    model = Encoder(width, depth, time_steps).to(DEVICE)
    like = torch.randint(0, 10000, (8, time_steps), device=DEVICE), torch.randint(0, 2, (8,), device=DEVICE)
    rows: list[dict[str, Any]] = []
    look = importlib.import_module("noisewise.persample.examine")
    with torch.autocast(DEVICE, torch.bfloat16):
        layout = look.examine(model, unit_losses, like)
        rows.append({"fallback": sorted(layout.fallback), "reason": layout.reason})
        units, _ = units_and_others(like, None, None)
        live = dict(model.named_parameters())
        for weights in (nothing_changed, perturbed):
            with weights(model), uncut():
                measured = ghost(model, unit_losses, nw.batches.Views.single(units), live, {}, layout, strict=False)
                plain = [
                    torch.autograd.grad(losses_of(model, unit_losses, units).sum(), list(live.values())) for _ in "ab"
                ]
                room = 1e-5 * math.hypot(*(float(grad.double().norm()) for grad in plain[0]))
                noise = _noise(model, unit_losses, units, live)
                for (name, _), grad, again in zip(live.items(), *plain, strict=True):
                    squares, gradient = measured[name]
                    total = gradient.weighted_sum(torch.ones_like(squares)).reshape(grad.shape)
                    error = float((total - grad).double().norm())
                    excess = error - ROUNDING * float(squares.double().sqrt().sum())
                    if excess > room / 4:
                        rows.append({
                            "weights": weights.__name__, "name": name, "length": float(grad.norm()), "apart": error,
                            "two plain passes": float((again - grad).double().norm()), "room": room, "noise": noise[name],
                            "wrong": excess > room + 4 * noise[name],
                        })  # fmt: skip
    return rows


def steps(until: float) -> dict[str, Any]:
    """Rows of gpu.py, the most important first; those for which there is no time are left out."""
    gpu = importlib.import_module("gpu")
    ways = ["plain", "plain captured", "noisewise", "elementwise masks"]
    wanted = [
        ("ResNet-18 GroupNorm, batch 256", ways, None), ("MNIST CNN, batch 1024", ways, None),
        ("MLP 784-2048-2048-10, batch 2048", ways, None), ("DP-CNN, batch 1024", ways, None),
        ("DP-CNN, batch 1024", ["plain", "noisewise"], torch.bfloat16),
        ("encoder 12x768, T 128, batch 32", ["plain", "noisewise", "elementwise masks"], None),
        ("encoder 12x768, T 1024, batch 8", ["plain", "noisewise"], torch.bfloat16),
        ("ResNet-18 GroupNorm, batch 256", ["plain", "noisewise"], torch.bfloat16),
    ]  # fmt: skip
    found: dict[str, Any] = {}
    for name, some, kind in wanted:
        if time.monotonic() < until:
            label = f"{name}{'' if kind is None else ', bf16'}"
            row = found[label] = _or_error(partial(gpu.measured, name, some, 0, kind))
            print(label, json.dumps(row), flush=True)
            if isinstance(row, dict) and "elementwise masks" in row["ms"]:
                added = row["ms"]["elementwise masks"] / row["ms"]["noisewise"] - 1
                print(f"    masks add {100 * added:.1f} % (goal 10)", flush=True)
            torch.cuda.empty_cache()
    return found


def profile(folder: Path) -> None:
    """Kernels of steps: those of all rows of gpu.py, some with masks or in bfloat16."""
    gpu = importlib.import_module("gpu")
    file = folder / "choices_profile.txt"
    wanted = [(name, False, None) for name in gpu.WORKLOADS]
    masked = ("MNIST CNN, batch 1024", "MLP 784-2048-2048-10, batch 2048", "ResNet-18 GroupNorm, batch 256")
    wanted += [(name, True, None) for name in (*masked, "encoder 12x768, T 128, batch 32")]
    wanted += [(name, False, torch.bfloat16) for name in ("DP-CNN, batch 1024", "ResNet-18 GroupNorm, batch 256")]
    for name, masks, kind in wanted:
        make, inputs, classes, size, _ = gpu.WORKLOADS[name]
        x, y = inputs(size).to(DEVICE), torch.randint(0, classes, (size,), device=DEVICE)
        label = f"{name}{', masked' if masks else ''}{'' if kind is None else ' in bfloat16'}"
        with torch.autocast(DEVICE, kind or torch.bfloat16, enabled=kind is not None):
            gpu.profile(gpu.private(make().to(DEVICE), x, y, capture=True, masked=masks), file, label)
        torch.cuda.empty_cache()
    print(file.read_text(), flush=True)


def train(folder: Path, count: int = 300, units: int = 50_000, batch: int = 2048) -> dict[str, float]:
    """Where the processor's time goes in `train` of the MLP, once it is warm: 5 steps, and more."""
    x, y = torch.randn(units, 784), torch.randint(0, 10, (units,))

    def run(steps: int) -> float:
        network = mlp().to(DEVICE)
        plan = nw.Mechanism(sampler=nw.Poisson(len(x), batch), clip=Flat(1.0), noise_multiplier=1.0, steps=steps)
        plan.epsilon(1e-6)
        start = time.perf_counter()
        nw.train(network, (x, y), unit_losses, plan, torch.optim.SGD(network.parameters(), lr=0.1), progress=False)
        torch.cuda.synchronize() if DEVICE == "cuda" else None
        return time.perf_counter() - start

    run(5)
    seconds = {"5 steps": run(5), f"{count} steps": run(count)}
    for steps in (5, count):
        record = cProfile.Profile()
        record.runcall(run, steps)
        text = io.StringIO()
        pstats.Stats(record, stream=text).sort_stats("tottime").print_stats(30)
        pstats.Stats(record, stream=text).sort_stats("cumtime").print_stats(50)
        (folder / f"choices_train_{steps}.txt").write_text(text.getvalue())
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="cut,norms,steps,half,profile,layers,train,tiles")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--seconds", type=float, default=120.0, help="what is not begun by then is left out")
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args()
    begun = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    shapes, found = (TINY if args.dry else LAYERS), dict[str, Any]()
    parts: dict[str, Callable[[], Any]] = {
        "cut": cut,
        "norms": lambda: norms(shapes),
        "half": lambda: half(64, 2, 32) if args.dry else half(),
        "steps": lambda: {} if args.dry else steps(begun + 0.5 * args.seconds),
        "profile": lambda: None if args.dry else profile(args.out),
        "layers": lambda: layers([*shapes, *FIRST[: 0 if args.dry else 2]]),
        "tiles": lambda: tiles(shapes if args.dry else [LAYERS[k] for k in (0, 2, 5, 8, 10, 11)], begun + 0.95 * args.seconds),
        "train": lambda: train(args.out, 6, 300, 8) if args.dry else train(args.out),
    }  # fmt: skip
    for name in args.parts.split(","):
        if time.monotonic() - begun > args.seconds:
            print(f"== {name}: no time left", flush=True)
            continue
        print(f"== {name}, after {time.monotonic() - begun:.0f} s", flush=True)
        try:
            result = found[name] = parts[name]()
            for line in result if isinstance(result, list) else [result]:
                print("  ", json.dumps(line), flush=True)
        except Exception:
            found[name] = {"error": traceback.format_exc()[-900:]}
            print(found[name]["error"], flush=True)
        (args.out / "choices.json").write_text(json.dumps(found, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
