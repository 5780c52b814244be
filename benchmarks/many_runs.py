"""What the scheduler of many runs costs: until the first job is done, and for each further one, here, on processes and on Ray.

python benchmarks/many_runs.py  ->  benchmarks/results/many_runs.json

Jobs do nothing (a power of ten is looked up), so that all time is the scheduler's; results are written, with fsync, as ever.
The best of several rounds: other work on the machine only ever adds to them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

from noisewise.accounting.defaults import default_delta
from noisewise.jobs import Job, Local, Ray, Where, carry_out

RESULTS = Path(__file__).parent / "results" / "many_runs.json"
FEW, MANY, ROUNDS = 2, 202, 3
PLACES: dict[str, Where] = {"this process": Local(), "2 local processes": Local(2), "Ray, 2 at a time": Ray("local", 2)}


def seconds(count: int, where: Where) -> float:
    """Of so many jobs that do nothing, with the start of their workers and the end."""
    jobs = [Job(f"job-{number}", default_delta, {"n": 100 + number}) for number in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        carry_out(jobs, folder, where, progress=False)
        return time.perf_counter() - start


def measured() -> dict[str, Any]:
    """Seconds of a few jobs and of many; the difference is what each further one costs."""
    rows = []
    for name, where in PLACES.items():
        few, many = (min(seconds(count, where) for _ in range(ROUNDS)) for count in (FEW, MANY))
        rows.append({"where": name, "start": few, "job": (many - few) / (MANY - FEW)})
    return {"rows": rows, "machine": {"cores": os.cpu_count(), "python": platform.python_version()}}


def table(content: dict[str, Any]) -> str:
    """As in docs/many_runs.md."""
    lines = ["| where | start and end | each job |", "|---|---|---|"]
    lines += [f"| {row['where']} | {row['start']:.2f} s | {1000 * row['job']:.1f} ms |" for row in content["rows"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    result = measured()
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
