"""Recorders: what clipping does while a model trains, written to the run's `sensitive/` folder and nowhere else.

    recorder = ClipRecorder("runs/a", data, mechanism, every=10, model=model, loss_fn=loss_fn, cosine_every=100)
    train(model, data, loss_fn, mechanism, optimizer, out="runs/a", recorders=[recorder])
    recording = read("runs/a")

Everything recorded is private: norms and factors of single steps are covered by no ledger.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.adaptive import Adaptive
from noisewise.audits.gradients import clipped_units, group_labels, layout_of, measure, partitions, rule_factors
from noisewise.audits.people import SMALLEST
from noisewise.audits.result import FAINT, INK, PRIVATE, TWIN, Figure
from noisewise.audits.show import dress
from noisewise.errors import ConfigError, DataError, RunError
from noisewise.mechanism import Mechanism
from noisewise.runs.files import write_atomically
from noisewise.runs.folder import RunFolder
from noisewise.schedule import at
from noisewise.support import Fixed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.clipping import Clip
    from noisewise.data import Data
    from noisewise.losses import LossFn
    from noisewise.mechanism import Mechanism
    from noisewise.persample import Layout
    from noisewise.schedule import Schedule
    from noisewise.support import Support
    from noisewise.training.step import Observation

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass
class ClipRecorder:
    """Appends a line per recorded step to `FOLDER/sensitive/recorders/NAME.jsonl`: who is clipped, and how much.

    A line holds the step, the number of units, the bound, the share that was clipped, the mean factor, quantiles of the
    norms (by block where there are several), the same by class and group, and every `cosine_every` steps the cosine of the
    clipped and the true sum of the batch.

    Guarantee: the run is the one without a recorder, bit for bit; a step that a resumed run does again replaces its line.
    Deviation: cosines are recomputed in evaluation mode (no dropout) and on the rows as they are (no augmentation).

    Args:
        folder: the run folder, the same as `out` of `train`.
        data: what is trained on; gives classes and groups. A person's are those of the first row.
        clip: the rule, a schedule of rules, or the whole mechanism.
        name: of the file.
        every: steps from one line to the next.
        model: the model that is trained, for cosines.
        loss_fn: its loss, for cosines.
        cosine_every: steps from one cosine to the next, a multiple of `every`; none by default.
    """

    folder: str | os.PathLike[str]
    data: Data
    clip: Clip | Schedule[Clip] | Mechanism
    name: str = "clipping"
    every: int = 1
    model: nn.Module | None = None
    loss_fn: LossFn | None = None
    cosine_every: int | None = None
    _last: int | None = field(default=None, init=False, repr=False)
    _layout: Layout | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Settings that fit each other."""
        for key, value in {"every": self.every, "cosine_every": self.cosine_every}.items():
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(f"{key}={value!r}: a whole number of steps above 0.")
        _check_name(self.name)
        if self.cosine_every is not None:
            if self.model is None or self.loss_fn is None:
                raise ConfigError("cosine_every= needs model= and loss_fn=: cosines are computed from gradients anew.")
            if self.cosine_every % self.every:
                raise ConfigError(f"cosine_every={self.cosine_every}: must be a multiple of every={self.every}.")
        self._rule(None, 0)
        self._parts = _large_parts(self.data)

    @property
    def path(self) -> Path:
        """Where the lines are."""
        return _path(self.folder, self.name)

    def __call__(self, observation: Observation) -> None:
        """Record a step; `train` calls this."""
        step = observation.step
        if self._last is None or step <= self._last:  # a run that begins or is taken up again
            _forget(self.path, step)
        self._last = step
        if step % self.every == 0:
            _append(self.path, self._line(observation))

    def _rule(self, observation: Observation | None, step: int) -> Clip:
        """The rule in force: what the step says, or what was planned."""
        observed = getattr(observation, "clip", None)
        if observed is not None:
            return observed
        planned = self.clip.clip if isinstance(self.clip, Mechanism) else self.clip
        rule: Clip = at(planned, step)
        if isinstance(rule, Adaptive) and observation is not None:
            raise ConfigError(
                f"{rule!r}: its bound moves during training, and a step does not say where it stands. Record runs with "
                "rules that are known in advance."
            )
        return rule

    def _support(self, observation: Observation) -> Support:
        """Which coordinates learn at this step."""
        observed = getattr(observation, "support", None)
        if observed is not None:
            return observed
        if not isinstance(self.clip, Mechanism):
            return {}
        if isinstance(self.clip.support, Fixed):
            return self.clip.support.support
        raise ConfigError(
            f"{self.clip.support!r} changes from step to step, and a step does not say which coordinates learn: record "
            "without cosine_every=."
        )

    def _line(self, observation: Observation) -> dict[str, Any]:
        step, units = observation.step, observation.units.cpu()
        norms = observation.norms[:, : len(units)].detach().cpu().double()  # what is behind them is padding
        rule = self._rule(observation, step)
        finite = norms.isfinite().all(0)
        line: dict[str, Any] = {"step": step, "units": len(units), "bound": rule.sensitivity}
        if not bool(finite.all()):
            line["not_finite"] = int((~finite).sum())
        units, norms = units[finite], norms[:, finite]
        if not len(units):
            return line
        labels = group_labels(rule, self.data, units)
        factors = rule_factors(rule, norms, labels)
        clipped = clipped_units(rule, norms, factors, labels).numpy()
        lengths = norms.square().sum(0).sqrt().numpy()
        shortened = (factors * norms).square().sum(0).sqrt().numpy()
        factor = np.divide(shortened, lengths, out=factors.mean(0).numpy(), where=lengths > 0)
        line |= {"clipped": float(clipped.mean()), "factor": float(factor.mean()), "norms": _quantiles(lengths)}
        if len(norms) > 1:
            line["blocks"] = [_quantiles(block.numpy()) for block in norms]
        line["parts"] = [
            {
                "by": by,
                "name": name,
                "n": int(inside.sum()),
                "clipped": float(clipped[inside].mean()),
                "factor": float(factor[inside].mean()),
                "norm": float(np.median(lengths[inside])),
            }
            for by, name, members in self._parts
            if (inside := members[units.numpy()]).any()
        ]
        if self.cosine_every is not None and step % self.cosine_every == 0:
            line |= self._directions(rule, units, self._support(observation))
        return line

    def _directions(self, rule: Clip, units: Tensor, support: Support) -> dict[str, Any]:
        """Cosine and R of the batch, taken for itself."""
        assert self.model is not None
        assert self.loss_fn is not None
        if self._layout is None:
            self._layout = layout_of(self.model, self.data, self.loss_fn)
        settings: dict[str, Any] = {"loss_fn": self.loss_fn, "clip": rule, "support": support, "layout": self._layout}
        try:
            measured = measure(self.model, self.data, units, **settings)
        except DataError as error:  # e.g. a mean of exactly 0, which has no direction
            return {"no_cosine": str(error)}
        lengths = float(measured.mean.norm() * measured.clipped.norm())
        if lengths == 0:
            return {"no_cosine": "the clipped sum is exactly 0"}
        return {"cosine": float(measured.mean @ measured.clipped) / lengths, "ratio": measured.moments.plain_ratio}


