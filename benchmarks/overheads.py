"""What `train` costs beside its steps: epsilon along a run, calibration, long plans, absurd plans.

    python benchmarks/overheads.py [--out FOLDER]

Seconds are those of the processor, in one process and one thread, so that other work on the machine does not count. A run's
share of epsilon is the time in its readings and in the ledger's own at the end, over the time of all of `train`, with a
callback that is told every reading; the plan's own epsilon is known by then, from its calibration, as in the README's example.
Of a plan with given noise nobody has asked for it before: with nobody who watches the run it is not computed before
`trained.history` is looked at, else beside the steps, in a thread: how long the steps wait for it is told as a share of the
run's time by the clock, in the median of five runs. Longer runs train the README's model by longer plans.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import noisewise as nw
from noisewise.accounting import accountants
from noisewise.accounting.events import gaussian
from noisewise.errors import ConfigError
from noisewise.training import readings

warnings.filterwarnings("ignore")
RUNS = (140, 1_000)  # steps; the first is the README's example
LIMITS = {
    "calibration of 20 epochs": 3.0,
    "calibration of 10,000 steps": 3.0,
    "PLD of 100,000 steps": 2.0,
    "a plan of a million epochs": 2.0,
}


def seconds(compute: Callable[[], Any], *, anew: bool = True) -> float:
    """Processor time of one call, nothing remembered from an earlier one."""
    if anew:
        accountants._pld_epsilon.cache_clear()
    start = time.process_time()
    compute()
    return time.process_time() - start


def plan(steps: int, n: int = 50_000, batch_size: int = 256) -> nw.Mechanism:
    return nw.Mechanism(sampler=nw.Poisson(n=n, batch_size=batch_size), clip=nw.clipping.Flat(1.0), steps=steps)


def refused() -> None:
    try:
        accountants.pld_epsilon([(gaussian(nw.Poisson(50_000, 256), 1.0), 195_312_500)], 1e-6, "add-remove")
    except ConfigError:
        return
    raise AssertionError("a plan of a million epochs was answered: say so in the table")


def computations() -> dict[str, float]:
    events = [(gaussian(nw.Poisson(50_000, 256), 1.0), 100_000)]
    return {
        "calibration of 20 epochs": seconds(lambda: plan(3_907).calibrated(epsilon=3, delta=1e-6)),
        "calibration of 10,000 steps": seconds(lambda: plan(10_000).calibrated(epsilon=3, delta=1e-6)),
        "PLD of 100,000 steps": seconds(lambda: accountants.pld_epsilon(events, 1e-6, "add-remove")),
        "a plan of a million epochs": seconds(refused),
    }


def unit_losses(model: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def run(steps: int, *, anew: bool, watched: bool) -> dict[str, float]:
    """Seconds of a run, of epsilon within it, and how long steps wait; `anew`: nobody has asked for the plan's own before."""
    callbacks = [lambda told: None] if watched else []
    train, _, _ = nw.load("digits")
    layers = (torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
    model = torch.nn.Sequential(*layers)
    mechanism = nw.Mechanism(
        sampler=nw.Poisson(n=len(train), batch_size=256), clip=nw.clipping.Flat(1.0), steps=steps
    ).calibrated(epsilon=3, delta=1e-5)
    spent, waited = [0.0], [0.0]

    def timed(function: Callable[..., Any], clock: Callable[[], float], total: list[float]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            try:
                return function(*args, **kwargs)
            finally:
                total[0] += clock() - start

        return call

    before = readings.readings_of, nw.Ledger.epsilon, readings.Beside.after
    readings.readings_of = timed(before[0], time.thread_time, spent)
    nw.Ledger.epsilon = timed(before[1], time.thread_time, spent)  # type: ignore[method-assign]
    readings.Beside.after = timed(before[2], time.perf_counter, waited)  # type: ignore[method-assign]
    began = time.perf_counter()
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
        whole = seconds(
            lambda: nw.train(
                model, train, unit_losses, mechanism, optimizer, delta=1e-5, progress=False, callbacks=callbacks
            ),
            anew=anew,
        )
    finally:
        clock = time.perf_counter() - began
        readings.readings_of, nw.Ledger.epsilon, readings.Beside.after = before  # type: ignore[method-assign]
    shares = {"share": spent[0] / whole, "waiting": waited[0] / clock}
    return {"steps": steps, "seconds": whole, "epsilon_seconds": spent[0], **shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=None, help="folder for overheads.json")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    plan(10).calibrated(epsilon=3, delta=1e-5)  # imports
    once = computations()
    for name, took in once.items():
        print(f"{name:34} {took:6.2f} s, at most {LIMITS[name]:g}", flush=True)
    runs = []
    for steps in RUNS:
        watched = [run(steps, anew=True, watched=True) for _ in range(5)]
        given = {
            "share_with_given_noise": run(steps, anew=True, watched=False)["share"],
            "share_with_given_noise_watched": statistics.median(found["share"] for found in watched),
            "waiting_with_given_noise_watched": statistics.median(found["waiting"] for found in watched),
        }
        runs.append(run(steps, anew=False, watched=True) | given)
        keys = ("seconds", "epsilon_seconds", "share", *given)
        whole, spent, *shares = (runs[-1][key] for key in keys)
        told = "; ".join(f"{share:.1%}" for share in shares)
        print(f"{steps:>7,} steps {whole:7.2f} s, epsilon {spent:.2f} s ({told})", flush=True)
    if out:
        packages = ("torch", "numpy", "dp-accounting")
        content = {
            "command": "python benchmarks/overheads.py --out benchmarks/results",
            "hardware": {"machine": platform.machine(), "cores": os.cpu_count(), "threads": 1},
            "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
            "runs": runs,
            "seconds": once,
            "limits": LIMITS,
        }
        (out / "overheads.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
