"""The feature-learning story: what private training does to each filter of the two-layer network on two-patch data.

Made-up data with known features, so that every quantity of the theory can be looked at: alignments, weight norms, the
split of a step into signal and noise, losses by group, and how often the theory's assumptions hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from noisewise._moved import old_names
from noisewise.audits.exact_ratio import Factors, exact, noise_of_a_step
from noisewise.audits.feature_scene import Group, Move, Scene, View
from noisewise.audits.result import FAINT, INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.audits.show import Bar, cell, dress, name_rows
from noisewise.clipping import Flat
from noisewise.errors import ConfigError, DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, check_level
from noisewise.losses import cross_entropy
from noisewise.mechanism import Mechanism
from noisewise.runs.folder import Status
from noisewise.sampling import Poisson
from noisewise.support import EVERYTHING
from noisewise.theory.xu2026 import Assumption, FeatureRatio, Limits, noise_norm, norm_exponent, ordered_pairs
from noisewise.wording import fixed, number, percent
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from noisewise.data.synthetic import TwoPatch
    from noisewise.training.ablation import Ablation

TAKES = "Trains the two-layer network once on made-up data; seconds."
COLOURS, STYLES = (PRIVATE, TWIN, INK), ("-", "--", ":", "-.")  # of classes; of the features within one


@dataclass(frozen=True)
class RunRatio:
    """`theory.xu2026.FeatureRatio` as it counts in this run; `ratio` and `effective` are None without noise."""

    name: str
    label: int
    norm: float
    proportion: float
    ratio: float | None
    factor: float
    factor_low: float
    factor_mean: float
    proxy: float
    bound: float
    source: str
    effective: float | None


@dataclass(frozen=True)
class Values:
    """What was seen of the run.

    steps: where it was looked at; filters: the class of each; alignment `[steps][filters][features]`: `<w_kr, u> / ||u||`;
    noise_alignment `[steps][filters]`: root mean square over training noise patches of `<w_kr, xi> / ||xi||`;
    mean_noise_alignment `[steps][classes]`: the same of a class's mean filter; norms `[steps][filters]`.
    """

    steps: list[int]
    filters: list[int]
    alignment: list[list[list[float]]]
    noise_alignment: list[list[float]]
    mean_noise_alignment: list[list[float]]
    norms: list[list[float]]
    groups: list[Group]
    ratios: list[RunRatio]
    assumptions: list[Assumption]


@dataclass(frozen=True, kw_only=True)
class FeatureStory(Result):
    """One training run on two-patch data, told filter by filter.

    headline: `largest group loss` and `accuracy` on test points at the end; with noise `weight norm` (final norm of a filter
    over `eta sigma_n sqrt(T d)`, 1 where noise dominates) and `norm exponent` (see `norm_exponent`).
    Guarantee: none; intervals are over test points and filters of this one run, other seeds give other runs.
    Reference: Xu, Chen 2026, arXiv:2603.04881, sections 3 and J. Deviation: constants of the theory are not known.
    """

    kind: ClassVar[str] = "feature-story"
    title: ClassVar[str] = "How features are learnt under noise"

    values: Values

    @property
    def steps(self) -> list[int]:
        """Steps at whose start the run was looked at; the last is its end."""
        return self.values.steps

    @property
    def groups(self) -> list[Group]:
        """One for each feature."""
        return self.values.groups

    @property
    def ratios(self) -> list[RunRatio]:
        """`exact` for this run, with recorded factors if every feature was sampled."""
        return self.values.ratios

    @property
    def assumptions(self) -> list[Assumption]:
        """Those of the theory that could be checked."""
        return self.values.assumptions

    def alignment(self, feature: int) -> tuple[np.ndarray, np.ndarray]:
        """Alignments `[steps, filters]` with a feature: of its own class's filters, and of the others."""
        along = np.array(self.values.alignment)[:, :, feature]
        of_class = np.array(self.values.filters) == self.groups[feature].label
        return along[:, of_class], along[:, ~of_class]

    def ordered_pairs(self) -> tuple[int, int]:
        """Pairs of features whose final losses are ordered as the effective ratio says, and all pairs; none without noise."""
        effective = [ratio.effective for ratio in self.ratios if ratio.effective is not None]
        if len(effective) < len(self.ratios):
            return 0, 0
        return ordered_pairs(effective, [group.final.loss.value for group in self.groups])

    def plot(self, ax: Axes) -> Axes:
        """Mean alignment with each feature over the steps: filters of its class, thick, and of the other, thin."""
        for place, group in enumerate(self.groups):
            own_class, others = self.alignment(place)
            colour, style = self._look(place)
            ax.plot(self.steps, own_class.mean(1), style, color=colour, linewidth=2.2, label=_text(group.name))
            ax.plot(self.steps, others.mean(1), style, color=colour, linewidth=0.9, alpha=0.7)
        around = np.sqrt((np.array(self.values.mean_noise_alignment) ** 2).mean(1))
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

    def _plot_losses(self, ax: Axes) -> Axes:
        ax.set_yscale("log")
        for place, group in enumerate(self.groups):
            colour, style = self._look(place)
            ax.plot(self.steps, group.loss, style, color=colour, linewidth=1.8, label=_text(group.name))
        _legend_above(ax)
        return dress(ax, "step", "test loss")

    def _plot_moves(self, ax: Axes) -> Axes:
        """Size of signal and noise in a step of each class's own output, over the run."""
        rows = np.arange(len(self.groups))[::-1]
        moves = [group.moves.own for group in self.groups]
        for series, colour, shift, label in (
            ([move.signal for move in moves], PRIVATE, 0.2, "signal"),
            ([move.noise for move in moves], TWIN, 0.0, "noise"),
            ([move.switching for move in moves], INK, -0.2, "filters switching"),
        ):
            ax.barh(rows + shift, [_rms(of_group) for of_group in series], height=0.17, color=colour, label=label)
        ax.set_yticks(rows, labels=[group.name for group in self.groups], parse_math=False)
        ax.legend(frameon=False, fontsize="small", loc="lower right", labelcolor=INK)
        return dress(ax, "move of the class's output in a step (rms)")

    def _plot_assumptions(self, ax: Axes) -> Axes:
        rows = list(reversed(self.assumptions))
        for place, row in enumerate(rows):
            share = 100 * row.held / row.checks
            ax.plot([0, share], [place, place], color=FAINT, linewidth=2.5, zorder=1)
            ax.plot(
                [share], [place], "o", color=PRIVATE if share == 100 else TWIN, markersize=7, clip_on=False, zorder=3
            )
        name_rows(ax, [row.name for row in rows])
        ax.set_xlim(0, 102)
        return dress(ax, "checks in which the assumption holds, %")

    def _look(self, place: int) -> tuple[str, str]:
        label = self.groups[place].label
        before = sum(group.label == label for group in self.groups[:place])
        return COLOURS[label % len(COLOURS)], STYLES[before % len(STYLES)]

    def figures(self) -> list[Figure]:
        """Alignments, losses by group, signal and noise of a step, assumptions."""
        caption = "Alignment of filters with features: thick, filters of the feature's class; thin, of the other"
        words = "; ".join(
            f"{group.name}: {fixed(own_class[-1].mean())} at the end, other class {fixed(others[-1].mean())}"
            for group, (own_class, others) in zip(
                self.groups, map(self.alignment, range(len(self.groups))), strict=True
            )
        )
        drawn = [Figure(caption, f"{caption}. {words}.", self.plot, 11)]
        caption = "Test loss by group"
        words = "; ".join(f"{group.name}: {number(group.loss[-1])} at the end" for group in self.groups)
        drawn.append(Figure(caption, f"{caption}. {words}.", self._plot_losses, 8))
        caption = "Signal and noise in a step"
        words = "; ".join(
            f"{group.name}: signal {number(_rms(group.moves.own.signal))}, noise {number(_rms(group.moves.own.noise))}"
            for group in self.groups
        )
        drawn.append(Figure(caption, f"{caption}. {words}.", self._plot_moves, 2 * len(self.groups)))
        caption = "How often the theory's assumptions hold in this run"
        words = "; ".join(f"{row.name}: {row.held} of {row.checks}" for row in self.assumptions)
        drawn.append(Figure(caption, f"{caption}. {words}.", self._plot_assumptions, len(self.assumptions)))
        return drawn

    def sentences(self) -> list[str]:
        """Who is learnt, whether the ratio orders the losses, how weights grow, which assumptions fail."""
        worst = max(self.groups, key=lambda group: group.final.loss.value)
        lines = [
            f"After {self.steps[-1]} steps {worst.name} is served worst: test loss {number(worst.final.loss.value)}, "
            f"{percent(worst.final.accuracy)} right; everyone {percent(self.headline['accuracy'])}."
        ]
        right, pairs = self.ordered_pairs()
        if pairs:
            lines.append(
                f"The effective feature-to-noise ratio orders the losses of {right} of {pairs} pairs of features rightly."
            )
        if "weight norm" in self.headline:
            grown, slope = self.headline["weight norm"], self.headline["norm exponent"]
            lines.append(
                f"Filters end at {fixed(grown.value)} times the length that noise alone gives them ({level_of(grown)} interval "
                f"{fixed(grown.low)} to {fixed(grown.high)}); their length grows as step^{fixed(slope.value)}."
            )
        failed = [row for row in self.assumptions if row.held < row.checks]
        lines.append(
            "All assumptions hold in every check."
            if not failed
            else "Assumptions that do not always hold: "
            + "; ".join(f"{row.statement}, {row.held} of {row.checks} checks" for row in failed)
            + "."
        )
        return lines

    def tables(self) -> list[Table]:
        """Groups; ratios; how often the assumptions hold."""
        level = level_of(self.headline["accuracy"])
        return [
            Table(
                f"Groups at the end, {level} intervals over test points",
                ["", "loss", "accuracy, %", "alignment, own filters", "other filters"],
                [
                    [
                        group.name,
                        cell(group.final.loss),
                        percent(group.final.accuracy).replace(" %", ""),
                        *(fixed(float(of[-1].mean())) for of in self.alignment(place)),
                    ]
                    for place, group in enumerate(self.groups)
                ],
            ),
            Table(
                f"Feature-to-noise ratio, clipping factors {self.ratios[0].source}",
                ["", "norm", "proportion", "FNR", "smallest factor", "mean factor", "effective FNR"],
                [
                    [
                        ratio.name,
                        *map(
                            number,
                            (
                                ratio.norm,
                                ratio.proportion,
                                ratio.ratio,
                                ratio.factor,
                                ratio.factor_mean,
                                ratio.effective,
                            ),
                        ),
                    ]
                    for ratio in self.ratios
                ],
            ),
            Table(
                "How often the assumptions hold; the limits are ours, the theory's constants are not known",
                ["", "limit", "held", "checks", "worst"],
                [
                    [row.statement, row.limit, f"{row.held:,}", f"{row.checks:,}", number(row.worst)]
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

    from noisewise.data.synthetic import two_patch_distribution
    from noisewise.models import two_layer_cnn
    from noisewise.training.ablation import step_of
    from noisewise.training.state import State

    check_level(level)
    source = two_patch_distribution(seed) if distribution is None else distribution
    plan = mechanism or Mechanism(sampler=Poisson(1000, 128), clip=Flat(1.0), steps=400, noise_multiplier=25.6)
    limits = limits or Limits()
    if plan.support != EVERYTHING:
        raise ConfigError(f"support={plan.support!r}: the story is about training all weights. Leave the support out.")
    make_step = step_of(ablation)
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
    scene = Scene(source, plan, model, parts.train, parts.test, learning_rate, ablation)
    views: list[View] = []
    moves: list[Move] = []
    with Bar(progress, plan.steps, "training") as advance:
        for step in range(plan.steps + 1):
            if step in at:
                views.append(scene.look(min(step, plan.steps - 1)))
            if step == plan.steps:
                break
            before = model.filters.weight.detach().clone()
            batch = torch.from_numpy(next(plan.sampler.batches(state.entropy, step, step + 1)))
            signal = scene.signal(batch, step) if step in at else None
            make_step(model, parts.train, cross_entropy, optimizer, state, recorders=[factors])
            if signal is not None:
                moves.append(scene.move(before, signal, step, views[-1]))
            advance(1)
    clips = ablation in ("private", "clip-only")
    # a short run may never sample a rare feature: then the factors are those of the model at its end, and labelled so
    complete = clips and all(len(factors.of(label)) for label in range(len(source.labels)))
    ratios = exact(source, plan, model, recorded=factors if complete else None)
    noisy = ablation in ("private", "noise-only") and noise_of_a_step(plan) > 0
    counted = [_counted(ratio, clips=clips, noisy=noisy) for ratio in ratios]
    return _told(scene, at, views, moves, counted, limits, seed, level)


def _counted(ratio: FeatureRatio, *, clips: bool, noisy: bool) -> RunRatio:
    """A ratio as it counts in this run: without clipping nobody is shortened, without noise there is no ratio."""
    entries = asdict(ratio) | {"effective": ratio.effective}
    if not clips:
        entries |= dict.fromkeys(("factor", "factor_low", "factor_mean"), 1.0) | {"source": "1, nobody is clipped"}
        entries["effective"] = ratio.proportion * ratio.ratio
    return RunRatio(**(entries if noisy else entries | {"ratio": None, "effective": None}))


def _told(
    scene: Scene,
    steps: list[int],
    views: Sequence[View],
    moves: Sequence[Move],
    ratios: list[RunRatio],
    limits: Limits,
    seed: int,
    level: float,
) -> FeatureStory:
    plan, source, last = scene.plan, scene.source, views[-1]
    members = [rows.numpy() for rows in scene.members(scene.test)]
    groups = [scene.group(place, rows, views, moves, level) for place, rows in enumerate(members)]
    single = intervals.each(level, len(groups))
    losses = [intervals.mean(last.losses[rows], single, floor=0.0) for rows in members]
    headline = {
        "largest group loss": intervals.largest(losses, level),
        "accuracy": intervals.share(last.right, level),
    }
    norms = [view.norms for view in views]
    by_noise = noise_norm(scene.rate, [scene.sigma(step) for step in range(plan.steps)], scene.weight.shape[1])
    if by_noise > 0:
        headline["weight norm"] = intervals.mean(np.array(norms[-1]) / by_noise, level, floor=0.0)
        if len(steps) > 2:
            headline["norm exponent"] = norm_exponent(steps, norms, level)
    return FeatureStory(
        headline=headline,
        values=Values(
            steps=steps,
            filters=[k for k in range(scene.model.outputs) for _ in range(scene.filters)],
            alignment=[view.alignment for view in views],
            noise_alignment=[view.noise_alignment for view in views],
            mean_noise_alignment=[view.mean_noise_alignment for view in views],
            norms=norms,
            groups=groups,
            ratios=ratios,
            assumptions=scene.assumptions(views, moves, limits),
        ),
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


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(float(np.mean(np.square(values))))


def _text(name: str) -> str:
    return name.replace("$", r"\$").lstrip("_")  # a name is a name: no formula, and not hidden from the legend


def _legend_above(ax: Axes) -> None:
    ax.legend(frameon=False, fontsize="small", labelcolor=INK, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
