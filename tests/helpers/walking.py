"""Carry out a recipe step by step, and ask of a step what `train` would not tell."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from noisewise.batches import take
from noisewise.persample import clipped_sum
from noisewise.training.batches import batch_of, groups_of
from noisewise.training.loop import train
from noisewise.training.state import State
from noisewise.training.step import private_step


class Walk:
    """A recipe after its phases and `steps` steps of its last mechanism."""

    def __init__(self, recipe, steps, *, seed=0, insecure_seed=0):
        ledger = copy.deepcopy(recipe.ledger)
        for phase in recipe.phases:
            model = copy.deepcopy(recipe.model)
            optimizer = (phase.optimizer or recipe.optimizer)(model.parameters())
            ledger = train(
                model, recipe.data.train, recipe.loss_fn, phase.mechanism, optimizer, ledger=ledger, seed=seed,
                insecure_seed=insecure_seed, ablation=phase.ablation, augment=recipe.augment, progress=False,
            ).ledger  # fmt: skip
            recipe = replace(recipe, model=model) if phase.after is None else phase.after(recipe, model)
        self.recipe, self.model = recipe, copy.deepcopy(recipe.model)
        self.state = State.start(recipe.mechanism, ledger, seed=seed, insecure_seed=insecure_seed)
        self.optimizer = recipe.optimizer(self.model.parameters())
        self.supports = []
        for _ in range(steps):
            self.step()

    @property
    def weights(self):
        return dict(self.model.named_parameters())

    @property
    def support(self):
        return self.state.course.at(self.state.step, self.weights)

    def step(self):
        private_step(
            self.model, self.recipe.data.train, self.recipe.loss_fn, self.optimizer, self.state,
            augment=self.recipe.augment,
        )  # fmt: skip

    def masks(self, steps):
        """The supports of the next steps, as masks of every parameter."""
        found = []
        for _ in range(steps):
            support = self.support
            found.append({name: mask_of(support.get(name, True), weight) for name, weight in self.weights.items()})
            self.step()
        return found

    def everybody(self):
        """A batch of all units, in the versions in which this step sees them."""
        data = self.recipe.data.train
        return batch_of(data, torch.arange(data.units), self.recipe.augment, seed=3)

    def clipped(self, batch, units):
        """The clipped sum (flat) and the answer to the rule's question over some units of a batch."""
        rule, units = self.state.rule(), torch.as_tensor(units)
        groups = groups_of(self.recipe.data.train, rule, units, len(units))
        found = clipped_sum(self.model, self.recipe.loss_fn, take(batch, units), rule, self.support, groups=groups)
        asked = None if found.query is None else flat(found.query._values)
        return flat(found.grads._values), asked

    @property
    def rule(self):
        return self.state.rule()


def flat(values):
    return torch.cat([value.detach().flatten().double() for value in values.values()])


def mask_of(mask, weight):
    return torch.full(weight.shape, mask) if isinstance(mask, bool) else mask
