"""docs/several_processes.md: what is said on paper follows from the measured steps."""

import json
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs" / "several_processes.md").read_text()
ROWS = json.loads((PROJECT / "benchmarks" / "results" / "gpu.json").read_text())["rows"]


def milliseconds(workload):
    """Of one private step in single precision."""
    (row,) = [row for name, row in ROWS.items() if name.startswith(workload)]
    return row["step"]["ms"]["noisewise"]


@pytest.mark.parametrize(
    ("workload", "said", "name"),
    [
        ("ResNet-18", r"(\d+) ms for ResNet-18", "11 million"),
        ("encoder 12x768, T 128", r"(\d+) ms for the encoder", "93 million"),
    ],
)
def test_shares_follow_from_measured_steps(workload, said, name):
    step = milliseconds(workload)
    assert int(re.search(said, PAGE)[1]) == round(step)
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {name}"))
    found = re.findall(r"([\d.]+) ms \((\d+) %\)", line)
    assert found
    for wait, share in found:
        assert abs(100 * float(wait) / (float(wait) + step) - int(share)) <= 0.6
