"""Where jobs run: on processes of this machine, or on a Ray cluster. Light, so that mistakes are said at once."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeAlias

from noisewise.errors import ConfigError

THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Local:
    """So many processes of this machine, which share its cores and its GPU; one: the process that asks."""

    processes: int = 1

    def __post_init__(self) -> None:
        """At least one."""
        _check_count("processes", self.processes, "the number of cores")

    @property
    def threads(self) -> int:
        """Of each job: what OMP_NUM_THREADS says, else its share of the cores."""
        return _asked_threads() or max(1, (os.cpu_count() or 1) // self.processes)


@dataclass(frozen=True)
class Ray:
    """A Ray cluster, on whose machines the same files lie under the same paths.

    Args:
        address: `auto` (the cluster that this machine is part of), `HOST:PORT`, or `local` (one of its own, on this machine).
        processes: at most so many jobs at a time; None: as many as there is room for.
        per_gpu: so many jobs share a GPU, and each uses one; None: those that say that they need one have it alone.

    Each job has as many threads as OMP_NUM_THREADS says, else one, and counts as so many CPUs.
    """

    address: str = "auto"
    processes: int | None = None
    per_gpu: int | None = None

    def __post_init__(self) -> None:
        """Ray is installed; an address that leads to machines with the same files."""
        if self.processes is not None:
            _check_count("processes", self.processes, "the number of cores")
        if self.per_gpu is not None:
            _check_count("per_gpu", self.per_gpu, "4")
        if not isinstance(self.address, str) or not self.address:
            raise ConfigError(f"ray {self.address!r}: an address is auto, local or HOST:PORT.")
        if "://" in self.address:
            raise ConfigError(
                f"ray {self.address}: a client far from the cluster does not have its files. Start the command on a machine "
                "of the cluster, with auto."
            )
        if self.address not in ("auto", "local") and not re.fullmatch(r"\S+:[0-9]{1,5}", self.address):
            raise ConfigError(f"ray {self.address}: an address is auto, local or HOST:PORT, e.g. head:6379.")
        if find_spec("ray") is None:
            raise ConfigError(
                f"ray {self.address}: Ray is not installed. pip install 'noisewise[ray]', or leave it out: local processes "
                "do the same jobs."
            )

    @property
    def threads(self) -> int:
        """Of each job."""
        return _asked_threads() or 1

    def share(self, gpu: bool) -> float:
        """How much of a GPU a job has, that says whether it needs one."""
        return float(gpu) if self.per_gpu is None else 1 / self.per_gpu


Where: TypeAlias = Local | Ray


def chosen(jobs: int | None = None, ray: str | None = None, per_gpu: int | None = None) -> Where:
    """What the options of a command say: `--jobs`, `--ray`, `--per-gpu`."""
    if ray is not None:
        return Ray(ray, None if jobs is None else _jobs(jobs), per_gpu)
    if per_gpu is not None:
        raise ConfigError(
            f"--per-gpu {per_gpu} without --ray: local processes share the GPU as they are; --jobs says how many."
        )
    return Local(1 if jobs is None else _jobs(jobs))


def _jobs(count: int) -> int:
    """What --jobs says, and a mistake under its name."""
    _check_count("jobs", count, "the number of cores")
    return count


def _check_count(name: str, value: Any, example: str) -> None:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name}={value!r}: must be a whole number >= 1, e.g. {example}.")


def _asked_threads() -> int | None:
    asked = os.environ.get(THREADS)
    if asked is None:
        return None
    first = asked.partition(",")[0].strip()  # OpenMP takes a list, one number for each level
    if not first.isdigit() or int(first) < 1:
        raise ConfigError(f"{THREADS}={asked}: must be a whole number >= 1; leave it out to share the cores.")
    return int(first)
