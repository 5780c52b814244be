"""Stage-wise freezing: small weights stop learning (or are set to zero) while training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from noisewise.errors import ConfigError
from noisewise.recipe import Recipe, with_support
from noisewise.repairs.base import Repair
from noisewise.support import Fixed, Masked, Plan, Released, intersection, learning, plans_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from noisewise.support import Support

Scope = Literal["layer", "model"]


def prunable(weights: Mapping[str, Tensor], within: Support) -> dict[str, Tensor]:
    """Weights of layers (two or more dimensions) of which something learns; not biases, nor scales of normalisations."""
    left = learning(weights, within)
    return {name: weight for name, weight in weights.items() if weight.dim() > 1 and bool(left[name].any())}


def smallest(
    scores: Mapping[str, Tensor], open_to: Mapping[str, Tensor], share: float, scope: Scope
) -> dict[str, Tensor]:
    """Masks (1 = kept) without the coordinates of smallest score: exactly `round(share * size)` of each tensor or of all.

    Coordinates outside `open_to` count as chosen already; ties are broken by position.
    """
    import torch

    def cut(score: Tensor, free: Tensor) -> Tensor:
        wanted = max(round(share * len(score)) - int((~free).sum()), 0)
        keep, places = free.clone(), free.nonzero().squeeze(1)
        keep[places[score[places].argsort(stable=True)[:wanted]]] = False
        return keep

    flat = {name: score.detach().cpu().flatten() for name, score in scores.items()}
    free = {name: open_to[name].detach().cpu().flatten() for name in scores}
    if scope == "layer":
        kept = {name: cut(flat[name], free[name]) for name in scores}
    else:
        joint = cut(torch.cat(list(flat.values())), torch.cat(list(free.values())))
        parts = joint.split([len(score) for score in flat.values()])
        kept = dict(zip(scores, parts, strict=True))
    return {name: kept[name].view(scores[name].shape) for name in scores}


@dataclass(frozen=True)
class Stages(Plan):
    """From step `first[s]` on, a share `shares[s]` of the layers' weights is frozen: those of smallest magnitude.

    Frozen once, frozen for good; each stage ranks what still learns by the released weights of its first step.
    """

    first: tuple[int, ...]
    shares: tuple[float, ...]
    scope: Scope = "layer"
    order: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Growing steps and shares."""
        starts, shares = list(self.first), list(self.shares)
        if len(starts) != len(shares) or not starts or sorted(set(starts)) != starts or starts[0] < 0:
            raise ConfigError(
                f"stages that start at steps {starts} with shares {shares}: one growing step for each share."
            )
        if sorted(shares) != shares or not all(0 <= share < 1 for share in shares):
            raise ConfigError(
                f"frozen shares {shares}: growing numbers in [0, 1), counted from the start, e.g. .39 .63 .77."
            )
        if self.scope not in ("layer", "model"):
            raise ConfigError(
                f"scope={self.scope!r}: 'layer' ranks each tensor on its own, 'model' all of them together."
            )

    def period(self, step: int) -> int:
        """Stages that have begun."""
        return sum(first <= step for first in self.first)

    def at(self, step: int, released: Released, generator: torch.Generator) -> Support:
        """What learned before, without the smallest weights."""
        if not self.period(step):
            return {}
        share, before = self.shares[self.period(step) - 1], released.previous or {}
        weights = prunable(released.weights, released.within)
        scores = {name: weight.abs() for name, weight in weights.items()}
        return smallest(scores, learning(weights, {**dict.fromkeys(weights, True), **before}), share, self.scope)


@dataclass(frozen=True)
class PruningStages(Stages):
    """The same, and what is frozen is set to zero."""

    masked: ClassVar[Masked] = "zero"


@dataclass(frozen=True)
class StagewiseFreezing(Repair):
    """After given shares of the epochs, freeze the smallest weights, by 77 % in three stages by default.

    `mode`: `freeze` keeps the values, `prune` sets them to zero. Frozen coordinates stand still, bit for bit, whatever
    momentum or weight decay the optimizer has. Noise per coordinate stays the same; its sum falls, and what still learns
    gets more of the bound. Cost: free: weights are ranked as they were released. Reference: Xu & Chen 2026,
    arXiv:2603.04881, appendix G. Deviation: its listing is not known to us; stages and shares are
    ours, chosen on held-out Fashion-MNIST images (docs/repairs_measured.md) among three.
    """

    at: tuple[float, ...] = (0.25, 0.5, 0.75)
    shares: tuple[float, ...] = (0.39, 0.63, 0.77)
    mode: Literal["freeze", "prune"] = "freeze"
    scope: Scope = "layer"
    name = "stage-wise freezing"
    changes = "the support: fewer and fewer weights learn"
    reference = "Xu & Chen 2026, arXiv:2603.04881"
    claims = ("stages",)
    order = 6

    def apply(self, recipe: Recipe) -> Recipe:
        """The plan of stages."""
        if self.mode not in ("freeze", "prune"):
            raise ConfigError(f"mode={self.mode!r}: 'freeze' keeps the values, 'prune' sets them to zero.")
        if not all(0 < share < 1 for share in self.at):
            raise ConfigError(
                f"at={self.at}: shares of the run in (0, 1) after which a stage begins, e.g. (0.25, 0.5, 0.75)."
            )
        kind = Stages if self.mode == "freeze" else PruningStages
        plan = kind(tuple(round(share * recipe.mechanism.steps) for share in self.at), self.shares, self.scope)
        if not prunable(dict(recipe.model.named_parameters()), fixed_support(recipe)):
            raise ConfigError("stage-wise freezing: no layer's weight learns, so there is nothing to freeze.")
        return with_support(recipe, plan)


def fixed_support(recipe: Recipe) -> dict[str, Any]:
    """What a recipe freezes throughout."""
    return intersection(plan.support for plan in plans_of(recipe.mechanism.support) if isinstance(plan, Fixed))
