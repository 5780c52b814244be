"""A map-style Dataset of the user's own, read by index: larger than memory, by worker processes, with the same result."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate
from torch.utils.weak import WeakIdKeyDictionary

from noisewise.batches import Nest, leaves, length, map_tensors
from noisewise.data.extremes import Extreme, in_part, joined
from noisewise.data.marks import Marked, digest, named
from noisewise.errors import ConfigError, DataError

TWICE = 8  # items that are read twice
AT_ONCE = 256  # rows that are held while the whole set is looked through
_WRAPPED: Any = WeakIdKeyDictionary()  # Dataset -> Indexed


class Indexed(Marked):
    """A torch `Dataset` whose item `i` is what is known of unit `i`: any nest of tensors and numbers, of equal shapes.

    `num_workers` processes read the next batch while a step is computed. Guarantee: bit for bit, the result does not depend
    on them: what an item draws at random (from torch, NumPy or Python) follows from the step's secret seed and its index.
    Workers hold the Dataset as it was when they started: one that is changed during a run is read as before.

    The user vouches that item `i` depends on record `i` alone: a Dataset that mixes records (mixup) couples units, and no
    check sees it. Before the first step a few items are read twice, and a Dataset whose items differ then (it has a generator
    of its own) is refused: a step that is done again after a crash would put the same noise on other values. Items that
    differ but rarely are not noticed.

    `identity`: what this set of people is called, e.g. "hospital 2024, training part". Without it the whole set is read once
    before the first step, so that resuming on other data is refused and values that the loss cannot take are named; with it
    the name stands for the data, only those few items are read before they are drawn, and such values are named when a batch
    holds them.
    """

    def __init__(self, dataset: Any, *, num_workers: int = 0, identity: str | None = None):
        if (
            isinstance(dataset, IterableDataset)
            or not hasattr(dataset, "__getitem__")
            or not hasattr(dataset, "__len__")
        ):
            raise DataError(
                f"a {type(dataset).__name__} cannot be read by index: batches are drawn by index, so that the accountant "
                "knows them. Give a map-style Dataset with __len__ and __getitem__."
            )
        if type(num_workers) is not int or num_workers < 0:
            raise ConfigError(f"num_workers={num_workers!r}: must be a whole number >= 0.")
        if identity is not None and (not isinstance(identity, str) or not identity):
            raise ConfigError(f"identity={identity!r}: must be a text that names this set of people, or None.")
        if not len(dataset):
            raise DataError(f"a {type(dataset).__name__} without items: give one with at least one unit.")
        self.dataset, self.num_workers, self.identity = dataset, num_workers, identity
        self._reader = _Reader(dataset, num_workers)

    def __len__(self) -> int:
        """Number of units."""
        return len(self.dataset)

    def __repr__(self) -> str:
        """What it reads, and how."""
        return f"Indexed({type(self.dataset).__name__} of {len(self)}, num_workers={self.num_workers})"

    @cached_property
    def like(self) -> Nest:
        """An empty batch: shapes and types of a unit."""
        return map_tensors(lambda tensor: tensor[:0], self.rows(torch.tensor([0])))

    def rows(self, index: Tensor, seed: int = 0) -> Nest:
        """The units in `index`, as one batch; an empty index gives an empty batch."""
        return self._reader.read(index.tolist(), seed) if len(index) else self.like

    def ahead(self, index: Tensor, seed: int) -> None:
        """Begin to read what will probably be asked for next; if it is not, it is thrown away."""
        if self.num_workers and len(index):
            self._reader.begin(index.tolist(), seed)

    def close(self) -> None:
        """End the workers, which else stay until this object goes; they start again when something is read."""
        self._reader.close()

    def __enter__(self) -> Indexed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def parts(self) -> Iterator[tuple[int, Nest]]:
        """All units in their order, some at a time, each part with the number of its first."""
        for first in range(0, len(self), AT_ONCE):
            yield first, self.rows(torch.arange(first, min(first + AT_ONCE, len(self))))

    @cached_property
    def _looked_through(self) -> tuple[bytes, dict[str, tuple[Extreme, ...]]]:
        """The mark of the whole set, and its extremes by tensor: one reading."""
        whole, several = hashlib.blake2b(f"{len(self)}".encode(), digest_size=32), dict[str, list[Extreme]]()
        for first, rows in self.parts():
            for name, tensor in named(rows):
                whole.update(f"{len(name)} {name}".encode() + digest(tensor))
                several.setdefault(name, []).extend(in_part(tensor, first))
        return whole.digest(), {name: joined(parts) for name, parts in several.items()}

    def check_steady(self) -> None:
        """Refuse a Dataset whose items are others when they are read again with the same seed."""
        some = torch.linspace(0, len(self) - 1, min(TWICE, len(self))).long()
        first, again = (dict(named(self.rows(some))) for _ in range(2))
        for name, tensor in first.items():
            if name not in again or again[name].shape != tensor.shape:
                raise _not_steady(self.dataset, int(some[0]))
            for place, row in enumerate(some.tolist()):
                if digest(tensor[place]) != digest(again[name][place]):
                    raise _not_steady(self.dataset, row)

    def look_again(self) -> None:
        """Forget what was read: a run that begins, or goes on, must see the items as they are now."""
        vars(self).pop("_looked_through", None)

    @property
    def mark(self) -> bytes:
        """What tells this set from others: of all its items, or of the name that it was given."""
        if self.identity is not None:
            return hashlib.blake2b(f"{len(self)} {self.identity}".encode(), digest_size=32, person=b"identity").digest()
        return self._looked_through[0]

    @property
    def extremes(self) -> dict[str, tuple[Extreme, ...]]:
        """The extremes of each tensor, by its path; none where a name stands for the data."""
        return {} if self.identity is not None else self._looked_through[1]


def _not_steady(dataset: Any, row: int) -> DataError:
    return DataError(
        f"item {row} of {type(dataset).__name__} is another one when it is read again: it draws from a generator of its own, "
        "or from a clock. A step that is done again after a crash would put the same noise on other values, which shows them. "
        "Leave chance out of __getitem__ and pass it as train(..., augment=Augment(function)), or draw from torch, "
        "numpy.random or random themselves, which are seeded for each item."
    )


def readable(data: Any) -> Any:
    """Data as training reads it: a `Dataset` by index (of a `TensorDataset` its tensors), everything else as it is."""
    if isinstance(data, TensorDataset):
        return data.tensors
    if not isinstance(data, Dataset):
        return data
    if data not in _WRAPPED:
        _WRAPPED[data] = Indexed(data)
    return _WRAPPED[data]


class _Items(Dataset[Any]):
    """Items by (index, seed): what they draw follows from both."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __getitem__(self, asked: tuple[int, int]) -> Any:
        index, seed = asked
        words = np.random.SeedSequence(seed, spawn_key=(index,)).generate_state(4, np.uint32)
        torch.manual_seed(int(words[0]) << 32 | int(words[1]))
        random.seed(int(words[2]))
        np.random.seed(words[3])
        return self.dataset[index]


