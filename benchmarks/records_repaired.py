"""Does random sparsification gain anything on top of a record's settings? Paired runs on held-out training images."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from records_final import made_by, runtime_for
from records_limits import PLAINS, accuracy_of, of_images
from records_search import DELTA, FOLDER

from noisewise.recipe import fit
from noisewise.repairs import RandomSparsification, repaired
from noisewise.runs.files import read_json, write_json

SEEDS = (200, 201, 202, 203, 204)  # of cuts, noise and masks
NONE = "none"
FINALS = (0.5, 0.9)  # share of coordinates that do not learn in the last epoch, from 0 in the first


def measure(
    name: str,
    epsilon: float,
    *,
    recipe: str = "scattering-linear",
    device: str = "cpu",
    seeds: Sequence[int] = SEEDS,
    folder: Path = FOLDER,
) -> dict[str, Any]:
    """Accuracy of the private plan as it is and with growing masks, at the same epsilon; seeds that are in the file stay."""
    lane = recipe.partition(":")[0]
    path = folder / f"{name}.{lane}.{epsilon:g}.repaired.json"
    record = read_json(path) if path.exists() else {"seeds": [], "runs": {}}
    missing = [seed for seed in seeds if seed not in record["seeds"]]
    if not missing:
        return record
    made = of_images(name, epsilon, recipe, device)
    for seed in missing:
        _, private, held = made(seed, PLAINS[0])
        for final in (None, *FINALS):
            mode = NONE if final is None else RandomSparsification(final).name + f", {final:g}"
            changed = private if final is None else repaired(private, RandomSparsification(final))
            trained = fit(
                changed,
                seed=seed,
                insecure_seed=seed,
                delta=DELTA,
                progress=False,
                runtime=runtime_for(private.data.train),
            )
            record["runs"].setdefault(mode, []).append(accuracy_of(trained, held))
            print(
                f"{name} {lane} epsilon {epsilon:g} {mode} seed {seed}: {100 * record['runs'][mode][-1]:.2f} %",
                flush=True,
            )
        record = {
            "format": 1, "data": name, "recipe": lane, "epsilon": epsilon, "seeds": [*record["seeds"], seed],
            "runs": record["runs"], "means": {mode: statistics.mean(values) for mode, values in record["runs"].items()},
            **made_by(device),
        }  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
    return record
