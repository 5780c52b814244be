"""The feature-learning story: what private training does to each filter of the two-layer network on two-patch data.

Made-up data with known features, so that every quantity of the theory can be looked at: alignments, weight norms, the
split of a step into signal and noise, losses by group, and how often the theory's assumptions hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from noisewise.audits.feature_noise import Factors, exact, noise_of_a_step
from noisewise.audits.gradients import rule_factors
from noisewise.audits.result import FAINT, INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import Bar, cell, dress, name_rows
from noisewise.errors import ConfigError, DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate
from noisewise.runs.folder import Status
from noisewise.wording import fixed, number, percent
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

    from noisewise.data import Data
    from noisewise.data.synthetic import TwoPatch
    from noisewise.mechanism import Mechanism
    from noisewise.models import TwoLayerCNN
    from noisewise.training.loop import Ablation

TAKES = "Trains the two-layer network once on made-up data; seconds."
COLOURS, STYLES = (PRIVATE, TWIN, INK), ("-", "--", ":", "-.")  # of classes; of the features within one


@dataclass(frozen=True)
class Limits:
    """Where an assumption counts as met. The theory's own constants are not known: these are ours, to be changed.

    Args:
        spread: largest relative deviation of a noise vector's squared length from its expectation.
        batch: least B / n.
        feature: least ||u|| / (sigma_xi sqrt d).
        ratio: least ||u|| / sigma_n.
        step: most that an output may move in one step.
        residual: least 1 - p_y on any test point.
        active: least share of a class's filters that its feature activates.
    """

    spread: float = 0.3
    batch: float = 0.1
    feature: float = 1.0
    ratio: float = 1.0
    step: float = 1.0
    residual: float = 0.01
    active: float = 0.25


ASSUMPTIONS = {
    "patch noise": "noise patches are of nearly equal length (d is large)",
    "step noise": "noise on a filter's gradient is of nearly equal length (d is large)",
    "batch": "a batch is a fixed share of the data",
    "feature over patch": "a feature is longer than the patch noise",
    "feature over noise": "a feature is longer than the step's noise",
    "small steps": "no step moves an output far (small learning rate)",
    "non-perfect": "no test point is ever learnt perfectly",
    "active filters": "a fixed share of a class's filters is active on its feature",
}


def norm_exponent(steps: Sequence[int], norms: Sequence[Sequence[float]], level: float = LEVEL) -> Estimate:
    """Slope of `log ||w_r||` over `log T`, mean over filters r with Student's t interval over them.

    Weights that noise dominates grow as `eta sigma_n sqrt(T d)`: 1/2 at a fixed sigma_n, 1 where a fixed budget makes
    sigma_n grow as sqrt T. `norms [steps, filters]`; steps of 0 are left out, since 0 has no logarithm.
    Reference: Xu, Chen 2026, arXiv:2603.04881, remark on Eq. (6). Deviation: exponents derived here, theirs are not known.
    """
    kept = [(step, row) for step, row in zip(steps, norms, strict=True) if step > 0]
    if len(kept) < 2:
        raise ConfigError(f"{len(kept)} steps above 0: a slope needs at least two.")
    x, y = np.log([step for step, _ in kept]), np.log([row for _, row in kept])
    x = x - x.mean()
    return intervals.mean(x @ (y - y.mean(0)) / float(x @ x), level)


@dataclass(frozen=True, kw_only=True)
class FeatureStory(Result):
    """One training run on two-patch data, told filter by filter.

    headline: `largest group loss` and `accuracy` on test points at the end; with noise `weight norm` (final norm of a filter
    over `eta sigma_n sqrt(T d)`, 1 where noise dominates) and `norm exponent` (see `norm_exponent`).
    values: `steps`, where the run was looked at; `alignment [steps][filters][features]` = `<w_kr, u> / ||u||`;
    `noise_alignment [steps][filters]`, the root mean square over training noise patches of `<w_kr, xi> / ||xi||`, and
    `mean_noise_alignment [steps][classes]`, the same of a class's mean filter; `norms [steps][filters]`; `filters`, the
    class of each; `groups`, `assumptions` and `ratios`, see the properties of these names.
    Guarantee: none; intervals are over test points and filters of this one run, other seeds give other runs.
    Reference: Xu, Chen 2026, arXiv:2603.04881, sections 3 and J. Deviation: constants of the theory are not known.
    """

    kind: ClassVar[str] = "feature-story"
    title: ClassVar[str] = "How features are learnt under noise"

    @property
    def steps(self) -> list[int]:
        """Steps at whose start the run was looked at; the last is its end."""
        return self.values["steps"]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """For each feature its `name`, `label`, `norm`, `proportion`, `final` (estimates of loss and accuracy) and series.

        Series have a value for each of `steps`: `loss`, `accuracy`, `residual` (mean 1 - p_y), `lowest_residual`, `active`
        (share of the class's filters that the feature activates). `moves` have one for each but the last, of the step made
        there: means over the group's test points of `own` (the class's output) and `other`, each with `total`, `signal`,
        `noise`, `switching` (filters that turned on or off); `predicted_signal` and `predicted_noise` of the class's output.
        """
        return self.values["groups"]

    @property
    def ratios(self) -> list[dict[str, Any]]:
        """`exact` for this run, with recorded factors if every feature was sampled; `ratio`, `effective` None without noise."""
        return self.values["ratios"]

    @property
    def assumptions(self) -> list[dict[str, Any]]:
        """`name`, `statement`, `limit`, `held` of `checks`, `worst`."""
        return self.values["assumptions"]

    def alignment(self, feature: int) -> tuple[np.ndarray, np.ndarray]:
        """Alignments `[steps, filters]` with a feature: of its own class's filters, and of the others."""
        found = np.array(self.values["alignment"])[:, :, feature]
        own = np.array(self.values["filters"]) == self.groups[feature]["label"]
        return found[:, own], found[:, ~own]

    def ordered_pairs(self) -> tuple[int, int]:
        """Pairs of features whose final losses are ordered as the effective ratio says, and all pairs."""
        if any(ratio["effective"] is None for ratio in self.ratios):
            return 0, 0
        pairs = list(combinations(range(len(self.groups)), 2))
        loss = [group["final"]["loss"].value for group in self.groups]
        effective = [ratio["effective"] for ratio in self.ratios]
        return sum((effective[a] - effective[b]) * (loss[b] - loss[a]) > 0 for a, b in pairs), len(pairs)

    def plot(self, ax: Axes) -> Axes:
        """Mean alignment with each feature over the steps: filters of its class, thick, and of the other, thin."""
        for place, group in enumerate(self.groups):
            own, others = self.alignment(place)
            colour, style = self._look(place)
            ax.plot(self.steps, own.mean(1), style, color=colour, linewidth=2.2, label=_text(group["name"]))
            ax.plot(self.steps, others.mean(1), style, color=colour, linewidth=0.9, alpha=0.7)
        around = np.sqrt((np.array(self.values["mean_noise_alignment"]) ** 2).mean(1))
        ax.fill_between(
            self.steps,
            -around,
            around,
            color=FAINT,
            alpha=0.6,
            linewidth=0,
            label="noise patches, ± deviation",
        )
        _legend_above(ax)
        return dress(ax, "step", "mean alignment of filters")

    def _plot_series(self, ax: Axes, key: str) -> Axes:
        for place, group in enumerate(self.groups):
            colour, style = self._look(place)
            ax.plot(self.steps, group[key], style, color=colour, linewidth=1.8, label=_text(group["name"]))
        _legend_above(ax)
        return dress(ax, "step", f"test {key}")

    def _plot_losses(self, ax: Axes) -> Axes:
        ax.set_yscale("log")
        return self._plot_series(ax, "loss")

    def _plot_moves(self, ax: Axes) -> Axes:
        """Size of signal and noise in a step of each class's own output, over the run."""
        rows = np.arange(len(self.groups))[::-1]
        moves = [group["moves"]["own"] for group in self.groups]
        for key, colour, shift, label in (
            ("signal", PRIVATE, 0.2, "signal"),
            ("noise", TWIN, 0.0, "noise"),
            ("switching", INK, -0.2, "filters switching"),
        ):
            ax.barh(rows + shift, [_rms(of[key]) for of in moves], height=0.17, color=colour, label=label)
        ax.set_yticks(rows, labels=[group["name"] for group in self.groups], parse_math=False)
        ax.legend(frameon=False, fontsize="small", loc="lower right", labelcolor=INK)
        return dress(ax, "move of the class's output in a step (rms)")

    def _plot_assumptions(self, ax: Axes) -> Axes:
        rows = list(reversed(self.assumptions))
        for place, row in enumerate(rows):
            share = 100 * row["held"] / row["checks"]
            ax.plot([0, share], [place, place], color=FAINT, linewidth=2.5, zorder=1)
            ax.plot(
                [share], [place], "o", color=PRIVATE if share == 100 else TWIN, markersize=7, clip_on=False, zorder=3
            )
        name_rows(ax, [row["name"] for row in rows])
        ax.set_xlim(0, 102)
        return dress(ax, "checks in which the assumption holds, %")

    def _look(self, place: int) -> tuple[str, str]:
        label = self.groups[place]["label"]
        before = sum(group["label"] == label for group in self.groups[:place])
        return COLOURS[label % len(COLOURS)], STYLES[before % len(STYLES)]

    def figures(self) -> list[Figure]:
        """Alignments, losses by group, signal and noise of a step, assumptions."""
        caption = "Alignment of filters with features: thick, filters of the feature's class; thin, of the other"
        words = "; ".join(
            f"{group['name']}: {fixed(own[-1].mean())} at the end, other class {fixed(others[-1].mean())}"
            for group, (own, others) in zip(self.groups, map(self.alignment, range(len(self.groups))), strict=True)
        )
        found = [Figure(caption, f"{caption}. {words}.", self.plot, 11)]
        caption = "Test loss by group"
        words = "; ".join(f"{group['name']}: {number(group['loss'][-1])} at the end" for group in self.groups)
        found.append(Figure(caption, f"{caption}. {words}.", self._plot_losses, 8))
        caption = "Signal and noise in a step"
        words = "; ".join(
            f"{group['name']}: signal {number(_rms(own['signal']))}, noise {number(_rms(own['noise']))}"
            for group in self.groups
            for own in [group["moves"]["own"]]
        )
        found.append(Figure(caption, f"{caption}. {words}.", self._plot_moves, 2 * len(self.groups)))
        caption = "How often the theory's assumptions hold in this run"
        words = "; ".join(f"{row['name']}: {row['held']} of {row['checks']}" for row in self.assumptions)
        found.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_assumptions), len(self.assumptions)))
        return found

    def sentences(self) -> list[str]:
        """Who is learnt, whether the ratio orders the losses, how weights grow, which assumptions fail."""
        worst = max(self.groups, key=lambda group: group["final"]["loss"].value)
        final = worst["final"]
        said = [
            f"After {self.steps[-1]} steps {worst['name']} is served worst: test loss {number(final['loss'].value)}, "
            f"{percent(final['accuracy'])} right; everyone {percent(self.headline['accuracy'])}."
        ]
        right, pairs = self.ordered_pairs()
        if pairs:
            said.append(
                f"The effective feature-to-noise ratio orders the losses of {right} of {pairs} pairs of features rightly."
            )
        if "weight norm" in self.headline:
            grown, slope = self.headline["weight norm"], self.headline["norm exponent"]
            said.append(
                f"Filters end at {fixed(grown.value)} times the length that noise alone gives them ({level_of(grown)} interval "
                f"{fixed(grown.low)} to {fixed(grown.high)}); their length grows as step^{fixed(slope.value)}."
            )
        failed = [row for row in self.assumptions if row["held"] < row["checks"]]
        said.append(
            "All assumptions hold in every check."
            if not failed
            else "Assumptions that do not always hold: "
            + "; ".join(f"{row['statement']}, {row['held']} of {row['checks']} checks" for row in failed)
            + "."
        )
        return said

    def tables(self) -> list[Table]:
        """Groups; ratios; how often the assumptions hold."""
        level = level_of(self.headline["accuracy"])
        return [
            Table(
                f"Groups at the end, {level} intervals over test points",
                ["", "loss", "accuracy, %", "alignment, own filters", "other filters"],
                [
                    [
                        group["name"],
                        cell(group["final"]["loss"]),
                        percent(group["final"]["accuracy"]).replace(" %", ""),
                        *(fixed(float(of[-1].mean())) for of in self.alignment(place)),
                    ]
                    for place, group in enumerate(self.groups)
                ],
            ),
            Table(
                f"Feature-to-noise ratio, clipping factors {self.ratios[0]['source']}",
                ["", "norm", "proportion", "FNR", "smallest factor", "mean factor", "effective FNR"],
                [
                    [
                        ratio["name"],
                        *(
                            number(ratio[key])
                            for key in ("norm", "proportion", "ratio", "factor", "factor_mean", "effective")
                        ),
                    ]
                    for ratio in self.ratios
                ],
            ),
            Table(
                "How often the assumptions hold; the limits are ours, the theory's constants are not known",
                ["", "limit", "held", "checks", "worst"],
                [
                    [row["statement"], row["limit"], f"{row['held']:,}", f"{row['checks']:,}", number(row["worst"])]
                    for row in self.assumptions
                ],
            ),
        ]


