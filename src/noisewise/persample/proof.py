"""Proof that the units of a batch are separate: follow them through every operation between batch and losses.

A `TorchDispatchMode` sees all operations of a forward pass, below modules and functions, in-place operations and writes
through `.data` included. For each storage the proof knows whether it holds units, and where (`places`); each operation on
units must have a row in the table (`operations`) whose condition holds. Then loss i depends on unit i alone, and by the chain
rule so does row i of every gradient with respect to an output: the rules of the fast engine are exact. Anything else is
`NotProven`, and the units are evaluated each alone.

A pass at one size says nothing about numbers that come from the size of the batch (`/ len(batch)`, branches on it). So the
pass also leaves a `Trace`: which operations on which views of what, with which constants. Traces of made-up batches of two
sizes must be equal, and so must that of every later pass: the proof is made for each real batch, on the batch itself. A batch
of one unit needs no trace: it is that unit alone.

What counts as the same for all units: parameters, buffers, other tensors that were there before the pass, and what is computed
from those; numbers drawn by chance, entry by entry, are independent of the units whatever their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from noisewise.persample.chance import Seeds
from noisewise.persample.conditions import NotProven, Rule
from noisewise.persample.operations import RULES
from noisewise.persample.places import FRONT, Place, Rows, locate, rows_of

PRIMES = (5, 7, 11, 13, 17, 19, 23)  # sizes of made-up batches: a dimension that is a multiple of one shows itself

BLANK = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
CONSTANT = {"zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "new_zeros", "new_ones", "new_full", "zero",
            "fill", "scalar_tensor"}  # fmt: skip
CHANCE = {"rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "bernoulli", "normal", "uniform", "random",
          "exponential", "geometric", "cauchy", "log_normal", "poisson", "native_dropout", "rrelu_with_noise"}  # fmt: skip
LIKE = {
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
    "empty_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "new_empty_strided",
}  # take a shape from their input, and nothing else
FRESH = {"lift_fresh", "lift_fresh_copy"}  # constants made from Python numbers: their content belongs to the trace
COUNTLESS = {"all", "any", "amax", "amin", "max", "min"}  # the same however often an entry is repeated
REARRANGING = {"set", "resize", "resize_as", "as_strided_scatter"}
RESHAPING = {
    "as_strided",
    "transpose",
    "t",
    "squeeze",
    "unsqueeze",
    "swapaxes",
    "swapdims",
    "detach",
}  # in place: another view of itself
OVERWRITING = CONSTANT | CHANCE | {"copy"}
SIZES = {
    "size",
    "output_size",
    "repeats",
    "split_size",
    "split_sizes",
    "num_samples",
}  # the shape of the result shows them
SIZES_OF = {"arange": {"end"}, "slice": {"end"}, "native_group_norm": {"N"}, "_reshape_alias": {"stride"}}
UNSEEN = {"layout", "device", "pin_memory", "memory_format", "generator"}  # change no value
SAME = {"detach", "alias"}  # another name for the same tensor


class Shared(NamedTuple):
    """A storage without units: what is known of how its entries differ.

    alike: all entries are equal. chance: drawn entry by entry. even: byte strides of dimensions as long as the batch along
    which nothing changes. numbers: 0, numbers, 2 numbers, ... one for each unit. blank: nothing was written yet. made: in
    this pass.
    """

    alike: bool = False
    chance: bool = False
    even: frozenset[int] = frozenset()
    numbers: int = 0
    blank: bool = False
    made: bool = True


BEFORE = Shared(made=False)


class Made(NamedTuple):
    """What an operation makes: with units the place and the shape of one unit's part, without units the shape.

    `loose`: dimensions along which entries are equal, or equal for each unit, so that they may follow the number of units.
    """

    kind: str  # rows | shared | elsewhere (nobody may read it)
    shape: tuple[int, ...] = ()
    place: Place | None = None
    dtype: torch.dtype | None = None
    loose: tuple[bool, ...] = ()


class Step(NamedTuple):
    """One operation of a trace: what it is, its constants, which views it takes, what it makes, and where gradients go."""

    operation: str
    constants: tuple[Any, ...]
    sources: tuple[Any, ...]
    made: tuple[Made, ...]
    differentiable: tuple[bool, ...] = ()  # is autograd on, and does a gradient go to each input


@dataclass
class Trace:
    """The operations of a pass, in order."""

    units: int
    steps: list[Step] = field(default_factory=list)
    references: list[StorageWeakRef] = field(
        default_factory=list
    )  # keep addresses of foreign tensors from being used again

    def difference(self, other: Trace) -> str | None:
        """What differs from a pass of another size, in words: constants, operations, or shapes that are no multiples."""
        for mine, theirs in zip(self.steps, other.steps, strict=False):
            if (reason := _differs(mine, theirs, self.units, other.units)) is not None:
                return reason
        if len(self.steps) != len(other.steps):
            return "the number of operations differs between passes"
        return None


def _differs(one: Step, two: Step, units: int, others: int) -> str | None:
    if one == two:
        return None
    if one.operation != two.operation:
        return f"{one.operation} in one pass is {two.operation} in another"
    if one.constants != two.constants:
        return f"{one.operation} has other constants in passes of other sizes: {one.constants} and {two.constants}"
    if one.sources != two.sources:
        return f"{one.operation} takes its inputs from elsewhere in another pass"
    if one.differentiable != two.differentiable:
        return f"gradients go through {one.operation} in one pass and not in another"
    for mine, theirs in zip(one.made, two.made, strict=True):
        if not _fits(mine, theirs, units, others):
            return f"{one.operation} makes another shape in a pass of another size: {mine} and {theirs}"
    return None


def _fits(one: Made, two: Made, units: int, others: int) -> bool:
    """The same kind, place and type; equal sizes, or where that is allowed the same multiple of the number of units."""
    if (one.kind, one.place, one.dtype, len(one.shape)) != (two.kind, two.place, two.dtype, len(two.shape)):
        return False
    if one.kind != "shared":
        return one.shape == two.shape
    return all(
        a == b or (free and too and a % units == 0 and b % others == 0 and a // units == b // others)
        for a, b, free, too in zip(one.shape, two.shape, one.loose, two.loose, strict=True)
    )


class BatchChanged(NotProven):
    """An operation writes into the batch: the pass needs a copy of it."""


class RecordsRead(Exception):
    """A pass on made-up units computed with the records themselves."""


class StateChanged(Exception):
    """A pass wrote into a tensor that was there before it; holds the tensor's name."""


