"""The search behind `noisewise.workflow.recommended`: constants of its formulas, tried on public stand-ins.

One trial is a set of constants; it is run on every stand-in and training size at epsilon 1 and 3. The linear and the
one-layer network are trained here by closed forms of the clipped sum, several runs side by side, with the noise of
Gaussian differential privacy for the number of steps (two percent more for the sampling): the same steps as the library's
to rounding, in a fraction of the time. What is measured afterwards is trained by the library.
"""

from __future__ import annotations

import json
import math
import random
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path

import torch
from standins import CELLS, REGRESSIONS, parts
from torch import Tensor

from noisewise.accounting.defaults import default_delta

EPSILONS = (1.0, 3.0)
MOMENTUM = 0.9
KNOBS = {  # constants of the formulas, and what was tried; the first trial takes START
    "knots_at": (50.0, 150.0, 500.0, 1500.0),  # knots = (s / knots_at)^power with s = n epsilon
    "power": (0.25, 1 / 3, 0.5),
    "most_knots": (4, 8, 12),
    "straight": (0, 1),  # numbers themselves beside the hats
    "scale": ("none", "soft", "cap"),
    "bound": (0.1, 0.25, 0.5, 1.0, 2.0),
    "travel": (0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0),  # lr bound steps / (1 - momentum) per n epsilon
    "rate": (1.0, 2.0, 4.0, 8.0, 16.0),  # the largest learning rate, in quarters of what is stable without clipping
    "fewest": (25, 50, 100),
    "most": (150, 300, 600),
    "average": (0, 3, 8, 20),  # moving average over steps / average; 0: none
    "share": (0.125, 0.25, 0.5),  # of the rows in a batch
    "hidden": (0, 16, 64),
}
START = {
    "knots_at": 150.0, "power": 1 / 3, "most_knots": 8, "straight": 1, "scale": "cap", "bound": 0.5, "travel": 0.25,
    "rate": 4.0, "fewest": 50, "most": 300, "average": 8, "share": 0.25, "hidden": 0,
}  # fmt: skip


@cache
def gaussian_mu(epsilon: float, delta: float) -> float:
    """The Gaussian mechanism's signal to noise at (epsilon, delta)."""
    from scipy.optimize import brentq
    from scipy.special import ndtr

    def excess(mu: float) -> float:
        return ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon) * ndtr(-epsilon / mu - mu / 2) - delta

    return brentq(excess, 1e-5, 50)


def features(x: Tensor, knots: int, straight: bool, scale: str) -> Tensor:
    """The table model's map; see `noisewise.models.table`."""
    if knots:
        places = torch.tensor([sign * place / knots for place in range(1, knots + 1) for sign in (-1, 1)])
        hats = (1 - knots * (x[:, :, None] - places).abs()).clamp(min=0).flatten(1)
        x = torch.cat([x, hats], 1) if straight else hats
    length = x.square().sum(1, keepdim=True)
    match scale:
        case "soft":
            return x / (1 + length).sqrt()
        case "cap":
            return x * (4 / length.sqrt().clamp(min=1e-6)).clamp(max=1)
    return x


def planned(n: int, width: int, epsilon: float, regression: bool, knobs: dict) -> dict:
    """Steps, rate and map of a trial for one table."""
    signal = n * epsilon
    knots = min(knobs["most_knots"], round((signal / knobs["knots_at"]) ** knobs["power"]))
    squared = {"none": 10.0, "soft": 1.0, "cap": 10.0}[knobs["scale"]]
    largest = knobs["rate"] * 3.8 / squared / (2 if regression else 0.5) / 4
    travel = knobs["travel"] * signal / knobs["bound"] * 10 / squared
    steps = max(knobs["fewest"], min(knobs["most"], math.ceil(travel * (1 - MOMENTUM) / largest)))
    lr = min(largest, travel * (1 - MOMENTUM) / steps)
    return {"knots": knots, "steps": steps, "lr": lr, "decay": 1 - knobs["average"] / steps if knobs["average"] else None}


