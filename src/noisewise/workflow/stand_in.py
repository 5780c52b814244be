"""Public stand-ins for people who are not to be touched yet: what a plan for n people reaches on somebody else's data.

Everything here is public, so nothing is spent: the noise of the plan is put on the stand-in's gradients to see what it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch

from noisewise.adaptive import rule_for
from noisewise.data import Data, Splits, load, split
from noisewise.errors import PrivacyError
from noisewise.estimates.estimate import Estimate
from noisewise.estimates.intervals import mean
from noisewise.evaluation import logits
from noisewise.jobs import Job, Where, carry_out
from noisewise.losses import loss_for, outputs_for
from noisewise.mechanism import Mechanism
from noisewise.sampling import Poisson
from noisewise.training.loop import train
from noisewise.workflow.model_specs import build_model
from noisewise.workflow.plan_inputs import BREAST_CANCER


@dataclass(frozen=True, kw_only=True)
class Course:
    """How a plan trains: names are those of `Config`."""

    model: str
    batch_size: int
    steps: int
    bound: float
    lr: float
    momentum: float
    ema: float | None
    twin_lr: float


@cache
def opened(name: str, seed: int, flat: bool) -> Splits:
    """A public data set by name, cut by a public seed; `flat`: as columns, whatever shape its rows have."""
    parts = _breast_cancer(seed) if name == BREAST_CANCER else load(name, seed)
    if not parts.train.public:
        raise PrivacyError(
            f"stand-in {name!r} is not public: trying plans on it would spend privacy that nobody counts."
        )
    if flat:
        parts = Splits(*(replace(part, x=part.x.flatten(1), schema=None) for part in parts))
    return parts


def _breast_cancer(seed: int) -> Splits:
    """569 tumours, 30 measures in [-1, 1] by their published ranges, 2 classes: bundled with scikit-learn."""
    from sklearn.datasets import load_breast_cancer

    raw = load_breast_cancer()
    low, high = raw.data.min(0), raw.data.max(0)
    x = torch.from_numpy(2 * (raw.data - low) / (high - low) - 1).float()
    data = Data(x, torch.from_numpy(raw.target).long(), classes=("malignant", "benign"), public=True)
    test, held, known = split(data, seed, len(data) // 5, 1)
    return Splits(known, held, test)


def reached(name: str, plan: Mechanism | None, course: Course, *, flat: bool, n: int, seed: int) -> float:
    """Accuracy (a regression: share of variance explained) on the stand-in's test part; `plan` None: without privacy.

    Of a stand-in with more than n rows n are taken, and the plan is the very plan. With fewer, batches are at most all of
    its rows, and noise is scaled so that each coordinate of the mean gradient gets as much of it as with n people; what
    n people know more than these rows is not in the figure.
    """
    parts = opened(name, seed, flat)
    people = parts.train if len(parts.train) <= n else parts.train.take(torch.arange(n))
    batch = min(course.batch_size, len(people))
    sigma = 1.0 if plan is None else plan.noise_at(0) * batch / course.batch_size
    mechanism = Mechanism(
        sampler=Poisson(len(people), batch),
        clip=rule_for("flat", course.bound, None),
        steps=course.steps,
        noise_multiplier=sigma,
    )
    model = build_model(course.model, tuple(people.x.shape[1:]), outputs_for(people), seed)
    rate = course.lr if plan is not None else course.twin_lr
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=course.momentum)
    trained = train(
        model, people, loss_for(people), mechanism, optimizer, ablation="plain" if plan is None else "private",
        seed=seed, insecure_seed=seed, ema=course.ema, progress=False,
    )  # fmt: skip
    if trained.averaged is not None:
        model.load_state_dict(model.state_dict() | trained.averaged)
    return score(model, parts.test)


def score(model: torch.nn.Module, data: Data) -> float:
    """Share of rows that are right, or share of the variance that is explained."""
    if data.task == "classification":
        return float((logits(model, data).argmax(1) == data.y).double().mean())
    with torch.no_grad():
        error = (model.eval()(data.x).flatten() - data.y).double().square().mean()
    return float(1 - error / data.y.double().var(unbiased=False))


def scores(
    name: str,
    plans: Sequence[tuple[Mechanism | None, Course]],
    *,
    flat: bool,
    n: int,
    seeds: int,
    progress: bool,
    where: Where | None = None,
) -> list[Estimate]:
    """What each plan reaches, over seeds: another split, start, batches and noise each."""
    jobs = {
        (number, seed): Job(
            f"plan-{number}-seed-{seed}",
            reached_by,
            {
                "name": name, "plan": None if plan is None else plan.to_dict(), "course": asdict(course), "flat": flat, "n": n,
                "seed": seed,
            },
        )
        for number, (plan, course) in enumerate(plans)
        for seed in range(seeds)
    }  # fmt: skip
    values = carry_out(list(jobs.values()), None, where, progress=progress, label=f"trying plans on {name}")
    task = opened(name, 0, flat).train.task
    return [
        _bounded(mean([values[jobs[number, seed].key] for seed in range(seeds)]), task) for number in range(len(plans))
    ]


def reached_by(name: str, plan: dict[str, Any] | None, course: dict[str, Any], flat: bool, n: int, seed: int) -> float:
    """`reached`, as a job."""
    mechanism = None if plan is None else Mechanism.from_dict(plan)
    return reached(name, mechanism, Course(**course), flat=flat, n=n, seed=seed)


def _bounded(estimate: Estimate, task: str) -> Estimate:
    """An interval that ends where values end: at 1, and for shares of people at 0."""
    low = max(estimate.low, 0.0) if task == "classification" else estimate.low
    return replace(estimate, low=low, high=min(estimate.high, 1.0))
