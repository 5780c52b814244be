"""What an examination found, and for which situation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from noisewise.batches import Nest, leaves
from noisewise.persample.seen import autocasts
from noisewise.persample.trace import Trace


@dataclass(frozen=True)
class Layout:
    """What the examination found.

    `trace`: the proven pass, which every later one must repeat; None if there is no proof, and then `reason` says why and every
    unit is evaluated alone. `fallback`: parameters that need another engine, since some use of them is unexplained or does not
    have the unit in front. `examined`: the parameters that were looked at; None for all. `vectorises`: the dense engine
    computes the fallback parameters rightly; otherwise they are left to the loop. `recorded`: without a proof, parameters whose
    gradients need not be formed although each unit is evaluated alone (`engines.booked`). `copies`: the model changes its
    input in place. `channels_last`: it is given images in this order (`images`).
    `situation`: modes, types and loss for which all this was found.
    """

    fallback: frozenset[str] = frozenset()
    examined: frozenset[str] | None = None
    vectorises: bool = True
    trace: Trace | None = None
    reason: str | None = None
    recorded: frozenset[str] = frozenset()
    copies: bool = False
    channels_last: bool = False
    situation: Any = None

    @property
    def proven(self) -> bool:
        """Is the fast engine allowed?"""
        return self.trace is not None

    def covers(self, names: Iterable[str], situation: Any = None) -> bool:
        """Were all of these looked at, in this situation?"""
        known = self.examined is None or self.examined.issuperset(names)
        return known and (situation is None or self.situation is None or situation == self.situation)


def situation(model: nn.Module, loss_fn: Any, like: Nest) -> Any:
    """What an examination depends on: modes, what learns, shapes and types of a unit, autocast, the loss."""
    shapes = tuple((tuple(tensor.shape[1:]), tensor.dtype, tensor.device.type) for tensor in leaves(like))
    modes = tuple(module.training for module in model.modules())
    types = tuple((p.dtype, p.device.type, p.requires_grad) for p in model.parameters())
    return (shapes, autocasts(), modes, types, loss_fn)
