"""Disparity: accuracy and loss of everyone, each class, group and class in a group, private model against its twin.

For real-valued targets: squared and absolute error and bias of everyone and of each group (`ErrorDisparity`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from noisewise._moved import old_names
from noisewise.audits.audit import Audit
from noisewise.audits.difficulty import DECILES, Difficulty, difficulty_of, largest_rise, tenths_of
from noisewise.audits.error_disparity import ErrorDisparity, error_disparity
from noisewise.audits.fairness import ODDS, PARITY, Fairness, between_groups
from noisewise.audits.outputs import check_subject, logits, status_of
from noisewise.audits.people import (
    ALLOWING,
    HOLD,
    POOR_TWIN,
    SMALLEST,
    Extremes,
    Part,
    counted_twice,
    crossing,
    divided,
    extremes,
    large_enough,
    named_parts,
    owners,
    part_of,
    rows_in_words,
    several,
    titled,
    who_pays,
)
from noisewise.audits.price import cards_of_shares
from noisewise.audits.result import INK, PRIVATE, Card, Figure, Result, Table
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
from noisewise.estimates.estimate import LEVEL, Estimate, check_level
from noisewise.runs.folder import Status
from noisewise.wording import fixed, percent, percent_interval, points, points_interval
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import nn

    from noisewise.data import Data


@dataclass(frozen=True)
class Values:
    """Everyone, every part that is large enough and the tenths; extremes by partition, and by crossing; fairness by column."""

    parts: list[Part]
    extremes: dict[str, Extremes]
    cells: dict[str, Extremes]
    fairness: dict[str, Fairness]
    difficulty: Difficulty


@dataclass(frozen=True, kw_only=True)
class Disparity(Result):
    """Who gets how much, and how much of it privacy took.

    headline: `accuracy`, `worst class`, `gap` (best - worst class); with a twin also `twin accuracy`, `cost` (private
    - twin, so a loss is negative), `largest cost` of a class, `twin gap` and `excess gap` (gap - twin gap); with a
    reference ensemble `extra cost of the hardest tenth` (its cost - that of the easiest tenth).
    Guarantee: intervals of the extremes (worst, gap, ratio, largest cost) and of the fairness measures allow for having
    picked them among all classes and groups; those of private - twin hold together for all parts by the same column, so
    that card, table and figure say the same about chance.
    Reference: Bagdasaryan et al. 2019, arXiv:1905.12101.
    """

    kind: ClassVar[str] = "disparity"
    title: ClassVar[str] = "Who gets how much"
    version: ClassVar[int] = 3

    values: Values

    @property
    def everyone(self) -> Part:
        """All people together."""
        return self.parts("everyone")[0]

    @property
    def partitions(self) -> list[str]:
        """`class`, then the names of the group columns."""
        return list(self.values.extremes)

    def parts(self, by: str = "class") -> list[Part]:
        """The classes, or the groups of a column, that are large enough to be shown."""
        return [part for part in self.values.parts if part.by == by]

    def extremes(self, by: str = "class") -> Extremes:
        """Who is served worst and who pays most, and how many parts and people are not shown."""
        return self.values.extremes[by]

    def cells(self, column: str) -> list[Part]:
        """Each class within each group of a column, where it is large enough to be shown."""
        return self.parts(crossing(column))

    def cell_extremes(self, column: str) -> Extremes:
        """`extremes` among the cells of a column."""
        return self.values.cells[column]

    def fairness(self, column: str) -> Fairness:
        """Demographic parity and equalised odds between the groups of a column, as `disparity` defines them."""
        return self.values.fairness.get(column, Fairness())

    @property
    def deciles(self) -> list[Part]:
        """The rows by difficulty for a reference ensemble, easiest tenth first; empty without one."""
        return self.parts("difficulty")

    @property
    def difficulty(self) -> Difficulty:
        """`drop` (hardest - easiest tenth, private), `largest_rise` between neighbours, with a twin `extra_cost`."""
        return self.values.difficulty

    def cost_of(self, by: str, name: str) -> Estimate:
        """What privacy cost a part: the difference that tables, figures and cards show."""
        return next(part.accuracy["difference"] for part in self.parts(by) if part.name == name)

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
        return dress(ax, "private minus twin, points (left of 0: privacy costs)")

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
        figures = []
        crossings = [crossing(column) for column in self.values.cells]
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
            figures.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_accuracy, by=by), rows))
            if self.has_twin:
                words = "; ".join(
                    f"{part.name}: {points(e)} points, interval {points_interval(e)}"
                    for part in reversed(self._lowest_last(by)[-MOST_ROWS:])
                    for e in [part.accuracy["difference"]]
                )
                caption = f"What privacy took or gave, {kind}; filled where chance alone does not explain it"
                figures.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_cost, by=by), rows))
        if self.deciles:
            caption = "Accuracy by difficulty for a reference ensemble, easiest tenth of the rows first"
            words = "; ".join(f"{part.name}: {shares_in_words(part.accuracy)}" for part in self.deciles)
            figures.append(Figure(caption, f"{caption}. {words}.", self.plot_difficulty, 8))
        return figures

    def sentences(self) -> list[str]:
        """Overall accuracy and its cost; who is worst off; who pays most; what is not shown."""
        everyone = self.everyone
        private = everyone.accuracy["private"]
        sentences = [
            f"The private model gets {percent(private)} of {self._tested()} right ({level_of(private)} interval "
            f"{percent_interval(private)})."
        ]
        if self.has_twin:
            sentences.append(f"Its non-private twin gets {percent(everyone.accuracy['twin'])}: {self.cost_in_words()}")
        for by in self.partitions:
            sentences += self._extremes_in_words(by, self.extremes(by))
            sentences += counted_twice(by, self.parts(by), everyone.n)
            sentences += self._fairness_in_words(by)
        for column, crossed in self.values.cells.items():
            sentences += self._extremes_in_words(crossing(column), crossed)
        return sentences + self._difficulty_in_words()

    @property
    def _hold(self) -> str:
        return HOLD if self.has_twin else ""

    def _tested(self) -> str:
        return rows_in_words(self.settings["rows"], self.everyone.n)

    def cost_in_words(self) -> str:
        """What privacy cost overall."""
        cost = self.everyone.accuracy["difference"]
        if not cost.excludes_zero:
            return f"a difference that chance can explain ({points(cost)} points, interval {points_interval(cost)})."
        if cost.value > 0:
            return f"{points(cost)} points (interval {points_interval(cost)}). {POOR_TWIN}"
        lost = replace(cost, value=-cost.value, low=-cost.high, high=-cost.low)
        return f"privacy cost {points(lost).lstrip('+')} points (interval {points_interval(lost)})."

    def _extremes_in_words(self, by: str, extremes: Extremes) -> list[str]:
        sentences = []
        what, worst = titled(by), extremes.worst
        if worst is not None and not worst.gap.value:
            sentences.append(f"All {several(by)} are served alike, {percent(worst.served)}.")
        elif worst is not None:
            times = f" (ratio {fixed(worst.ratio.value)})" if worst.ratio else ""
            sentences.append(
                f"{what} {worst.name} is served worst, {percent(worst.served)}; the best and the worst are "
                f"{points(worst.gap).lstrip('+')} points apart{times}."
            )
        if extremes.cost is not None:
            cost = self.cost_of(by, extremes.cost.name)
            sure = "" if cost.excludes_zero else ", which chance can still explain"
            sentences.append(
                f"{who_pays(by, extremes.cost.name, cost.value < 0)}: {points(cost)} points (interval {points_interval(cost)}, "
                f"{ALLOWING}{sure})."
            )
        parts = several(by) if by in self.partitions else f"cells of {by}"
        return sentences + extremes.hidden_in_words(parts, self.settings["smallest_part"])

    def _fairness_in_words(self, by: str) -> list[str]:
        measures, sentences = self.fairness(by).measures() if by != "class" else {}, []
        names = {
            PARITY: "the shares that are predicted a class",
            ODDS: "the rates of right and of false predictions of a class",
        }
        for measure, words in names.items():
            if measure not in measures:
                continue
            private, twin = measures[measure]["private"], measures[measure].get("twin")
            against = "" if twin is None else f"; {points(twin).lstrip('+')} without privacy"
            sentences.append(
                f"Between groups by {by}, {words} differ by up to {points(private).lstrip('+')} points ({measure}, interval "
                f"{points_interval(private)}{against})."
            )
        return sentences

    def _difficulty_in_words(self) -> list[str]:
        if not self.deciles:
            return []
        drop, rise, extra = self.difficulty.drop, self.difficulty.largest_rise, self.difficulty.extra_cost
        assert drop is not None
        assert rise is not None
        order = "rises from one tenth to the next" if rise.low > 0 else "falls, or changes no more than chance explains"
        here = "are hard here too" if drop.high < 0 else "are not clearly harder here"
        sentences = [
            f"Rows that are hard for the reference ensemble {here}: {points(drop)} points from the easiest to the "
            f"hardest tenth (interval {points_interval(drop)}); in between accuracy {order}."
        ]
        if extra is not None:
            verdict = (
                "which chance can explain" if not extra.excludes_zero
                else "so hard rows pay more" if extra.value < 0 else "so hard rows pay less"
            )  # fmt: skip
            sentences.append(
                f"Privacy changed the hardest tenth by {points(extra)} points more than the easiest (interval "
                f"{points_interval(extra)}), {verdict}."
            )
        return sentences

    def cards(self) -> list[Card]:
        """What privacy cost overall, and which class pays most."""
        return cards_of_shares(self)

    def tables(self) -> list[Table]:
        """Accuracy, then loss: everyone, each class, each group; extremes, fairness, cells and difficulty."""
        level = level_of(self.everyone.accuracy["private"])
        return [
            self._accuracy_table(f"Accuracy on the test part in %, {level} intervals{self._hold}", self._all_parts()),
            self._loss_table(
                f"Mean loss (cross-entropy) on the test part, {level} intervals{self._hold}", self._all_parts()
            ),
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
        tables = []
        rows = [
            [f"{name}, {column}", *(_measure_cell(of.get(key)) for key in ("private", "twin", "excess"))]
            for column in self.values.fairness
            for name, of in self.fairness(column).measures().items()
        ]
        if rows:
            columns = ["", "private", "twin", "excess"] if self.has_twin else ["", "private"]
            caption = f"Fairness between groups (from 0 to 1), {level} intervals that hold together"
            tables.append(Table(caption, columns, [row[: len(columns)] for row in rows]))
        for column in self.values.cells:
            if cells := self.cells(column):
                where = f"by class and {column}, {level} intervals{self._hold}"
                tables.append(self._accuracy_table(f"Accuracy in % {where}", cells))
                tables.append(self._loss_table(f"Mean loss (cross-entropy) {where}", cells))
        if self.deciles:
            caption = f"Accuracy by difficulty in %, tenth 1 the easiest, {level} intervals"
            tables.append(self._accuracy_table(caption, self.deciles))
        return tables

    def _all_parts(self) -> list[Part]:
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
    check_level(level)
    check_subject(data, private=model, twin=twin)
    if data.task == "regression" and data.y.dim() == 1:
        if reference:
            raise ConfigError(
                "reference= ranks rows by cross-entropy: it needs classes, these targets are real-valued."
            )
        return error_disparity(model, data, twin, level)
    outcomes = {"private": _outcomes(model, data)}
    if twin is not None:
        outcomes["twin"] = _outcomes(twin, data)
    hits, owner = {which: of["hits"] for which, of in outcomes.items()}, owners(data)
    describe = partial(part_of, outcomes=outcomes, level=level, owner=owner)
    by_name = named_parts(data)
    crossed = {crossing(column): _crossed(by_name["class"], by_name[column]) for column in data.groups}
    parts, of_partitions = divided(
        data,
        by_name | crossed,
        describe,
        lambda hidden, _, shown: extremes(hidden, hits, shown, level, owner=owner),
    )
    everyone = describe("everyone", "all", np.arange(len(data)))
    fairness = {
        column: between_groups(data, large_enough(data, by_name[column]), outcomes, level) for column in data.groups
    }
    tenths = tenths_of(data, (model, twin), reference, _losses) if reference else []
    deciles = [describe("difficulty", str(number), rows) for number, rows in enumerate(tenths, start=1)]
    difficulty = Difficulty()
    if deciles:
        difficulty = difficulty_of(deciles, largest_rise(hits["private"], tenths, owner, level))
    status = status_of(data, twin)
    if reference:
        status = Status("not-private", "ranks rows by a non-private reference ensemble: no ledger covers it")
    return Disparity(
        headline=_headline(everyone, of_partitions["class"], difficulty),
        values=Values(
            parts=[everyone, *parts, *deciles],
            extremes={by: of_partitions[by] for by in by_name},
            cells={column: of_partitions[crossing(column)] for column in data.groups},
            fairness=fairness,
            difficulty=difficulty,
        ),
        settings={"rows": len(data), "level": level, "smallest_part": SMALLEST, "reference_models": len(reference)},
        status=status,
    )


def _crossed(classes: Mapping[str, np.ndarray], groups: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rows of each class within each group; combinations that nobody has are left out."""
    cells = {
        f"{label}, {group}": np.intersect1d(of_class, of_group, assume_unique=True)
        for label, of_class in classes.items()
        for group, of_group in groups.items()
    }
    return {name: index for name, index in cells.items() if len(index)}


