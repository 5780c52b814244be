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

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode_temporarily

from noisewise._moved import old_names
from noisewise.persample.answered import MOST, Answer, question, results
from noisewise.persample.chance import Seeds
from noisewise.persample.conditions import NotProven
from noisewise.persample.dispatched import (
    BLANK,
    CHANCE,
    CONSTANT,
    COUNTLESS,
    FRESH,
    LIKE,
    OVERWRITING,
    REARRANGING,
    SAME,
    BatchChanged,
    Operation,
    StateChanged,
    about,
    tensors_of,
)
from noisewise.persample.labels import BEFORE, Asked, Labels, Shared, covers_its_memory, memory_of
from noisewise.persample.lent import StandIn, lends_what_is_saved
from noisewise.persample.operations import RULES
from noisewise.persample.places import FRONT, Place, Rows, locate, rows_of
from noisewise.persample.trace import (
    Made,
    Step,
    Trace,
    constants_of,
    content_of,
    differentiable,
    differs,
)

PRIMES = (5, 7, 11, 13, 17, 19, 23)  # sizes of made-up batches: a dimension that is a multiple of one shows itself


class Proof(Labels, TorchDispatchMode):
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
        self.trace = Trace(inputs[0].shape[0])
        super().__init__(self.trace.units, self.trace.references)
        self._seeds = Seeds(generator)
        self.against, self.strict, self.copied = against, strict, copied
        self.failure: str | None = None
        self._paused = False
        for name, tensor in names.items():
            self._set(tensor, BEFORE, name)
        for number, tensor in enumerate(inputs):
            self._begin(tensor, number)

    # ------------------------------------------------------------------------------------------------ operation by operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and follow the units through it."""
        kwargs = kwargs or {}
        if self.failure is not None or self._paused:  # after a failure that the model caught, nothing more is proven
            return func(*args, **kwargs)
        operation = about(func)
        again = operation.plain and self.against is not None and not self.strict and not self._parts
        try:
            return (self._answer if again else self._follow)(func, operation, args, kwargs)
        except NotProven as error:
            self.failure = str(error)
            raise

    def _answer(self, func: Any, operation: Operation, args: Any, kwargs: Any) -> Any:
        """Follow an operation; where its question was answered at the same place of an earlier pass, by that answer."""
        assert self.against is not None
        storages: list[int] = []
        asked = question(self, (*args, *kwargs.values()) if kwargs else args, storages)
        if asked is None:
            return self._follow(func, operation, args, kwargs)
        self._check_hooks()
        result, number, answers = func(*args, **kwargs), len(self.trace.steps), self.against.answers
        outputs = [result] if isinstance(result, Tensor) else tensors_of([result])
        memories, lie = results(outputs, storages)
        key = (number, self.units, func, torch.is_grad_enabled(), tuple(kwargs), asked, lie)
        answer: Answer | None = answers.get(key)
        if answer is None:
            self._follow(lambda *_, **__: result, operation, args, kwargs)
            if outputs and len(self.trace.steps) == number + 1:
                fresh = zip(outputs, lie, strict=True)
                labels = tuple(self.label(out) if place is None else None for out, (place, *_) in fresh)
                if len(answers) >= MOST:
                    answers.clear()
                answers[key] = Answer(self.trace.steps[number], labels)
            return result
        self.trace.steps.append(answer.step)
        is_view = not any(answer.labels)
        for part, (out, memory, label) in enumerate(zip(outputs, memories, answer.labels, strict=True)):
            if label is not None:
                self._set_memory(out, memory, label, (number, part))
            elif is_view:
                self._views[memory] = (number, part)
        return result

    def _follow(self, func: Any, operation: Operation, args: Any, kwargs: Any) -> Any:
        named = dict(zip(operation.arguments, args, strict=False)) | kwargs
        tensors = tensors_of(named.values())
        if operation.bare in SAME and operation.space == "aten" and len(tensors) == 1:  # a view that no trace needs
            self._check_kinds(operation, tensors)
            self._known(tensors[0])
            return func(*args, **kwargs)
        if operation.draws:
            self._seeds.check(func, named)
        self._check_kinds(operation, tensors)
        if operation.written:
            self._check_writes(operation, named)
        before = {tensor.untyped_storage()._cdata for tensor in tensors}
        read = tensors
        if operation.bare in LIKE:
            read = tensors_of(value for name, value in named.items() if name != "self")
        elif operation.written:
            read = tensors_of(value for name, value in named.items() if name not in operation.written)
        known = [self._known(tensor) for tensor in tensors]
        result = func(*args, **kwargs)
        if operation.draws:
            self._seeds.drawn(func)
        outputs = [result] if isinstance(result, Tensor) else tensors_of([result])
        if operation.space not in ("aten", "prims") and (tensors or outputs):
            raise NotProven(f"{operation.full} is not in the table of operations that act row by row")
        if operation.bare in FRESH:
            self._set(result, Shared(alike=result.numel() == 1), len(self.trace.steps))
            self._compare(Step(operation.full, (content_of(result),), (), ()))
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
        for tensor in tensors_of(named.get(name) for name in operation.written):
            if tensor.untyped_storage()._cdata not in returned:  # written on the way: nobody may read it
                self._set(tensor, Shared(blank=True), len(self.trace.steps))
        return result

    def _check_kinds(self, operation: Operation, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            if type(tensor) not in (Tensor, torch.nn.Parameter, StandIn):
                raise NotProven(
                    f"{operation.full} takes a {type(tensor).__name__}, whose operations cannot be followed"
                )
        if operation.bare in REARRANGING:
            raise NotProven(f"{operation.full} exchanges a tensor's memory")
        self._check_hooks()

    def _check_hooks(self) -> None:
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        checkpoints = hooks is not None and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint"
        if hooks is not None and not checkpoints and not lends_what_is_saved(hooks[0]):
            raise NotProven("saved tensors pass through hooks, which may change what the backward pass sees")

    def _check_writes(self, operation: Operation, named: Mapping[str, Any]) -> None:
        for name in operation.written:
            for tensor in tensors_of([named.get(name)]):
                label, source = self._known(tensor)
                if tensor.untyped_storage()._cdata in self._inputs and not self.copied:
                    raise BatchChanged(f"{operation.full} changes the batch itself in place")
                if isinstance(label, Shared) and not label.made:
                    raise StateChanged(source if isinstance(source, str) else "a tensor that is not the model's own")

    def _check_draws(self, operation: Operation, tensor: Tensor) -> None:
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

    def _with_units(self, operation: Operation, named: dict[str, Any], outputs: list[Tensor]) -> list[Rows | Shared]:
        if operation.rule is None or not outputs:
            raise NotProven(f"{operation.full} is not in the table of operations that act row by row")
        call = Asked(self, operation, named, outputs)
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
            self._check_numbers(operation, [t for t in tensors_of(named.values()) if id(t) not in call.counted])
        return labels

    def _check_numbers(self, operation: Operation, tensors: list[Tensor]) -> None:
        if any(isinstance(label := self.label(tensor), Shared) and label.numbers for tensor in tensors):
            raise NotProven(f"{operation.full} computes with the numbers of the rows")

    def _without_units(
        self, operation: Operation, named: dict[str, Any], outputs: list[Tensor], tensors: list[Tensor]
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
        self, operation: Operation, tensors: list[Tensor], given: list[Shared], out: Tensor, label: Shared
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

    def _even(
        self, operation: Operation, named: dict[str, Any], tensors: list[Tensor], outputs: list[Tensor]
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
                placed = operation.rule(Asked(self, operation, named, outputs, chosen))  # type: ignore[misc]
            except NotProven:
                continue
            for out, place, known in zip(outputs, placed, strides, strict=True):
                if place is not None and out.numel() and locate(out, rows := rows_of(out, place), self.units) == place:
                    known.add(rows.stride)
        return [frozenset(known) for known in strides]

    def _record(
        self,
        operation: Operation,
        named: Mapping[str, Any],
        known: list[tuple[Rows | Shared, Any]],
        outputs: list[Tensor],
        labels: list[Rows | Shared],
    ) -> None:
        made = tuple(self._made(out, label) for out, label in zip(outputs, labels, strict=True))
        sources = tuple(source for _, source in known)
        self._compare(Step(operation.full, constants_of(operation, named), sources, made, differentiable(named)))

    def _record_view(
        self,
        operation: Operation,
        named: Mapping[str, Any],
        tensors: list[Tensor],
        known: list[tuple[Rows | Shared, Any]],
        outputs: list[Tensor],
    ) -> None:
        """A view belongs to the trace: which column is taken may depend on the number of units."""
        constants, (label, source) = constants_of(operation, named), known[0]
        if isinstance(label, Shared) and label.alike:
            constants = ()  # all entries are equal
        elif operation.bare == "slice" and isinstance(label, Rows) and self.units > 1:
            constants = self._slice(tensors[0], label, named)
        number = len(self.trace.steps)
        made = tuple(self._made(out, label) for out in outputs)
        self._compare(Step(operation.full, constants, (source,), made, differentiable(named)))
        for part, out in enumerate(outputs):
            self._views[memory_of(out)] = (number, part)

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
        reason = differs(step, self.against.steps[number], self.units, self.against.units)
        if reason is not None:
            raise NotProven(reason)

    def _keep(
        self,
        operation: Operation,
        named: Mapping[str, Any],
        out: Tensor,
        label: Rows | Shared,
        part: int,
        *,
        written: bool,
    ) -> None:
        """Label a new result, or the memory that an in-place operation wrote into."""
        number = len(self.trace.steps) - 1
        if written and not covers_its_memory(out):
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

    # ------------------------------------------------------------------------------------ what happens above the dispatcher

    def fail(self, reason: str) -> NotProven:
        """Nothing is proven any more."""
        self.failure = reason
        return NotProven(reason)

    def one_hot(self, func: Any, index: Tensor, classes: int) -> Tensor:
        """`F.one_hot` with a given number of classes: row by row, though it looks at all values to check their range."""
        place = self.place(index)
        if place is None:
            out: Tensor = func(index, classes)
            return out
        return self.as_one("one_hot", lambda: (func(index, classes),), [index], [], [place], (classes,))[0]

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """What happens within is no part of the pass."""
        self._paused = True
        try:
            with _pop_mode_temporarily() if _get_current_dispatch_mode() is self else nullcontext():
                yield
        finally:
            self._paused = False

    def as_one(
        self,
        name: str,
        compute: Any,
        inputs: Sequence[Tensor],
        weights: Sequence[Tensor],
        places: Sequence[Place],
        constants: tuple[Any, ...] = (),
    ) -> tuple[Tensor, ...]:
        """Operations that act row by row by construction, as one step of the trace: results have the units at `places`."""
        given = [*inputs, *weights]
        if not all(self.beside(tensor, place) for tensor, place in zip(inputs, places, strict=False)):
            raise self.fail(f"{name} takes units from other places")
        if not all(map(self._is_written, given)) or any(isinstance(self.label(t), Rows) for t in weights):
            raise self.fail(f"{name} reads memory that no operation has written, or weights from the units")
        sources = tuple(self._known(tensor)[1] for tensor in given)
        with self.unwatched():
            results: tuple[Tensor, ...] = compute()
        number = len(self.trace.steps)
        made = []
        for part, (out, place) in enumerate(zip(results, places, strict=False)):
            whole = out.untyped_storage().nbytes()
            rows = Rows(0, whole, whole) if self.units == 1 else rows_of(out, place)
            self._set(out, rows, (number, part))
            made.append(self._made(out, rows))
        grads = (torch.is_grad_enabled(), *(tensor.requires_grad for tensor in given))
        self._compare(Step(name, constants, sources, tuple(made), grads))
        return results

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


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
