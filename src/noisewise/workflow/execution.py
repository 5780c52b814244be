"""Carrying a config out: `prepare` builds its recipe, `execute` trains the model and its twin into a run folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from noisewise.audits import AUDITS
from noisewise.data.marks import mark_of
from noisewise.data.tables.rows import name_of
from noisewise.distributed import Team
from noisewise.distributed.team import chosen_team
from noisewise.errors import ConfigError, RunError
from noisewise.recipe import Recipe, check_sharded, fit
from noisewise.recipes.centre import with_centre
from noisewise.recipes.learned import file_of
from noisewise.runs.files import write_atomically, write_json
from noisewise.runs.folder import RunFolder
from noisewise.support import EVERYTHING
from noisewise.wording import without_folders
from noisewise.workflow.plan import Planned, is_open, optimizer_of
from noisewise.workflow.recipe_specs import parsed, sides_of, weights_of
from noisewise.workflow.run_readme import own_code, readme
from noisewise.workflow.settings import Config
from noisewise.workflow.taken import check_out


def prepare(config: Config | Planned) -> Recipe:
    """The recipe of a config: data, an initialised model, mechanism, optimizer, repairs."""
    return (Planned.of(config) if isinstance(config, Config) else config).recipe


def execute(
    config: Config | Planned,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    progress: bool = True,
    team: Team | None = None,
    sharded: bool = False,
) -> RunFolder:
    """Train the private model, then its twin from the same start, into the run folder `out`.

    Killed at any moment, a second call with `resume` does what is missing and gives the run that was planned. Of a finished
    run, a `resume` with another `twin_lr` trains the twin anew and leaves the released model alone. In a `team` all processes
    call this; the first one reads and writes the folder. `sharded`: the private model's parameters are spread over them.
    """
    planned, folder, team = config, RunFolder(out), chosen_team(team)
    config = planned if isinstance(planned, Config) else planned.config
    renewed = _check_folder(folder, config, resume) if team.first else ()
    _check_centre(config, team)
    recipe = prepare(planned)
    if sharded:
        check_sharded(recipe, team)
    if team.first:
        folder.create()
        write_atomically(folder.config, config.to_toml().encode())
        if (weights := weights_of(config.recipe)) and not folder.features.exists():
            write_atomically(folder.features, file_of(weights).read_bytes())
        if recipe.data.train.schema is not None:
            write_json(folder.schema, recipe.data.train.schema.to_dict())
    if config.recipe is not None and (noise := parsed(config.recipe)[1].get("centre", 0.0)):
        recipe = with_centre(
            recipe, noise, folder.centre,
            views=sides_of(config.recipe), secure=config.secure, insecure_seed=config.insecure_seed,
        )  # fmt: skip
    if not _says(team, lambda: folder.complete):
        kept = config.keep_states or 0
        _fit(config, recipe, folder, resume, progress, team, keep_states=kept, sharded=sharded)
    if team.first:
        folder.forget_checkpoint()  # killed between its last two acts
        _describe(folder, config, recipe, renewed)
    if _says(team, lambda: config.twin and not folder.twin_weights.exists()):
        work = RunFolder(folder.twin)
        if not _says(team, lambda: work.complete):
            _fit(config, _twin(config, recipe), work, resume, progress, team, ablation="plain")
        if team.first:
            write_atomically(folder.twin_weights, work.model.read_bytes())
    if team.first:
        shutil.rmtree(folder.twin, ignore_errors=True)
    return folder


def _says(team: Team, ask: Callable[[], bool]) -> bool:
    """What the first process of a team sees in the folder; the others need not see it."""
    return bool(team.said(ask() if team.first else None))


def _check_centre(config: Config, team: Team) -> None:
    """Refuse a released mean of features on several processes, before anything is written."""
    noise = 0.0 if config.recipe is None else parsed(config.recipe)[1].get("centre", 0.0)
    if noise and team.several:
        name = str(config.recipe).partition(":")[0]
        raise ConfigError(
            f"recipe {name!r} with centre={noise:g} on several processes: its mean of the features is released by one process "
            f"alone. Say centre=0 in it (--recipe {name}:centre=0,...), or train in one process."
        )


def _check_folder(folder: RunFolder, config: Config, resume: bool) -> tuple[Path, ...]:
    """Is the folder free, or that of the same run? Gives the files that a twin trained later or anew changes."""
    check_out(folder, resume=resume)
    if resume and folder.config.exists():
        stored = Config.read(folder.config)
        _check_same(stored, config, folder)
        if folder.complete and any(getattr(stored, name) != getattr(config, name) for name in TWIN_ONLY):
            _check_sealed(folder)
            if stored.twin_lr != config.twin_lr:
                _forget_twin(folder)
            return (folder.config,)
    return ()


def _describe(folder: RunFolder, config: Config, recipe: Recipe, renewed: tuple[Path, ...]) -> None:
    """The model's own code and the README; they and its encoder under the digests of run.json."""
    if code := own_code(recipe.model):
        write_atomically(folder.code, code.encode())
    write_atomically(folder.readme, readme(config, recipe, folder).encode())
    folder.seal(folder.code, folder.readme, folder.features, *renewed)


