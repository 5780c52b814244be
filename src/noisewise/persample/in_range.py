"""Indices that are looked at before a GPU reads by them: one that is out of range would end the process, not the pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from noisewise.persample.dispatched import BLANK, CONSTANT, FRESH, SAME, about, tensors_of
from noisewise.persample.operations import RULES

# operations that ask something of the values they are given: probabilities, places, numbers of classes
ASKING = {
    "bernoulli", "normal", "poisson", "multinomial", "binary_cross_entropy", "mode", "multi_margin_loss",
    "multilabel_margin_loss_forward", "_embedding_bag", "_embedding_bag_forward_only", "index", "_unsafe_index", "index_put",
    "_index_put_impl", "_unsafe_index_put", "gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add",
    "index_copy", "max_unpool2d", "_cudnn_rnn",
}  # fmt: skip
HARMLESS = (RULES.keys() | BLANK | CONSTANT | FRESH | SAME | {"_unsafe_view"}) - ASKING


class NotAsked(Exception):
    """Whether an operation takes its values cannot be told without running it."""


class InRange(TorchDispatchMode):
    """Within it, an index out of range is an `IndexError` on any device; `NotAsked` where an operation is not known.

    Guarantee: an operation runs only if it asks nothing of its values, or what it asks holds. Passes backward read by the
    same indices, and need no looking.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at the indices, then run."""
        operation, kwargs = about(func), kwargs or {}
        look = LOOKS.get(operation.full)
        if look is not None:
            look(*args, **kwargs)
        elif operation.bare not in HARMLESS and not func.is_view and tensors_of((*args, *kwargs.values())):
            raise NotAsked(operation.full)
        return func(*args, **kwargs)


def _rows(table: Tensor, index: Tensor, *_: Any, **__: Any) -> None:
    _look(index, len(table))


def _classes(outputs: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int) -> None:
    _look(target[target != ignored], outputs.shape[min(1, outputs.dim() - 1)])


def _look(index: Tensor, count: int) -> None:
    if index.numel():
        low, high = (int(end) for end in index.aminmax())
        if low < 0 or high >= count:
            raise IndexError(f"{low if low < 0 else high} is out of range: there are 0 to {count - 1}")


LOOKS: dict[str, Callable[..., None]] = {
    "aten::embedding.default": _rows,
    "aten::nll_loss_forward.default": _classes,
    "aten::nll_loss2d_forward.default": _classes,
    "aten::bernoulli_.float": lambda *_, **__: None,  # a probability that is written in the code
}
