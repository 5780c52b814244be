"""Trainings of an attribution as jobs: plain, with clipping only, with noise only and with both, for every seed.

What each training says about the test rows is secret: it goes from the job into a file of the folder, and nowhere else.
"""

from __future__ import annotations

import copy
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise import data as datasets
from noisewise.audits.outputs import check_state, logits, row_losses
from noisewise.errors import ConfigError, RunError
from noisewise.jobs import Job, Local, Where, carry_out
from noisewise.jobs.job import described, rebuilt
from noisewise.mechanism import Mechanism
from noisewise.runs.files import hold
from noisewise.runs.tensors import load_tensors, save_tensors
from noisewise.runtime import Runtime

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from noisewise.data import Data
    from noisewise.losses import LossFn

RUNS = ("plain", "clip-only", "noise-only", "private")
ROWS, JOBS, LOCK = "rows", "jobs", "lock"  # within the folder; the rows while other processes read them
FILE = re.compile(rf"\.?seed-\d+\.({'|'.join(RUNS)})\.safetensors(\.tmp)?")
MODES = ("evaluated", "trained")


@dataclass(frozen=True)
class Training:
    """All that a training of the attribution follows from, beside its seed and kind; see `attribution`."""

    model: nn.Module | Callable[[int], nn.Module]
    train: Data
    test: Data
    loss_fn: LossFn
    mechanism: Mechanism
    optimizer: Callable[[Any], Optimizer]
    scheduler: Callable[[Optimizer], Any] | None
    runtime: Runtime | None
    measure: str

    @cached_property
    def _starts(self) -> dict[int, nn.Module]:
        return {}

    @cached_property
    def _marks(self) -> list[str]:
        return [_digest({"x": part.x, "y": part.y}) for part in (self.train, self.test)]

    def start(self, seed: int) -> nn.Module:
        """The seed's initialisation, made once."""
        if seed not in self._starts:
            self._starts.clear()
            self._starts[seed] = _start(self.model, seed)
        return self._starts[seed]

    def trained(self, run: Any, seed: int) -> nn.Module:
        """A copy of the start, trained in one of the four ways."""
        from noisewise.training.loop import train

        model = copy.deepcopy(self.start(seed))
        moves = self.optimizer([parameter for parameter in model.parameters() if parameter.requires_grad])
        plan = None if self.scheduler is None else self.scheduler(moves)
        train(
            model, self.train, self.loss_fn, self.mechanism, moves,
            scheduler=plan, runtime=self.runtime, seed=seed, insecure_seed=seed, ablation=run, progress=False,
        )  # fmt: skip
        return model

    def scores(self, run: str, seed: int) -> Tensor:
        """One number per test row, larger is better: right or wrong, or minus the loss."""
        model = self.trained(run, seed)
        if self.measure == "accuracy":
            return (logits(model, self.test).argmax(1) == self.test.y).double()
        return -row_losses(model, self.test, self.loss_fn)

    def known_by(self, seed: int) -> dict[str, Any]:
        """What can be compared of it, for a folder that is used again: functions by their settings and by what they make."""
        import torch

        from noisewise.training.lineage import behaviour

        start = copy.deepcopy(self.start(seed))
        told = behaviour(start, self.loss_fn, (self.train.x, self.train.y))
        moves = self.optimizer([torch.nn.Parameter(torch.zeros(1))])
        plan = None if self.scheduler is None else self.scheduler(moves)
        return {
            "start": _digest(self.start(seed).state_dict()),
            "model": _without_addresses(repr(start)),
            "losses": [None if told[mode] is None else [f"{loss:.2e}" for loss in told[mode]] for mode in MODES],
            "rows": self._marks,
            "loss": _in_words(self.loss_fn),
            "mechanism": self.mechanism.to_dict(),
            "optimizer": [type(moves).__qualname__, repr(sorted(moves.defaults.items()))],
            "scheduler": None if plan is None else [type(plan).__qualname__, repr(sorted(plan.state_dict().items()))],
            "runtime": None if self.runtime is None else asdict(self.runtime),
            "measure": self.measure,
        }

    def described(self) -> dict[str, Any]:
        """All but the rows as JSON, for another process; functions by their names."""
        import torch

        if isinstance(self.model, torch.nn.Module):
            raise ConfigError(
                "model: other processes make it themselves; give a function of a module, seed -> model, instead of a model."
            )
        return {
            "model": described(self.model),
            "loss_fn": described(self.loss_fn),
            "mechanism": self.mechanism.to_dict(),
            "optimizer": described(self.optimizer),
            "scheduler": None if self.scheduler is None else described(self.scheduler),
            "runtime": None if self.runtime is None else asdict(self.runtime),
            "measure": self.measure,
        }


