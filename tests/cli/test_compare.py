"""`noisewise compare` on the terminal, as JSON and drawn."""

import json

import pytest

from helpers import tiny
from helpers.remembered import remembered  # noqa: F401  accountants with a memory
from noisewise import audits
from noisewise.data import Data
from noisewise.runs.files import read_json, write_json
from noisewise.runs.folder import RunFolder


@pytest.fixture
def runs(tmp_path):
    for name in ("with-audit", "without"):
        about = {"task": "classification", "data": {"name": "people"}, "model": "mlp"}
        trained = tiny.run(out=tmp_path / "runs" / name, delta=1e-3, about=about)
    x, y = tiny.data(120)
    run = RunFolder(tmp_path / "runs" / "with-audit")
    run.audits.mkdir()
    write_json(run.audit("disparity"), audits.disparity(trained.model, Data(x, y, classes=("a", "b", "c"))).to_dict())
    return tmp_path / "runs"


def test_the_table_fits_and_names_what_is_missing(noisewise, runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    outcome = noisewise("compare", "runs", "--plot", "out.png")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert max(len(line) for line in lines if "noisewise audit" not in line) <= 80
    value = read_json(RunFolder(runs / "with-audit").audit("disparity"))["headline"]["accuracy"]["value"]
    assert f"{100 * value:.1f} %" in outcome.out
    assert "Not measured yet: noisewise audit runs/without --only disparity" in outcome.words
    assert "Internal" in outcome.words
    assert (runs.parent / "out.png").read_bytes().startswith(b"\x89PNG")


def test_json_and_unfinished_runs(noisewise, runs):
    folder = RunFolder(runs / "without")
    write_json(folder.run, read_json(folder.run) | {"state": "interrupted"})
    content = json.loads(noisewise("compare", "runs", "--json").out)
    assert [row["folder"] for row in content["runs"]] == ["runs/with-audit"]
    assert content["unfinished"] == ["runs/without"]
    assert noisewise("compare", "runs/without").code == 2


@pytest.mark.parametrize("plot", ["out.gif", "nowhere/out.png"])
def test_a_plot_that_cannot_be_written_is_said_first(noisewise, runs, plot):
    outcome = noisewise("compare", "runs", "--plot", plot)
    assert outcome.code == 2
    assert "--plot" in outcome.words
