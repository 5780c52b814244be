"""A plan that draws supports and writes down what it was asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from noisewise.support import Plan

WEIGHTS = {"a": torch.zeros(4, 3, requires_grad=True), "b": torch.zeros(5, requires_grad=True)}

HALF = torch.arange(12).view(4, 3) < 6


@dataclass(frozen=True)
class Drawn(Plan):
    """Each coordinate by a coin, anew every `length` steps; writes down what it was asked."""

    length: int = 1
    order: ClassVar[int] = 3
    asked: list = field(default_factory=list, compare=False)

    def period(self, step):
        return step // self.length

    def at(self, step, released, generator):
        self.asked.append((step, released))
        return {"a": torch.rand(4, 3, generator=generator) < 0.5}

    def observe(self, memory, observed, generator):
        return {"sum": memory.get("sum", 0) + observed.gradient["a"], "coin": torch.rand(1, generator=generator)}
