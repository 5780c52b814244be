"""Who is counted: people by class and group, small groups hidden, private model against twin, extremes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from noisewise.errors import DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import Estimate

if TYPE_CHECKING:
    from torch import Tensor

    from noisewise.data import Data

MODELS = ("private", "twin")
SMALLEST = 20  # people; fewer are counted, not shown
PAIRS = {"difference": ("private", "twin"), "gain": ("scaled", "private")}  # first minus second
POOR_TWIN = (
    "The twin is behind, so what privacy cost is not known from it: it is badly tuned for this data (try --twin-lr). Privacy "
    "gains nothing."
)
ALLOWING = "adjusted for comparing all of them"
HOLD = "; private − twin adjusted for comparing all parts by a column"
CROSSED = " × "  # in the name of a partition by two columns
TAKEN = ("class", "everyone", "difficulty")  # words that no group column may use

Rows = Mapping[str, np.ndarray]
Estimates = dict[str, Estimate]
Outcomes = dict[str, dict[str, np.ndarray]]


# People ----------------------------------------------------------------------------------------------------------------


def named_parts(
    data: Data, one_of: Callable[[Tensor], Tensor] = lambda labels: labels
) -> dict[str, dict[str, np.ndarray]]:
    """Places of each class (where targets are classes) and of each group, by name; see `large_enough`.

    Places are rows, unless `one_of` makes other labels of those of the rows, e.g. one for each person.
    """
    for taken in TAKEN:
        if taken in data.groups:
            raise DataError(f"a group column is called {taken!r}, which has a meaning here: rename it.")
    columns = data.groups if data.task == "regression" else {"class": data.y, **data.groups}
    names = {"class": data.classes, **data.group_names}
    partitions = {}
    for by, labels in columns.items():
        kept, called = one_of(labels).numpy(), dict(enumerate(names.get(by, ())))
        partitions[by] = {
            str(called.get(label, label)): np.flatnonzero(kept == label) for label in sorted(set(kept.tolist()))
        }
    return partitions


def people(data: Data, rows: np.ndarray) -> int:
    """How many people own these rows."""
    return len(rows) if data.unit is None else len(np.unique(data.unit.numpy()[rows]))


def owners(data: Data) -> np.ndarray | None:
    """Whose row each is; None where nobody is known to have several."""
    return None if data.unit is None else data.unit.numpy()


def of_rows(owner: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    """Whose these rows are."""
    return None if owner is None else owner[rows]


def large_enough(data: Data, rows: Rows) -> dict[str, np.ndarray]:
    """The parts that may be shown: those of at least 20 people."""
    return {name: index for name, index in rows.items() if people(data, index) >= SMALLEST}


@dataclass(frozen=True)
class Hidden:
    """Of a partition: how many parts are too small to be shown, and how many people are in these."""

    hidden_parts: int
    hidden_people: int

    def hidden_in_words(self, several: str, smallest: int = SMALLEST) -> list[str]:
        """What is not shown, if anything: `several` names the parts."""
        if not self.hidden_parts:
            return []
        if self.hidden_parts == 1:
            return [f"One of the {several} has fewer than {smallest} people ({self.hidden_people}) and is not shown."]
        return [
            f"{self.hidden_parts} {several} with fewer than {smallest} people each ({self.hidden_people} people in all) are "
            "not shown."
        ]


def hidden(data: Data, rows: Rows) -> Hidden:
    """The parts that may not be shown, counted."""
    shown = large_enough(data, rows)
    left = [index for name, index in rows.items() if name not in shown]
    return Hidden(len(left), people(data, np.concatenate(left)) if left else 0)


def several(by: str) -> str:
    """`classes`, or `groups by column`."""
    return "classes" if by == "class" else f"groups by {by}"


def rows_in_words(rows: int, people: int) -> str:
    """`1,000 test rows`, and of how many people where that is another number."""
    return f"{rows:,} test rows" if rows == people else f"{rows:,} test rows of {people:,} people"


def counted_twice(by: str, parts: Iterable[Part], people: int) -> list[str]:
    """That parts of a column add up to more people than there are: some have rows of several."""
    more = sum(part.n for part in parts) - people
    if more <= 0:
        return []
    one = "class" if by == "class" else f"value of {by}"
    return [
        f"A person with rows of more than one {one} counts in each of them: {several(by)} add up to {more:,} more people."
    ]


def who_pays(by: str, name: str, pays: bool) -> str:
    """Whom privacy costs most; where nobody pays, who gains least.

    >>> who_pays("class", "a", True), who_pays("class", "a", False)
    ('Class a pays most', 'Nobody pays; class a gains least')
    """
    return f"{titled(by)} {name} pays most" if pays else f"Nobody pays; {by} {name} gains least"


def titled(by: str) -> str:
    """`Class`, or the column's name as its table has it."""
    return f"C{by[1:]}" if by == "class" or by.startswith(crossing("")) else by


