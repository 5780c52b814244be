"""A finished run, opened again: its models, its data, and what audits ask for; also a run that was made in Python."""

from __future__ import annotations

import copy
import os
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from noisewise import userfiles
from noisewise.accounting import Identity
from noisewise.audits import Result, audit_of, kept
from noisewise.data import Data, Splits, load
from noisewise.data.marks import mark_of
from noisewise.data.tables import schema as schemas
from noisewise.data.tables.schema import Schema
from noisewise.errors import ConfigError, DataError, OddRows, RunError
from noisewise.losses import LossFn, loss_for, outputs_for
from noisewise.mechanism import Mechanism
from noisewise.recipe import load_weights
from noisewise.recipes.centre import centred_as
from noisewise.runs.files import read_json, write_json
from noisewise.runs.folder import RunFolder, Status
from noisewise.runs.states import read_states
from noisewise.runs.summary import read_status
from noisewise.workflow.model_specs import build_model
from noisewise.workflow.plan import Planned
from noisewise.workflow.settings import Config
from noisewise.workflow.taken import check_finished


@dataclass(frozen=True)
class Run:
    """A finished run, rebuilt: models in evaluation mode; `twin` is None where none was trained.

    What audits need beside that is made when it is first asked for, and once. A run that was made in Python has no config
    and no plan, but perhaps a model as it was before training.
    """

    folder: RunFolder
    config: Config | None
    status: Status
    data: Splits
    model: nn.Module
    twin: nn.Module | None
    planned: Planned | None = None
    untrained: nn.Module | None = None

    @property
    def members(self) -> Data:
        """The training rows."""
        return self.data.train

    @cached_property
    def mechanism(self) -> Mechanism:
        """What the model was trained with."""
        if self.planned is not None:
            return self.planned.mechanism
        if not self.folder.mechanism.exists():
            raise ConfigError(
                f"{self.folder.path} does not say by which mechanism it was trained: an older version wrote it."
            )
        return Mechanism.from_dict(read_json(self.folder.mechanism))

    @cached_property
    def loss_fn(self) -> LossFn:
        """What training made small."""
        return loss_for(self.data.train) if self.planned is None else self.planned.recipe.loss_fn

    @property
    def lr(self) -> float:
        """Learning rate of plain gradient steps."""
        if self.config is None:
            raise ConfigError("this run was made in Python: its learning rate is not known. Ask this audit in Python.")
        if self.config.optimizer != "sgd":
            raise ConfigError(
                f"optimizer={self.config.optimizer!r}: this audit is about the learning rate of plain gradient steps. Train "
                "with --optimizer sgd to ask it."
            )
        if self.config.schedule is not None:
            raise ConfigError(
                f"schedule={self.config.schedule!r}: this audit is about one learning rate for all steps. Train without "
                "--schedule to ask it."
            )
        return self.config.lr

    @property
    def momentum(self) -> float:
        """Momentum of the steps."""
        if self.config is None:
            raise ConfigError("this run was made in Python: its momentum is not known. Ask this audit in Python.")
        return self.config.momentum

    @property
    def delta(self) -> float:
        """At which the run states its epsilon."""
        return float(read_json(self.folder.summary)["privacy"]["delta"])

    @property
    def seed(self) -> int:
        """Public seed."""
        return 0 if self.config is None else self.config.seed

    @cached_property
    def start(self) -> nn.Module:
        """The model before training."""
        if self.planned is not None:
            return centred_as(copy.deepcopy(self.planned.recipe.model).cpu().eval(), self.model)
        if self.untrained is None:
            raise ConfigError(
                "the model before training is not known: give --model FILE.py:FUNCTION, which makes it anew."
            )
        return self.untrained

    @property
    def path(self) -> tuple[nn.Module, ...]:
        """Models along the run: the start, and those that were kept (`--keep-states`)."""
        along = []
        for step, state in read_states(self.folder):
            if step:
                along.append(copy.deepcopy(self.start))
                along[-1].load_state_dict(state)
        return (self.start, *along)

    def needed(self, what: str) -> Any:
        """What an audit needs, by its name."""
        if what not in NEEDS:
            raise ConfigError(f"an audit needs {what!r}, which a run does not have.")
        return getattr(self, what)


NEEDS = ("members", "mechanism", "loss_fn", "lr", "momentum", "start", "path", "delta")


