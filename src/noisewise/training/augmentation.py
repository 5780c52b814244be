"""Random versions of rows, each row changed on its own: by proof, or by giving the function one unit at a time.

An augmentation that mixes rows (mixup and the like) would put one unit into several gradients, and clipping would not bound
what it adds. So the function is followed like a model (`persample.proof`), on made-up rows first and on every batch: where
every operation acts row by row, the batch is changed at once, otherwise unit by unit with a generator each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from noisewise.batches import Nest, leaves, length, map_tensors, take
from noisewise.errors import ConfigError, CoupledSamples
from noisewise.persample.conditions import NotProven
from noisewise.persample.dispatched import StateChanged
from noisewise.persample.made_up import synthetic
from noisewise.persample.places import apart
from noisewise.persample.proof import Proof
from noisewise.persample.tape import Tape
from noisewise.persample.trace import Trace

Change = Callable[[Nest, torch.Generator], Nest]
ROWS = 40  # made-up rows: mixing of rows that stand further apart is left to the proof
SIZES = (11, 13)


class Augment(NamedTuple):
    """Augmentation multiplicity: `views` random versions of each row, their gradients averaged before clipping.

    `function(rows, generator)` changes each row on its own. Reference: De et al. 2022, arXiv:2204.13650.
    """

    function: Change
    views: int = 1


def augmented(function: Change, rows: Nest, owned: int, seed: int, trace: Trace | None) -> Nest:
    """Versions of rows, of which each unit owns `owned` side by side.

    Guarantee: a unit's versions depend on its own rows and on chance alone.
    """
    if not length(rows):
        return _of_nobody(function, rows, owned, seed)
    if trace is not None:
        try:
            return _followed(function, rows, seed, trace)[0]
        except NotProven:  # this batch takes another way
            pass
    units = []
    for number in range(length(rows) // owned):
        of_unit = take(rows, slice(number * owned, (number + 1) * owned))
        state = np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(1, np.uint64)[0]
        versions = function(map_tensors(torch.clone, of_unit), torch.Generator().manual_seed(int(state >> 1)))
        if length(versions) != owned:  # one unit's surplus could hide another's loss
            raise ConfigError(f"augment returned {length(versions)} rows for {owned} of one unit: one for each.")
        units.append(versions)
    parts = zip(*(list(leaves(unit)) for unit in units), strict=True)
    joined = iter([torch.cat(part) for part in parts])
    return map_tensors(lambda _: next(joined), units[0])


def _of_nobody(function: Change, rows: Nest, owned: int, seed: int) -> Nest:
    """No versions, in the shape that they have.

    The function is given made-up rows, as when it was checked: one that cannot cope with none would break off, and so tell
    that nobody was drawn.
    """
    with _own_draws():
        made = synthetic(rows, max(owned, 1))
    return take(function(made, torch.Generator().manual_seed(seed)), slice(0, 0))


@contextmanager
def _own_draws() -> Iterator[None]:
    """Made-up rows are the same every time, and leave the global random state alone."""
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(0)
        yield


def _followed(
    function: Change, rows: Nest, seed: int, against: Trace | None = None, *, strict: bool = False
) -> tuple[Nest, Trace]:
    """The versions of all rows at once, under proof."""
    copies = iter([tensor.clone() for tensor in apart(leaves(rows))])
    rows = map_tensors(lambda _: next(copies), rows)
    generator = torch.Generator().manual_seed(seed)
    proof = Proof(list(leaves(rows)), {}, against=against, strict=strict, copied=True, generator=generator)
    with Tape({}, proof), proof:
        versions = function(rows, generator)
    return versions, proof.conclude(*leaves(versions))


def check_augment(function: Change, like: Nest) -> Trace | None:
    """Refuse an augmentation that mixes rows or draws from elsewhere than its generator; the trace of its proof, if any.

    Asked of made-up rows, for several draws: replacing some of them must leave the versions of the others as they are. What
    draws nothing must also give the same versions when a row is left out. This is a second net: without a proof (None) the
    function is given one unit at a time.
    """
    with _own_draws():
        made = synthetic(like, ROWS) if not length(like) else take(like, torch.arange(ROWS) % length(like))
        other = synthetic(like, ROWS)
    _check_behaviour(function, made, other)
    try:
        traces = [_followed(function, take(made, slice(0, size)), size, strict=True)[1] for size in SIZES]
        return None if traces[0].difference(traces[1]) else traces[0]
    except (NotProven, StateChanged):
        return None


def _check_behaviour(function: Change, rows: Nest, other: Nest) -> None:
    seen = []
    for seed in range(20):
        versions = [function(map_tensors(torch.clone, rows), torch.Generator().manual_seed(seed)) for _ in range(2)]
        if length(versions[0]) != ROWS:
            raise ConfigError(f"augment returned {length(versions[0])} rows for {ROWS}: one for each.")
        if not all(torch.equal(a, b) for a, b in zip(leaves(versions[0]), leaves(versions[1]), strict=True)):
            raise ConfigError(
                "augment gives different versions for the same generator: a resumed run would not be the run that was "
                "interrupted. Draw from the generator that is passed in."
            )
        seen.append(versions[0])
        for row in {seed, ROWS - 1 - seed}:
            replaced = map_tensors(torch.clone, rows)
            for tensor, new in zip(leaves(replaced), leaves(other), strict=True):
                tensor[row] = new[row]
            after = function(replaced, torch.Generator().manual_seed(seed))
            others = torch.arange(ROWS) != row
            for a, b in zip(leaves(versions[0]), leaves(after), strict=True):
                if a.shape != b.shape or not torch.equal(a[others], b[others]):
                    raise CoupledSamples(
                        "augment: replacing one row changed the version of another, as mixup does. One unit would then be in "
                        "several gradients and could move the sum by more than the bound. Change each row on its own."
                    )
    if all(torch.equal(a, b) for one in seen for a, b in zip(leaves(seen[0]), leaves(one), strict=True)):
        fewer = function(take(rows, slice(1, ROWS)), torch.Generator().manual_seed(0))
        for a, b in zip(leaves(seen[0]), leaves(fewer), strict=True):
            if a[1:].shape != b.shape or not torch.equal(a[1:], b):
                raise CoupledSamples(
                    "augment: leaving one row out changed the versions of the others: they depend on how many rows there are "
                    "or where they stand. Change each row on its own."
                )
