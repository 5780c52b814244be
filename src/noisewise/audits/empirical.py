"""Empirical epsilon: how much an adversary really learns, measured, beside what the accountant claims.

Two questions. `engine_epsilon`: does one step of the engine keep to its exact value mu = 1/sigma? `one_run`: does a whole
training run stay below its epsilon? Both give lower bounds: above the claim is proof of a fault, below it proves nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from noisewise.accounting.defaults import default_delta
from noisewise.adaptive import Adaptive
from noisewise.audits.audit import Audit
from noisewise.audits.outputs import BATCH, device_of, evaluating
from noisewise.audits.result import INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import dress, name_rows, tracked
from noisewise.errors import ConfigError, DataError
from noisewise.estimates.estimate import LEVEL, Estimate
from noisewise.losses import LossFn, cross_entropy
from noisewise.runs.folder import Status
from noisewise.wording import fixed, number
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.batches import Nest
    from noisewise.clipping import Clip
    from noisewise.data import Data
    from noisewise.mechanism import Mechanism
    from noisewise.training.state import State

    Engine = Callable[[nn.Module, Nest, LossFn, torch.optim.Optimizer, State], None]
    MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

TAKES_ENGINE = (
    "Does not retrain; seconds on the built-in model, under a minute on a small image model (trials= sets the time)."
)
TAKES_ONE_RUN = "Trains once more, with canaries among the records: as long as training takes."
TAKES = f"engine_epsilon: {TAKES_ENGINE} one_run: {TAKES_ONE_RUN}"
CERTAIN = 0.999  # an engine is called faulty at this confidence
DELTA = 1e-5  # of the engine's audit: one release has no number of units to derive it from
BUILT_IN = 256  # canaries of the built-in model, each in a coordinate of its own
STATISTICS = {
    "step": "the release of the canary's step along the canary's direction",
    "difference": "that release minus the next one, which the canary is not in",
    "discriminant": "the weighting of both releases that told the first half of the trials apart best",
}
CANARIES = ("gradient", "mislabelled", "blank")
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # of the canaries that are guessed in, or out


# Bounds ----------------------------------------------------------------------------------------------------------------


def epsilon_of(mu: float, delta: float) -> float:
    """Epsilon at `delta` of distinguishing N(0, 1) from N(mu, 1), exactly.

    `delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)`.
    Reference: Balle, Wang 2018, arXiv:1805.06530, Theorem 8. Deviation: none.
    """
    import dp_accounting

    from noisewise.accounting import gdp_epsilon

    if mu <= 0:
        return 0.0
    if math.isinf(mu):
        return math.inf
    return gdp_epsilon([(dp_accounting.GaussianDpEvent(1 / mu), 1)], delta, "add-remove")[0] or 0.0


class Errors(NamedTuple):
    """Of a threshold test: `false_alarms` of `outside` trials without, `misses` of `inside` trials with the canary."""

    false_alarms: int
    outside: int
    misses: int
    inside: int

    @classmethod
    def counted(cls, inside: np.ndarray, outside: np.ndarray, threshold: float) -> Errors:
        """Above the threshold the test says: the canary was there."""
        return cls(int((outside > threshold).sum()), len(outside), int((inside <= threshold).sum()), len(inside))


def mu_bounds(errors: Errors, level: float) -> tuple[float, float, float]:
    """Estimate and ends of the mu that a test's errors imply: `mu = Phi^-1(1 - FPR) - Phi^-1(FNR)`.

    Guarantee: mu of the mechanism is above the lower end with probability `level`, whatever the statistic: it holds
    exactly (Clopper-Pearson, half of the error to each rate), and no test tells a mu-GDP mechanism's worlds apart better.
    The estimate counts half an error more, so that it is finite; the upper end says how far the *test* could go.
    Reference: Nasr et al. 2023, arXiv:2302.07956; Dong, Roth, Su 2019, arXiv:1905.02383. Deviation: none.
    """
    from scipy.stats import beta, norm

    each = 1 - (1 - level) / 2
    most, least, likely = [], [], []
    for wrong, trials in ((errors.false_alarms, errors.outside), (errors.misses, errors.inside)):
        if not trials:
            raise DataError("a test without trials on one side: make more trials.")
        most.append(float(beta.ppf(each, wrong + 1, trials - wrong)) if wrong < trials else 1.0)
        least.append(float(beta.ppf(1 - each, wrong, trials - wrong + 1)) if wrong else 0.0)
        likely.append((wrong + 0.5) / (trials + 1))
    value, low, high = (-float(norm.ppf(rates).sum()) for rates in (likely, most, least))
    return value, low, high


def best_threshold(inside: np.ndarray, outside: np.ndarray, level: float) -> float:
    """Threshold with the largest lower bound on mu on these trials; the middle one of several that are equally good."""
    from scipy.stats import beta, norm

    each = 1 - (1 - level) / 2
    candidates = np.quantile(np.concatenate([inside, outside]), np.linspace(0.005, 0.995, 199))
    inside, outside = np.sort(inside), np.sort(outside)
    alarms = len(outside) - np.searchsorted(outside, candidates, "right")
    misses = np.searchsorted(inside, candidates, "right")
    rates = (
        np.where(wrong < trials, beta.ppf(each, wrong + 1, np.maximum(trials - wrong, 1)), 1.0)
        for wrong, trials in ((alarms, len(outside)), (misses, len(inside)))
    )
    bounds = -sum(norm.ppf(rate) for rate in rates)
    best = np.flatnonzero(bounds >= bounds.max() - 1e-12) if np.isfinite(bounds.max()) else np.arange(len(candidates))
    if np.isfinite(bounds.max()) and (alarms[best] + misses[best] == 0).any():  # a gap: its middle is the safest
        return float((inside[0] + outside[-1]) / 2)
    return float(candidates[best[len(best) // 2]])


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Chance, at most, of so many right guesses if training were (epsilon, delta)-private.

    `beta + 2 m delta max_i (P[W >= v - i] - beta)/i`, `beta = P[W >= v]`, `W ~ Binomial(r, e^eps/(1 + e^eps))`.
    Reference: Steinke, Nasr, Jagielski 2023, arXiv:2305.08846, Theorem 5.2 and Appendix D. Deviation: none.
    """
    from scipy.special import expit
    from scipy.stats import binom

    if not 0 <= right <= guesses <= canaries:
        raise ConfigError(f"{right} right of {guesses} guesses at {canaries} canaries: must ascend from 0.")
    tails = binom.sf(right - 1 - np.arange(right + 1), guesses, float(expit(epsilon)))  # P[W >= v - i], i = 0 .. v
    alpha = float(((tails[1:] - tails[0]) / np.arange(1, right + 1)).max(initial=0.0))
    return min(1.0, float(tails[0]) + 2 * canaries * delta * alpha)


