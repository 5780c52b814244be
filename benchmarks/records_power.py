"""How much energy a piece of work takes: power of the GPU read while it runs, or the processor's own counter."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

COUNTER = Path("/sys/class/powercap/intel-rapl:0/energy_uj")
EVERY = 100  # milliseconds between two readings of a GPU


class Meter:
    """Seconds and joules; `how` says what was measured. Of a GPU that others use too, joules are the whole board's."""

    def __init__(self) -> None:
        self.seconds, self.joules, self.how = 0.0, None, "not measured"


@contextmanager
def metered(device: str) -> Iterator[Meter]:
    """Measure what happens inside."""
    meter, began = Meter(), time.monotonic()
    with _gpu(meter) if device.startswith("cuda") else _processor(meter):
        yield meter
        if device.startswith("cuda"):
            import torch

            torch.cuda.synchronize()
        meter.seconds = time.monotonic() - began


@contextmanager
def _processor(meter: Meter) -> Iterator[None]:
    """Intel's counter of the package, where it can be read; it starts anew when it is full."""
    before = _counter()
    yield
    after = _counter()
    if before is not None and after is not None and after >= before:
        meter.joules, meter.how = (after - before) / 1e6, "RAPL, the whole package"


def _counter() -> int | None:
    try:
        return int(COUNTER.read_text())
    except (OSError, ValueError):
        return None


@contextmanager
def _gpu(meter: Meter) -> Iterator[None]:
    """Readings of nvidia-smi, added up over time."""
    if shutil.which("nvidia-smi") is None:
        yield
        return
    command = ["nvidia-smi", "--id=0", "--query-gpu=power.draw", "--format=csv,noheader,nounits", f"-lms={EVERY}"]
    readings: list[tuple[float, float]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=_read, args=(process.stdout, readings), daemon=True)
        reader.start()
        began = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            process.terminate()
    reader.join(5)
    if readings:
        mean = sum(watts for _, watts in readings) / len(readings)
        meter.joules, meter.how = mean * (ended - began), f"nvidia-smi, {len(readings)} readings of the board's power"


def _read(lines: IO[str], readings: list[tuple[float, float]]) -> None:
    for line in lines:
        try:
            readings.append((time.monotonic(), float(line)))
        except ValueError:
            continue
