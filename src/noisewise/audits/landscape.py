"""Landscape: how the loss runs between models, how far they moved, and how their gradients are spread."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from noisewise._moved import old_names
from noisewise.audits.audit import Audit
from noisewise.audits.outputs import check_subject, device_of, evaluating, status_of
from noisewise.audits.people import owners
from noisewise.audits.result import INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import Bar, cell, dress
from noisewise.audits.states import (
    cloud_rows,
    distance,
    flat,
    gradient_cloud,
    interpolated,
    legend,
    length_of,
    losses_at,
    moved,
    parameter_names,
    refuse_running_statistics,
    some_rows,
    usual_loss,
)
from noisewise.clipping import Flat
from noisewise.errors import ConfigError, DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate, check_level
from noisewise.runtime import Runtime
from noisewise.theory.watson2023 import STEEP, Instability, instability, largest_cosine
from noisewise.theory.zhu2023 import FLIPS, energy_asymmetry, symmetry_p_value
from noisewise.wording import fixed, number, percent
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.data import Data
    from noisewise.losses import LossFn

POINTS, DIRECTIONS, BINS, ROWS = 30, 100, 30, 2000
TAKES = "Does not retrain; about 400 evaluations of at most 2,000 rows: seconds to minutes."
COLOURS = {"private": PRIVATE, "twin": TWIN, "start": INK}
STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class RandomDirections:
    """Ends of random directions of a segment's length.

    closest: the largest cosine of two directions, None for a single one; losses: at the ends; steep: share of ends above
    `STEEP` times the loss at the start; above_segment: share of ends above everything on the segment.
    """

    closest: float | None
    losses: list[float]
    steep: Estimate
    above_segment: Estimate


@dataclass(frozen=True)
class NoDirections:
    """None was gone."""


@dataclass(frozen=True)
class Segment:
    """Mean losses at equally spaced points from one model (0) to another (1), and random directions of its length."""

    at: list[float]
    losses: list[float]
    instability: Estimate
    barrier: Estimate
    length: float
    random: RandomDirections | NoDirections


@dataclass(frozen=True)
class Norms:
    """Norm of a model's weights, of each layer's; with a start the way from it, and the norm over the start's."""

    from_origin: float
    layers: dict[str, float]
    from_start: float | None = field(default=None, metadata={"absent": True})
    growth: float | None = field(default=None, metadata={"absent": True})


@dataclass(frozen=True)
class Histogram:
    """Shares in bins."""

    edges: list[float]
    shares: list[float]
    median: float
    mean: float


@dataclass(frozen=True)
class Histograms:
    """Of the weights and of the norms of single rows' gradients, for each model."""

    weights: dict[str, Histogram]
    gradients: dict[str, Histogram]


@dataclass(frozen=True)
class Symmetry:
    """`energy_asymmetry` of the gradients' deviations and the p-value of symmetry (by person), of so many rows."""

    distance: float
    asymmetry: float
    p_value: float
    rows: int


@dataclass(frozen=True)
class Values:
    """Segments by name (`private to twin`); norms, histograms and symmetry by model."""

    segments: dict[str, Segment]
    norms: dict[str, Norms]
    histograms: Histograms
    symmetry: dict[str, Symmetry]


