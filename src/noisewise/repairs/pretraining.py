"""Public pretraining, private fine-tuning: of the whole model, its last layer, its biases."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from noisewise.errors import ConfigError, NoisewiseWarning
from noisewise.recipe import Recipe, with_support
from noisewise.repairs.base import Repair
from noisewise.repairs.public import PublicTraining, last_linear
from noisewise.support import only

FEW = 3  # names that a warning lists


@dataclass(frozen=True)
class Pretraining(Repair):
    """Start from weights learned on public data, or from `weights` that were.

    With another number of classes in the public set, the last layer starts anew. The gain depends on how much the public
    features resemble the private ones: rotated by more than some angle, pretraining harms. Cost: free, as long as the data
    (or whoever made the weights) never saw the private records. Reference: Xu & Chen 2026, arXiv:2603.04881, section 4; De
    et al. 2022, arXiv:2204.13650. Trains when it is applied; epochs of ordinary training.
    """

    source: PublicTraining | None = None
    weights: Mapping[str, Tensor] | None = None
    name = "public pretraining"
    changes = "the weights from which training starts"
    reference = "Xu & Chen 2026, arXiv:2603.04881"
    claims = ("start",)
    order = 2

    def apply(self, recipe: Recipe) -> Recipe:
        """The recipe with a model that starts from public weights."""
        if (self.source is None) == (self.weights is None):
            raise ConfigError("public pretraining: give a source to train on, or weights that were trained elsewhere.")
        model = copy.deepcopy(recipe.model)
        if self.source is not None:
            trained, foreign = self.source.trained(recipe)
            weights = {name: value for name, value in trained.state_dict().items() if name not in foreign}
        else:
            assert self.weights is not None
            if not isinstance(self.weights, Mapping):
                raise ConfigError(
                    f"public pretraining: weights is a {type(self.weights).__name__}, must be a state dict, e.g. "
                    "torch.load(path, weights_only=True) or safetensors.torch.load_file(path)."
                )
            weights = dict(self.weights)
        _load(model, weights)
        if self.weights is not None and (rest := [name for name in model.state_dict() if name not in weights]):
            warnings.warn(
                f"public pretraining: the weights hold no {', '.join(rest[:FEW])}{' ...' if len(rest) > FEW else ''} "
                f"({len(rest)} of {len(model.state_dict())}): these start as they are.",
                NoisewiseWarning,
                stacklevel=2,
            )
        return replace(recipe, model=model)


def _load(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    state = model.state_dict()
    unknown = [name for name in weights if name not in state]
    misfit = [name for name in weights if name in state and weights[name].shape != state[name].shape]
    if unknown or misfit or not weights:
        raise ConfigError(f"public weights do not fit the model: unknown {unknown}, of another shape {misfit}.")
    with torch.no_grad():
        for name, value in weights.items():
            state[name].copy_(value)


@dataclass(frozen=True)
class FineTuning(Repair):
    """Only a part of the model learns: its `last layer`, its `biases`, or the parameters that match a pattern (`fc.*`).

    Fewer coordinates share the bound, and less noise is added in all. Cost: free. Reference: Tramèr & Boneh 2021,
    arXiv:2011.11660 (linear probing); Bu et al. 2022, arXiv:2210.00036 (biases only). Deviation: none.
    """

    what: str = "last layer"
    name = "fine-tuning of a part"
    changes = "the support: which parameters learn"
    reference = "Tramèr & Boneh 2021, arXiv:2011.11660; Bu et al. 2022, arXiv:2210.00036"
    claims = ("learners",)
    order = 3

    def apply(self, recipe: Recipe) -> Recipe:
        """A fixed support."""
        names = [name for name, _ in recipe.model.named_parameters()]
        pattern = {"last layer": lambda: f"{last_linear(recipe.model)}.*", "biases": lambda: "*bias"}.get(self.what)
        return with_support(recipe, only(names, pattern() if pattern else self.what))
