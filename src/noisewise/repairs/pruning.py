"""Magnitude pruning before training: small weights are set to zero and never learn."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from noisewise.accounting import Ledger, Line
from noisewise.accounting.events import not_private
from noisewise.data import Data
from noisewise.data.marks import digest, mark_of
from noisewise.errors import ConfigError, PrivacyError
from noisewise.recipe import Phase, Recipe, cut, train_openly, with_support
from noisewise.repairs.base import Cost, Repair
from noisewise.repairs.freezing import Scope, fixed_support, prunable, smallest
from noisewise.repairs.public import PublicTraining
from noisewise.support import Fixed, learning
from noisewise.training import lineage


@dataclass(frozen=True)
class EarlierEpochs:
    """The mask comes from this run's own weights after its first epochs; they were released, so it is free."""

    epochs: float = 5


@dataclass(frozen=True)
class PrivateModel:
    """The mask comes from another model that was trained privately on the same people: its ledger is added to this one."""

    weights: Mapping[str, Tensor]
    ledger: Ledger


@dataclass(frozen=True)
class PrivateRecords:
    """The mask comes from training without privacy on the private records themselves: no guarantee is left.

    `share`: of the records that are looked at; also a few of them void the guarantee, for those few. The other settings are
    those of the paper's SGD (batches of 128, learning rate 0.1, no momentum), as in `PublicTraining`.
    """

    share: float = 1.0
    accept_not_private: bool = False
    epochs: float = 20
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.0
    seed: int = 0
    progress: bool = False


@dataclass(frozen=True)
class AtRandom:
    """A random mask with as many zeros in every layer: the control without which no gain can be told from sparsity's.

    Its numbers are of another kind than those of initial weights (PCG64, not torch's Mersenne Twister): with one generator,
    a mask of the same seed would keep the positive weights.
    """

    seed: int = 0


Source = PublicTraining | EarlierEpochs | PrivateModel | PrivateRecords | AtRandom


