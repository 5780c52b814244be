"""LoRA: only low-rank additions to the layers learn."""

from __future__ import annotations

import copy
import fnmatch
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from noisewise.errors import ConfigError
from noisewise.recipe import Recipe, with_support
from noisewise.repairs.base import Repair
from noisewise.support import Fixed
from noisewise.training import lineage


class LowRank(nn.Module):
    """A linear layer or convolution W with a low-rank addition: `W x + (alpha / r) B A x`; B starts at zero.

    For a convolution A is one with r output channels and the same window, B one of 1 x 1.
    """

    def __init__(self, base: nn.Linear | nn.Conv2d, rank: int, alpha: float, generator: torch.Generator):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        inner = base.weight.shape[1:]
        first = torch.empty(rank, *inner, dtype=base.weight.dtype)
        first.normal_(std=inner.numel() ** -0.5, generator=generator)
        self.a = nn.Parameter(first.to(base.weight.device))
        self.b = nn.Parameter(base.weight.new_zeros(base.weight.shape[0], rank, *[1] * (base.weight.dim() - 2)))

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output and the addition's."""
        if isinstance(self.base, nn.Linear):
            return self.base(x) + self.scale * F.linear(F.linear(x, self.a), self.b)
        base = self.base
        if base.padding_mode != "zeros":
            raise ConfigError(f"LoRA of a convolution with padding mode {base.padding_mode!r}: only zeros are known.")
        inner = F.conv2d(x, self.a, None, base.stride, base.padding, base.dilation)
        return base(x) + self.scale * F.conv2d(inner, self.b)

    @property
    def weight(self) -> Tensor:
        """The merged weight `W + (alpha / r) B A`."""
        addition = self.b.flatten(1) @ self.a.flatten(1)
        return self.base.weight + self.scale * addition.view_as(self.base.weight)

    @property
    def bias(self) -> Tensor | None:
        """The layer's own."""
        return self.base.bias


@dataclass(frozen=True)
class LoRA(Repair):
    """Freeze the model and learn `W + (alpha / r) B A` in every linear layer and convolution (or those of `layers`).

    A is Gaussian with variance 1 / inputs, B zero, so that training starts at the given model. `also` names parameters that
    learn in full, such as a new head. `merged` turns the result into an ordinary model. Cost: free. Reference: Hu et al.
    2022, arXiv:2106.09685. Deviation: none.
    """

    rank: int = 4
    alpha: float = 4.0
    layers: str = "*"
    also: tuple[str, ...] = ()
    seed: int = 0
    name = "LoRA"
    changes = "the model and the support: low-rank additions learn"
    reference = "Hu et al. 2022, arXiv:2106.09685"
    claims = ("learners", "layers")
    order = 3

    def apply(self, recipe: Recipe) -> Recipe:
        """The model with additions, everything else frozen."""
        model, chosen = self.added(recipe.model)
        additions = {f"{name}.{part}" for name in chosen for part in ("a", "b")}
        frozen = {
            name: False
            for name, _ in model.named_parameters()
            if name not in additions and not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.also)
        }
        return with_support(replace(recipe, model=model), Fixed(frozen))

    def added(self, model: nn.Module) -> tuple[nn.Module, list[str]]:
        """A copy of the model with additions, and the names of the layers that have one."""
        if type(self.rank) is not int or self.rank < 1:
            raise ConfigError(f"LoRA(rank={self.rank!r}): a whole number above 0.")
        if not isinstance(self.layers, str):
            raise ConfigError(f"LoRA(layers={self.layers!r}): must be one pattern of names, e.g. 'encoder.*', or '*'.")
        own = int(
            np.random.default_rng(self.seed).integers(2**62)
        )  # not the numbers of initial weights of the same seed
        model, generator = copy.deepcopy(model), torch.Generator().manual_seed(own)
        chosen = [
            name for name, module in model.named_modules() if _fits(module) and fnmatch.fnmatchcase(name, self.layers)
        ]
        if not chosen:
            raise ConfigError(f"LoRA: no nn.Linear or nn.Conv2d layer (without groups) matches {self.layers!r}.")
        _check_own(model, chosen)
        for name in chosen:
            model.set_submodule(name, LowRank(model.get_submodule(name), self.rank, self.alpha, generator))  # type: ignore[arg-type]
        return model, chosen


def _fits(module: nn.Module) -> bool:
    return type(module) is nn.Linear or (type(module) is nn.Conv2d and module.groups == 1)


def _check_own(model: nn.Module, layers: list[str]) -> None:
    """Layers have a name to be replaced by, and share their weights with nobody."""
    if "" in layers:
        raise ConfigError(
            "LoRA: the model is a single layer, which cannot be replaced within itself. Use nn.Sequential."
        )
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    for layer in layers:
        shared = owners[id(model.get_submodule(layer).weight)]
        if len(shared) > 1:
            raise ConfigError(f"LoRA: {shared} are one tensor; an addition to one would not be there in the other.")


def merged(model: nn.Module) -> nn.Module:
    """A copy in which every addition is part of its layer's weight: the architecture that LoRA was applied to."""
    plain = copy.deepcopy(model)
    for name, module in list(plain.named_modules()):
        if isinstance(module, LowRank):
            with torch.no_grad():
                module.base.weight.copy_(module.weight)
            plain.set_submodule(name, module.base)
    lineage.handed_on(plain, model)
    return plain
