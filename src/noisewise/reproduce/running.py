"""Carrying experiments out: the runs they ask for, several at a time, each written down as it ends; then the verdicts.

Runs lie in `OUT/cells` by their settings, so that nothing is trained twice, whichever experiment asks; results in
`OUT/PAPER/EXPERIMENT.TIER.json`, with the figure beside them.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisewise import __version__
from noisewise.errors import ConfigError, Interrupted, RunError
from noisewise.jobs import Job, Where, carry_out, note_of
from noisewise.reproduce.claims import Judged, judge
from noisewise.reproduce.experiment import Cell, Config, Experiment, config_from
from noisewise.reproduce.measured import Measured
from noisewise.reproduce.papers import find
from noisewise.reproduce.tiers import Tier
from noisewise.runs.files import read_json, write_json
from noisewise.runs.folder import hardware, versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 1
COMMIT = "NOISEWISE_COMMIT"  # names the commit where there is no repository


@dataclass(frozen=True)
class Result:
    """An experiment that was carried out, as far as it was."""

    paper: str
    experiment: Experiment
    tier: Tier
    config: Config
    measured: Measured
    judged: list[Judged]
    seconds: float
    made: list[dict[str, Any]]  # where its runs were made: how many, by which commit, hardware and versions

    @property
    def name(self) -> str:
        """`xu2026.figure3`."""
        return f"{self.paper}.{self.experiment.name}"

    @property
    def command(self) -> str:
        """What makes it again."""
        shown = self.experiment.tiers[self.tier]
        seeds = "" if self.config.seeds == shown.seeds else f" --seeds {self.config.seeds}"
        device = "" if self.config.device == "cpu" else f" --device {self.config.device}"
        return f"noisewise reproduce {self.name} --tier {self.tier}{seeds}{device}"

    def to_dict(self) -> dict[str, Any]:
        """JSON form, as in the contract."""
        return {
            "format": FORMAT,
            "paper": self.paper,
            "experiment": self.experiment.name,
            "tier": self.tier,
            "seeds": self.measured.seeds,
            "config": self.config.to_dict(),
            "command": self.command,
            **circumstances(),
            "made": self.made,
            "seconds": round(self.seconds, 1),
            "claims": [judged.to_dict() for judged in self.judged],
            "measured": self.measured.to_dict(),
        }


def circumstances() -> dict[str, Any]:
    """By which commit, hardware and versions something is made here and now."""
    here = {**versions(), "noisewise": __version__, "python": platform.python_version()}
    return {"commit": commit(), "hardware": hardware(), "versions": here}


def result_path(out: Path, paper: str, experiment: str, tier: str) -> Path:
    """Where a result lies."""
    return out / paper / f"{experiment}.{tier}.json"


def commit() -> str:
    """The commit of the code that runs, if it can be known."""
    if named := os.environ.get(COMMIT):
        return named
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return answer.stdout.strip()


def reproduce(
    names: Sequence[str],
    out: Path,
    *,
    tier: Tier = "standard",
    seeds: int | None = None,
    device: str | None = None,
    where: Where | None = None,
    partial: bool = False,
    progress: bool = True,
    told: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Carry out experiments by name and write their results; `told` hears of each.

    Ctrl-C keeps every run that has ended, writes results of the seeds that are complete, and raises `Interrupted`; the same
    call goes on. `partial`: train nothing, judge what is there.
    """
    chosen = [find(name) for name in names]
    if len(set(names)) < len(names):
        raise ConfigError(f"{', '.join(names)}: an experiment is named twice.")
    if device is not None:
        check_device(device, used=not partial)
    configs = [experiment.config(tier, seeds, device) for _, experiment in chosen]
    results = []
    for (paper, experiment), config in zip(chosen, configs, strict=True):
        start = time.perf_counter()
        label, cells, stopped = f"{paper.name}.{experiment.name}", out / "cells", None
        measured, keys, note = Measured({}, {}), set[str](), circumstances()
        try:
            for number, stage in enumerate(experiment.stages, 1):
                part = label if len(experiment.stages) == 1 else f"{label} {number}/{len(experiment.stages)}"
                done: list[Cell] = []
                while (wanted := list(stage(config, measured))) != done:  # it may ask for more when it has seen some
                    if not partial:
                        carry_out(jobs_of(wanted, config), cells, where, progress=progress, label=part, note=note)
                    keys |= {cell.key(config.device) for cell in wanted}
                    measured, done = _with(measured, wanted, config, cells), wanted
                if any(cell.tuning and not _path(cell, config, cells).exists() for cell in wanted):
                    break  # partial: what would be chosen is not known
        except Interrupted as error:
            stopped = error
            measured = _with(measured, wanted, config, cells)
        seconds = time.perf_counter() - start
        if measured.seeds:
            judged = judge(experiment.claims, config, measured, smoke=tier == "quick")
            result = Result(paper.name, experiment, tier, config, measured, judged, seconds, made_by(keys, cells))
            write(result, out)
            results.append(result)
            if told is not None:
                told(result)
        elif partial:
            raise RunError(f"{label}: no seed of tier {tier} is complete in {out}: run it without --partial first.")
        if stopped is not None:
            raise stopped
    return results


