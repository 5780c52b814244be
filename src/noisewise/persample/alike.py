"""Small gradients of one size in a captured step: measured together and added up together, by one kernel instead of many.

Biases and norm layers are many and small: each kernel of their own takes longer to start than to run. Where kernels take
rows of several parameters at once, they read the same numbers in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

import torch
from torch import Tensor

from noisewise.persample import kernels, laid
from noisewise.persample.formed import Formed, Summable
from noisewise.persample.rounding import squared_lengths
from noisewise.persample.steady import is_steady, most_units

SMALL = 1 << 19  # floats of a parameter's gradients that copying costs less than another kernel, all units together


def is_small(gradient: Summable) -> TypeGuard[Formed]:
    """Does it pay to take these gradients together with others? Asked of shapes and of the public number of units alone."""
    if not is_steady() or not isinstance(gradient, Formed) or gradient.mask is not None:
        return False
    return kernels.usable(gradient.grads) and gradient.width * most_units() <= SMALL


def measure_together(
    gradients: Mapping[str, Formed], masks: Mapping[str, Tensor]
) -> dict[str, tuple[Tensor, Summable]]:
    """`measure` of small gradients, for all of one width at once; masks are laid on the sums of a captured step later."""
    measured: dict[str, tuple[Tensor, Summable]] = {}
    whole = {name: gradient for name, gradient in gradients.items() if name not in masks}
    some = {name: gradient for name, gradient in gradients.items() if name in masks}
    for names in (*_by_width(whole).values(), *_by_width(some).values()):
        rows = _stacked([gradients[name].rows for name in names])
        mask = laid.form(laid.stacked, *(masks[name] for name in names)) if names[0] in masks else None
        squares = squared_lengths(rows.flatten(0, 1), mask).view(rows.shape[:2])
        measured |= {name: (squares[k], Formed(rows[k])) for k, name in enumerate(names)}
    return measured


def sums_together(gradients: Mapping[str, Summable], factors: Tensor, blocks: Mapping[str, int]) -> dict[str, Tensor]:
    """`weighted_sum` of the small ones among gradients, for all of one width and block at once; `factors [blocks, batch]`."""
    sums: dict[str, Tensor] = {}
    for block in sorted(set(blocks.values())):
        small = {name: gradient for name, gradient in gradients.items() if blocks[name] == block and is_small(gradient)}
        for names in _by_width(small).values():
            rows = _stacked([small[name].rows for name in names])
            sums |= dict(zip(names, kernels.weighted_sum(rows, factors[block]), strict=True))
    return sums


def _stacked(parts: list[Tensor]) -> Tensor:
    """`[parameters, batch, width]`; one, and parts of what was stacked before, are taken as they lie."""
    first = parts[0]
    step = first.numel() * first.element_size()
    places = [(part.data_ptr(), part.untyped_storage().data_ptr()) for part in parts]
    if all(place == (first.data_ptr() + k * step, places[0][1]) for k, place in enumerate(places)):
        return first.as_strided((len(parts), *first.shape), (first.numel(), *first.stride()))
    return torch.stack(parts)


def _by_width(gradients: Mapping[str, Formed]) -> dict[int, list[str]]:
    groups: dict[int, list[str]] = {}
    for name, gradient in gradients.items():
        groups.setdefault(gradient.width, []).append(name)
    return groups
