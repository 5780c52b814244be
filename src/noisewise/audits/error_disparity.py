"""Disparity of a regression: squared and absolute error and bias of everyone and of each group, model against twin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from noisewise.audits.outputs import outputs, status_of
from noisewise.audits.people import (
    ALLOWING,
    ERROR,
    HOLD,
    POOR_TWIN,
    SMALLEST,
    Estimates,
    Extremes,
    divided,
    extremes,
    means,
    named_parts,
    of_rows,
    owners,
    rows_in_words,
    several,
    titled,
    who_pays,
)
from noisewise.audits.price import cards_of_errors
from noisewise.audits.result import Card, Figure, Result, Table
from noisewise.audits.show import MOST_ROWS, dots, dress, fixed_cell, name_rows, row_name
from noisewise.errors import DataError
from noisewise.estimates.estimate import Estimate
from noisewise.wording import fixed
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import nn

    from noisewise.data import Data


@dataclass(frozen=True)
class ErrorPart:
    """A group or everyone, real-valued targets: estimates under `private`, with a twin `twin` and `difference`."""

    by: str
    name: str
    n: int
    mse: Estimates
    mae: Estimates
    bias: Estimates


ERRORS = {"mse": "mean squared error", "mae": "mean absolute error", "bias": "bias (prediction − target)"}


@dataclass(frozen=True)
class Values:
    """Everyone and every group that is large enough; the extremes of each group column."""

    parts: list[ErrorPart]
    extremes: dict[str, Extremes]


@dataclass(frozen=True, kw_only=True)
class ErrorDisparity(Result):
    """Errors of a regression, of everyone and by group, and how much of them is privacy's.

    `mse = mean (f(x) - y)^2`, `mae = mean |f(x) - y|`, `bias = mean (f(x) - y)`; intervals are Student's t.
    headline: `mse`, `mae`, `bias`; with a twin `twin mse` and `cost` (private - twin: here a *positive* cost is a loss).
    Guarantee: intervals of the extremes allow for having picked them among all groups of a column, and those of
    private - twin hold together for all groups of a column.
    """

    kind: ClassVar[str] = "disparity-regression"
    title: ClassVar[str] = "Who gets how much"
    version: ClassVar[int] = 2

    values: Values

    @property
    def everyone(self) -> ErrorPart:
        """All people together."""
        return self.parts("everyone")[0]

    @property
    def partitions(self) -> list[str]:
        """Names of the group columns."""
        return list(self.values.extremes)

    def parts(self, by: str) -> list[ErrorPart]:
        """The groups of a column that are large enough to be shown."""
        return [part for part in self.values.parts if part.by == by]

    def extremes(self, by: str) -> Extremes:
        """The group with the largest squared error, gap and ratio (best / worst); with a twin what privacy cost."""
        return self.values.extremes[by]

    def cost_of(self, by: str, name: str) -> Estimate:
        """What privacy cost a group: the difference that tables, figures and cards show."""
        return next(part.mse["difference"] for part in self.parts(by) if part.name == name)

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
        private = self.everyone.mse["private"]
        sentences = [
            f"The private model's mean squared error on {rows_in_words(self.settings['rows'], self.everyone.n)} is "
            f"{fixed(private.value)} ({level_of(private)} interval {fixed(private.low)} to {fixed(private.high)})."
        ]
        if self.has_twin:
            cost = self.everyone.mse["difference"]
            sure = "" if cost.excludes_zero else ", which chance can explain"
            sentences.append(
                f"Its non-private twin's is {fixed(self.everyone.mse['twin'].value)}: a change of {fixed(cost.value)} "
                f"(interval {fixed(cost.low)} to {fixed(cost.high)}{sure})."
            )
            if cost.high < 0:
                sentences.append(POOR_TWIN)
        for by in self.partitions:
            extremes = self.extremes(by)
            if extremes.worst is not None:
                sentences.append(
                    f"{titled(by)} {extremes.worst.name} is served worst, {fixed(extremes.worst.served.value)}; the best "
                    f"and the worst are {fixed(extremes.worst.gap.value)} apart."
                )
            if extremes.cost is not None:
                cost = self.cost_of(by, extremes.cost.name)
                sure = "" if cost.excludes_zero else ", which chance can still explain"
                sentences.append(
                    f"{who_pays(by, extremes.cost.name, cost.value > 0)}: {fixed(cost.value)} (interval {fixed(cost.low)} to "
                    f"{fixed(cost.high)}, {ALLOWING}{sure})."
                )
            sentences += extremes.hidden_in_words(several(by), self.settings["smallest_part"])
        return sentences

    def cards(self) -> list[Card]:
        """What privacy cost overall, and which group pays most."""
        return cards_of_errors(self)

    def tables(self) -> list[Table]:
        """Squared error, absolute error and bias of everyone and each group."""
        level = level_of(self.everyone.mse["private"])
        columns = ["", "people", "private", *(["twin", "private − twin"] if self.has_twin else [])]
        return [
            Table(
                f"{words.capitalize()} on the test part, {level} intervals{HOLD if self.has_twin else ''}",
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


def error_disparity(model: nn.Module, data: Data, twin: nn.Module | None, level: float) -> ErrorDisparity:
    """What `disparity` gives for real-valued targets."""
    if not len(data):
        raise DataError("no rows: an audit needs at least one.")
    residuals = {"private": _residuals(model, data)}
    if twin is not None:
        residuals["twin"] = _residuals(twin, data)
    squares, owner = {which: np.square(of) for which, of in residuals.items()}, owners(data)
    describe = partial(_error_part, residuals=residuals, level=level, owner=owner)
    parts, of_partitions = divided(
        data,
        named_parts(data),
        describe,
        lambda hidden, _, shown: extremes(hidden, squares, shown, level, ERROR, owner),
    )
    everyone = describe("everyone", "all", np.arange(len(data)))
    headline = {name: getattr(everyone, name)["private"] for name in ERRORS}
    if twin is not None:
        headline |= {"twin mse": everyone.mse["twin"], "cost": everyone.mse["difference"]}
    return ErrorDisparity(
        headline=headline,
        values=Values([everyone, *parts], of_partitions),
        settings={"rows": len(data), "level": level, "smallest_part": SMALLEST},
        status=status_of(data, twin),
    )


def _residuals(model: nn.Module, data: Data) -> np.ndarray:
    """Prediction minus target of every row, in the units of the label's table."""
    predicted = outputs(model, data.x)
    if predicted.shape not in ((len(data),), (len(data), 1)):
        raise DataError(
            f"the model gives outputs of shape {list(predicted.shape)}: a regression needs one number per row."
        )
    if not bool(predicted.isfinite().all()):
        raise DataError("a model gives outputs that are not finite: it has no error. Did training diverge?")
    return (predicted.reshape(-1) - data.y.double()).numpy() * data.label_scale


def _error_part(
    by: str,
    name: str,
    rows: np.ndarray,
    together: int = 1,
    *,
    residuals: Mapping[str, np.ndarray],
    level: float,
    owner: np.ndarray | None,
) -> ErrorPart:
    def measured(change: Callable[[np.ndarray], np.ndarray], floor: float) -> Estimates:
        changed, whose = {which: change(of[rows]) for which, of in residuals.items()}, of_rows(owner, rows)
        return means(changed, level, floor, whose, together)

    mse = measured(np.square, 0.0)
    return ErrorPart(by, name, mse["private"].n, mse, measured(np.abs, 0.0), measured(lambda r: r, -np.inf))
