"""Epsilon of one step of the engine, measured, beside its exact value mu = 1/sigma.

A lower bound: above the claim is proof of a fault, below it proves nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from noisewise.attacks.canaries import built_in, canary_of, play
from noisewise.attacks.distinguishing import Errors, best_threshold, discriminant, epsilon_of, mu_bounds
from noisewise.audits.audit import Audit
from noisewise.audits.result import INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import Bar, dress, name_rows
from noisewise.clipping import Flat
from noisewise.errors import ConfigError
from noisewise.estimates.estimate import Estimate, check_level
from noisewise.losses import cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.runs.folder import Status
from noisewise.sampling import FullBatch
from noisewise.wording import at_least, at_most, fixed, number
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import nn

    from noisewise.attacks.canaries import Engine
    from noisewise.data import Data
    from noisewise.losses import LossFn
    from noisewise.mechanism import Mechanism

TAKES = (
    "Does not retrain; seconds on the built-in model, under a minute on a small image model (trials= sets the time)."
)
CERTAIN = 0.999  # an engine is called faulty at this confidence
DELTA = 1e-5  # without a run, whose delta is taken: one release has no number of units to derive it from
STATISTICS = {
    "step": "the release of the canary's step along the canary's direction",
    "difference": "that release minus the next one, which the canary is not in",
    "discriminant": "the weighting of both releases that told the first half of the trials apart best",
}


@dataclass(frozen=True)
class Statistic:
    """What one statistic proves: mu and epsilon, whether it `exceeds` the claim, and the errors of its test."""

    mu: Estimate
    epsilon: Estimate
    exceeds: bool
    errors: Errors


@dataclass(frozen=True)
class Values:
    """Every statistic by name, and the mu that is claimed."""

    statistics: dict[str, Statistic]
    mu: float


@dataclass(frozen=True, kw_only=True)
class EngineEpsilon(Result):
    """What one release gives away, against its exact value mu = 1/sigma.

    headline: `empirical epsilon`, the best of all statistics, its lower end at 99.9 % after allowing for the choice;
    `claimed epsilon`, of one full-batch release (PLD). values: `statistics`, each with mu, epsilon and `exceeds`.
    Guarantee: of a right engine the lower end exceeds the claim in at most one audit of a thousand.
    Reference: Nasr et al. 2023, arXiv:2302.07956.
    """

    kind: ClassVar[str] = "engine-epsilon"
    title: ClassVar[str] = "What one noisy gradient gives away"

    values: Values

    @property
    def claimed(self) -> float:
        """Epsilon of one release by the accountant."""
        return self.headline["claimed epsilon"].value

    @property
    def exceeds(self) -> bool:
        """Is it proven that the engine gives away more than it claims?"""
        return bool(self.found_by)

    @property
    def found_by(self) -> list[str]:
        """The statistics that prove a fault."""
        return [name for name, statistic in self.values.statistics.items() if statistic.exceeds]

    @property
    def share(self) -> float:
        """Proven part of the claimed epsilon; all of it where nothing is claimed, at a large delta, and nothing proven."""
        proven = self.headline["empirical epsilon"].low
        return proven / self.claimed if self.claimed else math.inf if proven else 1.0

    def plot(self, ax: Axes) -> Axes:
        """Interval of each statistic's epsilon, and the claim as a line."""
        statistics = self.values.statistics
        ends = [e for s in statistics.values() for e in (s.epsilon.high, s.epsilon.value) if math.isfinite(e)]
        edge = 1.1 * max([self.claimed, *ends]) or 1.0
        for row, statistic in enumerate(reversed(statistics.values())):
            estimate, colour = statistic.epsilon, TWIN if statistic.exceeds else PRIVATE
            ax.plot([estimate.low, min(estimate.high, edge)], [row, row], color=colour, linewidth=1.8, zorder=2)
            ax.plot([estimate.value], [row], "o", color=colour, markersize=6, zorder=3)
            ax.plot([estimate.low], [row], "|", color=colour, markersize=12, markeredgewidth=2, zorder=3)
        ax.axvline(self.claimed, color=INK, linewidth=1)
        ax.annotate(
            "claimed",
            (self.claimed, len(statistics) - 0.45),
            ha="center",
            va="bottom",
            color=INK,
            annotation_clip=False,
        )
        name_rows(ax, reversed(statistics))
        ax.set_xlim(0, edge)
        return dress(ax, f"epsilon of one release at delta {at_most(self.settings['delta'])}")

    def figures(self) -> list[Figure]:
        """One row for each statistic."""
        caption = "Measured epsilon of one release by statistic, with the claimed value; the bar is what is proven"
        return [Figure(caption, f"{caption}. {' '.join(self.sentences())}", self.plot, len(self.values.statistics))]

    def sentences(self) -> list[str]:
        """Claim and measurement; the fault and who found it; what was asked how often."""
        best = self.headline["empirical epsilon"]
        part = f", {100 * self.share:.0f} % of that" if self.claimed else ""
        sentences = [
            f"One release with noise multiplier {number(self.settings['noise_multiplier'])} claims epsilon "
            f"{at_most(self.claimed)} at delta {at_most(self.settings['delta'])}; an adversary who sees it is proven to get "
            f"{at_least(best.low)} ({level_of(best)} confidence){part}."
        ]
        if self.exceeds:
            sentences.append(
                f"That is more than claimed: the engine is faulty. Found by: {', '.join(self.found_by)}. Do not publish "
                "what it trained."
            )
        else:
            sentences.append("Nothing exceeds the claim.")
        sentences.append(
            f"{self.settings['trials']:,} trials of two steps on {self.settings['target']}; sampling is not part of it."
        )
        return sentences

    def tables(self) -> list[Table]:
        """Every statistic."""
        level = level_of(self.headline["empirical epsilon"])
        rows = [
            [
                name,
                f"{fixed(s.mu.value)} ({fixed(s.mu.low)}, {fixed(s.mu.high)})",
                f"{fixed(s.epsilon.value)} ({fixed(s.epsilon.low)}, {fixed(s.epsilon.high)})",
                fixed(self.claimed),
                "exceeded" if s.exceeds else "kept",
            ]
            for name, s in self.values.statistics.items()
        ]
        caption = f"Measured mu and epsilon of one release, {level} intervals that hold together"
        return [Table(caption, ["statistic", "mu", "epsilon", "claimed epsilon", "the claim is"], rows)]


