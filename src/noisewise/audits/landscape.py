"""Landscape: how the loss runs between models, how far they moved, and how their gradients are spread.

`landscape` looks at finished models; `over_steps` at states that were saved around a change of rule.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from noisewise.audits.audit import Audit
from noisewise.audits.calibration import BINS as ECE_BINS
from noisewise.audits.confidence import calibration_error, equal_width
from noisewise.audits.outputs import device_of, evaluating, logits, row_losses, status_of
from noisewise.audits.result import INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import Bar, cell, dress
from noisewise.errors import ConfigError, DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate
from noisewise.wording import fixed, number, percent, points, points_interval
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.data import Data
    from noisewise.persample import LossFn

POINTS, DIRECTIONS, FLIPS, BINS, ROWS, CLOUD = 30, 100, 199, 30, 2000, 500
STEEP = 3.0  # times the loss at the start of a random direction
TAKES = "Does not retrain; about 400 evaluations of at most 2,000 rows: seconds to minutes."
COLOURS = {"private": PRIVATE, "twin": TWIN, "start": INK}
STYLES = ("-", "--", ":", "-.")


class Instability(NamedTuple):
    """How far the loss on a segment rises above its ends."""

    instability: Estimate
    barrier: Estimate
    losses: list[float]


@dataclass(frozen=True, kw_only=True)
class Landscape(Result):
    """The loss on segments between models, against random directions of the same length; norms and gradients.

    headline: the mean `gradient norm` of a row, and for the first pair of models `instability`, which is
    `max_a E((1-a) w0 + a w1) - (E(w0) + E(w1))/2`, `barrier` (the same above the line between the ends) and `steep random
    directions`: the share of random directions of the segment's length at whose end the loss is above three times its
    value at w0.
    Guarantee: intervals of instability and barrier hold for all points of the segment together (t over rows, Bonferroni);
    they speak of the sampled rows' population, for these weights.
    Reference: Frankle et al. 2020, arXiv:1912.05671 (instability); Watson et al. 2023 (random directions, norms);
    Zhu et al. 2023 (deviations); Székely, Rizzo 2013 (energy distance).
    """

    kind: ClassVar[str] = "landscape"
    title: ClassVar[str] = "The landscape around the model"

    @property
    def segments(self) -> dict[str, dict[str, Any]]:
        """`"private to twin"` and so on: `at`, `losses`, `instability`, `barrier`, `length`, `random`."""
        return self.values["segments"]

    @property
    def norms(self) -> dict[str, dict[str, Any]]:
        """For each model `from_origin`, `from_start`, `growth` (norm over the start's) and `layers` (their norms)."""
        return self.values["norms"]

    @property
    def symmetry(self) -> dict[str, dict[str, float]]:
        """For each model the `distance` and `asymmetry` of `energy_asymmetry` and the `p_value` of symmetry."""
        return self.values["symmetry"]

    def plot(self, ax: Axes) -> Axes:
        """Loss along each segment, and the range of losses at the ends of random directions as a bar at the right."""
        places = [1.15 + 0.05 * index for index in range(len(self.segments))]  # right of the last tick, "1"
        for index, (name, segment) in enumerate(self.segments.items()):
            style, colour = STYLES[index % len(STYLES)], (PRIVATE, TWIN, INK)[index % 3]
            ax.plot(segment["at"], segment["losses"], style, color=colour, linewidth=1.8, label=name)
            if segment["random"]:
                low, middle, high = np.quantile(segment["random"]["losses"], [0.05, 0.5, 0.95])
                place = places[index]
                ax.plot([place, place], [low, high], color=colour, linewidth=1.8)
                ax.plot([place], [middle], "s", color=colour, markersize=5)
        ax.set_xticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "¼", "½", "¾", "1"])
        if any(segment["random"] for segment in self.segments.values()):
            ax.set_xticks([*ax.get_xticks(), float(np.mean(places))], labels=["0", "¼", "½", "¾", "1", "random"])
        everything = [loss for s in self.segments.values() for loss in s["losses"]]
        everything += [loss for s in self.segments.values() for loss in s["random"].get("losses", [])]
        if min(everything) > 0 and max(everything) > 20 * min(everything):
            ax.set_yscale("log")
        return _legend(dress(ax, "from the first model (0) to the second (1)", "mean loss"))

    def plot_histogram(self, ax: Axes, *, of: str) -> Axes:
        """Histograms of `weights` or of gradient norms (`gradients`), one outline per model."""
        for name, histogram in self.values["histograms"][of].items():
            ax.stairs(histogram["shares"], histogram["edges"], color=COLOURS[name], linewidth=1.8, label=name)
        if of == "gradients":
            ax.set_xscale("log")
        across = {"weights": "weight", "gradients": "norm of one row's gradient (log scale)"}[of]
        return _legend(dress(ax, across, "share"))

    def figures(self) -> list[Figure]:
        """Segments with random directions; histograms of weights and of gradient norms."""
        caption = "Loss between models; bars at the right: ends of random directions of the same length (5 to 95 %)"
        found = [Figure(caption, f"{caption}. {' '.join(self.sentences())}", self.plot, 8)] if self.segments else []
        for of, words in (("weights", "Weights"), ("gradients", "Norms of the gradients of single rows")):
            medians = "; ".join(
                f"{name}: median {number(h['median'])}" for name, h in self.values["histograms"][of].items()
            )
            found.append(Figure(words, f"{words}. {medians}.", partial(self.plot_histogram, of=of), 8))
        return found

    def sentences(self) -> list[str]:
        """What lies between the models; whether random directions are steeper; norms; symmetry of gradients."""
        said = []
        for name, segment in self.segments.items():
            e = segment["instability"]
            above = number(segment["barrier"].value) if segment["barrier"].value > 0 else "nowhere"
            said.append(
                f"From {name} the loss is at most {number(max(segment['losses']))}, {number(e.value)} above the mean of the "
                f"ends ({level_of(e)} interval {number(e.low)} to {number(e.high)}) and {above} above the line between them; "
                f"they are {number(segment['length'])} apart."
            )
            if segment["random"]:
                steep, share = segment["random"]["steep"], segment["random"]["above_segment"]
                said.append(
                    f"Of {steep.n} random directions of that length {round(steep.value * steep.n)} end above "
                    f"{self.settings['steep']:g} times the first model's loss, {round(share.value * share.n)} above "
                    f"everything on the segment; the largest cosine of two of them is {number(segment['random']['closest'])}."
                )
        for name, norms in self.norms.items():
            moved = ""
            if "from_start" in norms and name != "start":
                moved = (
                    f", {number(norms['from_start'])} from its start ({fixed(norms['growth'])} times the start's norm)"
                )
            said.append(f"The weights of {name} have norm {number(norms['from_origin'])}{moved}.")
        for name, found in self.symmetry.items():
            verdict = "not symmetric" if found["p_value"] <= 0.05 else "symmetric as far as this test can tell"
            said.append(
                f"Deviations of the gradients of {name} from their mean are {verdict} (asymmetry "
                f"{number(found['asymmetry'])} of 1, p = {number(found['p_value'])})."
            )
        if self.settings["rows"] < self.settings["of_rows"]:
            said.append(f"Measured on {self.settings['rows']:,} of {self.settings['of_rows']:,} rows, drawn at random.")
        return said

    def tables(self) -> list[Table]:
        """Segments, norms and symmetry."""
        segments = [
            [
                name,
                number(segment["length"]),
                number(segment["losses"][0]),
                number(max(segment["losses"])),
                number(segment["losses"][-1]),
                cell(segment["instability"]),
                cell(segment["barrier"]),
                percent(segment["random"]["steep"]) if segment["random"] else "–",
            ]
            for name, segment in self.segments.items()
        ]
        norms = [
            [
                name,
                number(of["from_origin"]),
                number(of.get("from_start")),
                number(of.get("growth")),
                number(self.values["histograms"]["gradients"][name]["median"]),
                number(self.symmetry[name]["asymmetry"]),
                number(self.symmetry[name]["p_value"]),
            ]
            for name, of in self.norms.items()
        ]
        level = f"{100 * self.settings['level']:.4g} % intervals"
        found = []
        if segments:
            columns = ["", "length", "loss at first", "highest", "at second", "instability", "barrier", "random steep"]
            found.append(Table(f"Segments between models, {level}", columns, segments))
        columns = ["", "weight norm", "from start", "growth", "median gradient norm", "asymmetry", "p"]
        return [*found, Table("Norms and gradients", columns, norms)]


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
    generator = np.random.default_rng(0) if generator is None else generator
    loss_fn = _default_loss() if loss_fn is None else loss_fn
    if type(points) is not int or points < 3:
        raise ConfigError(f"points={points!r}: a segment needs at least 3, its ends and one between.")
    if type(directions) is not int or directions < 0:
        raise ConfigError(f"directions={directions!r}: must be a whole number >= 0.")
    if len(data) < 2:
        raise DataError(f"{len(data)} rows: intervals need at least two.")
    models = {"private": model, "twin": twin, "start": start}
    given = {name: given for name, given in models.items() if given is not None}
    for name, candidate in given.items():
        _refuse_running_statistics(name, candidate)
    part = _some(data, rows, generator)
    scratch = copy.deepcopy(model)
    pairs = [pair for pair in (("private", "twin"), ("start", "private"), ("start", "twin")) if set(pair) <= set(given)]
    segments: dict[str, Any] = {}
    with Bar(progress, len(pairs) * (points + directions), "landscape") as step:
        for first, second in pairs:
            ends = (given[first].state_dict(), given[second].state_dict())
            at = np.linspace(0, 1, points)
            columns = [_row_losses(scratch, interpolated(*ends, float(a)), part, loss_fn, step) for a in at]
            found = instability(np.stack(columns), at, level)
            length = _distance(*ends, _names(model))
            random = _random(scratch, ends[0], length, found, part, loss_fn, directions, generator, level, step)
            segments[f"{first} to {second}"] = {
                "at": at.tolist(), "losses": found.losses, "instability": found.instability, "barrier": found.barrier,
                "length": length, "random": random,
            }  # fmt: skip
    gradients = {name: _gradient_norms(candidate, part, loss_fn) for name, candidate in given.items()}
    weights = {name: _flat(candidate.state_dict(), _names(candidate)) for name, candidate in given.items()}
    symmetry = {name: _symmetry(candidate, part, loss_fn, generator) for name, candidate in given.items()}
    norms = {name: _norms(candidate, start) for name, candidate in given.items()}
    headline = {"gradient norm": intervals.mean(gradients["private"], level, floor=0.0)}
    if pairs:
        first_segment = next(iter(segments.values()))
        headline |= {name: first_segment[name] for name in ("instability", "barrier")}
        if first_segment["random"]:
            headline["steep random directions"] = first_segment["random"]["steep"]
    return Landscape(
        headline=headline,
        values={
            "segments": segments,
            "norms": norms,
            "histograms": {"weights": _histograms(weights), "gradients": _histograms(gradients, log=True)},
            "symmetry": symmetry,
        },
        settings={
            "rows": len(part), "of_rows": len(data), "points": points, "directions": directions, "steep": STEEP,
            "flips": FLIPS, "level": level, "buffers": "interpolated", "formula": "max_a E_a - (E_0 + E_1)/2",
        },
        status=status_of(data, twin),
    )  # fmt: skip


