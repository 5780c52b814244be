"""Phases: another mechanism, or none, for the first part of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from noisewise.adaptive import Adaptive
from noisewise.clipping import Clip
from noisewise.errors import ConfigError
from noisewise.mechanism import Mechanism
from noisewise.recipe import MakeOptimizer, Phase, Recipe, cut
from noisewise.repairs.base import Cost, Repair
from noisewise.sampling import Poisson, roomy, steps_for
from noisewise.schedule import Schedule
from noisewise.training.ablation import Ablation


@dataclass(frozen=True)
class FirstPhase(Repair):
    """The first epochs under another clipping rule, noise, batch size or ablation; the rest by the recipe, as it is.

    What the phase does not name is as in the recipe without its other repairs: their rules and masks begin after it, while
    a changed model, and parameters that never learn, are the same in both. An adaptive rule starts anew. With another
    `batch_size` the phase has as many epochs in another number of steps; what follows begins where it would have begun.
    With an `ablation` (plain, clip-only, noise-only) the phase has no privacy: epsilon is infinite, everywhere. Cost: free
    if only the rule changes, ledger if noise or batch size do or the rule asks something, not private with an ablation. To let
    several second phases go on from one copy of a first one, see `noisewise.recipe.continued`. Reference: Watson et al.
    2023, arXiv:2311.06839. Deviation: none.
    """

    epochs: float
    ablation: Ablation = "private"
    clip: Clip | None = None
    noise_multiplier: float | None = None
    batch_size: int | None = None
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
        return "ledger" if asks or self.noise_multiplier is not None or self.batch_size is not None else "free"

    def apply(self, recipe: Recipe) -> Recipe:
        """Cuts the plan in two."""
        first, rest = cut(recipe.mechanism, self.epochs, self.name)
        changed: dict[str, Any] = {"clip": self.clip, "noise_multiplier": self.noise_multiplier}
        mechanism = replace(first, **{name: value for name, value in changed.items() if value is not None})
        if self.batch_size is not None:
            mechanism = _in_batches(mechanism, self.batch_size, self.epochs)
        phase = Phase(mechanism=mechanism, ablation=self.ablation, optimizer=self.optimizer or recipe.optimizer)
        return replace(recipe, phases=(*recipe.phases, phase), mechanism=rest)


def _in_batches(mechanism: Mechanism, size: int, epochs: float) -> Mechanism:
    """As many epochs in Poisson batches of another size; where batches are cut, to the roomy cap of that size."""
    sampler = mechanism.sampler
    if not isinstance(sampler, Poisson):
        raise ConfigError(
            f"first phase: batch_size={size!r} with {sampler.words} batches: only Poisson batches may change their size. "
            "Use noisewise.Poisson, or leave it out."
        )
    if size == sampler.batch_size:
        raise ConfigError(f"first phase: batch_size={size!r} is the recipe's own. Leave it out.")
    if isinstance(mechanism.clip, Schedule) or isinstance(mechanism.noise_multiplier, Schedule):
        raise ConfigError(
            f"first phase: batch_size={size!r} with a schedule over the steps of the recipe's batches: its steps would mean "
            "other epochs. Give the phase a rule and a noise multiplier of its own."
        )
    other = Poisson(sampler.n, size, None if sampler.max_batch is None else roomy(size))
    return replace(mechanism, sampler=other, steps=steps_for(epochs, sampler.n, size))