def scores_of(
    training: Training,
    seeds: Sequence[int],
    *,
    folder: str | os.PathLike[str] | None,
    where: Where | None,
    progress: bool,
) -> dict[str, list[np.ndarray]]:
    """What each of the four runs says about each test row `[rows]`, seed by seed; those that are in `folder` are read."""
    where = where or Local()
    crossing = where != Local()
    if folder is None and not isinstance(where, Local):
        raise ConfigError("folder=: trainings on other machines need a folder that all of them see.")
    with _opened(folder) as path:

        def here(seed: int, run: str) -> int:
            return _kept(training, path, seed, run)

        function, more = (retrain, {"folder": str(path), **training.described()}) if crossing else (here, {})
        jobs = []
        for seed in seeds:
            known = None if folder is None else training.known_by(seed)
            for run in RUNS:
                one = {"seed": seed, "run": run}
                jobs.append(Job(f"seed-{seed}.{run}", function, {**one, **more}, of={**one, "of": known}))
                if not _file(path, seed, run).exists():
                    (path / JOBS / f"{jobs[-1].key}.json").unlink(missing_ok=True)
        try:
            if crossing:
                _forget_rows(path)
                datasets.disk.save(datasets.Splits(training.train, _nobody(training.train), training.test), path / ROWS)
            carry_out(jobs, path / JOBS, where, go_on=False, progress=progress, label="retrainings")
        finally:
            _forget_rows(path)
        return {run: [load_tensors(_file(path, seed, run))["scores"].numpy() for seed in seeds] for run in RUNS}


def retrain(
    folder: str,
    seed: int,
    run: str,
    model: Mapping[str, Any],
    loss_fn: Mapping[str, Any],
    mechanism: dict[str, Any],
    optimizer: Mapping[str, Any],
    scheduler: Mapping[str, Any] | None,
    runtime: Mapping[str, Any] | None,
    measure: str,
) -> int:
    """One training, as a job for another process, which reads the rows from the folder."""
    rows: Any = datasets.disk.open(Path(folder) / ROWS)
    training = Training(
        rebuilt(model), rows.train, rows.test, rebuilt(loss_fn), Mechanism.from_dict(mechanism), rebuilt(optimizer),
        None if scheduler is None else rebuilt(scheduler), None if runtime is None else Runtime(**runtime), measure,
    )  # fmt: skip
    return _kept(training, Path(folder), seed, run)


def _kept(training: Training, folder: Path, seed: int, run: str) -> int:
    """Train, and keep what it says of the test rows; of how many."""
    scores = training.scores(run, seed)
    save_tensors(_file(folder, seed, run), {"scores": scores})
    return len(scores)


def _file(folder: Path, seed: int, run: str) -> Path:
    return folder / f"seed-{seed}.{run}.safetensors"


@contextmanager
def _opened(folder: str | os.PathLike[str] | None) -> Iterator[Path]:
    """A folder for the owner only and for one call at a time: the given one, or one that is gone afterwards."""
    if folder is None:
        with tempfile.TemporaryDirectory() as made:  # of mode 700
            yield Path(made)
        return
    path = Path(folder)
    try:
        names = {each.name for each in path.iterdir()} if path.exists() else set()
        others = sorted(name for name in names - {ROWS, JOBS, LOCK} if not FILE.fullmatch(name))
        if others:
            raise RunError(
                f"{path} holds other files ({', '.join(others[:3])}): choose an empty folder, it is closed to other users."
            )
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        held = hold(path / LOCK)
    except TimeoutError:
        raise RunError(f"{path} is in use by another process: wait for it, or choose another folder.") from None
    except OSError as error:
        raise RunError(f"{path} cannot hold trainings ({error.strerror}): choose another folder.") from None
    with held:
        yield path


def _in_words(function: Any) -> Any:
    """A function by its name, a `functools.partial` by its settings too, any other object by what it says of itself."""
    if isinstance(function, partial):
        settings = [list(function.args), sorted(function.keywords.items())]
        return [_in_words(function.func), _without_addresses(repr(settings))]
    name = getattr(function, "__qualname__", None)
    return _without_addresses(repr(function)) if name is None else f"{function.__module__}:{name}"


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _forget_rows(folder: Path) -> None:
    shutil.rmtree(folder / ROWS, ignore_errors=True)


def _nobody(data: Data) -> Data:
    import torch

    return data.take(torch.zeros(0, dtype=torch.long))


def _start(model: nn.Module | Callable[[int], nn.Module], seed: int) -> nn.Module:
    """The seed's initialisation."""
    import torch

    if isinstance(model, torch.nn.Module):
        check_state("the model", model.state_dict())
        return model
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = model(seed)
    if not isinstance(made, torch.nn.Module):
        raise ConfigError(f"model({seed}) gave {type(made).__name__}: must be an nn.Module.")
    check_state(f"model({seed})", made.state_dict())
    return made


def _digest(tensors: Mapping[str, Any]) -> str:
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
