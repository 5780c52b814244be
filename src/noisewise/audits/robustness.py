"""Robustness: how often small changes of the input, made to mislead, succeed; and whether the attack itself works.

Radii are in units of `scale`, so that 8/255 means the same for raw and for normalised pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from noisewise._moved import old_names
from noisewise.attacks.campaign import Answers, Campaign, Check, attack_all, checks, refuse_unattackable
from noisewise.attacks.pgd import NOISE_DRAWS, NORMS, Numbers, Space
from noisewise.audits.audit import Audit
from noisewise.audits.outputs import status_of
from noisewise.audits.people import (
    SMALLEST,
    Estimates,
    Extremes,
    Part,
    divided,
    extremes,
    means,
    named_parts,
    owners,
    part_of,
    rows_in_words,
    several,
    shares,
    titled,
)
from noisewise.audits.result import INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import (
    MOST_ROWS,
    Bar,
    accuracy_cells,
    dots,
    dress,
    fixed_cell,
    name_rows,
    row_name,
    share_cell,
    shares_in_words,
)
from noisewise.errors import ConfigError
from noisewise.estimates.estimate import LEVEL, Estimate
from noisewise.evaluation import logits
from noisewise.wording import level as level_of
from noisewise.wording import number, percent, percent_interval, points, points_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import nn

    from noisewise.data import Data

TAKES = "Does not retrain; about 20 seconds of processor time per model for a network like LeNet."
ROWS = 640
RADIUS = {"linf": 8 / 255, "l2": 0.5}
FACTORS = (0.5, 1.0, 2.0, 4.0)
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
    version: ClassVar[int] = 2

    values: Values

    @property
    def has_twin(self) -> bool:
        """Was there a non-private model to compare with?"""
        return "twin" in self._main_point().accuracy

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
        noisy = [100 * point.noise["private"].value for point in sweep]
        ax.plot(radii, noisy, color=INK, linestyle=":", linewidth=1.5, label="private, random noise")
        ax.axvline(self.settings["radius"][norm], color=INK, linewidth=0.8, linestyle="--")
        ax.set_xticks(radii, labels=_tick_labels(radii, norm), parse_math=False)
        ax.set_ylim(-3, 103)
        ax.legend(frameon=False, labelcolor=INK, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        return dress(ax, f"radius ({_SIGN[norm]}{self._unit_in_words()})", "accuracy under attack, %")

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
                f"radius {_radius(point.radius, norm)}: {shares_in_words(point.accuracy)}" for point in self.sweep(norm)
            )
            caption = (
                f"Accuracy of the {both} under {_SIGN[norm]} attack, by radius; the dashed line is the main radius"
            )
            figures.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_sweep, norm=norm), 8))
            for by in self.partitions:
                count, parts = len(self.parts(by, norm)), self._lowest_last(by, norm)[-MOST_ROWS:]
                if not parts:
                    continue
                words = "; ".join(f"{part.name}: {shares_in_words(part.accuracy)}" for part in reversed(parts))
                main = _radius(self.settings["radius"][norm], norm)
                which = several(by) + (f" (the lowest {len(parts)} of {count})" if count > len(parts) else "")
                caption = f"Under {_SIGN[norm]} attack of radius {main}: {both}, {which}, lowest on top"
                draw = partial(self._plot_parts, by=by, norm=norm)
                figures.append(Figure(caption, f"{caption}. {words}.", draw, len(parts)))
        return figures

    def sentences(self) -> list[str]:
        """What the attack does and what it cost; who is misled most; whether the attack can be trusted."""
        sentences = []
        for norm in self.norms:
            point, clean = self._main_point(norm), self.sweep(norm)[0].accuracy["private"]
            kept = point.accuracy["private"]
            sentences.append(
                f"Changes of at most {_radius(point.radius, norm)} ({_SIGN[norm]}{self._unit_in_words()}) that are "
                f"made to mislead leave the private model right on {percent(kept)} of "
                f"{rows_in_words(self.settings['rows'], kept.n)} ({level_of(kept)} interval "
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
            f"Warning: the attack on the {check.model} model ({_SIGN[check.norm]}) fails a check, {check.check} "
            f"({check.found}): the model may be weaker than these figures say."
            for check in failed
        ]
        if not failed:
            sentences.append(
                "The attack passes its checks, so these figures are worth something; they are still upper limits, "
                "another attack may do more."
            )
        return sentences

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
                    _radius(point.radius, norm),
                    *accuracy_cells(point.accuracy),
                    *(share_cell(attack["private"]) for attack in (point.fgsm, point.noise)),
                    fixed_cell(point.loss["private"]),
                ]
                for point in self.sweep(norm)
            ]
            tables.append(
                Table(
                    f"Accuracy in % under {_SIGN[norm]} attack, {level} intervals",
                    ["radius", "private", *both, "private, one step", "private, random noise", "private, loss"],
                    rows,
                )
            )
            main = _radius(self.settings["radius"][norm], norm)
            rows = [[row_name(part), f"{part.n:,}", *accuracy_cells(part.accuracy)] for part in self.values.parts[norm]]
            caption = f"Accuracy in % under {_SIGN[norm]} attack of radius {main}, {level} intervals"
            tables.append(Table(caption, ["", "people", "private", *both], rows))
        rows = [
            [check.check, _SIGN[check.norm], check.model, "yes" if check.passed else "NO", check.found]
            for check in self.checks
        ]
        return [*tables, Table("Does the attack work?", ["check", "norm", "model", "passed", "found"], rows)]


def robustness(
    model: nn.Module,
    data: Data,
    *,
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    level: float = LEVEL,
    norms: Sequence[str] = ("linf", "l2"),
    radius: Mapping[str, float] = RADIUS,
    factors: Sequence[float] = FACTORS,
    steps: int = 20,
    step: float = 0.25,
    restarts: int = 1,
    box: tuple[Numbers, Numbers] | None = None,
    scale: Numbers | None = None,
    rows: int | None = ROWS,
) -> Robustness:
    """Accuracy under PGD, one gradient step (FGSM) and random noise, for a sweep of radii, by class and by group.

    `radius` is the main one of each norm, `factors` times it the sweep (must hold 1); the first of `norms` makes the
    headline. `step` is a share of the radius: 0.25 of 8/255 is the usual 2/255. Changes stay in `box`, the inputs that
    can occur, as the model sees them (default: the range of `data`). Radii count in units of `scale` model-input units,
    one number or one per channel; the default is the box's width, so that a radius is a share of the input range and
    8/255 means eight grey levels of images whose pixels fill their range, normalised or not. MNIST divided by 0.3081:
    `scale=1 / 0.3081`.

    `rows` of the data, drawn at random, are attacked (None: all); both models see the same rows, starts and noise.
    Accuracy has Wilson's interval, loss Student's t (both by person where people have several rows); differences are
    paired. The checks are part of the result.
    All rows are attacked until they are misled, a random 256 of them to the end: those give the loss and the
    attack without limit. A row that a smaller change misleads counts as misled at every larger radius.
    The generator draws rows, starts and noise (default: seed 0). Does not retrain; 640 rows, two norms, four radii, 20
    steps and a network like LeNet take about 20 seconds of processor time per model, and 88 % is then known to within
    2.6 points.
    """
    import torch

    _validate(norms, radius, factors, steps, step, restarts, rows)
    generator = np.random.default_rng(0) if generator is None else generator
    models = {"private": model} | ({} if twin is None else {"twin": twin})
    space = Space.of(data.x, box, scale)
    # in random order, also if all are taken: the first chunk stands for all
    chosen = data.take(torch.from_numpy(generator.permutation(len(data))[:rows]))
    for which, network in models.items():
        refuse_unattackable(logits(network, chosen), which)
    radii = {norm: [0.0, *sorted(radius[norm] * factor for factor in factors)] for norm in norms}
    seed, owner = int(generator.integers(2**62)), owners(chosen)
    with Bar(progress, sum(len(some) for some in radii.values()) * len(models), "attacks") as advance:
        raw = attack_all(models, chosen, radii, space, seed, advance, steps=steps, step=step, restarts=restarts)

    sweep = {
        norm: [
            _point({which: campaigns[norm] for which, campaigns in raw.items()}, place, level, owner)
            for place in range(len(radii[norm]))
        ]
        for norm in norms
    }
    main = {norm: radii[norm].index(radius[norm]) for norm in norms}
    split = {norm: _parts(chosen, {which: campaigns[norm].pgd[main[norm]].right for which, campaigns in raw.items()}, level)
             for norm in norms}  # fmt: skip
    first = norms[0]
    lost = {
        which: campaigns[first].pgd[0].right & ~campaigns[first].pgd[main[first]].right
        for which, campaigns in raw.items()
    }
    return Robustness(
        headline=_headline(sweep[first][main[first]].accuracy, shares(lost, level, owner)),
        values=Values(
            sweep=sweep,
            parts={norm: split[norm][0] for norm in norms},
            extremes={norm: split[norm][1] for norm in norms},
            checks=[
                check
                for which, campaigns in raw.items()
                for norm in norms
                for check in checks(campaigns[norm], which, norm)
            ],
        ),
        settings={
            "rows": len(chosen),
            "rows_of_data": len(data),
            "rows_to_the_end": len(raw["private"][first].pgd[0].loss),
            "level": level,
            "smallest_part": SMALLEST,
            "radius": {norm: float(radius[norm]) for norm in norms},
            "steps": steps,
            "step": step,
            "restarts": restarts,
            "noise_draws": NOISE_DRAWS,
            "box": [space.low.flatten().tolist(), space.high.flatten().tolist()],
            "box_is_range_of_data": box is None,
            "scale": space.scale.flatten().tolist(),
            "scale_is_range": scale is None,
        },
        status=status_of(data, twin),
    )


def _validate(
    norms: Sequence[str],
    radius: Mapping[str, float],
    factors: Sequence[float],
    steps: int,
    step: float,
    restarts: int,
    rows: int | None,
) -> None:
    if isinstance(norms, str) or not norms or len(set(norms)) < len(norms) or not set(norms) <= set(NORMS):
        raise ConfigError(f"norms {norms!r}: give a list of one or more of {', '.join(NORMS)}, each once.")
    for norm in norms:
        if norm not in radius or not (0 < radius[norm] < math.inf):
            raise ConfigError(f"radius {radius!r}: needs a number above 0 for the norm {norm!r}.")
    if 1 not in factors or not all(0 < factor < math.inf for factor in factors) or len(set(factors)) < len(factors):
        raise ConfigError(f"factors {list(factors)!r}: different numbers above 0, with 1 (the main radius) among them.")
    for name, value in {"steps": steps, "restarts": restarts, "rows": 1 if rows is None else rows}.items():
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} {value!r}: must be a whole number above 0.")
    if not 0 < step < math.inf:
        raise ConfigError(f"step {step!r}: must be above 0; it is a share of the radius.")


def _point(campaigns: Mapping[str, Campaign], place: int, level: float, owner: np.ndarray | None) -> Point:
    """What the attacks of one norm do at one radius, by model."""
    pgd, fgsm, noise = (
        {which: getattr(campaign, attack)[place] for which, campaign in campaigns.items()}
        for attack in ("pgd", "fgsm", "noise")
    )

    def right(answers: Mapping[str, Answers]) -> Estimates:
        return shares({which: a.right for which, a in answers.items()}, level, owner)

    first = None if owner is None else owner[: len(pgd["private"].loss)]
    return Point(
        radius=campaigns["private"].radii[place],
        accuracy=right(pgd),
        loss=means({which: a.loss for which, a in pgd.items()}, level, 0.0, first),
        fgsm=right(fgsm),
        noise=right(noise),
    )


def _parts(data: Data, hits: dict[str, np.ndarray], level: float) -> tuple[list[Part], dict[str, Extremes]]:
    """Everyone, each class and each group that is large enough; and the extremes."""
    owner = owners(data)
    part = partial(part_of, outcomes={which: {"hits": of} for which, of in hits.items()}, level=level, owner=owner)
    parts, of_partitions = divided(
        data,
        named_parts(data),
        part,
        lambda hidden, _, shown: extremes(hidden, hits, shown, level, owner=owner),
    )
    everyone = part("everyone", "all", np.arange(len(data)))
    return [everyone, *parts], of_partitions


def _headline(accuracy: dict[str, Estimate], lost: dict[str, Estimate]) -> dict[str, Estimate]:
    headline = {"robust accuracy": accuracy["private"], "lost to the attack": lost["private"]}
    if "twin" in lost:
        headline |= {
            "twin robust accuracy": accuracy["twin"],
            "cost": accuracy["difference"],
            "excess lost": lost["difference"],
        }
    return headline


def _radius(value: float, norm: str) -> str:
    """`8/255` where the radius is a whole number of grey levels, else its digits."""
    levels = 255 * value
    if norm == "linf" and value and abs(levels - round(levels)) < 1e-6:
        return f"{round(levels)}/255"
    return number(value) if value else "0"


def _tick_labels(radii: list[float], norm: str) -> list[str]:
    """Every radius has its tick; labels that would touch the next one are left out, the larger stays."""
    room = max(radii) / 7
    labels, last = [], math.inf
    for value in reversed(radii):
        labels.append(_radius(value, norm) if last - value >= room else "")
        last = value if labels[-1] else last
    return labels[::-1]


AUDIT = Audit("robustness", robustness, takes=TAKES, usual=True, classes=True)

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
