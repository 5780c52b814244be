"""Gradients of units at fixed weights: their lengths and inner products, the rule that clips them, and who may see them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from noisewise import support as supports
from noisewise.adaptive import Adaptive, GroupBounds
from noisewise.audits.outputs import device_of, evaluating, status_of
from noisewise.audits.people import named_parts
from noisewise.batches import Views, map_tensors, take
from noisewise.clipping import Samples
from noisewise.errors import ConfigError, DataError
from noisewise.estimates import intervals
from noisewise.estimates.estimate import LEVEL, Estimate
from noisewise.losses import loss_for
from noisewise.runs.folder import Status
from noisewise.support import Fixed, live_parameters
from noisewise.theory.watson2023 import general_bound

if TYPE_CHECKING:
    from torch import Tensor, nn

    from noisewise.batches import Views
    from noisewise.clipping import Clip
    from noisewise.data import Data
    from noisewise.losses import LossFn
    from noisewise.mechanism import Mechanism
    from noisewise.persample import Layout
    from noisewise.support import Support


CHUNK = 1 << 22  # numbers of per-unit gradients in memory at a time
SHORT = 1e-6  # a gradient this short, in multiples of the bound, is left alone by every rule that leaves any alone


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
        inverse = self._estimate(self._inverse_ratio, level)
        value, low, high = (1 / s if s > 0 else math.inf for s in (inverse.value, inverse.high, inverse.low))
        return Estimate(value, low, high, inverse.n, level, inverse.method)

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
        with_itself = (weights[first] * weights[second] * self.norms**2).sum(0)  # x_i . y_i
        forth = (weights[first] * towards[second]).sum(0)  # x_i . ybar
        back = (weights[second] * towards[first]).sum(0)
        b, mean, means = self.units, with_itself.mean(), forth.mean()
        if drop:
            mean = (b * mean - with_itself) / (b - 1)
            means = (b * b * means - b * forth - b * back + with_itself) / (b - 1) ** 2
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

    from noisewise.persample import engines

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
        masked = {}
        for name in live:
            gradient = measured[name][1].formed().detach().flatten(1).double()
            mask = support.get(name, True)
            masked[name] = gradient if isinstance(mask, bool) else gradient * mask.to(device).flatten()
            if not bool(gradient.isfinite().all()):
                raise DataError(
                    f"gradients of {name!r} that are not finite: the model or the data overflows. Look at the loss, or "
                    "scale the inputs."
                )
        yield place, masked


def layout_of(model: nn.Module, data: Data, loss_fn: LossFn) -> Layout:
    """What the gradient engine must know of the model, found on synthetic inputs."""
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
    for place, by_name in gradients(model, data, units, loss_fn=loss_fn, support=support, layout=layout):
        owner = clip.blocks(by_name)
        blocks = [owner[name] for name in by_name]
        squares = torch.stack([gradient.square().sum(1) for gradient in by_name.values()])
        lengths = block_norms(squares, blocks)
        factor = rule_factors(clip, lengths, None if labels is None else labels[place])
        norms.append(lengths)
        factors.append(factor)
        flat = torch.cat(list(by_name.values()), 1)
        shortened = torch.cat([factor[owner[name]].unsqueeze(1) * gradient for name, gradient in by_name.items()], 1)
        here = member[:, place].to(flat.device)
        mean, clipped = mean + flat.sum(0).cpu(), clipped + shortened.sum(0).cpu()
        own_means, own_clipped = own_means + (here @ flat).cpu(), own_clipped + (here @ shortened).cpu()
        sizes = [gradient.shape[1] for gradient in by_name.values()]
        advance(place.stop - place.start)
    mean, clipped = mean / len(units), clipped / len(units)
    on_mean: list[Tensor] = []
    on_clipped: list[Tensor] = []
    for place, by_name in gradients(model, data, units, loss_fn=loss_fn, support=support, layout=layout):
        for vector, along in ((mean, on_mean), (clipped, on_clipped)):
            pieces = zip(by_name.values(), vector.split(sizes), strict=True)
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
    return clip.factors(Samples(norms, None if groups is None else groups.to(norms.device)))


def clipped_units(clip: Clip, norms: Tensor, factors: Tensor, groups: Tensor | None = None) -> Tensor:
    """Units that the rule shortens more than it would a very short gradient, in any block.

    `Flat`: factor below 1; `Global`: screened out; rules that normalise: everyone.
    """
    free = rule_factors(clip, norms.new_full(norms.shape, SHORT * clip.sensitivity), groups)
    return (factors < free * (1 - 1e-9)).any(0)


def chosen_rule(mechanism: Mechanism | None, clip: Clip | None, support: Support | None) -> tuple[Clip, Support]:
    """Rule and support of a mechanism's last step, or those that were given."""
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
    return loss_for(data) if loss_fn is None else loss_fn


def gradient_status(data: Data, twin: nn.Module | None) -> Status:
    """Gradients of people who did not agree to be shown are as private as the people."""
    status = status_of(data, twin)
    if twin is None and status.status != "private":
        return Status("not-private", "computed from exact gradients of private records: no ledger covers it")
    return status