def one_run_bound(canaries: int, guesses: int, right: int, delta: float, level: float) -> float:
    """Lower bound on epsilon at confidence `level`: the epsilon up to which so many right guesses are too unlikely."""

    def rejected(epsilon: float) -> bool:
        return one_run_p_value(canaries, guesses, right, epsilon, delta) <= 1 - level

    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high):
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


# The engine ------------------------------------------------------------------------------------------------------------


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
        return [name for name, found in self.values["statistics"].items() if found["exceeds"]]

    @property
    def share(self) -> float:
        """Proven part of the claimed epsilon."""
        return self.headline["empirical epsilon"].low / self.claimed

    def plot(self, ax: Axes) -> Axes:
        """Interval of each statistic's epsilon, and the claim as a line."""
        found = self.values["statistics"]
        ends = [e for s in found.values() for e in (s["epsilon"].high, s["epsilon"].value) if math.isfinite(e)]
        edge = 1.1 * max([self.claimed, *ends])
        for row, name in enumerate(reversed(list(found))):
            estimate, colour = found[name]["epsilon"], TWIN if found[name]["exceeds"] else PRIVATE
            ax.plot([estimate.low, min(estimate.high, edge)], [row, row], color=colour, linewidth=1.8, zorder=2)
            ax.plot([estimate.value], [row], "o", color=colour, markersize=6, zorder=3)
            ax.plot([estimate.low], [row], "|", color=colour, markersize=12, markeredgewidth=2, zorder=3)
        ax.axvline(self.claimed, color=INK, linewidth=1)
        ax.annotate(
            "claimed", (self.claimed, len(found) - 0.45), ha="center", va="bottom", color=INK, annotation_clip=False
        )
        name_rows(ax, reversed(list(found)))
        ax.set_xlim(0, edge)
        return dress(ax, f"epsilon of one release at delta {number(self.settings['delta'])}")

    def figures(self) -> list[Figure]:
        """One row for each statistic."""
        caption = "Measured epsilon of one release by statistic, with the claimed value; the bar is what is proven"
        return [Figure(caption, f"{caption}. {' '.join(self.sentences())}", self.plot, len(self.values["statistics"]))]

    def sentences(self) -> list[str]:
        """Claim and measurement; the fault and who found it; what was asked how often."""
        best = self.headline["empirical epsilon"]
        said = [
            f"One release with noise multiplier {number(self.settings['noise_multiplier'])} claims epsilon "
            f"{number(self.claimed)} at delta {number(self.settings['delta'])}; an adversary who sees it is proven to get "
            f"{number(best.low)} ({level_of(best)} confidence), {100 * self.share:.0f} % of that."
        ]
        if self.exceeds:
            said.append(
                f"That is more than claimed: the engine is faulty. Found by: {', '.join(self.found_by)}. Do not publish "
                "what it trained."
            )
        else:
            said.append("Nothing exceeds the claim.")
        said.append(
            f"{self.settings['trials']:,} trials of two steps on {self.settings['target']}; sampling is not part of it."
        )
        return said

    def tables(self) -> list[Table]:
        """Every statistic."""
        level = level_of(self.headline["empirical epsilon"])
        rows = [
            [
                name,
                f"{fixed(s['mu'].value)} ({fixed(s['mu'].low)}, {fixed(s['mu'].high)})",
                f"{fixed(s['epsilon'].value)} ({fixed(s['epsilon'].low)}, {fixed(s['epsilon'].high)})",
                fixed(self.claimed),
                "exceeded" if s["exceeds"] else "kept",
            ]
            for name, s in self.values["statistics"].items()
        ]
        caption = f"Measured mu and epsilon of one release, {level} intervals that hold together"
        return [Table(caption, ["statistic", "mu", "epsilon", "claimed epsilon", "the claim is"], rows)]