def _large_parts(data: Data) -> list[tuple[str, str, np.ndarray]]:
    """(column, name, which units) of each class and group that is large enough."""
    import torch

    large = []
    for by, parts in partitions(data, torch.arange(data.units)).items():
        for name, places in parts.items():
            if len(places) >= SMALLEST:
                members = np.zeros(data.units, dtype=bool)
                members[places] = True
                large.append((by, name, members))
    return large


def _quantiles(values: np.ndarray) -> list[float]:
    return [float(q) for q in np.quantile(values, QUANTILES)]


def _check_name(name: str) -> None:
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
        raise ConfigError(f"name={name!r}: letters, digits, - and _ only; it becomes a file name.")


def _path(folder: str | os.PathLike[str], name: str) -> Path:
    return RunFolder(folder).recorders / f"{name}.jsonl"


def _forget(path: Path, step: int) -> None:
    """Make the folder, and drop lines of this step and later ones, and a line that a kill cut short."""
    RunFolder(path.parent.parent.parent).create()
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.parent.chmod(0o700)
    except OSError as error:
        raise RunError(f"{path.parent} cannot be used ({error.strerror}): choose another folder.") from None
    if path.exists():
        kept = [json.dumps(line) for line in _lines(path) if line["step"] < step]
        write_atomically(path, "".join(f"{line}\n" for line in kept).encode())
        path.chmod(0o600)


def _append(path: Path, line: Mapping[str, Any]) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
    except OSError as error:
        raise RunError(
            f"{path.name} could not be written ({error.strerror}): free space or choose another folder, then resume."
        ) from error


def _lines(path: Path) -> list[dict[str, Any]]:
    """Lines of a recording; the last one may have been cut short by a kill, others are damage."""
    try:
        raw = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read ({error}): was the run made with a recorder of this name?") from None
    lines = []
    for place, text in enumerate(raw):
        try:
            line = json.loads(text)
            if type(line["step"]) is not int:
                raise TypeError(f"step {line['step']!r}")
            lines.append(line)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            if place == len(raw) - 1:
                continue
            raise RunError(f"{path}, line {place + 1}, is damaged ({error}): restore it, or record anew.") from None
    return lines


