"""Random search for records: settings are tried on held-out training images only; the test part is never read.

One line of JSON for each model that was trained. A search goes on where its file ends; several processes may search at once,
each into a file of its own, and share a GPU.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from records_linear import Candidate, products, scores, train_side_by_side

import noisewise as nw
from noisewise.accounting import smallest_noise
from noisewise.data import Data, images
from noisewise.data.base import split
from noisewise.models.heads import LENGTH, Centred
from noisewise.recipes.centre import planned_ledger
from noisewise.recipes.features import Features
from noisewise.recipes.learned import Learned
from noisewise.recipes.patches import Patches
from noisewise.recipes.scattered import Scattering
from noisewise.recipes.settings import course_for
from noisewise.recipes.transform import features_of
from noisewise.workflow.recipe_specs import parsed

DELTA = 1e-5
HELD_OUT = 5000
FOLDER = Path(__file__).parent / "results" / "records"
NOISE = FOLDER / "noise.json"
SIDE_BY_SIDE = 32  # models that share their batches
PLANS = 3  # (batch, epochs) for each set of features and each epsilon
SHARES, EPOCHS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0), (10, 20, 40, 80, 160, 320)
MOST_STEPS = 700
MOST_NUMBERS = 40_000  # of a unit: several searches share a GPU's memory
CENTRE = 20.0  # noise multiplier of the released mean of features, where it is released


# ------------------------------------------------------------------------------------------------ what may be chosen

SPACE: dict[str, Sequence[Any]] = {
    "scales": ((2,), (2,), (3,), (2, 3), (1, 2), (1, 2, 3)),
    "angles": (8, 8, 8, 6, 12),
    "scaling": ("spectrum", "leaves", "textured"),
    "whiten": (0.0, 0.5, 0.75, 1.0),
    "power": (1.0, 0.75, 0.5),
    "chroma": (0.0, 1.0, 2.0, 3.0),
}
VIEWS = {
    "colour": (
        ("same", "flip"), ("same", "flip"), ("same",), ("same", "flip", "up", "down", "flip+up", "flip+down"),
        ("same", "flip", "left", "right", "flip+left", "flip+right"),
    ),
    "grey": (("same",), ("same", "up", "down", "left", "right"), ("same", "flip")),
    "digits": (("same",), ("same", "up", "down", "left", "right")),
}  # fmt: skip
LEARNING: dict[str, Sequence[Any]] = {
    "rate": (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    "bound": (0.1, 1.0, 10.0, 30.0, 60.0, 100.0),
    "momentum": (0.0, 0.9, 0.9),
    "schedule": ("constant", "linear", "cosine:last=0.1"),
    "averaged": (0.0, 0.02, 0.05, 0.1, 0.25),
}
SMALL = {"digits"}  # embedded images of 8x8 pixels: two scales and a view each way


LEARNED: dict[str, Sequence[Any]] = {
    "stages": ((3,), (3, 4), (2, 3), (2, 3, 4), (1, 2, 3, 4)),
    "grid": (2, 4, 4, 8),
    "whiten": (0.5, 0.0, 1.0),
    "late": (1.0, 0.5, 0.35, 0.7),
    "patches": (0.0, 0.5, 1.0, 2.0),
    "count": (512, 256),
    "side": (6, 5),
}


PATCHED: dict[str, Sequence[Any]] = {
    "count": (512, 256, 1024, 2048),
    "side": (6, 5, 7),
    "kind": ("patchwork", "woven", "textured"),
    "threshold": (0.5, 0.0, 1.0),
    "grid": (4, 3, 2),
    "whiten": (0.5, 0.25, 0.75, 0.0),
    "scattering": (0.0, 0.5, 1.0, 2.0),
}


def space_of(
    name: str, channels: int, side: int, recipe: str = "scattering-linear", weights: str | None = None
) -> dict[str, Sequence[Any]]:
    """Features that may be chosen for a set of images; `weights`: those of an encoder."""
    if weights is not None:
        space = {**LEARNED, "weights": (weights,)}
    elif recipe == "patches-linear":
        space = dict(PATCHED)
    else:
        space = dict(SPACE)
        space["scales"] = tuple(scales for scales in SPACE["scales"] if 2 * 2 ** max(scales) <= side)
        if channels != 3:
            space["chroma"] = (0.0,)
    space["views"] = VIEWS["digits" if name in ("mnist", "digits") else "colour" if channels == 3 else "grey"]
    space["average"] = (True, True, True, False)
    space["centre"] = (CENTRE, CENTRE, 0.0)
    space["waves"], space["pitch"] = (0, 0, 2048, 4096), (1.0, 0.5, 1.5, 2.0)
    return space


def drawn_features(
    rng: random.Random, space: dict[str, Sequence[Any]], best: dict[str, Any] | None, usual: Mapping[str, Any]
) -> Features:
    """Those of the recipe as it is at first; then anything, or more often the best so far with one or two choices changed."""
    if best is None:
        return features_from({name: usual.get(name, values[0]) for name, values in space.items()})
    best = described(features_from(best))  # a line that is older than a setting has its usual value
    chosen = {name: rng.choice(values) for name, values in space.items()}
    if rng.random() < 0.6:
        changed = rng.sample(sorted(space), rng.choice((1, 2)))
        chosen = {name: chosen[name] if name in changed else best[name] for name in space}
    if len(chosen["views"]) == 1:
        chosen["average"] = True
    if not chosen["average"]:  # side by side they need memory
        chosen["views"] = chosen["views"][:2]
    if not chosen["waves"]:
        chosen["pitch"] = space["pitch"][0]  # of nothing
    return features_from(chosen)


def features_from(raw: dict[str, Any]) -> Features:
    """Features of a line of results: those of an encoder have weights, patches a side."""
    chosen = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
    return Learned(**chosen) if "weights" in chosen else Patches(**chosen) if "side" in chosen else Scattering(**chosen)


def described(features: Features) -> dict[str, Any]:
    """The inverse."""
    return {name: value for name, value in asdict(cast(Any, features)).items() if name != "shape"}


def drawn_candidates(rng: random.Random, best: Candidate | None, count: int) -> list[Candidate]:
    """Ways to learn, half of them near the best so far; none twice."""
    made: dict[Candidate, None] = {}
    while len(made) < count:
        chosen = {name: rng.choice(values) for name, values in LEARNING.items()}
        if best is not None and rng.random() < 0.5:
            changed = rng.sample(sorted(LEARNING), 2)
            chosen = {name: chosen[name] if name in changed else getattr(best, name) for name in LEARNING}
        made[Candidate(**chosen)] = None
    return list(made)


@dataclass(frozen=True)
class Held:
    """Training images without what is held out, and what is held out; on the device."""

    name: str
    train: Data
    look: Data
    rows: tuple[torch.Tensor, torch.Tensor]  # of all: trained on, held out

    @property
    def n(self) -> int:
        """Images that are trained on."""
        return len(self.train)


def training_images(name: str, device: str) -> Data:
    """All official training images; the loader's test part is dropped unread."""
    return _on(getattr(images, name)(0, 0).train, device)


