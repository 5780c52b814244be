"""What the documents say is there: paths in docs/methods.md exist, the README's example runs."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.command_line import command_line
from noisewise.data.files import find

PROJECT = Path(__file__).parents[2]
METHODS = PROJECT / "docs" / "methods.md"
PATH = re.compile(r"`([\w./-]+\.(?:py|md|json))(?:::([\w.\[\]-]+)|:\w+)?`")


def rows():
    """Table rows of docs/methods.md without header and rule."""
    lines = METHODS.read_text().splitlines() if METHODS.exists() else []
    return [line for line in lines if line.startswith("|") and not re.match(r"\|[\s:|-]+$|\| *method *\|", line)]


def references():
    """(path, name or None) of every backticked path."""
    text = METHODS.read_text() if METHODS.exists() else ""
    return sorted({(path, name or None) for path, name in PATH.findall(text)}, key=str)


def test_there_are_rows_and_each_names_code_and_test():
    assert rows()
    for row in rows():
        paths = [path for path, _ in PATH.findall(row)]
        assert any(path.startswith("src/") for path in paths), row
        assert any(path.startswith("tests/") for path in paths), row


def test_every_path_exists():
    assert references()
    assert [path for path, _ in references() if not (PROJECT / path).is_file()] == []


def test_every_name_occurs_in_its_file():
    named = [(path, name) for path, name in references() if name]
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (PROJECT / path).is_file() or not re.search(rf"\b{re.escape(name)}\b", (PROJECT / path).read_text())
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`src/a/b.py`", ("src/a/b.py", "")),
        ("`src/a/b.py::name`", ("src/a/b.py", "name")),
        ("`src/a/b.py:12`", ("src/a/b.py", "")),
        ("`results/x.json`", ("results/x.json", "")),
    ],
)
def test_paths_are_recognised_in_these_forms(text, found):
    assert PATH.findall(text) == [found]


@pytest.mark.parametrize("page", ["README.md", "docs/hugging_face.md", "docs/pieces.md"])
def test_python_examples_run(page, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", (PROJECT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    command, environment = [sys.executable, "-c", "\n".join(blocks)], {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(not os.environ.get("NOISEWISE_DATA"), reason="NOISEWISE_DATA is not set")
def test_the_page_from_a_csv_file_to_predictions_runs(monkeypatch, capsys, tmp_path):
    """The README's commands, with fewer steps: the publisher's file lies there instead of being downloaded.

    What the shell does only writes files, so it goes first; our own commands then run in this process.
    """
    page = (PROJECT / "README.md").read_text().partition("## From a CSV file to predictions")[2].partition("\n## ")[0]
    (commands,) = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert "curl -O" in commands
    shutil.copy(find("tabular/adult.data"), tmp_path)
    lines = re.sub(r"^curl.*$", "", commands, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    shell = [line for line in lines if not line.startswith("noisewise ")]
    subprocess.run(["sh", "-e", "-c", "\n".join(shell)], check=True, cwd=tmp_path, timeout=300)
    noisewise = command_line(monkeypatch, capsys, tmp_path, columns=120)
    fewer = {"train": ["--steps", "12", "--no-twin"], "audit": ["--only", "disparity"]}
    ours = [shlex.split(line)[1:] for line in lines if line.startswith("noisewise ")]
    assert [arguments[0] for arguments in ours] == ["train", "audit", "report", "predict"]
    ran = [noisewise(*arguments, *fewer.get(arguments[0], [])) for arguments in ours]
    assert [outcome.code for outcome in ran] == [0, 0, 0, 0], [outcome.err for outcome in ran]
    assert "100 predictions" in ran[-1].words
    scores = (tmp_path / "scores.csv").read_text().splitlines()
    assert scores[0] == "row,income,prediction,probability of <=50K,probability of >50K"
    right = [line.split(",")[1] == line.split(",")[2] for line in scores[1:]]
    assert len(right) == 100
    assert sum(right) > 60
    assert (tmp_path / "adult.html").stat().st_size > 10_000


def test_measured_pages_are_those_of_their_results():
    """docs/repairs_measured.md is written from committed results, not by hand."""
    results = PROJECT / "benchmarks" / "results"
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from repairs import page; "
        "print(page(*(json.load(open(name)) for name in sys.argv[2:])), end='')"
    )
    parts = ("repairs", "tuning", "sparsification")
    names = [results / f"fashion_mnist_{part}.json" for part in parts]
    written = subprocess.run(
        [sys.executable, "-c", code, PROJECT / "benchmarks", *names], check=True, capture_output=True, text=True
    ).stdout
    assert written == (PROJECT / "docs" / "repairs_measured.md").read_text()