def engine_epsilon(
    model: nn.Module | None = None,
    data: Data | None = None,
    *,
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    mechanism: Mechanism | None = None,
    loss_fn: LossFn | None = None,
    trials: int | None = None,
    units: int = 2,
    delta: float = DELTA,
    level: float = CERTAIN,
    engine: Engine | None = None,
) -> EngineEpsilon:
    """Epsilon of one release of the engine, measured over many steps with and without a canary.

    Each trial takes two steps of a full batch with `private_step`, the first with or without the canary (a fair coin), the
    second without it: a unit with a large gradient of known direction u. `<release, u/|u|>` is `N(0, (sigma C)^2)`
    without and `N(C, (sigma C)^2)` with it, so mu = 1/sigma is exact. Thresholds (and weights) are fixed on the first half
    of the trials, errors counted on the second. A canary that is left out is there with a loss of weight 0.
    Guarantee: see `EngineEpsilon`; it covers clipping, noise and accounting of a step, not sampling or composition.
    Reference: Nasr et al. 2023, arXiv:2302.07956. Deviation: several statistics, Bonferroni over them.

    Args:
        model: whose engine rules are asked (a copy of it, in evaluation mode); None for a built-in linear model with 256
            canaries in orthogonal directions, which makes 256 trials of one.
        data: `units` rows of it make the batch; its first drawn row is the canary. Not needed for the built-in model.
        twin: not used; nothing depends on trained weights.
        generator: makes coins and noise reproducible; without it the noise is the operating system's.
        progress: show a bar.
        mechanism: gives clip, noise (of step 0) and support; `Flat(1.0)` and noise multiplier 1 if left out. Rules per layer
            and masks name parameters, so they need the model that they were made for.
        loss_fn: `(model, (x, y)) -> [batch]`; cross-entropy by default.
        trials: 100,000 on the built-in model, 4,000 on yours.
        units: size of the batch on your model, the canary included.
        delta: of the epsilons shown.
        level: confidence of a fault.
        engine: what takes the step, `private_step` if left out; anything with its first five arguments.

    Does not retrain; seconds on the built-in model, under a minute on a small image model.
    """
    from noisewise.training.step import private_step

    check_level(level)
    if (model is None) != (data is None):
        raise ConfigError("engine_epsilon: give both a model and data for it, or neither for the built-in model.")
    rng = np.random.default_rng() if generator is None else generator
    given = mechanism or Mechanism(sampler=FullBatch(1), clip=Flat(1.0), noise_multiplier=1.0, steps=1)
    clip, sigma = given.clip_at(0), given.noise_at(0)
    if sigma == 0:
        raise ConfigError("noise_multiplier=0: nothing is claimed, so nothing can be exceeded. Use a value above 0.")
    trials = (100_000 if model is None else 4_000) if trials is None else trials
    if type(trials) is not int or trials < 100:
        raise ConfigError(f"trials={trials!r}: must be a whole number of at least 100; 4,000 and more prove something.")
    if model is None or data is None:
        target = built_in(clip)
    else:
        target = canary_of(model, data, loss_fn or cross_entropy, units, clip, rng)
    plan = replace(
        given,
        sampler=FullBatch(len(target.weights)),
        clip=clip,
        noise_multiplier=sigma,
        steps=2,
        adjacency="add-remove",
        unit="row",
    )
    claimed = replace(plan, steps=1).epsilon(delta)
    assert claimed is not None
    releases = -(-trials // len(target.canaries))
    with Bar(progress, releases, "steps of the engine") as advance:
        coins, seen = play(target, plan, releases, rng, generator is not None, engine or private_step, advance)
    mu = 1 / (plan.joint_noise_multiplier or sigma)
    statistics = _statistics(coins, seen, mu, delta, level)
    best = max((statistic.epsilon for statistic in statistics.values()), key=lambda e: e.low)
    n = len(coins)
    return EngineEpsilon(
        headline={
            "empirical epsilon": replace(best, level=level),
            "claimed epsilon": Estimate(claimed, claimed, claimed, n, level, "PLD"),
        },
        values=Values(statistics=statistics, mu=mu),
        settings={
            "noise_multiplier": sigma,
            "clip": repr(clip),
            "sensitivity": clip.sensitivity,
            "delta": delta,
            "level": level,
            "trials": n,
            "canaries": len(target.canaries),
            "target": target.words,
            "statistics": dict(STATISTICS),
        },
        status=_engine_status(data),
    )


def _engine_status(data: Data | None) -> Status:
    if data is None or data.public:
        return Status("private", "measured on made-up or public units")
    return Status("not-private", "steps on records that are not public: no ledger covers them")


def _statistics(coins: np.ndarray, seen: np.ndarray, mu: float, delta: float, level: float) -> dict[str, Statistic]:
    """Each statistic's mu and epsilon from the second half of the trials, and whether it exceeds the claim."""
    each = 1 - (1 - level) / len(STATISTICS)
    half = len(coins) // 2
    inside, first = coins == 1, np.arange(len(coins)) < half
    if min((inside & first).sum(), (~inside & first).sum(), (inside & ~first).sum(), (~inside & ~first).sum()) < 2:
        raise ConfigError(f"{len(coins)} trials are too few: make more.")
    scores = {
        "step": seen[0],
        "difference": seen[0] - seen[1],
        "discriminant": discriminant(seen[:, inside & first], seen[:, ~inside & first]) @ seen,
    }
    statistics = {}
    for name, score in scores.items():
        threshold = best_threshold(score[inside & first], score[~inside & first], each)
        errors = Errors.counted(score[inside & ~first], score[~inside & ~first], threshold)
        value, low, high = (max(bound, 0.0) for bound in mu_bounds(errors, each))
        value_eps, low_eps, high_eps = (epsilon_of(bound, delta) for bound in (value, low, high))
        n, method = errors.inside + errors.outside, "threshold test, Clopper-Pearson, Bonferroni"
        statistics[name] = Statistic(
            mu=Estimate(value, low, high, n, level, method),
            epsilon=Estimate(value_eps, low_eps, high_eps, n, level, method),
            exceeds=low > mu,
            errors=errors,
        )
    return statistics


AUDIT = Audit(
    "engine-epsilon",
    engine_epsilon,
    takes=TAKES,
    needs=("mechanism", "loss_fn", "delta"),
    usual=True,
    twin=False,
    model=False,
)
