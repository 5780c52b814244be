"""Where the plans of a run stand: which coordinates learn at each step, and what happens to the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from noisewise.errors import PrivacyError
from noisewise.support import (
    Fixed,
    Masked,
    Observed,
    Plan,
    Released,
    Together,
    check,
    encode,
    intersection,
    kept_of_each,
    plans_of,
)

if TYPE_CHECKING:
    from torch import Tensor

    from noisewise.support import Memory, Support


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
        self._held: dict[str, Tensor] = {}  # within a step: what must be as it is now after it

    def begin(self, step: int, weights: Mapping[str, Tensor]) -> Support:
        """The support of a step that is made now: what is pruned is set to zero, what must hold is kept for `hold`."""
        support = self.at(step, weights)
        self._settle(weights)
        return support

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
                support = plan.at(step, released, self._generator(number, period))
                check(support, weights)
                standing.period, standing.support = period, _on_devices(support, weights)
            chosen.append(standing.support or {})
        self._join(chosen, weights)
        self.masks += 1
        self.indices += self._kept
        assert self._joint is not None
        return self._joint

    def _join(self, supports: Iterable[Support], weights: Mapping[str, Tensor]) -> None:
        joint = intersection(supports)
        left = kept_of_each(joint, weights)
        self._kept = sum(left.values())
        self._joint = {  # masks that leave everything in are True: engines need not look at them
            name: mask if isinstance(mask, bool) or left[name] < mask.numel() else True for name, mask in joint.items()
        }

    def _generator(self, *position: int) -> torch.Generator:
        seed = np.random.SeedSequence((self.seed, *position)).generate_state(1)[0]
        return torch.Generator().manual_seed(int(seed))

    def _settle(self, weights: Mapping[str, Tensor]) -> None:
        """Set what is pruned to zero, in place; keep what must be as it is now after the optimizer's step."""
        if not self._joint:
            return
        with torch.no_grad():
            for name, mask in self._masks("zero").items():
                weights[name].mul_(mask)
            self._held = {name: weights[name].detach().clone() for name in self._masks("hold", "zero")}

    def hold(self, weights: Mapping[str, Tensor]) -> None:
        """Put back, bit for bit, what the optimizer moved by momentum or weight decay though it does not learn."""
        if not self._joint:
            return
        with torch.no_grad():
            for name, mask in self._masks("hold", "zero").items():
                weights[name].copy_(torch.where(mask, weights[name], self._held[name]))
        self._held = {}

    def prune(self, averages: Mapping[str, Tensor]) -> None:
        """Set what is pruned to zero in a moving average as well."""
        for name, mask in self._masks("zero").items():
            averages[name].mul_(mask)

    def _masks(self, *masked: Masked) -> dict[str, Tensor]:
        """Masks of the plans that treat masked coordinates in one of these ways."""
        supports = (
            standing.support or {}
            for plan, standing in zip(self.plans, self.standing, strict=True)
            if plan.masked in masked
        )
        # parameters frozen as a whole get no gradient, and optimizers leave those alone
        return {name: mask for name, mask in intersection(supports).items() if not isinstance(mask, bool)}

    @property
    def remembers(self) -> bool:
        """Does a plan look at what is released?"""
        return any(type(plan).observe is not Plan.observe for plan in self.plans)

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
            if type(plan).observe is Plan.observe:  # remembers nothing
                continue
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
