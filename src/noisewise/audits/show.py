"""How results are shown: cells of tables, dots with intervals, the look of every figure, a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from noisewise import progress
from noisewise.audits.people import MODELS, PAIRS
from noisewise.audits.result import FAINT, INK, PRIVATE, TWIN
from noisewise.estimates.estimate import Estimate
from noisewise.wording import fixed, number, percent, percent_interval, points, points_interval

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes


MOST_ROWS = 24  # of a figure; the worst ones are drawn, the tables hold all
TOLD = "told: "  # how the name of a mark begins that says its value
LONGEST = 48  # letters of a row's name in a figure; the tables have all of them


class Named(Protocol):
    """A part of the people."""

    @property
    def by(self) -> str:
        """What divides the people."""

    @property
    def name(self) -> str:
        """Of the part."""


def row_name(part: Named) -> str:
    """What a table calls a part."""
    return "everyone" if part.by == "everyone" else f"{part.by} {part.name}"


# Cells of a table ------------------------------------------------------------------------------------------------------


def share_cell(e: Estimate) -> str:
    """`94.1 (86.4–98.0)`, in per cent."""
    return f"{percent(e)} ({percent_interval(e)})".replace(" %", "")


def points_cell(e: Estimate) -> str:
    """`−2.8 (−5.4 to −0.7)`, in points."""
    return f"{points(e)} ({points_interval(e)})"


def cell(e: Estimate, written: Callable[[float], str] = number) -> str:
    """`value (low, high)`, each written in the same way."""
    return f"{written(e.value)} ({written(e.low)}, {written(e.high)})"


def fixed_cell(e: Estimate, places: int = 2) -> str:
    """`0.22 (0.20, 0.24)`."""
    return cell(e, partial(fixed, places=places))


def accuracy_cells(estimates: Mapping[str, Estimate]) -> list[str]:
    """Shares in per cent, their difference in points."""
    return [points_cell(e) if which in PAIRS else share_cell(e) for which, e in estimates.items()]


def shares_in_words(estimates: Mapping[str, Estimate]) -> str:
    """`private 94.1 %, twin 97.0 %`."""
    return ", ".join(f"{which} {percent(e)}" for which, e in estimates.items() if which in MODELS)


# Drawing ---------------------------------------------------------------------------------------------------------------


def dot(ax: Axes, e: Estimate, place: float, colour: str, marker: str = "o", *, filled: bool = True, scale: float = 100,
        upright: bool = False) -> None:  # fmt: skip
    """A value and its interval: along the row `place`, or upright in the column `place`."""
    line, face = [scale * e.low, scale * e.high], colour if filled else ax.get_facecolor()
    ax.plot(*_turned(line, [place, place], upright), color=colour, linewidth=1.8, zorder=2)
    where = _turned([scale * e.value], [place], upright)
    (mark,) = ax.plot(*where, marker, color=colour, markerfacecolor=face, markersize=6, zorder=3)
    places = 1 if scale == 100 else 2
    value, low, high = (fixed(scale * end, places) for end in (e.value, e.low, e.high))
    told(mark, f"{value} (interval {low} to {high})")


def told(artist: Artist, text: str) -> None:
    """A mark that says its value when it is pointed at, where a page shows the figure."""
    artist.set_gid(f"{TOLD}{text}")


def _turned(values: list[float], places: list[float], upright: bool) -> tuple[list[float], list[float]]:
    return (places, values) if upright else (values, places)


def dots(ax: Axes, rows: Sequence[Mapping[str, Estimate]], *, scale: float = 100, upright: bool = False, first: int = 0,
         apart: float = 0.16) -> None:  # fmt: skip
    """The private model filled and its twin hollow, next to each other, one pair for each row (or column)."""
    for place, estimates in enumerate(rows, start=first):
        shift = (-apart if upright else apart) if "twin" in estimates else 0.0
        dot(ax, estimates["private"], place + shift, PRIVATE, scale=scale, upright=upright)
        if "twin" in estimates:
            dot(ax, estimates["twin"], place - shift, TWIN, "D", filled=False, scale=scale, upright=upright)


def name_rows(ax: Axes, names: Iterable[str]) -> None:
    """One tick for each row, with its name (long ones without their middle); first at the bottom."""
    names = [name if len(name) <= LONGEST else f"{name[: LONGEST - 16]}…{name[-15:]}" for name in names]
    ax.set_yticks(range(len(names)), labels=names, parse_math=False)  # a name is a name, also with $ in it
    ax.set_ylim(-0.6, len(names) - 0.4)


def dress(ax: Axes, across: str, up: str = "", grid: Literal["x", "y", "both", "none"] | None = None) -> Axes:
    """Labels, a faint grid (along x; both ways where `up` has a label) and no frame: the look of every figure."""
    grid = grid or ("both" if up else "x")
    ax.set_xlabel(across, color=INK)
    ax.set_ylabel(up, color=INK)
    ax.tick_params(colors=INK, length=0, which="both")
    if grid != "none":
        ax.grid(axis=grid, color=FAINT, linewidth=0.8)
    ax.set_axisbelow(True)
    for side in ax.spines.values():
        side.set_visible(False)
    return ax


# Progress --------------------------------------------------------------------------------------------------------------


class Advance(Protocol):
    """Moves a bar on by `count`; `label` stands before it from then on, `note` is printed above it."""

    def __call__(self, count: int = 1, *, label: str | None = None, note: str | None = None) -> None:
        """Move on."""


class Bar:
    """`with Bar(show, total, label) as advance:` the bar of `noisewise.progress`; silent unless asked for."""

    def __init__(self, show: bool, total: int, label: str = "gradients"):
        self._bar = progress.Bar(label, total, show=show)

    def __enter__(self) -> Advance:
        self._bar.__enter__()

        def advance(count: int = 1, *, label: str | None = None, note: str | None = None) -> None:
            if note is not None:
                self._bar.note(note)
            self._bar.advance(count, label=label)

        return advance

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()


Item = TypeVar("Item")


def tracked(items: Iterable[Item], show: bool, total: int, label: str) -> Iterator[Item]:
    """The items, with a bar that moves on after each."""
    return progress.tracked(items, label, total, show=show)
