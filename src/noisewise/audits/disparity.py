"""Disparity: accuracy and loss of everyone, of each class and of each group, private model against its twin."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from noisewise.audits import intervals
from noisewise.audits.outputs import logits, status_of
from noisewise.audits.result import FAINT, INK, LEVEL, PRIVATE, TWIN, Estimate, Figure, Result, Table
from noisewise.errors import DataError
from noisewise.words import fixed, percent, percent_interval, points, points_interval
from noisewise.words import level as level_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import nn

    from noisewise.data import Data

MODELS = ("private", "twin")
SMALLEST = 20  # people; fewer are counted, not shown


@dataclass(frozen=True)
class Part:
    """One class or group (or everyone): estimates under `private`, and with a twin `twin` and `difference`."""

    by: str
    name: str
    n: int
    accuracy: dict[str, Estimate]
    loss: dict[str, Estimate]


@dataclass(frozen=True, kw_only=True)
class Disparity(Result):
    """Who gets how much, and how much of it privacy took.

    headline: `accuracy`, `worst class`, `gap` (best - worst class); with a twin also `twin accuracy`, `cost` (private
    - twin, so a loss is negative), `largest cost` of a class, `twin gap` and `excess gap` (gap - twin gap).
    Guarantee: intervals of the extremes (worst, gap, largest cost) allow for having picked them among all classes.
    Reference: Bagdasaryan et al. 2019, arXiv:1905.12101.
    """

    kind: ClassVar[str] = "disparity"
    title: ClassVar[str] = "Who gets how much"

    @property
    def everyone(self) -> Part:
        """All people together."""
        return self.parts("everyone")[0]

    @property
    def partitions(self) -> list[str]:
        """`class`, then the names of the group columns."""
        return list(self.values["extremes"])

    def parts(self, by: str = "class") -> list[Part]:
        """The classes, or the groups of a column, that are large enough to be shown."""
        return [Part(**raw) for raw in self.values["parts"] if raw["by"] == by]

    def extremes(self, by: str = "class") -> dict[str, Any]:
        """Names (`worst`, `pays_most`) and estimates of the extremes, and how many parts and people are not shown."""
        return self.values["extremes"][by]

    @property
    def has_twin(self) -> bool:
        """Was there a non-private model to compare with?"""
        return "twin" in self.everyone.accuracy

    def plot(self, ax: Axes) -> Axes:
        """Accuracy by class with intervals, lowest on top: the private model filled, the twin hollow."""
        return self._plot_accuracy(ax, "class")

    def plot_cost(self, ax: Axes) -> Axes:
        """Accuracy of the private model minus the twin's by class, in the order of `plot`; filled where not chance."""
        return self._plot_cost(ax, "class")

    def _plot_accuracy(self, ax: Axes, by: str) -> Axes:
        parts = self._lowest_last(by)
        shift = 0.16 if self.has_twin else 0.0
        for row, part in enumerate(parts):
            _bar(ax, part.accuracy["private"], row + shift, PRIVATE, "o", filled=True)
            if self.has_twin:
                _bar(ax, part.accuracy["twin"], row - shift, TWIN, "D", filled=False)
        _dress(ax, [part.name for part in parts], f"accuracy by {by}, %")
        ax.set_xlim(right=101)
        return ax

    def _plot_cost(self, ax: Axes, by: str) -> Axes:
        if not self.has_twin:
            raise DataError("this result has no twin: train with --twin to see what privacy cost.")
        parts = self._lowest_last(by)
        for row, part in enumerate(parts):
            estimate = part.accuracy["difference"]
            _bar(ax, estimate, row, PRIVATE, "o", filled=estimate.excludes_zero)
        ax.axvline(0, color=INK, linewidth=1)
        _dress(ax, [part.name for part in parts], "private minus twin, points")
        return ax

    def _lowest_last(self, by: str) -> list[Part]:
        return sorted(self.parts(by), key=lambda part: -part.accuracy["private"].value)

    def figures(self) -> list[Figure]:
        """Accuracy and its cost, by class and by each group column."""
        found = []
        for by in self.partitions:
            rows = len(self.parts(by))
            if not rows:
                continue
            words = "; ".join(
                f"{part.name}: {', '.join(f'{which} {percent(e)}' for which, e in part.accuracy.items() if which in MODELS)}"
                for part in reversed(self._lowest_last(by))
            )
            kind = "classes" if by == "class" else f"groups by {by}"
            both = "private model (filled) and twin (hollow)" if self.has_twin else "private model"
            caption = f"Accuracy of the {both}: {kind}, lowest on top"
            found.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_accuracy, by=by), rows))
            if self.has_twin:
                words = "; ".join(
                    f"{part.name}: {points(e)} points, interval {points_interval(e)}"
                    for part in reversed(self._lowest_last(by))
                    for e in [part.accuracy["difference"]]
                )
                caption = "What privacy took or gave; filled where chance alone does not explain it"
                found.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_cost, by=by), rows))
        return found

    def sentences(self) -> list[str]:
        """Overall accuracy and its cost; who is worst off; who pays most; what is not shown."""
        everyone = self.everyone
        own = everyone.accuracy["private"]
        said = [
            f"The private model gets {percent(own)} of {everyone.n:,} test rows right ({level_of(own)} interval "
            f"{percent_interval(own)})."
        ]
        if self.has_twin:
            said.append(f"Its non-private twin gets {percent(everyone.accuracy['twin'])}: {self.cost_in_words()}")
        for by in self.partitions:
            said += self._extremes_in_words(by)
        return said

    def cost_in_words(self) -> str:
        """What privacy cost overall."""
        cost = self.everyone.accuracy["difference"]
        if not cost.excludes_zero:
            return f"a difference that chance can explain ({points(cost)} points, interval {points_interval(cost)})."
        verb = "cost" if cost.value < 0 else "gained"
        return f"privacy {verb} {points(cost).lstrip('−+')} points (interval {points_interval(cost)})."

    def _extremes_in_words(self, by: str) -> list[str]:
        found, said = self.extremes(by), []
        what = "Class" if by == "class" else by.capitalize()
        if "worst" in found:
            said.append(
                f"{what} {found['worst']} is served worst, {percent(found['lowest'])}; the best and the worst are "
                f"{points(found['gap']).lstrip('+')} points apart."
            )
        if "pays_most" in found:
            cost = found["largest_cost"]
            sure = "" if cost.high < 0 else ", which chance can still explain"
            said.append(
                f"{what} {found['pays_most']} pays most: {points(cost)} points (interval {points_interval(cost)} after "
                f"allowing for the choice{sure})."
            )
        if found["hidden_parts"]:
            several = "classes" if by == "class" else f"groups by {by}"
            said.append(
                f"{found['hidden_parts']} {several} with fewer than {self.settings['smallest_part']} people each "
                f"({found['hidden_people']} people in all) are not shown."
            )
        return said

    def tables(self) -> list[Table]:
        """Accuracy, then loss: everyone, each class, each group."""
        level = level_of(self.everyone.accuracy["private"])
        return [
            Table(
                f"Accuracy on the test part in %, {level} intervals",
                self._columns("private", "twin", "private − twin"),
                [self._row(part, part.accuracy, _share_cell, _points_cell) for part in self._all_parts()],
            ),
            Table(
                f"Mean loss (cross-entropy) on the test part, {level} intervals",
                self._columns("private", "twin", "private − twin"),
                [self._row(part, part.loss, _loss_cell, _loss_cell) for part in self._all_parts()],
            ),
        ]

    def _all_parts(self) -> list[Part]:
        return [self.everyone, *(part for by in self.partitions for part in self.parts(by))]

    def _columns(self, private: str, twin: str, difference: str) -> list[str]:
        return ["", "people", private, *([twin, difference] if self.has_twin else [])]

    @staticmethod
    def _row(
        part: Part,
        estimates: dict[str, Estimate],
        cell: Callable[[Estimate], str],
        difference: Callable[[Estimate], str],
    ) -> list[str]:
        name = "everyone" if part.by == "everyone" else f"{part.by} {part.name}"
        cells = [(difference if which == "difference" else cell)(e) for which, e in estimates.items()]
        return [name, f"{part.n:,}", *cells]


