"""How every audit is called in tests: its settings, and for each option another value."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from noisewise import audits
from noisewise.attacks.inversion import Attack
from noisewise.audits.feature_story import Limits
from noisewise.clipping import Flat
from noisewise.data import Data
from noisewise.data.synthetic import two_patch_distribution
from noisewise.mechanism import Mechanism
from noisewise.repairs import Temperature
from noisewise.runs.folder import Status
from noisewise.runtime import Runtime
from noisewise.sampling import Poisson
from noisewise.training.ablation import ablated_step

ROWS, CLASSES = 120, 3


def people(seed=0, rows=ROWS):
    """Three classes in two groups; a third of the labels is wrong, so that no model is always right."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, 6, generator=generator)
    y = (3 * x[:, 0]).long().clamp(max=2)
    y = torch.where(torch.rand(rows, generator=generator) < 0.3, (y + 1) % 3, y)
    half = torch.arange(rows) % 2
    return Data(x, y, {"half": half}, ("a", "b", "c"), group_names={"half": ("even", "odd")})


@cache
def network(seed=0):
    """Trained a little, so that it is neither certain nor blind."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        data = people(seed)
        for _ in range(60):
            optimizer.zero_grad()
            F.cross_entropy(model(data.x), data.y).backward()
            optimizer.step()
    return model.eval()


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def other_loss(model, batch):
    return (model(batch[0]).softmax(1) - F.one_hot(batch[1], CLASSES)).square().sum(1) + 0.3 * loss_fn(model, batch)


def plan(**how):
    given = {"sampler": Poisson(ROWS, 30), "clip": Flat(0.5), "noise_multiplier": 5.0, "steps": 6}
    return Mechanism(**{**given, **how})


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


def rng(seed=0):
    return np.random.default_rng(seed)


@cache
def shadows(folder, start=0):
    def trained(data, number):
        model = copy.deepcopy(network(start))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(data.x), data.y).backward()
            optimizer.step()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
        return model

    return audits.train_shadows(trained, people(0, 400), folder, recipe={"start": start}, count=4)


MASK = {"0.weight": False}
FREE = Status("private", "public people")
STATES = [(step, network(step).state_dict()) for step in range(4)]
SMALL = two_patch_distribution(0, d=30)
STORY = Mechanism(sampler=Poisson(100, 20), clip=Flat(1.0), steps=8, noise_multiplier=4.0)


def twice(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


def decaying(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def without_noise(model, data, loss, optimizer, state, **how):
    return ablated_step(model, data, loss, optimizer, state, ablation="clip-only", **how)


def idle(*arguments, **how):
    """A trainer that moves nothing: no canary can be seen."""


@dataclass(frozen=True)
class New:
    """A value that is made anew for each call, since audits draw from generators and leave traces on nothing else."""

    make: Callable[[], Any]


@dataclass(frozen=True)
class Refused:
    """A value that the audit, or what it calls, refuses by these words: so it has arrived there."""

    value: Any
    words: str


@dataclass(frozen=True)
class Case:
    """How an audit is called: its settings, for each option another value, and options that its docstring calls unused."""

    base: dict[str, Any]
    others: dict[str, Any]
    unused: frozenset[str] = frozenset()


def case(base, others, *unused):
    """With the arguments that every audit has."""
    usual = {"model": network(), "data": people(), "generator": New(rng)}
    changed = {"model": network(1), "data": people(2), "generator": New(lambda: rng(1)), "twin": network(1)}
    return Case({**usual, **base}, {**changed, "progress": True, "level": 0.6, **others}, frozenset(unused))


CASES = {
    audits.attribution: case(
        {"data": (people(), people(1)), "loss_fn": loss_fn, "mechanism": plan(steps=2), "optimizer": sgd, "seeds": (0, 1)},
        {"data": (people(2), people(1)), "loss_fn": other_loss, "mechanism": plan(steps=2, clip=Flat(0.05)),
         "optimizer": twice, "scheduler": decaying, "seeds": (2, 3), "measure": "loss",
         "runtime": Refused(Runtime(padded=True), "max_batch")},
        "twin", "generator",
    ),
    audits.calibration: case(
        {"resamples": 30}, {"bins": 5, "smallest_bin": 3, "temperature": Temperature(2.0, FREE, 40), "resamples": 50}
    ),
    audits.clipping_bias: case(
        {"mechanism": plan(), "batches": 2, "batch_size": 16},
        {"mechanism": plan(clip=Flat(0.1)), "clip": Flat(0.2), "loss_fn": other_loss, "support": MASK, "units": 60,
         "batches": 3, "batch_size": 20},
    ),
    audits.convergence: case(
        {"mechanism": plan(), "lr": 0.5},
        {"mechanism": plan(clip=Flat(0.1)), "lr": 0.2, "momentum": 0.5, "loss_fn": other_loss, "support": MASK,
         "path": (network(1),), "hessian_units": 20, "twin": Refused(network(1), "twin=")},
    ),
    audits.disparity: case({}, {}, "generator", "progress"),
    audits.engine_epsilon: Case(
        {"mechanism": plan(noise_multiplier=1.0), "trials": 1000, "generator": New(rng)},
        {"mechanism": plan(noise_multiplier=2.0), "trials": 2000, "generator": New(lambda: rng(1)), "twin": network(1),
         "delta": 1e-3, "level": 0.6, "engine": without_noise, "progress": True},
        frozenset({"twin"}),
    ),
    audits.feature_noise: case(
        {"mechanism": plan(), "units": 70},
        {"mechanism": plan(noise_multiplier=7.0), "loss_fn": other_loss, "clip": Flat(0.1), "support": MASK, "units": 80},
    ),
    audits.landscape: case(
        {"twin": network(1), "points": 4, "directions": 3},
        {"twin": network(2), "start": network(3), "loss_fn": other_loss, "points": 5, "directions": 4, "rows": 60},
    ),
    audits.membership: case({"members": people(), "data": people(1)}, {"members": people(3), "rows": 50}),
    audits.ntk: case(
        {"mechanism": plan(), "rows": 8},
        {"mechanism": plan(clip=Flat(0.1)), "clip": Flat(0.2), "loss_fn": other_loss, "support": MASK, "rows": 9},
    ),
    audits.one_run: case(
        {"mechanism": plan(noise_multiplier=0.1), "canaries": 60, "canary": "mislabelled"},
        {"mechanism": plan(noise_multiplier=1.0), "canaries": 50, "canary": "gradient", "loss_fn": other_loss,
         "optimizer": twice, "delta": 1e-3, "trainer": idle, "level": 0.6},
        "twin",
    ),
    audits.over_steps: Case(
        {"model": network(), "data": people(), "states": STATES, "change": 1, "generator": New(rng), "resamples": 30},
        {"model": network(1), "data": people(2), "states": STATES[1:], "change": 2, "loss_fn": other_loss,
         "generator": New(lambda: rng(1)), "progress": True, "level": 0.6, "resamples": 50},
        frozenset({"model"}),
    ),
    audits.reconstruction: case(
        {"images": 2, "attack": Attack(steps=3)},
        {"mechanism": plan(noise_multiplier=0.1), "sparsity": 0.5, "images": 3, "loss_fn": other_loss,
         "attack": Attack(steps=6)},
        "twin",
    ),
    audits.robustness: case(
        {"steps": 2, "factors": (1.0, 4.0), "rows": 60},
        {"norms": ("l2",), "radius": {"linf": 0.2, "l2": 1.0}, "factors": (1.0, 8.0), "steps": 4, "step": 1.0,
         "restarts": 3, "box": (-1.0, 2.0), "scale": 3.0, "rows": 50},
    ),
    audits.story: Case(
        {"distribution": SMALL, "mechanism": STORY, "looks": 3, "test": 60},
        {"distribution": two_patch_distribution(1, d=30), "mechanism": replace(STORY, clip=Flat(0.1)), "filters": 4,
         "start": 0.1, "learning_rate": 0.1, "ablation": "plain", "looks": 4, "test": 70, "limits": Limits(batch=0.9),
         "seed": 1, "level": 0.6, "progress": True},
    ),
}  # fmt: skip