def open_run(path: str | os.PathLike[str], planned: Planned | None = None) -> Run:
    """The model, its twin and the data splits of a finished run folder.

    `planned`: data and mechanism, where the same command has them already; those of other settings are not used.
    """
    folder = RunFolder(path)
    check_finished(folder)
    if not folder.config.exists():
        raise RunError(
            f"{folder.path} was made in Python, so it does not say which model and data it is about. Name both: --model "
            "FILE.py:FUNCTION --data NAME, a folder, or FILE.py:FUNCTION."
        )
    config, status = Config.read(folder.config), read_status(folder)
    if planned is None or planned.config != config:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OddRows)  # said when it was trained
            planned = Planned.of(config, stored_schema(folder), folder.features)
    check_same_data(folder, planned)
    start = planned.recipe.model

    def rebuilt(weights: Path) -> nn.Module:
        return load_weights(copy.deepcopy(start).cpu(), weights).eval()

    twin = rebuilt(folder.twin_weights) if folder.twin_weights.exists() else None
    return Run(folder, config, status, planned.data, rebuilt(folder.model), twin, planned)


def check_same_data(folder: RunFolder, planned: Planned) -> None:
    """The rows to train on are those that the run was trained on, where its folder still knows: else members were tested."""
    if not folder.identity.exists():
        return
    if not Identity.from_dict(read_json(folder.identity)).fits(mark_of(planned.data.train)):
        raise DataError(
            f"{planned.config.data} is not what {folder.path} was trained on: a value, a row or their order differs, or an "
            "earlier version cut it into other parts. Audits would take people for new who are not: give the data back as they "
            "were, or train anew."
        )


def stored_schema(folder: RunFolder) -> Schema | None:
    """The schema of a run on a table."""
    return schemas.read(folder.schema) if folder.schema.exists() else None


def open_python_run(path: str | os.PathLike[str], model: str, data: str) -> Run:
    """A run that `train(..., out=)` wrote: its model and data come from names, or from the user's own files.

    `model`: a module or what makes one. `data`: the name of a data set, a folder, or `FILE.py:NAME` of `Splits` or of a
    function that gives them; `Data` alone is taken as the test part, and audits that need training rows refuse.
    """
    folder = RunFolder(path)
    check_finished(folder)
    splits = _splits(data)
    shape, known = tuple(splits.test.x.shape[1:]), splits.test
    start = (
        build_model(model, shape, outputs_for(known) if known.task == "regression" or known.classes else 1, 0)
        .cpu()
        .eval()
    )
    trained = load_weights(copy.deepcopy(start), folder.model).eval()
    twin = load_weights(copy.deepcopy(start), folder.twin_weights).eval() if folder.twin_weights.exists() else None
    return Run(folder, None, read_status(folder), splits, trained, twin, untrained=start)


def _splits(name: str) -> Splits:
    if ".py:" not in name:
        return load(name)
    made = userfiles.load(name)
    made = userfiles.called(name, made) if callable(made) else made
    if isinstance(made, Data):
        empty = made.take(torch.zeros(0, dtype=torch.long))
        return Splits(empty, empty, made)
    if not isinstance(made, Splits):
        raise ConfigError(f"data {name!r} is a {type(made).__name__}: must be noisewise Data or Splits, or make them.")
    return made


def audit(run: Run, name: str, *, progress: bool = False) -> Result:
    """Audit a run on its test part by name, or by `FILE.py:NAME`; the result is saved among the run's secrets."""
    wanted, task = audit_of(name), run.data.test.task
    if wanted.classes and task != "classification":
        raise ConfigError(f"audit {name!r}: needs classes, this run is a {task}.")
    if "members" in wanted.needs and not len(run.data.train):
        raise ConfigError(
            f"audit {name!r}: needs the training rows. Give data with train, valid and test parts (Splits)."
        )
    settings = {need: run.needed(need) for need in wanted.needs}
    generator = np.random.default_rng(run.seed)
    twin = run.twin if wanted.twin else None
    subject = (run.model, run.data.test) if wanted.model else (None, None)
    result = wanted.run(*subject, twin=twin, generator=generator, progress=progress, **settings)
    if not isinstance(result, Result):
        raise ConfigError(f"audit {name!r} gives a {type(result).__name__}: must be a noisewise.audits.Result.")
    if result.status.status == "private":
        result = replace(result, status=run.status)  # no more private than the model it speaks of
    run.folder.audits.mkdir(exist_ok=True)
    write_json(run.folder.audit(wanted.name), kept(result, name))
    return result


def accuracy(model: nn.Module, data: Data) -> float:
    """Share of rows a classifier gets right, in evaluation mode."""
    with torch.no_grad():
        return float((model(data.x).argmax(1) == data.y).float().mean())
