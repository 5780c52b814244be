"""Is a run folder free, does it hold a run, is that finished? Light, so that it is said at once."""

from __future__ import annotations

import tomllib

from noisewise.errors import RunError
from noisewise.runs.folder import RunFolder


def check_out(folder: RunFolder, *, resume: bool) -> None:
    """Refuse a run folder that holds a run already, or one to resume that holds none."""
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


def check_finished(folder: RunFolder) -> None:
    """Refuse what is no folder of a finished run."""
    if folder.complete:
        return
    if folder.run.exists() or folder.checkpoint.exists():
        raise RunError(
            f"{folder.path} holds an unfinished run. Finish it with `noisewise train --resume --out {folder.path}`, or in "
            "Python with resume=True."
        )
    raise RunError(f"{folder.path} is no run folder: it holds no finished run. Check the name.")


def _wants_twin(folder: RunFolder) -> bool:
    try:
        return bool(tomllib.loads(folder.config.read_text()).get("twin", False))
    except (OSError, ValueError):  # a run of Python has no config and no twin
        return False
