"""Over steps: loss, accuracy, calibration and gradients at states that were saved around a change of rule."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from noisewise.audits.calibration import BINS as ECE_BINS
from noisewise.audits.confidence import Answers, answers_of, calibration_error, equal_width, errors_of
from noisewise.audits.outputs import check_state, check_subject, logits, status_of
from noisewise.audits.people import owners
from noisewise.audits.result import INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import Bar, cell, dress
from noisewise.audits.states import (
    gradient_cloud,
    legend,
    length_of,
    losses_at,
    parameter_names,
    refuse_running_statistics,
    usual_loss,
)
from noisewise.errors import ConfigError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate, check_level
from noisewise.theory.zhu2023 import energy_asymmetry
from noisewise.wording import number, percent, points, points_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.data import Data
    from noisewise.losses import LossFn

TAKES = "Does not retrain; seconds."


@dataclass(frozen=True)
class State:
    """What was measured at one saved state."""

    step: int
    loss: Estimate
    accuracy: Estimate
    ece: float
    weight_norm: float
    asymmetry: float


@dataclass(frozen=True)
class Values:
    """All states in their order, the last one that the old rule made, and the last of all."""

    states: list[State]
    before: State
    after: State


@dataclass(frozen=True, kw_only=True)
class OverSteps(Result):
    """Loss, accuracy, calibration error, weight norm and asymmetry of gradients at saved states around a change of rule.

    headline: `loss after − before`, `accuracy after − before`, `calibration error after − before`: the last state
    against the last one that the old rule made.
    Reference: Bu et al. 2022 (switch from local to global clipping at the end of training).
    """

    kind: ClassVar[str] = "over-steps"
    title: ClassVar[str] = "Around a change of rule"

    values: Values

    @property
    def states(self) -> list[State]:
        """In the order of their steps."""
        return self.values.states

    def plot(self, ax: Axes) -> Axes:
        """Accuracy and calibration error in percent over the steps; the change of rule as a vertical line."""
        steps = [state.step for state in self.states]
        for values, label, colour, marker in (
            ([state.accuracy.value for state in self.states], "accuracy", PRIVATE, "o"),
            ([state.ece for state in self.states], "calibration error", TWIN, "D"),
        ):
            ax.plot(steps, [100 * v for v in values], f"-{marker}", color=colour, markersize=4, label=label)
        return self._dress(ax, "%")

    def plot_loss(self, ax: Axes) -> Axes:
        """Mean loss over the steps."""
        ax.plot(
            [state.step for state in self.states],
            [state.loss.value for state in self.states],
            "-o", color=PRIVATE, markersize=4, label="mean loss",
        )  # fmt: skip
        return self._dress(ax, "mean loss")

    def _dress(self, ax: Axes, label: str) -> Axes:
        ax.axvline(self.settings["change"], color=INK, linewidth=1, linestyle=":", label="change of rule")
        return legend(dress(ax, "step", label))

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
        before = self.values.before.loss.value
        share = loss.value / before if before else math.nan
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
                f"step {state.step:,}", cell(state.loss), percent(state.accuracy), f"{100 * state.ece:.1f} %",
                number(state.weight_norm), number(state.asymmetry),
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
    became global. The model's own weights are not used and not changed. Intervals of the changes are paired over people:
    t for the loss, Tango's for accuracy, and for the calibration error that of `calibration`'s excess ECE, the bootstrap of
    so many `resamples`, which errs on the wide side.
    If the run was not private, neither are its states: this cannot be seen from here. Does not retrain; seconds.
    """
    check_level(level)
    check_subject(data)
    generator = np.random.default_rng(0) if generator is None else generator
    loss_fn = usual_loss(loss_fn)
    ordered = sorted(states, key=lambda state: state[0])
    steps = [step for step, _ in ordered]
    if len(set(steps)) != len(steps):
        raise ConfigError(f"states at steps {steps}: each step may be there once only.")
    if not steps or not steps[0] <= change < steps[-1]:
        raise ConfigError(f"states at steps {steps}, change={change}: needs states both before and after the change.")
    refuse_running_statistics("the model", model)
    for step, state in ordered:
        check_state(f"the state of step {step:,}", state)
    scratch, owner = copy.deepcopy(model), owners(data)
    measured: list[State] = []
    outcomes: list[tuple[np.ndarray, Answers]] = []
    projection = int(generator.integers(1 << 32))  # the same rows and the same plane for every state
    with Bar(progress, len(ordered), "landscape") as tick:
        for step, state in ordered:
            losses = losses_at(scratch, state, data, loss_fn, tick)
            answers = _answers(scratch, data, step)
            outcomes.append((losses, answers))
            cloud = gradient_cloud(scratch, data, loss_fn, np.random.default_rng(projection))
            measured.append(
                State(
                    step=step,
                    loss=intervals.mean(losses, level, owner=owner),
                    accuracy=intervals.share(answers.hits, level, owner),
                    ece=calibration_error(answers.confidence, answers.hits, equal_width(answers.confidence, ECE_BINS)),
                    weight_norm=length_of(state, parameter_names(scratch)),
                    asymmetry=energy_asymmetry(cloud)[1],
                )
            )
    last = max(index for index, step in enumerate(steps) if step <= change)
    (losses_before, before), (losses_after, after) = outcomes[last], outcomes[-1]
    changes = {
        "loss after − before": intervals.mean_difference(losses_after, losses_before, level, owner),
        "accuracy after − before": intervals.share_difference(after.hits, before.hits, level, owner),
        "calibration error after − before": _ece_change(after, before, generator, resamples, level, progress),
    }
    return OverSteps(
        headline=changes,
        values=Values(states=measured, before=measured[last], after=measured[-1]),
        settings={
            "change": change, "rows": len(data), "people": data.units, "level": level, "resamples": resamples,
            "bins": ECE_BINS,
        },
        status=status_of(data, None),
    )  # fmt: skip


def _ece_change(
    after: Answers, before: Answers, generator: np.random.Generator, resamples: int, level: float, progress: bool
) -> Estimate:
    """Calibration error after - before, as `calibration` compares a model (here: after) with its twin (before)."""
    answers = {"private": after, "twin": before}
    binned = {"ECE": {which: (of, equal_width(of.confidence, ECE_BINS)) for which, of in answers.items()}}
    with Bar(progress, resamples * (1 + len(answers)), "resampling") as advance:
        errors, _ = errors_of(answers, binned, generator, level, resamples, advance)
    return errors["ECE"]["difference"]


def _answers(model: nn.Module, data: Data, step: int) -> Answers:
    """What the model says of every row; people are numbered from 0."""
    whose = owners(data)
    numbered = np.arange(len(data)) if whose is None else np.unique(whose, return_inverse=True)[1]
    return answers_of(logits(model, data), data.y, numbered, f"step {step:,}")
