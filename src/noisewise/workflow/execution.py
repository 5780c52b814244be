"""Carrying a config out: `prepare` builds its recipe, `execute` trains the model and its twin into a run folder."""

from __future__ import annotations

import copy
import os
import shutil
from dataclasses import replace
from typing import Any

from torch import nn

from noisewise.data import Splits
from noisewise.errors import ConfigError, RunError
from noisewise.losses import loss_for, outputs_for
from noisewise.models import build
from noisewise.recipe import MakeOptimizer, Recipe
from noisewise.runs.files import write_atomically, write_json
from noisewise.runs.folder import RunFolder
from noisewise.training.loop import train
from noisewise.workflow.choices import OPTIMIZERS, WITH_MOMENTUM
from noisewise.workflow.config import Config
from noisewise.workflow.plan import Planned


def prepare(config: Config | Planned) -> Recipe:
    """The recipe of a config: data, an initialised model, mechanism, optimizer."""
    planned = Planned.of(config) if isinstance(config, Config) else config
    config, data = planned.config, planned.data
    model = untrained(config, data)
    return Recipe(
        model=model,
        data=data,
        loss_fn=loss_for(data.train),
        mechanism=planned.mechanism([name for name, _ in model.named_parameters()]),
        optimizer=_optimizer(config, config.lr),
        ema=config.ema,
        ledger=None if data.train.schema is None else data.train.schema.ledger,
    )


def untrained(config: Config, data: Splits) -> nn.Module:
    """The model before training."""
    return build(config.model, tuple(data.train.x.shape[1:]), outputs_for(data.train), config.seed)


def _optimizer(config: Config, lr: float) -> MakeOptimizer:
    make = OPTIMIZERS[config.optimizer]
    extra = {"momentum": config.momentum} if config.optimizer in WITH_MOMENTUM else {}
    return lambda parameters: make(parameters, lr=lr, **extra)


def execute(
    config: Config | Planned, out: str | os.PathLike[str], *, resume: bool = False, progress: bool = True
) -> RunFolder:
    """Train the private model, then its twin from the same start, into the run folder `out`.

    Killed at any moment, a second call with `resume` does what is missing and gives the run that was planned.
    """
    planned, folder = config, RunFolder(out)
    config = planned if isinstance(planned, Config) else planned.config
    if not resume and (folder.run.exists() or folder.checkpoint.exists()):
        if finished(config, out):
            raise RunError(f"{folder.path} holds a finished run: choose another --out, so that nothing is overwritten.")
        raise RunError(f"{folder.path} holds an unfinished run: go on with --resume, or choose another --out.")
    if resume and not (folder.config.exists() or folder.run.exists() or folder.checkpoint.exists()):
        raise RunError(f"{folder.path} holds no run to go on with: check --out, or begin one without --resume.")
    if resume and folder.config.exists():
        _check_same(Config.read(folder.config), config, folder)
    recipe = prepare(planned)
    folder.create()
    write_atomically(folder.config, config.to_toml().encode())
    if recipe.data.train.schema is not None:
        write_json(folder.schema, recipe.data.train.schema.to_dict())
    start = copy.deepcopy(recipe.model)
    if folder.complete:
        folder.forget_checkpoint()  # killed between its last two acts
    else:
        _train(config, recipe, recipe.model, folder, resume, progress)
    if config.twin and not folder.twin_weights.exists():
        plain = replace(recipe, optimizer=_optimizer(config, config.twin_lr))
        work = RunFolder(folder.twin)
        if not work.complete:
            _train(config, plain, start, work, resume, progress, ablation="plain")
        write_atomically(folder.twin_weights, work.model.read_bytes())
    shutil.rmtree(folder.twin, ignore_errors=True)
    return folder


def _check_same(stored: Config, config: Config, folder: RunFolder) -> None:
    before, now = vars(stored), vars(config)
    changes = ", ".join(f"{name} was {before[name]}, now {now[name]}" for name in now if before[name] != now[name])
    if changes:
        raise ConfigError(
            f"{folder.path} was started with other settings: {changes}. Leave them out to go on, or choose another --out."
        )


def finished(config: Config, out: str | os.PathLike[str]) -> bool:
    """Is everything the config asks for in the run folder?"""
    folder = RunFolder(out)
    return folder.complete and (folder.twin_weights.exists() or not config.twin)


def _train(
    config: Config, recipe: Recipe, model: nn.Module, folder: RunFolder, resume: bool, progress: bool, **ablation: Any
) -> None:
    train(
        model,
        recipe.data.train,
        recipe.loss_fn,
        recipe.mechanism,
        recipe.optimizer(model.parameters()),
        runtime=config.runtime(),
        valid=recipe.data.valid if len(recipe.data.valid) else None,
        delta=config.delta,
        seed=config.seed,
        insecure_seed=config.insecure_seed,
        out=folder.path,
        resume=resume and folder.begun,
        ema=config.ema,
        ledger=copy.deepcopy(recipe.ledger),
        about={
            "task": recipe.data.train.task,
            "data": {
                "name": config.data,
                "public": recipe.data.train.public,
                "classes": len(recipe.data.train.classes),
            },
            "model": config.model,
        },
        progress=progress,
        **ablation,
    )