def trained(x: Tensor, y: Tensor, outputs: int, plan: dict, knobs: dict, epsilon: float, runs: int, seed: int) -> list:
    """Weights after private training: `runs` runs side by side."""
    n, width, hidden = len(y), x.shape[1], knobs["hidden"]
    entropy = torch.Generator().manual_seed(seed)
    share, bound, steps = knobs["share"], knobs["bound"], plan["steps"]
    sigma = 1.02 * share * math.sqrt(steps) / gaussian_mu(epsilon, default_delta(n))
    weights = [torch.zeros(runs, width, outputs), torch.zeros(runs, 1, outputs)]
    if hidden:
        start = (torch.rand(runs, width, hidden, generator=entropy) * 2 - 1) / math.sqrt(width)
        weights += [start, torch.zeros(runs, 1, hidden), torch.zeros(runs, hidden, outputs)]
    moving, averaged = [torch.zeros_like(w) for w in weights], [w.clone() for w in weights]
    targets = torch.nn.functional.one_hot(y, outputs).float() if y.dtype == torch.int64 else y[:, None]
    squares = x.square().sum(1)
    for step in range(steps):
        drawn = (torch.rand(n, generator=entropy) < share).nonzero()[:, 0]
        a, length = x[drawn], squares[drawn]
        out, inner = forward(a, weights)
        errors = out.softmax(2) - targets[drawn] if y.dtype == torch.int64 else 2 * (out - targets[drawn])
        norms = errors.square().sum(2) * (length + 1 + (inner.square().sum(2) if hidden else 0))
        if hidden:
            back = (errors @ weights[4].transpose(1, 2)) * (1 - inner.square())
            norms += back.square().sum(2) * (length + 1)
        factors = (bound / norms.sqrt().clamp(min=1e-12)).clamp(max=1)[:, :, None]
        errors = errors * factors
        sums = [a.T @ errors, errors.sum(1, keepdim=True)]
        if hidden:
            back = back * factors
            sums += [a.T @ back, back.sum(1, keepdim=True), inner.transpose(1, 2) @ errors]
        decay = min(plan["decay"] or 0.0, (2 + step) / (11 + step))
        for place, total in enumerate(sums):
            noise = sigma * bound * torch.randn(total.shape, generator=entropy)
            moving[place] = MOMENTUM * moving[place] + (total + noise) / (share * n)
            weights[place] = weights[place] - plan["lr"] * moving[place]
            averaged[place] = decay * averaged[place] + (1 - decay) * weights[place]
    return averaged


def forward(x: Tensor, weights: list) -> tuple[Tensor, Tensor]:
    """Outputs `[runs, n, outputs]`, and the hidden layer's."""
    out = x @ weights[0] + weights[1]
    if len(weights) == 2:
        return out, out
    inner = (x @ weights[2] + weights[3]).tanh()
    return out + inner @ weights[4], inner


@cache
def cut(name: str, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return parts(name, n)


def trial(name: str, n: int, epsilon: float, knobs: dict, runs: int = 2, seed: int = 0) -> dict:
    """Score of constants on one cell: accuracy, or the share of variance explained, on held-out rows."""
    began = time.monotonic()
    x, y, held, truth = cut(name, n)
    plan = planned(len(y), x.shape[1], epsilon, name in REGRESSIONS, knobs)
    a, b = (features(part, plan["knots"], knobs["straight"], knobs["scale"]) for part in (x, held))
    seen = (a != 0).any(0) | (b != 0).any(0)
    outputs = 1 if name in REGRESSIONS else int(max(y.max(), truth.max())) + 1
    weights = trained(a[:, seen], y, outputs, plan, knobs, epsilon, runs, seed)
    out = forward(b[:, seen], weights)[0]
    if name in REGRESSIONS:
        scores = 1 - (out[:, :, 0] - truth).square().mean(1) / truth.var(unbiased=False)
    else:
        scores = (out.argmax(2) == truth).float().mean(1)
    return {"plan": plan, "score": float(scores.mean()), "seconds": time.monotonic() - began}


def sampled(number: int) -> dict:
    """The constants of a trial, by a public seed: the start, then one constant changed, then several."""
    changes = [{name: value} for name, values in KNOBS.items() for value in values if value != START[name]]
    if number <= len(changes):
        return START | (changes[number - 1] if number else {})
    draw = random.Random(number)
    return {name: draw.choice(values) if draw.random() < 0.35 else START[name] for name, values in KNOBS.items()}


def _one(number: int, name: str, n: int, epsilon: float, knobs: dict) -> dict:
    torch.set_num_threads(1)
    return {"trial": number, "table": name, "n": n, "epsilon": epsilon, "knobs": knobs} | trial(name, n, epsilon, knobs)


def search(workers: int, out: Path, minutes: float, tables: list[str] | None = None) -> None:
    """Run trials until the time is over; each finished cell is a line of `out`, and is not run again."""
    end = time.monotonic() + 60 * minutes
    done = set()
    if out.exists():
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        done = {(line["trial"], line["table"], line["n"], line["epsilon"]) for line in lines}
    cells = [(name, n, e) for name in tables or CELLS for n in CELLS[name] for e in EPSILONS]
    out.parent.mkdir(parents=True, exist_ok=True)
    number = 0
    with ProcessPoolExecutor(workers) as pool, out.open("a") as file:
        running = set()
        jobs = ((t, *cell) for t in range(10**6) for cell in cells if (t, *cell) not in done)
        while time.monotonic() < end or running:
            while len(running) < 2 * workers and time.monotonic() < end:
                number, *cell = next(jobs)
                running.add(pool.submit(_one, number, *cell, sampled(number)))
            finished = next(as_completed(running))
            running.discard(finished)
            file.write(json.dumps(finished.result()) + "\n")
            file.flush()
    print(f"{number} trials begun")
