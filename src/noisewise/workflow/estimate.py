"""How long a run will take: one step on made-up units, times the number of steps."""

from __future__ import annotations

import copy
import time

import torch

from noisewise.advice.noise import smallest_class
from noisewise.batches import Nest
from noisewise.persample import clipped_sum, examine
from noisewise.recipe import Recipe
from noisewise.runtime import Runtime

MOST = 512  # units of a timed step; more take proportionally longer
TWIN = 0.6  # a step of the twin against a private one, roughly


def seconds(recipe: Recipe, runtime: Runtime, *, twin: bool) -> float:
    """Expected seconds of training; nothing of the data but its shapes is looked at."""
    model, device = copy.deepcopy(recipe.model), next(recipe.model.parameters()).device
    views = 1 if recipe.augment is None else recipe.augment.views
    wanted = recipe.mechanism.expected_batch_size * views
    rows = max(2, min(MOST, wanted))
    batch = _made_up(recipe, rows, device)
    layout = examine(model, recipe.loss_fn, batch)
    rule, took = recipe.mechanism.clip_at(0), []
    for _ in range(2):
        start = time.perf_counter()
        clipped_sum(model, recipe.loss_fn, batch, rule, layout=layout, runtime=runtime)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took.append(time.perf_counter() - start)
    steps = recipe.mechanism.steps + sum(phase.mechanism.steps for phase in recipe.phases)
    return min(took) * wanted / rows * steps * (1 + TWIN * twin)


def _made_up(recipe: Recipe, rows: int, device: torch.device) -> Nest:
    data, generator = recipe.data.train, torch.Generator().manual_seed(0)
    x = torch.randn(rows, *data.x.shape[1:], generator=generator)
    x = x.to(data.x.dtype) if data.x.is_floating_point() else torch.zeros(x.shape, dtype=data.x.dtype)
    y = torch.zeros(rows, *data.y.shape[1:], dtype=data.y.dtype)
    return x.to(device), y.to(device)


def in_words(duration: float) -> str:
    """A duration as people say it.

    >>> [in_words(s) for s in (0.4, 40, 100, 4000, 200_000)]
    ['a second', '40 seconds', '2 minutes', '1.1 hours', '2.3 days']
    """
    for size, unit in ((86_400, "day"), (3_600, "hour")):
        if duration >= size:
            return f"{duration / size:.1f} {unit}s"
    count, unit = (round(duration / 60), "minute") if duration >= 90 else (round(duration), "second")
    return f"a {unit}" if count <= 1 else f"{count} {unit}s"


def too_few(recipe: Recipe) -> float:
    """How many units a class needs to be heard above the noise, where that is more than there are of all classes; else 0."""
    mechanism = recipe.mechanism
    if recipe.data.train.task != "classification" or not recipe.private or recipe.phases:
        return 0.0
    weights = sum(parameter.numel() for parameter in recipe.model.parameters() if parameter.requires_grad)
    needed = smallest_class(mechanism.sampler.rate, mechanism.steps, mechanism.noise_at(0), weights)
    return needed if needed > mechanism.sampler.n else 0.0
