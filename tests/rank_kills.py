"""Kill ranks of a shared run with SIGKILL at random moments, resume it, and compare with the run that nobody killed.

`python tests/rank_kills.py --kills 20`: two to four processes; each time one of them is struck the others must end by
themselves with an error that says so, and the run that is resumed on as many must be bit for bit the one that was not.
"""

import argparse
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

import torch

from helpers import tiny
from helpers.ranks import Gone, outcomes
from kills import finished, results
from noisewise.data import Data
from noisewise.errors import RankLost
from noisewise.runs.folder import RunFolder

STEPS = 30


def resume(team, folder, strike=(), steps=STEPS, dropout=0.3):
    """As far as it gets; every part of `train` with a state is in use. `strike`: (rank, step) at which one kills itself."""

    def kill(told):
        if (team.rank, told.step) == tuple(strike):
            os.kill(os.getpid(), signal.SIGKILL)

    tiny.run(
        tiny.model(dropout=dropout),
        plan=tiny.mechanism(steps=steps, noise_multiplier=50.0),
        optimizer=lambda network: torch.optim.Adam(network.parameters(), lr=0.01),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps),
        valid=Data(*tiny.data(n=20), public=True),
        ema=0.99,
        out=folder,
        resume=team.said(RunFolder(folder).checkpoint.exists()),
        checkpoint_seconds=0,
        recorders=[kill],
        team=team,
    )


def begin(folder, size, *settings):
    """A shared run that was killed in its second step: its checkpoint holds the secret root that all copies share."""
    ends = outcomes(size, resume, folder, (size - 1, 1), *settings)
    assert isinstance(ends[-1], Gone)
    assert RunFolder(folder).checkpoint.exists()


def _check(ends):
    """Ranks that were not struck end by themselves: done, or with the error that names another one."""
    for end in ends:
        assert end is None or isinstance(end, Gone | RankLost), f"a rank ended with {end!r}"


def campaign(kills, seed, longest=2.0, report=lambda text: None):
    """Strike until `kills` ranks were killed; each run must end as the one that nobody killed. Returns how many were."""
    chance, struck, number = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as work:
        expected = {}
        while struck < kills:
            size = chance.choice([2, 3, 4])
            start, victim = Path(work, f"start of {size}"), Path(work, f"victim {number}")
            if size not in expected:
                begin(start, size)
                shutil.copytree(start, Path(work, f"whole of {size}"))
                assert outcomes(size, resume, Path(work, f"whole of {size}")) == [None] * size
                expected[size] = results(Path(work, f"whole of {size}"))
            shutil.copytree(start, victim)
            while not finished(victim):

                def strike(children, again=struck < kills):
                    if again:
                        time.sleep(chance.uniform(0.1, longest))
                        os.kill(chance.choice(children), signal.SIGKILL)

                ends = outcomes(size, resume, victim, strike=strike)
                _check(ends)
                struck += any(isinstance(end, Gone) for end in ends)
            assert results(victim) == expected[size], f"seed {seed}, run {number} of {size} ranks: another end"
            number += 1
            report(f"{struck} ranks killed, {number} runs")
    return struck


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="at random moments")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    count = campaign(chosen.kills, chosen.seed, report=lambda text: print(text, flush=True))
    print(f"{count} ranks killed: the same end every time")
