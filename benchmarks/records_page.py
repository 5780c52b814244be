"""docs/records.md from the files in benchmarks/results/records: no number of ours is written by hand.

Goals and published values stand here, with where they come from; everything else is read off result files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from records_final import same_settings
from records_search import FOLDER
from records_seconds import seconds

from noisewise.estimates.intervals import mean_difference
from noisewise.runs.files import read_json

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs" / "records.md"
PLOT = "frontier.png"
NAMES = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "adult": "Adult",
    "digits": "digits",
}
LANES = {
    "scattering-linear": "none but the private data",
    "scattering-cnn": "none but the private data",
    "patches-linear": "none but the private data",
    "made-up-linear": "made-up images",
    "defaults": "none but the private data",
}


class Goal(NamedTuple):
    """What shall be reached at an epsilon, in percent."""

    data: str
    recipe: str
    epsilon: float
    accuracy: float


GOALS = (
    Goal("mnist", "scattering-linear", 1, 98.3),
    Goal("mnist", "scattering-linear", 3, 99.1),
    Goal("fashion_mnist", "scattering-linear", 1, 89.0),
    Goal("fashion_mnist", "scattering-linear", 3, 90.5),
    Goal("cifar10", "scattering-linear", 1, 66.0),
    Goal("cifar10", "scattering-linear", 3, 72.0),
    Goal("cifar10", "made-up-linear", 1, 74.0),
    Goal("cifar10", "made-up-linear", 3, 78.0),
    Goal("adult", "defaults", 1, 85.0),
)


class Published(NamedTuple):
    """A value of a paper, in percent; `prior`: with features from made-up images."""

    data: str
    epsilon: float
    accuracy: float
    who: str
    prior: bool = False


PUBLISHED = (
    Published("mnist", 3, 98.7, "ScatterNet, Tramer & Boneh 2021"),
    Published("mnist", 1, 97.9, "DPSUR, Fu et al. 2024"),
    Published("mnist", 2, 98.7, "DPSUR, Fu et al. 2024"),
    Published("mnist", 3, 98.9, "DPSUR, Fu et al. 2024"),
    Published("mnist", 2.93, 98.1, "tempered sigmoids, Papernot et al. 2021"),
    Published("fashion_mnist", 3, 89.7, "ScatterNet, Tramer & Boneh 2021"),
    Published("fashion_mnist", 1, 88.4, "DPSUR, Fu et al. 2024"),
    Published("fashion_mnist", 3, 89.7, "DPSUR, Fu et al. 2024"),
    Published("fashion_mnist", 1, 87.0, "H-CNN/S with random sparsification, Zhu & Blaschko 2023"),
    Published("fashion_mnist", 3, 89.2, "H-CNN/S with random sparsification, Zhu & Blaschko 2023"),
    Published("cifar10", 1, 64.4, "DPSUR, Fu et al. 2024"),
    Published("cifar10", 3, 70.8, "DPSUR, Fu et al. 2024"),
    Published("cifar10", 1, 60.9, "ScatterNet, Tramer & Boneh 2021"),
    Published("cifar10", 3, 69.3, "ScatterNet, Tramer & Boneh 2021"),
    Published("cifar10", 1, 63.2, "H-CNN with random sparsification, Zhu & Blaschko 2023"),
    Published("cifar10", 3, 70.0, "H-CNN with random sparsification, Zhu & Blaschko 2023"),
    Published("cifar10", 8, 81.4, "WRN-40-4, De et al. 2022"),
    Published("cifar10", 1, 72.3, "DP-RandP, Tang et al. 2023", prior=True),
)


BESIDE = ("search", "limits", "repaired", "earlier", "seconds")  # files that are no final runs


def records(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Final runs, each with the lane and the device that its file's name says."""
    made = []
    for path in sorted(folder.glob("*.*.*.json")):  # data, lane, epsilon
        if not path.name.endswith(tuple(f".{kind}.json" for kind in BESIDE)):
            made.append(_named(read_json(path), path))
    return made


