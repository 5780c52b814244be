"""Epsilon of a whole training run, measured, beside what the accountant claims.

A lower bound: above the claim is proof of a fault, below it proves nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from noisewise.accounting.defaults import default_delta
from noisewise.attacks.canaries import canary_loss, check_canaries, scores_of, with_canaries
from noisewise.attacks.distinguishing import guess
from noisewise.audits.outputs import check_subject
from noisewise.audits.result import INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import dress
from noisewise.errors import DataError
from noisewise.estimates.estimate import LEVEL, Estimate, check_level
from noisewise.losses import cross_entropy
from noisewise.runs.folder import Status
from noisewise.wording import at_least, at_most, fixed
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from torch import nn

    from noisewise.data import Data
    from noisewise.losses import LossFn
    from noisewise.mechanism import Mechanism

    MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

TAKES = "Trains once more, with canaries among the records: as long as training takes."


@dataclass(frozen=True)
class Values:
    """Canaries `tested`, `guesses` at them and how many were right; how many had scores between `edges`, `in` and `out`."""

    tested: int
    guesses: int
    guessed_in: int
    guessed_out: int
    right: int
    edges: list[float]
    scores: dict[str, list[int]]


@dataclass(frozen=True, kw_only=True)
class OneRun(Result):
    """A lower bound on a training run's epsilon, from one run with many canaries.

    headline: `lower bound`, `claimed epsilon`. values: right guesses, histograms of the canaries' scores.
    Guarantee: the bound exceeds the true epsilon in at most 1 - level of all audits. Reference: Steinke, Nasr, Jagielski
    2023, arXiv:2305.08846.
    """

    kind: ClassVar[str] = "one-run-epsilon"
    title: ClassVar[str] = "What one training run gives away"

    values: Values

    @property
    def claimed(self) -> float:
        """Epsilon of the run by the accountant."""
        return self.headline["claimed epsilon"].value

    @property
    def exceeds(self) -> bool:
        """Did the run give away more than it claims?"""
        return self.headline["lower bound"].low > self.claimed

    def plot(self, ax: Axes) -> Axes:
        """How strongly the model shows canaries that were in and that were not."""
        edges = np.asarray(self.values.edges)
        for name, colour, filled in (("in", PRIVATE, True), ("out", TWIN, False)):
            ax.stairs(
                self.values.scores[name],
                edges,
                color=colour,
                fill=filled,
                alpha=0.45 if filled else 1.0,
                linewidth=1.8,
                label=f"canaries that were {name}",
            )
        ax.set_ylim(0, 1.3 * max(max(counts) for counts in self.values.scores.values()))  # room for the legend
        ax.legend(frameon=False, labelcolor=INK, loc="upper right")
        return dress(ax, "how strongly the model shows the canary (score)", "canaries", grid="y")

    def figures(self) -> list[Figure]:
        """Both histograms."""
        caption = (
            "Scores of canaries that were trained on and that were not: the more they overlap, the less is given away"
        )
        return [Figure(caption, f"{caption}. {' '.join(self.sentences())}", self.plot, 6)]

    def sentences(self) -> list[str]:
        """Bound and claim; the guesses behind it."""
        bound, values, settings = self.headline["lower bound"], self.values, self.settings
        sentences = [
            f"Of {values.tested:,} canaries ({settings['canary']}) the adversary guessed {values.guesses:,} and was "
            f"right about {values.right:,} whether they were trained on: epsilon is at least {at_least(bound.low)} "
            f"({level_of(bound)} confidence). The run claims {at_most(self.claimed)} at delta {at_most(settings['delta'])}."
        ]
        sentences.append(
            f"That is more than claimed, which is chance in at most {100 * (1 - bound.level):.3g} % of such audits: something "
            "is wrong with this run. Do not publish what it trained."
            if self.exceeds
            else "Nothing exceeds the claim; a single run cannot show much more."
        )
        if settings["canary"] != "gradient":
            sentences.append(
                f"Canaries that are {settings['canary']} are weak ones: that they find little is no sign of privacy."
            )
        return sentences

    def tables(self) -> list[Table]:
        """The counts behind the bound."""
        bound, values = self.headline["lower bound"], self.values
        rows = [
            ["canaries", f"{self.settings['canaries']:,}"],
            ["for choosing how many to guess", f"{self.settings['canaries'] - values.tested:,}"],
            ["tested", f"{values.tested:,}"],
            ["guessed in / out", f"{values.guessed_in:,} / {values.guessed_out:,}"],
            ["right", f"{values.right:,}"],
            [f"epsilon at least ({level_of(bound)})", fixed(bound.low)],
            ["epsilon claimed", fixed(self.claimed)],
        ]
        return [Table("The one-run audit in numbers", ["", "value"], rows)]


def one_run(
    model: nn.Module,
    data: Data,
    *,
    mechanism: Mechanism,
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    canaries: int = 1000,
    canary: str = "gradient",
    loss_fn: LossFn | None = None,
    optimizer: MakeOptimizer | None = None,
    delta: float | None = None,
    level: float = LEVEL,
    trainer: Callable[..., Any] | None = None,
) -> OneRun:
    """Train once with canaries in place of some units, each in by a fair coin, and guess from the model which were in.

    The canaries with the highest scores are guessed in, those with the lowest out; how many is chosen on one half of them,
    the bound comes from the other half (`one_run_p_value`). A canary that is out has a loss of weight 0, so the number of
    units, the batches and the claimed epsilon are exactly those of `mechanism` (rules that ask questions are refused).
    Guarantee: see `OneRun`.
    Reference: Steinke, Nasr, Jagielski 2023, arXiv:2305.08846. Deviation: Dirac canaries live in coordinates of their own,
    one more parameter of the copy that is trained (one for each block of a per-layer rule), so that no other record's
    gradient is in their way.

    Args:
        model: where training starts; a copy is trained.
        data: the training part, `mechanism.sampler.n` rows; the canaries take the place of some of them.
        mechanism: the plan that is audited.
        twin: not used.
        generator: makes everything reproducible, the noise too; without it coins and noise are fresh.
        progress: show training's bar.
        canaries: how many, at most as many as rows; more prove more.
        canary: "gradient" (each moves one coordinate of its own, as far as the bound allows), "mislabelled" (a row with a
            wrong label) or "blank" (an empty input with one bright entry, a different one for each). The latter two have
            been seen to find leaks of linear models without noise; with noise they prove little.
        loss_fn: `(model, (x, y)) -> [batch]`; cross-entropy by default.
        optimizer: makes one from parameters; SGD with learning rate 0.5 by default.
        delta: of the claim; the training default for n units if left out.
        level: confidence of the bound.
        trainer: what trains, `noisewise.training.loop` if left out; anything with its arguments.

    Trains once more: as long as training takes. What it trained is not to be kept: it has canaries in it.
    """
    import torch

    from noisewise.training.loop import train

    check_level(level)
    check_subject(data, private=model)
    rng = np.random.default_rng() if generator is None else generator
    delta = default_delta(mechanism.sampler.n) if delta is None else delta
    check_canaries(data, mechanism, canaries, canary)
    rows = torch.from_numpy(rng.permutation(len(data))[:canaries])
    coins = rng.integers(0, 2, canaries).astype(bool)
    audited = copy.deepcopy(model)
    units = with_canaries(data, rows, coins, canary, rng)
    claimed = mechanism.epsilon(delta)
    loss, mechanism = canary_loss(audited, loss_fn or cross_entropy, canary, canaries, mechanism)
    assert claimed is not None
    before = scores_of(audited, loss, units, rows)
    (trainer or train)(
        audited,
        units,
        loss,
        mechanism,
        (optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.5)))(audited.parameters()),
        delta=delta,
        insecure_seed=None if generator is None else int(rng.integers(2**62)),
        progress=progress,
    )
    scores = before - scores_of(audited, loss, units, rows)
    if not np.isfinite(scores).all():
        raise DataError("training with canaries ended in numbers that are not finite: lower the learning rate.")
    best = guess(scores, coins, delta, level)
    edges = np.linspace(scores.min(), max(scores.max(), scores.min() + 1e-12), 31)
    return OneRun(
        headline={
            "lower bound": Estimate(best.bound, best.bound, math.inf, best.tested, level, "one-run audit"),
            "claimed epsilon": Estimate(claimed, claimed, claimed, best.tested, level, "PLD"),
        },
        values=Values(
            tested=best.tested,
            guesses=best.guessed_in + best.guessed_out,
            guessed_in=best.guessed_in,
            guessed_out=best.guessed_out,
            right=best.right,
            edges=edges.tolist(),
            scores={
                name: np.histogram(scores[which], edges)[0].tolist() for name, which in (("in", coins), ("out", ~coins))
            },
        ),
        settings={
            "canaries": canaries,
            "canary": canary,
            "delta": delta,
            "level": level,
            "steps": mechanism.steps,
            "n": mechanism.sampler.n,
        },
        status=Status("private", "trained on public data and made-up canaries")
        if data.public
        else Status("not-private", "a training run of its own on the records: no ledger covers it"),
    )
