"""DPSGD-F: groups that are clipped more often get a larger bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from noisewise.adaptive import GroupBounds as Rule
from noisewise.errors import ConfigError
from noisewise.recipe import Recipe
from noisewise.repairs.base import Cost, Repair
from noisewise.repairs.global_clipping import bound_of


@dataclass(frozen=True)
class GroupBounds(Repair):
    """`C_k = C0 (1 + (m_k / b_k) / (m / b))` for each group k of people, from noised counts of the step before.

    Cost: ledger; the counts leave together with the gradient as one Gaussian mechanism, and noise follows the largest bound.
    Reference: DPSGD-F, Xu, Du, Wu 2021, arXiv:2003.03699. Deviation: see `noisewise.adaptive.GroupBounds`.
    """

    group: str
    limit: float = 10.0
    noise: float | None = None
    name = "group bounds"
    changes = "the clipping rule: one bound for each group, from noised counts"
    reference = "Xu, Du, Wu 2021, arXiv:2003.03699"
    claims = ("rule",)
    order = 2
    cost: ClassVar[Cost] = "ledger"

    def apply(self, recipe: Recipe) -> Recipe:
        """The adaptive rule for the groups that the data declares."""
        data = recipe.data.train
        if self.group not in data.groups:
            raise ConfigError(
                f"{self.name}: the data has no groups {self.group!r}; it has {list(data.groups) or 'none'}."
            )
        if self.group not in data.group_names:
            raise ConfigError(
                f"{self.name}: how many groups {self.group!r} there are must be declared, not counted in private rows: "
                f"Data(group_names={{{self.group!r}: (...)}})."
            )
        bound, count = bound_of(recipe, self.name), len(data.group_names[self.group])
        rule = Rule(self.group, count, bound, self.limit, self.noise)
        return replace(recipe, mechanism=replace(recipe.mechanism, clip=rule))
