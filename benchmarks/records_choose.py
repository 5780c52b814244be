"""From a search to settings: the best candidates are trained again on other held-out images with other noise, since the best of
many scores is partly luck; the best mean wins, and goes into the recipe's file with where it was found.
"""

from __future__ import annotations

import fcntl
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from records_final import made_by
from records_linear import Candidate, products
from records_search import (
    DELTA,
    FOLDER,
    LEARNING,
    _units,
    best_of,
    centred_rows,
    cut,
    features_from,
    held_out,
    lines_of,
    noise_for,
    trained,
    training_images,
)

from noisewise.accounting import rdp_epsilon
from noisewise.mechanism import Mechanism
from noisewise.recipes.centre import planned_ledger
from noisewise.recipes.transform import features_of
from noisewise.runs.files import read_json, write_json
from noisewise.sampling import Poisson, steps_for

CHOSEN = Path(__file__).parents[1] / "src" / "noisewise" / "recipes" / "chosen.json"
TOP, SETS, SEEDS = (
    32,
    6,
    (100, 101, 102),
)  # candidates, sets of features among them, cuts on which they are trained again


def choose(
    name: str,
    epsilon: float,
    sources: Sequence[Path],
    *,
    device: str,
    top: int = TOP,
    sets: int = SETS,
    seeds: Sequence[int] = SEEDS,
    recipe: str = "scattering-linear",
    folder: Path = FOLDER,
    chosen: Path = CHOSEN,
    epochs: float = math.inf,
    after: Path | None = None,
) -> dict[str, Any]:
    """Train the best again, write what was found and what it would cost, and put the winner into the recipe's file.

    epochs: of a candidate at most. after: the record of an earlier search on the same images, whose price is added: epsilons
    and deltas of two searches add up.
    """
    if device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
    lines = [
        line
        for source in sources
        for line in lines_of(source)
        if (line["data"], line["epsilon"], line["recipe"]) == (name, epsilon, recipe)
    ]
    scored = [line for line in lines if line["accuracy"] is not None]
    if not scored:
        raise SystemExit(f"no results of {name} at epsilon {epsilon:g} in {', '.join(map(str, sources))}")
    candidates = finalists([line for line in scored if line["epochs"] <= epochs], top, sets)
    again = retrained(name, epsilon, candidates, seeds, device)
    winner = max(again, key=lambda line: line["mean"])
    again_in_lines = [{**one, **_plan(one, epsilon)} for one in again for _ in seeds]
    record = {
        "format": 1, "data": name, "recipe": recipe, "epsilon": epsilon, "delta": DELTA,
        "trials": len(lines) + len(again) * len(seeds), "diverged": len(lines) - len(scored),
        "best_of_search": best_of(scored, epsilon),
        "paid_epsilon": price([*lines, *again_in_lines]), "held_out": scored[0]["held_out"], "n": scored[0]["n"],
        **made_by(device),
        **({} if after is None else {"after": _earlier(after, name, epsilon)}),
        "seeds": list(seeds), "again": again, "winner": winner, "choices": marginals(scored),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.{recipe}.{epsilon:g}.search.json", record)
    _put(chosen, recipe, name, epsilon, winner, scored[0]["n"])
    print(
        f"{name} epsilon {epsilon:g}: {100 * winner['mean']:.2f} % +- {100 * winner['deviation']:.2f}, {len(lines)} trials"
    )
    return record


def _earlier(path: Path, name: str, epsilon: float) -> dict[str, Any]:
    """What an earlier search cost, and all that were before it."""
    record = read_json(path)
    if (record["data"], record["epsilon"]) != (name, epsilon):
        raise SystemExit(f"{path.name}: a search on {record['data']} at epsilon {record['epsilon']:g}, not on {name}.")
    before = record.get("after", {"trials": 0, "paid_epsilon": 0.0, "searches": 0})
    return {
        "trials": record["trials"] + before["trials"],
        "paid_epsilon": record["paid_epsilon"] + before["paid_epsilon"],
        "searches": 1 + before["searches"],
    }


def _plan(one: dict[str, Any], epsilon: float) -> dict[str, Any]:
    """Steps and noise of a candidate."""
    steps = steps_for(one["epochs"], one["n"], one["batch"])
    return {
        "steps": steps,
        "noise": noise_for(one["n"], one["batch"], steps, epsilon, one["features"].get("centre", 0.0)),
    }


def settings_of(line: dict[str, Any]) -> dict[str, Any]:
    """What was chosen in a line, without what came of it."""
    return {key: line[key] for key in ("features", "coordinates", "batch", "epochs", "n", *LEARNING)}


def finalists(lines: Sequence[dict[str, Any]], top: int, sets: int) -> list[dict[str, Any]]:
    """The best settings, none twice, with at most so many sets of features.

    Settings that were tried on k cuts are judged by the mean of k scores less its standard error, so that one lucky cut does
    not pass for a good choice. Lines with an entry `other`, which says what was tried beyond any setting, count as trials and
    are not among them.
    """
    alike: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        if "other" not in line:
            alike[json.dumps(settings_of(line), sort_keys=True)].append(line)
    made: list[dict[str, Any]] = []
    features: dict[str, None] = {}
    for several in sorted(alike.values(), key=judged, reverse=True):
        looks = json.dumps(several[0]["features"], sort_keys=True)
        if looks not in features and len(features) >= sets:
            continue
        features[looks] = None
        made.append({**settings_of(several[0]), "searched": round(statistics.mean(_scores(several)), 5)})
        if len(made) >= top:
            break
    return made


def judged(several: Sequence[dict[str, Any]]) -> float:
    """Mean accuracy of lines with equal settings, less its standard error `sqrt(p (1 - p) / images looked at)`."""
    mean = statistics.mean(_scores(several))
    return mean - math.sqrt(mean * (1 - mean) / sum(line["held_out"] for line in several))


def _scores(several: Sequence[dict[str, Any]]) -> list[float]:
    return [line["accuracy"] for line in several]


def retrained(
    name: str, epsilon: float, candidates: Sequence[dict[str, Any]], seeds: Sequence[int], device: str
) -> list[dict[str, Any]]:
    """Each candidate's accuracy on other cuts: features once for all images, then models side by side."""
    whole = training_images(name, device)
    by_features: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for candidate in candidates:
        by_features[json.dumps(candidate["features"], sort_keys=True)].append(candidate)
    again = []
    for text, alike in by_features.items():
        features = features_from(json.loads(text))
        x = _units(features_of(whole.x, features, device=device), features)
        scores: dict[int, list[dict[str, float]]] = defaultdict(list)
        for seed in seeds:
            look, rest = cut(len(whole), seed, x.device)
            parts = held_out(name, whole, seed)
            train, seen = centred_rows(x[rest], x[look], features.centre, seed)
            inner = products(train)
            for batch, epochs in {(one["batch"], one["epochs"]) for one in alike}:
                places = [place for place, one in enumerate(alike) if (one["batch"], one["epochs"]) == (batch, epochs)]
                ways = [Candidate(**{key: alike[place][key] for key in LEARNING}) for place in places]
                made = trained(
                    parts, features, train, inner, seen, ways, epsilon=epsilon, batch=batch, epochs=epochs, seed=seed
                )
                for place, line in zip(places, made, strict=True):
                    scores[place].append(line)
            del train, inner, seen
        for place, one in enumerate(alike):
            values = [line["accuracy"] or 0.0 for line in scores[place]]
            again.append(
                {
                    **one,
                    "accuracies": values,
                    "mean": statistics.mean(values),
                    "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
                    "worst_class": statistics.mean(line["worst_class"] or 0.0 for line in scores[place]),
                }
            )
        del x
    return sorted(again, key=lambda line: -line["mean"])


def price(lines: Sequence[dict[str, Any]]) -> float:
    """Epsilon of all trials together on the images they were trained on, by RDP: what a search that is paid for costs."""
    counts: dict[tuple[int, int, float], int] = defaultdict(int)
    for line in lines:
        counts[line["n"], line["batch"], line["noise"]] += line["steps"]
    events = [
        (Mechanism(sampler=Poisson(n, batch), steps=1, noise_multiplier=noise).events()[0][0], steps)
        for (n, batch, noise), steps in counts.items()
    ]
    for centre in {line["features"].get("centre", 0.0) for line in lines} - {0.0}:
        several = sum(line["features"].get("centre") == centre for line in lines)
        ((event, _),) = planned_ledger(lines[0]["n"], centre, "add-remove", "row").events()
        events.append((event, several))
    epsilon, reason = rdp_epsilon(events, DELTA, "add-remove")
    if epsilon is None:
        raise SystemExit(f"the price of the search cannot be told: {reason}")
    return float(epsilon)


def marginals(lines: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """For each choice and each of its values: the best score, and how many models had it. What did not help shows here."""
    tables: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        chosen = {
            **{key: value for key, value in line["features"].items() if key != "digest"},
            **{key: line[key] for key in LEARNING},
            "batch": line["batch"],
            "epochs": line["epochs"],
        }
        for key, value in chosen.items():
            tables[key][_word(value)].append(line["accuracy"])
    return {
        key: {
            value: {"best": max(scores), "upper": sorted(scores)[-1 - len(scores) // 20], "models": len(scores)}
            for value, scores in sorted(values.items())
        }
        for key, values in tables.items()
    }


def _word(value: Any) -> str:
    """Lists as they are written in a recipe, files by their names."""
    return "/".join(map(str, value)) if isinstance(value, list | tuple) else Path(str(value)).name


def _put(path: Path, recipe: str, name: str, epsilon: float, winner: dict[str, Any], n: int) -> None:
    """The winner in the recipe's file, in place of an earlier one for the same set and epsilon."""
    channels = 3 if name in ("cifar10", "cifar100", "svhn") else 1
    features = {key: value for key, value in winner["features"].items() if key not in ("weights", "digest")}
    entry = {
        "data": name, "channels": channels, "n": n, "epsilon": epsilon, "features": features,
        "share": round(winner["batch"] / n, 4), "epochs": winner["epochs"],
        **{key: winner[key] for key in LEARNING},
    }  # fmt: skip
    with path.open("a+") as file:  # several may choose at once
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        entries = json.loads(file.read() or "{}")
        others = [one for one in entries.get(recipe, []) if (one["data"], one["epsilon"]) != (name, epsilon)]
        entries[recipe] = sorted([*others, entry], key=lambda one: (one["data"], one["epsilon"]))
        file.truncate(0)
        file.write(json.dumps(entries, indent=1) + "\n")
