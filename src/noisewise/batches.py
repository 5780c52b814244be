"""Batches are nests (tuples, lists, dicts) of tensors whose first dimension is the unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from noisewise.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

Nest = Any


class Padded(NamedTuple):
    """A batch of fixed size, some of whose rows are padding: `present [batch]` is 0 there.

    Guarantee: rows that are not present contribute nothing, whatever they hold.
    """

    batch: Nest
    present: Tensor


class Views(NamedTuple):
    """A batch of units that own several rows each: augmentations of one record, or the rows of one person.

    `batch`: tensors `[batch, views, ...]`; `weights [batch, views]`: a unit's gradient is the weighted sum of its rows'
    gradients, clipped once. Rows of weight 0 are padding. Guarantee: a unit counts once, however many rows it owns.
    """

    batch: Nest
    weights: Tensor

    @classmethod
    def mean(cls, batch: Nest, mask: Tensor | None = None) -> Views:
        """Each unit's gradient is the mean over its rows, or over those in `mask [batch, views]`."""
        import torch

        first = next(leaves(batch))
        mask = torch.ones(first.shape[:2], device=first.device) if mask is None else mask.double()
        return cls(batch, mask / mask.sum(1, keepdim=True).clamp(min=1))

    @classmethod
    def single(cls, batch: Nest) -> Views:
        """Units of one row each."""
        import torch

        first = next(leaves(batch))
        weights = torch.ones(first.shape[0], 1, device=first.device)
        return cls(map_tensors(lambda tensor: tensor.unsqueeze(1), batch), weights)

    def rows(self) -> Nest:
        """All rows in one dimension, a unit's rows side by side: what the model sees."""
        return map_tensors(lambda tensor: tensor.flatten(0, 1), self.batch)


def leaves(nest: Nest) -> Iterator[Tensor]:
    """All tensors of a nest, in a fixed order."""
    from torch import Tensor

    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, Mapping):
        for key in nest:
            yield from leaves(nest[key])
    elif isinstance(nest, tuple | list):
        for item in nest:
            yield from leaves(item)


def map_tensors(function: Callable[[Tensor], Any], nest: Nest) -> Nest:
    """The same nest with `function` applied to each tensor; everything else is kept as it is."""
    from torch import Tensor

    if isinstance(nest, Tensor):
        return function(nest)
    if isinstance(nest, Mapping):
        return {key: map_tensors(function, value) for key, value in nest.items()}
    if isinstance(nest, tuple) and type(nest) is not tuple:  # a named tuple
        return type(nest)(*(map_tensors(function, item) for item in nest))
    if isinstance(nest, tuple | list):
        return type(nest)(map_tensors(function, item) for item in nest)
    return nest


def length(nest: Nest) -> int:
    """Number of units: the first dimension that all tensors share."""
    _refuse_torch_data(nest)
    _refuse_other_arrays(nest)
    sizes = {tensor.shape[0] if tensor.dim() else None for tensor in leaves(nest)}
    if len(sizes) != 1 or None in sizes:
        raise DataError(
            f"first dimensions {sorted(map(str, sizes))}: every tensor of the data needs the unit as first dimension, "
            "and the same number of units. Pass a tensor, or a tuple, list or dict of tensors."
        )
    return sizes.pop()  # type: ignore[return-value]


def _refuse_torch_data(nest: Nest) -> None:
    """Say what to pass instead of torch's loaders and data sets."""
    import torch

    if isinstance(nest, torch.utils.data.DataLoader):
        raise DataError(
            "got a DataLoader where data is expected: it fixes batches that the accountant does not know. Pass its Dataset, "
            "loader.dataset, or the tensors of it (for a TensorDataset: loader.dataset.tensors); noisewise samples by itself."
        )
    if isinstance(nest, torch.utils.data.Dataset):
        remedy = "dataset.tensors" if hasattr(nest, "tensors") else "torch.utils.data.default_collate(list(dataset))"
        raise DataError(
            f"got a {type(nest).__name__} where tensors are expected: noisewise samples by itself. Pass {remedy}."
        )


def _refuse_other_arrays(nest: Nest) -> None:
    """Arrays and rows of numbers that are no tensors are not cut into units: every unit would see all of them."""
    import numpy as np
    from torch import Tensor

    if isinstance(nest, Tensor | str | bytes | np.generic):
        return
    if isinstance(nest, Mapping):
        for item in nest.values():
            _refuse_other_arrays(item)
        return
    rows = isinstance(nest, tuple | list)
    if rows and not (nest and all(isinstance(item, int | float | complex | str | np.generic) for item in nest)):
        for item in nest:
            _refuse_other_arrays(item)
    elif rows or hasattr(nest, "__array__") or hasattr(nest, "__len__"):
        raise DataError(
            f"a {type(nest).__name__} within the data: only tensors are cut into units, so every unit would see all of it, "
            "the others' values too. Make it a tensor with the unit as first dimension: torch.as_tensor(...)."
        )


def take(nest: Nest, index: Tensor | slice | int) -> Nest:
    """The chosen units of each tensor."""
    return map_tensors(lambda tensor: tensor[index], nest)
