"""Training on public data, for what needs it: weights to start from, or a mask."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from noisewise.data import Data
from noisewise.errors import ConfigError, PrivacyError
from noisewise.recipe import Recipe, train_openly
from noisewise.training.augmentation import Augment


@dataclass(frozen=True)
class PublicTraining:
    """How a model is trained, without privacy, on data that is declared public."""

    data: Data
    epochs: float = 20
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.0
    augment: Augment | None = None
    seed: int = 0
    progress: bool = False

    def trained(self, recipe: Recipe) -> tuple[nn.Module, list[str]]:
        """A copy of the recipe's model trained on the public data, and the parameters of a head that does not fit.

        A set with another number of classes gets an output layer of its own for that time; the names of its parameters
        are given, since nothing can be taken from them.
        """
        if not self.data.public:
            raise PrivacyError(
                "this data is not declared public, so what is learned from it is covered by no ledger. If anyone may see it, "
                "say so: Data(..., public=True)."
            )
        ours, theirs = recipe.data.train, self.data
        if theirs.x.shape[1:] != ours.x.shape[1:]:
            raise ConfigError(
                f"public inputs have shape {list(theirs.x.shape[1:])}, the private ones {list(ours.x.shape[1:])}: the same "
                "model must see both. Resize them."
            )
        model, foreign = copy.deepcopy(recipe.model), []
        if theirs.task == "classification" and len(theirs.classes) != len(ours.classes):
            foreign = replace_head(model, len(theirs.classes), self.seed)
        trained = train_openly(
            model, theirs, recipe.loss_fn, epochs=self.epochs, batch_size=self.batch_size, lr=self.lr,
            momentum=self.momentum, augment=self.augment, seed=self.seed, progress=self.progress,
        )  # fmt: skip
        return trained, foreign


def last_linear(model: nn.Module) -> str:
    """Name of the last linear layer, the one that gives the outputs."""
    names = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    if not names:
        raise ConfigError(
            "the model has no nn.Linear layer, so which of its layers is the last cannot be told. Name it."
        )
    return names[-1]


def replace_head(model: nn.Module, outputs: int, seed: int) -> list[str]:
    """Put a new last layer with other outputs into the model; gives the names of its parameters."""
    name = last_linear(model)
    old = model.get_submodule(name)
    assert isinstance(old, nn.Linear)
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        new = nn.Linear(old.in_features, outputs, bias=old.bias is not None).to(old.weight)
    model.set_submodule(name, new)
    return [f"{name}.{parameter}" for parameter, _ in new.named_parameters()]