def story(
    distribution: TwoPatch | None = None,
    mechanism: Mechanism | None = None,
    *,
    filters: int = 10,
    start: float | None = 0.01,
    learning_rate: float = 0.5,
    ablation: Ablation = "private",
    looks: int = 41,
    test: int = 1000,
    limits: Limits | None = None,
    seed: int = 0,
    level: float = LEVEL,
    progress: bool = False,
) -> FeatureStory:
    """Train the two-layer network on two-patch data by `private_step` and look at it while it learns.

    A step moves an output F_k on a test point by `dF_k = signal + noise + switching`: the first two are
    `(1/m) sum_r sum_p 1[<w_kr, x_p> > 0] <dw, x_p>` for the two parts of dw = -eta (sum of clipped gradients / B + noise),
    switching is the rest, of filters that the step turned on or off. Theory says of the own class's output: signal
    `eta phi E[f (1 - p_y)] (rho/m) ||u||^2`, noise of deviation `eta sigma_n ||u|| sqrt(rho/m)`, rho the active share.

    Trains once on made-up data; seconds (about 2 for the default 400 steps).

    Args:
        distribution: of the data; the default of `two_patch_distribution` if not given.
        mechanism: 1000 rows, Poisson batches of 128, bound 1, 400 steps and sigma_n = 0.2 if not given.
        filters: m, for each class.
        start: deviation of the initial weights; None for PyTorch's default.
        learning_rate: eta, of plain SGD.
        ablation: `private`, `plain`, `clip-only` or `noise-only`.
        looks: how many times to look, evenly over the steps, start and end included.
        test: rows of the test part.
        limits: where an assumption counts as met.
        seed: fixes data, start, batches and noise: made-up data has nobody to protect.
        level: of the intervals.
        progress: show a bar.

    Reference: Xu, Chen 2026, arXiv:2603.04881, sections 3 and J. Deviation: sizes and constants are ours.
    """
    import torch

    from noisewise.clipping import Flat
    from noisewise.data.synthetic import two_patch_distribution
    from noisewise.losses import cross_entropy
    from noisewise.mechanism import Mechanism
    from noisewise.models import two_layer_cnn
    from noisewise.sampling import Poisson
    from noisewise.support import EVERYTHING
    from noisewise.training.loop import ABLATIONS, State, private_step

    source = two_patch_distribution(seed) if distribution is None else distribution
    plan = mechanism or Mechanism(sampler=Poisson(1000, 128), clip=Flat(1.0), steps=400, noise_multiplier=25.6)
    limits = limits or Limits()
    if plan.support != EVERYTHING:
        raise ConfigError(f"support={plan.support!r}: the story is about training all weights. Leave the support out.")
    if ablation not in ABLATIONS:
        raise ConfigError(f"ablation={ablation!r}: must be one of {list(ABLATIONS)}.")
    if type(looks) is not int or looks < 2:
        raise ConfigError(f"looks={looks!r}: at least 2, one at the start and one at the end.")
    parts = source.splits(seed, 0, n=plan.sampler.n, test=test)
    missing = set(range(len(source.labels))) - set(parts.test.groups["feature"].tolist())
    if missing:
        raise DataError(
            f"test={test} rows hold none of {source.names[min(missing)]!r}: draw more, or leave the feature out."
        )
    outputs = max(2, max(source.labels) + 1)
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        model = two_layer_cnn(tuple(parts.train.x.shape[1:]), outputs, filters=filters, start=start)
    factors = Factors(plan, parts.train.groups["feature"])
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    state = State.start(plan, seed=seed, insecure_seed=seed)
    at = sorted({round(step) for step in np.linspace(0, plan.steps, looks)})
    scene = _Scene(source, plan, model, parts.train, parts.test, learning_rate, ablation)
    views: list[dict[str, Any]] = []
    moves: list[dict[str, Any]] = []
    with Bar(progress, plan.steps, "training") as advance:
        for step in range(plan.steps + 1):
            if step in at:
                views.append(scene.look(min(step, plan.steps - 1)))
            if step == plan.steps:
                break
            before = model.filters.weight.detach().clone()
            batch = torch.from_numpy(next(plan.sampler.batches(state.entropy, step, step + 1)))
            signal = scene.signal(batch, step) if step in at else None
            private_step(model, parts.train, cross_entropy, optimizer, state, recorders=[factors], ablation=ablation)
            if signal is not None:
                moves.append(scene.move(before, signal, step, views[-1]))
            advance(1)
    clips = ablation in ("private", "clip-only")
    # a short run may never sample a rare feature: then the factors are those of the model at its end, and labelled so
    complete = clips and all(len(factors.of(label)) for label in range(len(source.labels)))
    ratios = exact(source, plan, model, recorded=factors if complete else None)
    noisy = ablation in ("private", "noise-only") and noise_of_a_step(plan) > 0
    return _told(
        scene, at, views, moves, [_plain(ratio, clips=clips, noisy=noisy) for ratio in ratios], limits, seed, level
    )