@dataclass(frozen=True, kw_only=True)
class Landscape(Result):
    """The loss on segments between models, against random directions of the same length; norms and gradients.

    headline: the mean `gradient norm` of a row, and for the first pair of models `instability`, which is
    `max_a E((1-a) w0 + a w1) - (E(w0) + E(w1))/2`, `barrier` (the same above the line between the ends) and `steep random
    directions`: the share of random directions of the segment's length at whose end the loss is above three times its
    value at w0.
    Guarantee: intervals of instability and barrier hold for all points of the segment together (t over people, Bonferroni);
    they speak of the population of the people whose rows were sampled, for these weights.
    Reference: Frankle et al. 2020, arXiv:1912.05671 (instability); Watson et al. 2023 (random directions, norms);
    Zhu et al. 2023 (deviations); Székely, Rizzo 2013 (energy distance).
    """

    kind: ClassVar[str] = "landscape"
    title: ClassVar[str] = "The landscape around the model"

    values: Values

    @property
    def segments(self) -> dict[str, Segment]:
        """`"private to twin"` and so on."""
        return self.values.segments

    @property
    def norms(self) -> dict[str, Norms]:
        """For each model."""
        return self.values.norms

    @property
    def symmetry(self) -> dict[str, Symmetry]:
        """For each model."""
        return self.values.symmetry

    def plot(self, ax: Axes) -> Axes:
        """Loss along each segment, and the range of losses at the ends of random directions as a bar at the right."""
        places = [1.15 + 0.05 * index for index in range(len(self.segments))]  # right of the last tick, "1"
        everything: list[float] = []
        some_random = False
        for index, (name, segment) in enumerate(self.segments.items()):
            style, colour = STYLES[index % len(STYLES)], (PRIVATE, TWIN, INK)[index % 3]
            ax.plot(segment.at, segment.losses, style, color=colour, linewidth=1.8, label=name)
            everything += segment.losses
            if isinstance(segment.random, RandomDirections):
                some_random = True
                everything += segment.random.losses
                low, middle, high = np.quantile(segment.random.losses, [0.05, 0.5, 0.95])
                place = places[index]
                ax.plot([place, place], [low, high], color=colour, linewidth=1.8)
                ax.plot([place], [middle], "s", color=colour, markersize=5)
        ax.set_xticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "¼", "½", "¾", "1"])
        if some_random:
            ax.set_xticks([*ax.get_xticks(), float(np.mean(places))], labels=["0", "¼", "½", "¾", "1", "random"])
        if min(everything) > 0 and max(everything) > 20 * min(everything):
            ax.set_yscale("log")
        return legend(dress(ax, "from the first model (0) to the second (1)", "mean loss"))

    def plot_histogram(self, ax: Axes, *, of: str) -> Axes:
        """Histograms of `weights` or of gradient norms (`gradients`), one outline per model."""
        for name, histogram in self._histograms(of).items():
            ax.stairs(histogram.shares, histogram.edges, color=COLOURS[name], linewidth=1.8, label=name)
        if of == "gradients":
            ax.set_xscale("log")
        across = {"weights": "weight", "gradients": "norm of one row's gradient (log scale)"}[of]
        return legend(dress(ax, across, "share"))

    def _histograms(self, of: str) -> dict[str, Histogram]:
        return {"weights": self.values.histograms.weights, "gradients": self.values.histograms.gradients}[of]

    def figures(self) -> list[Figure]:
        """Segments with random directions; histograms of weights and of gradient norms."""
        caption = "Loss between models; bars at the right: ends of random directions of the same length (5 to 95 %)"
        drawn = [Figure(caption, f"{caption}. {' '.join(self.sentences())}", self.plot, 8)] if self.segments else []
        for of, words in (("weights", "Weights"), ("gradients", "Norms of the gradients of single rows")):
            medians = "; ".join(
                f"{name}: median {number(histogram.median)}" for name, histogram in self._histograms(of).items()
            )
            drawn.append(Figure(words, f"{words}. {medians}.", partial(self.plot_histogram, of=of), 8))
        return drawn

    def sentences(self) -> list[str]:
        """What lies between the models; whether random directions are steeper; norms; symmetry of gradients."""
        lines = []
        for name, segment in self.segments.items():
            e = segment.instability
            above = number(segment.barrier.value) if segment.barrier.value > 0 else "nowhere"
            lines.append(
                f"From {name} the loss is at most {number(max(segment.losses))}, {number(e.value)} above the mean of the "
                f"ends ({level_of(e)} interval {number(e.low)} to {number(e.high)}) and {above} above the line between them; "
                f"they are {number(segment.length)} apart."
            )
            if isinstance(segment.random, RandomDirections):
                steep, share = segment.random.steep, segment.random.above_segment
                lines.append(
                    f"Of {steep.n} random directions of that length {round(steep.value * steep.n)} end above "
                    f"{self.settings['steep']:g} times the first model's loss, {round(share.value * share.n)} above "
                    f"everything on the segment; the largest cosine of two of them is {number(segment.random.closest)}."
                )
        for name, norms in self.norms.items():
            way = "" if norms.from_start is None or name == "start" else f", {number(norms.from_start)} from its start"
            if way and norms.growth is not None:
                way += f" ({fixed(norms.growth)} times the start's norm)"
            lines.append(f"The weights of {name} have norm {number(norms.from_origin)}{way}.")
        for name, symmetry in self.symmetry.items():
            verdict = "not symmetric" if symmetry.p_value <= 0.05 else "symmetric as far as this test can tell"
            lines.append(
                f"Deviations of the gradients of {name} from their mean are {verdict} (asymmetry "
                f"{number(symmetry.asymmetry)} of 1, p = {number(symmetry.p_value)})."
            )
        if self.settings["rows"] < self.settings["of_rows"]:
            lines.append(
                f"Measured on {self.settings['rows']:,} of {self.settings['of_rows']:,} rows, drawn at random."
            )
        return lines

    def tables(self) -> list[Table]:
        """Segments, norms and symmetry."""
        segments = [
            [
                name,
                number(segment.length),
                number(segment.losses[0]),
                number(max(segment.losses)),
                number(segment.losses[-1]),
                cell(segment.instability),
                cell(segment.barrier),
                percent(segment.random.steep) if isinstance(segment.random, RandomDirections) else "–",
            ]
            for name, segment in self.segments.items()
        ]
        norms = [
            [
                name,
                number(norms.from_origin),
                number(norms.from_start),
                number(norms.growth),
                number(self.values.histograms.gradients[name].median),
                number(self.symmetry[name].asymmetry),
                number(self.symmetry[name].p_value),
            ]
            for name, norms in self.norms.items()
        ]
        level = f"{100 * self.settings['level']:.4g} % intervals"
        shown = []
        if segments:
            columns = ["", "length", "loss at first", "highest", "at second", "instability", "barrier", "random steep"]
            shown.append(Table(f"Segments between models, {level}", columns, segments))
        columns = ["", "weight norm", "from start", "growth", "median gradient norm", "asymmetry", "p"]
        return [*shown, Table("Norms and gradients", columns, norms)]


