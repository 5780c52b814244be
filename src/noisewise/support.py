"""Which coordinates learn: masks and frozen parameters, applied before the norm is taken and where noise falls.

A support maps parameter names to True (learns), False (frozen) or a boolean mask (1 = learns); names left out learn.

Guarantee: for a mask that does not depend on the current private data, `sum_i clip_C(m * g_i) + m * N(0,
(sigma C)^2)` is the Gaussian mechanism with sensitivity C on the kept coordinates and constant elsewhere: the same
epsilon as without a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from noisewise.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Support = Mapping[str, "bool | Tensor"]


@runtime_checkable
class SupportPlan(Protocol):
    """Gives the support of a step from what is public: the step, values already released, a public generator."""

    def at(self, step: int, released: Mapping[str, Tensor], generator: torch.Generator) -> Support:
        """The support of one step."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The same support at every step."""

    support: Mapping[str, Any] = field(default_factory=dict)

    def at(self, step: int, released: Mapping[str, Tensor], generator: torch.Generator) -> Support:
        """The one support."""
        return self.support

    def __eq__(self, other: object) -> bool:
        """Equal masks."""
        return isinstance(other, Fixed) and encode(self.support) == encode(other.support)

    def __hash__(self) -> int:
        """By the encoded masks."""
        return hash(repr(encode(self.support)))


EVERYTHING = Fixed()


def only(names: Any, *learning: str) -> Fixed:
    """Only the parameters whose name matches one of the patterns learn; all others are frozen.

    `only(dict(model.named_parameters()), "fc.*")`
    """
    import fnmatch

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
    """JSON form: masks as run lengths of their flattened bits, starting with 0s."""
    return {name: mask if isinstance(mask, bool) else _run_lengths(mask) for name, mask in support.items()}


def _run_lengths(mask: Tensor) -> dict[str, Any]:
    import numpy as np

    bits = mask.detach().cpu().flatten().numpy().astype(np.int8)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], bits))))
    return {"shape": list(mask.shape), "runs": np.diff(np.concatenate(([0], edges, [bits.size]))).tolist()}


def decode(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `encode`."""
    import numpy as np
    import torch

    support: dict[str, Any] = {}
    for name, mask in raw.items():
        if isinstance(mask, bool):
            support[name] = mask
        else:
            bits = np.repeat(np.arange(len(mask["runs"])) % 2, mask["runs"]).astype(bool)
            support[name] = torch.from_numpy(bits).reshape(mask["shape"])
    return support
