"""Gradients of a parameter whose rows are used apart: a matrix that is split into queries, keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from noisewise.persample.formed import Formed, PerSample, Summable
from noisewise.persample.gradients import join


@dataclass(frozen=True)
class Blocks:
    """Gradients of blocks of rows, in their order, of a parameter of `size` entries: `(first entry, last, gradients)`."""

    parts: tuple[tuple[int, int, Summable], ...]
    size: int

    def weighted_sum(self, factors: Tensor) -> Tensor:
        """Block by block, with zeros where no block is."""
        sums = [(first, last, gradients.weighted_sum(factors).flatten()) for first, last, gradients in self.parts]
        total = sums[0][2].new_zeros(self.size)
        for first, last, part in sums:
            total[first:last] = part
        return total

    def where(self, keep: Tensor) -> Blocks:
        """Block by block."""
        return Blocks(tuple((first, last, part.where(keep)) for first, last, part in self.parts), self.size)

    def formed(self) -> Tensor:
        """Side by side."""
        parts = [(first, last, gradients.formed().flatten(1)) for first, last, gradients in self.parts]
        grads = parts[0][2].new_zeros(len(parts[0][2]), self.size)
        for first, last, part in parts:
            grads[:, first:last] = part
        return grads


def measure_blocks(
    pieces: Sequence[tuple[slice | None, PerSample]], parameter: Tensor, mask: Tensor | None
) -> tuple[Tensor, Summable]:
    """Squared norms of a parameter's gradients and these ready to be summed, from its uses; None for all rows.

    Uses of the same rows are joined, so that cross terms count. Blocks that overlap are formed and added up.
    """
    if all(rows is None for rows, _ in pieces):
        return join([gradient for _, gradient in pieces]).measure(mask)
    whole, width = len(parameter), parameter.numel() // len(parameter)
    grouped: dict[tuple[int, int], list[PerSample]] = {}
    for rows, gradient in pieces:
        first, last = (0, whole) if rows is None else (rows.start, rows.stop)
        grouped.setdefault((first, last), []).append(gradient)
    order = sorted(grouped)
    if any(last > first for (_, last), (first, _) in pairwise(order)):
        parts = tuple((first * width, last * width, join(grouped[first, last])) for first, last in order)
        total = sum((Blocks((part,), parameter.numel()).formed() for part in parts), torch.zeros(()))
        return Formed(total).measure(mask)
    squares, measured = [], []
    for first, last in order:
        square, gradients = join(grouped[first, last]).measure(None if mask is None else mask[first:last])
        squares.append(square)
        measured.append((first * width, last * width, gradients))
    return torch.stack(squares).sum(0), Blocks(tuple(measured), parameter.numel())
