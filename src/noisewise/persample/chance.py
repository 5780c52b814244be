"""Chance in a pass: random layers draw from generators that are seeded in secret, the same for PyTorch, Python and NumPy.

Numbers drawn entry by entry are independent of the units, whatever their place, only if nobody knows them beforehand. Whoever
seeds a generator within the pass makes them a function of the place of a row in the batch: leaving out one unit would then
change the draws of all behind it.
"""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from noisewise.persample.conditions import NotProven


@dataclass
class _Secret:
    """Where the draws of a clipped sum come from: the seeds that its generators have, and what further ones are made of."""

    seed: int | None
    expected: dict[str, int]
    fresh: bool = True  # nobody has drawn yet
    further: int = 0

    def another(self) -> int:
        """A seed that nobody can know beforehand."""
        self.further += 1
        text = f"{secrets.randbits(128) if self.seed is None else self.seed}, number {self.further}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


_SECRET: ContextVar[_Secret | None] = ContextVar("noisewise_secret", default=None)


def reseed(seed: int) -> None:
    """Seed all generators that a model may draw from without naming one."""
    _reseed_torch(seed)
    _reseed_others(seed)
    if secret := _SECRET.get():
        secret.expected, secret.fresh = _default_seeds(), True


def _reseed_torch(seed: int) -> None:
    """As `torch.manual_seed`, which notes a stack for each kind of device that is not in use: half a millisecond."""
    kind = torch.accelerator.current_accelerator()
    if kind is not None and kind.type != "cuda":
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def _reseed_others(seed: int) -> None:
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF])


@contextmanager
def random_state(seed: int | None = None) -> Iterator[None]:
    """Seeded generators, or those at hand; afterwards they are as before, on every device that is in use."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        token = _SECRET.set(_Secret(seed, _default_seeds()))
        try:
            if seed is not None:
                reseed(seed)
            yield
        finally:
            _SECRET.reset(token)
            random.setstate(python)
            np.random.set_state(numpy)


def draw_in_secret() -> None:
    """Begin a pass: every one but the first is seeded anew, so that no draw is one which a model has chosen, or repeated.

    A model that calls `torch.manual_seed(0)` leaves that seed behind. The next pass must neither take it for the secret one
    nor draw from it: what a unit gets would depend on whether another was there before it. One that forks the generator
    puts back its state, and units of two passes would share their draws.
    """
    secret = _SECRET.get()
    if secret is None or _capturing():
        return
    if not secret.fresh or _default_seeds() != secret.expected:  # a state that was put back cannot be seen
        reseed(secret.another())
    secret.fresh = False


class Seeds:
    """The seeds that a pass begins with, which are secret; each of its draws must come from one of them.

    `generator`: one that is handed to the pass, besides the default ones.
    """

    def __init__(self, generator: torch.Generator | None = None):
        draw_in_secret()
        self._default, self._generator = _default_seeds(), generator
        self._state = self._states()
        self._named = {*self._default.values(), *(() if generator is None else (generator.initial_seed(),))}

    def check(self, func: Any, arguments: Mapping[str, Any]) -> None:
        """`NotProven` if an operation draws from a generator that was seeded in the pass, or brought along."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return
        given = arguments.get("generator")
        if _capturing():  # seeding the device's generator fails there; others are not followed by a graph
            if given is not None or not _on_cuda(arguments):
                raise NotProven(f"{func} draws from a generator that a graph does not follow")
            return
        known = _default_seeds() == self._default if given is None else given.initial_seed() in self._named
        if not known or self._states() != self._state:
            raise NotProven(
                f"{func} draws from a generator that the model seeds itself: what a unit gets then depends on its place"
            )

    def drawn(self, func: Any) -> None:
        """An operation has drawn: the next one must go on from there."""
        if torch.Tag.nondeterministic_seeded in func.tags and not _capturing():
            self._state = self._states()

    def _states(self) -> list[bytes]:
        """Of all generators that a pass may draw from: who puts an earlier one back repeats draws."""
        if _capturing():
            return []
        cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        given = () if self._generator is None else (self._generator,)
        return [each.get_state().numpy().tobytes() for each in (torch.default_generator, *cuda, *given)]


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _on_cuda(arguments: Mapping[str, Any]) -> bool:
    """Does an operation run on a GPU? It does if a tensor lies there, or if it is told to."""
    device = arguments.get("device")
    if device is not None:
        return torch.device(device).type == "cuda"
    return any(isinstance(value, torch.Tensor) and value.is_cuda for value in arguments.values())


def _default_seeds() -> dict[str, int]:
    """Of the generator of each device; a seed on one says nothing of another. While capturing nobody may ask."""
    if _capturing():
        return {}
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return {"cpu": torch.initial_seed(), **{f"cuda:{place}": each.initial_seed() for place, each in enumerate(cuda)}}


class Drawing(TorchDispatchMode):
    """Active while units are evaluated side by side by vmap: looks at where draws come from, and at nothing else."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seeds = Seeds()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; `NotProven` if it draws from elsewhere."""
        self._seeds.check(func, kwargs or {})
        result = func(*args, **(kwargs or {}))
        self._seeds.drawn(func)
        return result
