"""Carrying jobs out: those that are done are read, the others are done and kept one by one; nothing is lost silently."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from noisewise import errors
from noisewise.errors import ConfigError, Interrupted, PrivacyError, RunError
from noisewise.jobs.cluster import on_ray
from noisewise.jobs.job import Job, name_of
from noisewise.jobs.local import LOST, Event, in_processes, in_this_process
from noisewise.jobs.places import Local, Ray, Where
from noisewise.jobs.worker import BUG, MARK, STOPPED, Failure, Scene
from noisewise.progress import Bar
from noisewise.runs.files import hold, read_json, write_atomically, write_json

FORMAT = 1
LONG = 60.0  # seconds from which on it is said how long the rest takes
ENDED = "its worker was ended from outside twice, perhaps for want of memory: let fewer jobs run at a time."


def carry_out(
    jobs: Sequence[Job],
    folder: str | os.PathLike[str] | None,
    where: Where | None = None,
    *,
    keep: bool = True,
    go_on: bool = True,
    progress: bool = True,
    label: str = "jobs",
    note: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Results of all jobs by key; those that `folder` holds already are read, the others are done and written there.

    Ctrl-C stops the jobs at a point of their own choice (a training run keeps its checkpoint) and raises `Interrupted`; the
    same call goes on, here or elsewhere. A job whose worker is killed is tried once more. A job that fails does not stop the
    others: all errors are told at the end. The error is of the jobs' kind, if all failed alike.

    Args:
        jobs: each with a key of its own.
        folder: for the results, one process at a time; None: they are kept nowhere.
        where: `Local(2)` (default: this process) or `Ray("auto")`.
        keep: False where jobs know by themselves what is done: their results are then neither written nor read.
        go_on: False where a failure of one is a failure of all: the first one ends it.
        progress: show a bar, and after the first job how long the others will take.
        label: of the bar.
        note: JSON, written beside each result that is made now (`note_of` reads it).
    """
    where = Local() if where is None else where
    if not isinstance(where, Local | Ray):
        raise ConfigError(f"where={where!r}: must be Local(2) or Ray('auto').")
    if len({job.key for job in jobs}) < len(jobs):
        raise ConfigError("two jobs have one key: each needs its own.")
    for job in () if where == Local() else jobs:
        name_of(job.function)  # what no other process could do is said before any is asked
    path = None if folder is None else Path(folder)
    with nullcontext("") if path is None else _alone(path) as mark:
        kept = path if keep else None
        done = {} if kept is None else {job.key: _stored(job, kept) for job in jobs if _path(job, kept).exists()}
        left = [job for job in jobs if job.key not in done]
        scene = Scene.here(path, mark, where.threads)
        with Bar(label, len(jobs), done=len(done), show=progress) as bar:
            try:
                failed = _carry_out(left, where, scene, kept, done, bar, go_on, note)
            except (KeyboardInterrupt, Interrupted):
                raise Interrupted(
                    f"stopped with {len(done)} of {len(jobs)} done; nothing is lost. The same command goes on."
                ) from None
    _tell(failed, len(jobs))
    return {job.key: done[job.key] for job in jobs}


def _carry_out(
    left: Sequence[Job],
    where: Where,
    scene: Scene,
    folder: Path | None,
    done: dict[str, Any],
    bar: Bar,
    go_on: bool,
    note: Mapping[str, Any] | None,
) -> dict[str, Failure]:
    """Do what is left, and add it to what is done; what failed, by key."""
    queue, lost = deque(left), set[str]()
    failed: dict[str, Failure] = {}
    began, ended = time.monotonic(), 0
    with closing(_events(queue, where, scene)) as events:
        for job, outcome in events:
            if outcome is LOST and job.key not in lost:
                lost.add(job.key)
                queue.append(job)
                bar.note(f"{job.key}: its worker was ended from outside, and it is tried once more")
                continue
            outcome = Failure("RunError", ENDED) if outcome is LOST else outcome
            if isinstance(outcome, Failure):
                if outcome.kind == STOPPED:
                    raise KeyboardInterrupt
                if outcome.kind == BUG:
                    raise RuntimeError(f"job {job.key} ended in a bug:\n{outcome.words}")
                failed[job.key] = outcome
                bar.note(f"{job.key} failed")
                if not go_on:
                    break
            else:
                if folder is not None:
                    threads = _threads_here() if where == Local() else scene.threads
                    stored = {"format": FORMAT, "digest": job.digest, "threads": threads, "result": outcome}
                    write_json(_path(job, folder), stored if note is None else {**stored, "note": dict(note)})
                done[job.key] = outcome
            bar.advance(extra=job.key)
            ended += 1
            if ended == 1 and (seconds := (time.monotonic() - began) * (len(left) - 1) / (where.processes or 1)) > LONG:
                bar.note(f"{len(left) - 1} more {bar.label}, {duration(seconds)}")
    return failed


def _threads_here() -> int | None:
    """Of this process; None where nothing has asked for any."""
    return sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None


def duration(seconds: float) -> str:
    """About how long.

    >>> duration(40), duration(290), duration(8000)
    ('about 40 seconds', 'about 5 minutes', 'about 2.2 hours')
    """
    if seconds < 90:
        return f"about {max(seconds, 1):.0f} seconds"
    return f"about {seconds / 60:.0f} minutes" if seconds < 5400 else f"about {seconds / 3600:.1f} hours"


def _events(jobs: deque[Job], where: Where, scene: Scene) -> Generator[Event]:
    """What becomes of each job, as it ends."""
    if not jobs:
        return
    if isinstance(where, Ray):
        yield from on_ray(jobs, where, scene)
    elif where.processes == 1:
        yield from in_this_process(tuple(jobs))
    else:
        yield from in_processes(jobs, where.processes, scene)


def _tell(failed: dict[str, Failure], total: int) -> None:
    if not failed:
        return
    keys: dict[str, list[str]] = {}
    for key, failure in failed.items():
        keys.setdefault(failure.words, []).append(key)
    each = " ".join(f"{', '.join(sorted(of))}: {words}" for words, of in keys.items())
    kinds = {getattr(errors, failure.kind, RunError) for failure in failed.values()}
    private = any(issubclass(kind, PrivacyError) for kind in kinds)
    kind = kinds.pop() if len(kinds) == 1 else PrivacyError if private else RunError
    raise kind(f"{len(failed)} of {total} jobs failed; what was done is kept. {each}")


def note_of(key: str, folder: Path) -> dict[str, Any] | None:
    """What was noted beside the result of a job, if anything was."""
    note: dict[str, Any] | None = read_json(folder / f"{key}.json").get("note")
    return note


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
def _alone(folder: Path) -> Iterator[str]:
    """The folder, for one process at a time; gives the mark by which workers know it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        held = hold(folder / ".lock")
    except TimeoutError:
        raise RunError(f"{folder} is in use by another process: wait for it, or choose another folder.") from None
    with held:
        mark = folder / MARK
        if not mark.exists():
            write_atomically(mark, secrets.token_hex(16).encode())
        yield mark.read_text()
