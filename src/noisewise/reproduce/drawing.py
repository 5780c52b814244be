"""Figures of experiments: curves with a band over seeds, bars, dots, heat maps; the look of all other figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.reproduce.measured import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#3a3a3a", "#d9d9d9"
COLOURS = ("#0b6e99", "#c2571a", "#3f7d20", "#7a3e9d", "#b8860b", "#8c2f39", "#4c566a")


def sheet(columns: int = 1, *, rows: int = 1, width: float = 4.6, height: float = 3.4) -> tuple[Figure, list[Axes]]:
    """A figure without a screen, and its axes."""
    from matplotlib.figure import Figure as Blank

    figure = Blank(figsize=(width * columns, height * rows), layout="constrained")
    return figure, list(np.ravel(figure.subplots(rows, columns, squeeze=False)))


def curve(
    ax: Axes, x: Sequence[float], columns: Sequence[np.ndarray], label: str, place: int = 0, **style: Any
) -> None:
    """Mean over seeds at each x, and a band that holds the middle half of them."""
    colour = COLOURS[place % len(COLOURS)]
    middle = [float(np.mean(column)) for column in columns]
    ax.plot(x, middle, **{"marker": "o", "markersize": 3.5, "linewidth": 1.8, "color": colour, "label": label, **style})
    if all(len(column) > 1 for column in columns):
        low, high = ([float(np.quantile(column, share)) for column in columns] for share in (0.25, 0.75))
        ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def name_places(ax: Axes, names: Iterable[str]) -> None:
    """Names below the axis, in two lines where they have two parts: long ones would push the axis out of the picture."""
    labels = [name.replace(", ", ",\n", 1) for name in names]
    ax.set_xticks(range(len(labels)), labels=labels, rotation=20, ha="right", fontsize="small")


def bars(ax: Axes, columns: Mapping[str, np.ndarray], *, scale: float = 100.0) -> None:
    """A bar for each name, mean over seeds, with the range of the seeds."""
    for place, (name, column) in enumerate(columns.items()):
        values = scale * column
        ax.bar(place, values.mean(), 0.7, color=COLOURS[place % len(COLOURS)], alpha=0.85, label=name)
        ax.plot([place, place], [values.min(), values.max()], color=INK, linewidth=1.2)
    name_places(ax, columns)


def dots(ax: Axes, columns: Mapping[str, np.ndarray], *, scale: float = 100.0) -> None:
    """A dot for each name, mean over seeds, with the seeds beside it: where the axis does not begin at 0, bars would lie."""
    for place, (name, column) in enumerate(columns.items()):
        values, colour = scale * column, COLOURS[place % len(COLOURS)]
        ax.plot(place, values.mean(), "o", markersize=6, color=colour, label=name)
        if len(values) > 1:
            ax.plot([place + 0.2] * len(values), values, ".", markersize=5, color=colour, alpha=0.45)
    ax.set_xlim(-0.5, len(columns) - 0.3)
    name_places(ax, columns)


def accuracies(*names: str, width: float = 4.6) -> Callable[[Any, Measured], Figure]:
    """Draws a dot of test accuracy for each arm, all of them by default; the axis shows where they differ."""

    def draw(config: Any, measured: Measured) -> Figure:
        figure, (ax,) = sheet(width=width)
        dots(ax, {name: measured.column(name, "accuracy") for name in names or measured.arms})
        dress(ax, "", "test accuracy, %", legend=False)
        return figure

    return draw


def heat(ax: Axes, values: np.ndarray, x: Sequence[float], y: Sequence[float], label: str, figure: Figure) -> None:
    """A map of numbers `[y, x]`, each written in its field."""
    image = ax.imshow(values, origin="lower", aspect="auto", cmap="cividis")
    ax.set_xticks(range(len(x)), labels=[f"{value:g}" for value in x])
    ax.set_yticks(range(len(y)), labels=[f"{value:g}" for value in y])
    middle = (float(values.min()) + float(values.max())) / 2
    for row, column in np.ndindex(values.shape):
        value = values[row, column]
        ax.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7,
                color="white" if value < middle else "black")  # fmt: skip
    figure.colorbar(image, ax=ax, label=label)


def dress(
    ax: Axes, across: str, up: str, *, title: str = "", legend: bool = True, above: bool = False, grid: bool = True
) -> None:
    """Labels, a faint grid, no frame. `above`: the legend over the axes, where it would hide something within."""
    ax.set_xlabel(across, color=INK)
    ax.set_ylabel(up, color=INK)
    ax.set_title(title, color=INK, fontsize="medium")
    ax.tick_params(colors=INK, length=0, which="both")
    if grid:
        ax.grid(color=FAINT, linewidth=0.7)
        ax.set_axisbelow(True)
    for side in ax.spines.values():
        side.set_visible(False)
    if legend and (shown := len(ax.get_legend_handles_labels()[0])):
        place: dict[str, Any] = (
            {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": min(shown, 3)} if above else {}
        )
        ax.legend(frameon=False, fontsize="small", labelcolor=INK, **place)


def columns(measured: Measured, arms: Sequence[str], *path: str | int) -> list[np.ndarray]:
    """A number of several arms, by seed."""
    return [measured.column(arm, *path) for arm in arms]
