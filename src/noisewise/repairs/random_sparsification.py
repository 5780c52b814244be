"""Random sparsification: only a random part of the coordinates learns in each epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from noisewise.errors import ConfigError
from noisewise.recipe import Recipe, with_support
from noisewise.repairs.base import Repair
from noisewise.support import Masked, Plan, Released, learning

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from noisewise.support import Support


def sparsity(period: int, periods: int, final: float, cooling: bool) -> float:
    """`r_e = r* e / (E - 1)`: from 0 to the final rate; always the final rate without cooling."""
    return final * period / (periods - 1) if cooling and periods > 1 else final


def masks_from_flat(keep: Tensor, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Masks by parameter from one flat mask over all of them."""
    parts = keep.split([weight.numel() for weight in weights.values()])
    return {name: part.view(weight.shape) for (name, weight), part in zip(weights.items(), parts, strict=True)}


def check_rate(plan: str, final: float, periods: int, steps: int) -> None:
    """A share in [0, 1), and no more masks than steps."""
    if not 0 <= final < 1:
        raise ConfigError(f"{plan}(final={final!r}): a share of masked coordinates in [0, 1), e.g. 0.7.")
    if type(periods) is not int or type(steps) is not int or not 1 <= periods <= steps:
        raise ConfigError(f"{plan}(periods={periods!r}, steps={steps!r}): from 1 to as many masks as steps.")


@dataclass(frozen=True)
class RandomMasks(Plan):
    """Exactly `round(r P)` of the P coordinates that are left are masked, anew in each of `periods` periods.

    Masks are a function of the public seed and the period: they never see data or weights.
    """

    final: float
    steps: int
    periods: int
    cooling: bool = True
    masked: ClassVar[Masked] = "drift"
    seeded: ClassVar[bool] = True
    order: ClassVar[int] = 3

    def __post_init__(self) -> None:
        """Numbers in range."""
        check_rate("RandomMasks", self.final, self.periods, self.steps)

    def period(self, step: int) -> int:
        """Number of the mask."""
        return min(step * self.periods // self.steps, self.periods - 1)

    def at(self, step: int, released: Released, generator: torch.Generator) -> Support:
        """A random mask over all coordinates that are left, jointly."""
        import torch

        weights = dict(released.weights)
        keep = torch.cat(list(learning(weights, released.within).values()))
        places = keep.nonzero().squeeze(1)
        rate = sparsity(self.period(step), self.periods, self.final, self.cooling)
        dropped = places[torch.randperm(len(places), generator=generator)[: round(rate * len(places))]]
        keep[dropped] = False
        return masks_from_flat(keep, weights)


@dataclass(frozen=True)
class RandomSparsification(Repair):
    """A share of all coordinates, growing from 0 to `final` (gradual cooling), is masked; a new mask every epoch.

    `g_i <- m * g_i`, clipped, `+ m * N(0, (C sigma / B)^2)`: less noise in all, and what is kept gets more of the bound.
    `refreshes` masks per epoch. With momentum, masked coordinates go on by their old velocity, as in the paper. Its two
    ablations are `train(..., ablation="noise-only")` (Algorithm 2; noise std sigma C) and `"clip-only"` (Algorithm 3) with
    this plan. Cost: free. Reference: Zhu & Blaschko 2023, TMLR, Algorithm 1, arXiv:2112.00845. Deviation: counts are
    rounded, not cut off. The default rate was chosen on held-out Fashion-MNIST images (docs/repairs_measured.md)
    among 0.5, 0.7 and 0.9.
    """

    final: float = 0.9
    cooling: bool = True
    refreshes: int = 1
    name = "random sparsification"
    changes = "the support: random masks"
    reference = "Zhu & Blaschko 2023, arXiv:2112.00845"
    claims = ("draw",)
    order = 6

    def apply(self, recipe: Recipe) -> Recipe:
        """The plan of masks, as long as the recipe's mechanism."""
        periods = epochs_of(recipe) * self.refreshes
        return with_support(recipe, RandomMasks(self.final, recipe.mechanism.steps, periods, self.cooling))


def epochs_of(recipe: Recipe) -> int:
    """Whole passes over the data that the mechanism makes, at least one."""
    return max(1, round(recipe.mechanism.steps * recipe.mechanism.sampler.rate))