@dataclass(frozen=True)
class Recording:
    """The lines of a recorder, in the order of steps."""

    name: str
    lines: list[dict[str, Any]]

    @property
    def partitions(self) -> list[str]:
        """`class` and group columns that occur."""
        return list(dict.fromkeys(part["by"] for line in self.lines for part in line.get("parts", ())))

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of a line's entry, where it has one: `clipped`, `factor`, `bound`, `cosine`, `ratio`."""
        held = [(line["step"], line[key]) for line in self.lines if key in line]
        return [step for step, _ in held], [value for _, value in held]

    def part(self, by: str, name: str, key: str = "clipped") -> tuple[list[int], list[float], list[int]]:
        """Steps, values and numbers of units of a class or group: `clipped`, `factor`, `norm` (its median)."""
        held = [
            (line["step"], part[key], part["n"])
            for line in self.lines
            for part in line.get("parts", ())
            if (part["by"], part["name"]) == (by, name)
        ]
        return [each[0] for each in held], [each[1] for each in held], [each[2] for each in held]

    def names(self, by: str) -> list[str]:
        """Classes, or groups of a column, that occur."""
        unique = dict.fromkeys(p["name"] for line in self.lines for p in line.get("parts", ()) if p["by"] == by)
        return sorted(unique)

    def overall(self, by: str, name: str, key: str = "clipped") -> float:
        """Mean over all units that were ever recorded."""
        _, values, counts = self.part(by, name, key)
        return float(np.average(values, weights=counts))

    def plot(self, ax: Axes) -> Axes:
        """Quantiles of the norms over the steps, and the bound."""
        steps, norms = self.series("norms")
        bands = np.maximum(np.array(norms, dtype=float).reshape(len(steps), -1), 1e-12)
        if len(steps):
            for low, high, alpha in ((0, 4, 0.15), (1, 3, 0.3)):
                ax.fill_between(steps, bands[:, low], bands[:, high], color=PRIVATE, alpha=alpha, linewidth=0)
            ax.plot(steps, bands[:, 2], color=PRIVATE, linewidth=1.8, label="norms: median, 50 %, 90 %")
        ax.plot(*self.series("bound"), color=TWIN, linestyle="--", label="bound")
        ax.set_yscale("log")
        ax.legend(frameon=False, fontsize="small", labelcolor=INK)
        return dress(ax, "step", "gradient norm", grid="y")

    def plot_parts(self, ax: Axes, by: str = "class", key: str = "clipped", window: int = 1) -> Axes:
        """Share clipped (or `factor`) over the steps, means over `window` recorded steps: highest and lowest part in colour."""
        names = self.names(by)
        if not names:
            raise DataError(f"nothing is recorded by {by!r}; recorded are {self.partitions}.")
        ranked = sorted(names, key=lambda name: self.overall(by, name, key))
        for name in names:
            steps, values, counts = self.part(by, name, key)
            steps, smooth = _smoothed(steps, values, counts, window)
            colour = {ranked[-1]: TWIN, ranked[0]: PRIVATE}.get(name, FAINT)
            coloured = colour != FAINT
            ax.plot(steps, [100 * v for v in smooth], color=colour, linewidth=1.8 if coloured else 1.0, zorder=2 + coloured,
                    label=_plain(f"{by} {name}") if coloured else None)  # fmt: skip
        ax.set_ylim(-2, 102)
        ax.legend(frameon=False, fontsize="small", labelcolor=INK)
        return dress(ax, "step", {"clipped": "units clipped, %", "factor": "length kept, %"}[key], grid="y")

    def plot_cosine(self, ax: Axes) -> Axes:
        """Cosine of the clipped and the true sum of the batch."""
        steps, cosines = self.series("cosine")
        if not steps:
            raise DataError("no cosines were recorded: give the recorder model=, loss_fn= and cosine_every=.")
        ax.plot(steps, cosines, "o-", color=PRIVATE, markersize=4)
        ax.set_ylim(min(0.0, *cosines) - 0.03, 1.03)
        return dress(ax, "step", "cosine, clipped and true", grid="y")

    def figures(self) -> list[Figure]:
        """Norms, shares clipped by class and group, cosines."""
        steps, shares = self.series("clipped")
        if not steps:
            return []
        window = max(1, len(steps) // 40)
        words = f"{100 * shares[0]:.0f} % of the first step's units were clipped, {100 * shares[-1]:.0f} % of the last one's."
        figures = [Figure("Gradient norms during training, and the bound", words, self.plot, 8)]
        for by in self.partitions:
            words = "; ".join(f"{name}: {100 * self.overall(by, name):.1f} %" for name in self.names(by))
            caption = f"Who was clipped during training, by {by}: most and least in colour"
            draw = partial(self.plot_parts, by=by, window=window)
            figures.append(Figure(caption, f"{caption}. {words}.", draw, 8))
        steps, cosines = self.series("cosine")
        if steps:
            words = f"Cosine {cosines[0]:.2f} at first, {cosines[-1]:.2f} at last."
            figures.append(Figure("How far clipping turned the batches' sums", words, self.plot_cosine, 6))
        return figures


def read(folder: str | os.PathLike[str], name: str = "clipping") -> Recording:
    """What a recorder wrote in a run folder; a last line that a kill cut short is left out."""
    _check_name(name)
    lines = _lines(_path(folder, name))
    return Recording(name, sorted(lines, key=lambda line: line["step"]))


def _smoothed(
    steps: Sequence[int], values: Sequence[float], counts: Sequence[int], window: int
) -> tuple[list[int], list[float]]:
    """Means over runs of `window` lines, by units; each at its last step."""
    runs = range(0, len(steps), window)
    means = [float(np.average(values[i : i + window], weights=counts[i : i + window])) for i in runs]
    return [steps[min(i + window, len(steps)) - 1] for i in runs], means


def _plain(text: str) -> str:
    return text.replace("$", r"\$").lstrip("_")  # a name is a name: no formula, and not hidden from the legend