def instability(losses: np.ndarray, at: np.ndarray, level: float = LEVEL) -> Instability:
    """`max_a E_a - (E_0 + E_1)/2` and `max_a E_a - (1-a) E_0 - a E_1`, from losses `[points, rows]` on a segment.

    Guarantee: both intervals allow for the choice of the highest point (paired t over rows, Bonferroni over points).
    Reference: Frankle et al. 2020, arXiv:1912.05671, section 2.
    """
    single = intervals.each(level, len(at))
    middle = (losses[0] + losses[-1]) / 2
    lines = np.outer(1 - at, losses[0]) + np.outer(at, losses[-1])
    above_mean = [intervals.mean_difference(of, middle, single) for of in losses]
    above_line = [intervals.mean_difference(of, line, single) for of, line in zip(losses, lines, strict=True)]
    return Instability(
        intervals.largest(above_mean, level), intervals.largest(above_line, level), losses.mean(1).tolist()
    )


def interpolated(first: Mapping[str, Tensor], second: Mapping[str, Tensor], a: float) -> dict[str, Tensor]:
    """`(1-a) first + a second` of two state dicts; what is no real number must be equal in both."""
    if {k: v.shape for k, v in first.items()} != {k: v.shape for k, v in second.items()}:
        raise ConfigError("the models have different parameters: there is no segment between two architectures.")
    found = {}
    for name, mine in first.items():
        other = second[name].to(mine.device)
        if mine.is_floating_point() or mine.is_complex():
            found[name] = mine if a == 0 else other if a == 1 else (1 - a) * mine + a * other
        elif bool((mine == other).all()):
            found[name] = mine
        else:
            raise ConfigError(f"{name} holds whole numbers that differ between the models: it cannot be interpolated.")
    return found


