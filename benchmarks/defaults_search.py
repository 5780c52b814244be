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
KNOBS = {  # constants of the formulas, and what was tried; the first trial takes START. Below, s = n epsilon.
    "knots_at": (5.0, 10.0, 15.0, 30.0),  # knots = (s / features / knots_at)^power
    "power": (1 / 3, 0.5),
    "most_knots": (4, 6, 8),
    "straight": (0, 1),  # numbers themselves beside the hats
    "scale": ("none", "cap"),  # soft, all rows shortened below 1, lost 0.014 of accuracy and 0.3 of variance
    "bound": (0.25, 0.5, 1.0, 2.0),  # at s = 3000
    "widening": (0.0, 0.25, 0.5),  # bound (s / 3000)^widening, from a quarter to 2
    "travel": (0.03, 0.06, 0.12, 0.18, 0.25, 0.35),  # lr bound steps / (1 - momentum) per s
    "crowd": (0.0, 0.25, 0.5),  # travel (2 / outputs)^crowd
    "rate": (2.0, 4.0, 8.0, 16.0, 24.0),  # the largest learning rate, in quarters of what is stable without clipping
    "fewest": (50, 100),
    "most": (200, 400, 600),
    "average": (0, 5, 8, 15),  # moving average over steps / average; 0: none
    "share": (0.125, 0.25, 0.5),  # of the rows in a batch
    "hidden": (0, 16, 32),
    "hidden_from": (150.0, 300.0, 1000.0),  # s / features from which there is a hidden layer
}
START = {
    "knots_at": 15.0, "power": 0.5, "most_knots": 8, "straight": 1, "scale": "cap", "bound": 1.0, "widening": 0.0,
    "travel": 0.25, "crowd": 0.25, "rate": 8.0, "fewest": 50, "most": 400, "average": 8, "share": 0.25, "hidden": 16,
    "hidden_from": 300.0,
}  # fmt: skip
START_OF_REGRESSIONS = START | {
    "power": 1 / 3,
    "bound": 0.5,
    "widening": 0.25,
    "travel": 0.06,
    "rate": 4.0,
    "hidden": 0,
}


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
        case "cap":
            return x * (4 / length.sqrt().clamp(min=1e-6)).clamp(max=1)
    return x


def planned(n: int, width: int, outputs: int, epsilon: float, regression: bool, knobs: dict) -> dict:
    """Steps, rate and map of a trial for one table."""
    signal = n * epsilon
    knots = min(knobs["most_knots"], round((signal / width / knobs["knots_at"]) ** knobs["power"]))
    bound = min(2.0, max(0.25, knobs["bound"] * (signal / 3000) ** knobs["widening"]))
    squared = 10.0  # length of a usual row
    largest = knobs["rate"] * 3.8 / squared / (2 if regression else 0.5) / 4
    travel = knobs["travel"] * signal / bound * (1 if regression else (2 / outputs) ** knobs["crowd"])
    steps = max(knobs["fewest"], min(knobs["most"], math.ceil(travel * (1 - MOMENTUM) / largest)))
    lr = min(largest, travel * (1 - MOMENTUM) / steps)
    hidden = knobs["hidden"] if signal / width >= knobs["hidden_from"] else 0
    decay = 1 - knobs["average"] / steps if knobs["average"] else None
    return {"knots": knots, "steps": steps, "lr": lr, "bound": bound, "decay": decay, "hidden": hidden}


def trained(x: Tensor, y: Tensor, outputs: int, plan: dict, knobs: dict, epsilon: float, runs: int, seed: int) -> list:
    """Weights after private training: `runs` runs side by side."""
    n, width, hidden = len(y), x.shape[1], plan["hidden"]
    entropy = torch.Generator().manual_seed(seed)
    share, bound, steps = knobs["share"], plan["bound"], plan["steps"]
    private = epsilon < math.inf
    sigma = 1.02 * share * math.sqrt(steps) / gaussian_mu(epsilon, default_delta(n)) if private else 0.0
    bound = bound if private else 1e9
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
            noise = sigma * bound * torch.randn(total.shape, generator=entropy) if private else 0.0
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


def trial(
    name: str, n: int, epsilon: float, knobs: dict, runs: int = 2, seed: int = 0, twin_lr: float | None = None
) -> dict:
    """Score of constants on one cell: accuracy, or the share of variance explained, on held-out rows."""
    began = time.monotonic()
    x, y, held, truth = cut(name, n)
    outputs = 1 if name in REGRESSIONS else int(max(y.max(), truth.max())) + 1
    plan = planned(len(y), x.shape[1], outputs, epsilon, name in REGRESSIONS, knobs)
    a, b = (features(part, plan["knots"], knobs["straight"], knobs["scale"]) for part in (x, held))
    seen = (a != 0).any(0) | (b != 0).any(0)
    if twin_lr is not None:
        plan["lr"], epsilon = twin_lr, math.inf
    weights = trained(a[:, seen], y, outputs, plan, knobs, epsilon, runs, seed)
    out = forward(b[:, seen], weights)[0]
    if name in REGRESSIONS:
        scores = 1 - (out[:, :, 0] - truth).square().mean(1) / truth.var(unbiased=False)
    else:
        scores = (out.argmax(2) == truth).float().mean(1)
    return {"plan": plan, "score": float(scores.mean()), "seconds": time.monotonic() - began}


def sampled(number: int, regression: bool) -> dict:
    """The constants of a trial, by a public seed: the start, then one constant changed, then several."""
    start = START_OF_REGRESSIONS if regression else START
    changes = [{name: value} for name, values in KNOBS.items() for value in values if value != start[name]]
    if number <= len(changes):
        return start | (changes[number - 1] if number else {})
    draw = random.Random(number)
    return {name: draw.choice(values) if draw.random() < 0.35 else start[name] for name, values in KNOBS.items()}


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
                running.add(pool.submit(_one, number, *cell, sampled(number, cell[0] in REGRESSIONS)))
            finished = next(as_completed(running))
            running.discard(finished)
            file.write(json.dumps(finished.result()) + "\n")
            file.flush()
    print(f"{number} trials begun")
