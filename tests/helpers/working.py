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


def fill() -> None:
    raise MemoryError("a row of somebody's")


def quote(row: str) -> None:
    """A bug whose text has a value of a row in it."""
    float(row)


def stop(trace: str) -> None:
    """As Ctrl-C would, once."""
    if not (Path(trace) / "stopped").exists():
        (Path(trace) / "stopped").touch()
        raise KeyboardInterrupt


def slow(trace: str, number: int) -> int:
    """Five minutes, unless somebody stops it."""
    (Path(trace) / f"begun-{number}-{os.getpid()}").touch()
    if (Path(trace) / "quick").exists():
        return number
    try:
        time.sleep(300)
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


def nap(trace: str, number: int) -> int:
    """Five minutes in short breaths, unless somebody stops it: then it says so. Quick where that was asked for."""
    end = time.monotonic() + (0 if (Path(trace) / "quick").exists() else 300)
    try:
        (Path(trace) / f"begun-{number}-{os.getpid()}").touch()
        while time.monotonic() < end:
            time.sleep(0.05)
    except KeyboardInterrupt:
        time.sleep(1.0)  # saving takes its time
        (Path(trace) / f"saved-{number}").touch()
        raise
    return number


def together(trace: str, number: int, others: int) -> dict:
    """Ends when so many are at work at the same time; says which GPU it was given."""
    (Path(trace) / f"here-{number}").touch()
    end = time.monotonic() + 300  # the other one may still import torch on a busy machine
    while len(list(Path(trace).glob("here-*"))) < others and time.monotonic() < end:
        time.sleep(0.02)
    return {"met": len(list(Path(trace).glob("here-*"))), "gpu": os.environ.get("CUDA_VISIBLE_DEVICES")}


def infinite() -> dict:
    return {"epsilon": float("inf"), "pair": (1, 2)}


def linear(seed: int):
    """A start for each seed."""
    import torch

    return torch.nn.Linear(4, 2)


def row_loss(model, batch):
    import torch

    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


def fitted(data, seed: int, steps: int = 3):
    """A small training of a shadow; one that is killed while it runs, where a file asks for it."""
    import torch

    victim = Path(os.environ.get("KILL_ONE", ""))
    if victim.name and victim.exists():
        victim.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    model = torch.nn.Linear(data.x.shape[1], 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data.x), data.y).backward()
        optimizer.step()
    return model


def variables() -> dict:
    return {"NOISEWISE_DATA": os.environ.get("NOISEWISE_DATA")}


def look_into(folder: str) -> list[str]:
    """What lies there."""
    return sorted(path.name for path in Path(folder).iterdir())