def energy_asymmetry(cloud: np.ndarray) -> tuple[float, float]:
    """Energy distance between a cloud `[n, d]` and its mirror image -cloud, and its share of the largest possible.

    `D^2 = 2 E|X + Y| - 2 E|X - Y|` with X, Y drawn from the cloud; `asymmetry = D^2 / (2 E|X + Y|)` is in [0, 1] and does
    not change with the cloud's scale. D = 0 exactly for a cloud that is its own mirror image.
    Reference: Székely, Rizzo 2013, Journal of Statistical Planning and Inference 143:1249.
    """
    sums, gaps = _mean_distance(cloud, -cloud), _mean_distance(cloud, cloud)
    squared = max(2 * (sums - gaps), 0.0)
    return math.sqrt(squared), squared / (2 * sums) if sums > 0 else 0.0


def symmetry_p_value(cloud: np.ndarray, generator: np.random.Generator, flips: int = FLIPS) -> float:
    """P-value of symmetry about the centre: `(1 + #{D(flipped) >= D}) / (1 + flips)`.

    A symmetric cloud looks the same after every point is mirrored with probability 1/2. Deviation from an exact test: the
    centre is the sample's mean, so each flipped cloud is centred again, and the level holds for many points only.
    """
    centred = cloud - cloud.mean(0)
    observed = energy_asymmetry(centred)[0]
    as_large = 0
    for _ in range(flips):
        flipped = centred * generator.choice([-1.0, 1.0], size=(len(centred), 1))
        as_large += energy_asymmetry(flipped - flipped.mean(0))[0] >= observed * (1 - 1e-12)
    return (1 + as_large) / (1 + flips)