def _named(record: dict[str, Any], path: Path) -> dict[str, Any]:
    parts = path.name.split(".")
    return {**record, "lane": parts[1], "cpu": "cpu" in parts}


def beside(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Searches, limits or settings that were repaired."""
    return [read_json(path) for path in sorted(folder.glob(f"*.{kind}.json"))]


def best_published(data: str, epsilon: float, prior: bool) -> Published | None:
    """The highest value of a paper at exactly an epsilon."""
    fits = [value for value in PUBLISHED if (value.data, value.epsilon, value.prior) == (data, epsilon, prior)]
    return max(fits, key=lambda value: value.accuracy, default=None)


def percent(value: float | None) -> str:
    """With two digits."""
    return "-" if value is None else f"{100 * value:.2f}"


def record_of(made: Iterable[dict[str, Any]], data: str, lane: str, epsilon: float) -> dict[str, Any] | None:
    """The record of a lane; that of the GPU first."""
    fits = [one for one in made if _place(one) == (data, lane, epsilon)]
    return min(fits, key=lambda one: one["cpu"], default=None)


def _place(record: dict[str, Any]) -> tuple[str, str, float]:
    return record["data"], record["lane"], record["epsilon"]


Searches = dict[tuple[str, str, float], dict[str, Any]]


def all_searches(folder: Path = FOLDER) -> Searches:
    return {(one["data"], one["recipe"], one["epsilon"]): one for one in beside(folder, "search")}


def lane_of(goal: Goal, searches: Searches) -> str:
    """Of the recipes that use no more data than the goal's the one that was best on held-out images; else the goal's own."""
    alike = [lane for lane, data in LANES.items() if data == LANES[goal.recipe]]
    tried = {
        lane: searches[goal.data, lane, goal.epsilon] for lane in alike if (goal.data, lane, goal.epsilon) in searches
    }
    return max(tried, key=lambda lane: tried[lane]["winner"]["mean"], default=goal.recipe)


def goals_table(folder: Path = FOLDER) -> list[str]:
    """One row for each goal."""
    made, searches = records(folder), all_searches(folder)
    lines = [
        "| data | data used | epsilon | goal | best published | ours, mean of seeds | against the goal | worst class | "
        "epsilon with the search paid for |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for goal in GOALS:
        published = best_published(goal.data, goal.epsilon, goal.recipe == "made-up-linear")
        theirs = "not known to us" if published is None else f"{published.accuracy:.1f} ({published.who})"
        head = f"| {NAMES[goal.data]} | {LANES[goal.recipe]} | {goal.epsilon:g} | {goal.accuracy:.1f} | {theirs} |"
        lane = lane_of(goal, searches)
        record = record_of(made, goal.data, lane, goal.epsilon)
        if record is None:
            lines.append(f"{head} not run yet | | | |")
            continue
        ahead = 100 * record["accuracy"] - goal.accuracy
        name, worst = record["worst_class"]
        search = searches.get((goal.data, lane, goal.epsilon))
        if goal.recipe == "defaults":
            paid = f"{record['spent']:.3g} (no search on it)"
        else:
            paid = "-" if search is None else _paid(search)
        lines.append(
            f"{head} **{percent(record['accuracy'])}**{spread(record)} ({len(record['runs'])}) | "
            f"{'reached' if ahead >= 0 else 'missed'}, {ahead:+.2f} | {name} {percent(worst)} | {paid} |"
        )
    return lines


def spread(record: dict[str, Any]) -> str:
    """Standard deviation over seeds, in points."""
    return "" if record["deviation"] is None else f" ± {100 * record['deviation']:.2f}"


def _paid(search: dict[str, Any]) -> str:
    """Epsilon with a search and those before it paid for, and how many models they trained."""
    before = search.get("after", {"trials": 0, "paid_epsilon": 0.0, "searches": 0})
    told = f", {before['searches'] + 1} searches" if before["searches"] else ""
    return (
        f"{search['paid_epsilon'] + before['paid_epsilon']:.0f} ({search['trials'] + before['trials']:,} trials{told})"
    )


def frontier_table(folder: Path = FOLDER) -> list[str]:
    """Accuracy and the worst class and group at each epsilon."""
    rows = sorted(records(folder), key=lambda one: (*_place(one), one["cpu"]))
    lines = [
        "| data | recipe | epsilon | accuracy | worst class | worst group | seconds | joules | on |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        (name, worst), (label, least) = one["worst_class"], one["worst_group"]
        joules = "not measured" if one["joules"] is None else f"{one['joules']:,.0f}"
        cells = (
            NAMES[one["data"]], one["lane"], f"{one['epsilon']:g}",
            f"{percent(one['accuracy'])}{spread(one)} ({len(one['runs'])})", f"{name}: {percent(worst)}",
            "-" if label is None else f"{label} {percent(least)}", seconds(one), joules, one["device"],
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines if rows else ["No final run is committed yet."]


def history(runs: Sequence[dict[str, Any]]) -> list[str]:
    """What was run before some records, and read on the test part too."""
    return [
        *[
            f"An earlier choice, of {one['trials']:,} trials, was run first and read on the test part too: "
            f"{percent(one['accuracy'])} (`{one['recipe']}`)."
            for run in runs
            for one in run.get("earlier", ())
        ],
        *[f"{run['note'][0].upper()}{run['note'][1:]}." for run in runs if run.get("note")],
    ]


def histories(folder: Path = FOLDER) -> list[str]:
    """Of the records that are no goals, whose histories stand with their recipes."""
    searches = all_searches(folder)
    goals = {(goal.data, lane_of(goal, searches), goal.epsilon) for goal in GOALS}
    return [
        f"- {NAMES[one['data']]}, {one['lane']}, epsilon {one['epsilon']:g}. {line}"
        for one in sorted(records(folder), key=_place)
        if _place(one) not in goals
        for line in history([one])
    ]


def recipes_in_lines(folder: Path = FOLDER) -> list[str]:
    """Each record of the goals in ten lines or fewer."""
    made, searches, lines = records(folder), all_searches(folder), list[str]()
    for goal in GOALS:
        lane = lane_of(goal, searches)
        record = record_of(made, goal.data, lane, goal.epsilon)
        if record is None:
            continue
        chosen = record["settings"]
        epochs = chosen["steps"] * chosen["batch_size"] / record["n"]
        place = goal.data, lane, goal.epsilon
        others = [one for one in made if _place(one) == place and one is not record]
        lines += [
            f"**{NAMES[goal.data]}, epsilon {goal.epsilon:g}, {lane}**",
            "",
            f"- `{record['recipe']}`: {record['coordinates']:,} coordinates.",
            f"- {record['n']:,} units, {batches_in_words(chosen['batch_size'], record['n'])}, {chosen['steps']} steps "
            f"({epochs:.0f} epochs), noise {record['noise_multiplier']:.4g}, epsilon "
            f"{record['spent']:.3f} at delta {record['delta']:g} (PLD).",
            f"- Flat clipping at {chosen['bound']:g}, SGD with learning rate {chosen['lr']:g}, momentum "
            f"{chosen['momentum']:g}, schedule {chosen['schedule'] or 'constant'}, moving average {chosen['ema']}.",
            *encoder_in_words(record.get("pretraining")),
            f"- `{record['command']}`",
            *[f"- {line}" for line in history([record, *others])],
            *[
                f"- The same settings elsewhere, which draws other noise: {percent(one['accuracy'])} "
                f"({len(one['runs'])} seeds, {one['device']})."
                for one in others
                if same_settings(one, record)
            ],
            f"- Commit {record['commit'][:12]}, torch {record['versions']['torch']}, {record['device']}.",
            "",
        ]
    return lines or ["No final run is committed yet.", ""]


def batches_in_words(batch: int, n: int) -> str:
    """Of everybody nothing is sampled, and sampling protects nobody."""
    return "everybody in every batch" if batch == n else f"Poisson batches of {batch:,}"


def encoder_in_words(about: dict[str, Any] | None) -> list[str]:
    """The command that makes an encoder, and what it made."""
    if about is None:
        return []
    given = ("images", "steps", "batch", "width", "stages", "kept", "seed")
    options = [f"--{name} {about[name]}" for name in given if about.get(name) is not None]
    options += [f"--seconds {about['seconds']:g}"] if about.get("seconds") else []
    return [
        f"- Encoder: `noisewise pretrain --kind {about['kind']} --shape {'x'.join(map(str, about['shape']))} "
        f"{' '.join(options)} --out encoder.safetensors`, {about['made_steps']:,} steps on made-up images alone."
    ]


def better_elsewhere(folder: Path = FOLDER) -> list[str]:
    """Published values that no record of the same epsilon reaches."""
    made = records(folder)
    lines = []
    for one in PUBLISHED:
        ours = [r["accuracy"] for r in made if (r["data"], r["epsilon"]) == (one.data, one.epsilon)]
        if ours and 100 * max(ours) < one.accuracy:
            lines.append(
                f"At epsilon {one.epsilon:g} on {NAMES[one.data]} {one.accuracy} is published ({one.who}), above all of ours."
            )
    return lines


TIMED = ("seconds", "feature_seconds", "joules", "device", "others")


def _alone(record: dict[str, Any], alone: Mapping[tuple[str, str, float], dict[str, Any]]) -> dict[str, Any]:
    """A record of a CPU with the seconds that it takes where nothing else runs, if they were measured for its settings."""
    timed = alone.get(_place(record))
    if not record["cpu"] or timed is None or not same_settings(record, timed):
        return record
    return {**record, **{key: timed[key] for key in TIMED}}


def cheapest(folder: Path = FOLDER) -> list[str]:
    """For each published best the run that reaches it in the least time, on each kind of device."""
    alone = {_place(one): one for one in (_named(read_json(path), path) for path in folder.glob("*.seconds.json"))}
    lines = [
        "| data | epsilon | published | reached by | accuracy | seconds | joules of training | on |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for goal in GOALS:
        published = best_published(goal.data, goal.epsilon, goal.recipe == "made-up-linear")
        if published is None:
            continue
        for cpu in (True, False):
            fits = [
                one
                for one in [_alone(one, alone) for one in records(folder)]
                if (one["data"], one["epsilon"], one["cpu"]) == (goal.data, goal.epsilon, cpu)
                and 100 * one["accuracy"] >= published.accuracy
                and (one["lane"] == "made-up-linear") == published.prior
            ]
            if fits:
                one = min(fits, key=lambda record: record["seconds"] + record["feature_seconds"])
                joules = "not measured" if one["joules"] is None else f"{one['joules']:,.0f}"
                lines.append(
                    f"| {NAMES[goal.data]} | {goal.epsilon:g} | {published.accuracy:.1f} | {one['lane']} | "
                    f"{percent(one['accuracy'])} | {seconds(one)} | {joules} | {one['device']}"
                    f"{', nothing else running' if 'others' in one else ''} |"
                )
    return lines if len(lines) > 2 else ["No published best is reached by a committed run yet."]


def what_helped(folder: Path = FOLDER) -> list[str]:
    """For each search and choice: scores by value, the best first; values far below the first did not help."""
    lines: list[str] = []
    for search in beside(folder, "search"):
        lines += [
            f"**{NAMES[search['data']]}, epsilon {search['epsilon']:g}, {search['recipe']}**: {search['trials']:,} models, "
            f"{search['diverged']:,} of them diverged; held-out accuracy of the chosen "
            f"{percent(search['winner']['mean'])} over {len(search['seeds'])} other cuts (best of the search "
            f"{percent(search['best_of_search']['accuracy'])}). Score that one model in twenty exceeds, by choice:",
            "",
        ]
        for choice, values in search["choices"].items():
            if len(values) < 2:
                continue
            ordered = sorted(values.items(), key=lambda item: -item[1]["upper"])
            lines.append(f"- {choice}: " + ", ".join(f"{value}: {percent(score['upper'])}" for value, score in ordered))
        lines.append("")
    return lines or ["No search is committed yet.", ""]


def limits(folder: Path = FOLDER) -> list[str]:
    """What limits each lane: features, clipping, noise, as measured on held-out training images."""
    rows = beside(folder, "limits")
    if not rows:
        return ["Not measured yet.", ""]
    lines = [
        "| data | recipe | epsilon | best without privacy | clipping only | private | lost to clipping and few steps | "
        "lost to noise |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        plain, clip, private = (row["means"][name] for name in ("plain", "clip-only", "private"))
        lines.append(
            f"| {NAMES[row['data']]} | {row['recipe']} | {row['epsilon']:g} | {percent(plain)} | {percent(clip)} | "
            f"{percent(private)} | {100 * (plain - clip):.2f} | {100 * (clip - private):.2f} |"
        )
    return [*lines, ""]


def on_top(folder: Path = FOLDER) -> list[str]:
    """What random sparsification gains on top of the chosen settings, with the paired interval over cuts."""
    rows = beside(folder, "repaired")
    if not rows:
        return ["Not measured yet.", ""]
    lines = [
        "| data | recipe | epsilon | without | with | gain in points | cuts | on |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        without, *changed = row["runs"]
        for mode in changed:
            gain = mean_difference(row["runs"][mode], row["runs"][without])
            lines.append(
                f"| {NAMES[row['data']]} | {row['recipe']} | {row['epsilon']:g} | {percent(row['means'][without])} | "
                f"{mode}: {percent(row['means'][mode])} | {100 * gain.value:+.2f} ({100 * gain.low:+.2f} to "
                f"{100 * gain.high:+.2f}) | {len(row['seeds'])} | {row['device']} |"
            )
    return [*lines, ""]


TOP = """# Records

<!-- written by benchmarks/records.py page, from benchmarks/results/records -->

What accuracy a privacy budget buys. Delta is 1e-5 throughout, neighbours differ by one record (add-remove), batches are
drawn by Poisson sampling (at rate 1 where everybody is in every batch), epsilon is read off the ledger (PLD).
Accuracy is that of the test part, mean ± standard deviation over seeds; each run reads the test part once, after it has
ended. Noise of these runs follows from their seed, so that they can be run again: such a run is not private itself;
`noisewise train --recipe` draws fresh noise, and is.

Settings were searched on held-out training images only, as papers do, and the epsilon of a record does not count that
search. The last column does: it composes every model that the search of that recipe trained at that epsilon (RDP); searches
one after another add up, deltas too. What was tried at another epsilon or with another recipe is not in it, nor are models
whose training was broken off before it was scored: nothing was chosen by them. On your own images
use a recipe as it is (`noisewise train --data cifar10 --recipe made-up-linear --epsilon 1`; `noisewise recipes` lists them),
and nothing is searched. Goals are ours, set before the searches. Where a first choice missed its goal, it was searched again
after its test accuracy had been read; the recipes below say so.

No lane uses real images but the private ones: patches are cut from made-up images, and channels are scaled by them; *made-up
images* in the table means an encoder that learned on them.
"""
LIMITS = """The best linear model without privacy on the same features says what features allow; the same plan without noise
what clipping takes; the rest is noise. Held-out training images; the test part is not read. Ordinary
training has steps and a learning rate of its own, the best of six on another cut.
"""


CHEAPEST = """*Nothing else running*: one run, with features of the training images alone (`python benchmarks/records.py
seconds`). Other rows are medians over seeds, most of them beside other work. Joules of a processor are read off its own
counter (RAPL), which the machine of these runs does not show.
"""
ON_TOP = """The chosen settings again with masks that grow to the share named, at the same epsilon, on held-out training images;
95 % intervals over cuts, paired (equal images, batches and noise).
"""


def page(folder: Path = FOLDER) -> str:
    """All of docs/records.md."""
    drawn = f"![accuracy against epsilon, with published values](../benchmarks/results/records/{PLOT})"
    lines = [
        TOP,
        *goals_table(folder),
        "",
        "Published values are quoted from the papers named; most of them do not count their search either.",
        "",
        "## Accuracy against epsilon, and who pays",
        "",
        *([drawn, ""] if (folder / PLOT).exists() else []),
        *frontier_table(folder),
        "",
        "Settings of images were searched at epsilon 1 and 3; the others take those of the nearer. Lines of the plot join runs "
        "of an H200, and of a CPU where there is none.",
        *better_elsewhere(folder),
        "",
        *([*histories(folder), ""] if histories(folder) else []),
        "Seconds are wall clock, medians over seeds; joules are means, those of the whole GPU; other work shared the CPU, and "
        "in some runs the H200, meanwhile.",
        "",
        "## The recipes",
        "",
        *recipes_in_lines(folder),
        "## The cheapest run that reaches each published best",
        "",
        *cheapest(folder),
        "",
        CHEAPEST,
        "## What limits them",
        "",
        LIMITS,
        *limits(folder),
        "## Random sparsification on top",
        "",
        ON_TOP,
        *on_top(folder),
        "## What helped, and what did not",
        "",
        "For each search the score that one model in twenty exceeds, by choice, on held-out training images: values far below "
        "the first of their line did not help. A line tells one choice apart, and what went with it counts too.",
        "",
        "<details><summary>all searches</summary>",
        "",
        *what_helped(folder),
        "</details>",
    ]
    return "\n".join(lines).rstrip() + "\n"


def draw(folder: Path = FOLDER) -> None:
    """The plot of accuracy against epsilon, one part for each data set, worst class dashed."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    every = records(folder)
    places = dict.fromkeys(map(_place, every))
    made = [one for place in places if (one := record_of(every, *place)) is not None]  # of a GPU, where there is one
    names = [name for name in NAMES if any(one["data"] == name for one in made)]
    if not names:
        return
    figure, axes = pyplot.subplots(1, len(names), figsize=(4.2 * len(names), 3.8), layout="constrained", squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        _draw(axis, name, [one for one in made if one["data"] == name])
    axes[0][0].set_ylabel("test accuracy, %")
    figure.savefig(folder / PLOT, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def _draw(axis: Any, name: str, made: Sequence[dict[str, Any]]) -> None:
    for colour, lane in zip(("#1f4e79", "#2a7f4f", "#7a3f8a", "#8a5a00", "#555555"), LANES, strict=True):
        rows = sorted((one for one in made if one["lane"] == lane), key=lambda one: one["epsilon"])
        if rows:
            places = [one["epsilon"] for one in rows]
            axis.plot(places, [100 * one["accuracy"] for one in rows], "o-", color=colour, label=lane, markersize=4)
            axis.plot(
                places,
                [100 * one["worst_class"][1] for one in rows],
                "--",
                color=colour,
                alpha=0.6,
                label="its worst class",
            )
    values = [value for value in PUBLISHED if value.data == name]
    for mark, prior in (("x", False), ("^", True)):
        points = [value for value in values if value.prior == prior]
        if points:
            label = "published, made-up images" if prior else "published"
            axis.plot(
                [one.epsilon for one in points], [one.accuracy for one in points], mark, color="#b03030", label=label
            )
    axis.set_xscale("log", base=2)
    ticks = [0.25, 0.5, 1, 2, 4, 8]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_xlabel("epsilon (delta 1e-5)")
    axis.set_title(NAMES[name], fontsize=11)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7, frameon=False)


def write(folder: Path = FOLDER, out: Path = PAGE) -> None:
    """The plot, then the page."""
    draw(folder)
    out.write_text(page(folder))
