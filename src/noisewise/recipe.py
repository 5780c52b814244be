"""The recipe of a run: all that a repair may change, and carrying it out in one phase or several."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dp_accounting
import torch
from torch import nn

from noisewise.accounting import Ledger, Line, smallest_noise
from noisewise.accounting.ledger import joined
from noisewise.data import Data, Splits
from noisewise.errors import ConfigError, RunError
from noisewise.mechanism import Mechanism
from noisewise.persample import LossFn
from noisewise.runs import RunFolder, read_json
from noisewise.support import plans_of
from noisewise.train import Ablation, Augment, Trained, train

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a run before its last one: a plan of its own, or an ablation without privacy.

    `after(recipe, model)` gives the recipe of what follows, from the recipe so far and the model that this phase trained;
    by default the same recipe that goes on from that model. `optimizer`: the recipe's, if None.
    """

    mechanism: Mechanism
    ablation: Ablation = "private"
    optimizer: MakeOptimizer | None = None
    after: Callable[[Recipe, nn.Module], Recipe] | None = None

    def lines(self) -> list[Line]:
        """What this phase writes into the ledger."""
        if self.ablation == "private":
            return _known(self.mechanism).lines()
        event = dp_accounting.NonPrivateDpEvent()
        return [Line(event, f"{self.ablation} (not private)", self.mechanism.steps, 0)]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides what training does; `fit` carries it out and changes none of it.

    `optimizer` builds one from a model's parameters. `ledger`: what was already released about the same people; it adds up
    with this run. `phases` come before the `mechanism`. `repairs` says what was changed, for summary.json.
    """

    model: nn.Module
    data: Splits
    loss_fn: LossFn
    mechanism: Mechanism
    optimizer: MakeOptimizer
    augment: Augment | None = None
    ema: float | None = None
    ledger: Ledger | None = None
    phases: tuple[Phase, ...] = ()
    repairs: tuple[Mapping[str, Any], ...] = ()

    def lines(self) -> list[Line]:
        """All that is released: before this run, in its phases, and by its last plan."""
        before = [] if self.ledger is None else self.ledger.lines
        phases = [line for phase in self.phases for line in phase.lines()]
        return joined([*before, *phases, *_known(self.mechanism).lines()])

    @property
    def private(self) -> bool:
        """Does every release carry noise?"""
        return all(line.event_is_private for line in self.lines())

    def epsilon(self, delta: float) -> float:
        """Epsilon of everything together by PLD; infinite as soon as one release is not private."""
        return Ledger(self.mechanism.adjacency, self.lines()).epsilon(delta)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which each unit is expected once."""
        return max(1, round(1 / self.mechanism.sampler.rate))


def _known(mechanism: Mechanism) -> Mechanism:
    """With some noise where none is chosen yet, so that plans can be compared."""
    return replace(mechanism, noise_multiplier=1.0) if mechanism.noise_multiplier is None else mechanism


def at_epsilon(recipe: Recipe, epsilon: float, delta: float) -> Recipe:
    """The recipe with the least noise such that everything it releases costs at most `epsilon` at `delta` (PLD).

    One noise multiplier for all phases (noise schedules keep their shape), on top of what `recipe.ledger` already spent.
    """
    mechanisms = [*(phase.mechanism for phase in recipe.phases), recipe.mechanism]
    open_phases = [phase.ablation for phase in recipe.phases if phase.ablation != "private"]
    before = [] if recipe.ledger is None else recipe.ledger.events()
    blind = any(plan.unnoised for mechanism in mechanisms for plan in plans_of(mechanism.support))
    if open_phases or blind or any(isinstance(event, dp_accounting.NonPrivateDpEvent) for event, _ in before):
        raise ConfigError(
            f"epsilon={epsilon}: no noise can meet it, since a part of this recipe is not private (a phase without DP, a mask "
            "from private records or a ranking without noise). Take that part out, or leave the epsilon out."
        )

    def events(factor: float) -> list[Any]:
        return [*before, *(event for mechanism in mechanisms for event in mechanism.scaled(factor).events())]

    factor = smallest_noise(events, epsilon, delta, recipe.mechanism.adjacency)
    phases = tuple(replace(phase, mechanism=phase.mechanism.scaled(factor)) for phase in recipe.phases)
    return replace(recipe, phases=phases, mechanism=recipe.mechanism.scaled(factor))


