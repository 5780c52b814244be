"""Disparity: accuracy and loss of everyone, each class, group and class in a group, private model against its twin.

For real-valued targets: squared and absolute error and bias of everyone and of each group (`ErrorDisparity`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from noisewise.audits.outputs import logits, outputs, status_of
from noisewise.audits.people import (
    ERROR,
    MODELS,
    SMALLEST,
    Outcomes,
    Part,
    divided,
    extremes,
    hidden_in_words,
    large_enough,
    means,
    named_parts,
    of_rows,
    owners,
    part_of,
    people,
    rows_in_words,
    several,
    titled,
)
from noisewise.audits.result import INK, PRIVATE, Figure, Result, Table
from noisewise.audits.show import (
    MOST_ROWS,
    accuracy_cells,
    dot,
    dots,
    dress,
    fixed_cell,
    name_rows,
    row_name,
    shares_in_words,
)
from noisewise.errors import ConfigError, DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate
from noisewise.runs.folder import Status
from noisewise.wording import fixed, percent, percent_interval, points, points_interval
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import nn

    from noisewise.data import Data

DECILES = 10
TAKES = "Does not retrain; seconds."
PARITY, PARITY_RATIO, ODDS = "demographic parity difference", "demographic parity ratio", "equalised odds difference"


@dataclass(frozen=True, kw_only=True)
class Disparity(Result):
    """Who gets how much, and how much of it privacy took.

    headline: `accuracy`, `worst class`, `gap` (best - worst class); with a twin also `twin accuracy`, `cost` (private
    - twin, so a loss is negative), `largest cost` of a class, `twin gap` and `excess gap` (gap - twin gap); with a
    reference ensemble `extra cost of the hardest tenth` (its cost - that of the easiest tenth).
    Guarantee: intervals of the extremes (worst, gap, ratio, largest cost) and of the fairness measures allow for having
    picked them among all classes and groups.
    Reference: Bagdasaryan et al. 2019, arXiv:1905.12101.
    """

    kind: ClassVar[str] = "disparity"
    title: ClassVar[str] = "Who gets how much"
    version: ClassVar[int] = 2

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

    def cells(self, column: str) -> list[Part]:
        """Each class within each group of a column, where it is large enough to be shown."""
        return self.parts(_crossing(column))

    def cell_extremes(self, column: str) -> dict[str, Any]:
        """`extremes` among the cells of a column."""
        return self.values["cells"][column]

    def fairness(self, column: str) -> dict[str, Any]:
        """Demographic parity and equalised odds between the groups of a column, as `disparity` defines them.

        `{measure: {"private": ..., "twin": ..., "excess": ...}}`, and `hidden`: shares of fewer than 20 people that
        were left out. Empty with fewer than two groups that can be shown.
        """
        return self.values["fairness"].get(column, {})

    @property
    def deciles(self) -> list[Part]:
        """The rows by difficulty for a reference ensemble, easiest tenth first; empty without one."""
        return self.parts("difficulty")

    @property
    def difficulty(self) -> dict[str, Estimate]:
        """`drop` (hardest - easiest tenth, private), `largest_rise` between neighbours, with a twin `extra_cost`."""
        return self.values["difficulty"]

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
        parts = self._lowest_last(by)[-MOST_ROWS:]
        dots(ax, [part.accuracy for part in parts])
        name_rows(ax, [part.name for part in parts])
        ax.set_xlim(right=101)
        return dress(ax, f"accuracy by {by}, %")

    def _plot_cost(self, ax: Axes, by: str) -> Axes:
        if not self.has_twin:
            raise DataError("this result has no twin: train with --twin to see what privacy cost.")
        parts = self._lowest_last(by)[-MOST_ROWS:]
        for row, part in enumerate(parts):
            estimate = part.accuracy["difference"]
            dot(ax, estimate, row, PRIVATE, filled=estimate.excludes_zero)
        ax.axvline(0, color=INK, linewidth=1)
        name_rows(ax, [part.name for part in parts])
        return dress(ax, "private minus twin, points")

    def plot_difficulty(self, ax: Axes) -> Axes:
        """Accuracy in each tenth of the rows, from the easiest to the hardest for the reference ensemble."""
        if not self.deciles:
            raise DataError("this result has no deciles: call disparity(..., reference=[models]).")
        dots(ax, [part.accuracy for part in self.deciles], upright=True, first=1, apart=0.12)
        ax.set_xticks(range(1, DECILES + 1))
        return dress(ax, "tenth of the rows: 1 easiest, 10 hardest", "accuracy, %", grid="y")

    def _lowest_last(self, by: str) -> list[Part]:
        return sorted(self.parts(by), key=lambda part: -part.accuracy["private"].value)

    def figures(self) -> list[Figure]:
        """Accuracy and its cost, by class, by each group column and by class within groups; accuracy by difficulty."""
        found = []
        crossings = [_crossing(column) for column in self.values["cells"]]
        for by in [*self.partitions, *crossings]:
            count = len(self.parts(by))
            rows = min(count, MOST_ROWS)
            if not rows:
                continue
            words = "; ".join(
                f"{part.name}: {shares_in_words(part.accuracy)}"
                for part in reversed(self._lowest_last(by)[-MOST_ROWS:])
            )
            kind = by if by in crossings else several(by)
            if count > rows:
                kind = f"{kind} (the lowest {rows} of {count})"
            both = "private model (filled) and twin (hollow)" if self.has_twin else "private model"
            caption = f"Accuracy of the {both}: {kind}, lowest on top"
            found.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_accuracy, by=by), rows))
            if self.has_twin:
                words = "; ".join(
                    f"{part.name}: {points(e)} points, interval {points_interval(e)}"
                    for part in reversed(self._lowest_last(by)[-MOST_ROWS:])
                    for e in [part.accuracy["difference"]]
                )
                caption = "What privacy took or gave; filled where chance alone does not explain it"
                found.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_cost, by=by), rows))
        if self.deciles:
            caption = "Accuracy by difficulty for a reference ensemble, easiest tenth of the rows first"
            words = "; ".join(f"{part.name}: {shares_in_words(part.accuracy)}" for part in self.deciles)
            found.append(Figure(caption, f"{caption}. {words}.", self.plot_difficulty, 8))
        return found

    def sentences(self) -> list[str]:
        """Overall accuracy and its cost; who is worst off; who pays most; what is not shown."""
        everyone = self.everyone
        own = everyone.accuracy["private"]
        said = [
            f"The private model gets {percent(own)} of {self._tested()} right ({level_of(own)} interval "
            f"{percent_interval(own)})."
        ]
        if self.has_twin:
            said.append(f"Its non-private twin gets {percent(everyone.accuracy['twin'])}: {self.cost_in_words()}")
        for by in self.partitions:
            said += self._extremes_in_words(by, self.extremes(by))
            said += self._fairness_in_words(by)
        for column, found in self.values["cells"].items():
            said += self._extremes_in_words(_crossing(column), found)
        return said + self._difficulty_in_words()

    def _tested(self) -> str:
        return rows_in_words(self.settings["rows"], self.everyone.n)

    def cost_in_words(self) -> str:
        """What privacy cost overall."""
        cost = self.everyone.accuracy["difference"]
        if not cost.excludes_zero:
            return f"a difference that chance can explain ({points(cost)} points, interval {points_interval(cost)})."
        verb = "cost" if cost.value < 0 else "gained"
        return f"privacy {verb} {points(cost).lstrip('−+')} points (interval {points_interval(cost)})."

    def _extremes_in_words(self, by: str, found: dict[str, Any]) -> list[str]:
        said = []
        what = titled(by)
        if "worst" in found and not found["gap"].value:
            said.append(f"All {several(by)} are served alike, {percent(found['lowest'])}.")
        elif "worst" in found:
            times = f" (ratio {fixed(found['ratio'].value)})" if found.get("ratio") else ""
            said.append(
                f"{what} {found['worst']} is served worst, {percent(found['lowest'])}; the best and the worst are "
                f"{points(found['gap']).lstrip('+')} points apart{times}."
            )
        if "pays_most" in found:
            cost = found["largest_cost"]
            sure = "" if cost.high < 0 else ", which chance can still explain"
            said.append(
                f"{what} {found['pays_most']} pays most: {points(cost)} points (interval {points_interval(cost)} after "
                f"allowing for the choice{sure})."
            )
        parts = several(by) if by in self.partitions else f"cells, {by},"
        return said + hidden_in_words(found, parts, self.settings["smallest_part"])

    def _fairness_in_words(self, by: str) -> list[str]:
        found, said = self.fairness(by) if by != "class" else {}, []
        names = {
            PARITY: "the shares that are predicted a class",
            ODDS: "the rates of right and of false predictions of a class",
        }
        for measure, words in names.items():
            if measure not in found:
                continue
            own, twin = found[measure]["private"], found[measure].get("twin")
            against = "" if twin is None else f"; {points(twin).lstrip('+')} without privacy"
            said.append(
                f"Between groups by {by}, {words} differ by up to {points(own).lstrip('+')} points ({measure}, interval "
                f"{points_interval(own)}{against})."
            )
        return said

    def _difficulty_in_words(self) -> list[str]:
        if not self.deciles:
            return []
        drop, rise = self.difficulty["drop"], self.difficulty["largest_rise"]
        order = "rises from one tenth to the next" if rise.low > 0 else "falls, or changes no more than chance explains"
        here = "are hard here too" if drop.high < 0 else "are not clearly harder here"
        said = [
            f"Rows that are hard for the reference ensemble {here}: {points(drop)} points from the easiest to the "
            f"hardest tenth (interval {points_interval(drop)}); in between accuracy {order}."
        ]
        if "extra_cost" in self.difficulty:
            extra = self.difficulty["extra_cost"]
            verdict = (
                "which chance can explain" if not extra.excludes_zero
                else "so hard rows pay more" if extra.value < 0 else "so hard rows pay less"
            )  # fmt: skip
            said.append(
                f"Privacy changed the hardest tenth by {points(extra)} points more than the easiest (interval "
                f"{points_interval(extra)}), {verdict}."
            )
        return said

    def tables(self) -> list[Table]:
        """Accuracy, then loss: everyone, each class, each group; extremes, fairness, cells and difficulty."""
        level = level_of(self.everyone.accuracy["private"])
        return [
            self._accuracy_table(f"Accuracy on the test part in %, {level} intervals", self._all_parts()),
            self._loss_table(f"Mean loss (cross-entropy) on the test part, {level} intervals", self._all_parts()),
            *self._more_tables(level),
        ]

    def _accuracy_table(self, caption: str, parts: Sequence[Part]) -> Table:
        return self._table(caption, [(part, accuracy_cells(part.accuracy)) for part in parts])

    def _loss_table(self, caption: str, parts: Sequence[Part]) -> Table:
        return self._table(caption, [(part, list(map(fixed_cell, part.loss.values()))) for part in parts])

    def _table(self, caption: str, rows: Sequence[tuple[Part, list[str]]]) -> Table:
        columns = ["", "people", "private", *(["twin", "private − twin"] if self.has_twin else [])]
        return Table(caption, columns, [[row_name(part), f"{part.n:,}", *cells] for part, cells in rows])

    def _more_tables(self, level: str) -> list[Table]:
        found = []
        rows = [
            [f"{name}, {column}", *(_measure_cell(of.get(key)) for key in ("private", "twin", "excess"))]
            for column in self.values["fairness"]
            for name, of in self.fairness(column).items()
            if name != "hidden"
        ]
        if rows:
            columns = ["", "private", "twin", "excess"] if self.has_twin else ["", "private"]
            caption = f"Fairness between groups (from 0 to 1), {level} intervals that hold together"
            found.append(Table(caption, columns, [row[: len(columns)] for row in rows]))
        for column in self.values["cells"]:
            if cells := self.cells(column):
                where = f"by class and {column}, {level} intervals"
                found.append(self._accuracy_table(f"Accuracy in % {where}", cells))
                found.append(self._loss_table(f"Mean loss (cross-entropy) {where}", cells))
        if self.deciles:
            caption = f"Accuracy by difficulty in %, tenth 1 the easiest, {level} intervals"
            found.append(self._accuracy_table(caption, self.deciles))
        return found

    def _all_parts(self) -> list[Part]:
        return [self.everyone, *(part for by in self.partitions for part in self.parts(by))]


@dataclass(frozen=True)
class ErrorPart:
    """A group or everyone, real-valued targets: estimates under `private`, with a twin `twin` and `difference`."""

    by: str
    name: str
    n: int
    mse: dict[str, Estimate]
    mae: dict[str, Estimate]
    bias: dict[str, Estimate]


ERRORS = {"mse": "mean squared error", "mae": "mean absolute error", "bias": "bias (prediction − target)"}


@dataclass(frozen=True, kw_only=True)
class ErrorDisparity(Result):
    """Errors of a regression, of everyone and by group, and how much of them is privacy's.

    `mse = mean (f(x) - y)^2`, `mae = mean |f(x) - y|`, `bias = mean (f(x) - y)`; intervals are Student's t.
    headline: `mse`, `mae`, `bias`; with a twin `twin mse` and `cost` (private - twin: here a *positive* cost is a loss).
    Guarantee: intervals of the extremes allow for having picked them among all groups of a column.
    """

    kind: ClassVar[str] = "disparity-regression"
    title: ClassVar[str] = "Who gets how much"

    @property
    def everyone(self) -> ErrorPart:
        """All people together."""
        return self.parts("everyone")[0]

    @property
    def partitions(self) -> list[str]:
        """Names of the group columns."""
        return list(self.values["extremes"])

    def parts(self, by: str) -> list[ErrorPart]:
        """The groups of a column that are large enough to be shown."""
        return [ErrorPart(**raw) for raw in self.values["parts"] if raw["by"] == by]

    def extremes(self, by: str) -> dict[str, Any]:
        """`worst` (name), `highest`, `gap`, `ratio` (best / worst) of the squared error; with a twin what it cost."""
        return self.values["extremes"][by]

    @property
    def has_twin(self) -> bool:
        """Was there a non-private model to compare with?"""
        return "twin" in self.everyone.mse

    def plot(self, ax: Axes) -> Axes:
        """Squared error of everyone and of every group with intervals, highest on top; the twin hollow."""
        parts = sorted(self._all_parts(), key=lambda part: part.mse["private"].value)[-MOST_ROWS:]
        dots(ax, [part.mse for part in parts], scale=1)
        name_rows(ax, [row_name(part) for part in parts])
        ax.set_xlim(left=0)
        return dress(ax, "mean squared error")

    def figures(self) -> list[Figure]:
        """Squared errors."""
        both = "private model (filled) and twin (hollow)" if self.has_twin else "private model"
        caption = f"Mean squared error of the {both}: everyone and groups, highest on top"
        words = "; ".join(f"{row_name(part)}: {fixed_cell(part.mse['private'])}" for part in self._all_parts())
        return [Figure(caption, f"{caption}. {words}.", self.plot, min(len(self._all_parts()), MOST_ROWS) + 1)]

    def sentences(self) -> list[str]:
        """Overall error and its cost; which group is served worst; what is not shown."""
        own = self.everyone.mse["private"]
        said = [
            f"The private model's mean squared error on {rows_in_words(self.settings['rows'], self.everyone.n)} is "
            f"{fixed(own.value)} ({level_of(own)} interval {fixed(own.low)} to {fixed(own.high)})."
        ]
        if self.has_twin:
            cost = self.everyone.mse["difference"]
            sure = "" if cost.excludes_zero else ", which chance can explain"
            said.append(
                f"Its non-private twin's is {fixed(self.everyone.mse['twin'].value)}: a change of {fixed(cost.value)} "
                f"(interval {fixed(cost.low)} to {fixed(cost.high)}{sure})."
            )
        for by in self.partitions:
            found = self.extremes(by)
            if "worst" in found:
                said.append(
                    f"{by.capitalize()} {found['worst']} is served worst, {fixed(found['highest'].value)}; the best and the "
                    f"worst are {fixed(found['gap'].value)} apart."
                )
            if "pays_most" in found:
                cost = found["largest_cost"]
                sure = "" if cost.low > 0 else ", which chance can still explain"
                said.append(
                    f"{by.capitalize()} {found['pays_most']} pays most: {fixed(cost.value)} (interval {fixed(cost.low)} to "
                    f"{fixed(cost.high)} after allowing for the choice{sure})."
                )
            said += hidden_in_words(found, several(by), self.settings["smallest_part"])
        return said

    def tables(self) -> list[Table]:
        """Squared error, absolute error and bias of everyone and each group."""
        level = level_of(self.everyone.mse["private"])
        columns = ["", "people", "private", *(["twin", "private − twin"] if self.has_twin else [])]
        return [
            Table(
                f"{words.capitalize()} on the test part, {level} intervals",
                columns,
                [
                    [row_name(part), f"{part.n:,}", *(fixed_cell(e) for e in getattr(part, measure).values())]
                    for part in self._all_parts()
                ],
            )
            for measure, words in ERRORS.items()
        ]

    def _all_parts(self) -> list[ErrorPart]:
        return [self.everyone, *(part for by in self.partitions for part in self.parts(by))]


def disparity(
    model: nn.Module,
    data: Data,
    *,
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    level: float = LEVEL,
    reference: Sequence[nn.Module] = (),
) -> Disparity | ErrorDisparity:
    """Accuracy and cross-entropy of everyone, each class, each group and each class within a group of `data`.

    Accuracy has Wilson's interval, mean loss Student's t; differences are paired, both models see the same people. Where
    people have several rows, shares and means are over rows, and intervals allow for rows of one person being alike.
    Between the groups g of a column, with classes one against the rest (two classes: label 1 only; more: all of them):

    - demographic parity difference `max_c (max_g - min_g) P(says c | g)`, ratio `min_c min_g / max_g` of the same
      (over the classes that somebody is said to be);
    - equalised odds difference: the largest, over c, of the spread over g of `P(says c | is c, g)` and of
      `P(says c | is not c, g)`.

    For two classes these are the usual definitions (Agarwal et al. 2018, arXiv:1803.02453; Hardt et al. 2016,
    arXiv:1610.02413). Shares of fewer than 20 people are left out and counted; so is the rate of a class that nobody in a
    group is of, which fairlearn takes for 0.

    `reference`: non-private models, none of them the audited ones. Rows are ranked by their mean cross-entropy over
    these models (ties by position) and cut into ten equal parts: is the private model's accuracy falling with difficulty,
    and does privacy cost the hardest tenth more than the easiest?

    Real-valued targets give an `ErrorDisparity` instead: errors by group, no accuracy.
    Nothing is drawn at random (`generator` is not used) and nothing takes long enough to show (`progress`).
    Does not retrain; seconds.
    """
    if data.task == "regression" and data.y.dim() == 1:
        if reference:
            raise ConfigError(
                "reference= ranks rows by cross-entropy: it needs classes, these targets are real-valued."
            )
        return _error_disparity(model, data, twin, level)
    outcomes = {"private": _outcomes(model, data)}
    if twin is not None:
        outcomes["twin"] = _outcomes(twin, data)
    hits, owner = {which: of["hits"] for which, of in outcomes.items()}, owners(data)
    describe = partial(part_of, outcomes=outcomes, level=level, owner=owner)
    by_name = named_parts(data)
    crossed = {_crossing(column): _crossed(by_name["class"], by_name[column]) for column in data.groups}
    parts, found = divided(
        data,
        by_name | crossed,
        describe,
        lambda _, shown: extremes(hits, shown, level, owner=owner),
    )
    everyone = describe("everyone", "all", np.arange(len(data)))
    fairness = {column: _fairness(data, large_enough(data, by_name[column]), outcomes, level) for column in data.groups}
    tenths = _tenths(model, data, twin, reference) if reference else []
    deciles = [describe("difficulty", str(number), rows) for number, rows in enumerate(tenths, start=1)]
    difficulty = _difficulty(deciles, _largest_rise(hits["private"], tenths, owner, level)) if deciles else {}
    status = status_of(data, twin)
    if reference:
        status = Status("not-private", "ranks rows by a non-private reference ensemble: no ledger covers it")
    return Disparity(
        headline=_headline(everyone, found["class"], difficulty),
        values={
            "parts": [vars(part) for part in [everyone, *parts, *deciles]],
            "extremes": {by: found[by] for by in by_name},
            "cells": {column: found[_crossing(column)] for column in data.groups},
            "fairness": fairness,
            "difficulty": difficulty,
        },
        settings={"rows": len(data), "level": level, "smallest_part": SMALLEST, "reference_models": len(reference)},
        status=status,
    )


def _crossing(column: str) -> str:
    return f"class × {column}"


def _crossed(classes: Mapping[str, np.ndarray], groups: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rows of each class within each group; combinations that nobody has are left out."""
    found = {
        f"{label}, {group}": np.intersect1d(of_class, of_group, assume_unique=True)
        for label, of_class in classes.items()
        for group, of_group in groups.items()
    }
    return {name: index for name, index in found.items() if len(index)}


