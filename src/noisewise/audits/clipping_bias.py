"""Clipping bias: how far clipping turns the mean gradient, who is clipped, and which bounds on it hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from noisewise.audits.outputs import device_of, evaluating, status_of
from noisewise.audits.parts import SMALLEST, Bar, dot, dress, fixed_cell, name_rows, named_parts, share_cell, titled
from noisewise.audits.result import FAINT, INK, PRIVATE, TWIN, Figure, Result, Table
from noisewise.errors import ConfigError, DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate
from noisewise.runs.folder import Status
from noisewise.wording import fixed, number, percent
from noisewise.wording import level as level_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor, nn

    from noisewise.batches import Views
    from noisewise.clipping import Clip
    from noisewise.data import Data
    from noisewise.losses import LossFn
    from noisewise.mechanism import Mechanism
    from noisewise.persample import Layout
    from noisewise.support import Support

TAKES = "Does not retrain; two passes over the gradients of all units, seconds to minutes."
CHUNK = 1 << 22  # numbers of per-unit gradients in memory at a time
SHORT = 1e-6  # a gradient this short, in multiples of the bound, is left alone by every rule that leaves any alone
QUANTILES = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)
ROUNDING = 1e-9  # by which a bound that holds in real numbers may be missed in double precision


def printed_bound(bound: float, ratio: float) -> float:
    """`C (1 - R/2)`: Theorem 3.2 as printed. It does not hold; kept to be compared with.

    Reference: Watson et al. 2023, arXiv:2311.06839, Theorem 3.2. Deviation: none, and that is why it is only shown.
    """
    return bound * (1 - ratio / 2)


def corrected_bound(bound: float, ratio: float) -> float:
    """`<c, gbar/||gbar||> >= C (1 - R) / (1 + R)` where every gradient has length C after clipping; sharp.

    Guarantee: `E[cos+] >= 1/(1+R)` (Cauchy-Schwarz) and `E[cos] >= 2 E[cos+] - 1`.
    """
    return bound * (1 - ratio) / (1 + ratio) if math.isfinite(ratio) else -bound


def one_sided_bound(bound: float, ratio: float) -> float:
    """`<c, gbar/||gbar||> >= C / (1 + R)` where, besides, no gradient points away from the mean; sharp."""
    return bound / (1 + ratio)


def general_bound(norms: np.ndarray, factors: np.ndarray, mean_norms: np.ndarray) -> float:
    """The bound that always holds, whoever is clipped and by whichever rule of factors f >= 0.

    One block: `<c, gbar/||gbar||> >= 2 ||gbar||^2 / mean(||g_i|| / f_i) - mean(f_i ||g_i||)`; for flat clipping the two
    means are of `max(||g||, ||g||^2/C)` and `min(||g||, C)`. Several blocks: each block's bound, weighted by
    `||gbar_l|| / ||gbar||`.

    Args:
        norms: of each block and unit, `[blocks, units]`.
        factors: of each block and unit.
        mean_norms: of the mean gradient's blocks.
    """
    lengths = (factors * norms).mean(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        stretched = np.where(norms > 0, norms / factors, 0.0).mean(1)
        signal = np.where(np.isfinite(stretched) & (stretched > 0), mean_norms**2 / stretched, 0.0)
    total = math.sqrt(float((mean_norms**2).sum()))
    return float(((2 * signal - lengths) * mean_norms).sum()) / total if total > 0 else -math.inf


@dataclass(frozen=True)
class Moments:
    """Lengths and inner products of the gradients of b of n units at fixed weights: no gradient itself.

    norms, factors, `on_mean = <g_il, gbar_l>` and `on_clipped = <g_il, c_l>` are `[blocks, b]`, gbar and c being the
    means of the b gradients and of the clipped ones. Every figure of the audit follows from these four.
    """

    population: int
    norms: np.ndarray
    factors: np.ndarray
    on_mean: np.ndarray
    on_clipped: np.ndarray

    @classmethod
    def of(cls, gradients: np.ndarray, factors: np.ndarray, population: int | None = None) -> Moments:
        """From gradients `[b, weights]` in one block and factors `[b]`, where these are few enough to be held."""
        mean, clipped = gradients.mean(0), (factors[:, None] * gradients).mean(0)
        norms = np.linalg.norm(gradients, axis=1)
        rows = (norms, factors, gradients @ mean, gradients @ clipped)
        return cls(population or len(gradients), *(row[None, :] for row in rows))

    @property
    def units(self) -> int:
        """b."""
        return self.norms.shape[1]

    @property
    def lengths(self) -> np.ndarray:
        """||g_i|| over all blocks."""
        return np.sqrt((self.norms**2).sum(0))

    @property
    def clipped_lengths(self) -> np.ndarray:
        """||f_i g_i|| over all blocks."""
        return np.sqrt(((self.factors * self.norms) ** 2).sum(0))

    @property
    def mean_norms(self) -> np.ndarray:
        """||gbar_l||."""
        return np.sqrt(np.maximum(self.on_mean.mean(1), 0.0))

    @property
    def mean_norm(self) -> float:
        """||gbar||."""
        return math.sqrt(float((self.mean_norms**2).sum()))

    @property
    def plain_ratio(self) -> float:
        """`R = mean ||g_i - gbar||^2 / ||gbar||^2` of these b gradients, as if there were no others."""
        square = self.mean_norm**2
        return float((self.norms**2).sum(0).mean() - square) / square if square > 0 else math.inf

    @property
    def projection(self) -> float:
        """`<c, gbar / ||gbar||>`: how far a clipped step goes in the true direction."""
        return float(self.on_clipped.mean(1).sum()) / self.mean_norm

    @property
    def cosines(self) -> np.ndarray:
        """Of each gradient and their mean; 0 for a gradient of length 0."""
        along, lengths = self.on_mean.sum(0), self.lengths * self.mean_norm
        return np.divide(along, lengths, out=np.zeros_like(along), where=lengths > 0)

    @property
    def alignment(self) -> float:
        """`mean cos(g_i, gbar)`: projection / C in the limit of a small bound, where every gradient is clipped."""
        return float(self.cosines.mean())

    @property
    def general_bound(self) -> float:
        """See `general_bound`."""
        return general_bound(self.norms, self.factors, self.mean_norms)

    def ratio(self, level: float = LEVEL) -> Estimate:
        """R of the whole population of n units: exact if all were measured, else debiased, with a jackknife interval.

        The interval is made for 1/R, which is nearly normal and has no pole, and turned over: it has no end where the mean
        gradient cannot be told from 0.
        """
        found = self._estimate(self._inverse_ratio, level)
        value, low, high = (1 / s if s > 0 else math.inf for s in (found.value, found.high, found.low))
        return Estimate(value, low, high, found.n, level, found.method)

    def cosine(self, level: float = LEVEL) -> Estimate:
        """Cosine of the clipped and the true mean gradient: exact, or debiased with a jackknife interval."""
        return self._estimate(_cosine, level, floor=-1.0, ceiling=1.0)

    @property
    def debiased_ratio(self) -> float:
        """The value of `ratio`; infinite where the mean gradient cannot be told from 0."""
        signal = float(self._inverse_ratio(partial(self._product, drop=False))[0])
        return 1 / signal if signal > 0 else math.inf

    def _inverse_ratio(self, moment: Callable[[str, str], _Pair]) -> np.ndarray:
        return _signal(moment("g", "g"), self.population)

    def _estimate(
        self, statistic: Statistic, level: float, *, floor: float = -math.inf, ceiling: float = math.inf
    ) -> Estimate:
        value = float(statistic(partial(self._product, drop=False))[0])
        if self.units == self.population:
            return Estimate(value, value, value, self.units, level, f"exact for these {self.units} units")
        parts = statistic(partial(self._product, drop=True))
        half = math.inf
        if np.isfinite(parts).all() and math.isfinite(value):
            missing = 1 - self.units / self.population
            spread = math.sqrt((self.units - 1) / self.units * float(((parts - parts.mean()) ** 2).sum()) * missing)
            half = intervals.z_score(level) * spread
        method = "debiased, jackknife"
        return Estimate(value, max(value - half, floor), min(value + half, ceiling), self.units, level, method)

    def _product(self, first: str, second: str, *, drop: bool) -> _Pair:
        """Debiased `mu_x . mu_y` and the covariance's trace of x, y in g (gradients), c (clipped); `drop`: without each i.

        `S = b/(b-1) (mean x.y - xbar.ybar)` and `mu_x . mu_y ~ xbar.ybar - (1 - b/n) S / b`.
        """
        weights = {"g": np.ones_like(self.factors), "c": self.factors}
        towards = {"g": self.on_mean, "c": self.on_clipped}
        own = (weights[first] * weights[second] * self.norms**2).sum(0)  # x_i . y_i
        forth = (weights[first] * towards[second]).sum(0)  # x_i . ybar
        back = (weights[second] * towards[first]).sum(0)
        b, mean, means = self.units, own.mean(), forth.mean()
        if drop:
            mean = (b * mean - own) / (b - 1)
            means = (b * b * means - b * forth - b * back + own) / (b - 1) ** 2
            b -= 1
        trace = np.atleast_1d(mean - means) * (b / (b - 1) if b > 1 else 1.0)
        return _Pair(np.atleast_1d(means) - (1 - b / self.population) * trace / b, trace)


@dataclass(frozen=True)
class _Pair:
    product: np.ndarray
    trace: np.ndarray


Statistic = Callable[[Callable[[str, str], _Pair]], np.ndarray]


def _signal(pair: _Pair, population: int) -> np.ndarray:
    """1/R; no more than 0 where the mean cannot be told from 0."""
    spread = pair.trace * (population - 1) / population
    return np.divide(pair.product, spread, out=np.full_like(spread, math.inf), where=spread > 0)


def _cosine(moment: Callable[[str, str], _Pair]) -> np.ndarray:
    lengths = moment("g", "g").product * moment("c", "c").product
    product = moment("c", "g").product
    return np.divide(product, np.sqrt(np.maximum(lengths, 0)), out=np.full_like(product, math.nan), where=lengths > 0)


@dataclass(frozen=True)
class Measured:
    """Moments of everyone, the mean gradients, and for each part `[parts, weights]` its own two means."""

    moments: Moments
    mean: Tensor
    clipped: Tensor
    own_means: Tensor
    own_clipped: Tensor


def batch_of(data: Data, units: Tensor) -> Views:
    """The rows of some units: one each, or all that a person owns."""
    from noisewise.batches import Views, take

    if data.unit is None:
        return Views.single(take((data.x, data.y), units))
    rows, mask = data.rows_of(units)
    return Views.mean(take((data.x, data.y), rows), mask)


def labels_of(data: Data, labels: Tensor, units: Tensor) -> Tensor:
    """A label of each unit: its row's, or that of a person's first row."""
    return labels[units if data.unit is None else data.rows_of(units)[0][:, 0]]


def partitions(data: Data, units: Tensor) -> dict[str, dict[str, np.ndarray]]:
    """Places among `units` of each class (where there are classes) and each group, by name."""
    return named_parts(data, lambda labels: labels_of(data, labels, units))


def gradients(
    model: nn.Module,
    data: Data,
    units: Tensor,
    *,
    loss_fn: LossFn,
    support: Support | None = None,
    layout: Layout | None = None,
) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    """Gradients `[some units, weights]` by parameter in double precision, as many units at a time as memory allows.

    In evaluation mode (no dropout); masked coordinates are 0, frozen parameters left out. Gradients that are not finite
    stop: no figure about directions exists with them.
    """
    import torch

    from noisewise import support as supports
    from noisewise.batches import map_tensors
    from noisewise.persample import engines, live_parameters

    support = support or {}
    supports.check(support, dict(model.named_parameters()))
    live = live_parameters(model, support)
    layout = layout or layout_of(model, data, loss_fn)
    device = next(iter(live.values())).device
    size = max(1, CHUNK // sum(parameter.numel() for parameter in live.values()))
    for first in range(0, len(units), size):
        place = slice(first, min(first + size, len(units)))
        batch = map_tensors(lambda tensor: tensor.to(device), batch_of(data, units[place]))
        with evaluating(model), torch.enable_grad(), torch.random.fork_rng([]):
            measured = engines.measure(model, loss_fn, batch, live, {}, layout, "auto")
        found = {}
        for name in live:
            gradient = measured[name][1].formed().detach().flatten(1).double()
            mask = support.get(name, True)
            found[name] = gradient if isinstance(mask, bool) else gradient * mask.to(device).flatten()
            if not bool(gradient.isfinite().all()):
                raise DataError(
                    f"gradients of {name!r} that are not finite: the model or the data overflows. Look at the loss, or "
                    "scale the inputs."
                )
        yield place, found


def layout_of(model: nn.Module, data: Data, loss_fn: LossFn) -> Layout:
    """What the gradient engine must know of the model, found on synthetic inputs."""
    from noisewise.batches import map_tensors
    from noisewise.persample import examine

    device = device_of(model)
    with evaluating(model):
        return examine(model, loss_fn, map_tensors(lambda tensor: tensor[:0].to(device), (data.x, data.y)))


def measure(
    model: nn.Module,
    data: Data,
    units: Tensor,
    *,
    loss_fn: LossFn,
    clip: Clip,
    support: Support | None = None,
    layout: Layout | None = None,
    parts: Iterable[np.ndarray] = (),
    advance: Callable[[int], None] = lambda units: None,
) -> Measured:
    """Moments of the gradients of some units in two passes: means first, then inner products with them.

    `parts`: places among `units` whose own means are wanted. Memory: a chunk of gradients, and two vectors of all weights
    for every part.
    """
    import torch

    layout = layout or layout_of(model, data, loss_fn)
    members = np.zeros((0, len(units)))
    if kept := list(parts):
        members = np.stack([np.isin(np.arange(len(units)), part) for part in kept])
    member = torch.from_numpy(members).double()
    norms, factors = [], []
    mean = clipped = own_means = own_clipped = torch.zeros(())
    labels = group_labels(clip, data, units)
    blocks: list[int] = []
    for place, found in gradients(model, data, units, loss_fn=loss_fn, support=support, layout=layout):
        owner = clip.blocks(found)
        blocks = [owner[name] for name in found]
        squares = torch.stack([gradient.square().sum(1) for gradient in found.values()])
        lengths = block_norms(squares, blocks)
        mine = rule_factors(clip, lengths, None if labels is None else labels[place])
        norms.append(lengths)
        factors.append(mine)
        flat = torch.cat(list(found.values()), 1)
        shortened = torch.cat([mine[owner[name]].unsqueeze(1) * gradient for name, gradient in found.items()], 1)
        here = member[:, place].to(flat.device)
        mean, clipped = mean + flat.sum(0).cpu(), clipped + shortened.sum(0).cpu()
        own_means, own_clipped = own_means + (here @ flat).cpu(), own_clipped + (here @ shortened).cpu()
        sizes = [gradient.shape[1] for gradient in found.values()]
        advance(place.stop - place.start)
    mean, clipped = mean / len(units), clipped / len(units)
    on_mean: list[Tensor] = []
    on_clipped: list[Tensor] = []
    for place, found in gradients(model, data, units, loss_fn=loss_fn, support=support, layout=layout):
        for vector, along in ((mean, on_mean), (clipped, on_clipped)):
            pieces = zip(found.values(), vector.split(sizes), strict=True)
            products = torch.stack([gradient @ piece.to(gradient.device) for gradient, piece in pieces])
            along.append(block_sums(products, blocks))
        advance(place.stop - place.start)
    arrays = (torch.cat(parts, 1).cpu().numpy() for parts in (norms, factors, on_mean, on_clipped))
    counts = member.sum(1, keepdim=True).clamp(min=1)
    moments = Moments(data.units, *arrays)
    if not moments.mean_norm > 0:
        raise DataError(
            f"the mean gradient of {len(units)} units is exactly 0: there is no direction to compare with. Use more units, "
            "or a model that is not at a stationary point."
        )
    return Measured(moments, mean, clipped, own_means / counts, own_clipped / counts)


def group_labels(clip: Clip, data: Data, units: Tensor) -> Tensor | None:
    """Group labels of the units, where the rule asks for them."""
    from noisewise.adaptive import GroupBounds

    if not isinstance(clip, GroupBounds):
        return None
    if clip.group not in data.groups:
        raise ConfigError(f"{clip!r}: the data has no groups {clip.group!r}; it has {list(data.groups)}.")
    return labels_of(data, data.groups[clip.group], units)


def block_sums(rows: Tensor, blocks: list[int]) -> Tensor:
    """Rows `[parameters, units]` added up by block."""
    total = rows.new_zeros(max(blocks) + 1, rows.shape[1])
    return total.index_add_(0, rows.new_tensor(blocks).long(), rows)


def block_norms(squares: Tensor, blocks: list[int]) -> Tensor:
    """Norms `[blocks, units]` from squared norms `[parameters, units]`."""
    return block_sums(squares, blocks).sqrt()


def rule_factors(clip: Clip, norms: Tensor, groups: Tensor | None = None) -> Tensor:
    """The rule's factors `[blocks, units]`."""
    from noisewise.clipping import Samples

    return clip.factors(Samples(norms, None if groups is None else groups.to(norms.device)))


