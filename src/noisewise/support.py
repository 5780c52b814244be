"""Which coordinates learn: masks and frozen parameters, applied before the norm is taken and where noise falls.

A support maps parameter names to True (learns), False (frozen) or a boolean mask (1 = learns); names left out learn.
A plan says which support each step has; several plans act together on the coordinates that all of them leave.

Guarantee: for a mask that does not depend on the current private data, `sum_i clip_C(m * g_i) + m * N(0,
(sigma C)^2)` is the Gaussian mechanism with sensitivity C on the kept coordinates and constant elsewhere: the same
epsilon as without a mask. Reference: Zhu & Blaschko 2023, TMLR.
"""

from __future__ import annotations

import base64
import fnmatch
import importlib
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from noisewise._moved import old_names
from noisewise.errors import ConfigError, OwnCode, UnsupportedLayer

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Support = Mapping[str, "bool | Tensor"]
    Memory = dict[str, Tensor]

Masked = Literal["hold", "drift", "zero"]


class Released(NamedTuple):
    """All that a plan may look at: public, or released with noise and in the ledger.

    weights: the model's before the step. within: the coordinates that are left to choose among. previous: the plan's own
    support until now, None at first. memory: what the plan kept of the gradients it observed.
    """

    weights: Mapping[str, Tensor]
    within: Support = MappingProxyType({})
    previous: Support | None = None
    memory: Mapping[str, Tensor] = MappingProxyType({})


class Observed(NamedTuple):
    """A released gradient (mean over the expected batch), the noise in each of its coordinates, and its support."""

    gradient: Mapping[str, Tensor]
    std: float
    support: Support


class Plan(ABC):
    """Gives the support of each step from what is public: the step, released values, a public generator.

    masked: what happens to coordinates that do not learn, whatever the optimizer does with its momentum or weight decay:
    they `hold` their value, are set to `zero` and hold that, or `drift` with the optimizer. unnoised: the plan observes
    gradients without noise, which is not private and is written into the ledger as such. order: of plans that act
    together, those with lower numbers choose first. seeded: who knows the public seed knows the masks.
    """

    masked: ClassVar[Masked] = "hold"
    unnoised: ClassVar[bool] = False
    seeded: ClassVar[bool] = False
    order: ClassVar[int] = 1

    @abstractmethod
    def at(self, step: int, released: Released, generator: torch.Generator) -> Support:
        """The support of a step; asked once for every period."""

    def period(self, step: int) -> int:
        """Steps of one number share one support. By default every step has its own."""
        return step

    def observe(self, memory: Memory, observed: Observed, generator: torch.Generator) -> Memory:
        """What to remember after a step; by default nothing."""
        return memory


@dataclass(frozen=True)
class Fixed(Plan):
    """The same support at every step."""

    support: Mapping[str, Any] = field(default_factory=dict)
    order: ClassVar[int] = 0

    def at(self, step: int, released: Released, generator: torch.Generator) -> Support:
        """The one support."""
        return self.support

    def period(self, step: int) -> int:
        """One period."""
        return 0

    def __eq__(self, other: object) -> bool:
        """Equal masks."""
        return isinstance(other, Fixed) and encode(self.support) == encode(other.support)

    def __hash__(self) -> int:
        """By the encoded masks."""
        return hash(repr(encode(self.support)))


@dataclass(frozen=True)
class Together:
    """Several plans at once: what learns is what all of them let learn."""

    plans: tuple[Plan, ...]


def plans_of(support: Plan | Together) -> tuple[Plan, ...]:
    """The plans, in the order in which they choose."""
    return support.plans if isinstance(support, Together) else (support,)


def together(*supports: Plan | Together) -> Plan | Together:
    """Plans joined into one; fixed supports become a single one, and plans that do nothing are left out."""
    plans = [plan for support in supports for plan in plans_of(support)]
    fixed = Fixed(intersection(plan.support for plan in plans if isinstance(plan, Fixed)))
    others = sorted((plan for plan in plans if not isinstance(plan, Fixed)), key=lambda plan: plan.order)
    remaining = (*([fixed] if fixed.support else []), *others)
    return EVERYTHING if not remaining else remaining[0] if len(remaining) == 1 else Together(remaining)


def intersection(supports: Iterable[Support]) -> dict[str, Any]:
    """What all supports let learn; masks that leave everything out are kept as masks."""
    masks: dict[str, Any] = {}
    for support in supports:
        for name, mask in support.items():
            before = masks.get(name, True)
            if before is False or mask is False:
                masks[name] = False
            elif before is True or mask is True:
                masks[name] = mask if before is True else before
            else:
                masks[name] = before & mask.to(before.device)
    return masks


EVERYTHING = Fixed()


def only(names: Any, *learning: str) -> Fixed:
    """Only the parameters whose name matches one of the patterns learn; all others are frozen.

    `only(dict(model.named_parameters()), "fc.*")`
    """
    names = list(names)
    keep = {name for name in names for pattern in learning if fnmatch.fnmatchcase(name, pattern)}
    if not keep:
        raise ConfigError(f"patterns {list(learning)} match none of the parameters {names}: nothing would learn.")
    return Fixed({name: False for name in names if name not in keep})


