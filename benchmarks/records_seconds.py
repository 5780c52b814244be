"""How long a record takes where nothing else runs: features of the training images and one training; no test part is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from records_final import TABLES, made_by, of_images, of_table, trained_by
from records_search import FOLDER

from noisewise.runs.files import read_json, write_json

QUIET = 0.3  # processes that wait for a core, over the last minute, at most


def measure(
    name: str, epsilon: float, *, recipe: str, device: str, folder: Path = FOLDER, most: int | None = None
) -> dict[str, Any]:
    """Seconds and joules; a file that is there stays. `most`: rows at most, for a trial of this script."""
    lane = "defaults" if name in TABLES else recipe.partition(":")[0]
    path = folder / f"{name}.{lane}.{epsilon:g}.seconds.json"
    if path.exists():
        return read_json(path)
    load = os.getloadavg()[0]
    if load > QUIET and most is None:
        raise SystemExit(f"other work runs here (a load of {load:.1f}): seconds would be those of both. Wait for it.")
    if name in TABLES:
        made, about, _ = of_table(name, epsilon, device)
    else:
        made, about, _ = of_images(name, epsilon, recipe, device, most, parts=1)
    _, meter = trained_by(made, 0, device, about.get("centre", 0.0), about.get("views", 1))
    record = {
        "format": 1, "data": name, "recipe": lane, "epsilon": epsilon, "settings": about["settings"],
        "seconds": round(meter.seconds, 2), "joules": meter.joules, "measured": meter.how, "load": load,
        "feature_seconds": about["feature_seconds"], "feature_joules": about["feature_joules"],
        "command": f"python benchmarks/records.py seconds {name} --epsilon {epsilon:g}"
        + ("" if name in TABLES else f" --recipe {recipe}"),
        **made_by(device),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, record)
    print(f"{path.stem}: {seconds(record)}", flush=True)
    return record


def seconds(record: dict[str, Any]) -> str:
    """Of a run, and of its features, which are made once."""
    return f"{record['seconds']:.1f} + {record['feature_seconds']:.1f} for features"
