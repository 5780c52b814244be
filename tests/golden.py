"""Everything that a change of layout must leave as it is: record it before, compare it after.

    python tests/golden.py record FILE      weights, files, audits, report and help texts of runs with an insecure seed
    python tests/golden.py compare FILE     what differs now, entry by entry; exit code 1 if anything does

Weights are compared by their digest, so a file holds for one machine, one version of PyTorch and one number of threads.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}

COMMANDS = ("", "epsilon", "calibrate", "train", "audit", "report", "demo", "schema", "check")
PRINTED = {
    "epsilon": "epsilon --n 60000 --batch-size 256 --epochs 60 --noise-multiplier 1.1",
    "calibrate": "calibrate --n 6000 --batch-size 256 --epochs 3 --epsilon 3 --json",
    "audits": "audit --list runs",
    "no run": "audit nowhere",
    "no data": "train --data nothing --epsilon 3",
}


def golden() -> Iterator[tuple[str, str]]:
    """Name and content of everything."""
    for command in COMMANDS:
        yield f"help {command}", printed(*command.split(), "--help")
    for name, command in PRINTED.items():
        yield f"printed {name}", printed(*command.split())
    yield from steps()
    with tempfile.TemporaryDirectory() as folder:
        yield from runs(Path(folder))


def printed(*arguments: str) -> str:
    """Exit code and output of the command line."""
    done = subprocess.run([sys.executable, "-m", "noisewise", *arguments], capture_output=True, text=True, check=False)
    return f"{done.returncode}\n{done.stdout}\n{done.stderr}"


def steps() -> Iterator[tuple[str, str]]:
    """Weights and ledgers of a tiny problem in many settings."""
    from helpers import tiny
    from noisewise.adaptive import GlobalAdapt, GroupBounds, Quantile
    from noisewise.clipping import Automatic, Flat, Global, Normalized, PerSampleAdaptive, per_layer
    from noisewise.data import Data
    from noisewise.sampling import FullBatch, Poisson, Shuffle
    from noisewise.training.augmentation import Augment

    names = [name for name, _ in tiny.model().named_parameters()]
    x, y = tiny.data()
    grouped = Data(x, y, groups={"half": (x[:, 0] > 0).long()})
    plans = {
        "flat": {"clip": Flat(1.0)},
        "global": {"clip": Global(0.5, 2.0)},
        "automatic": {"clip": Automatic(1.0)},
        "normalized": {"clip": Normalized(1.0)},
        "per sample": {"clip": PerSampleAdaptive(1.0)},
        "per layer": {"clip": per_layer(names, Flat(0.3))},
        "quantile": {"clip": Quantile(1.0)},
        "global-adapt": {"clip": GlobalAdapt(1.0)},
        "group bounds": {"clip": GroupBounds("half", 2)},
        "full batch": {"sampler": FullBatch(tiny.N)},
        "shuffled": {"sampler": Shuffle(tiny.N, tiny.BATCH), "adjacency": "zero-out", "steps": 10},
        "cut batches": {"sampler": Poisson(tiny.N, tiny.BATCH, max_batch=12)},
    }
    for name, plan in plans.items():
        units = {"units": grouped} if name == "group bounds" else {}
        yield from _trained(name, plan=tiny.mechanism(**plan), **units)
    for ablation in ("plain", "clip-only", "noise-only"):
        yield from _trained(ablation, ablation=ablation)
    yield from _trained("moving average", ema=0.9)
    yield from _trained("secure", secure=True)
    yield from _trained("dropout", network=tiny.model(dropout=0.3))
    shaken = Augment(lambda rows, g: (rows[0] + 0.1 * _normal(rows[0], g), rows[1]), 3)
    yield from _trained("augmented", augment=shaken)


def _normal(like, generator):
    import torch

    return torch.randn(like.shape, generator=generator)


def _trained(name: str, **settings) -> Iterator[tuple[str, str]]:
    from helpers import tiny

    trained = tiny.run(insecure_seed=5, **settings)
    yield f"step {name}: weights", _digest(tiny.weights(trained.model).numpy().tobytes())
    yield f"step {name}: ledger", json.dumps(trained.ledger.to_dict(), indent=1)
    yield f"step {name}: status", str(trained.status)


def runs(folder: Path) -> Iterator[tuple[str, str]]:
    """Files of run folders, their audits and reports."""
    from noisewise.audits import AUDITS
    from noisewise.report import write
    from noisewise.workflow.config import configure
    from noisewise.workflow.execution import execute
    from noisewise.workflow.opened import audit, open_run

    for data, model in (("digits", "cnn"), ("signal_noise", "mlp"), ("two_patch", "two-layer-cnn")):
        config = configure(data=data, model=model, noise_multiplier=4.0, steps=4, batch_size=64, insecure_seed=3)
        execute(config, folder / data, progress=False)
        run = open_run(folder / data)
        for name, known in AUDITS.items():
            if (known.classes and run.data.test.task != "classification") or (data, name) == ("two_patch", "landscape"):
                continue
            audit(run, name)
        write(folder / data)
        for path in sorted((folder / data).rglob("*")):
            if path.is_file():
                yield f"run {data}: {path.relative_to(folder / data)}", _shown(path)


def _shown(path: Path) -> str:
    content = path.read_bytes()
    return content.decode() if path.suffix in (".json", ".toml", ".jsonl", ".md") else _digest(content)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main() -> int:
    """Record or compare."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    action, file = sys.argv[1:]
    now = dict(golden())
    if action == "record":
        Path(file).write_text(json.dumps(now, indent=1) + "\n")
        print(f"{len(now)} entries")
        return 0
    before = json.loads(Path(file).read_text())
    differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    for name in differing:
        print(f"\n--- {name}")
        lines = [one.get(name, "(nothing)").splitlines() for one in (before, now)]
        print("\n".join(list(difflib.unified_diff(*lines, "before", "now", lineterm="", n=0))[:20]))
    print(f"{len(now) - len(differing)} of {len(now)} entries are as before")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
