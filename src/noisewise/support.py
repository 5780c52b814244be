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

from noisewise.errors import ConfigError, PrivacyError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

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
    found = (*([fixed] if fixed.support else []), *others)
    return EVERYTHING if not found else found[0] if len(found) == 1 else Together(found)


def intersection(supports: Iterable[Support]) -> dict[str, Any]:
    """What all supports let learn; masks that leave everything out are kept as masks."""
    found: dict[str, Any] = {}
    for support in supports:
        for name, mask in support.items():
            before = found.get(name, True)
            if before is False or mask is False:
                found[name] = False
            elif before is True or mask is True:
                found[name] = mask if before is True else before
            else:
                found[name] = before & mask.to(before.device)
    return found


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
        raise ConfigError(f"support plan {raw['plan']!r}: cannot be read back; rebuild the mechanism in code.")
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


@dataclass
class _Standing:
    """Where one plan stands."""

    period: int | None = None
    support: Support | None = None
    memory: Memory = field(default_factory=dict)


class Course:
    """Where the plans of a run stand: each one's period, support and memory.

    All of it follows from public values and releases, and is saved with a checkpoint, so that a resumed run has the same
    masks. `values` and `indices` count what has been sent: coordinates of every step, and once for every new mask.
    """

    def __init__(self, support: Plan | Together, seed: int):
        self.plans, self.seed = plans_of(support), seed
        self.standing = [_Standing() for _ in self.plans]
        self.values = self.indices = self.masks = 0  # sent so far
        self._joint: Support | None = None
        self._kept = 0

    def at(self, step: int, weights: Mapping[str, Tensor]) -> Support:
        """The support of a step: each plan chooses among what those before it leave."""
        periods = [plan.period(step) for plan in self.plans]
        if self._joint is not None and periods == [standing.period for standing in self.standing]:
            return self._joint
        chosen: list[Support] = [{name: False for name, weight in weights.items() if not weight.requires_grad}]
        values = {name: weight.detach() for name, weight in weights.items()}
        for number, (plan, period, standing) in enumerate(zip(self.plans, periods, self.standing, strict=True)):
            if standing.support is None or period != standing.period:
                released = Released(values, intersection(chosen), standing.support, dict(standing.memory))
                found = plan.at(step, released, self._generator(number, period))
                check(found, weights)
                standing.period, standing.support = period, _on_devices(found, weights)
            chosen.append(standing.support or {})
        self._join(chosen, weights)
        self.masks += 1
        self.indices += self._kept
        assert self._joint is not None
        return self._joint

    def _join(self, supports: Iterable[Support], weights: Mapping[str, Tensor]) -> None:
        self._joint = _without_full_masks(intersection(supports))
        self._kept = kept(self._joint, weights)

    def _generator(self, *position: int) -> torch.Generator:
        import torch

        seed = np.random.SeedSequence((self.seed, *position)).generate_state(1)[0]
        return torch.Generator().manual_seed(int(seed))

    def settle(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Set what is pruned to zero, in place; gives what must be as it is now after the optimizer's step."""
        import torch

        held = {}
        with torch.no_grad():
            for name, mask in self._masks("zero").items():
                weights[name].mul_(mask)
            for name in self._masks("hold", "zero"):
                held[name] = weights[name].detach().clone()
        return held

    def hold(self, weights: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> None:
        """Put back, bit for bit, what the optimizer moved by momentum or weight decay though it does not learn."""
        import torch

        with torch.no_grad():
            for name, mask in self._masks("hold", "zero").items():
                weights[name].copy_(torch.where(mask, weights[name], held[name]))

    def prune(self, averages: Mapping[str, Tensor]) -> None:
        """Set what is pruned to zero in a moving average as well."""
        for name, mask in self._masks("zero").items():
            averages[name].mul_(mask)

    def _masks(self, *masked: Masked) -> dict[str, Tensor]:
        """Masks of the plans that treat masked coordinates in one of these ways."""
        own = (
            standing.support or {}
            for plan, standing in zip(self.plans, self.standing, strict=True)
            if plan.masked in masked
        )
        # parameters frozen as a whole get no gradient, and optimizers leave those alone
        return {name: mask for name, mask in intersection(own).items() if not isinstance(mask, bool)}

    @property
    def unnoised(self) -> bool:
        """Does a plan look at gradients without noise?"""
        return any(plan.unnoised for plan in self.plans)

    def observe(self, step: int, noised: Mapping[str, Tensor], clear: Mapping[str, Tensor] | None, std: float) -> None:
        """Show the plans what a step released (`clear`: without noise, for plans that are not private); count it as sent."""
        self.values += self._kept
        support = self._joint or {}
        for number, (plan, standing) in enumerate(zip(self.plans, self.standing, strict=True)):
            if plan.unnoised and clear is None:
                raise PrivacyError(f"{plan!r} ranks by gradients without noise, which this step does not give.")
            seen = (
                Observed(clear, 0.0, support) if plan.unnoised and clear is not None else Observed(noised, std, support)
            )
            standing.memory = plan.observe(standing.memory, seen, self._generator(number, 1 + step, 1))

    def save(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {
            "standing": [
                {"period": s.period, "support": None if s.support is None else dict(s.support), "memory": s.memory}
                for s in self.standing
            ],
            "sent": [self.values, self.indices, self.masks],
        }

    def load(self, saved: Mapping[str, Any], weights: Mapping[str, Tensor], step: int) -> None:
        """Inverse of `save` for a run that has made `step` steps; what cannot have been saved by it is refused."""
        if len(saved["standing"]) != len(self.plans):
            raise ValueError(f"{len(saved['standing'])} plans were saved, there are {len(self.plans)}")
        import torch

        last = max(step - 1, 0)
        values = {name: weight.detach() for name, weight in weights.items()}
        chosen: list[Support] = [{name: False for name, weight in weights.items() if not weight.requires_grad}]
        for number, (plan, standing, raw) in enumerate(zip(self.plans, self.standing, saved["standing"], strict=True)):
            period, support, memory = raw["period"], raw["support"], dict(raw["memory"])
            if period != plan.period(last) or type(period) is not int:
                raise ValueError(f"{type(plan).__name__} stands at period {period!r} after {step} steps")
            if not all(isinstance(value, torch.Tensor) for value in memory.values()):
                raise ValueError(f"{type(plan).__name__} remembers {list(memory.values())}")
            check(support, weights)
            after_fixed = all(isinstance(other, Fixed) for other in self.plans[:number])
            if isinstance(plan, Fixed) or (plan.seeded and after_fixed):  # known without the file
                released = Released(values, intersection(chosen), None, {})
                if encode(plan.at(last, released, self._generator(number, period))) != encode(support):
                    raise ValueError(f"the masks of {type(plan).__name__} are not those of its seed")
            standing.period, standing.support, standing.memory = period, _on_devices(support, weights), memory
            chosen.append(standing.support)
        self._join(chosen, weights)
        size = sum(weight.numel() for weight in weights.values())
        sent, indices, masks = saved["sent"]
        whole = all(type(count) is int for count in saved["sent"])
        if not whole or not 0 <= masks <= step + 1 or not 0 <= sent <= size * step or not 0 <= indices <= size * masks:
            raise ValueError(f"{saved['sent']} values, indices and masks were sent in {step} steps")
        self.values, self.indices, self.masks = sent, indices, masks


def _on_devices(support: Support, weights: Mapping[str, Tensor]) -> Support:
    return {name: mask if isinstance(mask, bool) else mask.to(weights[name].device) for name, mask in support.items()}


def _without_full_masks(support: Support) -> dict[str, Any]:
    """Masks that leave everything in are True: engines need not look at them."""
    return {name: mask if isinstance(mask, bool) or not bool(mask.all()) else True for name, mask in support.items()}


def kept(support: Support, weights: Mapping[str, Tensor]) -> int:
    """Number of coordinates that learn."""
    return sum(
        weight.numel() if mask is True else 0 if mask is False else int(mask.sum())
        for name, weight in weights.items()
        for mask in [support.get(name, True)]
    )


def learning(weights: Mapping[str, Tensor], within: Support) -> dict[str, Tensor]:
    """Flat boolean masks of the coordinates that are left to choose among, by name."""
    import torch

    found = {}
    for name, weight in weights.items():
        mask = within.get(name, True)
        size = weight.numel()
        found[name] = torch.full((size,), mask) if isinstance(mask, bool) else mask.detach().cpu().flatten()
    return found
