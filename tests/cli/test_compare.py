"""`noisewise compare` on the terminal, as JSON and drawn."""

import json

import pytest
import torch

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


LONG = ("a-run-with-quite-a-long-name", "another-one-with-a-name-that-is-longer-still", "short")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_nothing_is_cut_on_any_terminal(noisewise, tmp_path, monkeypatch, columns):
    x, y = tiny.data(120)
    people = Data(
        x, y, {"marital-status": torch.arange(120) % 2}, ("a", "b", "c"),
        group_names={"marital-status": ("Married-civ-spouse", "Never-married")},
    )  # fmt: skip
    for name in LONG:
        about = {"task": "classification", "data": {"name": "people"}, "model": "mlp"}
        trained = tiny.run(
            out=tmp_path / "runs" / name, delta=1e-3, about=about, insecure_seed=1 if name == "short" else None
        )
        run = RunFolder(tmp_path / "runs" / name)
        run.audits.mkdir()
        for kind in ("disparity", "calibration", "robustness"):
            write_json(run.audit(kind), getattr(audits, kind)(trained.model, people).to_dict())
    monkeypatch.setenv("COLUMNS", str(columns))
    content = json.loads(noisewise("compare", "runs", "--json").out)
    shown = noisewise("compare", "runs").out
    assert max(map(len, shown.splitlines())) <= columns
    assert "…" not in shown
    flat = "".join(shown.split())
    for row in content["runs"]:
        for name, estimate in row["values"].items():
            text = f"{estimate['value']:.3f}" if name == "calibration error" else f"{100 * estimate['value']:.1f} %"
            assert text in shown
    assert all(letters in flat for letters in ("not-private", "Married-civ-spou", "calibration", "robust"))
    cells = "".join(line[: max(columns // 3, 16)].strip() for line in shown.splitlines())
    assert all(name in cells for name in LONG)


def test_json_and_unfinished_runs(noisewise, runs):
    folder = RunFolder(runs / "without")
    write_json(folder.run, read_json(folder.run) | {"state": "interrupted"})
    content = json.loads(noisewise("compare", "runs", "--json").out)
    assert [row["folder"] for row in content["runs"]] == ["runs/with-audit"]
    assert content["unfinished"] == ["runs/without"]
    assert noisewise("compare", "runs/without").code == 2


def test_a_plot_is_drawn_again_and_nothing_else_is_overwritten(noisewise, runs):
    for _ in range(2):
        assert noisewise("compare", "runs", "--plot", "out.png").code == 0
    (runs.parent / "mine.png").write_bytes(b"mine")
    outcome = noisewise("compare", "runs", "--plot", "mine.png")
    assert outcome.code == 2
    assert "mine.png: exists and is no picture that noisewise drew. Choose another --plot" in outcome.words
    assert (runs.parent / "mine.png").read_bytes() == b"mine"


def test_repairs_are_told(noisewise, runs):
    from noisewise.repairs import MovingAverage

    folder = RunFolder(runs / "without")
    described = MovingAverage(decay=0.9).describe()
    write_json(folder.summary, read_json(folder.summary) | {"repairs": [described]})
    assert noisewise("compare", "runs").code == 0
    rows = json.loads(noisewise("compare", "runs", "--json").out)["runs"]
    assert {row["folder"]: row["repairs"] for row in rows} == {"runs/with-audit": [], "runs/without": [described]}


@pytest.mark.parametrize("plot", ["out.gif", "nowhere/out.png"])
def test_a_plot_that_cannot_be_written_is_said_first(noisewise, runs, plot):
    outcome = noisewise("compare", "runs", "--plot", plot)
    assert outcome.code == 2
    assert "--plot" in outcome.words


def test_runs_are_told_apart_by_their_settings(noisewise):
    shared = (
        "--data",
        "digits",
        "--noise-multiplier",
        "4",
        "--steps",
        "3",
        "--batch-size",
        "64",
        "--no-twin",
        "--quiet",
    )
    assert noisewise("train", *shared, "--lr", "0.3", "--out", "a").code == 0
    assert noisewise("train", *shared, "--lr", "0.2", "--repair", "moving-average", "--out", "b").code == 0
    words = noisewise("compare", "a", "b").words
    assert "• a: lr 0.3 •" in words
    assert "• b: lr 0.2, repairs moving-average •" in words
    assert "steps" not in words.partition("• a:")[2]
