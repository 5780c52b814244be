"""Batches that do not fit in memory: micro-batches, halved until they do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from noisewise.errors import MemoryWarning, RunError, memory_ran_out
from noisewise.runtime import Runtime
from noisewise.training.state import State

T = TypeVar("T")


def in_memory(compute: Callable[[Runtime], T], state: State, runtime: Runtime | None, units: int) -> T:
    """`compute` with the runtime's micro-batches, halved until they fit in memory; the state keeps that size.

    What is said about it names no size: the number of units in a batch is private.
    """
    runtime = runtime or Runtime()
    while True:
        size = state.microbatch or runtime.microbatch
        try:
            return compute(replace(runtime, microbatch=size))
        except Exception as error:
            if not memory_ran_out(error):
                raise
        # here, behind the handler, the failed attempt's tensors are free again
        if state.sharded is not None:
            raise RunError(
                "a batch did not fit in memory, and where parameters are spread over processes all of them must make the same "
                "passes: give micro-batches a smaller size from the start, Runtime(microbatch=...) (--microbatch); then resume."
            )
        tried = min(size or runtime.units_at_once(units), units)
        if tried <= 1:
            raise RunError(
                "the gradient of one single unit does not fit in the memory that is free, so micro-batches cannot be made "
                "smaller. End what else fills the memory (other runs on one GPU: fewer --jobs), use a smaller model or inputs, "
                "freeze parameters with support=, or a device with more memory; then resume."
            )
        if state.microbatch is None:
            warnings.warn(
                "a batch did not fit in memory: from here on it is computed in micro-batches, halved until they fit. The "
                "result is the same. Runtime(microbatch=...) (--microbatch) sets their size from the start.",
                MemoryWarning,
                stacklevel=2,
            )
        state.microbatch = tried // 2