def projected_gradients(
    model: nn.Module, batch: Any, loss_fn: LossFn, generator: np.random.Generator, dimensions: int = 2
) -> np.ndarray:
    """`R^T g_i` for every unit, R Gaussian `[parameters, dimensions]` with columns of expected length 1.

    No gradient of a single unit is formed: `<g_i, r>` is the derivative by v_i of `<grad sum_i v_i loss_i, r>`.
    """
    import torch

    live = [p for p in model.parameters() if p.requires_grad]
    scale = 1 / math.sqrt(sum(p.numel() for p in live))
    with evaluating(model), torch.enable_grad():
        losses = loss_fn(model, batch)
        weights = torch.ones_like(losses, requires_grad=True)
        grads = torch.autograd.grad(losses, live, weights, create_graph=True, allow_unused=True)
        columns = []
        for _ in range(dimensions):
            total = losses.new_zeros(())
            for parameter, grad in zip(live, grads, strict=True):
                direction = generator.standard_normal(parameter.shape) * scale  # drawn for all, so order never matters
                if grad is not None:
                    total = total + (grad * torch.as_tensor(direction).to(grad)).sum()
            columns.append(torch.autograd.grad(total, weights, retain_graph=True)[0].detach().cpu().double().numpy())
    return np.stack(columns, 1)


