"""What a worker does, wherever it is: a message comes in, an outcome goes back, both as JSON text. Nothing is pickled."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from noisewise import __version__
from noisewise.errors import Interrupted, NoisewiseError, RunError, full_memory, memory_ran_out
from noisewise.jobs.job import Job, name_of, named
from noisewise.jobs.places import THREADS
from noisewise.runs.files import finite

MARK = ".here"  # in the folder of results: by it a worker knows that it sees the same folder
VARIABLES = "NOISEWISE_"  # beginning of names in the environment that workers share, such as where data are kept
TRACE = ".error.txt"  # after a job's key, in the folder of results: the text of a bug
AT_WORK = ".at-work"  # after a job's key, in the folder of results, while a worker elsewhere does it
STOPPED, BUG = "stopped", "bug"  # kinds of failure beside those of `NoisewiseError`


@dataclass(frozen=True)
class Failure:
    """Why a job has no result: the kind of error and its words."""

    kind: str
    words: str


@dataclass(frozen=True)
class Scene:
    """What workers must have in common with who asks: folders, mark, versions, variables; and the threads of each job."""

    at: str
    modules: list[str]
    folder: str | None
    mark: str
    threads: int
    versions: dict[str, str]
    environment: dict[str, str]

    @classmethod
    def here(cls, folder: Path | None, mark: str, threads: int) -> Scene:
        """That of this process."""
        modules = [os.path.abspath(path) for path in sys.path]
        variables = {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
        kept = None if folder is None else str(folder.absolute())
        return cls(os.getcwd(), modules, kept, mark, threads, _versions(), variables)

    def message(self, job: Job) -> str:
        """What a worker is told."""
        settings = {"function": name_of(job.function), "settings": dict(job.settings)}
        return json.dumps({"key": job.key, **settings, "scene": vars(self)})


def do(message: str) -> str:
    """Do the job of a message; its outcome, never an exception. The text of a bug may quote a row: it stays on this machine."""
    return _outcome(message, lambda error: "".join(traceback.format_exception(error)))


def do_far(message: str) -> str:
    """As `do`, for who is elsewhere: of a bug its kind and place; its text goes to a file of the folder, for the owner."""
    told = json.loads(message)
    _hear_of_stops()
    with _marked(told["scene"]["folder"], told["key"]):
        return _outcome(message, lambda error: _kept_here(error, told))


def _hear_of_stops() -> None:
    """Let this process be stopped: one that a shell started in the background ignores Ctrl-C, and all that it starts do."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, signal.default_int_handler)


def mark_of(folder: str, key: str) -> Path:
    """The file that is there while a worker elsewhere does a job."""
    return Path(folder, f".{key}{AT_WORK}")


@contextmanager
def _marked(folder: str | None, key: str) -> Iterator[None]:
    """Leave a mark in the folder as long as it takes; a folder that is not there is said by `_take_part`."""
    with suppress(OSError):
        if folder is not None:
            mark_of(folder, key).touch()
    try:
        yield
    finally:
        with suppress(OSError):
            if folder is not None:
                mark_of(folder, key).unlink(missing_ok=True)


def _outcome(message: str, told_of: Callable[[Exception], str]) -> str:
    try:
        told = json.loads(message)
        scene = Scene(**told["scene"])
        _take_part(scene)
        return json.dumps({"result": plainly(named(told["function"])(**told["settings"]))})
    except (KeyboardInterrupt, Interrupted):
        return json.dumps({"kind": STOPPED, "words": ""})
    except NoisewiseError as error:
        return json.dumps({"kind": type(error).__name__, "words": str(error)})
    except Exception as error:
        if memory_ran_out(error):
            return json.dumps({"kind": RunError.__name__, "words": full_memory(error)})
        return json.dumps({"kind": BUG, "words": told_of(error)})


def _kept_here(error: Exception, told: Mapping[str, Any]) -> str:
    """The kind of an error, its place, and the file that has all of it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    kind = f"{type(error).__name__} at {last.filename}:{last.lineno}"
    folder = told["scene"]["folder"]
    if folder is None:
        return f"{kind}. Its text may quote a row and is not kept, since these jobs have no folder: do them on local processes."
    path = Path(folder, f"{told['key']}{TRACE}")
    try:
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError as failure:
        return f"{kind}. Its text may quote a row, and {path} could not be written ({failure.strerror})."
    return f"{kind}. Its text may quote a row: it is in {path}, for you alone."


def outcome_of(text: str) -> Any:
    """What `do` has told: a result, or a `Failure`."""
    told = json.loads(text)
    return told["result"] if "result" in told else Failure(**told)


def plainly(result: Any) -> Any:
    """A result as its file will have it."""
    return json.loads(json.dumps(finite(result), allow_nan=False))


def _versions() -> dict[str, str]:
    python = ".".join(map(str, sys.version_info[:2]))
    return {"noisewise": __version__, "torch": version("torch"), "numpy": version("numpy"), "python": python}


def _take_part(scene: Scene) -> None:
    """Same versions, same files, the right number of threads; what differs is refused."""
    other = [f"{name} {has} instead of {scene.versions[name]}" for name, has in _versions().items()
             if has != scene.versions[name]]  # fmt: skip
    if other:
        raise RunError(f"a worker has {', '.join(other)}: results would not be comparable. Install the same versions.")
    try:
        os.chdir(scene.at)
        same = scene.folder is None or Path(scene.folder, MARK).read_text() == scene.mark
    except OSError:
        same = False
    if not same:
        raise RunError(
            f"a worker does not see the files of {scene.folder or scene.at}: all machines need a shared file system with the "
            "same paths."
        )
    sys.path += [path for path in scene.modules if path not in sys.path]
    os.environ |= {**scene.environment, THREADS: str(scene.threads)}
    if "torch" in sys.modules and sys.modules["torch"].get_num_threads() != scene.threads:
        sys.modules["torch"].set_num_threads(scene.threads)