def _twin(config: Config, recipe: Recipe) -> Recipe:
    """The same model, data and steps from the same start, without privacy and without repairs."""
    plan = replace(recipe.mechanism, steps=config.steps, support=EVERYTHING)
    return replace(
        recipe, mechanism=plan, optimizer=optimizer_of(config, config.twin_lr), phases=(), repairs=(), augment=None
    )


TWIN_ONLY = ("twin", "twin_lr")  # settings that the released model does not depend on


def _forget_twin(folder: RunFolder) -> None:
    """Delete a twin, and the audits that compare with it."""
    shutil.rmtree(folder.twin, ignore_errors=True)
    folder.twin_weights.unlink(missing_ok=True)
    for path in folder.audits.glob("*.json"):
        if path.stem not in AUDITS:  # of somebody's own, which may compare with it
            path.unlink()
    for name, audit in AUDITS.items():
        if audit.twin:
            folder.audit(name).unlink(missing_ok=True)


def _check_sealed(folder: RunFolder) -> None:
    """A config that somebody has edited must not be sealed anew."""
    if folder.changed(folder.config):
        raise RunError(
            f"{folder.config} is not what the run wrote: restore it from a copy before the twin is trained anew."
        )


def _check_same(stored: Config, config: Config, folder: RunFolder) -> None:
    before, now = vars(stored), vars(config)
    free = TWIN_ONLY if folder.complete else ()
    changes = ", ".join(
        f"{name} was {before[name]}, now {now[name]}" for name in now if before[name] != now[name] and name not in free
    )
    if changes:
        raise ConfigError(
            f"{folder.path} was started with other settings: {changes}. Leave them out to go on, or choose another --out."
        )


def finished(config: Config, out: str | os.PathLike[str]) -> bool:
    """Is everything the config asks for in the run folder?"""
    folder = RunFolder(out)
    return folder.complete and (folder.twin_weights.exists() or not config.twin)


def _fit(
    config: Config, recipe: Recipe, folder: RunFolder, resume: bool, progress: bool, team: Team, **how: Any
) -> None:
    fit(
        recipe,
        runtime=config.runtime(),
        valid=recipe.data.valid if len(recipe.data.valid) else None,
        delta=config.delta,
        seed=config.seed,
        insecure_seed=config.insecure_seed,
        secure=config.secure,
        out=folder.path,
        resume=_says(team, lambda: resume and (folder.begun or folder.phase(1).path.exists())),
        team=team,
        about={
            "task": recipe.data.train.task,
            "data": {
                "name": name_of(config.data),
                "public": recipe.data.train.public,
                **({"test": mark_of(recipe.data.test).hex()} if is_open(recipe.data) else {}),
                "classes": len(recipe.data.train.classes),
                "shape": list(recipe.data.train.x.shape[1:]),
                **({} if config.recipe is None else {"class_names": list(recipe.data.train.classes)}),
            },
            "model": without_folders(config.model),
        },
        progress=progress,
        **how,
    )