def landscape(
    model: nn.Module,
    data: Data,
    *,
    twin: nn.Module | None = None,
    start: nn.Module | None = None,
    loss_fn: LossFn | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    points: int = POINTS,
    directions: int = DIRECTIONS,
    rows: int = ROWS,
    level: float = LEVEL,
) -> Landscape:
    """The loss on the segments between the model, its twin and their start; norms; spread of gradients.

    `E_a = loss((1-a) w0 + a w1)` at `points` equally spaced a in [0, 1], and `loss(w0 + ||w1 - w0|| u/||u||)` for
    `directions` Gaussian u (parameters that learn), against `STEEP` times the loss at w0.

    Args:
        model: the private model.
        data: at most `rows` of it are used, drawn by `generator`; the result says how many.
        twin: its non-private twin, of the same architecture.
        start: the model that both started from (its weights are public).
        loss_fn: `(model, batch) -> [batch]`; cross-entropy or squared error by default.
        generator: draws rows, directions, projections and flips; a fixed one by default.
        progress: show a bar.
        points: of a segment.
        directions: random ones, 0 for none.
        rows: most rows that are used.
        level: of the intervals.

    Models are evaluated on a copy, in evaluation mode; layers with running statistics are refused (an interpolated mean is
    no mean of anything), other buffers of real numbers are interpolated like weights, others must be equal.
    Does not retrain; about 400 evaluations of at most 2,000 rows: seconds to minutes.
    """
    check_level(level)
    check_subject(data, private=model, twin=twin, start=start)
    generator = np.random.default_rng(0) if generator is None else generator
    loss_fn = usual_loss(loss_fn)
    if type(points) is not int or points < 3:
        raise ConfigError(f"points={points!r}: a segment needs at least 3, its ends and one between.")
    if type(directions) is not int or directions < 0:
        raise ConfigError(f"directions={directions!r}: must be a whole number >= 0.")
    if data.units < 2:
        one = "row" if data.unit is None else "person"
        raise DataError(f"1 {one}: intervals need at least two. Give a larger part of the data.")
    models = {"private": model, "twin": twin, "start": start}
    given = {name: candidate for name, candidate in models.items() if candidate is not None}
    for name, candidate in given.items():
        refuse_running_statistics(name, candidate)
    part = some_rows(data, rows, generator)
    owner = owners(part)
    scratch = copy.deepcopy(model)
    pairs = [pair for pair in (("private", "twin"), ("start", "private"), ("start", "twin")) if set(pair) <= set(given)]
    segments: dict[str, Segment] = {}
    with Bar(progress, len(pairs) * (points + directions), "landscape") as step:
        for first, second in pairs:
            ends = (given[first].state_dict(), given[second].state_dict())
            at = np.linspace(0, 1, points)
            columns = [losses_at(scratch, interpolated(*ends, float(a)), part, loss_fn, step) for a in at]
            between = instability(np.stack(columns), at, level, owner)
            length = distance(*ends, parameter_names(model))
            segments[f"{first} to {second}"] = Segment(
                at=at.tolist(),
                losses=between.losses,
                instability=between.instability,
                barrier=between.barrier,
                length=length,
                random=_random(scratch, ends[0], length, between, part, loss_fn, directions, generator, level, step),
            )
    gradients = {name: _gradient_norms(candidate, part, loss_fn) for name, candidate in given.items()}
    weights = {name: flat(candidate.state_dict(), parameter_names(candidate)) for name, candidate in given.items()}
    symmetry = {name: _symmetry(candidate, part, loss_fn, generator) for name, candidate in given.items()}
    norms = {name: _norms(candidate, start) for name, candidate in given.items()}
    headline = {"gradient norm": intervals.mean(gradients["private"], level, floor=0.0, owner=owner)}
    if pairs:
        leading = next(iter(segments.values()))
        headline |= {"instability": leading.instability, "barrier": leading.barrier}
        if isinstance(leading.random, RandomDirections):
            headline["steep random directions"] = leading.random.steep
    return Landscape(
        headline=headline,
        values=Values(segments, norms, Histograms(_histograms(weights), _histograms(gradients, log=True)), symmetry),
        settings={
            "rows": len(part), "of_rows": len(data), "people": part.units, "points": points, "directions": directions,
            "steep": STEEP, "flips": FLIPS, "level": level, "buffers": "interpolated", "formula": "max_a E_a - (E_0 + E_1)/2",
        },
        status=status_of(data, twin),
    )  # fmt: skip


