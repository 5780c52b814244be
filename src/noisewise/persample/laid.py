"""Masks in the forms that kernels read, made once for all replays of a captured step, and anew when masks change.

On sums masks are not laid one by one there: `replay.Sums` lays all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

WIDEST = 128  # columns: to a multiple of them tiles reach beyond a mask

Make = Callable[..., Tensor]


class Forms:
    """What was made of masks that stay in their memory: by which function, of which, and the result, which stays too."""

    def __init__(self) -> None:
        self._made: dict[Any, tuple[Make, tuple[Tensor, ...], Tensor]] = {}

    def of(self, make: Make, masks: tuple[Tensor, ...]) -> Tensor:
        """`make(*masks)`, made when it is asked for first. Holds the masks, so that no other comes to lie in their place."""
        key = (make, *((mask.data_ptr(), mask.shape, mask.stride()) for mask in masks))
        if key not in self._made:
            self._made[key] = (make, masks, make(*masks))
        return self._made[key][2]

    def renew(self) -> None:
        """The masks hold other numbers now."""
        for make, masks, form in self._made.values():
            form.copy_(make(*masks))


_FORMS: ContextVar[Forms | None] = ContextVar("forms", default=None)


@contextmanager
def kept(forms: Forms) -> Iterator[None]:
    """Within it, forms are kept there: masks stay in their memory, and whoever changes them renews the forms."""
    token = _FORMS.set(forms)
    try:
        yield
    finally:
        _FORMS.reset(token)


def form(make: Make, *masks: Tensor) -> Tensor:
    """`make(*masks)`: remembered, or made on the spot."""
    forms = _FORMS.get()
    return make(*masks) if forms is None else forms.of(make, masks)


def words(mask: Tensor) -> Tensor:
    """Of `[..., rows, columns]`: bits of 32 columns each, `[..., words, rows]` in int32; 0 up to a multiple of `WIDEST`."""
    bits = F.pad(_zero_or_one(mask), (0, -mask.shape[-1] % WIDEST)).unflatten(-1, (-1, 8))
    byte = (bits << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(-1, dtype=torch.uint8)
    laid: Tensor = byte.view(torch.int32).mT.contiguous()
    return laid


def by_tap(mask: Tensor) -> Tensor:
    """Of a convolution's weight `[out, in, ...]`: words `[taps, words, out]`."""
    return words(mask.flatten(2).permute(2, 0, 1))


def halves(mask: Tensor) -> Tensor:
    """0 and 1 in float16, for products."""
    return _zero_or_one(mask).to(torch.float16)


def _zero_or_one(mask: Tensor) -> Tensor:
    """As bytes. A mask that was made of another program's bytes may hold any number for true; others ask whether it is 0."""
    return mask.view(torch.uint8).ne(0).view(torch.uint8)


def stacked(*masks: Tensor) -> Tensor:
    """Of parameters of one size: bytes `[parameters, entries]`."""
    return torch.stack([mask.flatten() for mask in masks]).view(torch.uint8)
