"""Where the seconds before the first step of a first run go: imports, data, examination, kernels, captures.

    python benchmarks/start.py [--device cuda|cpu] [--only NAMES] [--steps N] [--out FOLDER]

Every run is a process of its own: first with an empty cache of compiled kernels, then with the one that this has filled.
Data of 50,000 units lie in main memory, batches are Poisson's, steps are those of `private_step`; on a CPU they are captured
as plain calls. Parts are counted once each: what is examined does not hold the proof within it, and compiling is the time
that the run waits for it (`compiled`: how many kernels, and their seconds in all threads together). Later steps meet other
sizes of batches, whose captures are `later captures`; `a step` is the median of the others. Writes start.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

BEGUN = time.perf_counter()
WORKLOADS = {  # shape of a unit, classes, units, expected batch
    "DP-CNN": ((3, 32, 32), 10, 50_000, 1000),
    "ResNet-18": ((3, 32, 32), 10, 50_000, 256),
    "MNIST CNN": ((1, 28, 28), 10, 50_000, 1024),
    "MLP": ((784,), 10, 50_000, 2048),
    "tiny": ((3, 8, 8), 10, 500, 50),
}
USUAL = ("DP-CNN", "ResNet-18")


def model_of(name: str) -> Any:
    sys.path.insert(0, str(Path(__file__).parent))
    import step
    from torch import nn

    from noisewise import models

    made: dict[str, Callable[[], nn.Module]] = {
        "DP-CNN": lambda: models.build("dp-cnn", (3, 32, 32), 10, 0),
        "ResNet-18": step.resnet18,
        "MNIST CNN": step.mnist_cnn,
        "MLP": step.mlp,
        "tiny": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)),
    }
    return made[name]()


class Clock:
    """Seconds by part; those of a part within another count for the inner one alone."""

    def __init__(self, device: str):
        self.seconds: dict[str, float] = {}
        self._within = ["other"]
        self._device, self._last = device, time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._tick()
        self._within.append(name)
        try:
            yield
        finally:
            self._tick()
            self._within.pop()

    def taken(self) -> dict[str, float]:
        """What was counted since the last time."""
        self._tick()
        seconds, self.seconds = self.seconds, {}
        return seconds

    def around(self, owner: Any, name: str, part: str) -> None:
        """Count a function of a module or class as a part; what other threads do costs nothing."""
        function = getattr(owner, name)

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*args, **kwargs)
            with self.part(part):
                return function(*args, **kwargs)

        setattr(owner, name, timed)

    def _tick(self) -> None:
        if self._device == "cuda":
            import torch

            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[self._within[-1]] = self.seconds.get(self._within[-1], 0.0) + now - self._last
        self._last = now


def count_kernels(clock: Clock) -> list[float]:
    """Seconds of each kernel that is compiled, or found in the cache; waiting for them is a part."""
    took: list[float] = []
    if find_spec("triton") is None:
        return took
    import triton
    from triton.runtime.jit import JITFunction

    compile_one = triton.compiler.compile

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        kernel = compile_one(*args, **kwargs)
        took.append(time.perf_counter() - start)
        return kernel

    triton.compiler.compile = timed
    clock.around(JITFunction, "_do_compile", "compiling kernels")
    if hasattr(triton, "AsyncCompileMode"):
        clock.around(triton.AsyncCompileMode, "__exit__", "compiling kernels")
    return took


def first_run(name: str, device: str, steps: int) -> dict[str, Any]:
    """In this process, which has done nothing yet."""
    seconds: dict[str, float] = {}
    import torch

    import noisewise as nw
    from noisewise.losses import cross_entropy

    seconds["imports"] = time.perf_counter() - BEGUN
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    shape, classes, units, batch = WORKLOADS[name]
    data = (torch.randn(units, *shape), torch.randint(0, classes, (units,)))
    start = time.perf_counter()
    model = model_of(name).to(device)
    seconds["model to the device"] = time.perf_counter() - start
    start = time.perf_counter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seconds["optimizer (torch imports its compiler)"] = time.perf_counter() - start

    from noisewise.persample import engines, examine, replay
    from noisewise.training import resident
    from noisewise.training import start as beginning

    clock = Clock(device)
    clock.around(beginning, "examine", "examination")
    clock.around(beginning, "check_values", "values of the data")
    clock.around(beginning, "mark_of", "identity of the data")
    clock.around(resident.Resident, "of", "data to the device")
    clock.around(replay.Replay, "_check", "first pass on padding")
    clock.around(replay.Replay, "__init__", "captures")
    for module in (engines, sys.modules[examine.__module__]):
        clock.around(module, "follow", "proof")
    took = count_kernels(clock)
    plan = nw.Mechanism(sampler=nw.Poisson(units, batch), clip=nw.clipping.Flat(1.0), noise_multiplier=1.0, steps=steps)
    state, runtime = nw.State.start(plan), nw.Runtime(capture=None if device == "cuda" else True)
    clock.taken()

    def step() -> dict[str, float]:
        nw.private_step(model, data, cross_entropy, optimizer, state, runtime)
        return clock.taken()

    seconds |= step()
    seconds["rest of the first step"] = seconds.pop("other")
    kernels = len(took)
    later = [step() for _ in range(steps - 1)]
    usual = median(sum(parts.values()) for parts in later)
    captured = [sum(parts.values()) for parts in later if "captures" in parts]
    return {
        "parts": seconds,
        "first step": sum(value for part, value in seconds.items() if part not in BEFORE),
        "later captures": sum(captured) - usual * len(captured),
        "a step": usual,
        "sizes": sorted(size for size, _ in state.captured.replays),
        "compiled": {"kernels": kernels, "later": len(took) - kernels, "seconds": sum(took)},
    }


BEFORE = ("imports", "model to the device", "optimizer (torch imports its compiler)")


def in_a_process(name: str, device: str, steps: int, cache: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--device", device, "--only", name, "--steps", str(steps), "--alone"]
    environment = os.environ | {"TRITON_CACHE_DIR": cache}
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"process": time.perf_counter() - start}


def shown(title: str, run: dict[str, Any]) -> None:
    compiled = run["compiled"]
    print(f"{title}: {run['first step']:.2f} s in the first step, then {run['a step'] * 1e3:.1f} ms a step", flush=True)
    for part, seconds in sorted(run["parts"].items(), key=lambda item: -item[1]):
        print(f"  {seconds:7.2f} s  {part}{' (before it)' if part in BEFORE else ''}")
    print(
        f"  {run['later captures']:7.2f} s  captures in later steps; sizes {run['sizes']}\n"
        f"  {compiled['kernels']} kernels, {compiled['later']} more later, {compiled['seconds']:.2f} s in all threads",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", default=",".join(USUAL), help=f"some of {', '.join(WORKLOADS)}, separated by commas")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--commit", default="", help="of the code, where it is no git folder")
    parser.add_argument("--out", type=Path, default=None, help="folder for start.json")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(first_run(args.only, args.device, args.steps)))
        return
    runs: dict[str, Any] = {}
    for name in args.only.split(","):
        with tempfile.TemporaryDirectory() as cache:
            for kept in ("empty cache", "filled cache"):
                run = in_a_process(name, args.device, args.steps, cache)
                runs.setdefault(name, {})[kept] = run
                shown(f"{name}, {kept}", run)
    if args.out:
        content = {
            "command": "python benchmarks/start.py", "commit": args.commit, "hardware": hardware(args.device), "runs": runs,
        }  # fmt: skip
        (args.out / "start.json").write_text(json.dumps(content, indent=1) + "\n")


def hardware(device: str) -> dict[str, Any]:
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {"machine": name, "cores": os.cpu_count(), "versions": versions}


if __name__ == "__main__":
    main()
