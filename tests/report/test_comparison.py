"""Runs side by side: numbers are those of the audits, what is missing is named, totals are those of the budget."""

import json
import math
from dataclasses import replace

import pytest
import torch

from helpers import tiny
from helpers.remembered import remembered  # noqa: F401  accountants with a memory
from noisewise import audits
from noisewise.data import Data
from noisewise.errors import RunError
from noisewise.report.comparison import compared, figure, names_of
from noisewise.runs.files import write_json
from noisewise.runs.folder import RunFolder
from noisewise.runs.together import grouped, read_runs


def people(n=120):
    x, y = tiny.data(n)
    return Data(x, y, {"side": torch.arange(n) % 2}, ("a", "b", "c"), group_names={"side": ("left", "right")})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two audited runs on one data set, one without audits on another, and a regression."""
    folder = tmp_path_factory.mktemp("runs")
    for name, data, noise in (("a", "people", 20.0), ("b", "people", 30.0), ("c", "others", 20.0), ("d", "wine", 20.0)):
        task = "regression" if name == "d" else "classification"
        about = {"task": task, "data": {"name": data}, "model": "mlp"}
        trained = tiny.run(plan=tiny.mechanism(noise_multiplier=noise), out=folder / name, delta=1e-3, about=about)
        run = RunFolder(folder / name)
        run.audits.mkdir()
        if name in "ab":
            for kind in ("disparity", "calibration", "robustness")[: 3 if name == "a" else 1]:
                write_json(run.audit(kind), getattr(audits, kind)(trained.model, people()).to_dict())
        if name == "d":
            number = Data(people().x, people().x[:, 0].clone(), people().groups, group_names=people().group_names)
            single = torch.nn.Sequential(trained.model, torch.nn.Linear(3, 1))
            write_json(run.audit("disparity"), audits.disparity(single, number).to_dict())
    return folder


def rows_of(*paths):
    return compared(read_runs([RunFolder(path) for path in paths])[0])


def test_numbers_are_those_of_the_audits(runs):
    (row,) = rows_of(runs / "a")
    stored = {name: json.loads(RunFolder(runs / "a").audit(name).read_text())["headline"] for name in
              ("disparity", "calibration", "robustness")}  # fmt: skip
    assert row.values["accuracy"].value == stored["disparity"]["accuracy"]["value"]
    assert row.values["calibration error"].value == stored["calibration"]["ECE"]["value"]
    assert row.values["robust accuracy"].value == stored["robustness"]["robust accuracy"]["value"]
    result = audits.read(RunFolder(runs / "a").audit("disparity"))
    by_side = {part.name: part.accuracy["private"].value for part in result.parts("side")}
    assert row.worst == f"side {min(by_side, key=by_side.get)}"  # a group, where there are groups
    assert row.values["worst part"].value == min(by_side.values())
    assert row.missing == ()


def test_what_is_missing_is_named_with_its_command(runs):
    b, c = (rows_of(runs / name)[0] for name in "bc")
    made = "--model FILE.py:NAME --data NAME"  # these were made in Python
    assert b.missing == (f"noisewise audit {runs / 'b'} --only calibration --only robustness {made}",)
    assert c.missing == (f"noisewise audit {runs / 'c'} --only disparity --only calibration --only robustness {made}",)
    assert set(b.values) == {"accuracy", "worst part"}
    assert c.values == {}


def test_totals_are_the_budgets_and_other_data_are_apart(runs):
    rows = rows_of(runs / "a", runs / "b", runs / "c")
    (people, others) = grouped([row.run for row in rows])
    assert [row.run.folder.path.name for row in rows] == ["b", "a", "c"]  # by epsilon within a data set
    assert [row.together for row in rows] == pytest.approx([people.epsilon(), people.epsilon(), others.epsilon()])
    assert rows[1].together > rows[1].run.epsilon
    assert rows[2].together == pytest.approx(rows[2].run.epsilon)


def test_a_regression_is_compared_by_its_errors(runs):
    (row,) = rows_of(runs / "d")
    assert [measure.name for measure in row.measures] == ["squared error", "worst part"]
    assert row.values["worst part"].value >= row.values["squared error"].value > 0
    assert row.missing == ()


def test_the_figure_has_a_panel_for_each_measure_and_each_run_in_it(runs):
    canvas = figure(rows_of(runs / "a", runs / "b"))
    panels = [ax for ax in canvas.axes if ax.get_visible()]
    assert [ax.get_ylabel() for ax in panels] == ["accuracy", "worst part", "calibration error", "robust accuracy"]
    assert [len(ax.containers) for ax in panels] == [2, 2, 1, 1]
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == ["b", "a"]  # by epsilon
    with pytest.raises(RunError, match="none of these runs has been audited"):
        figure(rows_of(runs / "c"))


def test_runs_are_told_apart_by_name_colour_and_place(runs):
    rows = rows_of(*(runs / name for name in "aab"))
    twins = [
        replace(rows[-1], run=replace(rows[-1].run, folder=RunFolder(runs / "sweep" / f"run-{i}"))) for i in (1, 2)
    ]
    canvas = figure([*rows, *twins])
    assert [text.get_text() for text in canvas.legends[0].get_texts()][-2:] == ["sweep/run-1", "sweep/run-2"]
    points = [container.lines[0] for container in canvas.axes[0].containers]
    assert len({(point.get_color(), point.get_marker()) for point in points}) == len(points)
    assert len({point.get_xdata()[0] for point in points}) == len(points)
    assert "side by side" in canvas.axes[0].get_xlabel()
    assert names_of([rows[0], rows_of(runs / "c")[0]]) == ["b (people)", "c (others)"]


def test_a_run_without_a_guarantee_is_drawn_at_the_end(runs):
    (row,) = rows_of(runs / "a")
    privacy = row.run.summary | {"privacy": row.run.privacy | {"epsilon": "inf"}}
    endless = replace(row, run=replace(row.run, summary=privacy))
    ax = figure([row, endless]).axes[0]
    ends = [container.lines[0].get_xdata()[0] for container in ax.containers]
    assert ends[1] > ends[0]
    assert "∞" in [label.get_text() for label in ax.get_xticklabels()]


def test_json_holds_everything(runs):
    (row,) = rows_of(runs / "a")
    content = json.loads(json.dumps(row.to_dict()))
    assert content["epsilon"] == content["composed_epsilon"] == pytest.approx(row.run.epsilon)
    assert set(content["values"]["accuracy"]) == {"value", "low", "high", "n", "level", "method"}
    assert not math.isinf(content["epsilon"])


def test_results_of_other_versions_are_said(runs, tmp_path):
    tiny.run(out=tmp_path, about={"task": "classification", "data": {"name": "x"}})
    run = RunFolder(tmp_path)
    run.audits.mkdir()
    result = json.loads(RunFolder(runs / "a").audit("calibration").read_text())
    del result["headline"]["ECE"]
    write_json(run.audit("calibration"), result)
    with pytest.raises(RunError, match="run the audit again"):
        rows_of(tmp_path)