def check(support: Support, parameters: Mapping[str, Tensor]) -> None:
    """Names exist, masks are boolean and have the shape of their parameter."""
    import torch

    for name, mask in support.items():
        if name not in parameters:
            raise ConfigError(
                f"support names {name!r}, which is no parameter of the model. Parameters: {list(parameters)}."
            )
        if isinstance(mask, bool):
            continue
        if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
            kind = mask.dtype if isinstance(mask, torch.Tensor) else type(mask).__name__
            raise ConfigError(f"support[{name!r}] is {kind}: must be True, False or a boolean tensor (mask.bool()).")
        if mask.shape != parameters[name].shape:
            raise ConfigError(
                f"support[{name!r}] has shape {list(mask.shape)}, the parameter {list(parameters[name].shape)}: "
                "a mask says for each coordinate whether it learns."
            )


def encode(support: Support) -> dict[str, Any]:
    """JSON form: masks as their flattened bits, compressed."""
    return {name: mask if isinstance(mask, bool) else _pack(mask) for name, mask in support.items()}


def _pack(mask: Tensor) -> dict[str, Any]:
    bits = np.packbits(mask.detach().cpu().flatten().numpy()).tobytes()
    return {"shape": list(mask.shape), "bits": base64.b64encode(zlib.compress(bits, 6)).decode()}


def decode(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `encode`."""
    return {name: mask if isinstance(mask, bool) else _unpack(mask) for name, mask in raw.items()}


def _unpack(raw: Mapping[str, Any]) -> Tensor:
    import torch

    size = math.prod(raw["shape"])
    try:
        bits = zlib.decompress(base64.b64decode(raw["bits"], validate=True))
    except zlib.error as error:
        raise ConfigError(f"a mask of shape {raw['shape']} is damaged: {error}.") from None
    if len(bits) != -(-size // 8):
        raise ConfigError(f"a mask of shape {raw['shape']} is damaged: it has {8 * len(bits)} bits.")
    mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=size).astype(bool)
    return torch.from_numpy(mask).reshape(raw["shape"])


def to_dict(support: Plan | Together) -> dict[str, Any]:
    """JSON form of plans: their class and settings."""
    if isinstance(support, Together):
        return {"together": [to_dict(plan) for plan in support.plans]}
    if isinstance(support, Fixed):
        return {"fixed": encode(support.support)}
    kind, settings = type(support), vars(support)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not kind.__module__.startswith("noisewise."):
        return {"plan": name, "settings": repr(support)}
    return {"plan": name, "settings": {key: _as_json(value) for key, value in settings.items()}}


def _as_json(value: Any) -> Any:
    return [_as_json(item) for item in value] if isinstance(value, tuple | list) else value


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list) else value


def from_dict(raw: Mapping[str, Any]) -> Plan | Together:
    """Inverse of `to_dict`, for the plans of this package: no other code is imported by a file's word."""
    if "together" in raw:
        plans = [from_dict(item) for item in raw["together"]]
        return Together(tuple(plan for plan in plans if isinstance(plan, Plan)))
    if "fixed" in raw:
        return Fixed(decode(raw["fixed"]))
    module, _, name = raw["plan"].partition(":")
    if not module.startswith("noisewise.repairs."):
        raise OwnCode(f"support plan {raw['plan']!r}: cannot be read back; rebuild the mechanism in code.")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise ConfigError(f"support plan {raw['plan']!r}: unknown to this version.") from None
    if not isinstance(kind, type) or not issubclass(kind, Plan):
        raise ConfigError(f"support plan {raw['plan']!r}: is no plan.")
    known = {item.name for item in fields(kind)} & set(raw["settings"])  # type: ignore[arg-type]
    if known != set(raw["settings"]):
        raise ConfigError(f"support plan {raw['plan']!r}: settings {sorted(raw['settings'])} are not its own.")
    return kind(**{key: _as_tuples(value) for key, value in raw["settings"].items()})


def kept(support: Support, weights: Mapping[str, Tensor]) -> int:
    """Number of coordinates that learn."""
    return sum(kept_of_each(support, weights).values())


def kept_of_each(support: Support, weights: Mapping[str, Tensor]) -> dict[str, int]:
    """The same by name. A GPU is asked once for all masks, since every answer is waited for."""
    import torch

    counts = {name: weight.numel() if support.get(name, True) is True else 0 for name, weight in weights.items()}
    masks = {name: mask for name, mask in support.items() if not isinstance(mask, bool) and name in weights}
    if masks:
        sums = [mask.sum() for mask in masks.values()]
        counts |= zip(masks, torch.stack([one.to(sums[0].device) for one in sums]).tolist(), strict=True)
    return counts


def learning(weights: Mapping[str, Tensor], within: Support, device: Any = "cpu") -> dict[str, Tensor]:
    """Flat boolean masks of the coordinates that are left to choose among, by name."""
    import torch

    masks = {}
    for name, weight in weights.items():
        mask = within.get(name, True)
        size = weight.numel()
        masks[name] = (
            torch.full((size,), mask, device=device) if isinstance(mask, bool) else mask.detach().to(device).flatten()
        )
    return masks


def live_parameters(model: nn.Module, support: Support) -> dict[str, nn.Parameter]:
    """Parameters that learn: they require a gradient and the support does not freeze them."""
    live = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and support.get(name, True) is not False
    }
    if not live:
        raise ConfigError("no parameter learns: all are frozen by requires_grad=False or by the support.")
    strange = [name for name, parameter in live.items() if parameter.is_complex()]
    if strange:
        raise UnsupportedLayer(
            f"the parameters {strange} are complex: clipping and noise are for real numbers. Use torch.view_as_real(...) "
            "of them as parameters, or freeze them with support=."
        )
    return live


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
