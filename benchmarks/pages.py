"""Pages that are read off code and results: the drawing of the layers in CONTRIBUTING.md, docs/lists.md, README's table.

`python benchmarks/pages.py` writes them; tests/whole/test_lists.py and tests/whole/test_contributing.py compare them.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import noisewise.data
from noisewise import audits, models, recipes, repairs, sampling
from noisewise.adaptive import RULES
from noisewise.data.catalog import CATALOG

PROJECT = Path(__file__).parent.parent
SOURCE = PROJECT / "src" / "noisewise"
LISTS, CONTRIBUTING, README = PROJECT / "docs" / "lists.md", PROJECT / "CONTRIBUTING.md", PROJECT / "README.md"
CPU = PROJECT / "benchmarks" / "results" / "step.json"
GPU = PROJECT / "benchmarks" / "results" / "gpu.json"
TIMES = PROJECT / "benchmarks" / "results" / "time_to_accuracy.json"
DRAWING = re.compile(r"(?<=<!-- layers: written by benchmarks/pages.py -->\n)```text\n.*?```\n", re.DOTALL)
GPU_TABLE = re.compile(r"(?<=<!-- gpu: written by benchmarks/pages.py -->\n)\| .*?\n(?=\n)", re.DOTALL)
TIMES_TABLE = re.compile(r"(?<=<!-- times: written by benchmarks/pages.py -->\n)\| .*?\n(?=\n)", re.DOTALL)
ACCURACY_TABLE = re.compile(r"(?<=<!-- accuracy: written by benchmarks/pages.py -->\n)\| .*?\n(?=\n)", re.DOTALL)
PEERS = ("Opacus hooks", "Opacus ghost", "vmap(grad)")  # of benchmarks/gpu.py
WIDTH = 76


def layers() -> list[list[str]]:
    """The floors of import-linter's contract, high to low, with the rooms of each that exist."""
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    written = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    floors = [[room.strip(" ()") for room in floor.split("|")] for floor in written]
    there = [
        [room for room in floor if (SOURCE / room).is_dir() or (SOURCE / f"{room}.py").is_file()] for floor in floors
    ]
    return [floor for floor in there if floor]


def walls(floor: list[str]) -> list[int]:
    """Where the walls of a floor stand: rooms are wide by their names, and fill the house."""
    spare, extra = divmod(WIDTH - 1 - sum(len(room) + 3 for room in floor), len(floor))
    places = [0]
    for place, room in enumerate(floor):
        places.append(places[-1] + len(room) + 3 + spare + (place < extra))
    return places


def ceiling(above: list[int], below: list[int]) -> str:
    """The line between two floors, with the walls that end and begin at it."""
    first, last = above[0], above[-1]
    corners = {(True, True): "┼", (True, False): "┴", (False, True): "┬"}
    line = [corners.get((place in above, place in below), "─") for place in range(last + 1)]
    line[first], line[last] = "├", "┤"
    return "".join(line)


def drawing() -> str:
    """The house: whoever lives on a floor imports from the floors below, neither from above nor from next door."""
    floors = layers()
    plans = [walls(floor) for floor in floors]
    lines = [ceiling([0, plans[0][-1]], plans[0]).replace("├", "┌").replace("┤", "┐")]
    for number, (floor, plan) in enumerate(zip(floors, plans, strict=True)):
        rooms = [f" {room}".ljust(right - left - 1) for room, (left, right) in zip(floor, pairwise(plan), strict=True)]
        lines.append(f"│{'│'.join(rooms)}│")
        if number + 1 < len(floors):
            lines.append(ceiling(plan, plans[number + 1]))
    lines.append(ceiling(plans[-1], [0, plans[-1][-1]]).replace("├", "└").replace("┤", "┘"))
    return "```text\n" + "\n".join(lines) + "\n```\n"


def first_line(thing: Any) -> str:
    """What something says of itself."""
    return (thing.__doc__ or "").strip().splitlines()[0].replace("|", "\\|")


def table(title: str, where: str, rows: Mapping[str, str]) -> str:
    """A list: name and first line of each entry."""
    lines = [f"| `{name}` | {words} |" for name, words in rows.items()]
    return f"\n## {title}\n\n{where}\n\n| name | what it is |\n|---|---|\n" + "\n".join(lines) + "\n"


def lists() -> str:
    """docs/lists.md."""
    parts = [
        ("Clipping rules", "`noisewise.adaptive.RULES`, from `clipping.py` and `adaptive.py`; `--clip` names their kinds.",
         {name: first_line(rule) for name, rule in RULES.items()}),
        ("Samplers", "`noisewise.sampling.SAMPLERS`; `--sampler`.",
         {name: first_line(sampler) for name, sampler in sampling.SAMPLERS.items()}),
        ("Models", "`noisewise.models.MODELS`; `--model`.",
         {name: first_line(model) for name, model in models.MODELS.items()}),
        ("Data sets", "`noisewise.data.catalog.CATALOG`; `--data`.",
         {name: first_line(getattr(noisewise.data, name)) for name in CATALOG}),
        ("Recipes for images", "`noisewise.recipes.RECIPES`; `--recipe`. [records.md](records.md) says what they reach.",
         {name: first_line(recipe) for name, recipe in recipes.RECIPES.items()}),
        ("Repairs", "`noisewise.repairs.REPAIRS`; [repairs.md](repairs.md) says what they change and cost.",
         {name: first_line(repair) for name, repair in repairs.REPAIRS.items()}),
        ("Audits of a finished run", "`noisewise.audits.AUDITS`; `noisewise audit DIR --only NAME`.",
         {name: first_line(audit.run) for name, audit in audits.AUDITS.items()}),
    ]  # fmt: skip
    head = "# What there is, by name\n\nWritten by `python benchmarks/pages.py` from the library's own lists.\n"
    return head + "".join(table(*part) for part in parts)


