"""Batches drawn ahead, beside the steps: by a guess of what they will be bound to, which is checked when they are used."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import numpy as np

from noisewise.randomness import Entropy
from noisewise.sampling import Sampler

MISSES = 3  # wrong guesses in a row after which nothing is guessed: the learning rate changes from step to step


class Ahead:
    """At most a few batches that were drawn ahead. Guarantee: a batch handed out is the one that would be drawn now."""

    def __init__(self) -> None:
        self._drawn: dict[int, tuple[tuple[Sampler, Entropy], Future[np.ndarray]]] = {}
        self._misses = 0

    def draw(self, sampler: Sampler, entropy: Entropy, step: int) -> np.ndarray:
        """The batch of a step: drawn ahead by the same sampler from the same entropy, or now."""
        guess, future = self._drawn.pop(step, (None, None))
        if future is not None and guess == (sampler, entropy):
            self._misses = 0
            return future.result()
        self._misses += future is not None
        return draw(sampler, entropy, step)

    def begin(self, sampler: Sampler, entropy: Entropy, step: int) -> None:
        """Draw a later batch beside what goes on, by a guess of its entropy."""
        if self._misses < MISSES and sampler.steps_per_event == 1:
            self._drawn = {number: drawn for number, drawn in self._drawn.items() if number < step}
            self._drawn[step] = (sampler, entropy), _thread(os.getpid()).submit(draw, sampler, entropy, step)


def draw(sampler: Sampler, entropy: Entropy, step: int) -> np.ndarray:
    """The batch of a step."""
    return next(sampler.batches(entropy, step, step + 1))


@cache
def _thread(process: int) -> ThreadPoolExecutor:
    """One for each process: a forked one has none of its parent's threads."""
    return ThreadPoolExecutor(1, thread_name_prefix="batches")
