"""The cards of the report's first screen: what privacy cost overall, and who pays most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noisewise.audits.people import ALLOWING, POOR_TWIN, Extremes, Worst, crossing, rows_in_words
from noisewise.audits.result import Card, Row
from noisewise.estimates.estimate import Estimate
from noisewise.wording import fixed, level, percent, percent_interval, points, points_interval

if TYPE_CHECKING:
    from noisewise.audits.disparity import Disparity
    from noisewise.audits.error_disparity import ErrorDisparity

CHANCE = " Chance can explain the difference."
NO_TWIN = " Measured without a twin to compare with."
GAIN, CHANGED, LEAST = "Ahead of the twin", "What it changed", "Nobody pays: who gains least"  # where there is no cost
WITH, WITHOUT = "with privacy", "without privacy"


def _judged(change: Estimate, better: bool) -> str:
    """What a difference to the twin is worth: chance, or a twin that is no measure of the cost."""
    return CHANCE if not change.excludes_zero else f" {POOR_TWIN}" if better else ""


def _titled(better: bool, change: Estimate) -> str:
    """A gain is not called a cost."""
    return "" if not better else GAIN if change.excludes_zero else CHANGED


def cards_of_shares(result: Disparity) -> list[Card]:
    """Accuracy, its cost, and which class pays most (without a twin: is served worst)."""
    shares, extremes = result.everyone.accuracy, result.extremes()
    private, worst = shares["private"], extremes.worst
    people = _tested(result, private)
    rows: tuple[Row, ...] = ((WITH, percent(private), percent_interval(private)),)
    if not result.has_twin:
        cost = Card("cost", percent(private), "accuracy", rows=rows, note=f"{people}.{NO_TWIN}")
        if worst is None:
            return [cost]
        lines = (f"is served worst: {percent(worst.served)}.",)
        return [cost, Card("pays", f"class {worst.name}", lines=lines, note=_apart(worst, extremes))]
    change = shares["difference"]
    rows += ((WITHOUT, percent(shares["twin"]), percent_interval(shares["twin"])),)
    cost = Card(
        "cost",
        points(change),
        "points of accuracy",
        f"interval {points_interval(change)}; below 0: privacy costs",
        rows,
        lines=_not_alike(result, change, extremes),
        note=f"{people}.{_judged(change, change.value > 0)}",
        title=_titled(points(change).startswith("+"), change),
    )
    return [cost] if worst is None or extremes.cost is None else [cost, _who_pays(result, worst, extremes)]


def _who_pays(result: Disparity, worst: Worst, extremes: Extremes) -> Card:
    assert extremes.cost is not None
    part = next(part for part in result.parts() if part.name == extremes.cost.name)
    cost = part.accuracy["difference"]
    lines = [
        f"{percent(part.accuracy['private'])} right, {percent(part.accuracy['twin'])} without privacy: "
        f"{points(cost)} points (interval {points_interval(cost)}, {ALLOWING}).",
    ]
    if cost.high >= 0 and not (cost.value >= 0 and cost.excludes_zero):
        lines.append("With so few test rows per class, chance can still explain it.")
    if (inside := _hardest_hit(result, cost)) is not None:
        lines.append(inside)
    note = f"Served worst: class {worst.name}, {percent(worst.served)}. {_apart(worst, extremes)}"
    for by in result.partitions:
        paying = result.extremes(by).cost
        if paying is not None and by != "class":
            of_group = result.cost_of(by, paying.name)
            sure = "" if of_group.excludes_zero else ", which chance can explain"
            who = f"{paying.name} pays most" if of_group.value < 0 else f"nobody pays, {paying.name} gains least"
            told = f"{who}: {points(of_group)} points{sure}"
            note += f" By {by} {told if points(of_group).strip('0.') else 'nobody pays'}."
    return Card("pays", f"class {part.name}", lines=tuple(lines), note=note, title="" if cost.value < 0 else LEAST)


def _not_alike(result: Disparity, change: Estimate, extremes: Extremes) -> tuple[str, ...]:
    """Where one class pays and everyone together does not: whose gain hides it."""
    if extremes.cost is None or change.excludes_zero:
        return ()
    cost = result.cost_of("class", extremes.cost.name)
    best = max(result.parts(), key=lambda part: part.accuracy["difference"].value)
    gain = best.accuracy["difference"]
    if cost.high >= 0 or gain.value <= 0:
        return ()
    sure = "" if gain.excludes_zero else " (which chance can explain)"
    lost, won = points(cost).lstrip("−"), points(gain).lstrip("+")
    return (
        f"It evens out, but not for all alike: class {extremes.cost.name} pays {lost} points, class {best.name} gained "
        f"{won}{sure}.",
    )


def _hardest_hit(result: Disparity, cost: Estimate) -> str | None:
    """The class within a group that pays more than any class does, where chance does not explain it."""
    paying = [
        (column, most.name, result.cost_of(crossing(column), most.name))
        for column, of in result.values.cells.items()
        if (most := of.cost) is not None
    ]
    if not paying:
        return None
    column, name, change = min(paying, key=lambda cell: cell[2].value)
    if change.high >= 0 or change.value >= cost.value:
        return None
    return f"Hit hardest, by class and {column}: {name}, {points(change)} points (interval {points_interval(change)})."


def _apart(worst: Worst, extremes: Extremes) -> str:
    text = f"Best and worst class are {points(worst.gap).lstrip('+')} points apart"
    twin = "" if extremes.cost is None else f", {points(extremes.cost.twin_gap).lstrip('+')} without privacy"
    return f"{text}{twin}."


def cards_of_errors(result: ErrorDisparity) -> list[Card]:
    """Squared error, where more is worse, its cost, and which group of any column pays most."""
    private, twin, change = (result.headline.get(name) for name in ("mse", "twin mse", "cost"))
    assert private is not None
    people = _tested(result, private)
    rows: tuple[Row, ...] = ((WITH, fixed(private.value), f"{fixed(private.low)}–{fixed(private.high)}"),)
    if change is None or twin is None:
        return [Card("cost", fixed(private.value), "mean squared error", rows=rows, note=f"{people}.{NO_TWIN}")]
    rows += ((WITHOUT, fixed(twin.value), f"{fixed(twin.low)}–{fixed(twin.high)}"),)
    cost = Card(
        "cost",
        f"{'+' if change.value > 0 else ''}{fixed(change.value)}",
        "in mean squared error",
        f"interval {fixed(change.low)} to {fixed(change.high)}; above 0: privacy costs",
        rows,
        note=f"{people}.{_judged(change, change.value < 0)}",
        title=_titled(change.value < 0, change),
    )
    partitions = [(by, result.extremes(by)) for by in result.partitions]
    paying = [(by, of.cost, of.worst) for by, of in partitions if of.cost is not None and of.worst is not None]
    if not paying:
        return [cost]
    by, most, worst = max(paying, key=lambda column: column[1].largest.value)
    change = result.cost_of(by, most.name)
    pays = change.value > 0
    lines = [
        f"Mean squared error {fixed(abs(change.value))} {'above' if pays else 'below'} the twin's (interval "
        f"{fixed(change.low)} to {fixed(change.high)}, {ALLOWING})."
    ]
    if not change.excludes_zero:
        lines.append("Chance can still explain it.")
    note = f"Served worst: {by} {worst.name}, {fixed(worst.served.value)}."
    return [cost, Card("pays", f"{by} {most.name}", lines=tuple(lines), note=note, title="" if pays else LEAST)]


def _tested(result: Disparity | ErrorDisparity, private: Estimate) -> str:
    return f"{rows_in_words(result.settings['rows'], result.everyone.n)}, {level(private)} intervals"
