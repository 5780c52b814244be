"""Phases: another mechanism, or none, for the first part of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from noisewise.adaptive import Adaptive
from noisewise.clipping import Clip
from noisewise.recipe import MakeOptimizer, Phase, Recipe, cut
from noisewise.repairs.base import Cost, Repair
from noisewise.training.ablation import Ablation


@dataclass(frozen=True)
class FirstPhase(Repair):
    """The first epochs under another clipping rule, noise or ablation; the rest by the recipe, from the same weights.

    What the phase does not name is as in the recipe without its other repairs: their rules and masks begin after it, while
    a changed model, and parameters that never learn, are the same in both. An adaptive rule starts anew.
    With an `ablation` (plain, clip-only, noise-only) the phase has no privacy: epsilon is infinite, everywhere. Cost: free
    if only the rule changes, ledger if the noise does or the rule asks something, not private with an ablation. To let
    several second phases go on from one copy of a first one, see `noisewise.recipe.continued`. Reference: Watson et al.
    2023, arXiv:2311.06839. Deviation: none.
    """

    epochs: float
    ablation: Ablation = "private"
    clip: Clip | None = None
    noise_multiplier: float | None = None
    optimizer: MakeOptimizer | None = None
    name = "first phase"
    changes = "the first epochs"
    reference = "Watson et al. 2023, arXiv:2311.06839"
    claims = ("phases",)
    order = 1

    @property
    def cost(self) -> Cost:  # type: ignore[override]
        """By what differs in the phase."""
        if self.ablation != "private":
            return "not-private"
        asks = isinstance(self.clip, Adaptive)
        return "ledger" if asks or self.noise_multiplier is not None else "free"

    def apply(self, recipe: Recipe) -> Recipe:
        """Cuts the plan in two."""
        first, rest = cut(recipe.mechanism, self.epochs, self.name)
        changed: dict[str, Any] = {"clip": self.clip, "noise_multiplier": self.noise_multiplier}
        mechanism = replace(first, **{name: value for name, value in changed.items() if value is not None})
        phase = Phase(mechanism=mechanism, ablation=self.ablation, optimizer=self.optimizer or recipe.optimizer)
        return replace(recipe, phases=(*recipe.phases, phase), mechanism=rest)