def _fairness(data: Data, groups: Mapping[str, np.ndarray], outcomes: Outcomes, level: float) -> dict[str, Any]:
    """Demographic parity and equalised odds between groups, as `disparity` defines them."""
    if len(groups) < 2:
        return {}
    truth, width, owner = data.y.numpy(), int(outcomes["private"]["classes"][0]), owners(data)
    labels = [1] if width == 2 else list(range(width))
    conditions = [index[truth[index] == label] for label in labels for index in groups.values()]
    conditions += [index[truth[index] != label] for label in labels for index in groups.values()]
    hidden = sum(people(data, index) < SMALLEST for index in conditions)
    found: dict[str, Any] = {PARITY: {}, PARITY_RATIO: {}, ODDS: {}, "hidden": hidden}

    def compared(which: str, among: Sequence[Mapping[str, np.ndarray]], chosen: Sequence[int], models: int) -> Any:
        """Spreads and ratios over groups of the share that is said to be each class, holding together."""
        kept = [
            (label, shown)
            for label, rows in zip(chosen, among, strict=True)
            if len(shown := large_enough(data, rows)) > 1
        ]
        if not kept:
            return [], []
        said, single = outcomes[which]["said"], intervals.each(level, models * sum(len(rows) for _, rows in kept))
        shares = [
            [intervals.share(said[index] == label, single, of_rows(owner, index)) for index in rows.values()]
            for label, rows in kept
        ]
        return [intervals.spread(of, level) for of in shares], [intervals.ratio(of, level) for of in shares]

    everyone = [groups for _ in labels]
    odds = [
        {name: index[(truth[index] == label) == right] for name, index in groups.items()}
        for right in (True, False)
        for label in labels
    ]
    for measure, among, chosen in ((PARITY, everyone, labels), (ODDS, odds, labels * 2)):
        for which in outcomes:
            spreads, ratios = compared(which, among, chosen, 1)
            if spreads:
                found[measure][which] = intervals.largest(spreads, level)
            if measure == PARITY and any(ratios):
                found[PARITY_RATIO][which] = intervals.smallest([r for r in ratios if r is not None], level)
        if "twin" in found[measure]:
            private, twin = (intervals.largest(compared(m, among, chosen, 2)[0], level) for m in MODELS)
            found[measure]["excess"] = intervals.difference(private, twin, level)
    return {name: value for name, value in found.items() if value != {}}


