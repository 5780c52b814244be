"""Cells, dots, rows and bars of results."""

from __future__ import annotations

from statistics import NormalDist

import pytest
from matplotlib.figure import Figure

from noisewise.audits.show import Bar, accuracy_cells, dots, dress, fixed_cell, name_rows, tracked
from noisewise.estimates.estimate import Estimate


# --- tables, figures, progress
def estimate(value: float, half: float = 0.05) -> Estimate:
    return Estimate(value, value - half, value + half, 100, 0.95, NormalDist.__name__)


def test_cells() -> None:
    pair = {"private": estimate(0.8), "twin": estimate(0.9), "difference": estimate(-0.1)}
    assert accuracy_cells(pair) == ["80.0 (75.0–85.0)", "90.0 (85.0–95.0)", "−10.0 (−15.0 to −5.0)"]
    assert fixed_cell(estimate(-0.1234), 3) == "−0.123 (−0.173, −0.073)"


@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize("twin", [False, True])
def test_a_dot_is_the_value_and_its_line_the_interval(upright: bool, twin: bool) -> None:
    ax = Figure().add_subplot()
    pair = {"private": estimate(0.8)} | ({"twin": estimate(0.9)} if twin else {})
    dots(ax, [pair, pair], upright=upright, first=1)
    lines = [line.get_ydata() if upright else line.get_xdata() for line in ax.lines]
    places = [line.get_xdata() if upright else line.get_ydata() for line in ax.lines]
    assert [list(line) for line in lines[:2]] == [pytest.approx([75, 85]), pytest.approx([80])]
    assert len(lines) == (8 if twin else 4)
    if twin:
        assert [list(line) for line in lines[2:4]] == [pytest.approx([85, 95]), pytest.approx([90])]
        assert places[1][0] + places[3][0] == pytest.approx(2)  # either side of row 1
        assert places[1][0] != places[3][0]
    else:
        assert [place[0] for place in places] == [1, 1, 2, 2]


def test_names_are_names_and_frames_are_gone() -> None:
    ax = Figure().add_subplot()
    name_rows(ax, iter(["a", "$b$"]))
    dress(ax, "across", "up", grid="y")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "$b$"]
    assert not any(label.get_parse_math() for label in ax.get_yticklabels())
    name_rows(ax, ["a" * 48, "b" * 40 + "c" * 40])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a" * 48, "b" * 32 + "…" + "c" * 15]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("across", "up")
    assert not any(side.get_visible() for side in ax.spines.values())
    assert [line.get_visible() for line in (ax.xaxis.get_gridlines()[0], ax.yaxis.get_gridlines()[0])] == [False, True]


@pytest.mark.parametrize("show", [False, True])
def test_the_bar_counts_and_is_silent_unless_asked_for(show: bool, capsys) -> None:
    with Bar(show, 5, "runs") as advance:
        advance(2, note="two are done")
        advance()
        advance(2, label="runs: last done")
    assert list(tracked(iter("abc"), show, 3, "letters")) == ["a", "b", "c"]
    out, err = capsys.readouterr()
    assert out == ""
    for word in ("5/5", "two are done", "runs: last done", "letters", "3/3"):
        assert (word in err) == show