def clipped_units(clip: Clip, norms: Tensor, factors: Tensor, groups: Tensor | None = None) -> Tensor:
    """Units that the rule shortens more than it would a very short gradient, in any block.

    `Flat`: factor below 1; `Global`: screened out; rules that normalise: everyone.
    """
    free = rule_factors(clip, norms.new_full(norms.shape, SHORT * clip.sensitivity), groups)
    return (factors < free * (1 - 1e-9)).any(0)


def chosen_rule(mechanism: Mechanism | None, clip: Clip | None, support: Support | None) -> tuple[Clip, Support]:
    """Rule and support of a mechanism's last step, or those that were given."""
    from noisewise.adaptive import Adaptive
    from noisewise.support import Fixed

    if (mechanism is None) == (clip is None):
        raise ConfigError("give either mechanism= or clip=: one of them says how gradients are clipped.")
    if mechanism is None:
        assert clip is not None
        return clip, support or {}
    if isinstance(mechanism.clip, Adaptive):
        raise ConfigError(
            f"the bound of {mechanism.clip!r} moved during training: give the rule in force at the end with clip=."
        )
    if support is None and not isinstance(mechanism.support, Fixed):
        raise ConfigError(f"the support {mechanism.support!r} changes from step to step: say which with support=.")
    chosen = mechanism.support.support if support is None and isinstance(mechanism.support, Fixed) else support
    return mechanism.clip_at(mechanism.steps - 1), chosen or {}