@dataclass(frozen=True, kw_only=True)
class OverSteps(Result):
    """Loss, accuracy, calibration error, weight norm and asymmetry of gradients at saved states around a change of rule.

    headline: `loss after − before`, `accuracy after − before`, `calibration error after − before`: the last state
    against the last one that the old rule made.
    Reference: Bu et al. 2022 (switch from local to global clipping at the end of training).
    """

    kind: ClassVar[str] = "over-steps"
    title: ClassVar[str] = "Around a change of rule"

    @property
    def states(self) -> list[dict[str, Any]]:
        """For each state `step`, `loss`, `accuracy`, `ece`, `weight_norm`, `asymmetry`."""
        return self.values["states"]

    def plot(self, ax: Axes) -> Axes:
        """Accuracy and calibration error in percent over the steps; the change of rule as a vertical line."""
        steps = [state["step"] for state in self.states]
        for key, label, colour, marker in (
            ("accuracy", "accuracy", PRIVATE, "o"),
            ("ece", "calibration error", TWIN, "D"),
        ):
            values = [state[key].value if key == "accuracy" else state[key] for state in self.states]
            ax.plot(steps, [100 * v for v in values], f"-{marker}", color=colour, markersize=4, label=label)
        return self._dress(ax, "%")

    def plot_loss(self, ax: Axes) -> Axes:
        """Mean loss over the steps."""
        ax.plot(
            [state["step"] for state in self.states],
            [state["loss"].value for state in self.states],
            "-o", color=PRIVATE, markersize=4, label="mean loss",
        )  # fmt: skip
        return self._dress(ax, "mean loss")

    def _dress(self, ax: Axes, label: str) -> Axes:
        ax.axvline(self.settings["change"], color=INK, linewidth=1, linestyle=":", label="change of rule")
        return _legend(dress(ax, "step", label))

    def figures(self) -> list[Figure]:
        """Accuracy with calibration error, and loss."""
        words = " ".join(self.sentences())
        return [
            Figure("Accuracy and calibration error over the steps", words, self.plot, 8),
            Figure("Loss over the steps", words, self.plot_loss, 8),
        ]

    def sentences(self) -> list[str]:
        """What the change of rule changed."""
        loss, right, wrong = (
            self.headline[f"{name} after − before"] for name in ("loss", "accuracy", "calibration error")
        )
        before = self.values["before"]
        share = loss.value / before["loss"].value if before["loss"].value else math.nan
        return [
            f"After step {self.settings['change']:,} the loss changed by {number(loss.value)} ({number(100 * share)} %, "
            f"interval {number(loss.low)} to {number(loss.high)}).",
            f"Accuracy changed by {points(right)} points (interval {points_interval(right)}), the calibration error by "
            f"{points(wrong)} points (interval {points_interval(wrong)}).",
        ]

    def tables(self) -> list[Table]:
        """All states."""
        rows = [
            [
                f"step {state['step']:,}", cell(state["loss"]), percent(state["accuracy"]), f"{100 * state['ece']:.1f} %",
                number(state["weight_norm"]), number(state["asymmetry"]),
            ]
            for state in self.states
        ]  # fmt: skip
        columns = ["", "loss", "accuracy", "calibration error", "weight norm", "asymmetry"]
        return [Table(f"Saved states; the rule changed after step {self.settings['change']:,}", columns, rows)]


def over_steps(
    model: nn.Module,
    data: Data,
    states: Sequence[tuple[int, Mapping[str, Tensor]]],
    *,
    change: int,
    loss_fn: LossFn | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    level: float = LEVEL,
    resamples: int = 500,
) -> OverSteps:
    """Loss, accuracy, calibration error (15 bins), weight norm and gradients' asymmetry of a classifier at saved states.

    `states` are `(step, state_dict)` of one run; `change` is the last step that the old rule made, e.g. where local clipping
    became global. The model's own weights are not used and not changed. Intervals of the changes are paired over rows:
    t for the loss, Tango's for accuracy, the basic bootstrap's (`resamples`) for the calibration error.
    If the run was not private, neither are its states: this cannot be seen from here. Does not retrain; seconds.
    """
    generator = np.random.default_rng(0) if generator is None else generator
    loss_fn = _default_loss() if loss_fn is None else loss_fn
    ordered = sorted(states, key=lambda state: state[0])
    steps = [step for step, _ in ordered]
    if len(set(steps)) != len(steps):
        raise ConfigError(f"states at steps {steps}: each step may be there once only.")
    if not steps or not steps[0] <= change < steps[-1]:
        raise ConfigError(f"states at steps {steps}, change={change}: needs states both before and after the change.")
    _refuse_running_statistics("the model", model)
    scratch, rows, found = copy.deepcopy(model), [], []
    projection = int(generator.integers(1 << 32))  # the same rows and the same plane for every state
    with Bar(progress, len(ordered), "landscape") as tick:
        for step, state in ordered:
            losses = _row_losses(scratch, state, data, loss_fn, tick)
            sure, hits = _confidences(scratch, data)
            found.append((losses, sure, hits))
            rows.append({
                "step": step, "loss": intervals.mean(losses, level), "accuracy": intervals.share(hits, level),
                "ece": _ece(sure, hits), "weight_norm": _length(state, _names(scratch)),
                "asymmetry": energy_asymmetry(_cloud(scratch, data, loss_fn, np.random.default_rng(projection)))[1],
            })  # fmt: skip
    last = max(index for index, step in enumerate(steps) if step <= change)
    before, after = found[last], found[-1]
    changes = {
        "loss after − before": intervals.mean_difference(after[0], before[0], level),
        "accuracy after − before": intervals.share_difference(after[2], before[2], level),
        "calibration error after − before": _ece_change(after[1:], before[1:], generator, resamples, level),
    }
    return OverSteps(
        headline=changes,
        values={"states": rows, "before": rows[last], "after": rows[-1]},
        settings={"change": change, "rows": len(data), "level": level, "resamples": resamples, "bins": ECE_BINS},
        status=status_of(data, None),
    )


