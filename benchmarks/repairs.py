"""Which repairs give back what privacy took? Fashion-MNIST, DP-CNN/S, epsilon 1 and 3, delta 1e-5, batch 2048, 40 epochs.

    NOISEWISE_DATA=FOLDER python benchmarks/repairs.py tune  --out benchmarks/results/fashion_mnist_tuning.json
    NOISEWISE_DATA=FOLDER python benchmarks/repairs.py final --tuning benchmarks/results/fashion_mnist_tuning.json \
        --out benchmarks/results/fashion_mnist_repairs.json
    NOISEWISE_DATA=FOLDER python benchmarks/repairs.py decide --tuning benchmarks/results/fashion_mnist_tuning.json \
        --out benchmarks/results/fashion_mnist_sparsification.json
    python benchmarks/repairs.py table --results benchmarks/results/fashion_mnist_repairs.json \
        --tuning benchmarks/results/fashion_mnist_tuning.json \
        --decided benchmarks/results/fashion_mnist_sparsification.json --out docs/repairs_measured.md

`tune` trains on 55,000 images and looks at 5,000 held-out ones: the learning rate of the baseline, then, at that learning
rate, one setting of each repair. `final` trains on all 60,000 with five seeds and reads the official test images once per
run. Equal seeds have equal initial weights, batches and noise, so differences to the baseline are paired. `decide` takes
twenty seeds of one repair whose gain five could not decide, with the comparisons of all repairs allowed for.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from noisewise import data as sets
from noisewise import models, repairs
from noisewise.clipping import Flat
from noisewise.data import Splits
from noisewise.data.transforms import flip_and_crop
from noisewise.estimates.intervals import each, mean, mean_difference
from noisewise.losses import cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.recipe import Recipe, fit
from noisewise.runs.folder import hardware, versions
from noisewise.sampling import Poisson, steps_for

BATCH, EPOCHS, DELTA, BOUND = 2048, 40, 1e-5, 1.0
EPSILONS = (1.0, 3.0)
SEEDS = (0, 1, 2, 3, 4)
TUNING_SEEDS = (100, 101)
COMPARISONS = 12  # six repairs and masks at two epsilons
DECIDING_SEEDS, GAIN, DEVIATION = 20, 0.003, 0.0025  # differences of five seeds had deviations of 0.0015 and 0.0023
VALID = 5000
LEARNING_RATES = (0.5, 1.0, 2.0, 4.0, 8.0)
SEARCH = {
    "random sparsification": [{"final": final} for final in (0.5, 0.7, 0.9)],
    "freezing": [{"shares": shares} for shares in ((0.2, 0.4, 0.5), (0.39, 0.63, 0.77), (0.5, 0.8, 0.9))],
    "pruning, public": [{"share": share} for share in (0.3, 0.5, 0.7)],
    "global clipping": [
        {"screen": screen, "lr_factor": screen * part}
        for screen in (4.0, 10.0, 25.0, 50.0)
        for part in (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
        if part >= 0.25 or screen >= 10
    ],
    "augmentation": [{"pad": pad, "flips": flips, "views": 4} for pad, flips in ((1, True), (2, True), (1, False))],
}
CONTROL = "random mask"  # as many zeros in each layer as the public pruning


@cache
def parts(name: str, valid: int, device: str) -> Splits:
    """A data set on the device."""
    split = sets.load(name, 0, valid)
    return Splits(*(replace(part, x=part.x.to(device), y=part.y.to(device)) for part in split))


def repair(method: str, settings: dict, seed: int, device: str) -> list[repairs.Repair]:
    """The repairs of a method."""
    match method:
        case "baseline":
            return []
        case "random sparsification":
            return [repairs.RandomSparsification(settings["final"])]
        case "freezing":
            return [repairs.StagewiseFreezing(shares=tuple(settings["shares"]))]
        case "pruning, public":
            source = repairs.PublicTraining(
                parts("mnist", 0, device).train, epochs=10, batch_size=256, lr=0.1, seed=seed
            )
            return [repairs.MagnitudePruning(source, settings["share"])]
        case "random mask":
            return [repairs.MagnitudePruning(repairs.AtRandom(seed), settings["share"])]
        case "global clipping":
            return [repairs.GlobalClipping(settings["screen"], settings["lr_factor"])]
        case "augmentation":
            return [repairs.Augmentation(settings["views"], flip_and_crop(settings["pad"], flips=settings["flips"]))]
    raise ValueError(method)


def run(job: dict) -> dict:
    """Train once; accuracy on the held-out part while tuning, on the test part at the end."""
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = time.perf_counter()
    split = parts("fashion_mnist", job["valid"], device)
    model = models.build("dp-cnn-s", tuple(split.train.x.shape[1:]), 10, job["seed"]).to(device)
    mechanism = Mechanism(
        sampler=Poisson(len(split.train), BATCH),
        clip=Flat(BOUND),
        steps=steps_for(EPOCHS, len(split.train), BATCH),
        noise_multiplier=job["noise_multiplier"],
    )
    lr = job["lr"]
    recipe = Recipe(
        model=model, data=split, loss_fn=cross_entropy, mechanism=mechanism,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr),
    )  # fmt: skip
    changed = repairs.repaired(recipe, *repair(job["method"], job["settings"], job["seed"], device))
    trained = fit(changed, insecure_seed=job["seed"], seed=job["seed"], delta=DELTA, progress=False).model
    looked = split.valid if job["valid"] else split.test
    with torch.no_grad():
        right = torch.cat([trained(x).argmax(1) for x in looked.x.split(2000)]) == looked.y
    return {**job, "accuracy": right.float().mean().item(), "seconds": round(time.perf_counter() - start, 1)}


def run_all(jobs: list[dict], workers: int, log: Path) -> list[dict]:
    """All jobs in parallel; each result is written down at once, and what is written down is not done again."""
    before = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = [item for item in before if any(_same(item, job) for job in jobs)]
    left = [job for job in jobs if not any(_same(item, job) for item in done)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool, log.open("a") as file:
        for future in as_completed([pool.submit(run, job) for job in left]):
            done.append(future.result())
            file.write(json.dumps(done[-1]) + "\n")
            file.flush()
    return done


def _same(item: dict, job: dict) -> bool:
    known = json.loads(json.dumps(job))
    return all(item[key] == value for key, value in known.items())


@cache
def noise(n: int, epsilon: float) -> float:
    """Noise multiplier of the plan."""
    plan = Mechanism(sampler=Poisson(n, BATCH), steps=steps_for(EPOCHS, n, BATCH))
    return plan.calibrated(epsilon, DELTA).noise_at(0)


def job(method: str, settings: dict, epsilon: float, lr: float, seed: int, valid: int) -> dict:
    return {
        "method": method, "settings": settings, "epsilon": epsilon, "lr": lr, "seed": seed, "valid": valid,
        "noise_multiplier": noise(60_000 - valid, epsilon),
    }  # fmt: skip


def best(found: list[dict], epsilon: float, method: str, key: str) -> dict:
    """The setting with the highest mean accuracy over the tuning seeds."""
    means: dict[str, list[float]] = {}
    for item in found:
        if (item["epsilon"], item["method"]) == (epsilon, method):
            means.setdefault(json.dumps(item[key]), []).append(item["accuracy"])
    return json.loads(max(means, key=lambda setting: statistics.mean(means[setting])))


def about(command: str) -> dict:
    commit = os.environ.get("COMMIT") or subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()  # fmt: skip
    return {"command": command, "commit": commit, "hardware": hardware(), "versions": versions()}


def tune(out: Path, workers: int) -> dict:
    log = out.with_suffix(".jsonl")
    rates = [
        job("baseline", {}, epsilon, lr, seed, VALID)
        for epsilon in EPSILONS
        for lr in LEARNING_RATES
        for seed in TUNING_SEEDS
    ]
    found = run_all(rates, workers, log)
    lr = {epsilon: float(best(found, epsilon, "baseline", "lr")) for epsilon in EPSILONS}  # type: ignore[arg-type]
    rest = [
        job(method, settings, epsilon, lr[epsilon], seed, VALID)
        for method, choices in SEARCH.items()
        for settings in choices
        for epsilon in EPSILONS
        for seed in TUNING_SEEDS
    ]
    found += run_all(rest, workers, log)
    chosen = {
        str(epsilon): {
            "lr": lr[epsilon],
            **{method: best(found, epsilon, method, "settings") for method in SEARCH},
        }
        for epsilon in EPSILONS
    }
    content = {**about("python benchmarks/repairs.py tune"), "held out": VALID, "seeds": TUNING_SEEDS}
    content |= {"searched": {"lr": LEARNING_RATES, **SEARCH}, "chosen": chosen, "runs": found}
    out.write_text(json.dumps(content, indent=1) + "\n")
    return content


def final(tuning: Path, out: Path, workers: int) -> None:
    chosen = json.loads(tuning.read_text())["chosen"]
    jobs = []
    for epsilon in EPSILONS:
        own = chosen[str(epsilon)]
        settings = {"baseline": {}, **{method: own[method] for method in SEARCH}, CONTROL: own["pruning, public"]}
        jobs += [job(m, s, epsilon, own["lr"], seed, 0) for seed in SEEDS for m, s in settings.items()]
    jobs.sort(key=lambda item: item["method"] != "augmentation")  # the longest first
    found = run_all(jobs, workers, out.with_suffix(".jsonl"))
    rows = []
    for epsilon in EPSILONS:
        base = accuracies(found, epsilon, "baseline")
        for method in ("baseline", *SEARCH, CONTROL):
            mine = accuracies(found, epsilon, method)
            row = {"epsilon": epsilon, "method": method, "accuracy": vars(mean(mine))}
            if method != "baseline":
                row["gain"] = vars(mean_difference(mine, base))
            if method == "pruning, public":
                row["gain over random mask"] = vars(mean_difference(mine, accuracies(found, epsilon, CONTROL)))
            rows.append(row)
    content = {**about("python benchmarks/repairs.py final"), "seeds": SEEDS, "chosen": chosen, "rows": rows}
    out.write_text(json.dumps({**content, "runs": found}, indent=1) + "\n")


def decide(tuning: Path, out: Path, workers: int) -> None:
    chosen = json.loads(tuning.read_text())["chosen"]
    method, seeds = "random sparsification", range(DECIDING_SEEDS)
    jobs = [
        job(
            which, chosen[str(epsilon)][method] if which == method else {}, epsilon, chosen[str(epsilon)]["lr"], seed, 0
        )
        for seed in seeds
        for epsilon in EPSILONS
        for which in ("baseline", method)
    ]
    runs = run_all(jobs, workers, out.with_suffix(".jsonl"))
    level = each(0.95, COMPARISONS)
    gains = {
        str(epsilon): vars(
            mean_difference(accuracies(runs, epsilon, method), accuracies(runs, epsilon, "baseline"), level)
        )
        for epsilon in EPSILONS
    }
    content = {**about("python benchmarks/repairs.py decide"), "seeds": list(seeds), "comparisons": COMPARISONS}
    content |= {
        "power": power(),
        "smallest gain looked for": GAIN,
        "standard deviation assumed": DEVIATION,
        "gains": gains,
    }
    out.write_text(json.dumps({**content, "runs": runs}, indent=1) + "\n")


def power() -> float:
    """Chance that the paired t test of `decide` finds a gain, all comparisons allowed for."""
    from scipy.stats import nct, t

    degrees, shift = DECIDING_SEEDS - 1, GAIN / DEVIATION * DECIDING_SEEDS**0.5
    return float(nct.sf(t.ppf((1 + each(0.95, COMPARISONS)) / 2, degrees), degrees, shift))


def accuracies(found: list[dict], epsilon: float, method: str) -> list[float]:
    """By seed."""
    mine = [item for item in found if (item["epsilon"], item["method"]) == (epsilon, method)]
    return [item["accuracy"] for item in sorted(mine, key=lambda item: item["seed"])]


PUBLISHED = {  # test accuracy of DP-CNN/S, baseline and random sparsification: Zhu & Blaschko 2023, table 2
    ("baseline", 3.0): "86.6", ("baseline", 1.0): "83.2",
    ("random sparsification", 3.0): "87.4 (gain 0.8)", ("random sparsification", 1.0): "84.5 (gain 1.3)",
}  # fmt: skip


DECIDED = "random sparsification"


def verdict_of(gain: dict) -> str:
    """From an interval."""
    return "gain" if gain["low"] > 0 else "loss" if gain["high"] < 0 else "cannot be told"


def gain_of(runs: list[dict], epsilon: float, method: str, other: str, together: int) -> dict:
    """Paired difference of accuracies, one of so many comparisons that hold together at 95 %."""
    first, second = (accuracies(runs, epsilon, which) for which in (method, other))
    return vars(mean_difference(first, second, each(0.95, together)))


def _signed(gain: dict) -> str:
    return f"{100 * gain['value']:+.2f} ({100 * gain['low']:+.2f}, {100 * gain['high']:+.2f})"


def decision(decided: dict, first_seeds: int) -> list[str]:
    """What more seeds decided, with the power that was stated before, and the same from new seeds alone."""
    new, seeds = [run for run in decided["runs"] if run["seed"] >= first_seeds], len(decided["seeds"])
    lines = [
        "## Decided with more seeds",
        "",
        f"Five seeds could not decide whether {DECIDED} gains, so it and the baseline were trained with "
        f"{len(decided['seeds'])}. Stated before: a gain of {100 * decided['smallest gain looked for']:.2f} points with a "
        f"standard deviation of {100 * decided['standard deviation assumed']:.2f} between seeds is found with probability "
        f"{decided['power']:.2f}, the {decided['comparisons']} comparisons of this page allowed for. The first {first_seeds} "
        "seeds are those that suggested the question; the last column leaves them out.",
        "",
        f"| epsilon | gain, {seeds} seeds | verdict | gain, the {seeds - first_seeds} new seeds |",
        "|---|---|---|---|",
    ]
    for epsilon in EPSILONS:
        gain = decided["gains"][str(epsilon)]
        again = gain_of(new, epsilon, DECIDED, "baseline", decided["comparisons"])
        lines.append(f"| {epsilon:g} | {_signed(gain)} | {verdict_of(gain)} | {_signed(again)} |")
    return [*lines, ""]


def against_control(runs: list[dict], epsilon: float) -> str:
    """Is it the choice of weights that gains, or that there are fewer?"""
    if not accuracies(runs, epsilon, CONTROL):
        return "Pruning from a public set against a random mask of equal size: not run."
    gain = gain_of(runs, epsilon, "pruning, public", CONTROL, len(EPSILONS))
    return (
        f"Pruning from a public set against a random mask of equal size: {_signed(gain)}, one of two such comparisons, "
        "allowed for."
    )


def page(results: dict, tuning: dict, decided: dict) -> str:
    """The one-page table, in Markdown. All gains of its table hold together: its comparisons are allowed for (Bonferroni)."""
    lines = [
        "# Which repairs give back accuracy?",
        "",
        f"Fashion-MNIST, DP-CNN/S (26,010 weights), delta {DELTA:g}, batch {BATCH}, {EPOCHS} epochs, flat clipping at "
        f"{BOUND:g}, SGD without momentum; {len(results['seeds'])} seeds, all 60,000 training images, official test images, "
        "accuracy after the last epoch in % (95 % intervals, Student t). Equal seeds have equal initial weights, batches and "
        f"noise: gains are paired. The {COMPARISONS} gains of the two tables are looked at side by side, so their intervals "
        f"hold together at 95 % (each at {100 * each(0.95, COMPARISONS):.2f} %, Bonferroni); what excludes 0 is called a "
        "gain or a loss, nothing else is.",
        "",
    ]
    verdicts = {}
    for epsilon in EPSILONS:
        rows = [row for row in results["rows"] if row["epsilon"] == epsilon]
        lines += [
            f"## Epsilon {epsilon:g}",
            "",
            "| method | setting | accuracy | gain over the baseline | verdict | published |",
            "|---|---|---|---|---|---|",
        ]
        for row in rows:
            method = row["method"]
            gain = None if method == "baseline" else gain_of(results["runs"], epsilon, method, "baseline", COMPARISONS)
            verdict = "" if gain is None else verdict_of(gain)
            verdicts[method, epsilon] = verdict
            chosen = results["chosen"][str(epsilon)]
            setting = {"baseline": f"lr {chosen['lr']:g}", CONTROL: _words(chosen["pruning, public"])}
            shown = "" if gain is None else _signed(gain)
            lines.append(
                f"| {method} | {setting.get(method) or _words(chosen[method])} | {_percent(row['accuracy'])} | {shown} | "
                f"{verdict} | {PUBLISHED.get((method, epsilon), '')} |"
            )
        lines += ["", against_control(results["runs"], epsilon), ""]
    lines += decision(decided, len(results["seeds"]))
    verdicts |= {(DECIDED, epsilon): verdict_of(decided["gains"][str(epsilon)]) for epsilon in EPSILONS}
    lines += ["## Plainly", ""]
    for method in dict.fromkeys(method for method, _ in verdicts if method != "baseline"):
        found = [verdicts[method, epsilon] for epsilon in EPSILONS]
        words = {"gain": "gains", "loss": "loses", "cannot be told": "cannot be told from the baseline"}
        said = ", ".join(f"{words[v]} at epsilon {e:g}" for v, e in zip(found, EPSILONS, strict=True))
        seeds = len(decided["seeds"] if method == DECIDED else results["seeds"])
        lines.append(f"- **{method}**: {said} ({seeds} seeds).")
    searched = {key: value for key, value in tuning["searched"].items() if key != "lr"}
    lines += [
        "",
        "## How settings were chosen",
        "",
        f"On {tuning['held out']:,} held-out training images, mean over {len(tuning['seeds'])} seeds, "
        f"{len(tuning['runs'])} runs; the test images were not looked at. Epsilon does not count this search. First "
        "the baseline's learning rate, for each "
        f"epsilon, among {', '.join(f'{lr:g}' for lr in tuning['searched']['lr'])}; then, at that learning rate, each "
        "repair's own setting:",
        "",
        *(f"- {method}: {'; '.join(_words(choice) for choice in choices)}" for method, choices in searched.items()),
        "",
        "The public set for pruning is MNIST (10 epochs of plain SGD). Global clipping divides the step by screen / bound; "
        "`lr_factor` multiplies the learning rate; its search was widened once after a first set of final runs, since the best "
        "setting had been the smallest one searched. Settings were searched on this data set alone: whether they carry over to "
        "others is not known.",
        "",
        f"{at_the_edge(tuning)} More may be had beyond.",
        "",
        f"`{results['command']}` on {', '.join(results['hardware']['gpus']) or 'CPU'}, torch {results['versions']['torch']}, "
        f"commit {results['commit']}; every run is in `benchmarks/results/fashion_mnist_repairs.json`, the search in "
        "`benchmarks/results/fashion_mnist_tuning.json`; "
        f"`{decided['command']}`, commit {decided['commit']}: `benchmarks/results/fashion_mnist_sparsification.json`.",
    ]
    return "\n".join(lines) + "\n"


def at_the_edge(tuning: dict) -> str:
    """Which chosen numbers are the smallest or largest of those that were searched."""
    edges = []
    for epsilon, chosen in tuning["chosen"].items():
        for method, choices in tuning["searched"].items():
            taken = {"lr": chosen[method]} if method == "lr" else chosen[method]
            grid = [{"lr": lr} for lr in choices] if method == "lr" else choices
            for name, value in taken.items():
                tried = sorted({choice[name] for choice in grid if not isinstance(choice[name], bool | list)})
                if len(tried) > 1 and value in (tried[0], tried[-1]):
                    end = "smallest" if value == tried[0] else "largest"
                    edges.append(
                        f"{method}, {name.replace('_', ' ')} {value:g} (epsilon {float(epsilon):g}, the {end})"
                    )
    return f"Chosen at the edge of what was searched: {'; '.join(edges)}." if edges else "No choice is at an edge."


def _percent(estimate: dict) -> str:
    return f"{100 * estimate['value']:.2f} ({100 * estimate['low']:.2f}, {100 * estimate['high']:.2f})"


def _words(settings: dict) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_word(value)}" for name, value in settings.items())


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(f"{item:g}" for item in value) if isinstance(value, list | tuple) else f"{value:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tune", "final", "decide", "table"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tuning", type=Path)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--decided", type=Path)
    parser.add_argument("--workers", type=int, default=8)
    given = parser.parse_args()
    if given.what == "tune":
        tune(given.out, given.workers)
    elif given.what == "final":
        final(given.tuning, given.out, given.workers)
    elif given.what == "decide":
        decide(given.tuning, given.out, given.workers)
    else:
        results, tuning, decided = (
            json.loads(path.read_text()) for path in (given.results, given.tuning, given.decided)
        )
        given.out.write_text(page(results, tuning, decided))


if __name__ == "__main__":
    main()
