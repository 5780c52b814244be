"""A run of the two-layer network on two-patch data while it learns: its filters, outputs, and each step taken apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from noisewise.audits.exact_ratio import noise_of_a_step
from noisewise.audits.gradients import rule_factors
from noisewise.estimates import intervals
from noisewise.estimates.estimate import Estimate
from noisewise.losses import cross_entropy
from noisewise.theory.xu2026 import Assumption, Limits, checked, expected_noise, expected_signal

if TYPE_CHECKING:
    from torch import Tensor

    from noisewise.data import Data
    from noisewise.data.synthetic import TwoPatch
    from noisewise.mechanism import Mechanism
    from noisewise.models import TwoLayerCNN
    from noisewise.training.ablation import Ablation


@dataclass(frozen=True)
class GroupView:
    """Means over the test points of one feature; `active`: share of the class's filters that the feature activates."""

    loss: float
    accuracy: float
    residual: float
    lowest_residual: float
    active: float


@dataclass(frozen=True)
class View:
    """One look at the weights: filters against features and noise patches, test points, features.

    weights: mean of f (1 - p_y) over each feature's training rows, which theory multiplies the signal by.
    """

    alignment: list[list[float]]
    noise_alignment: list[float]
    mean_noise_alignment: list[float]
    norms: list[float]
    losses: np.ndarray
    right: np.ndarray
    groups: list[GroupView]
    weights: list[float]


@dataclass(frozen=True)
class Split:
    """How far a step moved an output: in all, by signal, by noise, and by filters that turned on or off."""

    total: float
    signal: float
    noise: float
    switching: float


@dataclass(frozen=True)
class GroupMove:
    """A step on the test points of one feature: outputs of its class and of others, and what theory says of its class."""

    own: Split
    other: Split
    predicted_signal: float
    predicted_noise: float


@dataclass(frozen=True)
class Move:
    """One step: by feature, the largest move of an output, and squared lengths of its noise over what is expected."""

    groups: list[GroupMove]
    largest: float
    noise_lengths: list[float]


@dataclass(frozen=True)
class Final:
    """Test loss and accuracy of a feature at the end."""

    loss: Estimate
    accuracy: Estimate


@dataclass(frozen=True)
class Splits:
    """Moves of an output over the steps that were looked at, each the sum of signal, noise and switching filters."""

    total: list[float]
    signal: list[float]
    noise: list[float]
    switching: list[float]


@dataclass(frozen=True)
class Moves:
    """Means over a feature's test points: the class's output, other outputs, and what theory says of the class's."""

    own: Splits
    other: Splits
    predicted_signal: list[float]
    predicted_noise: list[float]


@dataclass(frozen=True)
class Group:
    """A feature and its test points.

    Series have a value for each of the result's `steps`: `loss`, `accuracy`, `residual` (mean 1 - p_y), `lowest_residual`,
    `active` (share of the class's filters that the feature activates); `moves` one for each but the last, of the step made
    there.
    """

    name: str
    label: int
    norm: float
    proportion: float
    final: Final
    loss: list[float]
    accuracy: list[float]
    residual: list[float]
    lowest_residual: list[float]
    active: list[float]
    moves: Moves