def _ece(confidence: np.ndarray, hits: np.ndarray) -> float:
    return calibration_error(confidence, hits, equal_width(confidence, ECE_BINS))


def _ece_change(after: Any, before: Any, generator: np.random.Generator, resamples: int, level: float) -> Estimate:
    value = _ece(*after) - _ece(*before)
    n = len(after[0])
    drawn = []
    for _ in range(resamples):
        index = generator.integers(n, size=n)
        again = [_ece(sure[index], hits[index]) for sure, hits in (after, before)]
        drawn.append(again[0] - again[1])
    tails = np.quantile(drawn, [(1 + level) / 2, (1 - level) / 2])
    low, high = (2 * value - float(tail) for tail in tails)  # resampling adds to both errors: reflect it at the value
    return Estimate(value, min(low, value), max(high, value), n, level, "paired basic bootstrap")


def _confidences(model: nn.Module, data: Data) -> tuple[np.ndarray, np.ndarray]:
    found = logits(model, data).softmax(1)
    sure, said = found.max(1)
    return sure.numpy(), (said == data.y).numpy()


def _default_loss() -> LossFn:
    from noisewise.testing.modelcheck import default_loss

    return default_loss


def _refuse_running_statistics(name: str, model: nn.Module) -> None:
    for path, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None:
            raise ConfigError(
                f"{name}: layer {path or type(module).__name__!r} keeps running statistics, which mean nothing between two "
                "models. Use GroupNorm: noisewise.models.convert.batchnorm_to_groupnorm(model)."
            )


def _some(data: Data, rows: int, generator: np.random.Generator) -> Data:
    import torch

    if len(data) <= rows:
        return data
    return data.take(torch.from_numpy(np.sort(generator.choice(len(data), rows, replace=False))))


def _row_losses(
    scratch: nn.Module, state: Mapping[str, Tensor], data: Data, loss_fn: LossFn, step: Callable[[], None]
) -> np.ndarray:
    """One loss per row with other weights; the scratch model keeps them."""
    _load(scratch, state)
    found = row_losses(scratch, data, loss_fn)
    step()
    return found.numpy()


