"""Parameters that lie elsewhere, in parts: a model computes with stand-ins, and whole weights are lent to it call by call.

While a `Lending` is active, the model's parameters are stand-ins: of the right shape and type, without memory, not a number
throughout. A function of `FUNCTIONS` that is given a stand-in gets the whole weight, which is gone when the function returns;
what autograd keeps of it for the backward pass is its name, and it is lent once more there. Sums of gradients are handed back
one parameter at a time (`Sums`), and only a part of each is kept. So a process never holds more than a few whole weights.
A stand-in that is used in any other way is refused; where that is not seen, it makes losses that are not numbers, and the
examination refuses these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any, NamedTuple, Protocol, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves, tree_map_only

from noisewise.errors import UnsupportedLayer
from noisewise.noise import Piece
from noisewise.persample.labels import BEFORE, Labels

FUNCTIONS = {F.linear, F.embedding, F.layer_norm, F.rms_norm, F.group_norm}  # what may be given a weight that is lent
FORM = {  # what may be asked of a stand-in: its form, and nothing of its values
    "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "storage_offset", "is_contiguous", "__len__",
    "is_floating_point", "is_complex", "is_inference", "is_neg", "is_conj", "_is_view", "data_ptr", "untyped_storage", "detach",
    "requires_grad_", "new_zeros", "new_empty", "zeros_like", "empty_like", "__hash__", "get_device",
}  # fmt: skip
VALUES = {"T", "mT", "H", "mH", "data", "real", "imag"}  # attributes that show values
PORTION = 1 << 24  # floats of whole gradients that are asked for at once, while a model is looked at

Change = Callable[[str, Tensor], Tensor]


class Dividing(Protocol):
    """Adds sums to those of all others who hold parts of the same parameters."""

    def add(self, name: str, total: Tensor) -> None:
        """A sum of the parameter's shape."""
        ...

    def parts(self) -> dict[str, Tensor]:
        """This one's part of each result."""
        ...


class Lender(Protocol):
    """Where whole weights come from, and where sums of gradients go."""

    def whole(self, name: str) -> Tensor:
        """A parameter, from all of its parts, in memory of its own."""
        ...

    def dividing(self) -> Dividing:
        """What sums of gradients are handed to."""
        ...

    def nothing(self, name: str, dtype: torch.dtype) -> Tensor:
        """This one's part of a sum of nothing."""
        ...

    def piece(self, name: str) -> Piece:
        """Which part of the parameter is here."""
        ...


class _Saved(NamedTuple):
    """What autograd keeps of a whole weight: which one, and how it is seen."""

    name: str
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


class StandIn(nn.Parameter):
    """A parameter of the right shape and type that takes no memory, and of which nothing can be computed.

    Functions that take weights are given the whole of it by whoever lends now.
    """

    lending: Lending | None = None
    name: str = ""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function; one that takes weights is lent the whole of each, through which gradients go back."""
        kwargs = kwargs or {}
        if func is torch.autograd.grad:
            change = _edge
        elif func in FUNCTIONS:
            change = _lent
        elif _asks_for_form(func):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        else:
            raise _used_otherwise(next(part for part in tree_leaves((args, kwargs)) if is_lent(part)), func)
        return func(*tree_map_only(StandIn, change, args), **tree_map_only(StandIn, change, kwargs))


def stand_in_for(parameter: Tensor, device: torch.device) -> StandIn:
    """What a parameter that lies elsewhere is replaced by."""
    blank = torch.full((), float("nan"), dtype=parameter.dtype, device=device).expand(parameter.shape)
    return torch.Tensor._make_subclass(StandIn, blank, parameter.requires_grad)


def _edge(stand_in: StandIn) -> Any:
    """Where the gradient of a stand-in arrives: what is asked for it by this name is not asked of the stand-in."""
    with torch._C.DisableTorchFunctionSubclass():
        return get_gradient_edge(stand_in)


def _lent(stand_in: StandIn) -> Tensor:
    """The whole weight, and gradients that go back to the stand-in where somebody wants them."""
    lending = stand_in.lending
    if lending is None:
        raise _used_otherwise(stand_in, "a call after the step")
    if stand_in.requires_grad and torch.is_grad_enabled():
        return lending.through(stand_in, stand_in.name)
    return lending._whole(stand_in.name)


class Lending:
    """Active while a model with stand-ins is computed with: lends whole weights to the functions that take them."""

    def __init__(self, stand_ins: Mapping[str, StandIn], lender: Lender):
        self.lender = lender
        self.lent = frozenset(stand_ins)
        self._stand_ins = stand_ins
        self._out: dict[int, tuple[StorageWeakRef, str]] = {}  # by storage: an address is not used again meanwhile
        self._change: Change | None = None
        self._token: Token[Lending | None] | None = None
        self._hooks: Any = None

    def __enter__(self) -> Lending:
        self._token = _LENDING.set(self)
        for name, stand_in in self._stand_ins.items():
            stand_in.lending, stand_in.name = self, name
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)
        for stand_in in self._stand_ins.values():
            stand_in.lending = None
        assert self._token is not None
        _LENDING.reset(self._token)
        self._out.clear()

    def through(self, leaf: Tensor, name: str) -> Tensor:
        """The whole parameter as a function of a tensor without memory: the graph would keep a leaf of its own alive."""
        whole: Tensor = Lent.apply(leaf, name, self)  # type: ignore[no-untyped-call]
        return whole

    def _whole(self, name: str) -> Tensor:
        """The whole parameter, as a tensor that was there before the pass."""
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
            tensor = self.lender.whole(name)
            if self._change is not None:
                tensor = self._change(name, tensor)
        storage = tensor.untyped_storage()
        self._out = {key: kept for key, kept in self._out.items() if not kept[0].expired()}
        if self._out.get(storage._cdata, (None, name))[1] != name:
            raise RuntimeError(f"{name!r} was lent in the memory of {self._out[storage._cdata][1]!r}")
        self._out[storage._cdata] = (StorageWeakRef(storage), name)
        watching = _get_current_dispatch_mode()
        if isinstance(watching, Labels):
            watching._set(tensor, BEFORE, name)
        return tensor

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """Within it, `change(name, whole)` is lent."""
        before, self._change = self._change, change
        try:
            yield
        finally:
            self._change = before

    # ------------------------------------------------------------------------------------------- what autograd keeps

    def pack(self, tensor: Tensor) -> Any:
        """Of a whole weight the name, of anything else the values, and which version of them it is."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            known = self._out.get(tensor.untyped_storage()._cdata)
            if known is None:
                return tensor.detach(), tensor._version  # the tensor itself would keep its own graph alive
            return _Saved(known[1], tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def unpack(self, saved: Any) -> Any:
        """Lend it once more."""
        if not isinstance(saved, _Saved):
            tensor, version = saved
            if tensor._version != version:
                raise RuntimeError("a tensor needed for the gradient has been modified by an inplace operation")
            return tensor
        whole = self._whole(saved.name)
        return whole.as_strided(saved.shape, saved.stride, saved.offset)


def _asks_for_form(func: Any) -> bool:
    """Is it a question about the form of a tensor: a method, or an attribute?"""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(getattr(func, "__self__", None), "__name__", "") not in VALUES
    return name in FORM


def _used_otherwise(stand_in: StandIn, func: Any) -> UnsupportedLayer:
    return UnsupportedLayer(
        f"the model gives {stand_in.name!r}, which is spread over processes, to {getattr(func, '__name__', func)}: it can be "
        "lent to linear, embedding, layer_norm, rms_norm and group_norm of torch.nn.functional only. Use it by these, or train "
        "without fully_shard."
    )


class Lent(torch.autograd.Function):
    """The whole weight of a stand-in, whose gradient is the stand-in's."""

    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, name: str, lending: Lending) -> Tensor:
        """The whole."""
        return lending._whole(name)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """As it is."""
        return grads[0], None, None


