"""Chance in a pass: random layers draw from generators that are seeded in secret, the same for PyTorch, Python and NumPy.

Numbers drawn entry by entry are independent of the units, whatever their place, only if nobody knows them beforehand. Whoever
seeds a generator within the pass makes them a function of the place of a row in the batch: leaving out one unit would then
change the draws of all behind it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from noisewise.persample.conditions import NotProven


def reseed(seed: int) -> None:
    """Seed all generators that a model may draw from without naming one."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF])


@contextmanager
def random_state(devices: Iterable[int], seed: int | None = None) -> Iterator[None]:
    """Seeded generators, or those at hand; afterwards they are as before."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(sorted(devices)):
            if seed is not None:
                reseed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


class Seeds:
    """The seeds that a pass begins with; each of its draws must come from one of them.

    `generator`: one that is handed to the pass, besides the default ones.
    """

    def __init__(self, generator: torch.Generator | None = None):
        given = () if generator is None else (generator.initial_seed(),)
        self._known = {*_default_seeds(), *given}

    def check(self, func: Any, arguments: Mapping[str, Any]) -> None:
        """`NotProven` if an operation draws from a generator that was seeded in the pass, or brought along."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return
        given = arguments.get("generator")
        if _capturing():  # nobody can seed a generator there; one of the model's own would not be followed
            if given is not None:
                raise NotProven(f"{func} draws from a generator of the model's own, which a graph does not follow")
            return
        seeds = _default_seeds() if given is None else {given.initial_seed()}
        if not seeds <= self._known:
            raise NotProven(
                f"{func} draws from a generator that the model seeds itself: what a unit gets then depends on its place"
            )


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _default_seeds() -> set[int]:
    if _capturing():
        return set()
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return {torch.initial_seed(), *(generator.initial_seed() for generator in cuda)}


class Drawing(TorchDispatchMode):
    """Active while units are evaluated side by side by vmap: looks at where draws come from, and at nothing else."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seeds = Seeds()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; `NotProven` if it draws from elsewhere."""
        self._seeds.check(func, kwargs or {})
        return func(*args, **(kwargs or {}))