def disparity(
    model: nn.Module,
    data: Data,
    *,
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    level: float = LEVEL,
) -> Disparity:
    """Accuracy and cross-entropy of everyone, each class and each group of `data`. Does not retrain; seconds.

    Accuracy has Wilson's interval, mean loss Student's t; differences are paired, both models see the same people.
    Nothing is drawn at random (`generator` is not used) and nothing takes long enough to show (`progress`).
    """
    outcomes = {"private": _outcomes(model, data)}
    if twin is not None:
        outcomes["twin"] = _outcomes(twin, data)
    parts = [_part("everyone", "all", np.arange(len(data)), outcomes, level)]
    extremes: dict[str, Any] = {}
    for by, rows in _partitions(data).items():
        shown = {name: index for name, index in rows.items() if len(index) >= SMALLEST}
        mine = [_part(by, name, index, outcomes, level) for name, index in shown.items()]
        hidden = {"hidden_parts": len(rows) - len(shown), "hidden_people": len(data) - sum(part.n for part in mine)}
        extremes[by] = hidden | _extremes(mine, shown, outcomes, level)
        parts += mine
    return Disparity(
        headline=_headline(parts[0], extremes["class"]),
        values={"parts": [vars(part) for part in parts], "extremes": extremes},
        settings={"rows": len(data), "level": level, "smallest_part": SMALLEST},
        status=status_of(data, twin),
    )