def _random(
    scratch: nn.Module,
    origin: Mapping[str, Tensor],
    length: float,
    between: Instability,
    data: Data,
    loss_fn: LossFn,
    directions: int,
    generator: np.random.Generator,
    level: float,
    step: Callable[[], None],
) -> RandomDirections | NoDirections:
    """Losses at the ends of random directions, and how many are steep or above the whole segment."""
    if not directions or not length:
        return NoDirections()
    learning = [name for name, parameter in scratch.named_parameters() if parameter.requires_grad]
    names = learning or parameter_names(scratch)  # nothing learns in a model that was frozen after training
    drawn = [np.random.default_rng(seed) for seed in generator.integers(1 << 63, size=directions)]
    again = copy.deepcopy(drawn)  # to draw the same directions piece by piece, since all at once may be large
    ends = [float(losses_at(scratch, moved(origin, names, length, each), data, loss_fn, step).mean()) for each in drawn]
    losses = np.array(ends)
    return RandomDirections(
        closest=largest_cosine(sum(origin[name].numel() for name in names), again),
        losses=ends,
        steep=intervals.share(losses > STEEP * between.losses[0], level),
        above_segment=intervals.share(losses > max(between.losses), level),
    )


def _norms(model: nn.Module, start: nn.Module | None) -> Norms:
    names, state = parameter_names(model), model.state_dict()
    length, layers = length_of(state, names), {name: length_of(state, [name]) for name in names}
    if start is None:
        return Norms(length, layers)
    begun = length_of(start.state_dict(), names)
    return Norms(length, layers, distance(state, start.state_dict(), names), length / begun if begun > 0 else None)


def _gradient_norms(model: nn.Module, data: Data, loss_fn: LossFn) -> np.ndarray:
    """Norm of every row's gradient."""
    from noisewise.persample import clipped_sum

    device = device_of(model)
    with evaluating(model):
        batch = (data.x.to(device), data.y.to(device))
        norms = clipped_sum(model, loss_fn, batch, Flat(1.0), runtime=Runtime(microbatch=256)).norms
    return norms[0].double().cpu().numpy()


def _symmetry(model: nn.Module, data: Data, loss_fn: LossFn, generator: np.random.Generator) -> Symmetry:
    part = cloud_rows(data, generator)
    cloud = gradient_cloud(model, part, loss_fn, generator)
    apart, asymmetry = energy_asymmetry(cloud)
    return Symmetry(apart, asymmetry, symmetry_p_value(cloud, generator, owner=owners(part)), len(cloud))


def _histograms(columns: Mapping[str, np.ndarray], *, log: bool = False) -> dict[str, Histogram]:
    """Shares in common bins; what is beyond their ends (zeros on a logarithmic axis, 0.1 % of others) is in the last."""
    values = np.concatenate(list(columns.values()))
    if log:
        positive = values[values > 0]
        low, high = (positive.min(), positive.max()) if len(positive) else (0.1, 1.0)
        edges = np.geomspace(low * (1 - 1e-9), max(high, low * 1.01) * (1 + 1e-9), BINS + 1)
    else:
        reach = max(float(np.quantile(np.abs(values), 0.999)), 1e-12)
        edges = np.linspace(-reach, reach, BINS + 1)
    return {
        name: Histogram(
            edges=edges.tolist(),
            shares=(np.histogram(np.clip(column, edges[0], edges[-1]), edges)[0] / len(column)).tolist(),
            median=float(np.median(column)),
            mean=float(column.mean()),
        )
        for name, column in columns.items()
    }


AUDIT = Audit("landscape", landscape, takes=TAKES, needs=("start", "loss_fn"))

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