def gpu_table() -> str:
    """README's table of one step on a GPU, from benchmarks/results/gpu.json; columns that every row has."""
    rows = {name: gpu_cells(row) for name, row in gpu_rows().items()}
    titles = [title for title in next(iter(rows.values())) if all(title in cells for cells in rows.values())]
    lines = [f"| | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(cells[title] for title in titles)} |" for name, cells in rows.items()]
    return "\n".join(lines) + "\n"


def gpu_cells(row: Mapping[str, Any]) -> dict[str, str]:
    """What there is to say of one workload."""
    step, train, half = row["step"], row["train"], row.get("bf16", {}).get("ratio", {})
    ratio = step["ratio"]
    cells = {way: f"{step['ms'][way]:.2f} ms" for way in ("plain", "noisewise")} | {
        "ratio": f"{ratio['noisewise']:.2f}"
    }
    if "plain captured" in ratio:
        cells["to a captured plain step"] = f"{ratio['noisewise'] / ratio['plain captured']:.2f}"
    if "noisewise" in half:
        cells["ratio in bfloat16"] = f"{half['noisewise']:.2f}"
    if "masked" in row:  # measured in one run of its own
        masked = row["masked"]["ms"]
        more = masked["elementwise masks"] / masked["noisewise"] - 1
        cells["half of the coordinates masked"] = f"{round(100 * more):+d} %"
    best = min((way for way in PEERS if way in ratio), key=ratio.__getitem__)
    return cells | {
        "best peer": f"{ratio[best]:.1f} ({best})",
        "`train` against a plain loop": f"{train['ratio']:.2f} ({train['steps']} steps)",
    }


def times_table() -> str:
    """README's table of seconds to an accuracy, from benchmarks/results/time_to_accuracy.json."""
    runs = json.loads(TIMES.read_text())["runs"]
    lines = ["| | noisewise, first and later runs | Opacus | times faster, first and later |", "|---|---|---|---|"]
    for name in dict.fromkeys(run["data"] for run in runs):
        some = [run for run in runs if run["data"] == name]
        ours, theirs = ([run["seconds"] for run in some if run["way"] == way] for way in ("noisewise", "Opacus"))
        peer, later = median(theirs), ours[1:]
        seconds = f"{ours[0]:.1f} s" + (f", {median(later):.1f} s" if later else "")
        faster = f"{peer / ours[0]:.1f}" + (f", {peer / median(later):.1f}" if later else "")
        lines.append(f"| {name} to {some[0]['goal']:.0%} | {seconds} | {peer:.1f} s | {faster} |")
    return "\n".join(lines) + "\n"


def accuracy_table() -> str:
    """README's table of accuracies, from benchmarks/results/records; docs/records.md has all of it."""
    import records_page as records  # beside this file

    lines = ["| data | learned from | epsilon | accuracy | best published |", "|---|---|---|---|---|"]
    made, searches = records.records(), records.all_searches()
    for goal in records.GOALS:
        record = records.record_of(made, goal.data, records.lane_of(goal, searches), goal.epsilon)
        published = records.best_published(goal.data, goal.epsilon, goal.recipe == "made-up-linear")
        cells = (
            records.NAMES[goal.data], records.LANES[goal.recipe], f"{goal.epsilon:g}",
            f"{records.percent(record['accuracy'])} %",
            "not known to us" if published is None else f"{published.accuracy} % ({published.who})",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def gpu_rows() -> dict[str, Any]:
    """Results of benchmarks/gpu.py by workload."""
    rows: dict[str, Any] = json.loads(GPU.read_text())["rows"]
    return rows


def gpu_picture(path: Path) -> None:
    """Time and peak memory of one step on a GPU against a plain one."""
    import ratios  # beside this file: found where it is run as a script

    steps, ways = {name: row["step"] for name, row in gpu_rows().items()}, ("noisewise", *PEERS)

    def of(key: str) -> ratios.Ratios:
        return {
            name: {way: step[key][way] / step[key]["plain"] if way in step[key] else None for way in ways}
            for name, step in steps.items()
        }

    ratios.draw(path, of("ms"), of("peak_mib"), ways)


def cpu_picture(path: Path) -> None:
    """The same on a CPU, drawn again from what `make bench` measured."""
    import step

    step.plot(path, json.loads(CPU.read_text())["rows"])


def main() -> None:
    """Write the pages."""
    LISTS.write_text(lists())
    gpu_picture(GPU.with_suffix(".png"))
    cpu_picture(CPU.with_suffix(".png"))
    README.write_text(
        ACCURACY_TABLE.sub(
            lambda _: accuracy_table(),
            TIMES_TABLE.sub(lambda _: times_table(), GPU_TABLE.sub(lambda _: gpu_table(), README.read_text())),
        )
    )
    CONTRIBUTING.write_text(DRAWING.sub(lambda _: drawing(), CONTRIBUTING.read_text()))


if __name__ == "__main__":
    main()