@dataclass(frozen=True)
class MagnitudePruning(Repair):
    """Remove a share of the smallest weights of each layer; the others start again from their initial values.

    `m = 0 on the smallest share of |w_source|`, `w <- m * w_initial`, then masked DP-SGD. Weights of layers only, not
    biases nor normalisations. Cost by source: `PublicTraining` and `EarlierEpochs` and `AtRandom` are free, `PrivateModel`
    is paid in the ledger, `PrivateRecords` is not private. Reference: Watson et al. 2023, arXiv:2311.06839, section 5.
    Deviation: `share` is the removed part (the text uses p for both); the default was
    chosen on held-out Fashion-MNIST images (docs/repairs_measured.md) among 0.3, 0.5 and 0.7; the paper's best is 0.7.
    """

    source: Source
    share: float = 0.3
    scope: Scope = "layer"
    name = "magnitude pruning"
    changes = "the initial weights and the support: small weights are zero and stay so"
    reference = "Watson et al. 2023, arXiv:2311.06839"
    order = 4

    @property
    def claims(self) -> tuple[str, ...]:  # type: ignore[override]
        """A mask from earlier epochs divides the run into phases."""
        return ("layers", "phases") if isinstance(self.source, EarlierEpochs) else ("layers",)

    @property
    def cost(self) -> Cost:  # type: ignore[override]
        """By where the mask comes from."""
        if isinstance(self.source, PrivateModel):
            return "ledger"
        return "not-private" if isinstance(self.source, PrivateRecords) else "free"

    def describe(self) -> dict[str, Any]:
        """With what the source is, in words."""
        words = (type(self.source).__doc__ or "").strip().splitlines()[0]
        settings = {"source": type(self.source).__name__, "share": self.share, "scope": self.scope, "words": words}
        return {**super().describe(), "settings": settings}

    def apply(self, recipe: Recipe) -> Recipe:
        """The pruned recipe; for a mask from earlier epochs, a phase that ends with pruning."""
        if not 0 < self.share < 1:
            raise ConfigError(f"magnitude pruning: share={self.share!r} of the weights to remove must be in (0, 1).")
        if not prunable(dict(recipe.model.named_parameters()), fixed_support(recipe)):
            raise ConfigError("magnitude pruning: no layer's weight learns, so there is nothing to prune.")
        if isinstance(self.source, EarlierEpochs):
            return self._after_a_phase(recipe, self.source)
        scores = self._scores(recipe)
        if isinstance(self.source, PrivateModel):
            recipe = _composed(recipe, self.source.ledger)
            marks = [(weight, digest(weight)) for weight in self.source.weights.values()]
            lineage.check_origin(marks, mark_of(recipe.data.train), cast(Ledger, recipe.ledger))
        if isinstance(self.source, PrivateRecords):
            line = Line(not_private(), "pruning mask from private records (not private)", 1, 0)
            recipe = _composed(recipe, Ledger(recipe.mechanism.adjacency, [line], recipe.mechanism.unit))
        return self._pruned(recipe, scores)

    def _scores(self, recipe: Recipe) -> dict[str, Tensor]:
        """What weights are ranked by."""
        source, model = self.source, recipe.model
        match source:
            case PublicTraining():
                trained, foreign = source.trained(recipe)
                return {name: p.detach().abs() for name, p in trained.named_parameters() if name not in foreign}
            case PrivateModel():
                return {name: weight.detach().abs() for name, weight in source.weights.items()}
            case AtRandom():
                draw = np.random.default_rng(source.seed)
                return {name: torch.from_numpy(draw.random(tuple(p.shape))) for name, p in model.named_parameters()}
            case PrivateRecords():
                return _from_records(recipe, source)
        raise ConfigError(
            f"source={source!r}: use PublicTraining, EarlierEpochs, PrivateModel, PrivateRecords or AtRandom."
        )

    def _pruned(self, recipe: Recipe, scores: Mapping[str, Tensor]) -> Recipe:
        within = fixed_support(recipe)
        weights = prunable(dict(recipe.model.named_parameters()), within)
        missing = [name for name in weights if name in scores and scores[name].shape != weights[name].shape]
        if missing:
            raise ConfigError(f"magnitude pruning: the source's {missing} have another shape than the model's.")
        ranked = {name: scores[name] for name in weights if name in scores}
        unknown = [name for name in weights if name not in scores]
        if not ranked or (unknown and isinstance(self.source, PrivateModel)):
            raise ConfigError(f"magnitude pruning: the source knows no {unknown}, so these cannot be pruned.")
        masks = smallest(ranked, learning({name: weights[name] for name in ranked}, within), self.share, self.scope)
        model = copy.deepcopy(recipe.model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in masks:
                    parameter.mul_(masks[name].to(parameter.device))
        lineage.handed_on(model, recipe.model)
        return with_support(replace(recipe, model=model), Fixed(masks))

    def _after_a_phase(self, recipe: Recipe, source: EarlierEpochs) -> Recipe:
        first, rest = cut(recipe.mechanism, source.epochs, self.name)

        def prune(before: Recipe, model: nn.Module) -> Recipe:
            return self._pruned(before, {name: p.detach().abs() for name, p in model.named_parameters()})

        phase = Phase(mechanism=first, after=prune)
        return replace(recipe, phases=(*recipe.phases, phase), mechanism=rest)


def _composed(recipe: Recipe, other: Ledger) -> Recipe:
    """With another ledger added; one of other neighbours or units is refused."""
    adjacency, unit = recipe.mechanism.adjacency, recipe.mechanism.unit
    other.claim(adjacency, unit)
    before = Ledger(adjacency, unit=unit) if recipe.ledger is None else recipe.ledger
    return replace(recipe, ledger=before.composed(other))


def _from_records(recipe: Recipe, source: PrivateRecords) -> dict[str, Tensor]:
    if not source.accept_not_private:
        raise PrivacyError(
            "a pruning mask from the private records is a release without noise: no epsilon holds afterwards. Use a public "
            "set, EarlierEpochs or a PrivateModel; or PrivateRecords(accept_not_private=True) as a marked control."
        )
    if not 0 < source.share <= 1:
        raise ConfigError(f"PrivateRecords(share={source.share!r}): a share of the records in (0, 1].")
    data: Data = recipe.data.train
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(source.seed))
    some = data.take(order[: max(1, round(source.share * len(data)))])
    trained = train_openly(
        recipe.model, some, recipe.loss_fn, epochs=source.epochs, batch_size=source.batch_size, lr=source.lr,
        momentum=source.momentum, seed=source.seed, progress=source.progress,
    )  # fmt: skip
    return {name: parameter.detach().abs() for name, parameter in trained.named_parameters()}