def made_by(keys: Iterable[str], cells: Path) -> list[dict[str, Any]]:
    """Where runs were made, and how many of them; those of before such notes were taken have nothing but their number."""
    notes = [note_of(key, cells) or {} for key in sorted(keys) if (cells / f"{key}.json").exists()]
    counts = Counter(json.dumps(note, sort_keys=True) for note in notes)
    return [{"runs": count, **json.loads(note)} for note, count in counts.items()]


def write(result: Result, out: Path) -> Path:
    """The result and its figure."""
    path = result_path(out, result.paper, result.experiment.name, result.tier)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = result.to_dict()
    if path.exists():
        before = read_json(path)
        known = config_from(type(result.config), before["config"])
        if known == replace(result.config, seeds=known.seeds):
            content["seconds"] = round(
                before["seconds"] + content["seconds"], 1
            )  # what is read again took its time then
    write_json(path, content)
    save(result.experiment.draw(result.config, result.measured), path)
    return path


def save(figure: Figure, path: Path) -> None:
    """A figure beside the result at `path`."""
    figure.savefig(path.with_suffix(".png"), dpi=130, metadata={"Software": None})


def check_device(device: str, *, used: bool = True) -> None:
    """Refuse a device that there is not, before anything is trained; where nothing is trained, its name is all that counts."""
    if device == "cpu":
        return
    if not device.startswith("cuda"):
        raise ConfigError(f"device={device!r}: must be 'cpu' or 'cuda'.")
    if not used:
        return
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(f"device={device!r}: this machine has no CUDA device that PyTorch can use. Use --device cpu.")


def jobs_of(cells: Sequence[Cell], config: Config) -> list[Job]:
    """One job for each run; arms with equal settings share one."""
    unique = {cell.key(config.device): cell for cell in cells}
    gpu = config.device.startswith("cuda")
    return [Job(key, _function(cell.function), cell.arguments(config.device), gpu) for key, cell in unique.items()]


def _path(cell: Cell, config: Config, folder: Path) -> Path:
    return folder / f"{cell.key(config.device)}.json"


def _function(path: str) -> Callable[..., Any]:
    """`module:function` of this room, or with the whole path of another module."""
    module, _, name = path.partition(":")
    home = module if "." in module else f"noisewise.reproduce.{module}"
    function: Callable[..., Any] = getattr(import_module(home), name)
    return function


def _with(before: Measured, cells: Sequence[Cell], config: Config, folder: Path) -> Measured:
    """What was measured so far, and those of the runs that are there."""
    arms, tuning = ({arm: dict(runs) for arm, runs in of.items()} for of in (before.arms, before.tuning))
    for cell in cells:
        into = tuning if cell.tuning else arms
        runs = into.setdefault(cell.arm, {})
        path = _path(cell, config, folder)
        if path.exists():
            runs[cell.seed] = read_json(path)["result"]
    return Measured(arms, tuning)
