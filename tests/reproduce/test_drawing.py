"""Figures of experiments."""

import numpy as np
import pytest

from noisewise.reproduce.drawing import accuracies, bars, columns, curve, dress, heat, sheet
from noisewise.reproduce.measured import Measured


def test_a_curve_shows_the_mean_and_the_middle_half_of_the_seeds():
    figure, (ax,) = sheet()
    curve(ax, [0, 1], [np.array([1.0, 3.0]), np.array([2.0, 6.0])], "loss")
    assert list(ax.lines[0].get_ydata()) == [2.0, 4.0]
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (1.5, 5.0)
    dress(ax, "step", "loss")
    assert ax.get_xlabel() == "step"
    assert figure.axes == [ax]


def test_one_seed_has_no_band():
    _, (ax,) = sheet()
    curve(ax, [0, 1], [np.array([1.0]), np.array([2.0])], "loss")
    assert not ax.collections


def test_bars_and_maps_show_their_numbers():
    figure, (left, right) = sheet(2)
    bars(left, {"a": np.array([0.1, 0.3]), "b": np.array([0.5])})
    assert [bar.get_height() for bar in left.patches] == pytest.approx([20.0, 50.0])
    heat(right, np.array([[0.25, 0.5], [0.75, 1.0]]), [1, 2], [3, 4], "accuracy", figure)
    assert [text.get_text() for text in right.texts] == ["0.25", "0.50", "0.75", "1.00"]


def test_columns_are_those_of_the_arms():
    measured = Measured({"a": {0: {"x": 1.0}}, "b": {0: {"x": 2.0}}}, {})
    assert [float(column[0]) for column in columns(measured, ["b", "a"], "x")] == [2.0, 1.0]


def test_accuracies_are_dots_with_their_seeds_beside_them():
    measured = Measured(
        {"a": {0: {"accuracy": 0.9}, 1: {"accuracy": 0.94}}, "b": {0: {"accuracy": 0.8}, 1: {"accuracy": 0.8}}}, {}
    )
    (ax,) = accuracies("a", "b")(None, measured).axes
    drawn = [float(y) for line in ax.lines for y in line.get_ydata()]
    assert drawn == pytest.approx([92.0, 90.0, 94.0, 80.0, 80.0, 80.0])  # a mean and its seeds, twice
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b"]
    assert not ax.patches
