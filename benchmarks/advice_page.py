"""From the runs of benchmarks/advice.py to benchmarks/results/advice.json, docs/advice.md and what the package shows."""

from __future__ import annotations

import json
import math
import textwrap
from pathlib import Path

import numpy as np
from scipy.stats import t

from noisewise.advice.noise import voice
from noisewise.estimates.estimate import Estimate
from noisewise.estimates.intervals import each, mean

PROJECT = Path(__file__).parents[1]
RESULTS = PROJECT / "benchmarks" / "results"
PACKAGE = PROJECT / "src" / "noisewise" / "advice" / "measured.json"
PAGE = PROJECT / "docs" / "advice.md"
TITLES = {
    "mnist-5": "MNIST, one small class", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "digits": "digits",
    "compas": "COMPAS", "german_credit": "German credit",
}  # fmt: skip
METRICS = {"accuracy": "accuracy", "ece": "calibration error", "worst": "worst class"}
CLAIMS = {"noise-bound": "accuracy", "too few people": "accuracy", "clipping-bound": "ece", "miscalibrated": "ece"}
UNITS = {"accuracy": "points of accuracy", "ece": "% of the calibration error"}
BETTER = {"accuracy": 1, "ece": -1, "worst": 1}
LENET = 61_706  # weights of the model in price_mnist-5.json


def value(test: dict, metric: str) -> float:
    return test["worst"]["class"] if metric == "worst" else test[metric]


def write(logs: list[Path]) -> None:
    """Everything that follows from the runs."""
    runs = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    results = summary([run for run in runs if "error" not in run])
    (RESULTS / "advice.json").write_text(json.dumps(results, indent=1) + "\n")
    PACKAGE.write_text(json.dumps(gains(results), indent=1) + "\n")
    tried, price = (json.loads((RESULTS / name).read_text()) for name in ("advice_held_out.json", "price_mnist-5.json"))
    PAGE.write_text(page(results, tried, price))


def summary(runs: list[dict]) -> dict:
    """Paired differences for each data set and epsilon, and over all of them."""
    made = runs[0]["made"]
    latest = {(run["name"], run["epsilon"], run["seed"], run["arm"]): run for run in runs}
    cases = sorted({key[:2] for key in latest}, key=lambda case: (list(TITLES).index(case[0]), -case[1]))
    rows = []
    for name, epsilon in cases:
        seeds = sorted(s for n, e, s, arm in latest if (n, e, arm) == (name, epsilon, "nothing"))
        pairs = [(latest[name, epsilon, s, "nothing"], latest.get((name, epsilon, s, "random"))) for s in seeds]
        rows.append(_row(name, epsilon, [pair for pair in pairs if pair[1] is not None], len(cases)))
    return {
        "command": "python benchmarks/advice.py run", "commit": made["commit"], "hardware": made["hardware"],
        "versions": made["versions"], "comparisons": len(cases), "rows": rows, "overall": _overall(rows),
        "runs": [{key: entry for key, entry in run.items() if key != "made"} for run in latest.values()],
    }  # fmt: skip


def _row(name: str, epsilon: float, pairs: list[tuple[dict, dict]], comparisons: int) -> dict:
    level = each(0.95, comparisons)
    row: dict = {
        "name": name, "epsilon": epsilon, "n": pairs[0][0]["n"], "seeds": [base["seed"] for base, _ in pairs],
        "diagnoses": [base["followed"]["diagnosis"] for base, _ in pairs], "repairs": [drawn["repair"] for _, drawn in pairs],
        "metrics": {},
    }  # fmt: skip
    for metric in METRICS:
        nothing = [value(base["test"], metric) for base, _ in pairs]
        advised = [value(base["followed"]["test"], metric) for base, _ in pairs]
        drawn = [value(other["test"], metric) for _, other in pairs]
        scaled = [value(base["scaled"], metric) for base, _ in pairs]
        row["metrics"][metric] = {
            "nothing": vars(mean(nothing)), "advice": vars(mean(advised)), "random": vars(mean(drawn)),
            "gain": vars(mean(_less(advised, nothing), level)), "over_random": vars(mean(_less(advised, drawn), level)),
            "temperature": vars(mean(_less(scaled, nothing), level)),
        }  # fmt: skip
    return row


def _less(first: list[float], second: list[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)]