def fit(recipe: Recipe, *, out: Any = None, resume: bool = False, about: Any = None, **settings: Any) -> Trained:
    """Train by a recipe: its phases, then its mechanism, with one ledger; the recipe and its model stay as they are.

    `settings` are those of `train` (seed, insecure_seed, secure, delta, runtime, valid, recorders, progress, ...). With
    `out`, a run that was interrupted in any phase goes on with `resume=True`.
    """
    ledger = None if recipe.ledger is None else copy.deepcopy(recipe.ledger)
    folder = None if out is None else RunFolder(out)
    for number, phase in enumerate(recipe.phases, 1):
        model, make = copy.deepcopy(recipe.model), phase.optimizer or recipe.optimizer
        work = None if folder is None else _phase_folder(folder, number, resume)
        if work is not None and work.complete:
            load_weights(model, work.model)
            ledger = Ledger.from_dict(read_json(work.ledger))
        else:
            ledger = train(
                model, recipe.data.train, recipe.loss_fn, phase.mechanism, make(model.parameters()), out=work and work.path,
                resume=resume, ledger=ledger, ablation=phase.ablation, augment=recipe.augment, about=about, **settings,
            ).ledger  # fmt: skip
        recipe = replace(recipe, model=model) if phase.after is None else phase.after(recipe, model)
    model = copy.deepcopy(recipe.model)
    trained = train(
        model, recipe.data.train, recipe.loss_fn, recipe.mechanism, recipe.optimizer(model.parameters()), out=out,
        resume=resume, ledger=ledger, augment=recipe.augment, ema=recipe.ema,
        about={**(about or {}), "repairs": recipe.repairs}, **settings,
    )  # fmt: skip
    for path in [] if folder is None else folder.sensitive.glob("phase-*"):
        shutil.rmtree(path)
    return trained


def _phase_folder(folder: RunFolder, number: int, resume: bool) -> RunFolder:
    folder.create()
    work = RunFolder(folder.sensitive / f"phase-{number}")
    if work.run.exists() and not resume:
        raise RunError(f"{folder.path} holds an unfinished run: go on with resume=True (--resume), or choose another.")
    return work


def continued(recipe: Recipe, trained: Trained) -> Recipe:
    """A recipe that goes on from a trained model with everything that its ledger holds: a second phase, from a copy.

    Several recipes may go on from one model: each has its own copy of the weights and of the ledger.
    """
    return replace(recipe, model=copy.deepcopy(trained.model), ledger=copy.deepcopy(trained.ledger))


def load_weights(model: nn.Module, path: Path) -> nn.Module:
    """The model with the weights of a safetensors file; a file of another model is an error."""
    from safetensors import SafetensorError
    from safetensors.torch import load as parse

    try:
        model.load_state_dict(parse(path.read_bytes()))
    except FileNotFoundError:
        raise RunError(f"{path} does not exist.") from None
    except (SafetensorError, RuntimeError, OSError) as error:
        raise RunError(f"{path} does not hold the weights of this run's model ({error}).") from None
    return model


def train_openly(
    model: nn.Module,
    data: Data,
    loss_fn: LossFn,
    *,
    epochs: float,
    batch_size: int,
    lr: float,
    momentum: float = 0.9,
    augment: Augment | None = None,
    seed: int = 0,
    progress: bool = False,
) -> nn.Module:
    """A trained copy of a model, by ordinary SGD without any privacy: for public data, and for controls."""
    from noisewise.sampling import Poisson, steps_for

    own, n = copy.deepcopy(model), len(data)
    size = min(batch_size, n)
    plan = Mechanism(sampler=Poisson(n, size), steps=steps_for(epochs, n, size), noise_multiplier=0.0)
    optimizer = torch.optim.SGD(own.parameters(), lr=lr, momentum=momentum)
    whole = replace(data, unit=None)
    train(
        own, whole, loss_fn, plan, optimizer, ablation="plain", insecure_seed=seed, seed=seed, augment=augment,
        progress=progress,
    )  # fmt: skip
    return own
