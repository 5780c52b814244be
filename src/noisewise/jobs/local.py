"""Jobs on processes of this machine: each worker does one at a time, and hears of Ctrl-C from its parent alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from noisewise.errors import Interrupted, NoisewiseError, RunError
from noisewise.jobs.job import Job
from noisewise.jobs.places import THREADS
from noisewise.jobs.worker import STOPPED, Failure, Scene, do, outcome_of, plainly

Event = tuple[Job, Any]  # a job, and its result, a `Failure`, or `LOST`: its worker was ended from outside
LOST = object()
READY = b"ready"


def in_this_process(jobs: Sequence[Job]) -> Iterator[Event]:
    """One after another, here; a bug is not caught."""
    for job in jobs:
        try:
            yield job, plainly(job.function(**job.settings))
        except (KeyboardInterrupt, Interrupted):
            yield job, Failure(STOPPED, "")
        except NoisewiseError as error:
            yield job, Failure(type(error).__name__, str(error))


@dataclass
class _Worker:
    """A process, the line to it, and what it is doing."""

    process: BaseProcess
    line: Connection[Any, Any]
    job: Job | None = None
    ready: bool = False

    def take(self, job: Job, scene: Scene) -> None:
        self.job = job
        with suppress(OSError):  # it has just died: seen when it is listened to
            self.line.send_bytes(scene.message(job).encode())

    def heard(self) -> bytes | None:
        """What it says; None: it is gone."""
        try:
            return self.line.recv_bytes()
        except (EOFError, OSError):
            return None


def in_processes(jobs: deque[Job], processes: int, scene: Scene) -> Iterator[Event]:
    """Several at a time. Whoever listens may append jobs while they are done; ended early, workers are asked to stop."""
    workers: list[_Worker] = []
    with _environment(scene.threads):
        try:
            while jobs or any(worker.job for worker in workers):
                while len(workers) < min(processes, len(jobs) + sum(worker.job is not None for worker in workers)):
                    workers.append(_started())
                yield from _heard(workers, jobs, scene)
        finally:
            _end(workers)


def _heard(workers: list[_Worker], jobs: deque[Job], scene: Scene) -> Iterator[Event]:
    """Wait until a worker says something or is gone; hand out what there is to do."""
    by_line: dict[Any, _Worker] = {worker.line: worker for worker in workers}
    for line in wait(list(by_line)):
        worker = by_line[line]
        said, job = worker.heard(), worker.job
        if said is None:
            workers.remove(worker)
            worker.process.join()
            if not worker.ready:
                raise RunError(
                    f"a process could not be started (exit code {worker.process.exitcode}). In a script, call this under "
                    "if __name__ == '__main__': each process reads the script anew."
                )
        worker.ready, worker.job = True, None
        if job is not None:
            yield job, LOST if said is None else outcome_of(said.decode())
        if said is not None and jobs:
            worker.take(jobs.popleft(), scene)
    for worker in workers:  # jobs that came back to those that are idle
        if worker.ready and worker.job is None and jobs:
            worker.take(jobs.popleft(), scene)


def _started() -> _Worker:
    context = multiprocessing.get_context("spawn")  # torch does not survive a fork
    line, far = context.Pipe()
    process = context.Process(target=_serve, args=(far, os.getpid()), daemon=False)
    with _deaf():
        process.start()
    far.close()
    return _Worker(process, line)


@contextmanager
def _deaf() -> Iterator[None]:
    """A process that is started now does not hear Ctrl-C while it comes up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(workers: Sequence[_Worker]) -> None:
    """Idle workers leave when their line is closed; those at work are asked once to stop where they can, and waited for."""
    for worker in workers:
        if worker.job is not None:
            worker.process.terminate()
        worker.line.close()
    try:
        for worker in workers:
            worker.process.join()
    except KeyboardInterrupt:  # asked a second time: at once
        for worker in workers:
            worker.process.kill()
        raise


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Workers share the cores instead of each taking all of them."""
    before = os.environ.get(THREADS)
    os.environ[THREADS] = str(threads)
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREADS]
        else:
            os.environ[THREADS] = before


# --- in a worker -------------------------------------------------------------------------------------------------------

_at_work = False
_asked_to_stop = False


def _serve(line: Connection[Any, Any], parent: int) -> None:
    """Do what comes, until the line is closed. Without a parent the worker stops by itself."""
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _asked)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    try:
        line.send_bytes(READY)
        while not _asked_to_stop:
            line.send_bytes(_done(line.recv_bytes().decode()).encode())
    except (EOFError, OSError, KeyboardInterrupt):
        return


def _done(message: str) -> str:
    global _at_work
    try:
        _at_work = True
        return do(message)
    finally:
        _at_work = False


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
