"""Marks of tensors and data sets: what tells one protected set from another, in memory only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from noisewise.data.base import Data

CHUNK = 1 << 24  # bytes hashed at a time
_MARKS: Any = WeakIdKeyDictionary()  # tensor -> (version, mark)


class Marked:
    """Data that are no tensors in memory, and know their own mark."""

    @property
    def mark(self) -> bytes:
        """What tells this set from others."""
        raise NotImplementedError


def mark_of(data: Any) -> bytes:
    """BLAKE2b of a whole protected set: names, types, shapes and bytes of x, y, unit and groups, or of a nest's tensors.

    It has no key, so it never leaves memory; `accounting.Identity` is made of it. Tensors that nobody has touched since
    (the same objects, at the same version) are not read again, nor are files whose checksum `disk.open` has verified.
    Cost: one SHA-256 of everything, once (`python benchmarks/identity.py` says how long); data on a GPU or opened
    without verifying pass through memory in chunks. Limits: sets that overlap have marks that share nothing; writing through
    `.data` or a NumPy view of the same memory is not noticed.
    """
    if isinstance(data, Marked):
        return data.mark
    if isinstance(data, Data):
        owned = {} if data.unit is None else {"unit": data.unit}
        parts = {"0": data.x, "1": data.y, **owned, **{f"groups/{name}": data.groups[name] for name in data.groups}}
    else:
        parts = dict(named(data))
    whole = hashlib.blake2b(digest_size=32)
    for name in sorted(parts):
        whole.update(f"{len(name)} {name}".encode() + _remembered(parts[name]))
    return whole.digest()


def digest(tensor: Tensor) -> bytes:
    """The mark of a tensor: BLAKE2b of its type, its shape and the SHA-256 of its values."""
    values = hashlib.sha256()
    rows = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
    for part in rows.split(max(1, CHUNK // max(1, rows[:1].nbytes))) if len(rows) else ():
        plain = part.resolve_conj().resolve_neg().cpu().contiguous()
        values.update(plain.view(-1).view(torch.uint8).numpy())
    return _mark(tensor, values.digest())


def remember(tensor: Tensor, sha256: str) -> None:
    """The tensor's values are known to have this checksum: they need not be read again."""
    _MARKS[tensor] = tensor._version, _mark(tensor, bytes.fromhex(sha256))


def _mark(tensor: Tensor, values: bytes) -> bytes:
    return hashlib.blake2b(f"{tensor.dtype} {list(tensor.shape)}".encode() + values, digest_size=32).digest()


def _remembered(tensor: Tensor) -> bytes:
    if tensor.is_inference():  # has no version
        return digest(tensor)
    version, mark = _MARKS.get(tensor, (None, b""))
    if version != tensor._version:
        mark = digest(tensor)
        _MARKS[tensor] = tensor._version, mark
    return mark


def named(nest: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a nest by their paths: `0` and `1` of a pair, `a/b` of dicts in dicts."""
    if isinstance(nest, Tensor):
        yield path, nest
    elif isinstance(nest, Mapping | tuple | list):
        for key, item in nest.items() if isinstance(nest, Mapping) else enumerate(nest):
            yield from named(item, f"{path}/{key}" if path else str(key))