_LENDING: ContextVar[Lending | None] = ContextVar("lending", default=None)


def lending() -> Lending | None:
    """What lends weights now; None where models hold their own."""
    return _LENDING.get()


def is_lent(tensor: Any) -> TypeGuard[StandIn]:
    """Is it a stand-in?"""
    return isinstance(tensor, StandIn)


def apart(parameter: Tensor) -> Tensor:
    """A parameter's values, with a gradient that does not reach it: its own memory, or the whole that is lent."""
    leaf = parameter.detach().requires_grad_()
    return parameter.lending.through(leaf, parameter.name) if is_lent(parameter) and parameter.lending else leaf


def lends_what_is_saved(hook: Any) -> bool:
    """Is a hook of saved tensors that of the lending? It gives back what was saved, bit for bit."""
    active = _LENDING.get()
    return active is not None and getattr(hook, "__self__", None) is active


class Sums:
    """Sums of gradients as they are kept: all of each, or this process's part of the sum of all.

    `before`: sums over other units, in whose memory these are added up.
    """

    def __init__(self, before: Mapping[str, Tensor] | None = None) -> None:
        self._before = dict(before or {})
        self._lending = _LENDING.get()
        self._away = None if self._lending is None else self._lending.lender.dividing()
        self._here: dict[str, Tensor | None] = {}

    def add(self, name: str, total: Tensor) -> None:
        """The sum of one parameter."""
        if self._lending is None or self._away is None or name not in self._lending.lent:
            self._here[name] = self._together(name, total)
        else:
            self._here[name] = None
            self._away.add(name, total)

    def all(self) -> dict[str, Tensor]:
        """All that there were, in their order."""
        parts = {} if self._away is None else self._away.parts()
        return {
            name: self._together(name, parts[name]) if total is None else total for name, total in self._here.items()
        }

    def taken(self, name: str) -> Tensor | None:
        """The sum over other units, if all of it is here, for the caller to add to: what comes back is not added again."""
        lent = self._lending is not None and name in self._lending.lent
        return None if lent else self._before.pop(name, None)

    def _together(self, name: str, total: Tensor) -> Tensor:
        return self._before.pop(name).add_(total) if name in self._before else total


def nothing_for(name: str, parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of no gradients, as it is kept."""
    active = _LENDING.get()
    if active is None or name not in active.lent:
        return torch.zeros_like(parameter, dtype=dtype)
    return active.lender.nothing(name, dtype)


def pieces(names: Iterable[str]) -> dict[str, Piece]:
    """Of these parameters those that are kept in parts, with the part that is here."""
    active = _LENDING.get()
    return {} if active is None else {name: active.lender.piece(name) for name in names if name in active.lent}


def portions(live: Mapping[str, nn.Parameter]) -> Iterator[dict[str, nn.Parameter]]:
    """Parameters whose whole gradients are asked for at once: all of them, but where weights are lent a few at a time."""
    if _LENDING.get() is None:
        yield dict(live)
        return
    chosen: dict[str, nn.Parameter] = {}
    for name, parameter in live.items():
        if chosen and sum(p.numel() for p in chosen.values()) + parameter.numel() > PORTION:
            yield chosen
            chosen = {}
        chosen[name] = parameter
    yield chosen