def _outcomes(model: nn.Module, data: Data) -> dict[str, np.ndarray]:
    """Right or wrong, and the cross-entropy, of every row."""
    from torch.nn.functional import cross_entropy

    outputs = logits(model, data)
    if not bool(outputs.isfinite().all()):
        raise DataError("a model gives outputs that are not finite: it decides nothing. Did training diverge?")
    losses = cross_entropy(outputs, data.y, reduction="none")
    answer = outputs.argmax(1)
    return {
        "said": answer.numpy(),
        "hits": (answer == data.y).numpy(),
        "losses": losses.numpy(),
        "classes": np.array([outputs.shape[1]]),
    }


def _losses(model: nn.Module, data: Data) -> np.ndarray:
    return _outcomes(model, data)["losses"]


def _headline(everyone: Part, extremes: Extremes, difficulty: Difficulty) -> dict[str, Estimate]:
    worst, cost = extremes.worst, extremes.cost
    named = {
        "accuracy": everyone.accuracy["private"],
        "twin accuracy": everyone.accuracy.get("twin"),
        "cost": everyone.accuracy.get("difference"),
        "worst class": worst.served if worst else None,
        "largest cost": cost.largest if cost else None,
        "gap": worst.gap if worst else None,
        "twin gap": cost.twin_gap if cost else None,
        "excess gap": cost.excess_gap if cost else None,
        "extra cost of the hardest tenth": difficulty.extra_cost,
    }
    return {name: estimate for name, estimate in named.items() if estimate is not None}


def _measure_cell(e: Estimate | None) -> str:
    return "–" if e is None else fixed_cell(e, 3)


AUDIT = Audit("disparity", disparity, takes="Does not retrain; seconds.", usual=True)

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