def chosen_loss(loss_fn: LossFn | None, data: Data) -> LossFn:
    """The given loss, or the usual one of the data's task."""
    from noisewise.losses import loss_for

    return loss_for(data) if loss_fn is None else loss_fn


def gradient_status(data: Data, twin: nn.Module | None) -> Status:
    """Gradients of people who did not agree to be shown are as private as the people."""
    found = status_of(data, twin)
    if twin is None and found.status != "private":
        return Status("not-private", "computed from exact gradients of private records: no ledger covers it")
    return found


@dataclass(frozen=True)
class Part:
    """A class or group: how often and how much it is clipped, and where clipping turns the step as seen from it.

    own: cosine of the part's clipped and true mean gradient; true_step, clipped_step: cosine of everyone's true and
    clipped mean with the part's true mean, so a clipped step that serves the part worse has the smaller one.
    """

    by: str
    name: str
    n: int
    clipped: Estimate
    factor: Estimate
    own: float
    true_step: float
    clipped_step: float


@dataclass(frozen=True, kw_only=True)
class ClippingBias(Result):
    """How clipping changes the mean gradient, and whom it shortens.

    headline: `R`, `cosine` (of clipped and true mean gradient; left out where one of them cannot be told from 0),
    `clipped` (share of units), `factor` (mean); with a twin `twin R` and `twin cosine`, the same at the twin's weights.
    values: `bounds` on `<c, gbar/||gbar||>` with their values, whether they apply and hold; `batches`, the same checks on
    random batches in the limit of a small bound, where the printed theorem's condition is met; `parts`.
    Reference: Watson et al. 2023, arXiv:2311.06839, section 3 (R). Deviation: their Theorem 3.2 is false and shown only
    beside bounds that are proven; R of a sample is debiased.
    """

    kind: ClassVar[str] = "clipping-bias"
    title: ClassVar[str] = "How clipping turns the gradient"

    @property
    def partitions(self) -> list[str]:
        """`class` (unless it is a regression), then the group columns."""
        return list(self.values["hidden"])

    def parts(self, by: str = "class") -> list[Part]:
        """The classes, or the groups of a column, that are large enough to be shown."""
        return [Part(**raw) for raw in self.values["parts"] if raw["by"] == by]

    @property
    def bounds(self) -> dict[str, dict[str, Any]]:
        """`printed`, `corrected`, `one-sided`, `general`: value, applies (its condition is met), holds."""
        return self.values["bounds"]

    @property
    def batches(self) -> list[dict[str, float]]:
        """Random batches: their own R, alignment, projection and bounds.

        `debiased_ratio` is None where the batch's mean cannot be told from 0.
        """
        return self.values["batches"]

    def printed_holds(self) -> Estimate | None:
        """In which share of batches `1 - R/2` is kept; None without batches."""
        kept = [batch["alignment"] >= batch["printed"] - ROUNDING for batch in self.batches]
        return intervals.share(kept, self.settings["level"]) if kept else None

    def plot(self, ax: Axes) -> Axes:
        """Alignment of random batches over their R, with the printed and the proven lower bound."""
        ratios = [batch["ratio"] for batch in self.batches] or [self.headline["R"].value]
        low, high = min([*ratios, 0.05]) / 1.5, max([*ratios, 3.0]) * 1.5
        grid = np.geomspace(low, high, 200)
        ax.axhline(0, color=FAINT, linewidth=1)
        printed = [max(printed_bound(1, r), -1.2) for r in grid]
        ax.plot(grid, printed, color=TWIN, linestyle="--", label="printed, false: 1 − R/2")
        ax.plot(grid, [corrected_bound(1, r) for r in grid], color=INK, label="proven: (1 − R)/(1 + R)")
        if self.batches:
            alignments = [batch["alignment"] for batch in self.batches]
            ax.plot(ratios, alignments, "o", color=PRIVATE, markersize=5, label="random batches")
        ax.set_xscale("log")
        ax.set_ylim(-1.1, 1.1)
        ax.legend(frameon=False, fontsize="small", loc="lower left")
        return dress(ax, "R of the batch", "mean cosine with the batch's mean")

    def _plot_parts(self, ax: Axes, by: str) -> Axes:
        parts = sorted(self.parts(by), key=lambda part: part.clipped.value)
        for row, part in enumerate(parts):
            dot(ax, part.clipped, row, PRIVATE)
        name_rows(ax, [part.name for part in parts])
        ax.set_xlim(-2, 102)
        return dress(ax, f"units that are clipped, by {by}, %")

    def _plot_turn(self, ax: Axes, by: str) -> Axes:
        parts = sorted(self.parts(by), key=lambda part: part.true_step - part.clipped_step)
        for row, part in enumerate(parts):
            ax.plot([part.true_step, part.clipped_step], [row, row], color=FAINT, linewidth=2.5, zorder=1)
            face = ax.get_facecolor()
            ax.plot(
                [part.true_step], [row], "D", color=TWIN, markerfacecolor=face, markersize=6, label="without clipping"
            )
            ax.plot([part.clipped_step], [row], "o", color=PRIVATE, markersize=6, label="clipped")
        ax.axvline(0, color=INK, linewidth=1)
        name_rows(ax, [part.name for part in parts])
        return dress(ax, f"cosine of the step with what each {by} needs")

    def figures(self) -> list[Figure]:
        """The bounds; who is clipped; where the step turns."""
        found = [
            Figure("Alignment of random batches and its lower bounds", " ".join(self.sentences()[:3]), self.plot, 9)
        ]
        for by in self.partitions:
            rows = len(self.parts(by))
            if not rows:
                continue
            words = "; ".join(f"{part.name}: {percent(part.clipped)}" for part in self.parts(by))
            caption = f"Share of units that are clipped, by {by}, most on top"
            found.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_parts, by=by), rows))
            words = "; ".join(
                f"{part.name}: {fixed(part.true_step)} without, {fixed(part.clipped_step)} with"
                for part in self.parts(by)
            )
            caption = f"Whom the clipped step (filled) serves worse than the true one (hollow), by {by}: worst on top"
            found.append(Figure(caption, f"{caption}. {words}.", partial(self._plot_turn, by=by), rows))
        return found

    def sentences(self) -> list[str]:
        """How many are clipped, how far the step turns, which bounds hold, who is clipped most."""
        ratio, clipped, cosine = self.headline["R"], self.headline["clipped"], self.headline.get("cosine")
        turned = (
            "The clipped or the true mean gradient cannot be told from 0, so there is no angle between them"
            if cosine is None
            else f"The clipped mean gradient has cosine {_with_interval(cosine)} with the true one (1: clipping does not "
            "turn it)"
        )
        said = [
            f"{percent(clipped)} of {clipped.n:,} units are clipped; on average a gradient keeps "
            f"{100 * self.headline['factor'].value:.0f} % of its length.",
            f"{turned}; gradients differ from their mean by R = {_with_interval(ratio)} of its squared length.",
        ]
        if (kept := self.printed_holds()) is not None:
            said.append(
                f"The published bound 1 − R/2, which is not a theorem, holds in {sum(self._kept('printed'))} of {kept.n} "
                f"random batches; the proven (1 − R)/(1 + R) in {sum(self._kept('corrected'))}, the general one in "
                f"{sum(batch['projection'] >= batch['general'] - ROUNDING for batch in self.batches)}."
            )
        for by in self.partitions:
            parts = self.parts(by)
            if len({part.clipped.value for part in parts}) > 1:
                most, least = (pick(parts, key=lambda part: part.clipped.value) for pick in (max, min))
                said.append(
                    f"{titled(by)} {most.name} is clipped most ({percent(most.clipped)}), "
                    f"{least.name} least ({percent(least.clipped)})."
                )
            if (hidden := self.values["hidden"][by])["parts"]:
                said.append(
                    f"{hidden['parts']} parts by {by} with fewer than {SMALLEST} people each ({hidden['people']} people in "
                    "all) are not shown."
                )
        return said

    def _kept(self, name: str) -> list[bool]:
        return [batch["alignment"] >= batch[name] - ROUNDING for batch in self.batches]

    def tables(self) -> list[Table]:
        """The bounds; the parts."""
        level = level_of(self.headline["clipped"])
        rows = [
            [name, number(entry["value"]), "yes" if entry["applies"] else "no", _said(entry)]
            for name, entry in self.bounds.items()
        ]
        parts = [
            [
                f"{part.by} {part.name}",
                f"{part.n:,}",
                share_cell(part.clipped),
                fixed_cell(part.factor),
                fixed(part.own),
                fixed(part.true_step),
                fixed(part.clipped_step),
            ]
            for by in self.partitions
            for part in self.parts(by)
        ]
        projection = number(self.values["projection"])
        return [
            Table(f"Lower bounds on the clipped step's way in the true direction, {projection}",
                  ["bound", "value", "its condition is met", "holds"], rows),
            Table(f"Who is clipped, {level} intervals; cosines of mean gradients",
                  ["", "people", "clipped, %", "mean factor", "own, clipped", "step, true", "step, clipped"], parts),
        ]  # fmt: skip


