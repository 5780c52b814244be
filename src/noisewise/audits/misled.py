"""What robustness says: accuracy against the size of misleading changes, by class and group, and the attack's checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from noisewise.attacks.campaign import Check
from noisewise.audits.declared import Column, columns_in_words
from noisewise.audits.people import HOLD, Estimates, Extremes, Part, rows_in_words, several, titled
from noisewise.audits.result import INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import (
    MOST_ROWS,
    accuracy_cells,
    dots,
    dress,
    fixed_cell,
    name_rows,
    row_name,
    share_cell,
    shares_in_words,
    told,
)
from noisewise.wording import level as level_of
from noisewise.wording import number, percent, percent_interval, points, points_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIGN = {"linf": "L∞", "l2": "L2"}


@dataclass(frozen=True)
class Point:
    """Of one radius, by model: `accuracy` under the attack, one step (`fgsm`) and random `noise`; the mean largest `loss`."""

    radius: float
    accuracy: Estimates
    loss: Estimates
    fgsm: Estimates
    noise: Estimates


@dataclass(frozen=True)
class Values:
    """By norm: points of the sweep (radius 0 first), parts of the people and their extremes; and all checks."""

    sweep: dict[str, list[Point]]
    parts: dict[str, list[Part]]
    extremes: dict[str, dict[str, Extremes]]
    checks: list[Check]


@dataclass(frozen=True, kw_only=True)
class Robustness(Result):
    """What an attacker who knows the model can do with small changes of the input.

    headline (main norm and radius): `robust accuracy`, `lost to the attack` (right before, wrong under attack); with a
    twin also `twin robust accuracy`, `cost` (private - twin) and `excess lost` (private - twin).
    Guarantee: an attack finds failures, it cannot rule them out: robust accuracy is an upper limit, and only worth as
    much as the checks that came out well. Reference: Carlini et al. 2019, arXiv:1902.06705 (checks).
    """

    kind: ClassVar[str] = "robustness"
    title: ClassVar[str] = "How easily it is misled"
    version: ClassVar[int] = 3

    values: Values

    @property
    def has_twin(self) -> bool:
        """Was there a non-private model to compare with?"""
        return "twin" in self._main_point().accuracy

    @property
    def declared(self) -> list[dict[str, Any]]:
        """The numbers of a table that were changed, with their declared ranges; empty for other inputs."""
        return list(self.settings.get("declared", []))

    def _spoken(self, radius: float, norm: str) -> str:
        return f"{100 * radius:g} %" if self.declared else _radius(radius, norm)

    def _attack(self, norm: str) -> str:
        return "misleading changes of numbers" if self.declared else f"{_SIGN[norm]} attack"

    @property
    def norms(self) -> list[str]:
        """Norms of the attack, the main one first."""
        return list(self.values.sweep)

    def sweep(self, norm: str | None = None) -> list[Point]:
        """One point per radius, 0 first: `radius`, and estimates of `accuracy`, `loss`, `fgsm` and `noise` by model.

        `loss` is the mean largest loss of the rows that are attacked to the end, whether misled or not.
        """
        return self.values.sweep[norm or self.norms[0]]

    def parts(self, by: str = "class", norm: str | None = None) -> list[Part]:
        """The classes, or the groups of a column, that are large enough, attacked with the main radius."""
        return [part for part in self.values.parts[norm or self.norms[0]] if part.by == by]

    @property
    def partitions(self) -> list[str]:
        """`class`, then the names of the group columns."""
        return list(self.values.extremes[self.norms[0]])

    @property
    def checks(self) -> list[Check]:
        """Does the attack work? `model`, `norm`, `check`, `passed` and `found` (in words)."""
        return self.values.checks

    def _main_point(self, norm: str | None = None) -> Point:
        norm = norm or self.norms[0]
        return next(point for point in self.sweep(norm) if point.radius == self.settings["radius"][norm])

    def plot(self, ax: Axes) -> Axes:
        """Accuracy against radius under the main norm, with intervals: private filled, twin hollow."""
        return self._plot_sweep(ax, self.norms[0])

    def _plot_sweep(self, ax: Axes, norm: str) -> Axes:
        sweep = self.sweep(norm)
        radii = [point.radius for point in sweep]
        looks = {"private": (PRIVATE, "o", PRIVATE), "twin": (TWIN, "D", ax.get_facecolor())}
        for which in ("twin", "private"):
            if which not in sweep[0].accuracy:
                continue
            colour, marker, face = looks[which]
            accuracies = [point.accuracy[which] for point in sweep]
            ax.fill_between(
                radii,
                [100 * e.low for e in accuracies],
                [100 * e.high for e in accuracies],
                color=colour,
                alpha=0.18,
                linewidth=0,
            )
            label = {"private": "private model", "twin": "twin"}[which]
            values = [100 * e.value for e in accuracies]
            ax.plot(radii, values, marker=marker, color=colour, markerfacecolor=face, markersize=6, label=label)
            for point, e in zip(sweep, accuracies, strict=True):
                (mark,) = ax.plot(
                    [point.radius], [100 * e.value], marker, color=colour, markerfacecolor=face, markersize=6
                )
                told(mark, f"{label}, {self._spoken(point.radius, norm)}: {percent(e)} ({percent_interval(e)})")
        noisy = [100 * point.noise["private"].value for point in sweep]
        ax.plot(radii, noisy, color=INK, linestyle=":", linewidth=1.5, label="private, random noise")
        ax.axvline(self.settings["radius"][norm], color=INK, linewidth=0.8, linestyle="--")
        spoken = [self._spoken(value, norm) for value in radii]
        ax.set_xticks(radii, labels=_tick_labels(radii, spoken), parse_math=False)
        ax.set_ylim(-3, 103)
        ax.legend(frameon=False, labelcolor=INK, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        across = "largest change, share of the declared range" if self.declared else None
        return dress(ax, across or f"radius ({_SIGN[norm]}{self._unit_in_words()})", "accuracy under attack, %")

    def _unit_in_words(self) -> str:
        return ", share of the input range" if self.settings["scale_is_range"] else ""

    def _plot_parts(self, ax: Axes, by: str, norm: str) -> Axes:
        parts = self._lowest_last(by, norm)[-MOST_ROWS:]
        dots(ax, [part.accuracy for part in parts])
        name_rows(ax, [part.name for part in parts])
        ax.set_xlim(-1, 101)
        return dress(ax, f"accuracy under attack by {by}, %")

    def _lowest_last(self, by: str, norm: str) -> list[Part]:
        return sorted(self.parts(by, norm), key=lambda part: -part.accuracy["private"].value)

    def figures(self) -> list[Figure]:
        """Accuracy against radius for each norm; classes and groups at the main radius of each norm."""
        figures = []
        both = "private model (filled) and twin (hollow)" if self.has_twin else "private model"
        for norm in self.norms:
            words = "; ".join(
                f"{self._spoken(point.radius, norm)}: {shares_in_words(point.accuracy)}" for point in self.sweep(norm)
            )
            size = "share of the declared range" if self.declared else "radius"
            caption = (
                f"Accuracy of the {both} under {self._attack(norm)}, by {size}; the dashed line is the main {size}"
            )
            figures.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_sweep, norm=norm), 8))
            for by in self.partitions:
                count, parts = len(self.parts(by, norm)), self._lowest_last(by, norm)[-MOST_ROWS:]
                if not parts:
                    continue
                words = "; ".join(f"{part.name}: {shares_in_words(part.accuracy)}" for part in reversed(parts))
                which = several(by) + (f" (the lowest {len(parts)} of {count})" if count > len(parts) else "")
                caption = f"Under {self._attack(norm)} of {self._size(norm)}: {both}, {which}, lowest on top"
                draw = partial(self._plot_parts, by=by, norm=norm)
                figures.append(Figure(caption, f"{caption}. {words}.", draw, len(parts)))
        return figures

    def sentences(self) -> list[str]:
        """What the attack does and what it cost; who is misled most; whether the attack can be trusted."""
        sentences = []
        for norm in self.norms:
            point, clean = self._main_point(norm), self.sweep(norm)[0].accuracy["private"]
            kept = point.accuracy["private"]
            limit = f"{_radius(point.radius, norm)} ({_SIGN[norm]}{self._unit_in_words()})"
            if self.declared:
                far = columns_in_words(self.declared, point.radius)
                limit = f"{self._spoken(point.radius, norm)} of each number's declared range ({far})"
            sentences.append(
                f"Changes of at most {limit} that are made to mislead leave the private model right on "
                f"{percent(kept)} of {rows_in_words(self.settings['rows'], kept.n)} ({level_of(kept)} interval "
                f"{percent_interval(kept)}); without them it is right on {percent(clean)}."
            )
            if self.has_twin:
                sentences.append(f"Its non-private twin keeps {percent(point.accuracy['twin'])}: {self._cost(norm)}")
            for by in self.partitions:
                sentences += self._extremes_in_words(by, norm)
        if self.settings["rows"] < self.settings["rows_of_data"]:
            sentences.append(
                f"{self.settings['rows']:,} of {self.settings['rows_of_data']:,} rows, drawn at random, were attacked."
            )
        failed = [check for check in self.checks if not check.passed]
        sentences += [
            f"Warning: the attack on the {check.model} model{self._sign(check.norm)} fails a check, {check.check} "
            f"({check.found}): the model may be weaker than these figures say."
            for check in failed
        ]
        if not failed:
            sentences.append(
                "The attack passes its checks, so these figures are worth something; they are still upper limits, "
                "another attack may do more."
            )
        return sentences

    def _sign(self, norm: str) -> str:
        return "" if self.declared else f" ({_SIGN[norm]})"

    def _size(self, norm: str) -> str:
        main = self._spoken(self.settings["radius"][norm], norm)
        return f"{main} of their range" if self.declared else f"radius {main}"

    def _cost(self, norm: str) -> str:
        cost = self._main_point(norm).accuracy["difference"]
        if not cost.excludes_zero:
            return f"a difference that chance can explain ({points(cost)} points, interval {points_interval(cost)})."
        verb = "cost" if cost.value < 0 else "gained"
        return f"privacy {verb} {points(cost).lstrip('−+')} points under attack (interval {points_interval(cost)})."

    def _extremes_in_words(self, by: str, norm: str) -> list[str]:
        extremes, sentences = self.values.extremes[norm][by], []
        if extremes.worst is not None:
            sentences.append(
                f"{titled(by)} {extremes.worst.name} is misled most: {percent(extremes.worst.served)} stay right; best and "
                f"worst are {points(extremes.worst.gap).lstrip('+')} points apart."
            )
        if norm == self.norms[0]:
            sentences += extremes.hidden_in_words(several(by), self.settings["smallest_part"])
        return sentences

    def tables(self) -> list[Table]:
        """The sweep of each norm, classes and groups at its main radius, and the checks."""
        tables = []
        for norm in self.norms:
            level = level_of(self._main_point(norm).accuracy["private"])
            both = ["twin", "private − twin"] if self.has_twin else []
            rows = [
                [
                    self._spoken(point.radius, norm),
                    *accuracy_cells(point.accuracy),
                    *(share_cell(attack["private"]) for attack in (point.fgsm, point.noise)),
                    fixed_cell(point.loss["private"]),
                ]
                for point in self.sweep(norm)
            ]
            tables.append(
                Table(
                    f"Accuracy in % under {self._attack(norm)}, {level} intervals",
                    [
                        "share of the range" if self.declared else "radius",
                        "private",
                        *both,
                        "private, one step",
                        "private, random noise",
                        "private, loss",
                    ],
                    rows,
                )
            )
            rows = [[row_name(part), f"{part.n:,}", *accuracy_cells(part.accuracy)] for part in self.values.parts[norm]]
            hold = HOLD if self.has_twin else ""
            caption = f"Accuracy in % under {self._attack(norm)} of {self._size(norm)}, {level} intervals{hold}"
            tables.append(Table(caption, ["", "people", "private", *both], rows))
        rows = [
            [check.check, _SIGN[check.norm], check.model, "yes" if check.passed else "NO", check.found]
            for check in self.checks
        ]
        if self.declared:
            main = self.settings["radius"][self.norms[0]]
            moved = [[c.name, c.range(), c.moved(main)] for c in (Column(**column) for column in self.declared)]
            caption = f"How far each number was moved at {100 * main:g} % of its range; all other columns stayed"
            tables.append(Table(caption, ["column", "declared range", "largest change"], moved))
        return [*tables, Table("Does the attack work?", ["check", "norm", "model", "passed", "found"], rows)]


def _radius(value: float, norm: str) -> str:
    """`8/255` where the radius is a whole number of grey levels, else its digits."""
    levels = 255 * value
    if norm == "linf" and value and abs(levels - round(levels)) < 1e-6:
        return f"{round(levels)}/255"
    return number(value) if value else "0"


def _tick_labels(radii: list[float], spoken: Sequence[str]) -> list[str]:
    """Every radius has its tick; labels that would touch the next one are left out, the larger stays."""
    room = max(radii) / 7
    labels, last = [], math.inf
    for value, text in zip(reversed(radii), reversed(spoken), strict=True):
        labels.append(text if last - value >= room else "")
        last = value if labels[-1] else last
    return labels[::-1]
