"""Jobs on a Ray cluster: Ray says where there is room; messages and outcomes cross as JSON text, records never do."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from noisewise.errors import ConfigError, PrivacyWarning, RunError
from noisewise.jobs.job import Job
from noisewise.jobs.local import LOST, Event
from noisewise.jobs.places import Ray
from noisewise.jobs.worker import STOPPED, Failure, Scene, do_far, mark_of, outcome_of

AUTHENTICATION = "RAY_AUTH_MODE"
OPEN = (
    f"this Ray asks for no token ({AUTHENTICATION}): whoever reaches its ports runs code as you, and reads the records. `ray "
    f"get-auth-token --generate` before `ray start`, and {AUTHENTICATION}=token."
)
ANSWER = 5.0  # seconds in which a cluster must answer
SAVING = 60.0  # seconds that a worker has to save what it is at
OBJECTS = 10**8  # bytes for objects, of which there are none: messages are short


def on_ray(jobs: deque[Job], where: Ray, scene: Scene) -> Iterator[Event]:
    """As many at a time as there is room for. Whoever listens may append jobs; ended early, those at work are asked to stop."""
    with _connected(where) as ray:
        _check_room(ray.cluster_resources(), scene.threads, max(where.share(job.gpu) for job in jobs))
        task, at_work = ray.remote(do_far), dict[Any, Job]()
        try:
            while jobs or at_work:
                while jobs and len(at_work) < (where.processes or float("inf")):
                    job = jobs.popleft()
                    needs = {"num_cpus": scene.threads, "num_gpus": where.share(job.gpu)}
                    sent = task.options(name=job.key, max_retries=0, **needs).remote(scene.message(job))
                    at_work[sent] = job
                for ended in ray.wait(list(at_work), num_returns=1)[0]:
                    outcome = _outcome(ray, ended)
                    yield at_work.pop(ended), outcome
        finally:
            for sent in at_work:
                ray.cancel(sent)
            if at_work:
                ray.wait(list(at_work), num_returns=len(at_work))
                _wait_for_marks(scene.folder, [job.key for job in at_work.values()])


def _wait_for_marks(folder: str | None, keys: list[str]) -> None:
    """Wait for workers that still save: Ray may call a task cancelled while its worker is at work, and ends it with us."""
    marks = [] if folder is None else [mark_of(folder, key) for key in keys]
    end = time.monotonic() + SAVING
    while any(mark.exists() for mark in marks) and time.monotonic() < end:
        time.sleep(0.05)
    for mark in marks:
        mark.unlink(missing_ok=True)  # of a worker that was killed


def _outcome(ray: Any, ended: Any) -> Any:
    """What became of a task: what it told, or that its process or machine is gone."""
    try:
        return outcome_of(ray.get(ended))
    except ray.exceptions.TaskCancelledError:
        return Failure(STOPPED, "")
    except (ray.exceptions.RaySystemError, ray.exceptions.RayTaskError) as error:  # before our code had begun
        return Failure("RunError", f"a worker could not begin ({error}): is noisewise installed on all machines?")
    except ray.exceptions.RayError:
        return LOST


@contextmanager
def _connected(where: Ray) -> Iterator[Any]:
    """Ray, at the address; a connection that the user has made already is used, and left as it is."""
    import ray

    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    _check_answers(where.address)
    own: AbstractContextManager[dict[str, Any]] = _alone() if where.address == "local" else nullcontext({})
    with own as more:
        try:
            ray.init(address=where.address, log_to_driver=False, logging_level=logging.ERROR, **more)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _unreached(where.address, error) from None
        try:
            if os.environ.get(AUTHENTICATION) != "token":  # Ray says so there, where it asks for one
                warnings.warn(OPEN, PrivacyWarning, stacklevel=2)
            yield ray
        finally:
            ray.shutdown()


def _check_answers(address: str) -> None:
    """Refuse HOST:PORT where nobody listens: Ray itself would ask for minutes."""
    host, _, port = address.rpartition(":")
    if not host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
    except (OSError, OverflowError) as error:
        raise _unreached(address, error) from None


def _unreached(address: str, error: Exception) -> RunError:
    return RunError(
        f"ray {address}: no cluster could be reached ({error}). `ray start --head` starts one; local needs none."
    )


@contextmanager
def _alone() -> Iterator[dict[str, Any]]:
    """Settings of a Ray of one's own: sockets and logs in a folder of this user's, and little memory for objects."""
    near = "/tmp" if os.path.isdir("/tmp") else None  # names of sockets must be short
    with tempfile.TemporaryDirectory(prefix="nw-", dir=near, ignore_cleanup_errors=True) as folder:  # of mode 700
        yield {"include_dashboard": False, "object_store_memory": OBJECTS, "_temp_dir": f"{folder}/ray"}


def _check_room(there: dict[str, float], cpus: int, gpus: float) -> None:
    """Refuse jobs that would wait for ever."""
    if there.get("CPU", 0) < cpus:
        raise ConfigError(
            f"each job has {cpus} threads, and the Ray cluster {there.get('CPU', 0):g} CPUs: set OMP_NUM_THREADS to fewer."
        )
    if there.get("GPU", 0) < gpus:
        raise ConfigError(
            "the jobs need a GPU, and the Ray cluster has none: use --device cpu, or a cluster with GPUs."
        )
