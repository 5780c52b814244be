"""Ranked sparsification: coordinates whose released gradients were small are masked in the next epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from noisewise.recipe import Recipe, with_support
from noisewise.repairs.base import Cost, Repair
from noisewise.repairs.random_sparsification import check_rate, epochs_of, masks_from_flat, sparsity
from noisewise.support import Masked, Observed, Plan, Released, learning

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from noisewise.support import Memory, Support


@dataclass(frozen=True)
class RankedMasks(Plan):
    """Mask the `round(r P)` coordinates with the smallest |z|, `z = sum over the last epoch's steps of released gradients`.

    Masked coordinates get noise of the same size in z (not in the update), as otherwise z would stay 0 there and nothing
    once masked would come back. Post-processing of releases.
    """

    final: float
    steps: int
    periods: int
    masked: ClassVar[Masked] = "drift"
    order: ClassVar[int] = 3

    def __post_init__(self) -> None:
        """Numbers in range."""
        check_rate(type(self).__name__, self.final, self.periods, self.steps)

    def period(self, step: int) -> int:
        """Number of the mask."""
        return min(step * self.periods // self.steps, self.periods - 1)

    def at(self, step: int, released: Released, generator: torch.Generator) -> Support:
        """All coordinates in the first period; later those whose sums were largest."""
        import torch

        weights = dict(released.weights)
        keep = torch.cat(list(learning(weights, released.within).values()))
        rate, sums = sparsity(self.period(step), self.periods, self.final, True), _sums(released.memory)
        if sums and rate:
            empty = {name: torch.zeros(weight.numel()) for name, weight in weights.items()}
            size = torch.cat(
                [sums[name].detach().cpu().flatten().abs() if name in sums else empty[name] for name in weights]
            )
            places = keep.nonzero().squeeze(1)
            order = places[size[places].argsort(stable=True)]
            keep[order[: round(rate * len(places))]] = False
        return masks_from_flat(keep, weights)

    def observe(self, memory: Memory, observed: Observed, generator: torch.Generator) -> Memory:
        """Add a step's gradient to the sum of its period; the first step of a period starts a new sum."""
        import torch

        counted = int(memory["steps"]) if "steps" in memory else 0
        fresh = counted == 0 or self.period(counted) != self.period(counted - 1)
        kept: Memory = {"steps": torch.tensor(counted + 1)}
        for name, gradient in observed.gradient.items():
            seen = gradient.detach()
            mask = observed.support.get(name, True)
            if not isinstance(mask, bool) and observed.std:
                noise = torch.randn(seen.shape, generator=generator, dtype=torch.float32).to(seen)
                seen = torch.where(mask.to(seen.device), seen, observed.std * noise)
            before = None if fresh else memory.get(f"sum {name}")
            kept[f"sum {name}"] = seen.clone() if before is None else before.to(seen.device) + seen
        return kept


def _sums(memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix("sum "): value for key, value in memory.items() if key.startswith("sum ")}


@dataclass(frozen=True)
class UnnoisedRankedMasks(RankedMasks):
    """The same by sums without noise: a control that is not private."""

    unnoised: ClassVar[bool] = True


@dataclass(frozen=True)
class RankedSparsification(Repair):
    """Mask what had the smallest released gradients in the epoch before, from none to a share `final`.

    Cost: free, since the ranking is made from releases. With `unnoised`, by sums without noise: the paper's comparison, not
    private, and every artefact says so. Reference: Zhu & Blaschko 2023, arXiv:2112.00845, Algorithm 4. Deviation: the update
    uses the noised gradient (the printed line 20 does not).
    """

    final: float = 0.9
    unnoised: bool = False
    name = "ranked sparsification"
    changes = "the support: masks ranked by released gradients"
    reference = "Zhu & Blaschko 2023, arXiv:2112.00845"
    claims = ("draw",)
    order = 6

    @property
    def cost(self) -> Cost:  # type: ignore[override]
        """Free, or not private without noise."""
        return "not-private" if self.unnoised else "free"

    def apply(self, recipe: Recipe) -> Recipe:
        """The plan of masks, as long as the recipe's mechanism."""
        kind = UnnoisedRankedMasks if self.unnoised else RankedMasks
        return with_support(recipe, kind(self.final, recipe.mechanism.steps, epochs_of(recipe)))