def _tenths(model: nn.Module, data: Data, twin: nn.Module | None, reference: Sequence[nn.Module]) -> list[np.ndarray]:
    """Ten equal parts of the rows, easiest first for the reference ensemble."""
    if any(judge is audited for judge in reference for audited in (model, twin)):
        raise ConfigError(
            "a reference model is one of the audited models: rows would be called hard because that model fails on them. "
            "Train the reference ensemble apart, from other seeds."
        )
    if people(data, np.arange(len(data))) < DECILES * SMALLEST:
        raise DataError(
            f"{len(data)} rows make tenths of fewer than {SMALLEST} people: difficulty needs more test data."
        )
    difficulty = np.mean([_outcomes(judge, data)["losses"] for judge in reference], axis=0)
    order = np.argsort(difficulty, kind="stable")
    tenths = [np.sort(rows) for rows in np.array_split(order, DECILES)]
    if min(people(data, rows) for rows in tenths) < SMALLEST:
        raise DataError(f"a tenth of the {len(data)} rows is of fewer than {SMALLEST} people: needs more test data.")
    return tenths


def _difficulty(deciles: Sequence[Part], rise: Estimate) -> dict[str, Estimate]:
    """Falls and rises of accuracy over the deciles, which are different rows."""
    own = [part.accuracy["private"] for part in deciles]
    found = {"drop": intervals.independent_difference(own[-1], own[0]), "largest_rise": rise}
    if "difference" in deciles[0].accuracy:
        hardest, easiest = deciles[-1].accuracy["difference"], deciles[0].accuracy["difference"]
        found["extra_cost"] = intervals.independent_difference(hardest, easiest)
    return found


