"""Several processes that train together, forked from this one: torch is imported once, and they meet by a file."""

import os
import pickle
import signal
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from kills import warm_up
from noisewise import distributed, noise
from noisewise.distributed import Team

TIMEOUT = 20.0  # seconds that ranks wait for each other


class Gone(Exception):
    """A rank that a signal ended."""


def _child(rank, size, meeting, answer, act, arguments, timeout):
    try:
        torch.set_num_threads(1)
        noise._pool.cache_clear()  # threads are not forked
        store = f"file://{meeting}"
        dist.init_process_group("gloo", store, timedelta(seconds=timeout), size, rank)
        team = distributed.team_of()
        result = act(team, *arguments)
        distributed.end()
    except BaseException as error:
        error.where = traceback.format_exc()
        result = error
    try:
        content = pickle.dumps(result)
    except Exception as error:
        content = pickle.dumps(RuntimeError(f"{result!r} cannot be sent: {error}"))
    unfinished = answer.with_suffix(".unfinished")
    unfinished.write_bytes(content)
    os.replace(unfinished, answer)


def outcomes(size, act, *arguments, timeout=TIMEOUT, strike=None):
    """What `act(team, *arguments)` returns or raises on each rank; `strike(children)` may kill some of them."""
    warm_up()
    with tempfile.TemporaryDirectory() as work:
        answers = [Path(work, str(rank)) for rank in range(size)]
        children = []
        for rank in range(size):
            child = os.fork()
            if not child:
                try:
                    _child(rank, size, Path(work, "meeting"), answers[rank], act, arguments, timeout)
                finally:
                    os._exit(0)
            children.append(child)
        if strike is not None:
            strike(children)
        deadline = time.monotonic() + 120
        waiting = set(children)
        while waiting:
            for child in list(waiting):
                if os.waitpid(child, os.WNOHANG)[0]:
                    waiting.discard(child)
            if time.monotonic() > deadline:
                for child in waiting:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                raise TimeoutError("ranks did not end")
            time.sleep(0.005)
        return [pickle.loads(path.read_bytes()) if path.exists() else Gone() for path in answers]


def on_ranks(size, act, *arguments, **settings):
    """What `act(team, *arguments)` returns on each of `size` ranks; one process needs no other."""
    if size == 1:
        return [act(Team(), *arguments)]
    results = outcomes(size, act, *arguments, **settings)
    for rank, result in enumerate(results):
        if isinstance(result, BaseException):
            raise AssertionError(f"rank {rank}: {getattr(result, 'where', result)!s}") from result
    return results
