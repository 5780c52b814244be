"""The course of a run: released values, and what is sensitive under its name."""

from __future__ import annotations

import json

import pytest
from matplotlib.figure import Figure

from noisewise.errors import RunError
from noisewise.report.course import courses, figures
from noisewise.report.figures import inline_svg
from noisewise.runs.folder import RunFolder


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.create()
    return folder


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_released_values_come_first_and_secret_ones_say_so(folder):
    spent = [{"step": 5 * i, "epsilon": 0.5 * i if i != 2 else None} for i in range(1, 5)]
    write(folder.metrics, spent)
    write(folder.private_metrics, [{**line, "valid_loss": 2.0 / line["step"], "train_loss": 1.0} for line in spent])
    found = courses(folder)
    assert [(c.name, c.sensitive) for c in found] == [("epsilon", False), ("valid_loss", True), ("train_loss", True)]
    assert found[0].points == [(5, 0.5), (15, 1.5), (20, 2.0)]
    drawn = figures(folder)
    captions = [figure.caption for figure, _ in drawn]
    assert captions[0] == "Epsilon spent so far, by step"
    assert captions[2] == "Training loss, by step (sensitive: no ledger covers it)"
    assert "0.5 after step 5, 2.00 after step 20" in drawn[0][0].words
    axes = drawn[0][0].draw(Figure().add_subplot())
    assert list(axes.lines[0].get_ydata()) == [0.5, 1.5, 2.0]
    assert "<title>step 15: 1.50</title>" in inline_svg(drawn[0][0])


def test_steps_go_on_where_phases_begin_again(folder):
    write(folder.metrics, [{"step": s, "epsilon": 1.0} for s in (5, 10, 4, 8)])
    assert [step for step, _ in courses(folder)[0].points] == [5, 10, 14, 18]


def test_infinite_and_single_values_are_not_drawn(folder):
    write(folder.metrics, [{"step": 1, "epsilon": "inf", "other": 3}, {"step": 2, "epsilon": "inf"}])
    assert courses(folder) == []
    assert courses(RunFolder(folder.path / "nowhere")) == []


@pytest.mark.parametrize("content", ["{", "[]\n", '{"epsilon": 1}\n'])
def test_damaged_metrics_are_named(folder, content):
    folder.metrics.write_text(content)
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        courses(folder)
