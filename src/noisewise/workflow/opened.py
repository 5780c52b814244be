"""A finished run, opened again: its models, its data, and what audits ask for."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from noisewise.audits import AUDITS, Result
from noisewise.data import Data, Splits
from noisewise.errors import ConfigError, RunError
from noisewise.losses import LossFn, loss_for
from noisewise.mechanism import Mechanism
from noisewise.recipe import load_weights
from noisewise.runs.files import write_json
from noisewise.runs.folder import RunFolder, Status
from noisewise.runs.summary import read_status
from noisewise.workflow.config import Config
from noisewise.workflow.execution import untrained
from noisewise.workflow.plan import Planned


@dataclass(frozen=True)
class Run:
    """A finished run, rebuilt: models in evaluation mode; `twin` is None where none was trained.

    What audits need beside that is made when it is first asked for, and once. `planned`: the plan of its config, where it
    is built already.
    """

    folder: RunFolder
    config: Config
    status: Status
    data: Splits
    model: nn.Module
    twin: nn.Module | None
    planned: Planned | None = None

    @property
    def members(self) -> Data:
        """The training rows."""
        return self.data.train

    @cached_property
    def mechanism(self) -> Mechanism:
        """What the model was trained with."""
        planned = self.planned
        if planned is None or planned.config != self.config:
            planned = Planned(self.config, self.data)
        return planned.mechanism([name for name, _ in self.model.named_parameters()])

    @cached_property
    def loss_fn(self) -> LossFn:
        """What training made small."""
        return loss_for(self.data.train)

    @property
    def lr(self) -> float:
        """Learning rate of plain gradient steps."""
        if self.config.optimizer != "sgd":
            raise ConfigError(
                f"optimizer={self.config.optimizer!r}: this audit is about the learning rate of plain gradient steps. Train "
                "with --optimizer sgd to ask it."
            )
        return self.config.lr

    @property
    def momentum(self) -> float:
        """Momentum of the steps."""
        return self.config.momentum

    @cached_property
    def start(self) -> nn.Module:
        """The model before training."""
        return untrained(self.config, self.data).eval()

    @property
    def path(self) -> tuple[nn.Module, ...]:
        """Models along the run: the start."""
        return (self.start,)

    def needed(self, what: str) -> Any:
        """What an audit needs, by its name."""
        if what not in NEEDS:
            raise ConfigError(f"an audit needs {what!r}, which a run does not have.")
        return getattr(self, what)


NEEDS = ("members", "mechanism", "loss_fn", "lr", "momentum", "start", "path")


def open_run(path: str | os.PathLike[str], planned: Planned | None = None) -> Run:
    """The model, its twin and the data splits of a finished run folder.

    `planned`: data and mechanism, where the same command has them already; those of other settings are not used.
    """
    folder = RunFolder(path)
    if not folder.complete:
        begun = folder.run.exists() or folder.checkpoint.exists()
        state = "holds an unfinished run" if begun else "is no run folder"
        remedy = f"Finish it with `noisewise train --resume --out {folder.path}`." if begun else "Check the name."
        raise RunError(f"{folder.path} {state}. {remedy}")
    config, status = Config.read(folder.config), read_status(folder)
    if planned is None or planned.config != config:
        planned = Planned.of(config)
    data = planned.data

    def rebuilt(weights: Path) -> nn.Module:
        return load_weights(untrained(config, data), weights).eval()

    twin = rebuilt(folder.twin_weights) if folder.twin_weights.exists() else None
    return Run(folder, config, status, data, rebuilt(folder.model), twin, planned)


def audit(run: Run, name: str, *, progress: bool = False) -> Result:
    """Audit a run on its test part by name; the result is saved among the run's secrets."""
    if name not in AUDITS:
        raise ConfigError(f"audit {name!r}: unknown. Known audits: {', '.join(AUDITS)}.")
    wanted, task = AUDITS[name], run.data.test.task
    if wanted.classes and task != "classification":
        raise ConfigError(f"audit {name!r}: needs classes, this run is a {task}.")
    settings = {need: run.needed(need) for need in wanted.needs}
    generator = np.random.default_rng(run.config.seed)
    twin = run.twin if wanted.twin else None
    subject = (run.model, run.data.test) if wanted.model else (None, None)
    result = wanted.run(*subject, twin=twin, generator=generator, progress=progress, **settings)
    if result.status.status == "private":
        result = replace(result, status=run.status)  # no more private than the model it speaks of
    run.folder.audits.mkdir(exist_ok=True)
    write_json(run.folder.audit(name), result.to_dict())
    return result


def accuracy(model: nn.Module, data: Data) -> float:
    """Share of rows a classifier gets right, in evaluation mode."""
    with torch.no_grad():
        return float((model(data.x).argmax(1) == data.y).float().mean())
