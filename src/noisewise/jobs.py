"""Many jobs on this machine, one after another or several at a time; what is done stays done, whatever stops the rest.

A `Job` is a function, a key and settings; `carry_out` is all there is to call. Results are JSON files by key, so that a second
call does what is missing. Nothing here knows what a job does: sweeps, seeds, shadow models and reproductions are the same.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from noisewise.errors import ConfigError, Interrupted, NoisewiseError, RunError
from noisewise.progress import Bar
from noisewise.runs.files import hold, read_json, write_json

FORMAT = 1
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+-]{0,119}")
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Job:
    """`function(**settings)`, known by its key.

    function: found by its name in a module, so that another process finds it too. settings, and what it returns: JSON.
    """

    key: str
    function: Callable[..., Any]
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        """A key that names a file, a function that another process finds, settings that can be written down."""
        if not KEY.fullmatch(self.key):
            raise ConfigError(f"job {self.key!r}: a key has at most 120 letters, digits and . _ = , + - only.")
        home, name = getattr(self.function, "__module__", ""), getattr(self.function, "__qualname__", "")
        if getattr(sys.modules.get(home), name, None) is not self.function:
            raise ConfigError(
                f"job {self.key}: {self.function!r} is no function of a module, so no process could find it."
            )
        try:
            json.dumps(dict(self.settings), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"job {self.key}: its settings cannot be written as JSON ({error}).") from None

    @property
    def digest(self) -> str:
        """Of the function's name and the settings: what a stored result must be of."""
        text = json.dumps([self.function.__module__, self.function.__qualname__, dict(self.settings)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def carry_out(
    jobs: Sequence[Job],
    folder: str | os.PathLike[str],
    *,
    processes: int = 1,
    progress: bool = True,
    label: str = "jobs",
) -> dict[str, Any]:
    """Results of all jobs by key; those that `folder` holds already are read, the others are done and written there.

    Ctrl-C stops the jobs at a point of their own choice (a training run keeps its checkpoint) and raises `Interrupted`; the
    same call goes on. A job that fails with an error of ours does not stop the others: all errors are told at the end.
    """
    if type(processes) is not int or processes < 1:
        raise ConfigError(f"processes={processes!r}: must be a whole number >= 1, e.g. the number of cores.")
    if len({job.key for job in jobs}) < len(jobs):
        raise ConfigError("two jobs have one key: each needs its own.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        done = {job.key: _stored(job, folder) for job in jobs if _path(job, folder).exists()}
        left = [job for job in jobs if job.key not in done]
        failed: dict[str, str] = {}
        with Bar(label, len(jobs), done=len(done), show=progress) as bar:
            for job, outcome in _outcomes(left, processes, len(done), len(jobs)):
                if isinstance(outcome, NoisewiseError):
                    failed[job.key] = str(outcome)
                    bar.note(f"{job.key} failed")
                else:
                    write_json(_path(job, folder), {"format": FORMAT, "digest": job.digest, "result": outcome})
                    done[job.key] = outcome
                bar.advance(extra=job.key)
    if failed:
        each = " ".join(f"{key}: {words}" for key, words in failed.items())
        raise RunError(f"{len(failed)} of {len(jobs)} jobs failed; the others are kept. {each}")
    return {job.key: done[job.key] for job in jobs}


def _path(job: Job, folder: Path) -> Path:
    return folder / f"{job.key}.json"


def _stored(job: Job, folder: Path) -> Any:
    raw = read_json(_path(job, folder))
    if not isinstance(raw, dict) or raw.get("format") != FORMAT or "result" not in raw:
        raise RunError(f"{_path(job, folder)} is no result of a job: take it away, and it is done again.")
    if raw.get("digest") != job.digest:
        raise RunError(
            f"{_path(job, folder)} is a result of other settings: choose another folder, or take it away to have it done anew."
        )
    return raw["result"]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    try:
        held = hold(folder / ".lock")
    except TimeoutError:
        raise RunError(f"{folder} is in use by another process: wait for it, or choose another folder.") from None
    with held:
        yield


Outcome = Any  # a result, or an error of ours


def _outcomes(jobs: Sequence[Job], processes: int, before: int, total: int) -> Iterator[tuple[Job, Outcome]]:
    """What becomes of each job, as it ends; Ctrl-C ends in `Interrupted`."""
    ended = before
    try:
        for pair in _here(jobs) if processes == 1 or len(jobs) < 2 else _in_processes(jobs, processes):
            if isinstance(pair[1], Interrupted):
                raise KeyboardInterrupt
            ended += 1
            yield pair
    except KeyboardInterrupt:
        raise Interrupted(f"stopped with {ended} of {total} done; nothing is lost. The same command goes on.") from None


def _here(jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
    for job in jobs:
        try:
            yield job, job.function(**job.settings)
        except NoisewiseError as error:
            yield job, error


def _in_processes(jobs: Sequence[Job], processes: int) -> Iterator[tuple[Job, Outcome]]:
    others = set(multiprocessing.active_children())
    with _threads_shared(processes):
        pool = ProcessPoolExecutor(
            min(processes, len(jobs)), multiprocessing.get_context("spawn"), initializer=_begin, initargs=(os.getpid(),)
        )
        futures: dict[Future[Any], Job] = {pool.submit(_work, job): job for job in jobs}
        stopped = True
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
            stopped = False
        except BrokenProcessPool:
            raise RunError(
                "a process was ended from outside, perhaps for want of memory: what was done is kept. Use fewer processes, "
                "then the same command goes on."
            ) from None
        finally:
            if stopped:
                _stop(pool, [child for child in multiprocessing.active_children() if child not in others])
            pool.shutdown(wait=True, cancel_futures=True)


def _stop(pool: ProcessPoolExecutor, workers: Sequence[Any]) -> None:
    """Ask each worker once to stop where it can; the pool is waited for afterwards."""
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()


@contextmanager
def _threads_shared(processes: int) -> Iterator[None]:
    """Workers share the cores instead of each taking all of them; a number that the user chose stays."""
    if THREADS in os.environ:
        yield
        return
    os.environ[THREADS] = str(max(1, (os.cpu_count() or 1) // processes))
    try:
        yield
    finally:
        del os.environ[THREADS]


# --- in a worker -------------------------------------------------------------------------------------------------------

_at_work = False
_asked_to_stop = False


def _begin(parent: int) -> None:
    """A worker does not hear Ctrl-C on the terminal: its parent does, and asks it once. Without a parent it stops by itself."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _asked)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _asked(number: int, frame: FrameType | None) -> None:
    global _asked_to_stop
    _asked_to_stop = True
    if _at_work:
        raise KeyboardInterrupt


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    while _at_work:
        time.sleep(0.5)
    os._exit(1)


def _work(job: Job) -> Outcome:
    global _at_work
    if _asked_to_stop:
        return Interrupted("stopped before it began")
    try:
        _at_work = True
        return job.function(**job.settings)
    except KeyboardInterrupt:
        return Interrupted("stopped")
    except NoisewiseError as error:
        return error
    finally:
        _at_work = False