def _load(scratch: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Parameters by their first name only, so that a tied one is not overwritten under its second; buffers."""
    import torch

    buffers = {name: buffer for name, buffer in scratch.named_buffers() if name in state}
    own = {**dict(scratch.named_parameters()), **buffers}
    wrong = [name for name, mine in own.items() if name not in state or state[name].shape != mine.shape]
    if wrong:
        raise ConfigError(f"a saved state does not fit the model: {wrong[0]} is missing or has another shape.")
    with torch.no_grad():
        for name, mine in own.items():
            mine.copy_(state[name])


def _random(
    scratch: nn.Module,
    origin: Mapping[str, Tensor],
    length: float,
    found: Instability,
    data: Data,
    loss_fn: LossFn,
    directions: int,
    generator: np.random.Generator,
    level: float,
    step: Callable[[], None],
) -> dict[str, Any]:
    """Losses at the ends of random directions, and how many are steep or above the whole segment."""
    if not directions or not length:
        return {}
    learning = [name for name, parameter in scratch.named_parameters() if parameter.requires_grad]
    names = learning or _names(scratch)  # nothing learns in a model that was frozen after training
    drawn = [np.random.default_rng(seed) for seed in generator.integers(1 << 63, size=directions)]
    again = copy.deepcopy(drawn)  # to draw the same directions piece by piece, since all at once may be large
    ends = [
        float(_row_losses(scratch, moved(origin, names, length, each), data, loss_fn, step).mean()) for each in drawn
    ]
    losses = np.array(ends)
    return {
        "closest": largest_cosine(sum(origin[name].numel() for name in names), again),
        "losses": ends,
        "steep": intervals.share(losses > STEEP * found.losses[0], level),
        "above_segment": intervals.share(losses > max(found.losses), level),
    }


def largest_cosine(size: int, generators: Sequence[np.random.Generator], chunk: int = 1 << 16) -> float | None:
    """Largest cosine of two of the Gaussian directions that `moved` draws from these generators; None for a single one.

    Reference: Watson et al. 2023 state it for their 100 random directions.
    """
    count = len(generators)
    products = np.zeros((count, count))
    for first in range(0, size, chunk):
        pieces = np.stack([generator.standard_normal(min(chunk, size - first)) for generator in generators])
        products += pieces @ pieces.T
    lengths = np.sqrt(np.diag(products))
    cosines = (products / np.outer(lengths, lengths))[np.triu_indices(count, 1)]
    return float(cosines.max()) if len(cosines) else None


def moved(
    state: Mapping[str, Tensor], names: Sequence[str], length: float, generator: np.random.Generator
) -> dict[str, Tensor]:
    """`state + length u/||u||` for one Gaussian u over the named parameters."""
    import torch

    steps = {name: generator.standard_normal(state[name].shape) for name in names}
    norm = math.sqrt(sum(float((step**2).sum()) for step in steps.values()))
    return {
        name: tensor + torch.as_tensor(steps[name] * (length / norm)).to(tensor) if name in steps else tensor
        for name, tensor in state.items()
    }


def _names(model: nn.Module) -> list[str]:
    """Each parameter once, also if it has several names."""
    return [name for name, _ in model.named_parameters()]


def _flat(state: Mapping[str, Tensor], names: Sequence[str]) -> np.ndarray:
    return np.concatenate([state[name].detach().double().cpu().numpy().ravel() for name in names])


def _length(state: Mapping[str, Tensor], names: Sequence[str]) -> float:
    return float(np.linalg.norm(_flat(state, names)))


def _distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor], names: Sequence[str]) -> float:
    return float(np.linalg.norm(_flat(first, names) - _flat(second, names)))


def _norms(model: nn.Module, start: nn.Module | None) -> dict[str, Any]:
    names, state = _names(model), model.state_dict()
    found: dict[str, Any] = {
        "from_origin": _length(state, names),
        "layers": {name: _length(state, [name]) for name in names},
    }
    if start is not None:
        begun = _length(start.state_dict(), names)
        found |= {"from_start": _distance(state, start.state_dict(), names)}
        found |= {"growth": found["from_origin"] / begun} if begun > 0 else {}
    return found


def _gradient_norms(model: nn.Module, data: Data, loss_fn: LossFn) -> np.ndarray:
    """Norm of every row's gradient."""
    from noisewise.clipping import Flat
    from noisewise.persample import clipped_sum
    from noisewise.runtime import Runtime

    device = device_of(model)
    with evaluating(model):
        batch = (data.x.to(device), data.y.to(device))
        norms = clipped_sum(model, loss_fn, batch, Flat(1.0), runtime=Runtime(microbatch=256)).norms
    return norms[0].double().cpu().numpy()


def _symmetry(model: nn.Module, data: Data, loss_fn: LossFn, generator: np.random.Generator) -> dict[str, float]:
    cloud = _cloud(model, data, loss_fn, generator)
    distance, asymmetry = energy_asymmetry(cloud)
    p_value = symmetry_p_value(cloud, generator)
    return {"distance": distance, "asymmetry": asymmetry, "p_value": p_value, "rows": len(cloud)}


def _cloud(model: nn.Module, data: Data, loss_fn: LossFn, generator: np.random.Generator) -> np.ndarray:
    """Deviations of gradients from their mean in a random plane; of at most 500 rows, since pairs are compared."""
    part = _some(data, CLOUD, generator)
    device = device_of(model)
    cloud = projected_gradients(model, (part.x.to(device), part.y.to(device)), loss_fn, generator)
    return cloud - cloud.mean(0)


def _mean_distance(first: np.ndarray, second: np.ndarray) -> float:
    from scipy.spatial.distance import cdist

    return float(cdist(first, second).mean())


def _histograms(columns: Mapping[str, np.ndarray], *, log: bool = False) -> dict[str, Any]:
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
        name: {
            "edges": edges.tolist(),
            "shares": (np.histogram(np.clip(column, edges[0], edges[-1]), edges)[0] / len(column)).tolist(),
            "median": float(np.median(column)),
            "mean": float(column.mean()),
        }
        for name, column in columns.items()
    }


def _legend(ax: Axes) -> Axes:
    ax.legend(frameon=False, labelcolor=INK, fontsize="small")
    return ax


AUDIT = Audit("landscape", landscape, takes=TAKES, needs=("start", "loss_fn"))