def _plain(ratio: Any, *, clips: bool, noisy: bool) -> dict[str, Any]:
    """A ratio as it counts in this run: without clipping nobody is shortened, without noise there is no ratio."""
    found = asdict(ratio) | {"effective": ratio.effective}
    if not clips:
        found |= dict.fromkeys(("factor", "factor_low", "factor_mean"), 1.0) | {"source": "1, nobody is clipped"}
        found["effective"] = ratio.proportion * ratio.ratio
    return found if noisy else found | {"ratio": None, "effective": None}


@dataclass(frozen=True)
class _Scene:
    """A run that is looked at: distribution, plan, the learning model, its data."""

    source: TwoPatch
    plan: Mechanism
    model: TwoLayerCNN
    train: Data
    test: Data
    rate: float
    ablation: Ablation

    @property
    def filters(self) -> int:
        return self.model.filters.out_features // self.model.outputs

    @property
    def weight(self) -> Tensor:
        return self.model.filters.weight.detach().double()

    def sigma(self, step: int) -> float:
        """sigma_n of a step."""
        return noise_of_a_step(self.plan, step=step) if self.ablation in ("private", "noise-only") else 0.0

    def noise_patches(self, data: Data) -> Tensor:
        """The patch of each row that is not its feature."""
        import torch

        feature = self.source.features[data.groups["feature"]].float()
        distance = (data.x - feature.unsqueeze(1)).square().sum(2)
        return data.x[torch.arange(len(data)), distance.argmax(1)].double()

    def members(self, data: Data) -> list[Tensor]:
        return [data.groups["feature"] == place for place in range(len(self.source.labels))]

    def factors(self, rows: Data, step: int) -> Tensor:
        """Clipping factors of rows, from the closed form of their norms."""
        import torch

        from noisewise.models import gradient_norms

        if self.ablation in ("plain", "noise-only"):
            return torch.ones(len(rows))
        norms = gradient_norms(self.model, rows.x, rows.y)
        return rule_factors(self.plan.clip_at(step), norms.unsqueeze(0))[0]

    def signal(self, batch: Tensor, step: int) -> Tensor:
        """What the gradients of a batch, clipped, do to the weights: `-eta sum_i f_i g_i / B`."""
        import torch

        from noisewise.losses import cross_entropy

        rows = self.train.take(batch)
        losses = cross_entropy(self.model, (rows.x, rows.y))
        (total,) = torch.autograd.grad((self.factors(rows, step) * losses).sum(), [self.model.filters.weight])
        return -self.rate * total.double() / self.plan.expected_batch_size

    def outputs(self, data: Data, weight: Tensor) -> Tensor:
        """F `[rows, classes]` of given weights, in double precision."""
        return (data.x.double() @ weight.T).relu().sum(1).unflatten(1, (self.model.outputs, -1)).mean(2)

    def look(self, step: int) -> dict[str, Any]:
        """Alignments, norms, losses and residuals at the present weights, under the rule of a step."""
        import torch

        weight, features = self.weight, self.source.features.double()
        outputs = self.outputs(self.test, weight)
        losses = torch.nn.functional.cross_entropy(outputs, self.test.y, reduction="none")
        residual = -torch.expm1(-losses)
        right = outputs.argmax(1) == self.test.y
        along = weight @ (features / self.source.norms.unsqueeze(1)).T
        noise = self.noise_patches(self.train)
        lengths = noise.norm(dim=1, keepdim=True)
        # without patch noise there is no direction to be aligned with
        directions = torch.where(lengths > 0, noise / lengths.clamp(min=1e-300), 0.0)
        means = weight.unflatten(0, (self.model.outputs, -1)).mean(1)
        active = (along > 0).double().unflatten(0, (self.model.outputs, -1)).mean(1)  # [classes, features]
        return {
            "alignment": along.tolist(),
            "noise_alignment": (weight @ directions.T).square().mean(1).sqrt().tolist(),
            "mean_noise_alignment": (means @ directions.T).square().mean(1).sqrt().tolist(),
            "norms": weight.norm(dim=1).tolist(),
            "losses": losses.numpy(),
            "right": right.numpy(),
            "groups": [
                {
                    "loss": float(losses[mine].mean()),
                    "accuracy": float(right[mine].double().mean()),
                    "residual": float(residual[mine].mean()),
                    "lowest_residual": float(residual[mine].min()),
                    "active": float(active[label, place]),
                }
                for place, (label, mine) in enumerate(zip(self.source.labels, self.members(self.test), strict=True))
            ],
            "weights": self._weights(step),
        }

    def _weights(self, step: int) -> list[float]:
        """Mean of f (1 - p_y) over each feature's training rows, which theory multiplies the signal by."""
        import torch

        outputs = self.outputs(self.train, self.weight)
        residual = -torch.expm1(-torch.nn.functional.cross_entropy(outputs, self.train.y, reduction="none"))
        weights = residual * self.factors(self.train, step).double()
        return [float(weights[mine].mean()) if bool(mine.any()) else 0.0 for mine in self.members(self.train)]

    def move(self, before: Tensor, signal: Tensor, step: int, view: Mapping[str, Any]) -> dict[str, Any]:
        """How a step moved the outputs on test points, and its split."""
        before, x = before.double(), self.test.x.double()
        change = self.weight - before
        noise = change - signal
        active = (x @ before.T > 0).double()

        def linear(part: Tensor) -> Tensor:
            return (active * (x @ part.T)).sum(1).unflatten(1, (self.model.outputs, -1)).mean(2)

        total = self.outputs(self.test, self.weight) - self.outputs(self.test, before)
        split = {"total": total, "signal": linear(signal), "noise": linear(noise)}
        split["switching"] = total - split["signal"] - split["noise"]
        groups, sigma = [], self.sigma(step)
        for place, mine in enumerate(self.members(self.test)):
            label, norm = self.source.labels[place], float(self.source.norms[place])
            others = [k for k in range(self.model.outputs) if k != label]
            rho = view["groups"][place]["active"]
            expected = self.source.proportions[place] * view["weights"][place]
            groups.append(
                {
                    "own": {key: float(of[mine, label].mean()) for key, of in split.items()},
                    "other": {key: float(of[mine][:, others].mean()) for key, of in split.items()},
                    "predicted_signal": self.rate * expected * rho / self.filters * norm**2,
                    "predicted_noise": self.rate * sigma * norm * math.sqrt(rho / self.filters),
                }
            )
        lengths = (noise.square().sum(1) / (self.rate * sigma) ** 2 / noise.shape[1]).tolist() if sigma > 0 else []
        return {"groups": groups, "largest": float(total.abs().max()), "noise_lengths": lengths}


