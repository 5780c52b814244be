"""Kill a run with SIGKILL again and again, resume it, and compare with the run that nobody killed.

`python tests/kills.py --kills 200` is a campaign of random moments; the tests run a short one, and one that strikes
before and after every single file that a run replaces. Torch is imported once: every attempt is a forked process, with
another state of the global generators each time.
"""

import argparse
import itertools
import os
import random
import shutil
import signal
import tempfile
import time
from functools import cache
from pathlib import Path

import torch

from helpers import tiny
from noisewise.data import Data
from noisewise.runs.folder import RunFolder

STEPS = 60


def resume(folder, steps, recorders=()):
    """One attempt: everything built anew, then as far as it gets. Every part of `train` with a state is in use."""
    network = tiny.model(dropout=0.3)
    tiny.run(
        network,
        plan=tiny.mechanism(steps=steps, noise_multiplier=50.0),  # whose epsilon is read in milliseconds
        optimizer=lambda network: torch.optim.Adam(network.parameters(), lr=0.01),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps),
        valid=Data(*tiny.data(n=20), public=True),
        ema=0.99,
        out=folder,
        resume=RunFolder(folder).checkpoint.exists(),  # killed before the first one, a run begins anew
        checkpoint_seconds=0,
        recorders=recorders,
    )


@cache
def warm_up():
    """Load once what a first run loads: children inherit it."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        resume(Path(work, "run"), steps=2)


def forked(act, *arguments):
    """Process id of a child that does `act` and leaves with 0, or with 1 after an error."""
    warm_up()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.manual_seed(time.time_ns())
        act(*arguments)
        code = 0
    finally:
        os._exit(code)


def was_killed(child):
    """Wait for the child: True if SIGKILL ended it, False if it finished; anything else is an error."""
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"an attempt failed with exit status {os.waitstatus_to_exitcode(status)}")
    return False


def kill_myself(*_):
    """As sudden as a power cut."""
    os.kill(os.getpid(), signal.SIGKILL)


def begin(folder, steps):
    """A run that was killed in its first step: its checkpoint holds the secret root that all copies share."""
    assert was_killed(forked(resume, folder, steps, [kill_myself]))
    assert RunFolder(folder).checkpoint.exists()


def results(folder):
    """The bytes of every file that a run leaves, by name; run.json tells of the machine and the lock is empty."""
    folder = Path(folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def uninterrupted(start, folder, steps):
    """The results of the begun run, carried to its end in one go."""
    shutil.copytree(start, folder)
    assert not was_killed(forked(resume, folder, steps))
    return results(folder)


def finished(folder):
    """Is the run over, secrets forgotten?"""
    return RunFolder(folder).complete and not RunFolder(folder).checkpoint.exists()


def campaign(kills, seed, steps=STEPS, longest=0.25, report=lambda text: None):
    """Kill attempts after random times until `kills` struck; returns how many fell into the writing of a checkpoint.

    Each time a run reaches its end it must equal the uninterrupted one byte for byte; then a new one begins.
    """
    chance, struck, while_writing = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as work:
        start, round_number = Path(work, "start"), 0
        begin(start, steps)
        expected = uninterrupted(start, Path(work, "uninterrupted"), steps)
        while struck < kills:
            round_number += 1
            victim = Path(work, f"victim {round_number}")
            shutil.copytree(start, victim)
            while not finished(victim):
                child = forked(resume, victim, steps)
                if struck < kills:
                    time.sleep(chance.uniform(0, longest))
                    os.kill(child, signal.SIGKILL)
                if was_killed(child):
                    struck += 1
                    while_writing += (victim / "sensitive" / ".checkpoint.safetensors.tmp").exists()
            assert results(victim) == expected, f"seed {seed}, round {round_number}: another end"
            report(f"{struck} kills, {while_writing} of them while a checkpoint was written, {round_number} runs")
    return while_writing


def strike_at_every_replacement(steps=3):
    """Kill before and after each file that a run puts into place; returns how many there are."""
    count = 0
    with tempfile.TemporaryDirectory() as work:
        start = Path(work, "start")
        begin(start, steps)
        expected = uninterrupted(start, Path(work, "uninterrupted"), steps)
        while True:
            for moment in ("before", "after"):
                victim = Path(work, f"victim {count} {moment}")
                shutil.copytree(start, victim)
                if not was_killed(forked(_resume_until, victim, steps, count, moment)):
                    return count
                if not finished(victim):
                    assert not was_killed(forked(resume, victim, steps))
                assert results(victim) == expected, f"killed {moment} replacement {count}: another end"
            count += 1


def _resume_until(folder, steps, last, moment):
    real, calls = os.replace, itertools.count()

    def replacing(*paths):
        fatal = next(calls) == last
        if fatal and moment == "before":
            kill_myself()
        real(*paths)
        if fatal:
            kill_myself()

    os.replace = replacing  # of this forked process alone
    resume(folder, steps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="at random moments")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every-replacement", action="store_true", help="before that, strike at each file")
    chosen = parser.parse_args()
    if chosen.every_replacement:
        print(f"killed before and after each of {strike_at_every_replacement()} replacements: the same end every time")
    writing = campaign(chosen.kills, chosen.seed, report=lambda text: print(text, flush=True))
    print(f"{chosen.kills} kills, {writing} while a checkpoint was written: the same end every time")