@cache
def _about(func: Any) -> _Operation:
    schema = func._schema
    name = schema.name.partition("::")
    bare = name[2].rstrip("_") if not name[2].startswith("__") else name[2]
    arguments = [argument.name for argument in schema.arguments]
    written = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    written = () if bare in RESHAPING else written
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return _Operation(f"{schema.name}.{schema.overload_name or 'default'}", name[0], bare, tuple(arguments), defaults, written,
                      RULES.get(bare) if name[0] == "aten" else None)  # fmt: skip


class _Operation(NamedTuple):
    full: str
    space: str
    bare: str
    arguments: tuple[str, ...]
    defaults: dict[str, Any]
    written: tuple[str, ...]
    rule: Rule | None


class _Call:
    """One operation, as its rule sees it (`operations.Call`)."""

    def __init__(
        self,
        proof: Proof,
        operation: _Operation,
        args: dict[str, Any],
        outputs: list[Tensor],
        places: Mapping[int, Place] | None = None,
    ):
        self.name, self.outputs, self.units = f"aten::{operation.bare}", outputs, proof.units
        self.args = {**operation.defaults, **args}
        self.counted: set[int] = set()  # tensors that were used as numbers of the rows
        self._proof = proof
        self._places: dict[int, Place | None] = dict(places or {})

    def place(self, tensor: Tensor | None) -> Place | None:
        if tensor is None:
            return None
        key = id(tensor)
        if key not in self._places:
            self._places[key] = self._proof.place(tensor)
        return self._places[key]

    def alike(self, tensor: Tensor, place: Place) -> bool:
        return self._proof.alike(tensor, place)

    def row_numbers(self, tensor: Tensor, step: int) -> Place | None:
        label = self._proof.label(tensor)
        if not isinstance(label, Shared) or label.numbers != step:
            return None
        size = tensor.element_size()
        if tensor.untyped_storage().nbytes() != size * self.units:  # seen as another type
            return None
        self.counted.add(id(tensor))
        return locate(tensor, Rows(0, size, size * self.units), self.units)


def apart(inputs: Iterable[Tensor]) -> list[Tensor]:
    """The tensors of a batch, copied where their memory does not hold unit behind unit or is used by two of them."""
    seen: dict[int, Rows] = {}
    result = []
    for tensor in inputs:
        units = tensor.shape[0]
        if tensor.numel() and units > 1:
            rows = rows_of(tensor, FRONT)
            plain = rows.stride > 0 and locate(tensor, rows, units) == FRONT
            if not plain or seen.setdefault(tensor.untyped_storage()._cdata, rows) != rows:
                tensor = tensor.clone(memory_format=torch.contiguous_format)
        result.append(tensor)
    return result