def _told(
    scene: _Scene,
    steps: list[int],
    views: Sequence[Mapping[str, Any]],
    moves: Sequence[Mapping[str, Any]],
    ratios: list[dict[str, Any]],
    limits: Limits,
    seed: int,
    level: float,
) -> FeatureStory:
    plan, source, last = scene.plan, scene.source, views[-1]
    groups = []
    for place, mine in enumerate(scene.members(scene.test)):
        rows = mine.numpy()
        groups.append(
            {
                "name": source.names[place],
                "label": source.labels[place],
                "norm": float(source.norms[place]),
                "proportion": source.proportions[place],
                "final": {
                    "loss": intervals.mean(last["losses"][rows], level, floor=0.0),
                    "accuracy": intervals.share(last["right"][rows], level),
                },
                **{key: [view["groups"][place][key] for view in views] for key in last["groups"][place]},
                "moves": {
                    which: {
                        key: [move["groups"][place][which][key] for move in moves]
                        for key in ("total", "signal", "noise", "switching")
                    }
                    for which in ("own", "other")
                }
                | {
                    key: [move["groups"][place][key] for move in moves]
                    for key in ("predicted_signal", "predicted_noise")
                },
            }
        )
    single = intervals.each(level, len(groups))
    losses = [intervals.mean(last["losses"][mine.numpy()], single, floor=0.0) for mine in scene.members(scene.test)]
    headline = {
        "largest group loss": intervals.largest(losses, level),
        "accuracy": intervals.share(last["right"], level),
    }
    norms = [view["norms"] for view in views]
    grown = scene.rate * math.sqrt(scene.weight.shape[1] * sum(scene.sigma(step) ** 2 for step in range(plan.steps)))
    if grown > 0:
        headline["weight norm"] = intervals.mean(np.array(norms[-1]) / grown, level, floor=0.0)
        if len(steps) > 2:
            headline["norm exponent"] = norm_exponent(steps, norms, level)
    return FeatureStory(
        headline=headline,
        values={
            "steps": steps,
            "filters": [k for k in range(scene.model.outputs) for _ in range(scene.filters)],
            "alignment": [view["alignment"] for view in views],
            "noise_alignment": [view["noise_alignment"] for view in views],
            "mean_noise_alignment": [view["mean_noise_alignment"] for view in views],
            "norms": norms,
            "groups": groups,
            "ratios": ratios,
            "assumptions": _assumptions(scene, views, moves, limits),
        },
        settings={
            "d": scene.weight.shape[1],
            "n": plan.sampler.n,
            "test": len(scene.test),
            "batch_size": plan.expected_batch_size,
            "clip": repr(plan.clip_at(0)),
            "sigma_n": scene.sigma(plan.steps - 1),
            "sigma_xi": source.sigma_xi,
            "learning_rate": scene.rate,
            "filters": scene.filters,
            "steps": plan.steps,
            "ablation": scene.ablation,
            "limits": asdict(limits),
            "seed": seed,
            "level": level,
        },
        status=Status("private", "made-up data: no person's record is in it"),
    )


