"""Which rows of a private table are held out: each unit's place follows from that unit alone, and from a public seed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from noisewise.data.base import Data

Marks = NDArray[np.uint64]


def marks_of(data: Data) -> Marks:
    """What tells units apart: the person of each row, or else a hash of its numbers, label and groups."""
    if data.unit is not None:
        return data.unit.numpy().astype(np.int64).view(np.uint64)
    columns = [data.x, data.y, *(data.groups[name] for name in sorted(data.groups))]
    flat = [column[:, None].flatten(1).contiguous().numpy() for column in columns]
    return _hashed(np.hstack([column.view(np.uint8) for column in flat]), b"row")


def parts_of(marks: Marks, seed: int, *sizes: float, people: bool = False) -> list[NDArray[np.intp]]:
    """Numbers of the rows in each part, and in the rest: a share of the units that are left, or a number of them.

    Equal marks are rows of one person (`people`), or else units of their own. Unit i has a number `u_i` in [0, 1) for each
    part: a hash of seed, part and mark (the k-th of equal units: and k). A share s takes all units with `u_i < s`, a number
    k those with the k least.

    Guarantee: with one unit more, the rest has at most one unit more, and no other unit leaves it: two tables that are
    neighbours stay neighbours after the cut. (A share looks at each unit alone. Of k least numbers a new unit displaces at
    most one, which goes on to the parts that follow; so each part hands at most one more unit to the next.) A permutation of
    all rows does not have this: one row more would send every other one elsewhere. The sizes of parts by share vary, with a
    standard deviation of `sqrt(n s (1 - s))`.
    """
    owner, alone = _units(marks, people)
    left = np.arange(len(alone))
    parts = []
    for number, size in enumerate(sizes):
        drawn = _hashed(alone, f"{seed} {number}".encode())[left]
        if isinstance(size, int):
            taken = np.zeros(len(left), bool)
            taken[np.argsort(drawn, kind="stable")[:size]] = True
        else:
            taken = drawn / 2.0**64 < size
        parts.append(np.flatnonzero(np.isin(owner, left[taken])))
        left = left[~taken]
    return [*parts, np.flatnonzero(np.isin(owner, left))]


def _units(marks: Marks, people: bool) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
    """Which unit each row is of, and the bytes that a unit is known by."""
    unique, owner, counts = np.unique(marks, return_inverse=True, return_counts=True)
    if people:
        return owner, unique[:, None].view(np.uint8)
    order = np.argsort(owner, kind="stable")
    copy = np.empty(len(marks), np.uint64)
    copy[order] = np.arange(len(marks)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.arange(len(marks)), np.stack([marks, copy], 1).view(np.uint8)


def _hashed(rows: NDArray[np.uint8], key: bytes) -> Marks:
    """A 64-bit hash of each row of bytes, the same on every machine."""
    texts: Sequence[bytes] = [row.tobytes() for row in rows]
    digests = b"".join(hashlib.blake2b(text, digest_size=8, key=key).digest() for text in texts)
    return np.frombuffer(digests, np.dtype("<u8")).astype(np.uint64)
