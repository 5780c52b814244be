"""Questions that a proof has answered before: the same operation on memory that lies in the same way has the same answer.

What a proof says of an operation is a function of what `question` puts together, and of nothing else: which operation it is,
its numbers, what is known of the memory of every tensor that it takes (`labels`), how each is a view of that, and how the
results lie. Rules see no values. So a later pass of the same size need not ask the rules again, and stays as proven: every
operation is seen, every question is put, on the batch at hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noisewise.persample.labels import Labels, Shared, memory_of
from noisewise.persample.places import Rows
from noisewise.persample.trace import Step

MOST = 1 << 14  # answers that are kept: operations of a pass times sizes of batches
NUMBERS = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})


class Answer(NamedTuple):
    """What a proof said: the step of the trace, and what the memory of each result holds, None where that was known."""

    step: Step
    labels: tuple[Rows | Shared | None, ...]


def question(labels: Labels, values: Iterable[Any], storages: list[int]) -> tuple[Any, ...] | None:
    """All that an answer can depend on of some arguments; None if one of them is unusual. Adds their tensors' storages."""
    parts: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is torch.nn.Parameter:
            memory = memory_of(value)
            storages.append(memory[0])
            known = labels.known_as(value, memory)
            parts.append((*known, memory[1:], value.untyped_storage().nbytes(), value.requires_grad))
        elif kind in NUMBERS:
            parts.append((kind, value))  # 1, 1.0 and True are equal
        elif kind is list or kind is tuple:
            inner = question(labels, value, storages)
            if inner is None:
                return None
            parts.append((kind, inner))
        else:
            return None
    return tuple(parts)


def results(outputs: Iterable[Tensor], storages: list[int]) -> tuple[list[Any], tuple[Any, ...]]:
    """The memory of each result; and how they lie: in the memory of which argument, and as which view of it."""
    memories = [memory_of(out) for out in outputs]
    lie = tuple(
        (storages.index(memory[0]) if memory[0] in storages else None, memory[1:], out.untyped_storage().nbytes())
        for out, memory in zip(outputs, memories, strict=True)
    )
    return memories, lie