def _assumptions(
    scene: _Scene, views: Sequence[Mapping[str, Any]], moves: Sequence[Mapping[str, Any]], limits: Limits
) -> list[dict[str, Any]]:
    """Each assumption, in how many checks it holds, and the value furthest from holding."""
    source, plan = scene.source, scene.plan
    count, d = source.features.shape
    freedom = d - count if source.project else d
    norms, sigma = source.norms.numpy(), scene.sigma(plan.steps - 1)
    found = []

    def check(name: str, values: Any, limit: float, kind: str) -> None:
        column = np.asarray(values, dtype=np.float64).reshape(-1)
        if not len(column):
            return
        held, worst = {
            "at least": (column >= limit, column.min()),
            "at most": (column <= limit, column.max()),
            "1 ±": (np.abs(column - 1) <= limit, column[np.abs(column - 1).argmax()]),
        }[kind]
        found.append(
            {
                "name": name,
                "statement": ASSUMPTIONS[name],
                "limit": f"{kind} {limit:g}",
                "held": int(held.sum()),
                "checks": len(column),
                "worst": float(worst),
            }
        )

    if source.sigma_xi > 0 and freedom:
        squares = scene.noise_patches(scene.train).square().sum(1) / (source.sigma_xi**2 * freedom)
        check("patch noise", squares, limits.spread, "1 ±")
        check("feature over patch", norms / (source.sigma_xi * math.sqrt(d)), limits.feature, "at least")
    check("step noise", [length for move in moves for length in move["noise_lengths"]], limits.spread, "1 ±")
    check("batch", [plan.sampler.rate], limits.batch, "at least")
    if sigma > 0:
        check("feature over noise", norms / sigma, limits.ratio, "at least")
    check("small steps", [move["largest"] for move in moves], limits.step, "at most")
    lowest = [min(group["lowest_residual"] for group in view["groups"]) for view in views]
    check("non-perfect", lowest, limits.residual, "at least")
    active = [group["active"] for view in views for group in view["groups"]]
    check("active filters", active, limits.active, "at least")
    return found


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(float(np.mean(np.square(values))))


def _text(name: str) -> str:
    return name.replace("$", r"\$").lstrip("_")  # a name is a name: no formula, and not hidden from the legend


def _legend_above(ax: Axes) -> None:
    ax.legend(frameon=False, fontsize="small", labelcolor=INK, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