def _largest_rise(hits: np.ndarray, tenths: Sequence[np.ndarray], owner: np.ndarray | None, level: float) -> Estimate:
    """Largest step up between neighbours, from intervals that hold together."""
    single = intervals.each(level, len(tenths) - 1)
    shares = [intervals.share(hits[rows], single, of_rows(owner, rows)) for rows in tenths]
    steps = [intervals.independent_difference(after, before) for before, after in pairwise(shares)]
    return intervals.largest(steps, level)


def _outcomes(model: nn.Module, data: Data) -> dict[str, np.ndarray]:
    """Right or wrong, and the cross-entropy, of every row."""
    from torch.nn.functional import cross_entropy

    found = logits(model, data)
    if not bool(found.isfinite().all()):
        raise DataError("a model gives outputs that are not finite: it decides nothing. Did training diverge?")
    losses = cross_entropy(found, data.y, reduction="none")
    said = found.argmax(1)
    return {
        "said": said.numpy(),
        "hits": (said == data.y).numpy(),
        "losses": losses.numpy(),
        "classes": np.array([found.shape[1]]),
    }


def _headline(everyone: Part, extreme: dict[str, Any], difficulty: dict[str, Estimate]) -> dict[str, Estimate]:
    found = {
        "accuracy": everyone.accuracy["private"],
        "twin accuracy": everyone.accuracy.get("twin"),
        "cost": everyone.accuracy.get("difference"),
        "worst class": extreme.get("lowest"),
        "largest cost": extreme.get("largest_cost"),
        "gap": extreme.get("gap"),
        "twin gap": extreme.get("twin_gap"),
        "excess gap": extreme.get("excess_gap"),
        "extra cost of the hardest tenth": difficulty.get("extra_cost"),
    }
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def _error_disparity(model: nn.Module, data: Data, twin: nn.Module | None, level: float) -> ErrorDisparity:
    if not len(data):
        raise DataError("no rows: an audit needs at least one.")
    residuals = {"private": _residuals(model, data)}
    if twin is not None:
        residuals["twin"] = _residuals(twin, data)
    squares, owner = {which: np.square(of) for which, of in residuals.items()}, owners(data)
    describe = partial(_error_part, residuals=residuals, level=level, owner=owner)
    parts, found = divided(
        data,
        named_parts(data),
        describe,
        lambda _, shown: extremes(squares, shown, level, ERROR, owner),
    )
    everyone = describe("everyone", "all", np.arange(len(data)))
    headline = {name: getattr(everyone, name)["private"] for name in ERRORS}
    if twin is not None:
        headline |= {"twin mse": everyone.mse["twin"], "cost": everyone.mse["difference"]}
    return ErrorDisparity(
        headline=headline,
        values={"parts": [vars(part) for part in [everyone, *parts]], "extremes": found},
        settings={"rows": len(data), "level": level, "smallest_part": SMALLEST},
        status=status_of(data, twin),
    )


def _residuals(model: nn.Module, data: Data) -> np.ndarray:
    """Prediction minus target of every row."""
    found = outputs(model, data.x)
    if found.shape not in ((len(data),), (len(data), 1)):
        raise DataError(f"the model gives outputs of shape {list(found.shape)}: a regression needs one number per row.")
    if not bool(found.isfinite().all()):
        raise DataError("a model gives outputs that are not finite: it has no error. Did training diverge?")
    return (found.reshape(-1) - data.y.double()).numpy()


def _error_part(
    by: str, name: str, rows: np.ndarray, residuals: Mapping[str, np.ndarray], level: float, owner: np.ndarray | None
) -> ErrorPart:
    def measured(change: Callable[[np.ndarray], np.ndarray], floor: float) -> dict[str, Estimate]:
        return means({which: change(of[rows]) for which, of in residuals.items()}, level, floor, of_rows(owner, rows))

    mse = measured(np.square, 0.0)
    return ErrorPart(by, name, mse["private"].n, mse, measured(np.abs, 0.0), measured(lambda r: r, -np.inf))


def _measure_cell(e: Estimate | None) -> str:
    return "–" if e is None else fixed_cell(e, 3)