def _said(entry: Mapping[str, Any]) -> str:
    return "yes" if entry["holds"] else "no"


def _with_interval(e: Estimate) -> str:
    if e.low == e.high:
        return number(e.value)
    return f"{number(e.value)} ({level_of(e)} interval {number(e.low)} to {number(e.high)})"


def clipping_bias(
    model: nn.Module,
    data: Data,
    *,
    mechanism: Mechanism | None = None,
    clip: Clip | None = None,
    loss_fn: LossFn | None = None,
    support: Support | None = None,
    twin: nn.Module | None = None,
    generator: np.random.Generator | None = None,
    progress: bool = False,
    units: int | None = None,
    batches: int = 20,
    batch_size: int = 64,
    level: float = LEVEL,
) -> ClippingBias:
    """Compare the clipped mean gradient of `data` with the true one, at the model's weights.

    `R = mean ||g_i - gbar||^2 / ||gbar||^2`. Does not retrain; two passes over the gradients of all units, seconds to
    minutes. Gradients are those of evaluation mode, without augmentation. A person's class is that of the first row.

    Args:
        model: the released model.
        data: usually the training part; anything computed from it is private unless it is public.
        mechanism: says how gradients are clipped (the rule of the last step), or
        clip: the rule itself.
        loss_fn: `(model, batch) -> [batch]`; by default cross-entropy for classes, squared error for numbers.
        support: which coordinates learn, where the mechanism's changes from step to step.
        twin: a second model, measured at its own weights.
        generator: draws the units and the batches; a fixed one by default.
        progress: show a bar.
        units: measure a random sample of so many units, with debiased estimates; all by default.
        batches: random batches on which the published bound is checked, in the limit of a small bound.
        batch_size: of those.
        level: of the intervals.
    """
    import torch

    rule, support = chosen_rule(mechanism, clip, support)
    loss = chosen_loss(loss_fn, data)
    draw = np.random.default_rng(0) if generator is None else generator
    index = _sample(data, units, draw)
    by_name = partitions(data, index)
    # places are people here, not rows
    shown = {by: {name: rows for name, rows in parts.items() if len(rows) >= SMALLEST} for by, parts in by_name.items()}
    flat = [(by, name, rows) for by, parts in shown.items() for name, rows in parts.items()]
    settings: dict[str, Any] = {"loss_fn": loss, "clip": rule, "support": support}
    batch_size = min(batch_size, data.units)
    work = 2 * len(index) * (1 if twin is None else 2) + 2 * batches * batch_size
    with Bar(progress, work) as advance:
        layout = layout_of(model, data, loss)
        groups = [rows for _, _, rows in flat]
        found = measure(model, data, index, layout=layout, parts=groups, advance=advance, **settings)
        other = None if twin is None else measure(twin, data, index, advance=advance, **settings).moments
        checks = []
        for _ in range(batches):
            chosen = torch.from_numpy(draw.choice(data.units, batch_size, replace=False))
            checks.append(_check(measure(model, data, chosen, layout=layout, advance=advance, **settings).moments))
    moments = found.moments
    clipped, factor = _clipped_and_factor(rule, data, index, moments)
    headline = {
        "R": moments.ratio(level),
        "cosine": moments.cosine(level),
        "clipped": intervals.share(clipped, level),
        "factor": intervals.mean(factor, level, floor=0.0),
    }
    if other is not None:
        headline |= {"twin R": other.ratio(level), "twin cosine": other.cosine(level)}
    headline = {name: e for name, e in headline.items() if not math.isnan(e.value)}
    parts = [
        vars(Part(by, name, len(rows), intervals.share(clipped[rows], level), intervals.mean(factor[rows], level, floor=0.0),
                  *_turns(found, place)))
        for place, (by, name, rows) in enumerate(flat)
    ]  # fmt: skip
    hidden = {
        by: {
            "parts": len(parts_of) - len(shown[by]),
            "people": len(index) - sum(len(rows) for rows in shown[by].values()),
        }
        for by, parts_of in by_name.items()
    }
    return ClippingBias(
        headline=headline,
        values={
            "projection": moments.projection,
            "alignment": moments.alignment,
            "mean_norm": moments.mean_norm,
            "clipped_mean_norm": float(found.clipped.norm()),
            "norm_quantiles": {f"{q:g}": float(np.quantile(moments.lengths, q)) for q in QUANTILES},
            "bounds": _bounds(moments, rule),
            "batches": checks,
            "parts": parts,
            "hidden": hidden,
        },
        settings={
            "clip": repr(rule), "units": len(index), "population": data.units, "batches": batches,
            "batch_size": batch_size, "level": level, "smallest_part": SMALLEST,
        },
        status=gradient_status(data, twin),
    )  # fmt: skip