class _Chunks:
    """What the workers shall read next, in as many chunks as there are workers: changed before each reading."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[int, int]]] = []

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return iter(self.asked)


class _Reader:
    """Reads rows here, or by workers that stay."""

    def __init__(self, dataset: Any, workers: int):
        self.items, self.workers = _Items(dataset), workers
        self._chunks = _Chunks()
        self._loader: Any = None
        self._begun: tuple[list[int], int, Iterator[Nest]] | None = None

    def begin(self, index: list[int], seed: int) -> None:
        """Hand rows out to the workers."""
        self._drain()
        if self._loader is None:
            self._loader = DataLoader(
                self.items, batch_sampler=self._chunks, num_workers=self.workers, persistent_workers=True,
                collate_fn=_collated,
            )  # fmt: skip
        each = -(-len(index) // self.workers)
        self._chunks.asked = [[(i, seed) for i in index[first : first + each]] for first in range(0, len(index), each)]
        with torch.random.fork_rng([]):  # a loader draws a seed for its workers
            self._begun = index, seed, iter(self._loader)

    def read(self, index: list[int], seed: int) -> Nest:
        """The rows of an index, as one batch."""
        if not self.workers:
            return self._read_here(index, seed)
        if self._begun is None or self._begun[:2] != (index, seed):
            self.begin(index, seed)
        assert self._begun is not None
        parts, self._begun = self._begun[2], None
        return _joined(list(parts))

    def _read_here(self, index: list[int], seed: int) -> Nest:
        python, numpy = random.getstate(), np.random.get_state()
        try:
            with torch.random.fork_rng([]):
                return _collated([self.items[i, seed] for i in index])
        finally:
            random.setstate(python)
            np.random.set_state(numpy)

    def close(self) -> None:
        """End the workers."""
        self._begun = None
        if self._loader is not None and self._loader._iterator is not None:
            self._loader._iterator._shutdown_workers()
        self._loader = None

    def _drain(self) -> None:
        if self._begun is not None:
            for _ in self._begun[2]:
                pass
            self._begun = None


def _collated(items: list[Any]) -> Nest:
    try:
        batch = default_collate(items)
    except (RuntimeError, TypeError) as error:
        raise DataError(
            f"items of the Dataset do not make a batch ({str(error).splitlines()[0]}): each must be a nest of tensors or "
            "numbers of one shape. Pad or crop in __getitem__; turn images and texts into tensors there."
        ) from None
    if not any(True for _ in leaves(batch)):
        raise DataError(
            f"items of the Dataset hold no tensor, but {items[0]!r}: turn them into tensors in __getitem__."
        )
    length(batch)
    return batch


def _joined(parts: list[Nest]) -> Nest:
    """Chunks of a batch as one, in their order."""
    tensors = iter([torch.cat(several) for several in zip(*(list(leaves(part)) for part in parts), strict=True)])
    return map_tensors(lambda _: next(tensors), parts[0])
