"""Global clipping, for a whole run or for its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from noisewise.clipping import Global
from noisewise.errors import ConfigError
from noisewise.recipe import MakeOptimizer, Recipe
from noisewise.repairs.base import Repair
from noisewise.schedule import Schedule

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class GlobalClipping(Repair):
    """Scale all gradients by C / Z and leave out those longer than Z: `f(n) = (C / Z) 1[n <= Z]`.

    Everybody's share of the step is equal, so the direction is that of the unclipped gradient while nobody is left out.
    The step is smaller by Z / C: compare with a baseline whose learning rate was lowered, or give `lr_factor`, by which
    the learning rate of every optimizer group is multiplied. The defaults go with a bound of 1 and were chosen on held-out
    Fashion-MNIST images (docs/repairs_measured.md), where this rule lost accuracy.
    Cost: free. Reference: Bu et al. 2022 (ICLR submission of arXiv:2106.07830). Deviation: divided by
    the expected batch size, not by the realised one.
    """

    screen: float = 25.0
    lr_factor: float = 0.625
    name = "global clipping"
    changes = "the clipping rule"
    reference = "Bu et al. 2022, arXiv:2106.07830"
    claims = ("rule",)
    order = 2

    def apply(self, recipe: Recipe) -> Recipe:
        """Global(C, Z) with the bound that the recipe has."""
        rule = Global(bound_of(recipe, self.name), self.screen)
        mechanism = replace(recipe.mechanism, clip=rule)
        return replace(recipe, mechanism=mechanism, optimizer=scaled_optimizer(recipe.optimizer, self.lr_factor))


@dataclass(frozen=True)
class LocalThenGlobal(Repair):
    """Clip locally for the first share of steps, globally afterwards, with the same C and sigma.

    The accountant sees one mechanism throughout. Cost: free. Reference: Bu et al. 2022 (mix-up of 95 % and 5 %).
    Deviation: none.
    """

    screen: float = 100.0
    share: float = 0.95
    name = "local then global clipping"
    changes = "the clipping rule of the last steps"
    reference = "Bu et al. 2022, arXiv:2106.07830"
    claims = ("rule",)

    def apply(self, recipe: Recipe) -> Recipe:
        """A schedule of two rules."""
        bound, steps = bound_of(recipe, self.name), recipe.mechanism.steps
        switch = round(self.share * steps)
        if not 0 < self.share < 1 or not 0 < switch < steps:
            raise ConfigError(
                f"{self.name}: share={self.share} of {steps} steps leaves no step on one side; e.g. 0.95."
            )
        rule = Schedule(((0, recipe.mechanism.clip_at(0)), (switch, Global(bound, self.screen))))
        return replace(recipe, mechanism=replace(recipe.mechanism, clip=rule))


def bound_of(recipe: Recipe, name: str) -> float:
    """The bound C of a recipe whose rule is one for all steps."""
    if isinstance(recipe.mechanism.clip, Schedule):
        raise ConfigError(
            f"{name}: the recipe already has a schedule of clipping rules. Start from a recipe with one rule."
        )
    return recipe.mechanism.clip.sensitivity


def scaled_optimizer(make: MakeOptimizer, factor: float) -> MakeOptimizer:
    """An optimizer whose learning rates are multiplied by a factor."""
    if factor == 1.0:
        return make

    def made(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = make(parameters)
        for group in optimizer.param_groups:
            group["lr"] *= factor
        return optimizer

    return made
