"""`train --processes N`: the same command once more in N processes that train together, as torchrun would start them."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from noisewise.errors import ConfigError, Interrupted, NoisewiseError, RankLost, RunError
from noisewise.runtime import MEETING
from noisewise.workflow.settings import Config

if TYPE_CHECKING:
    from noisewise.data.tables.schema import Schema
    from noisewise.distributed import Team

GRACE = 20.0  # seconds in which the others may end by themselves, once one has failed
WORDS = 5.0  # seconds that another one has for its last words: torchrun ends all once one has ended
PER_CORE = 8  # more processes than so many on a core are a slip of the finger
T = TypeVar("T")


def rank() -> int | None:
    """Which of several processes this is; None if nobody started it as one of several."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return int(os.environ.get("RANK", "0")) if several else None


def is_silent(error: NoisewiseError) -> bool:
    """Shall this process leave an error to another one? What all of them see, and that another one has stopped."""
    number = rank()
    if number is None:
        return False
    begun = "torch.distributed" in sys.modules and sys.modules["torch.distributed"].is_initialized()
    if not begun:  # each machine sees its own files: one process of each says what is wrong there
        return int(os.environ.get("LOCAL_RANK", number)) > 0
    if number > 0 and isinstance(error, RankLost | Interrupted):
        return True
    return not _is_first_to_say(error)


def give_way() -> None:
    """A process that says nothing lets another one speak first: torchrun ends all of them as soon as one is gone."""
    if MEETING not in os.environ:
        time.sleep(WORDS)


def _is_first_to_say(error: NoisewiseError) -> bool:
    """Has no other process of this machine said the same? Known by a file beside the one where they meet."""
    meeting = os.environ.get(MEETING)
    if meeting is None:  # torchrun has none
        return True
    digest = hashlib.sha256(f"{type(error).__name__} {error}".encode()).hexdigest()
    try:
        Path(f"{meeting}.{digest}").touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def check_count(count: int) -> None:
    """Refuse a number of processes that cannot be meant, and one that contradicts torchrun."""
    if rank() is not None:
        started = int(os.environ["WORLD_SIZE"])
        if count != started:
            raise ConfigError(
                f"--processes {count} in one of {started} processes that torchrun has started: leave --processes out, torchrun "
                "says how many there are."
            )
        return
    cores = os.cpu_count() or 1
    if count > PER_CORE * cores:
        raise ConfigError(
            f"--processes {count} on a machine with {cores} cores: each would wait for the others most of the time. At most "
            f"{PER_CORE * cores}; best is one for each GPU, or for each few cores."
        )


def spread(count: int) -> int:
    """Run this command in so many processes on this machine; their exit code, the first bad one if there is one.

    The first process has the terminal. Nothing leaves the machine: they meet by a file of this user's and speak over the
    loopback.
    """
    with tempfile.TemporaryDirectory() as work:  # of mode 700
        return _spread(count, Path(work, "meeting"))


def _spread(count: int, meeting: Path) -> int:
    shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), MEETING: str(meeting)}
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // count)), **os.environ, **shared}
    environment |= {"GLOO_SOCKET_IFNAME": loopback[0]} if loopback else {}
    command = [sys.executable, "-m", "noisewise", *sys.argv[1:]]
    children = [
        subprocess.Popen(
            command,
            env={**environment, "RANK": str(number), "LOCAL_RANK": str(number)},
            stdin=None if number == 0 else subprocess.DEVNULL,
        )
        for number in range(count)
    ]
    with _signals_passed_on(children):
        code = _first_failure(children)
    if code < 0:
        number = next(number for number, child in enumerate(children) if child.returncode == code)
        raise RunError(
            f"process {number} of {count} was ended by {signal.Signals(-code).name}, perhaps for want of memory, and the "
            "others stopped. The last checkpoint is kept: the same command with --resume goes on, with any --processes."
        )
    return code


def _first_failure(children: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for all; once one has failed the others have some time to end, and are then ended.

    A signal (below 0) that ended one of them before that is why others failed.
    """
    deadline, late = float("inf"), list[int]()
    while waiting := [child for child in children if child.poll() is None]:
        if deadline == float("inf") and len(waiting) < len(children) and any(child.returncode for child in children):
            deadline = time.monotonic() + GRACE
        if time.monotonic() > deadline:
            late += [child.pid for child in waiting]
            for child in waiting:
                child.kill()
            deadline = time.monotonic() + GRACE
        time.sleep(0.05)
    codes = [child.returncode for child in children if child.returncode and child.pid not in late]
    return min(codes, default=0) if min(codes, default=0) < 0 else next(iter(codes), 0)


@contextmanager
def _signals_passed_on(children: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Ctrl-C reaches the children from the terminal, a request to end by this process; both are theirs to answer."""

    def passed_on(number: int, frame: FrameType | None) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.signal(signal.SIGTERM, passed_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


def team() -> Team | None:
    """The processes that this one trains with; None for a process by itself, which then need not load torch for it."""
    if rank() is None:
        return None
    from noisewise.distributed import begin

    return begin()


def schema_of_first(team: Team | None, choose: Callable[[], Schema | None]) -> Schema | None:
    """The schema that the first process chooses: noise for it is drawn once."""
    if team is None:
        return choose()
    from noisewise.data.tables.schema import Schema

    chosen = choose() if team.first else None
    raw = team.said(None if chosen is None else chosen.to_dict())
    return chosen if team.first else None if raw is None else Schema.from_dict(raw)


def config_of_first(team: Team | None, config: Config | None) -> Config | None:
    """The config that the first process has read."""
    if team is None:
        return config
    text = team.said(None if config is None else config.to_toml())
    return config if team.first else None if text is None else Config.from_toml(text)


def leave() -> None:
    """Take leave of the other processes; what follows needs none of them."""
    from noisewise.distributed import end

    end()