class Proof(TorchDispatchMode):
    """Active during one forward pass on a batch of `units`; raises `NotProven` at the first operation without a proof.

    `inputs`: tensors with the unit in front. `names`: the model's own tensors. `against`: the trace that this pass must
    have. `strict`: the batch is made up and its size a prime that shows in every shape that follows it, so that values which
    depend on the number of units are found. `copied`: the batch is a copy that the model may change in place.
    `generator`: where it draws from, besides the default ones.
    """

    def __init__(
        self,
        inputs: Sequence[Tensor],
        names: Mapping[str, Tensor],
        *,
        against: Trace | None = None,
        strict: bool = False,
        copied: bool = False,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        self.units = inputs[0].shape[0]
        self._seeds = Seeds(generator)
        self.trace = Trace(self.units)
        self.against, self.strict, self.copied = against, strict, copied
        self.failure: str | None = None
        self._paused = False
        self._labels: dict[int, tuple[StorageWeakRef, Rows | Shared, Any]] = {}
        self._views: dict[Any, Any] = {}  # memory of a view -> the step that made it
        self._parts: dict[int, tuple[int, np.ndarray]] = {}  # which entries of memory that was blank have been written
        self._drawn: dict[int, tuple[int, ...]] = {}  # storage of draws -> where its rows begin, by first use
        self._inputs: set[int] = set()
        for name, tensor in names.items():
            self._set(tensor, BEFORE, name)
        for number, tensor in enumerate(inputs):
            self._begin(tensor, number)

    # ------------------------------------------------------------------------------------------ what is known of tensors

    def _begin(self, tensor: Tensor, number: int) -> None:
        if type(tensor) is not Tensor:
            raise NotProven(f"the batch holds a {type(tensor).__name__}")
        if tensor.numel() == 0:
            return
        storage = tensor.untyped_storage()
        rows = Rows(0, storage.nbytes(), storage.nbytes())
        if self.units > 1:  # what lies behind the batch in the same memory is somebody else's
            rows = rows_of(tensor, FRONT)._replace(end=_last_byte(tensor))
            if storage._cdata in self._inputs and isinstance(other := self.label(tensor), Rows):
                rows = rows._replace(end=max(rows.end, other.end))
        self._inputs.add(storage._cdata)
        self._set(tensor, rows, ("input", number))

    def _set(self, tensor: Tensor, label: Rows | Shared, source: Any) -> None:
        storage = tensor.untyped_storage()
        self._labels[storage._cdata] = (StorageWeakRef(storage), label, source)
        self._drawn.pop(storage._cdata, None)
        self._views[_memory(tensor)] = source

    def _known(self, tensor: Tensor) -> tuple[Rows | Shared, Any]:
        """Label of the tensor's storage, and where this view of it comes from."""
        storage = tensor.untyped_storage()
        known = self._labels.get(storage._cdata)
        if known is None:  # there before the pass: a constant of the model or the loss
            self._set(tensor, BEFORE, storage._cdata)
            self.trace.references.append(StorageWeakRef(storage))
            return BEFORE, storage._cdata
        return known[1], self._views.get(memory := _memory(tensor), (known[2], *memory[1:]))

    def label(self, tensor: Tensor) -> Rows | Shared:
        """What the tensor's storage holds."""
        return self._known(tensor)[0]

    def place(self, tensor: Tensor) -> Place | None:
        """Where the unit runs in a tensor; None if it holds no units; refused if it holds units in another way."""
        label = self.label(tensor)
        if isinstance(label, Shared) or tensor.numel() == 0:
            return None
        place = FRONT if self.units == 1 else locate(tensor, label, self.units)
        if place is None:
            raise NotProven(f"a view of shape {list(tensor.shape)} does not hold every unit in its order")
        return place

    def alike(self, tensor: Tensor, place: Place) -> bool:
        """Is a tensor without units the same for each unit at `place`?"""
        label = self.label(tensor)
        assert isinstance(label, Shared)
        if label.alike or label.chance or tensor.shape[place.dim] == 1 or tensor.stride(place.dim) == 0:
            return True
        end = tensor.untyped_storage().nbytes()
        return any(locate(tensor, Rows(0, stride, end), self.units) == place for stride in label.even)

    # ------------------------------------------------------------------------------------------------ operation by operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and follow the units through it."""
        kwargs = kwargs or {}
        if self.failure is not None or self._paused:  # after a failure that the model caught, nothing more is proven
            return func(*args, **kwargs)
        operation = _about(func)
        named = dict(zip(operation.arguments, args, strict=False)) | kwargs
        try:
            return self._follow(func, operation, args, kwargs, named)
        except NotProven as error:
            self.failure = str(error)
            raise

    def _follow(self, func: Any, operation: _Operation, args: Any, kwargs: Any, named: dict[str, Any]) -> Any:
        tensors = _tensors(named.values())
        self._seeds.check(func, named)
        self._check_kinds(operation, tensors)
        self._check_writes(operation, named)
        before = {tensor.untyped_storage()._cdata for tensor in tensors}
        if operation.bare in LIKE:
            read = _tensors(value for name, value in named.items() if name != "self")
        else:
            read = _tensors(value for name, value in named.items() if name not in operation.written)
        known = [self._known(tensor) for tensor in tensors]
        result = func(*args, **kwargs)
        outputs = _tensors([result])
        if operation.space not in ("aten", "prims") and (tensors or outputs):
            raise NotProven(f"{operation.full} is not in the table of operations that act row by row")
        if operation.bare in FRESH:
            self._set(result, Shared(alike=result.numel() == 1), len(self.trace.steps))
            self._compare(Step(operation.full, (_content(result),), (), ()))
            return result
        if not operation.written and outputs and all(o.untyped_storage()._cdata in before for o in outputs):
            self._record_view(operation, named, tensors, known, outputs)
            return result  # a view, or the tensor itself: its memory says where the units are
        if operation.bare in BLANK:
            for out in outputs:
                self._set(out, Shared(alike=True, blank=True), len(self.trace.steps))
            return result
        if not all(map(self._is_written, read)) and not self._moves_within(operation, named):
            raise NotProven(f"{operation.full} reads memory that no operation has written")
        if self.strict:
            for tensor in read:
                self._check_draws(operation, tensor)
        holds = [t for t in tensors if isinstance(self.label(t), Rows) and t.numel()]
        overwritten = operation.written == ("self",) and operation.bare in OVERWRITING
        if overwritten or operation.bare in LIKE:  # what was there before does not matter
            holds = [t for t in read if isinstance(self.label(t), Rows) and t.numel()]
            tensors = read
        if operation.bare == "_local_scalar_dense" and holds:
            raise NotProven("a value of the batch is read into Python, where it can decide anything")
        labels: list[Rows | Shared]
        if not holds:
            labels = self._without_units(operation, named, outputs, tensors)
        elif self.units == 1:
            labels = [Rows(0, n := out.untyped_storage().nbytes(), n) for out in outputs]
        else:
            labels = self._with_units(operation, named, outputs)
        self._record(operation, named, known, outputs, labels)
        for number, (out, label) in enumerate(zip(outputs, labels, strict=True)):
            if not operation.written and out.untyped_storage()._cdata in before:
                continue  # handed through, as cuDNN does with weights
            self._keep(operation, named, out, label, number, written=out.untyped_storage()._cdata in before)
        returned = {out.untyped_storage()._cdata for out in outputs}
        for tensor in _tensors(named.get(name) for name in operation.written):
            if tensor.untyped_storage()._cdata not in returned:  # written on the way: nobody may read it
                self._set(tensor, Shared(blank=True), len(self.trace.steps))
        return result

    def _check_kinds(self, operation: _Operation, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            if type(tensor) not in (Tensor, torch.nn.Parameter):
                raise NotProven(
                    f"{operation.full} takes a {type(tensor).__name__}, whose operations cannot be followed"
                )
        if operation.bare in REARRANGING:
            raise NotProven(f"{operation.full} exchanges a tensor's memory")
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        if hooks is not None and getattr(hooks[0], "__module__", None) != "torch.utils.checkpoint":
            raise NotProven("saved tensors pass through hooks, which may change what the backward pass sees")

    def _check_writes(self, operation: _Operation, named: Mapping[str, Any]) -> None:
        for name in operation.written:
            for tensor in _tensors([named.get(name)]):
                label, source = self._known(tensor)
                if tensor.untyped_storage()._cdata in self._inputs and not self.copied:
                    raise BatchChanged(f"{operation.full} changes the batch itself in place")
                if isinstance(label, Shared) and not label.made:
                    raise StateChanged(source if isinstance(source, str) else "a tensor that is not the model's own")

    def _check_draws(self, operation: _Operation, tensor: Tensor) -> None:
        """Numbers drawn by chance belong to one row each, or to all together: which, the first use decides.

        Whoever takes `r[:n]` here and `r[1:]` there gives each draw to two neighbours, and leaving out a unit would then give
        another one other draws.
        """
        label = self.label(tensor)
        if not isinstance(label, Shared) or not label.chance or not tensor.numel():
            return
        rows = tuple(
            tensor.storage_offset() // step % self.units
            for size, step in zip(tensor.shape, tensor.stride(), strict=True)
            if size % self.units == 0 and step
        )
        if self._drawn.setdefault(tensor.untyped_storage()._cdata, rows) != rows:
            raise NotProven(f"{operation.full} uses draws of one row for another")

    def _with_units(self, operation: _Operation, named: dict[str, Any], outputs: list[Tensor]) -> list[Rows | Shared]:
        if operation.rule is None or not outputs:
            raise NotProven(f"{operation.full} is not in the table of operations that act row by row")
        call = _Call(self, operation, named, outputs)
        labels: list[Rows | Shared] = []
        for out, place in zip(outputs, operation.rule(call), strict=True):
            if place is None or out.numel() == 0:
                labels.append(Shared(blank=True))  # by the way, and nobody may read it
                continue
            rows = rows_of(out, place)
            if locate(out, rows, self.units) != place:
                raise NotProven(f"{operation.full} gives a result whose memory does not hold the units in rows")
            labels.append(rows)
        if self.strict:
            self._check_numbers(operation, [t for t in _tensors(named.values()) if id(t) not in call.counted])
        return labels

    def _check_numbers(self, operation: _Operation, tensors: list[Tensor]) -> None:
        if any(isinstance(label := self.label(tensor), Shared) and label.numbers for tensor in tensors):
            raise NotProven(f"{operation.full} computes with the numbers of the rows")

    def _without_units(
        self, operation: _Operation, named: dict[str, Any], outputs: list[Tensor], tensors: list[Tensor]
    ) -> list[Rows | Shared]:
        bare, given = operation.bare, [self.label(t) for t in tensors]
        shared = [label for label in given if isinstance(label, Shared)]
        same = all(one.alike or one.chance for one in shared)
        if bare in CONSTANT:
            return [Shared(alike=True)] * len(outputs)
        if bare in CHANCE and same:
            return [Shared(chance=True)] * len(outputs)
        if bare == "arange" and outputs[0].numel() == self.units and named.get("start", 0) == 0:
            step = named.get("step", 1)
            return [Shared(numbers=step if isinstance(step, int) else 0)]
        entrywise = operation.rule is RULES["add"] or bare == "copy"
        labels: list[Rows | Shared] = []
        for out, even in zip(outputs, self._even(operation, named, tensors, outputs), strict=True):
            if entrywise and shared and same:
                label = Shared(alike=not any(one.chance for one in shared), chance=any(one.chance for one in shared))
            else:
                label = Shared(even=even)
            if self.strict:
                self._check_size(operation, tensors, shared, out, label)
            labels.append(label)
        return labels

    def _check_size(
        self, operation: _Operation, tensors: list[Tensor], given: list[Shared], out: Tensor, label: Shared
    ) -> None:
        """Refuse values that depend on the number of units or on the order of rows."""
        self._check_numbers(operation, tensors)
        if label.alike or label.chance:
            return
        if not label.even and self._follows_size(out):
            raise NotProven(f"{operation.full} makes values that differ by the place of a row in the batch")
        if operation.bare in COUNTLESS and all(self._alike_throughout(tensor) for tensor in tensors):
            return
        allowed = 1 if label.even else 0  # the dimension of the rows themselves
        if any(self._follows_size(tensor, one.made) > allowed for tensor, one in zip(tensors, given, strict=True)):
            raise NotProven(f"{operation.full} makes values that depend on the number of units")

    def _alike_throughout(self, tensor: Tensor) -> bool:
        """Is a tensor the same for each unit along every dimension that follows the size of the batch?"""
        follow = {dim for dim, size in enumerate(tensor.shape) if size and size % self.units == 0}
        if follow and isinstance(label := self.label(tensor), Shared) and label.chance:
            return False  # the largest of many draws is larger than that of few
        return follow <= {place.dim for place in self._alike_places(tensor)}

    def _alike_places(self, tensor: Tensor) -> list[Place]:
        """Where a tensor without units could hold them: dimensions along which it is the same for each."""
        label = self.label(tensor)
        assert isinstance(label, Shared)
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        places = [
            Place(dim, 1, size // self.units)
            for dim, (size, step) in enumerate(steps)
            if size and size % self.units == 0 and (label.alike or label.chance or step == 0)
        ]
        end = tensor.untyped_storage().nbytes()
        found = [locate(tensor, Rows(0, stride, end), self.units) for stride in sorted(label.even)]
        return places + [place for place in found if place is not None and place not in places]

    def _follows_size(self, tensor: Tensor, made: bool = True) -> int:
        """How many dimensions are a multiple of the number of units; of a tensor that was there before, those widened."""
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        return sum(size > 0 and size % self.units == 0 and (made or step == 0) for size, step in sizes)

    def _even(
        self, operation: _Operation, named: dict[str, Any], tensors: list[Tensor], outputs: list[Tensor]
    ) -> list[frozenset[int]]:
        """Byte strides along which results without units repeat themselves once for each unit.

        Found by the table itself: inputs that are the same for each unit along a dimension as long as the batch are taken
        for units there, and where the result would then hold them it is the same for each.
        """
        strides: list[set[int]] = [set() for _ in outputs]
        if operation.bare == "repeat":
            source, repeats, out = named["self"], list(named["repeats"]), outputs[0]
            sizes = [1] * (len(repeats) - source.dim()) + list(source.shape)
            steps = zip(repeats, sizes, out.stride(), strict=True)
            strides[0] |= {size * step * out.element_size() for times, size, step in steps if times == self.units}
        candidates = {id(tensor): places for tensor in tensors if (places := self._alike_places(tensor))}
        choices = range(max(map(len, candidates.values()), default=0)) if operation.rule is not None else ()
        for choice in choices:
            chosen = {key: places[min(choice, len(places) - 1)] for key, places in candidates.items()}
            try:
                found = operation.rule(_Call(self, operation, named, outputs, chosen))  # type: ignore[misc]
            except NotProven:
                continue
            for out, place, known in zip(outputs, found, strides, strict=True):
                if place is not None and out.numel() and locate(out, rows := rows_of(out, place), self.units) == place:
                    known.add(rows.stride)
        return [frozenset(known) for known in strides]

    def _record(
        self,
        operation: _Operation,
        named: Mapping[str, Any],
        known: list[tuple[Rows | Shared, Any]],
        outputs: list[Tensor],
        labels: list[Rows | Shared],
    ) -> None:
        made = tuple(self._made(out, label) for out, label in zip(outputs, labels, strict=True))
        sources = tuple(source for _, source in known)
        self._compare(Step(operation.full, _constants(operation, named), sources, made, _differentiable(named)))

    def _record_view(
        self,
        operation: _Operation,
        named: Mapping[str, Any],
        tensors: list[Tensor],
        known: list[tuple[Rows | Shared, Any]],
        outputs: list[Tensor],
    ) -> None:
        """A view belongs to the trace: which column is taken may depend on the number of units."""
        if operation.bare in SAME:
            return
        constants, (label, source) = _constants(operation, named), known[0]
        if isinstance(label, Shared) and label.alike:
            constants = ()  # all entries are equal
        elif operation.bare == "slice" and isinstance(label, Rows) and self.units > 1:
            constants = self._slice(tensors[0], label, named)
        number = len(self.trace.steps)
        made = tuple(self._made(out, label) for out in outputs)
        self._compare(Step(operation.full, constants, (source,), made, _differentiable(named)))
        for part, out in enumerate(outputs):
            self._views[_memory(out)] = (number, part)

    def _slice(self, tensor: Tensor, rows: Rows, named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Constants of a slice; along the units' own dimension it begins at a multiple of their number."""
        dim, start, step = named.get("dim", 0), named.get("start") or 0, named.get("step", 1)
        place = locate(tensor, rows, self.units)
        if place is not None and place.dim == dim % tensor.dim() and start % self.units == 0:
            return (dim, "units", start // self.units, step)
        return (dim, start, step)

    def _made(self, out: Tensor, label: Rows | Shared) -> Made:
        shape = tuple(out.shape)
        if isinstance(label, Shared) and label.blank:
            return Made("elsewhere")
        if isinstance(label, Shared):
            loose = bool(label.alike or label.chance or label.even or label.numbers)
            return Made("shared", shape, None, out.dtype, tuple(loose or step == 0 for step in out.stride()))
        place = FRONT if self.units == 1 else locate(out, label, self.units)
        if place is None or out.dim() == 0:
            return Made("elsewhere")
        return Made("rows", (*shape[: place.dim], *shape[place.dim + 1 :]), place, out.dtype)

    def _compare(self, step: Step) -> None:
        """Append to the trace; it must go on as the one that was examined."""
        number = len(self.trace.steps)
        self.trace.steps.append(step)
        if self.against is None or self.units == 1:
            return
        if number >= len(self.against.steps):
            raise NotProven("this pass has more operations than the one that was examined")
        reason = _differs(step, self.against.steps[number], self.units, self.against.units)
        if reason is not None:
            raise NotProven(reason)

    def _keep(
        self,
        operation: _Operation,
        named: Mapping[str, Any],
        out: Tensor,
        label: Rows | Shared,
        part: int,
        *,
        written: bool,
    ) -> None:
        """Label a new result, or the memory that an in-place operation wrote into."""
        number = len(self.trace.steps) - 1
        if written and not _covers_its_memory(out):
            self._write_part(out, named if operation.bare == "copy" else {})
            if not out.numel():
                label = self.label(out)
            elif self.units > 1:
                label = self._beside_what_was_there(operation, out, label)
            elif isinstance(self.label(out), Rows):
                label = self.label(out)
        elif written:
            self._parts.pop(out.untyped_storage()._cdata, None)
        self._set(out, label, (number, part))

    def _write_part(self, out: Tensor, named: Mapping[str, Any]) -> None:
        """Of memory that was blank, remember which entries have been written."""
        key, entries = out.untyped_storage()._cdata, out.untyped_storage().nbytes() // out.element_size()
        if isinstance(label := self.label(out), Shared) and label.blank and out.numel():
            self._parts[key] = (out.element_size(), np.zeros(entries, bool))
        if key in self._parts and out.element_size() == self._parts[key][0]:
            flags = self._parts[key][1]
            within = named.get("src") is not None and named["src"].untyped_storage()._cdata == key
            _entries(flags, out)[...] = _entries(flags, named["src"]).copy() if within else True

    def _moves_within(self, operation: _Operation, named: Mapping[str, Any]) -> bool:
        """Memory copied within one storage (circular padding): what was not written there is not written here."""
        if operation.bare != "copy":
            return False
        here, there = named["self"], named["src"]
        key = here.untyped_storage()._cdata
        return key in self._parts and there.untyped_storage()._cdata == key and here.dtype == there.dtype

    def _is_written(self, tensor: Tensor) -> bool:
        if not tensor.numel():
            return True
        if isinstance(label := self.label(tensor), Shared) and label.blank:
            return False
        size, entries = self._parts.get(tensor.untyped_storage()._cdata, (0, None))
        return entries is None or (size == tensor.element_size() and bool(_entries(entries, tensor).all()))

    def _beside_what_was_there(self, operation: _Operation, out: Tensor, label: Rows | Shared) -> Rows | Shared:
        """What a storage holds after a part of it, the view `out`, was written."""
        had = self.label(out)
        if isinstance(had, Rows):
            place = locate(out, had, self.units)
            same = isinstance(label, Shared) and (label.alike or label.chance or had.stride in label.even)
            if place is None or not (same or (isinstance(label, Rows) and locate(out, label, self.units) == place)):
                raise NotProven(f"{operation.full} writes into rows of other units")
            return had
        if isinstance(label, Rows):
            if not (had.alike or had.chance or label.stride in had.even):
                raise NotProven(f"{operation.full} writes units beside values that differ by position")
            return label._replace(base=label.base % (label.stride * self.units))
        end = out.untyped_storage().nbytes()
        steps = {out.stride(dim) * out.element_size() for dim, size in enumerate(out.shape) if size == self.units}
        even = {
            step
            for step in steps | had.even | label.even
            if step
            and locate(out, Rows(0, step, end), self.units) is not None
            and (had.alike or had.chance or step in had.even)
            and (label.alike or label.chance or step in label.even)
        }
        return Shared(even=frozenset(even))

    # ------------------------------------------------------------------------------------ what happens above the dispatcher

    def fail(self, reason: str) -> NotProven:
        """Nothing is proven any more."""
        self.failure = reason
        return NotProven(reason)

    def holds_units(self, values: Iterable[Any]) -> bool:
        """Does any of these tensors hold units?"""
        return any(isinstance(self.label(t), Rows) for t in _tensors(values) if type(t) in (Tensor, torch.nn.Parameter))

    def in_front(self, tensor: Tensor) -> bool:
        """Is row i of the tensor unit i's? A tensor that is the same for each unit counts: from here on it holds units."""
        if tensor.dim() == 0 or tensor.shape[0] != self.units:
            return False
        if self.units > 1 and isinstance(self.label(tensor), Shared):
            made = self.label(tensor) != BEFORE
            if not made or tensor.stride(0) == 0 or not self.alike(tensor, FRONT):
                return False
            if locate(tensor, rows := rows_of(tensor, FRONT), self.units) != FRONT:
                return False
            self._set(tensor, rows, self._known(tensor)[1])
        return self.place(tensor) == FRONT

    def alike_or_in_front(self, tensor: Tensor) -> bool:
        """Is row i of the tensor unit i's, or the same for each?"""
        if tensor.dim() == 0 or tensor.shape[0] != self.units:
            return False
        if isinstance(self.label(tensor), Shared) and self.units > 1:
            return self.alike(tensor, FRONT)
        return self.place(tensor) == FRONT

    def one_hot(self, func: Any, index: Tensor, classes: int) -> Tensor:
        """`F.one_hot` with a given number of classes: row by row, though it looks at all values to check their range."""
        place = self.place(index)
        if place is None:
            return func(index, classes)
        source = self._known(index)[1]
        self._paused = True
        try:
            out = func(index, classes)
        finally:
            self._paused = False
        whole = out.untyped_storage().nbytes()
        rows = Rows(0, whole, whole) if self.units == 1 else rows_of(out, place)
        self._set(out, rows, len(self.trace.steps))
        self._compare(Step("one_hot", (classes,), (source,), (self._made(out, rows),)))
        return out

    def kept(self) -> bool:
        """Is something computed from the batch still held by somebody, after all that the pass gave back is gone?"""
        return any(
            isinstance(label, Rows) and key not in self._inputs and not reference.expired()
            for key, (reference, label, _) in self._labels.items()
        )

    # --------------------------------------------------------------------------------------------------------- afterwards

    def conclude(self, *results: Tensor) -> Trace:
        """The trace, if every operation was proven and the results are the units', in their order."""
        if self.failure is not None:
            raise NotProven(self.failure)
        for result in results:
            if self.units > 1 and not self.alike_or_in_front(result):
                raise NotProven("the results are not in the order of the units")
            label, source = self._known(result)
            made = (self._made(result, label),)
            self._compare(Step("result", (), (source,), made, (result.requires_grad,)))
        if self.against is not None and self.units > 1 and len(self.trace.steps) != len(self.against.steps):
            raise NotProven("this pass has fewer operations than the one that was examined")
        return self.trace


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _memory(tensor: Tensor) -> Any:
    """What a tensor is a view of, and how."""
    return (
        tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype,
        tensor.is_conj(), tensor.is_neg(),
    )  # fmt: skip


def _last_byte(tensor: Tensor) -> int:
    last = tensor.storage_offset() + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(last + 1) * tensor.element_size()


def _entries(flags: np.ndarray, tensor: Tensor) -> np.ndarray:
    """The same view of one flag for each entry of a storage."""
    return np.lib.stride_tricks.as_strided(flags[tensor.storage_offset() :], tuple(tensor.shape), tensor.stride())


def _covers_its_memory(tensor: Tensor) -> bool:
    """Does a tensor have every byte of its storage, once?"""
    whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
    return whole and torch._prims_common.is_non_overlapping_and_dense_or_false(tensor)


def _constants(operation: _Operation, named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Arguments that are no tensors, without those that say how large a result is: its shape shows them."""
    unseen = SIZES | UNSEEN | SIZES_OF.get(operation.bare, set())
    return tuple((name, _constant(value)) for name, value in named.items() if name not in unseen)


def _differentiable(named: Mapping[str, Any]) -> tuple[bool, ...]:
    """Whether autograd is on, and which inputs a gradient goes to: a model may detach by the number of units."""
    return (torch.is_grad_enabled(), *(tensor.requires_grad for tensor in _tensors(named.values())))


def _constant(value: Any) -> Any:
    if isinstance(value, Tensor):
        return None
    if isinstance(value, list | tuple):
        return tuple(_constant(item) for item in value)
    return value


def _content(tensor: Tensor) -> Any:
    return (tuple(tensor.shape), str(tensor.dtype), tuple(tensor.detach().flatten().tolist()))


class Watch(TorchDispatchMode):
    """Active while units are evaluated one by one: what one of them leaves behind must not reach another.

    Refuses writes into tensors that were there before, and the use of a tensor that was computed from another unit.
    `records`: where they lie in memory; a pass on made-up units has no business there.
    """

    def __init__(self, names: Mapping[str, Tensor], records: Iterable[Tensor] = ()):
        super().__init__()
        self._records = {tensor.untyped_storage()._cdata for tensor in records if tensor.untyped_storage().nbytes()}
        self._names = {tensor.untyped_storage()._cdata: name for name, tensor in names.items()}
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
        operation = _about(func)
        named = dict(zip(operation.arguments, args, strict=False)) | kwargs
        given = [tensor.untyped_storage()._cdata for tensor in _tensors(named.values())]
        for name in operation.written:
            for tensor in _tensors([named.get(name)]):
                key = tensor.untyped_storage()._cdata
                if key not in self._made:
                    raise StateChanged(self._names.get(key, "a tensor that is not the model's own"))
        if not self._records.isdisjoint(given):
            raise RecordsRead
        if any(key in self._earlier for key in given):
            raise StateChanged("a tensor computed from another unit")
        result = func(*args, **kwargs)
        touched = any(key in self._touched for key in given)
        outputs = _tensors([result])
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