def crossing(column: str) -> str:
    """The partition by class and a group column."""
    return f"class{CROSSED}{column}"


Kind = TypeVar("Kind")
Extreme = TypeVar("Extreme")


def divided(
    data: Data,
    partitions: Mapping[str, Rows],
    part: Callable[[str, str, np.ndarray, int], Kind],
    extremes: Callable[[Hidden, Sequence[Kind], Rows], Extreme],
) -> tuple[list[Kind], dict[str, Extreme]]:
    """Every part that is large enough, made by `part(by, name, rows, parts)`; and of each partition what is extreme.

    `parts` counts those of the partition: intervals that are compared allow for so many. The latter by
    `extremes(hidden, parts, rows)` of the parts that are shown.
    """
    parts: list[Kind] = []
    of_partitions = {}
    for by, rows in partitions.items():
        shown = large_enough(data, rows)
        members = [part(by, name, index, len(shown)) for name, index in shown.items()]
        of_partitions[by] = extremes(hidden(data, rows), members, shown)
        parts += members
    return parts, of_partitions


# Private model and twin ------------------------------------------------------------------------------------------------


def pairs(models: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Which of these models are compared: `difference` is private - twin, `gain` scaled - private."""
    there = set(models)
    return {name: pair for name, pair in PAIRS.items() if there.issuperset(pair)}


def shares(
    hits: Mapping[str, np.ndarray], level: float, owner: np.ndarray | None = None, together: int = 1
) -> Estimates:
    """Share of true entries by model (Wilson), and paired differences (Tango).

    `together`: so many differences are looked at side by side, so their intervals hold together (Bonferroni): whether
    chance explains one of them is the same question in a table, a figure and a card.
    """
    estimates = {which: intervals.share(flags, level, owner) for which, flags in hits.items()}
    single = intervals.each(level, together)
    for name, (first, second) in pairs(hits).items():
        apart = intervals.share_difference(hits[first], hits[second], single, owner)
        estimates[name] = intervals.one_of(apart, level, together)
    return estimates


def means(
    values: Mapping[str, np.ndarray],
    level: float,
    floor: float = -math.inf,
    owner: np.ndarray | None = None,
    together: int = 1,
) -> Estimates:
    """Mean by model (Student t, no lower than `floor`), and paired differences, `together` as in `shares`."""
    estimates = {which: intervals.mean(column, level, floor, owner) for which, column in values.items()}
    single = intervals.each(level, together)
    for name, (first, second) in pairs(values).items():
        apart = intervals.mean_difference(values[first], values[second], single, owner)
        estimates[name] = intervals.one_of(apart, level, together)
    return estimates


@dataclass(frozen=True)
class Part:
    """A class, group or class in a group, a decile of difficulty, or everyone; `n` people.

    Estimates under `private`, and with a twin `twin` and `difference`, whose intervals hold together for all parts by the
    same column; no `loss` where an audit has none for every row.
    """

    by: str
    name: str
    n: int
    accuracy: Estimates
    loss: Estimates = field(default_factory=dict)


def part_of(
    by: str,
    name: str,
    rows: np.ndarray,
    together: int = 1,
    *,
    outcomes: Outcomes,
    level: float,
    owner: np.ndarray | None = None,
) -> Part:
    """Accuracy and mean loss of some rows, from `{model: {"hits": ..., "losses": ...}}`; `losses` may be missing."""
    whose = of_rows(owner, rows)
    accuracy = shares({which: of["hits"][rows] for which, of in outcomes.items()}, level, whose, together)
    losses = {which: of["losses"][rows] for which, of in outcomes.items() if "losses" in of}
    return Part(by, name, accuracy["private"].n, accuracy, means(losses, level, 0.0, whose, together))


@dataclass(frozen=True)
class Worst:
    """Who is served worst: the name, how well or badly, best - worst, and their ratio (None where it has no value)."""

    name: str = field(metadata={"key": "worst"})
    served: Estimate = field(metadata={"key": "lowest"})
    gap: Estimate
    ratio: Estimate | None


@dataclass(frozen=True)
class WorstError(Worst):
    """The same of errors, where the highest is the worst."""

    served: Estimate = field(metadata={"key": "highest"})


@dataclass(frozen=True)
class Cost:
    """Who pays most for privacy, how much, the twin's gap between best and worst, and gap - twin gap."""

    name: str = field(metadata={"key": "pays_most"})
    largest: Estimate = field(metadata={"key": "largest_cost"})
    twin_gap: Estimate
    excess_gap: Estimate


@dataclass(frozen=True)
class Extremes(Hidden):
    """How many parts and people of a partition are not shown; with two parts or more the worst one, and with a twin costs."""

    worst: Worst | WorstError | None = field(default=None, metadata={"inline": True})
    cost: Cost | None = field(default=None, metadata={"inline": True})


class Measure(NamedTuple):
    """How a column becomes an estimate, how two are paired, which end is the worst, and what holds it."""

    one: Callable[..., Estimate]
    paired: Callable[..., Estimate]
    pick: Callable[..., Any]
    worst: Callable[[Sequence[Estimate], float], Estimate]
    kind: type[Worst]


SHARE = Measure(intervals.share, intervals.share_difference, min, intervals.smallest, Worst)
ERROR = Measure(partial(intervals.mean, floor=0.0), intervals.mean_difference, max, intervals.largest, WorstError)


def extremes(
    hidden: Hidden, columns: Rows, rows: Rows, level: float, measure: Measure = SHARE, owner: np.ndarray | None = None
) -> Extremes:
    """Worst part, gap, ratio and largest cost of `{model: one value per row}`, with intervals that hold together.

    Neither the worst nor costs with fewer than two parts; costs with a twin only. `hidden` is passed on.
    Guarantee: Bonferroni over all parts (and both models, where both count), so that the choice is allowed for.
    """
    counts = (hidden.hidden_parts, hidden.hidden_people)
    if len(rows) < 2:
        return Extremes(*counts)
    single, both = intervals.each(level, len(rows)), intervals.each(level, 2 * len(rows))

    def estimates(which: str, each: float) -> list[Estimate]:
        return [measure.one(columns[which][index], each, owner=of_rows(owner, index)) for index in rows.values()]

    def worst_name(among: Sequence[Estimate]) -> str:
        return measure.pick(zip(rows, among, strict=True), key=lambda pair: pair[1].value)[0]

    private = estimates("private", single)
    worst = measure.kind(
        name=worst_name(private),
        served=measure.worst(private, level),
        gap=intervals.spread(private, level),
        ratio=intervals.ratio(private, level),
    )
    if "twin" not in columns:
        return Extremes(*counts, worst)
    costs = [
        measure.paired(columns["private"][index], columns["twin"][index], single, owner=of_rows(owner, index))
        for index in rows.values()
    ]
    wide, narrow = (intervals.spread(estimates(which, both), level) for which in MODELS)
    cost = Cost(
        name=worst_name(costs),
        largest=measure.worst(costs, level),
        twin_gap=intervals.spread(estimates("twin", single), level),
        excess_gap=intervals.difference(wide, narrow, level),
    )
    return Extremes(*counts, worst, cost)
