"""Is a run folder free, does it hold a run, is that finished? Light, so that it is said at once."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from noisewise.errors import RunError
from noisewise.runs.files import temporary
from noisewise.runs.folder import RunFolder

MOST = 12  # names of runs that are listed
FEW = 3  # names of other files that are
EMPTY = (".DS_Store", ".gitignore", ".gitkeep")  # an empty folder may hold them


def check_out(folder: RunFolder, *, resume: bool) -> None:
    """Refuse a run folder that holds a run already, or something else, or one to resume that holds none."""
    if folder.path.is_file():
        raise RunError(f"{folder.path} is a file: --out must be a folder.")
    begun = folder.run.exists() or folder.checkpoint.exists()
    if resume:
        if not begun and not folder.config.exists():
            raise RunError(f"{folder.path} holds no run to go on with: check --out, or begin one without --resume.")
    elif begun:
        if folder.complete and (folder.twin_weights.exists() or not _wants_twin(folder)):
            raise RunError(f"{folder.path} holds a finished run: choose another --out, so that nothing is overwritten.")
        raise RunError(f"{folder.path} holds an unfinished run: go on with --resume, or choose another --out.")
    elif others := _others(folder):
        there = ", ".join(others[:FEW]) + (f" and {len(others) - FEW} more" if len(others) > FEW else "")
        raise RunError(
            f"{folder.path} holds something else than a run ({there}): choose another --out, so that nothing is overwritten "
            "and nothing of it is published with the model."
        )


def _others(folder: RunFolder) -> list[str]:
    """What is neither a schema or config of noisewise nor left by a run that broke off before its first checkpoint."""
    if not folder.path.is_dir():
        return []
    left = [folder.sensitive.name, *(temporary(path).name for path in (folder.config, folder.schema)), *EMPTY]
    return sorted(
        path.name for path in folder.path.iterdir() if path.name not in left and not _is_config_or_schema(path)
    )


def _is_config_or_schema(path: Path) -> bool:
    """Is it a file of settings or columns, which says by which format it is written?"""
    try:
        if path.suffix == ".toml":
            return "format" in tomllib.loads(path.read_text("utf-8"))
        return path.name == "schema.json" and "format" in json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def check_finished(folder: RunFolder) -> None:
    """Refuse what is no folder of a finished run."""
    if folder.complete:
        return
    if folder.run.exists() or folder.checkpoint.exists():
        raise RunError(
            f"{folder.path} holds an unfinished run. Finish it with `noisewise train --resume --out {folder.path}`, or in "
            "Python with resume=True."
        )
    check_no_folder_of_runs(folder)
    raise RunError(f"{folder.path} is no run folder: it holds no finished run. Check the name.")


def check_no_folder_of_runs(folder: RunFolder) -> None:
    """Refuse a folder that holds runs, as `sweep` and `train --seeds` make it, and say which there are."""
    names = sorted(path.parent.name for path in folder.path.glob("*/run.json"))
    if folder.run.exists() or not names:
        return
    chosen = _chosen(folder)
    first = chosen if chosen in names else names[0]
    there = ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")
    count = "1 run" if len(names) == 1 else f"{len(names)} runs"
    best = f" (the sweep chose {chosen})" if chosen in names else ""
    raise RunError(
        f"{folder.path} holds {count} and is none itself: {there}{best}. Name one of them, e.g. {folder.path / first}."
    )


def _chosen(folder: RunFolder) -> str | None:
    """The run that a sweep has chosen."""
    try:
        chosen = json.loads((folder.path / "sweep.json").read_text())["chosen"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return chosen if isinstance(chosen, str) else None


def _wants_twin(folder: RunFolder) -> bool:
    try:
        return bool(tomllib.loads(folder.config.read_text()).get("twin", False))
    except (OSError, ValueError):  # a run of Python has no config and no twin
        return False
