"""Clipping rules: how much of each unit's gradient may enter the sum. No torch import: rules act on given tensors.

A rule maps per-unit norms `[blocks, batch]` to factors `[blocks, batch]` and promises an L2 bound on what one unit
adds: `||(factors * norms)[:, i]||_2 <= sensitivity` for every unit i. Write your own by giving a frozen dataclass
these three members; `noisewise.testing.checks.check_clip` says whether it keeps its promise.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from noisewise.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class Samples(NamedTuple):
    """What a rule may look at: norms `[blocks, batch]`, and group labels `[batch]` where a rule needs them."""

    norms: Tensor
    groups: Tensor | None = None


@runtime_checkable
class Clip(Protocol):
    """A clipping rule; see the module's text for what it promises."""

    @property
    def sensitivity(self) -> float:
        """L2 bound on one unit's contribution, over all blocks together."""
        ...

    def blocks(self, names: Iterable[str]) -> dict[str, int]:
        """The block of each parameter; parameters of a block share a norm and a factor."""
        ...

    def factors(self, samples: Samples) -> Tensor:
        """What each unit's gradient is multiplied by, `[blocks, batch]`."""
        ...


def positive(owner: object, **values: float) -> None:
    """Refuse settings that are not finite numbers above 0."""
    for name, value in values.items():
        if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ConfigError(f"{type(owner).__name__}({name}={value!r}): must be a finite number above 0.")


class OneBlock:
    """All parameters in one block, whose bound is the sensitivity: what most rules share."""

    bound: float

    @property
    def sensitivity(self) -> float:
        """C."""
        return self.bound

    def blocks(self, names: Iterable[str]) -> dict[str, int]:
        """One block."""
        return dict.fromkeys(names, 0)


@dataclass(frozen=True)
class Flat(OneBlock):
    """Shorten gradients longer than the bound: `f(n) = min(1, C / n)`.

    Guarantee: n f(n) <= C. Reference: Abadi et al. 2016, arXiv:1607.00133, Algorithm 1. Deviation: none.
    """

    kind: ClassVar[str] = "flat"
    bound: float = 1.0

    def __post_init__(self) -> None:
        """Bound above 0."""
        positive(self, bound=self.bound)

    def factors(self, samples: Samples) -> Tensor:
        """min(1, C / n)."""
        return (self.bound / samples.norms).clamp(max=1.0)


@dataclass(frozen=True)
class Global(OneBlock):
    """Scale everybody alike and drop whoever is above Z: `f(n) = (C / Z) 1[n <= Z]`.

    Guarantee: n f(n) <= C for any screening. `Global(C, Z)` with learning rate eta equals the unscaled form
    `Global(Z, Z)`, `f(n) = 1[n <= Z]`, with learning rate eta C / Z; leave `screen` out for that form.
    Reference: Bu et al. 2022 (ICLR submission); unscaled form in TMLR 2023, arXiv:2106.07830. Deviation: none.
    """

    kind: ClassVar[str] = "global"
    bound: float = 1.0
    screen: float | None = None

    def __post_init__(self) -> None:
        """0 < C <= Z."""
        positive(self, bound=self.bound, screen=self.limit)
        if self.limit < self.bound:
            raise ConfigError(
                f"Global(bound={self.bound}, screen={self.screen}): a screen below the bound would scale gradients up. "
                f"Use screen >= {self.bound}."
            )

    @property
    def limit(self) -> float:
        """Z."""
        return self.bound if self.screen is None else self.screen

    def factors(self, samples: Samples) -> Tensor:
        """(C / Z) 1[n <= Z]."""
        return (samples.norms <= self.limit).to(samples.norms.dtype) * (self.bound / self.limit)


@dataclass(frozen=True)
class Automatic(OneBlock):
    """Normalise with a soft floor: `f(n) = C / (n + gamma)`.

    Guarantee: n f(n) < C. Reference: Bu et al. 2023, arXiv:2206.07136 (AUTO-S). Deviation: none.
    """

    kind: ClassVar[str] = "automatic"
    bound: float = 1.0
    gamma: float = 0.01

    def __post_init__(self) -> None:
        """Bound and floor above 0."""
        positive(self, bound=self.bound, gamma=self.gamma)

    def factors(self, samples: Samples) -> Tensor:
        """C / (n + gamma)."""
        return self.bound / (samples.norms + self.gamma)


@dataclass(frozen=True)
class Normalized(OneBlock):
    """Give every gradient the same length: `f(n) = C / n`, and 0 at n = 0.

    Guarantee: n f(n) <= C. Reference: Bu et al. 2023, arXiv:2206.07136 (AUTO-V). Deviation: none.
    """

    kind: ClassVar[str] = "normalized"
    bound: float = 1.0

    def __post_init__(self) -> None:
        """Bound above 0."""
        positive(self, bound=self.bound)

    def factors(self, samples: Samples) -> Tensor:
        """C / n, 0 where n = 0 or too small to be measured: squares of such gradients vanish in floating point."""
        import torch

        smallest = 1e10 * math.sqrt(torch.finfo(samples.norms.dtype).tiny)  # 1e-9 in float32
        return (self.bound / samples.norms).masked_fill(samples.norms < smallest, 0.0)