def _outcomes(model: nn.Module, data: Data) -> dict[str, np.ndarray]:
    """Right or wrong, and the cross-entropy, of every row."""
    from torch.nn.functional import cross_entropy

    found = logits(model, data)
    losses = cross_entropy(found, data.y, reduction="none")
    return {"hits": (found.argmax(1) == data.y).numpy(), "losses": losses.numpy()}


def _partitions(data: Data) -> dict[str, dict[str, np.ndarray]]:
    """Rows of each class and of each group, by name."""
    columns = {"class": data.y, **data.groups}
    names = {"class": dict(enumerate(data.classes))} | {
        by: dict(enumerate(data.group_names[by])) for by in data.groups if by in data.group_names
    }
    return {
        by: {
            str(names.get(by, {}).get(label, label)): np.flatnonzero(labels.numpy() == label)
            for label in sorted(set(labels.tolist()))
        }
        for by, labels in columns.items()
    }


Outcomes = dict[str, dict[str, np.ndarray]]


def _part(by: str, name: str, rows: np.ndarray, outcomes: Outcomes, level: float) -> Part:
    accuracy = {which: intervals.share(o["hits"][rows], level) for which, o in outcomes.items()}
    loss = {which: intervals.mean(o["losses"][rows], level, floor=0.0) for which, o in outcomes.items()}
    if "twin" in outcomes:
        private, twin = outcomes["private"], outcomes["twin"]
        accuracy["difference"] = intervals.share_difference(private["hits"][rows], twin["hits"][rows], level)
        loss["difference"] = intervals.mean_difference(private["losses"][rows], twin["losses"][rows], level)
    return Part(by, name, len(rows), accuracy, loss)


def _extremes(parts: list[Part], rows: dict[str, np.ndarray], outcomes: Outcomes, level: float) -> dict[str, Any]:
    """Worst part, gap and largest cost, with intervals that hold for all parts together."""
    if len(parts) < 2:
        return {}

    def shares(which: str, count: int) -> list[Estimate]:
        return [
            intervals.share(outcomes[which]["hits"][index], intervals.each(level, count)) for index in rows.values()
        ]

    mine = shares("private", len(parts))
    found: dict[str, Any] = {
        "worst": min(parts, key=lambda part: part.accuracy["private"].value).name,
        "lowest": intervals.smallest(mine, level),
        "gap": intervals.spread(mine, level),
    }
    if "twin" not in outcomes:
        return found
    private, twin = outcomes["private"]["hits"], outcomes["twin"]["hits"]
    costs = [
        intervals.share_difference(private[index], twin[index], intervals.each(level, len(parts)))
        for index in rows.values()
    ]
    wide, narrow = (intervals.spread(shares(which, 2 * len(parts)), level) for which in ("private", "twin"))
    return found | {
        "pays_most": min(parts, key=lambda part: part.accuracy["difference"].value).name,
        "largest_cost": intervals.smallest(costs, level),
        "twin_gap": intervals.spread(shares("twin", len(parts)), level),
        "excess_gap": intervals.difference(wide, narrow, level),
    }


def _headline(everyone: Part, extremes: dict[str, Any]) -> dict[str, Estimate]:
    found = {
        "accuracy": everyone.accuracy["private"],
        "twin accuracy": everyone.accuracy.get("twin"),
        "cost": everyone.accuracy.get("difference"),
        "worst class": extremes.get("lowest"),
        "largest cost": extremes.get("largest_cost"),
        "gap": extremes.get("gap"),
        "twin gap": extremes.get("twin_gap"),
        "excess gap": extremes.get("excess_gap"),
    }
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def _share_cell(e: Estimate) -> str:
    return f"{percent(e)} ({percent_interval(e)})".replace(" %", "")


def _points_cell(e: Estimate) -> str:
    return f"{points(e)} ({points_interval(e)})"


def _loss_cell(e: Estimate) -> str:
    return f"{fixed(e.value)} ({fixed(e.low)}, {fixed(e.high)})"


def _bar(ax: Axes, estimate: Estimate, row: float, colour: str, marker: str, *, filled: bool) -> None:
    ax.plot([100 * estimate.low, 100 * estimate.high], [row, row], color=colour, linewidth=1.8, zorder=2)
    face = colour if filled else ax.get_facecolor()
    ax.plot([100 * estimate.value], [row], marker, color=colour, markerfacecolor=face, markersize=6, zorder=3)


def _dress(ax: Axes, names: Iterable[str], label: str) -> None:
    names = list(names)
    ax.set_yticks(range(len(names)), labels=names, parse_math=False)  # a name is a name, also with $ in it
    ax.set_ylim(-0.6, len(names) - 0.4)
    ax.set_xlabel(label, color=INK)
    ax.tick_params(colors=INK, length=0)
    ax.grid(axis="x", color=FAINT, linewidth=0.8)
    ax.set_axisbelow(True)
    for side in ax.spines.values():
        side.set_visible(False)