def _overall(rows: list[dict]) -> dict:
    """Mean over data sets and epsilons of the means over seeds: what is to be expected of another data set."""
    names = ("gain", "over_random", "temperature")
    return {
        metric: {name: vars(mean([row["metrics"][metric][name]["value"] for row in rows])) for name in names}
        for metric in METRICS
    }


def gains(results: dict) -> dict:
    """By diagnosis and metric, over the runs in which it was the advice; every data set and epsilon counts alike.

    Points of accuracy, and share of the calibration error, which differs too much between models for points.
    """
    found: dict = {}
    for diagnosis, metric in CLAIMS.items():
        for shown in dict.fromkeys((metric, "accuracy")):
            by_case, seeds = _by_case(results, diagnosis, shown, relative=shown == "ece")
            if by_case:
                change = stratified(list(by_case.values()), each(0.95, len(CLAIMS)))
                entry = {"change": vars(change), "sets": len({name for name, _ in by_case}), "seeds": len(seeds)}
                found.setdefault(diagnosis, {})[shown] = entry
    return found


def stratified(cases: list[list[float]], level: float) -> Estimate:
    """Mean of the cases' means: `sum_k mean_k / K` with variance `sum_k s_k^2 / n_k / K^2`, Student t, Satterthwaite's degrees.

    About other seeds on these data sets, not about other data sets.
    """
    means, parts = [sum(case) / len(case) for case in cases], [np.var(case, ddof=1) / len(case) for case in cases]
    value, total = sum(means) / len(means), float(sum(parts))
    if total == 0:
        return Estimate(value, value, value, sum(map(len, cases)), level, "no change in any run")
    freedom = total**2 / sum(part**2 / (len(case) - 1) for part, case in zip(parts, cases, strict=True))
    half = float(t.ppf((1 + level) / 2, freedom)) * math.sqrt(total) / len(cases)
    return Estimate(value, value - half, value + half, sum(map(len, cases)), level, "stratified t")


def _by_case(results: dict, diagnosis: str, metric: str, *, relative: bool = False) -> tuple[dict, set]:
    by_case: dict = {}
    seeds = set()
    for run in results["runs"]:
        if run["arm"] != "nothing":
            continue
        if diagnosis == "miscalibrated":  # measured wherever it is given, whether first or not
            after = run["scaled"] if any(one["diagnosis"] == diagnosis for one in run["advice"]) else None
        else:
            after = run["followed"]["test"] if run["followed"]["diagnosis"] == diagnosis else None
        if after is not None:
            change = value(after, metric) - value(run["test"], metric)
            if relative:
                change /= value(run["test"], metric)
            by_case.setdefault((run["name"], run["epsilon"]), []).append(change)
            seeds.add(run["seed"])
    return {case: values for case, values in by_case.items() if len(values) > 1}, seeds  # one run has no interval


def page(results: dict, tried: dict, price: dict) -> str:
    """docs/advice.md."""
    overall = results["overall"]
    lines = [
        "# Advice, and whether it helps",
        "",
        *wrapped(
            "Written by `python benchmarks/advice.py write` from `benchmarks/results/advice.json` "
            f"(commit {results['commit']}, {results['hardware']['cores']} CPU cores, torch {results['versions']['torch']}); "
            "every run is in that file."
        ),
        *wrapped(
            "`noisewise suggest DIR` reads a run's audits, asks the cheap ones that are missing, and applies the rules of "
            "`src/noisewise/advice/rules.py`, in this order:"
        ),
        "| diagnosis | when | advice | meant to improve | gained, where it was the advice |",
        "|---|---|---|---|---|",
        *_rules(gains(results)),
        "",
        *wrapped(
            "Audits look at people, so advice is secret: it lies in `sensitive/`. Each further run on the same people adds to "
            "what is spent, and whoever chooses the better of two runs by a test part has looked at that part."
        ),
        "## What the first advice gains",
        "",
        *wrapped(
            "What somebody gets who types the first command of `suggest`, against doing nothing (the library's defaults) and "
            "against a repair drawn by a public seed among all that apply. Equal epsilon; equal seeds have equal splits, "
            "initial weights, batches and noise. Images are small cuts with half the pixels each way, as columns (see "
            "`benchmarks/advice.py`). Audits looked at held-out training rows, figures are of the test part. Paired "
            "differences over seeds with Student's t; the intervals of 95 % hold together for the "
            f"{results['comparisons']} rows (Bonferroni), bold where 0 is outside."
        ),
        *_tables(results),
        "Over all rows (Student's t over rows: what is to be expected of another data set, if these are like it):",
        "",
        "| measure | advice − nothing | advice − random repair |",
        "|---|---|---|",
        *(
            f"| {title} | {_points(overall[metric]['gain'])} | {_points(overall[metric]['over_random'])} |"
            for metric, title in METRICS.items()
        ),
        "",
        *_plainly(results),
        "",
        "## What was tried, and what is not suggested",
        "",
        *wrapped(CHOICE),
        *held_out(tried),
        "",
        *wrapped(WITHDRAWN),
        *_small_classes(price),
    ]
    return "\n".join(lines) + "\n"


