"""Files that are whole: written aside, on the disk before they have their name, and read with errors that name them.

`settle` is the one way in which a finished file (or folder) gets its name, `hold` the one lock between processes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import filelock

from noisewise.errors import RunError


def write_atomically(path: Path, content: bytes) -> None:
    """Whoever reads `path` sees the old file or the new one, also after a kill or a power cut.

    One process at a time: what is half written has the name that `temporary` gives.
    """
    unfinished = temporary(path)
    try:
        unfinished.write_bytes(content)
        settle(unfinished, path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise RunError(
            f"{path} could not be written ({error.strerror}). What was there before is kept. Free space or choose another "
            "folder; a run is then resumed."
        ) from error


def temporary(path: Path) -> Path:
    """Where a file lies while `write_atomically` writes it."""
    return path.with_name(f".{path.name}.tmp")


def settle(finished: Path, path: Path) -> None:
    """Give what is finished its name, in place of what had it: first its content is on the disk, then the name."""
    _sync(finished)
    os.replace(finished, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Everything of a file, or the names in a folder (which Windows writes by itself), is on the disk."""
    if os.name == "nt" and path.is_dir():
        return
    opened = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def write_json(path: Path, content: Any) -> None:
    """Readable JSON; infinite numbers as the string 'inf'."""
    write_atomically(path, (json.dumps(finite(content), indent=2, allow_nan=False) + "\n").encode())


def finite(value: Any) -> Any:
    """The same nest, with numbers that JSON does not know as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def read_json(path: Path) -> Any:
    """JSON of a run folder, or an error that names the file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise RunError(f"{path} does not exist: is this a run folder that `noisewise train --out` finished?") from None
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise RunError(f"{path} cannot be read ({error}): restore it from a copy.") from None


def hold(path: Path) -> AbstractContextManager[Any]:
    """A lock between processes on the file `path`, held until it is left or its process ends, however that ends.

    TimeoutError: another one holds it; any other OSError: there can be no lock.
    """
    return filelock.FileLock(path, timeout=0, fallback_to_soft=False).acquire()