def held_out(name: str, whole: Data, seed: int) -> Held:
    """Training images without some that are held out, cut by a seed."""
    held, rest = cut(len(whole), seed, whole.y.device)
    return Held(name, whole.take(rest), whole.take(held), (rest, held))


def cut(count: int, seed: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that are held out, and the others."""
    size = min(HELD_OUT, count // 6)
    rows = torch.arange(count)
    look, train = split(Data(rows, rows), 1000 + seed, size)
    return look.x.to(device), train.x.to(device)


def _on(data: Data, device: str) -> Data:
    return Data(data.x.to(device), data.y.to(device), classes=data.classes, public=data.public)


# ----------------------------------------------------------------------------------------------------------- noise


def noise_for(n: int, batch: int, steps: int, epsilon: float, centre: float = 0.0) -> float:
    """The least noise for a plan, from the file of those already found; else calibrated, and remembered for this process."""
    key = f"{n} {batch} {steps} {epsilon:g}" + (f" {centre:g}" if centre else "")
    if not _NOISE and NOISE.exists():
        _NOISE.update(json.loads(NOISE.read_text()))
    if key not in _NOISE:
        before = list(planned_ledger(n, centre, "add-remove", "row").events()) if centre else []

        def events(noise: float) -> list[Any]:
            return [*before, *nw.Mechanism(sampler=nw.Poisson(n, batch), steps=steps, noise_multiplier=noise).events()]

        _NOISE[key] = float(smallest_noise(events, epsilon, DELTA, "add-remove"))
    return _NOISE[key]


_NOISE: dict[str, float] = {}


def plans(n: int) -> list[tuple[int, int]]:
    """Batches and epochs that are tried."""
    shown = [(round(share * n), epochs) for share in SHARES for epochs in EPOCHS]
    return [(batch, epochs) for batch, epochs in shown if 8 <= nw.steps_for(epochs, n, batch) <= MOST_STEPS]


def write_noise(sizes: Sequence[int], epsilons: Sequence[float]) -> None:
    """Calibrate every plan once, so that a search on a GPU does not wait for it."""
    for n in sizes:
        for epsilon in epsilons:
            for batch, epochs in plans(n):
                for centre in (0.0, CENTRE):
                    noise_for(n, batch, nw.steps_for(epochs, n, batch), epsilon, centre)
            NOISE.parent.mkdir(parents=True, exist_ok=True)
            NOISE.write_text(json.dumps(dict(sorted(_NOISE.items())), indent=0) + "\n")
            print(f"n {n}, epsilon {epsilon:g}: {len(_NOISE)} plans", flush=True)


# ------------------------------------------------------------------------------------------------------- the search


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Results so far; a line that was cut off by an interruption is left out."""
    made = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            made.append(json.loads(line))
        except ValueError:
            continue
    return made


def best_of(lines: Sequence[dict[str, Any]], epsilon: float) -> dict[str, Any] | None:
    """The line with the highest accuracy at an epsilon."""
    fits = [line for line in lines if line["epsilon"] == epsilon and not math.isnan(line["accuracy"] or math.nan)]
    return max(fits, key=lambda line: line["accuracy"], default=None)


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is tried: seconds at most, models side by side, plans for each set of features and epsilon, epochs at most."""

    seconds: float
    models: int = SIDE_BY_SIDE
    plans: int = PLANS
    epochs: int = EPOCHS[-1]


def search(
    name: str,
    epsilons: Sequence[float],
    effort: Effort,
    *,
    out: Path,
    device: str,
    seed: int,
    recipe: str = "scattering-linear",
    weights: str | None = None,
    most: int | None = None,
    first: Sequence[str] = (),
) -> int:
    """Try settings until the time is up (or `most` sets of features were tried); gives how many models were trained.

    `first`: features that are looked at before any are drawn, `stages=3,patches=1`; what is not said is as usual.
    """
    if device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
    ends, tried = time.monotonic() + effort.seconds, 0
    whole = training_images(name, device)
    parts, before = held_out(name, whole, seed), lines_of(out)
    rng = random.Random(f"{name} {seed} {len(before)}")
    lane = recipe if weights is None else "made-up-linear"
    space = space_of(name, whole.x.shape[1], whole.x.shape[2], lane, weights)
    waiting = [parsed(f"{lane}:{text}")[1] for text in first]
    if unknown := {name for given in waiting for name in given} - set(space):
        raise SystemExit(f"first: {', '.join(sorted(unknown))} is not searched; what is: {', '.join(space)}.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        while time.monotonic() < ends and (most is None or tried < most):
            tried += 1
            epsilon = rng.choice(list(epsilons))
            best, course = best_of(before, epsilon), course_for(lane, parts.n, epsilon, int(whole.x.shape[1]), name)
            if waiting:
                features = drawn_features(rng, space, None, {**course.features, **waiting.pop(0)})
            else:
                features = drawn_features(rng, space, best["features"] if best else None, course.features)
            try:
                for line in _looked_at(whole, parts, features, epsilons, before, rng, effort, ends):
                    before.append(line)
                    file.write(json.dumps(line) + "\n")
                    file.flush()
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                print(f"{name}: no memory for {features}", flush=True)
                continue
            words = [
                f"epsilon {epsilon:g}: {100 * line['accuracy']:.2f} %"
                for epsilon in epsilons
                if (line := best_of(before, epsilon)) is not None
            ]
            left = ends - time.monotonic()
            print(f"{name} {left:.0f} s left, {len(before)} models, {', '.join(words)}", flush=True)
    return len(before)


def _looked_at(
    whole: Data,
    parts: Held,
    features: Features,
    epsilons: Sequence[float],
    before: Sequence[dict[str, Any]],
    rng: random.Random,
    effort: Effort,
    ends: float,
) -> Iterator[dict[str, Any]]:
    """Compute features once, then train many models on them, while there is time."""
    began, device = time.monotonic(), whole.x.device
    if features_of(whole.x[:1], features, device=device).numel() > MOST_NUMBERS:
        return
    made_of = _units(features_of(whole.x, features, device=device), features)
    x, look = (made_of[rows] for rows in parts.rows)
    del made_of
    x, look = centred_rows(x, look, features.centre, rng.randrange(2**31))
    inner, made = products(x), time.monotonic() - began
    affordable = [plan for plan in plans(parts.n) if plan[1] <= effort.epochs]
    for epsilon in epsilons:
        best = best_of(before, epsilon)
        near = usual(parts, epsilon, features) if best is None else _way(best)
        for _ in range(effort.plans):
            if time.monotonic() > ends:
                return
            batch, epochs = rng.choice(affordable)
            if best is not None and rng.random() < 0.5:
                batch, epochs = best["batch"], best["epochs"]
            yield from trained(
                parts, features, x, inner, look, drawn_candidates(rng, near, effort.models),
                epsilon=epsilon, batch=batch, epochs=epochs, seed=rng.randrange(2**31), made=made,
            )  # fmt: skip


def usual(parts: Held, epsilon: float, features: Features) -> Candidate:
    """How the recipe learns as it is: where a search begins."""
    return _way(vars(course_for(recipe_of(features), parts.n, epsilon, int(parts.train.x.shape[1]), parts.name)))


def _way(line: Mapping[str, Any]) -> Candidate:
    return Candidate(**{key: line[key] for key in LEARNING})


def recipe_of(features: Features) -> str:
    """The recipe of a linear layer on such features."""
    return {Learned: "made-up-linear", Patches: "patches-linear"}.get(type(features), "scattering-linear")


def centred_rows(x: torch.Tensor, look: torch.Tensor, noise: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Both without the mean of the first, which has the noise of a release, and at one length again, as `Centred` does it."""
    if not noise:
        return x, look
    generator = torch.Generator(x.device).manual_seed(seed)
    module = Centred(x.shape[2]).to(x.device)
    module.centre = x.mean((0, 1)) + noise * LENGTH / len(x) * torch.randn(
        x.shape[2], device=x.device, generator=generator
    )
    moved = (torch.cat([module(part.flatten(0, 1)).view_as(part) for part in rows.split(4096)]) for rows in (x, look))
    first, second = moved
    return first, second


def _units(x: torch.Tensor, features: Features) -> torch.Tensor:
    """Units of one view have a dimension for it too."""
    return x.unsqueeze(1) if features.average or len(features.views) == 1 else x


def trained(
    parts: Held,
    features: Features,
    x: torch.Tensor,
    inner: torch.Tensor,
    look: torch.Tensor,
    candidates: Sequence[Candidate],
    *,
    epsilon: float,
    batch: int,
    epochs: float,
    seed: int,
    made: float = 0.0,
) -> Iterator[dict[str, Any]]:
    """Train candidates side by side, and a line for each."""
    began = time.monotonic()
    steps = nw.steps_for(epochs, parts.n, batch)
    noise = noise_for(parts.n, batch, steps, epsilon, features.centre)
    heads = train_side_by_side(
        x, parts.train.y, inner, candidates,
        classes=len(parts.train.classes), batch=batch, steps=steps, noise=noise, seed=seed,
    )  # fmt: skip
    read = scores(heads, look, parts.look.y)
    seconds = time.monotonic() - began
    for candidate, score in zip(candidates, read, strict=True):
        yield {
            "data": parts.name, "recipe": recipe_of(features), "epsilon": epsilon, "delta": DELTA, "n": parts.n,
            "held_out": len(parts.look), "features": described(features), "coordinates": int(x.shape[2]),
            "batch": batch, "epochs": epochs, "steps": steps, "noise": noise, **candidate.to_dict(),
            **{key: None if np.isnan(value) else round(value, 5) for key, value in score.items()},
            "seconds": round(seconds, 3), "feature_seconds": round(made, 2), "seed": seed,
        }  # fmt: skip