class _Target(NamedTuple):
    """A model, units some of which are canaries, and the direction `[canaries, ...]` of each canary's gradient."""

    model: nn.Module
    units: tuple[Tensor, Tensor]
    loss_fn: LossFn
    weights: Tensor  # of every unit's loss
    canaries: Tensor  # which of the units
    directions: dict[str, Tensor]
    words: str


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
    from noisewise.clipping import Flat
    from noisewise.mechanism import Mechanism
    from noisewise.sampling import FullBatch
    from noisewise.training.step import private_step

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
        target = _built_in(clip)
    else:
        target = _users(model, data, loss_fn or cross_entropy, units, clip, rng)
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
    coins, seen = _trials(target, plan, releases, rng, generator is not None, engine or private_step, progress)
    mu = 1 / (plan.joint_noise_multiplier or sigma)
    found = _statistics(coins, seen, mu, delta, level)
    best = max((s["epsilon"] for s in found.values()), key=lambda e: e.low)
    n = len(coins)
    return EngineEpsilon(
        headline={
            "empirical epsilon": replace(best, level=level),
            "claimed epsilon": Estimate(claimed, claimed, claimed, n, level, "PLD"),
        },
        values={"statistics": found, "mu": mu},
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


def _weighted(loss_fn: LossFn) -> LossFn:
    """The loss of units `(*rows, weight)`: a unit of weight 0 has no gradient, as if it were not there."""

    def loss(model: Any, batch: Nest) -> Tensor:
        *rows, weight = batch
        return loss_fn(model, tuple(rows)) * weight

    return loss


def _built_in(clip: Clip) -> _Target:
    """A linear model on one-hot inputs: canary i moves column i alone."""
    import torch
    from torch import nn

    model = nn.utils.skip_init(nn.Linear, BUILT_IN, 2, bias=False)
    nn.init.zeros_(model.weight)
    return _target(
        model,
        (torch.eye(BUILT_IN), torch.arange(BUILT_IN) % 2),
        cross_entropy,
        torch.arange(BUILT_IN),
        clip,
        f"a built-in linear model with {BUILT_IN} canaries in orthogonal directions",
    )


def _users(model: nn.Module, data: Data, loss_fn: LossFn, units: int, clip: Clip, rng: np.random.Generator) -> _Target:
    """Some rows of the user's data on a copy of the model; the first of them is the canary."""
    import torch

    if type(units) is not int or not 1 <= units <= len(data):
        raise ConfigError(f"units={units!r} of {len(data)} rows: must be a whole number from 1 to that.")
    rows = torch.from_numpy(rng.choice(len(data), units, replace=False))
    own, device = copy.deepcopy(model).eval(), device_of(model)
    batch = (data.x[rows].to(device), data.y[rows].to(device))
    weights = sum(parameter.numel() for parameter in own.parameters())
    return _target(own, batch, loss_fn, torch.tensor([0]), clip, f"your model ({weights:,} weights) with one canary")


def _target(
    model: nn.Module, units: tuple[Tensor, Tensor], loss_fn: LossFn, canaries: Tensor, clip: Clip, words: str
) -> _Target:
    """Directions by plain autograd (not by the engine that is audited), and weights that use the whole bound."""
    import torch

    learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
    weights, directions = torch.ones(len(units[1]), device=units[0].device), []
    for canary in canaries.tolist():
        loss = loss_fn(model, tuple(part[canary : canary + 1] for part in units)).sum()
        grads = torch.autograd.grad(loss, list(learning.values()), materialize_grads=True)
        direction = dict(zip(learning, (grad.detach() for grad in grads), strict=True))
        length = math.sqrt(sum(float(grad.square().sum()) for grad in direction.values()))
        if not length:
            raise DataError("the canary has no gradient on this model: draw another one, or use other data.")
        weights[canary] = _loudest(clip, {name: float(grad.norm()) for name, grad in direction.items()})
        directions.append({name: grad / length for name, grad in direction.items()})
    stacked = {name: torch.stack([direction[name] for direction in directions]) for name in learning}
    return _Target(model, units, _weighted(loss_fn), weights, canaries, stacked, words)


def _loudest(clip: Clip, norms: dict[str, float]) -> float:
    """Factor on a gradient that makes most of it pass the rule; the largest of several, so that it *must* be clipped."""
    import torch

    from noisewise.clipping import Samples

    blocks = clip.blocks(norms)
    squares = torch.zeros(max(blocks.values()) + 1, dtype=torch.float64)
    for name, norm in norms.items():
        squares[blocks[name]] += norm**2
    length = squares.sum().sqrt()
    factors = torch.logspace(-2, 2, 801, dtype=torch.float64) * clip.sensitivity / length
    scaled = squares.sqrt().unsqueeze(1) * factors
    groups = torch.zeros(len(factors), dtype=torch.long)
    passed = (clip.factors(Samples(scaled, groups)) * scaled).square().sum(0).sqrt()
    return float(factors[passed >= 0.999 * passed.max()].max())


def _trials(
    target: _Target,
    plan: Mechanism,
    releases: int,
    rng: np.random.Generator,
    reproducible: bool,
    engine: Engine,
    progress: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Coins `[trials]`, and the two releases along the canary's direction `[2, trials]`."""
    import torch

    from noisewise.accounting import Ledger
    from noisewise.persample import examine
    from noisewise.randomness import Entropy
    from noisewise.training.state import State

    model, canaries = target.model, target.canaries
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    layout = examine(model, target.loss_fn, (*target.units, target.weights))
    absent = target.weights.clone()
    absent[canaries] = 0.0
    flat = torch.cat([target.directions[name].flatten(1) for name in target.directions], 1)
    coins = rng.integers(0, 2, (releases, len(canaries)))
    seen = np.empty((2, releases, len(canaries)))
    shown = tracked(range(releases), progress, releases, "steps of the engine")
    for trial in shown:
        entropy = Entropy.insecure(int(rng.integers(2**62))) if reproducible else Entropy.fresh()
        state = State(plan, Ledger(plan.adjacency), entropy, layout=layout)
        present = absent.clone()
        present[canaries] = target.weights[canaries] * torch.from_numpy(coins[trial]).to(absent)
        for step, weights in enumerate((present, absent)):
            state.ledger.identity = None  # the canary comes and goes on purpose
            engine(model, (*target.units, weights), target.loss_fn, optimizer, state)
            seen[step, trial] = (flat @ _gradient(model, target.directions)).cpu().numpy()
    return coins.reshape(-1), seen.reshape(2, -1)


def _gradient(model: nn.Module, names: Iterable[str]) -> Tensor:
    """What the step left for the optimizer, in one vector."""
    import torch

    parameters = dict(model.named_parameters())
    grads = ((parameters[name], parameters[name].grad) for name in names)
    return torch.cat([(torch.zeros_like(p) if grad is None else grad).flatten() for p, grad in grads])


def _statistics(coins: np.ndarray, seen: np.ndarray, mu: float, delta: float, level: float) -> dict[str, Any]:
    """Each statistic's mu and epsilon from the second half of the trials, and whether it exceeds the claim."""
    each = 1 - (1 - level) / len(STATISTICS)
    half = len(coins) // 2
    inside, first = coins == 1, np.arange(len(coins)) < half
    if min((inside & first).sum(), (~inside & first).sum(), (inside & ~first).sum(), (~inside & ~first).sum()) < 2:
        raise ConfigError(f"{len(coins)} trials are too few: make more.")
    scores = {
        "step": seen[0],
        "difference": seen[0] - seen[1],
        "discriminant": _discriminant(seen[:, inside & first], seen[:, ~inside & first]) @ seen,
    }
    found = {}
    for name, score in scores.items():
        threshold = best_threshold(score[inside & first], score[~inside & first], each)
        errors = Errors.counted(score[inside & ~first], score[~inside & ~first], threshold)
        value, low, high = (max(bound, 0.0) for bound in mu_bounds(errors, each))
        value_eps, low_eps, high_eps = (epsilon_of(bound, delta) for bound in (value, low, high))
        n, method = errors.inside + errors.outside, "threshold test, Clopper-Pearson, Bonferroni"
        found[name] = {
            "mu": Estimate(value, low, high, n, level, method),
            "epsilon": Estimate(value_eps, low_eps, high_eps, n, level, method),
            "exceeds": low > mu,
            "errors": dict(errors._asdict()),
        }
    return found


def _discriminant(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Fisher's weights `S^-1 (mean with - mean without)`, S the pooled covariance, with a millionth of its trace added."""
    pooled = np.cov(inside) + np.cov(outside)
    pooled += 1e-6 * max(np.trace(pooled), 1e-30) * np.eye(len(pooled))
    return np.linalg.solve(pooled, inside.mean(1) - outside.mean(1))


# One run ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OneRun(Result):
    """A lower bound on a training run's epsilon, from one run with many canaries.

    headline: `lower bound`, `claimed epsilon`. values: right guesses, histograms of the canaries' scores.
    Guarantee: the bound exceeds the true epsilon in at most 1 - level of all audits. Reference: Steinke, Nasr, Jagielski
    2023, arXiv:2305.08846.
    """

    kind: ClassVar[str] = "one-run-epsilon"
    title: ClassVar[str] = "What one training run gives away"

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
        edges = np.asarray(self.values["edges"])
        for name, colour, filled in (("in", PRIVATE, True), ("out", TWIN, False)):
            ax.stairs(
                self.values["scores"][name],
                edges,
                color=colour,
                fill=filled,
                alpha=0.45 if filled else 1.0,
                linewidth=1.8,
                label=f"canaries that were {name}",
            )
        ax.set_ylim(0, 1.3 * max(max(counts) for counts in self.values["scores"].values()))  # room for the legend
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
        said = [
            f"Of {values['tested']:,} canaries ({settings['canary']}) the adversary guessed {values['guesses']:,} and was "
            f"right about {values['right']:,} whether they were trained on: epsilon is at least {number(bound.low)} "
            f"({level_of(bound)} confidence). The run claims {number(self.claimed)} at delta {number(settings['delta'])}."
        ]
        said.append(
            f"That is more than claimed, which is chance in at most {100 * (1 - bound.level):.3g} % of such audits: something "
            "is wrong with this run. Do not publish what it trained."
            if self.exceeds
            else "Nothing exceeds the claim; a single run cannot show much more."
        )
        if settings["canary"] != "gradient":
            said.append(
                f"Canaries that are {settings['canary']} are weak ones: that they find little is no sign of privacy."
            )
        return said

    def tables(self) -> list[Table]:
        """The counts behind the bound."""
        bound, values = self.headline["lower bound"], self.values
        rows = [
            ["canaries", f"{self.settings['canaries']:,}"],
            ["for choosing how many to guess", f"{self.settings['canaries'] - values['tested']:,}"],
            ["tested", f"{values['tested']:,}"],
            ["guessed in / out", f"{values['guessed_in']:,} / {values['guessed_out']:,}"],
            ["right", f"{values['right']:,}"],
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
    one more parameter of the copy that is trained, so that no other record's gradient is in their way.

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

    rng = np.random.default_rng() if generator is None else generator
    delta = default_delta(mechanism.sampler.n) if delta is None else delta
    _check_one_run(data, mechanism, canaries, canary)
    rows = torch.from_numpy(rng.permutation(len(data))[:canaries])
    coins = rng.integers(0, 2, canaries).astype(bool)
    own = copy.deepcopy(model)
    units = _with_canaries(data, rows, coins, canary, rng)
    loss = _canary_loss(own, loss_fn or cross_entropy, canary, canaries, mechanism)
    claimed = mechanism.epsilon(delta)
    assert claimed is not None
    before = _scores(own, loss, units, rows)
    (trainer or train)(
        own,
        units,
        loss,
        mechanism,
        (optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.5)))(own.parameters()),
        delta=delta,
        insecure_seed=None if generator is None else int(rng.integers(2**62)),
        progress=progress,
    )
    scores = before - _scores(own, loss, units, rows)
    if not np.isfinite(scores).all():
        raise DataError("training with canaries ended in numbers that are not finite: lower the learning rate.")
    guess = _guess(scores, coins, delta, level)
    edges = np.linspace(scores.min(), max(scores.max(), scores.min() + 1e-12), 31)
    return OneRun(
        headline={
            "lower bound": Estimate(guess.bound, guess.bound, math.inf, guess.tested, level, "one-run audit"),
            "claimed epsilon": Estimate(claimed, claimed, claimed, guess.tested, level, "PLD"),
        },
        values={
            "tested": guess.tested,
            "guesses": guess.guessed_in + guess.guessed_out,
            "guessed_in": guess.guessed_in,
            "guessed_out": guess.guessed_out,
            "right": guess.right,
            "edges": edges.tolist(),
            "scores": {
                name: np.histogram(scores[which], edges)[0].tolist() for name, which in (("in", coins), ("out", ~coins))
            },
        },
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


def _check_one_run(data: Data, mechanism: Mechanism, canaries: int, canary: str) -> None:
    if canary not in CANARIES:
        raise ConfigError(f"canary={canary!r}: must be one of {list(CANARIES)}.")
    if data.unit is not None:
        raise DataError("the data says which rows belong to one person: the one-run audit is for rows only.")
    if isinstance(mechanism.clip, Adaptive):
        raise ConfigError(
            f"clip={mechanism.clip!r}: its question counts every unit, so that a canary that is out would still be asked, "
            "and in and out would be further apart than the claim allows. Audit a rule that asks nothing, e.g. Flat."
        )
    if mechanism.sampler.n != len(data):
        raise ConfigError(
            f"the data has {len(data)} rows, the mechanism was planned for n={mechanism.sampler.n}: give the part that is "
            "trained on."
        )
    if type(canaries) is not int or not 4 <= canaries <= len(data):
        raise ConfigError(f"canaries={canaries!r} of {len(data)} rows: must be a whole number from 4 to that.")
    if canary == "mislabelled" and (data.task != "classification" or len(data.y.unique()) < 2):
        raise DataError("mislabelled canaries need data with at least two classes: use canary='gradient'.")
    if canary == "blank" and (not data.x.is_floating_point() or canaries > data.x[0].numel()):
        raise ConfigError(
            f"canaries={canaries} blank inputs of shape {list(data.x.shape[1:])}, {data.x.dtype}: each needs a real-valued "
            "entry of its own. Use fewer, or canary='gradient'."
        )


def _with_canaries(data: Data, rows: Tensor, coins: np.ndarray, canary: str, rng: np.random.Generator) -> Nest:
    """Units `((x, y), (number, is Dirac), weight)`: `rows` are canaries, of weight 0 where the coin says out."""
    import torch

    x, y, count = data.x.clone(), data.y.clone(), len(rows)
    numbers, dirac = torch.zeros(len(data), dtype=torch.long), torch.zeros(len(data), dtype=torch.bool)
    numbers[rows] = torch.arange(count)
    dirac[rows] = canary == "gradient"
    if canary == "mislabelled":
        classes = int(data.y.max()) + 1
        y[rows] = (y[rows] + torch.from_numpy(rng.integers(1, classes, count))) % classes
    if canary == "blank":
        empty = torch.full((count, x[0].numel()), float(data.x.min()), dtype=x.dtype)
        empty[torch.arange(count), torch.arange(count)] = float(data.x.max())
        x[rows] = empty.view(count, *x.shape[1:])
    weight = torch.ones(len(data))
    weight[rows] = torch.from_numpy(coins).float()
    return (x, y), (numbers, dirac), weight


def _canary_loss(model: nn.Module, loss_fn: LossFn, canary: str, count: int, mechanism: Mechanism) -> LossFn:
    """The units' loss; Dirac canaries have `scale * coordinate`, a parameter that is put on the model for them."""
    import torch
    import torch.nn.functional as F

    if canary != "gradient":
        return _weighted(lambda own, batch: loss_fn(own, batch[0]))
    name = "canary_coordinates"
    if name in dict(model.named_parameters()):
        raise ConfigError(f"the model has a parameter {name!r} already: rename it.")
    device = device_of(model)
    model.register_parameter(name, torch.nn.Parameter(torch.zeros(count, 1, device=device)))
    others = {other: 0.0 for other, p in model.named_parameters() if p.requires_grad}
    scale = _loudest(mechanism.clip_at(0), {**others, name: 1.0})

    def loss(own: Any, batch: Nest) -> Tensor:
        rows, (numbers, dirac) = batch
        coordinate = F.embedding(numbers, own.get_parameter(name)).squeeze(1)
        return torch.where(dirac, scale * coordinate, loss_fn(own, rows))

    return _weighted(loss)


def _scores(model: nn.Module, loss_fn: LossFn, units: Nest, rows: Tensor) -> np.ndarray:
    """The canaries' losses, each of weight 1, whether it was in or out."""
    import torch

    from noisewise.batches import map_tensors, take

    device, found = device_of(model), []
    with evaluating(model), torch.no_grad():
        for part in rows.split(BATCH):
            pairs, kinds, _ = map_tensors(lambda tensor: tensor.to(device), take(units, part))
            found.append(loss_fn(model, (pairs, kinds, torch.ones(len(part), device=device))).double().cpu())
    return torch.cat(found).numpy()


class _Guess(NamedTuple):
    bound: float
    tested: int
    guessed_in: int
    guessed_out: int
    right: int


def _guess(scores: np.ndarray, coins: np.ndarray, delta: float, level: float) -> _Guess:
    """How many to guess from the first half of the canaries, the bound from the second: they stand in random order."""
    half = len(scores) // 2

    def attempt(scores: np.ndarray, coins: np.ndarray, shares: tuple[float, float]) -> _Guess:
        order, m = np.argsort(scores, kind="stable"), len(scores)
        top, bottom = (min(round(share * m), m // 2) for share in shares)
        right = int(coins[order[m - top :]].sum() + (~coins[order[:bottom]]).sum())
        return _Guess(one_run_bound(m, top + bottom, right, delta, level), m, top, bottom, right)

    def merit(shares: tuple[float, float]) -> tuple[float, float]:
        found = attempt(scores[:half], coins[:half], shares)
        guesses = found.guessed_in + found.guessed_out
        return found.bound, -one_run_p_value(half, guesses, found.right, 0.0, 0.0)

    best = max(((top, bottom) for top in SHARES for bottom in SHARES), key=merit)
    return attempt(scores[half:], coins[half:], best)


AUDIT = Audit(
    "engine-epsilon", engine_epsilon, takes=TAKES_ENGINE, needs=("mechanism", "loss_fn"), twin=False, model=False
)