@dataclass(frozen=True)
class Scene:
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
        """Filters of each class, m."""
        return self.model.filters.out_features // self.model.outputs

    @property
    def weight(self) -> Tensor:
        """All filters, in double precision."""
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
        """Which rows carry each feature."""
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

        rows = self.train.take(batch)
        losses = cross_entropy(self.model, (rows.x, rows.y))
        (total,) = torch.autograd.grad((self.factors(rows, step) * losses).sum(), [self.model.filters.weight])
        return -self.rate * total.double() / self.plan.expected_batch_size

    def outputs(self, data: Data, weight: Tensor) -> Tensor:
        """F `[rows, classes]` of given weights, in double precision."""
        return (data.x.double() @ weight.T).relu().sum(1).unflatten(1, (self.model.outputs, -1)).mean(2)

    def look(self, step: int) -> View:
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
        return View(
            alignment=along.tolist(),
            noise_alignment=(weight @ directions.T).square().mean(1).sqrt().tolist(),
            mean_noise_alignment=(means @ directions.T).square().mean(1).sqrt().tolist(),
            norms=weight.norm(dim=1).tolist(),
            losses=losses.numpy(),
            right=right.numpy(),
            groups=[
                GroupView(
                    loss=float(losses[rows].mean()),
                    accuracy=float(right[rows].double().mean()),
                    residual=float(residual[rows].mean()),
                    lowest_residual=float(residual[rows].min()),
                    active=float(active[label, place]),
                )
                for place, (label, rows) in enumerate(zip(self.source.labels, self.members(self.test), strict=True))
            ],
            weights=self._weights(step),
        )

    def _weights(self, step: int) -> list[float]:
        """Mean of f (1 - p_y) over each feature's training rows, which theory multiplies the signal by."""
        import torch

        outputs = self.outputs(self.train, self.weight)
        residual = -torch.expm1(-torch.nn.functional.cross_entropy(outputs, self.train.y, reduction="none"))
        weights = residual * self.factors(self.train, step).double()
        return [float(weights[rows].mean()) if bool(rows.any()) else 0.0 for rows in self.members(self.train)]

    def move(self, before: Tensor, signal: Tensor, step: int, view: View) -> Move:
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
        for place, rows in enumerate(self.members(self.test)):
            label, norm = self.source.labels[place], float(self.source.norms[place])
            others = [k for k in range(self.model.outputs) if k != label]
            active_share = view.groups[place].active
            groups.append(
                GroupMove(
                    own=Split(**{key: float(of[rows, label].mean()) for key, of in split.items()}),
                    other=Split(**{key: float(of[rows][:, others].mean()) for key, of in split.items()}),
                    predicted_signal=expected_signal(
                        self.rate, self.source.proportions[place], view.weights[place], active_share, self.filters, norm
                    ),
                    predicted_noise=expected_noise(self.rate, sigma, norm, active_share, self.filters),
                )
            )
        lengths = (noise.square().sum(1) / (self.rate * sigma) ** 2 / noise.shape[1]).tolist() if sigma > 0 else []
        return Move(groups, float(total.abs().max()), lengths)

    def assumptions(self, views: Sequence[View], moves: Sequence[Move], limits: Limits) -> list[Assumption]:
        """How often each assumption of the theory held; those that do not apply are left out."""
        count, d = self.source.features.shape
        freedom = d - count if self.source.project else d
        norms, sigma, sigma_xi = self.source.norms.numpy(), self.sigma(self.plan.steps - 1), self.source.sigma_xi
        checks = []
        if sigma_xi > 0 and freedom:
            squares = self.noise_patches(self.train).square().sum(1) / (sigma_xi**2 * freedom)
            checks.append(checked("patch noise", squares.numpy(), limits.spread, "1 ±"))
            checks.append(checked("feature over patch", norms / (sigma_xi * math.sqrt(d)), limits.feature, "at least"))
        if lengths := [length for move in moves for length in move.noise_lengths]:
            checks.append(checked("step noise", lengths, limits.spread, "1 ±"))
        checks.append(checked("batch", [self.plan.sampler.rate], limits.batch, "at least"))
        if sigma > 0:
            checks.append(checked("feature over noise", norms / sigma, limits.ratio, "at least"))
        checks.append(checked("small steps", [move.largest for move in moves], limits.step, "at most"))
        lowest = [min(group.lowest_residual for group in view.groups) for view in views]
        checks.append(checked("non-perfect", lowest, limits.residual, "at least"))
        active = [group.active for view in views for group in view.groups]
        checks.append(checked("active filters", active, limits.active, "at least"))
        return checks

    def group(self, place: int, rows: np.ndarray, views: Sequence[View], moves: Sequence[Move], level: float) -> Group:
        """One feature over the run; `rows` are its test points."""
        source, last = self.source, views[-1]
        seen, moved = [view.groups[place] for view in views], [move.groups[place] for move in moves]
        return Group(
            name=source.names[place],
            label=source.labels[place],
            norm=float(source.norms[place]),
            proportion=source.proportions[place],
            final=Final(intervals.mean(last.losses[rows], level, floor=0.0), intervals.share(last.right[rows], level)),
            loss=[view.loss for view in seen],
            accuracy=[view.accuracy for view in seen],
            residual=[view.residual for view in seen],
            lowest_residual=[view.lowest_residual for view in seen],
            active=[view.active for view in seen],
            moves=Moves(
                own=_splits([move.own for move in moved]),
                other=_splits([move.other for move in moved]),
                predicted_signal=[move.predicted_signal for move in moved],
                predicted_noise=[move.predicted_noise for move in moved],
            ),
        )


def _splits(moves: Sequence[Split]) -> Splits:
    return Splits(**{key.name: [getattr(move, key.name) for move in moves] for key in fields(Split)})
