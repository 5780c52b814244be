"""Defaults for tables that need no search: how they were found, and what they reach beside other software.

    python benchmarks/defaults.py search  --workers 16 --out search.jsonl --minutes 5
    NOISEWISE_DATA=FOLDER python benchmarks/defaults.py measure --workers 16 --out measured.jsonl
    python benchmarks/defaults.py gather --searches search.jsonl... --runs measured.jsonl --out benchmarks/results/defaults.json
    python benchmarks/defaults.py page

`search` tries constants of the formulas in `noisewise.workflow.recommended` on public stand-ins (standins.py), `measure`
trains with the defaults, five seeds, on eight tables that took no part in the search; the test part is read once per run.
Both write a line for each finished run and go on where they were stopped. `gather` makes the committed file of both,
`page` docs/defaults.md of that file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

PROJECT = Path(__file__).parent.parent
RESULTS, PAGE = PROJECT / "benchmarks" / "results" / "defaults.json", PROJECT / "docs" / "defaults.md"


def lines(path: Path) -> list[dict]:
    """Finished runs."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def summary_of(path: Path) -> dict:
    """A search in short: for each trial its constants and its mean score over the cells of either task."""
    from standins import REGRESSIONS

    scores: dict = defaultdict(list)
    knobs, plans = {}, lines(path)
    for line in plans:
        task = "regression" if line["table"] in REGRESSIONS else "classification"
        scores[task, line["trial"]].append(max(line["score"], -0.2))
        knobs[task, line["trial"]] = line["knobs"]
    summary: dict = {"runs": len(plans), "seconds": round(sum(line["seconds"] for line in plans))}
    for task in ("classification", "regression"):
        cells = max(len(values) for (kind, _), values in scores.items() if kind == task)
        summary[task] = {
            "cells": cells,
            "trials": [
                {"constants": knobs[task, trial], "score": round(sum(values) / cells, 5)}
                for (kind, trial), values in sorted(scores.items())
                if kind == task and len(values) == cells
            ],
        }
    return summary


def _place(line: dict) -> tuple:
    """Which run a line is of; of several, the first counts."""
    return line["method"], line["table"], line["epsilon"], line["seed"]


def gather(searches: list[Path], runs: list[Path], out: Path, hardware: str) -> None:
    """The committed file."""
    from noisewise.runs.folder import versions

    commit = (
        os.environ.get("COMMIT")
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=PROJECT
        ).stdout.strip()
    )
    measured = list({_place(line): line for path in reversed(runs) for line in reversed(lines(path))}.values())[::-1]
    out.write_text(
        json.dumps(
            {
                "command": "python benchmarks/defaults.py measure",
                "commit": commit,
                "hardware": hardware,
                "versions": versions(),
                "seeds": sorted({line["seed"] for line in measured}),
                "searches": [summary_of(path) for path in searches],
                "runs": measured,
            },
            indent=None,
            separators=(",", ":"),
        )
        .replace('},{"method"', '},\n{"method"')
        .replace('},{"constants"', '},\n{"constants"')
        + "\n"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    search = commands.add_parser("search")
    measure = commands.add_parser("measure")
    for command in (search, measure):
        command.add_argument("--workers", type=int, default=1)
        command.add_argument("--out", type=Path, required=True)
    search.add_argument("--minutes", type=float, default=5)
    measure.add_argument("--methods", nargs="*")
    measure.add_argument("--tables", nargs="*")
    measure.add_argument("--seeds", nargs="*", type=int)
    measure.add_argument("--minutes", type=float, default=60)
    collect = commands.add_parser("gather")
    collect.add_argument("--searches", type=Path, nargs="+", required=True)
    collect.add_argument("--runs", type=Path, nargs="+", required=True)
    collect.add_argument("--out", type=Path, default=RESULTS)
    collect.add_argument("--hardware", default="CPU")
    commands.add_parser("page")
    given = parser.parse_args()
    if given.command == "search":
        import defaults_search

        defaults_search.search(given.workers, given.out, given.minutes)
    elif given.command == "measure":
        import defaults_measure

        known = (*defaults_measure.WITH_PRIVACY, *defaults_measure.WITHOUT)
        methods, tables = given.methods or list(known), given.tables or list(defaults_measure.TABLES)
        seeds = given.seeds or list(defaults_measure.SEEDS)
        defaults_measure.measure(given.workers, given.out, methods, tables, seeds, given.minutes)
    elif given.command == "gather":
        gather(given.searches, given.runs, given.out, given.hardware)
    else:
        import defaults_page

        PAGE.write_text(defaults_page.page(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
