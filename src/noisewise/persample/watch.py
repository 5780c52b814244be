"""While units are evaluated one by one: nothing of one of them reaches another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from noisewise.persample.dispatched import (
    RecordsRead,
    StateChanged,
    about,
    tensors_of,
)


class Watch(TorchDispatchMode):
    """Active while units are evaluated one by one: what one of them leaves behind must not reach another.

    Refuses writes into tensors that were there before, and the use of a tensor that was computed from another unit.
    `records`: where they lie in memory; a pass on made-up units has no business there.
    """

    def __init__(self, names: Mapping[str, Tensor], records: Iterable[Tensor] = ()):
        super().__init__()  # type: ignore[no-untyped-call]
        records = [tensor for tensor in records if tensor.untyped_storage().nbytes()]
        self._records = {tensor.untyped_storage()._cdata for tensor in records}
        self._names = {tensor.untyped_storage()._cdata: name for name, tensor in names.items()}
        # a layer may give its weights other memory (cuDNN's): while these are here, no new tensor gets the addresses of the old
        self._references = [StorageWeakRef(tensor.untyped_storage()) for tensor in (*records, *names.values())]
        self._inputs: set[int] = set()
        self._made: dict[int, StorageWeakRef] = {}
        self._touched: dict[int, StorageWeakRef] = {}
        self._earlier: dict[int, StorageWeakRef] = {}

    def begin(self, inputs: Iterable[Tensor]) -> None:
        """The next unit."""
        self._earlier |= self._touched
        self._earlier = {key: reference for key, reference in self._earlier.items() if not reference.expired()}
        self._made, self._touched, self._inputs = {}, {}, set()
        for tensor in inputs:
            storage = tensor.untyped_storage()
            self._inputs.add(storage._cdata)
            self._made[storage._cdata] = self._touched[storage._cdata] = StorageWeakRef(storage)
            self._earlier.pop(storage._cdata, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; look at what it reads and writes."""
        kwargs = kwargs or {}
        operation = about(func)
        named = dict(zip(operation.arguments, args, strict=False)) | kwargs
        given = [tensor.untyped_storage()._cdata for tensor in tensors_of(named.values())]
        for name in operation.written:
            for tensor in tensors_of([named.get(name)]):
                key = tensor.untyped_storage()._cdata
                if key not in self._made:
                    raise StateChanged(self._names.get(key, "a tensor that is not the model's own"))
        if not self._records.isdisjoint(given):
            raise RecordsRead
        if any(key in self._earlier for key in given):
            raise StateChanged("a tensor computed from another unit")
        result = func(*args, **kwargs)
        touched = any(key in self._touched for key in given)
        outputs = tensors_of([result])
        for out in outputs[:4] if operation.bare == "_cudnn_rnn" else outputs:  # the fifth is a buffer of the weights
            storage = out.untyped_storage()
            if storage._cdata in self._names or (storage._cdata in given and storage._cdata not in self._made):
                continue  # a view of something that was there before
            reference = self._made.setdefault(storage._cdata, StorageWeakRef(storage))
            if touched:
                self._touched[storage._cdata] = reference
        return result

    def kept(self) -> bool:
        """Is something computed from the last unit still held by somebody?"""
        return any(not ref.expired() for key, ref in self._touched.items() if key not in self._inputs)
