"""Jobs that other processes find: quick ones, slow ones, and ones that fail."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from noisewise.errors import ConfigError


def double(number: int, trace: str | None = None) -> dict:
    """Twice the number, and who made it; `trace`: a folder that keeps count."""
    if trace is not None:
        (Path(trace) / f"{number}-{time.monotonic_ns()}").touch()
    return {"twice": 2 * number, "process": os.getpid(), "threads": os.environ.get("OMP_NUM_THREADS")}


def fail(number: int) -> None:
    raise ConfigError(f"number={number}: is not liked.")


def die() -> None:
    os._exit(9)


def crash() -> None:
    raise RuntimeError("a bug")


def stop(trace: str) -> None:
    """As Ctrl-C would, once."""
    if not (Path(trace) / "stopped").exists():
        (Path(trace) / "stopped").touch()
        raise KeyboardInterrupt


def slow(trace: str, number: int) -> int:
    """Half a minute, unless somebody stops it."""
    (Path(trace) / f"begun-{number}-{os.getpid()}").touch()
    if (Path(trace) / "quick").exists():
        return number
    try:
        time.sleep(30)
    except KeyboardInterrupt:
        (Path(trace) / f"saved-{number}").touch()
        raise
    return number


def killed_once(trace: str, number: int) -> int:
    """As if the machine had run out of memory, the first time."""
    if not list(Path(trace).glob("killed-*")):
        (Path(trace) / f"killed-{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def trained(seed: int) -> dict:
    """A small training, to the last bit."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    x, weights = torch.randn(64, 300, generator=generator), torch.zeros(300, requires_grad=True)
    for _ in range(20):
        ((x @ weights - x.sum(1)) ** 2).mean().backward()
        with torch.no_grad():
            weights -= 0.01 * weights.grad
            weights.grad = None
    return {"weights": weights.tolist()[:50], "threads": torch.get_num_threads()}