def wrapped(text: str) -> list[str]:
    """A paragraph."""
    return [*textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False), ""]


CHOICE = (
    "Rules, thresholds and settings were chosen on held-out training rows, with one or two seeds that the figures above do not "
    "use (images at full size, with a cnn); the test parts were not looked at. Change of accuracy, and in brackets of the "
    "calibration error, in points against nothing at equal epsilon, from `benchmarks/results/advice_held_out.json`:"
)
WITHDRAWN = (
    "Not suggested, though somebody might expect it: a moving average, half the learning rate, random sparsification or "
    "larger batches with as many steps for noise-bound runs, since larger batches with as many passes gained more wherever "
    "both were tried; a smaller bound or automatic clipping for clipping-bound runs, since accuracy hardly moves and "
    "calibration gets worse on tables; local then global clipping for calibration, which changed nothing; a bound for each "
    "group, since no group gained. For a class that is too small no repair is suggested: none is known here to help."
)


def held_out(tried: dict) -> list[str]:
    """What was tried, method by method, on each data set."""
    found: dict = {}
    for run in tried["runs"]:
        found.setdefault((run["name"], run["epsilon"]), {}).setdefault(run["method"], {})[run["seed"]] = run
    methods = dict.fromkeys(run["method"] for run in tried["runs"] if run["method"] != "nothing")
    heads = [f"{name.replace('_', ' ')}, {epsilon:g}" for name, epsilon in found]
    lines = [f"| tried | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for method in methods:
        cells = [_change(by_method["nothing"], by_method.get(method, {})) for by_method in found.values()]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return lines


def _change(nothing: dict, other: dict) -> str:
    seeds = [seed for seed in other if seed in nothing]
    if not seeds:
        return ""
    accuracy, ece = (
        100 * sum(other[seed][metric] - nothing[seed][metric] for seed in seeds) / len(seeds)
        for metric in ("accuracy", "ece")
    )
    return f"{accuracy:+.1f} ({ece:+.1f})"


RULES = {
    "noise-bound": (
        "a step sees at most an eighth of the people, and 60 steps are left",
        "batches four times as large, as many passes",
        "accuracy",
    ),
    "too few people": (
        "the noise is as long as what twice the people of an average class can say (below)",
        "a linear model",
        "accuracy",
    ),
    "clipping-bound": (
        "over-confident by 5 points at least, a tenth of the people clipped",
        "Global-Adapt, screen at ten bounds",
        "ece",
    ),
    "imbalanced": ("a class of less than half the average size pays more than everyone", "more people, no repair", ""),
    "miscalibrated": ("confidence off by 5 points at least", "a temperature from held-out people", "ece"),
    "twin badly tuned": ("the twin is behind the private model", "a third of its learning rate", ""),
}
AIMS = {**METRICS, "imbalanced": "the smallest class", "twin badly tuned": "the twin"}


def _rules(found: dict) -> list[str]:
    lines = []
    for name, (when, what, metric) in RULES.items():
        entry = found.get(name, {}).get(metric)
        gained = (
            "not measured"
            if entry is None
            else f"{_points(entry['change'])} {UNITS[metric]}, data sets: {entry['sets']}"
        )
        aim = METRICS.get(metric, {"imbalanced": "the smallest class", "twin badly tuned": "the twin"}.get(name, ""))
        lines.append(f"| {name} | {when} | {what} | {aim} | {gained} |")
    return lines


def _tables(results: dict) -> list[str]:
    lines = []
    for metric, title in METRICS.items():
        lines += [f"### {title.capitalize()}, in points", ""]
        lines += [
            "| data | epsilon | people | first advice | nothing | advice | random repair | advice − nothing | advice − random |"
        ]
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        for row in results["rows"]:
            figures = row["metrics"][metric]
            first = _first(row["diagnoses"])
            means = " | ".join(f"{100 * figures[arm]['value']:.1f}" for arm in ("nothing", "advice", "random"))
            lines.append(
                f"| {TITLES[row['name']]} | {row['epsilon']:g} | {row['n']:,} | {first} | {means} | "
                f"{_points(figures['gain'])} | {_points(figures['over_random'])} |"
            )
        lines.append("")
    return lines


def _first(diagnoses: list[str | None]) -> str:
    names = [name or "none" for name in diagnoses]
    return ", ".join(
        name if names.count(name) == len(names) else f"{name} ({names.count(name)})" for name in dict.fromkeys(names)
    )


def _points(raw: dict) -> str:
    if not math.isfinite(raw["low"]):
        return f"{100 * raw['value']:+.1f}"
    estimate = Estimate.from_dict(raw)
    text = f"{100 * estimate.value:+.1f} ({100 * estimate.low:+.1f}, {100 * estimate.high:+.1f})"
    return f"**{text}**" if estimate.excludes_zero else text


def _plainly(results: dict) -> list[str]:
    """What held up and what did not, read off the figures."""
    lines = ["## Plainly", ""]
    for diagnosis, metric in CLAIMS.items():
        by_case, _ = _by_case(results, diagnosis, metric)
        if not by_case:
            lines.append(f"- **{diagnosis}** was never the first advice here: its gain is not measured.")
            continue
        verdicts = []
        for (name, epsilon), values in by_case.items():
            change = mean(values, each(0.95, results["comparisons"])) if len(values) > 1 else None
            better = None if change is None or not change.excludes_zero else change.value * BETTER[metric] > 0
            word = {None: "cannot be told from nothing", True: "helps", False: "harms"}[better]
            verdicts.append(f"{word} on {TITLES[name]} at epsilon {epsilon:g}")
        lines.append(f"- **{diagnosis}** ({METRICS[metric]}): {'; '.join(verdicts)}.")
    return lines


def _small_classes(price: dict) -> list[str]:
    """The rule of `plan`, beside the classes that were measured."""
    return [
        "## The smallest class that can be learned",
        "",
        *wrapped(
            "`noisewise plan` calls a class too small, and `suggest` calls people too few, by one rule. In each of T steps a "
            "class of m people is drawn at rate q and brings at most C for each of them, in one direction at best: `m q T C` "
            "over the run. The noise of T steps is `sigma C sqrt(T d)` long, for d weights. A class drowns below the m at "
            "which both are equal, `m = sigma sqrt(d) / (q sqrt(T))`; C and the learning rate cancel. It is no theorem: people "
            "of a class do not agree, and noise in most directions does no harm. Held against the measurement of "
            "`benchmarks/price.py` (LeNet on MNIST, epsilon 3, class 5 cut, five seeds), to which nothing was fitted:"
        ),
        "| people of class 5 | their gradients / noise | accuracy of class 5 | twin |",
        "|---|---|---|---|",
        *(
            f"| {row['people']:,} | {row['voice']:.2f} | {100 * row['private']:.1f} % | {100 * row['twin']:.1f} % |"
            for row in small_classes(price)
        ),
        "",
        *wrapped(
            "Below 1 the class is lost, above 1 it is learned, and its price goes on falling. Take it as an order of "
            "magnitude: for the cnn on digits at epsilon 3 the rule says 142 people, and classes of 126 are learned. So "
            "`suggest` calls people too few at twice the rule only."
        )[:-1],
    ]


def small_classes(price: dict) -> list[dict]:
    """Voice and accuracy of the classes that `price.py` cut; at equal epsilon `q sqrt(T) / sigma` is that of all 30,000."""
    rows = [row for row in price["rows"] if row["part"] == "class 5" and row["metric"] == "accuracy"]
    return [
        {
            "people": int(row["case"]),
            "voice": voice(row["case"], 512 / 30_000, price["steps"], price["noise_multiplier"], LENET),
            "private": row["private"]["value"],
            "twin": row["twin"]["value"],
        }
        for row in rows
    ]
