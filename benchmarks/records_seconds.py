"""How long a record takes where nothing else runs: features of the training images and one training; no test part is read."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from records_final import TABLES, made_by, of_images, same_settings, trained_by
from records_search import FOLDER

from noisewise.runs.files import read_json, write_json

STAT = Path("/proc/stat")
QUIET = 0.1  # of the cores that other work may take


class Spent(NamedTuple):
    """Seconds so far: on the clock, of this process on all cores, and of all processes."""

    clock: float
    own: float
    all: float

    @classmethod
    def now(cls) -> Spent:
        """Read them; Linux alone says what all processes took."""
        if not STAT.exists():
            raise SystemExit(f"{STAT} is not there: what else runs is told by Linux alone. Measure seconds there.")
        own = os.times()
        busy = sum(float(word) for place, word in enumerate(STAT.read_text().split()[1:9]) if place not in (3, 4))
        return cls(time.monotonic(), own.user + own.system, busy / os.sysconf("SC_CLK_TCK"))

    def others(self) -> float:
        """Share of the cores that other work has taken since."""
        now = Spent.now()
        taken = (now.all - self.all) - (now.own - self.own)
        return max(taken, 0.0) / ((now.clock - self.clock) * (os.cpu_count() or 1))


def measure(
    name: str, epsilon: float, *, recipe: str, folder: Path = FOLDER, most: int | None = None
) -> dict[str, Any]:
    """Seconds and joules on this processor; refused where other work took more than a tenth of it.

    A file of the same settings stays. `most`: rows at most, for a trial of this script.
    """
    if name in TABLES:
        raise SystemExit(f"{name}: seconds of tables are not shown; give a set of images.")
    path = folder / f"{name}.{recipe.partition(':')[0]}.{epsilon:g}.seconds.json"
    before = Spent.now()
    made, about, _ = of_images(name, epsilon, recipe, "cpu", most, parts=1)
    if path.exists() and same_settings(record := read_json(path), about):
        return record
    _, meter = trained_by(made, 0, "cpu", about["centre"], about["views"])
    others = before.others()
    print(f"{path.stem}: {meter.seconds:.1f} s; other work took {others:.1%} of the cores", flush=True)
    if others > QUIET:
        raise SystemExit("other work ran beside it: seconds would be those of both. Nothing is written.")
    record = {
        "format": 1, **about, "epsilon": epsilon, "seconds": round(meter.seconds, 2), "joules": meter.joules,
        "measured": meter.how, "others": round(others, 4),
        "command": f"python benchmarks/records.py seconds {name} --epsilon {epsilon:g} --recipe {recipe}",
        **made_by("cpu"),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, record)
    return record


def seconds(record: dict[str, Any]) -> str:
    """Of a run, and of its features, which are made once."""
    return f"{record['seconds']:.1f} + {record['feature_seconds']:.1f} for features"