def _sample(data: Data, units: int | None, draw: np.random.Generator) -> Tensor:
    import torch

    if units is None or units == data.units:
        return torch.arange(data.units)
    if not 2 < units < data.units:
        raise ConfigError(f"units={units!r}: a whole number from 3 to the {data.units} units of the data, or None.")
    return torch.from_numpy(np.sort(draw.choice(data.units, units, replace=False)))


def _clipped_and_factor(rule: Clip, data: Data, units: Tensor, moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    """Was each unit clipped, and the share of its gradient's length that was kept."""
    import torch

    labels = group_labels(rule, data, units)
    norms, factors = torch.from_numpy(moments.norms), torch.from_numpy(moments.factors)
    clipped = clipped_units(rule, norms, factors, labels).numpy()
    lengths = moments.lengths
    # a gradient of length 0 has no length to keep: its own factor counts
    kept = np.divide(moments.clipped_lengths, lengths, out=moments.factors.mean(0), where=lengths > 0)
    return clipped, kept


def _check(moments: Moments) -> dict[str, float | None]:
    """A batch taken for itself: every inequality is about exactly these gradients."""
    ratio = moments.plain_ratio
    return {
        "ratio": ratio,
        "debiased_ratio": value if math.isfinite(value := moments.debiased_ratio) else None,
        "alignment": moments.alignment,
        "printed": printed_bound(1.0, ratio),
        "corrected": corrected_bound(1.0, ratio),
        "projection": moments.projection,
        "general": moments.general_bound,
    }


def _bounds(moments: Moments, rule: Clip) -> dict[str, dict[str, Any]]:
    """All lower bounds on the projection, of the measured gradients themselves."""
    bound, ratio = rule.sensitivity, moments.plain_ratio
    full = moments.norms.shape[0] == 1 and bool(np.allclose(moments.clipped_lengths, bound, rtol=1e-6))
    forward = full and bool((moments.on_mean.sum(0) >= 0).all())
    projection = moments.projection
    found = {
        "printed": (printed_bound(bound, ratio), full),
        "corrected": (corrected_bound(bound, ratio), full),
        "one-sided": (one_sided_bound(bound, ratio), forward),
        "general": (moments.general_bound, True),
    }
    return {
        name: {"value": value, "applies": applies, "holds": bool(projection >= value - ROUNDING * bound)}
        for name, (value, applies) in found.items()
    }


def _turns(found: Measured, part: int) -> tuple[float, float, float]:
    own, clipped = found.own_means[part], found.own_clipped[part]
    return _angle(clipped, own), _angle(found.mean, own), _angle(found.clipped, own)


def _angle(first: Tensor, second: Tensor) -> float:
    lengths = float(first.norm() * second.norm())
    return float(first @ second) / lengths if lengths > 0 else 0.0  # a mean of length 0 has no direction
