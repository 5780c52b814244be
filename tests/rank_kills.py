"""Kill ranks of a shared run with SIGKILL at random moments, resume it, and compare with the run that nobody killed.

`python tests/rank_kills.py --kills 20`: two to four processes; each time one of them is struck the others must end by
themselves with an error that says so, and the run that is resumed on as many must be bit for bit the one that was not. Of each
run a copy goes on otherwise after its first kill (another number of ranks, or whole parameters instead of spread ones and the
other way round): it must end with the same ledger and another model. `--sharded`: with parameters spread over the ranks.
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
from noisewise.distributed import ALONE, shard
from noisewise.errors import RankLost
from noisewise.runs.folder import RunFolder

STEPS = 30


def resume(team, folder, strike=(), steps=STEPS, dropout=0.3, sharded=False):
    """As far as it gets; every part of `train` with a state is in use. `strike`: (rank, step) at which one kills itself."""

    def kill(told):
        if (team.rank, told.step) == tuple(strike):
            os.kill(os.getpid(), signal.SIGKILL)

    network = tiny.model(dropout=dropout)
    tiny.run(
        shard(network, team) if sharded and team.several else network,
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
    """Ranks that were not struck end by themselves: done, or with the error that names another one and says what to do."""
    for end in ends:
        assert end is None or isinstance(end, Gone | RankLost), f"a rank ended with {end!r}"
        if isinstance(end, RankLost):
            assert "go on with resume=True" in str(end), str(end)


def _goes_on_otherwise(folder, size, sharded, expected, chance):
    """On another number of ranks, or with parameters held otherwise: the ledger of the plan, and noise of its own."""
    ways = [(ranks, spread) for ranks in (1, 2, 3) for spread in (False, True)[: 1 + (ranks > 1)]]
    ranks, spread = chance.choice([way for way in ways if way != (size, sharded)])
    if ranks == 1:
        resume(ALONE, folder)
    else:
        assert outcomes(ranks, resume, folder, (), STEPS, 0.3, spread) == [None] * ranks
    assert finished(folder)
    ends = results(folder)
    for name in ("ledger.json", "mechanism.json"):
        assert ends[name] == expected[name], f"{name} is another one on {ranks} ranks, spread: {spread}"
    assert ends["model.safetensors"] != expected["model.safetensors"]
    return f"on {ranks}{' with spread parameters' if spread else ''}"


def campaign(kills, seed, sharded=False, report=lambda text: None):
    """Strike until `kills` ranks were killed; each run must end as the one that nobody killed. Returns how many were.

    Moments are anywhere in the time that an undisturbed run takes on this machine.
    """
    chance, struck, number = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as work:
        expected, longest, settings = {}, {}, (STEPS, 0.3, sharded)
        while struck < kills:
            size = chance.choice([2, 3, 4])
            start, victim = Path(work, f"start of {size}"), Path(work, f"victim {number}")
            if size not in expected:
                begin(start, size, *settings)
                shutil.copytree(start, Path(work, f"whole of {size}"))
                began = time.monotonic()
                assert outcomes(size, resume, Path(work, f"whole of {size}"), (), *settings) == [None] * size
                longest[size] = time.monotonic() - began
                expected[size] = results(Path(work, f"whole of {size}"))
            shutil.copytree(start, victim)
            otherwise = ""
            while not finished(victim):

                def strike(children, again=struck < kills, longest=longest[size]):
                    if again:
                        time.sleep(chance.uniform(0.1, longest))
                        os.kill(chance.choice(children), signal.SIGKILL)

                ends = outcomes(size, resume, victim, (), *settings, strike=strike)
                _check(ends)
                struck += any(isinstance(end, Gone) for end in ends)
                if not otherwise and not finished(victim):
                    copy = shutil.copytree(victim, Path(work, "otherwise"))
                    otherwise = _goes_on_otherwise(copy, size, sharded, expected[size], chance)
                    shutil.rmtree(copy)
            assert results(victim) == expected[size], f"seed {seed}, run {number} of {size} ranks: another end"
            number += 1
            report(
                f"{struck} ranks killed, {number} runs; the last one of {size} ranks{otherwise and f', and a copy {otherwise}'}"
            )
    return struck


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="at random moments")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sharded", action="store_true", help="parameters spread over the ranks")
    chosen = parser.parse_args()
    count = campaign(chosen.kills, chosen.seed, sharded=chosen.sharded, report=lambda text: print(text, flush=True))
    print(f"{count} ranks killed: the same end every time")