@dataclass(frozen=True)
class PerSampleAdaptive(OneBlock):
    """Normalise, but give small gradients less weight: `f(n) = C / (n + r / (n + r))`.

    Guarantee: n f(n) < C. Reference: DP-PSAC, Xia et al. 2023, arXiv:2212.00328. Deviation: none.
    """

    kind: ClassVar[str] = "per-sample"
    bound: float = 1.0
    r: float = 0.1

    def __post_init__(self) -> None:
        """Bound and r above 0."""
        positive(self, bound=self.bound, r=self.r)

    def factors(self, samples: Samples) -> Tensor:
        """C / (n + r / (n + r))."""
        return self.bound / (samples.norms + self.r / (samples.norms + self.r))


@dataclass(frozen=True)
class PerLayer:
    """A rule of its own for each block of parameters: local (`Flat`), global (`Global`) or any other rule per layer.

    `rules`: block -> rule; `members`: parameter -> block, each parameter its own block if left out.
    Guarantee: sensitivity sqrt(sum_l C_l^2). Noise is isotropic: multiplier times that total on every coordinate.
    Reference: "layerwise" clipping, Bu et al. 2022. Deviation: none. Build it with `per_layer`.
    """

    kind: ClassVar[str] = "per-layer"
    rules: Mapping[str, Clip]
    members: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """One-block rules only, and every member in a block."""
        if not self.rules:
            raise ConfigError("PerLayer(rules={}): give at least one parameter a rule, e.g. per_layer(model, Flat(1)).")
        for name, rule in self.rules.items():
            if isinstance(rule, PerLayer):
                raise ConfigError(f"PerLayer: the rule of {name!r} is itself per layer. Give it a one-block rule.")
        strays = [name for name, block in (self.members or {}).items() if block not in self.rules]
        if strays:
            raise ConfigError(f"PerLayer: the blocks of {strays} have no rule. Blocks: {list(self.rules)}.")

    @property
    def sensitivity(self) -> float:
        """sqrt(sum of squared bounds)."""
        return math.sqrt(math.fsum(rule.sensitivity**2 for rule in self.rules.values()))

    def blocks(self, names: Iterable[str]) -> dict[str, int]:
        """Each parameter's block, in the order of the rules."""
        order = {name: block for block, name in enumerate(self.rules)}
        members = {name: name for name in self.rules} if self.members is None else self.members
        names = list(names)
        missing = [name for name in names if name not in members]
        if missing:
            raise ConfigError(
                f"per-layer clipping has no rule for {missing}: these parameters would escape clipping. "
                "Build the rule with per_layer(model, ...), or freeze them."
            )
        return {name: order[members[name]] for name in names}

    def factors(self, samples: Samples) -> Tensor:
        """Each block by its own rule."""
        factors = samples.norms.clone()
        for block, rule in zip(range(factors.shape[0]), self.rules.values(), strict=False):  # the last may be frozen
            factors[block] = rule.factors(Samples(samples.norms[block : block + 1], samples.groups))[0]
        return factors


def per_layer(names: Iterable[str], rule: Clip | Mapping[str, Clip], by: str = "parameter") -> PerLayer:
    """A rule for each block of parameters: one for all, or by pattern of the parameter's name (first match wins).

    by: "parameter" (each tensor is a block), "layer" (the tensors of one module share a block; its first tensor's rule
    counts) or "pattern" (all tensors that a pattern matches share a block). Names from `model.named_parameters()`.
    `per_layer(names, {"*.weight": Flat(1.5), "*.bias": Flat(0.3)})`
    """
    if by not in ("parameter", "layer", "pattern"):
        raise ConfigError(f"by={by!r}: must be 'parameter', 'layer' or 'pattern'.")
    patterns = rule if isinstance(rule, Mapping) else {"*": rule}
    rules: dict[str, Clip] = {}
    members = {}
    for name in names:
        pattern = next((pattern for pattern in patterns if fnmatch.fnmatchcase(name, pattern)), None)
        if pattern is None:
            raise ConfigError(f"no pattern of {list(patterns)} matches the parameter {name!r}. Add one, e.g. '*'.")
        members[name] = {"parameter": name, "layer": name.rpartition(".")[0] or name, "pattern": pattern}[by]
        rules.setdefault(members[name], patterns[pattern])
    return PerLayer(rules, None if by == "parameter" else members)


RULES: dict[str, Any] = {
    rule.__name__: rule for rule in (Flat, Global, Automatic, Normalized, PerSampleAdaptive, PerLayer)
}
