"""Global-Adapt: global scaling whose screen follows a noised count."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from noisewise.adaptive import GlobalAdapt as Rule
from noisewise.recipe import Recipe
from noisewise.repairs.base import Cost, Repair
from noisewise.repairs.global_clipping import bound_of


@dataclass(frozen=True)
class GlobalAdapt(Repair):
    """`f(n) = C / max(n, Z)`, with Z shrinking unless a noised count says that many gradients exceed it.

    Cost: ledger; the count leaves together with the gradient as one Gaussian mechanism. Reference: Esipova et al. 2022,
    arXiv:2206.07737. Deviation: the count is centred (see `noisewise.adaptive.GlobalAdapt`).
    """

    screen: float = 100.0
    rate: float = 0.1
    tau: float = 1.0
    noise: float | None = None
    name = "global-adapt"
    changes = "the clipping rule, whose screen follows a noised count"
    reference = "Esipova et al. 2022, arXiv:2206.07737"
    claims = ("rule",)
    order = 2
    cost: ClassVar[Cost] = "ledger"

    def apply(self, recipe: Recipe) -> Recipe:
        """The adaptive rule with the recipe's bound."""
        rule = Rule(bound_of(recipe, self.name), self.screen, self.rate, self.tau, self.noise)
        return replace(recipe, mechanism=replace(recipe.mechanism, clip=rule))
