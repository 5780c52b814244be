"""Watch one forward pass: which parameters are used, by which functions, on which inputs.

Calls are seen as functions (`torch.nn.functional.linear` and so on) by a `TorchFunctionMode`, not as modules: tied
weights, functional uses and modules called twice need no special care, and nothing is attached to the model. A call
with a known rule is run with detached stand-ins of its parameters, so that afterwards any live parameter still reachable
in the autograd graph was used in a way no rule explains: `unexplained` finds all of them, whatever the model does.

The tape also sees what happens above the dispatcher, and tells the proof: values that leave for NumPy or Python, hooks, custom
autograd functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

from noisewise.errors import DataError, UnsupportedLayer
from noisewise.persample.conditions import NotProven
from noisewise.persample.layers import RULES, Operands, broadcast, with_statistics
from noisewise.persample.lent import Lent, apart, is_lent
from noisewise.persample.places import FRONT, Place
from noisewise.persample.proof import Proof
from noisewise.persample.recurrent import CELLS, KINDS, Recurrence, layers_of, run_cell, run_layers

EXITS = {
    torch.Tensor.numpy: "is read as a NumPy array",
    torch.Tensor.__array__: "is read as a NumPy array",
    torch.Tensor.tolist: "is read into Python",
    torch.Tensor.data_ptr: "is handed out as a memory address",
    torch.Tensor.untyped_storage: "is handed out as memory",
    torch.Tensor.storage: "is handed out as memory",
    torch.Tensor.__dlpack__: "is handed to another library",
    torch.Tensor.share_memory_: "is handed to other processes",
    torch.Tensor.register_hook: "has a hook, which may change its gradient",
    torch.Tensor.register_post_accumulate_grad_hook: "has a hook, which may change its gradient",
    torch.Tensor.grad_fn.__get__: "shows its autograd graph, which may be changed",  # type: ignore[union-attr]
    torch.Tensor.backward: "is differentiated on the way",
    torch.Tensor.__repr__: "is printed",
    torch.Tensor.__format__: "is printed",
}
"""Functions that let a tensor out of the dispatcher's sight; on tensors that hold units they end the proof."""


def _opened(function: Any) -> Any:
    """The same function without its first question, whether somebody watches: the functions that it calls are seen then."""
    unasked = {name: lambda *_: False for name in function.__globals__ if name.startswith("has_torch_function")}
    copy = FunctionType(function.__code__, function.__globals__ | unasked, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


ATTENTION = _opened(F.multi_head_attention_forward)
_FOLLOWED: Any = (Recurrence._backward_cls, Lent._backward_cls)  # custom functions whose backward pass is known

LAID_OVER = {
    torch.add, torch.sub, torch.mul, torch.div, torch.true_divide,
    torch.Tensor.add, torch.Tensor.sub, torch.Tensor.mul, torch.Tensor.div, torch.Tensor.true_divide,
    torch.rsub,
}  # fmt: skip
"""Functions of two tensors, entry by entry, in which one that is the same for all units may be laid over them."""
ONTO = {torch.Tensor.add_, torch.Tensor.sub_, torch.Tensor.mul_, torch.Tensor.div_}  # the same, written into the first


@dataclass(frozen=True)
class Call:
    """One use of parameters by a function with a rule.

    place: where the unit runs in input and output, by proof; None if that is not known. rows: which rows of a parameter play
    a role, where not all do. direct: the model itself called this function.
    """

    function: Callable[..., Tensor]
    operands: Operands
    names: dict[str, str]  # role (weight, bias) -> name of the live parameter that plays it
    edge: GradientEdge
    place: Place | None
    version: int
    rows: Mapping[str, slice] = field(default_factory=dict)
    direct: bool = True

    def check_unchanged(self) -> None:
        """The input must still be what the function saw."""
        if self.operands.input._version != self.version:
            raise DataError(
                f"the input of the layer with {sorted(self.names.values())} was changed in place after it was used, so "
                "its gradient cannot be computed. Replace the in-place operation (x += y) by x = x + y."
            )


class Recognised(NamedTuple):
    """A call with an exact rule: its operands, which parameter plays which role, and where only some of its rows do."""

    operands: Operands
    names: dict[str, str]
    rows: dict[str, slice]


def recognised(func: Any, args: Any, kwargs: Any, parameters: Mapping[int, str]) -> Recognised | None:
    """Operands of a call with an exact rule, and which of `parameters` (by id) play which role; None for any other call."""
    rule = RULES.get(func)
    if rule is None:
        return None
    operands = rule.operands(*args, **kwargs)
    names, rows = {}, {}
    for role in ("weight", "bias"):
        value = getattr(operands, role)
        if value is None:
            continue
        if id(value) in parameters:
            names[role] = parameters[id(value)]
        elif (block := _rows_of(value)) is not None and id(value._base) in parameters:
            names[role], rows[role] = parameters[id(value._base)], block
    return Recognised(operands, names, rows) if names and rule.exact(operands) else None


def _rows_of(part: Tensor) -> slice | None:
    """Which rows of the tensor that it is a view of; None for any other view."""
    whole = part._base if isinstance(part, Tensor) and part._is_view() else None
    if whole is None or not whole.dim() or part.shape[1:] != whole.shape[1:] or part.dtype != whole.dtype:
        return None
    same_signs = part.is_neg() == whole.is_neg() and part.is_conj() == whole.is_conj()
    if not same_signs or not part.requires_grad or part.stride() != whole.stride() or not whole.is_contiguous():
        return None
    if not whole.numel():
        return None
    first, rest = divmod(int(part.storage_offset() - whole.storage_offset()), whole.stride(0))
    return None if rest else slice(first, first + len(part))


def with_stand_ins(
    func: Any, args: Any, kwargs: Any, operands: Operands, names: Mapping[str, str], made: Mapping[int, Tensor],
    given: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The call with its parameters replaced by detached ones, so that no gradient goes that way.

    `made`: by the parameters' ids; not used for one whose memory was exchanged since, nor for rows of one. `given`: in place
    of the input.
    """
    parameters = [getattr(operands, role) for role in names]
    stand_ins = {} if given is None else {id(operands.input): given}
    stand_ins |= {
        id(parameter): stand_in
        if (stand_in := made.get(id(parameter))) is not None and stand_in.data_ptr() == parameter.data_ptr()
        else apart(parameter)
        for parameter in parameters
    }
    result: Tensor = func(
        *(stand_ins.get(id(arg), arg) for arg in args),
        **{key: stand_ins.get(id(arg), arg) for key, arg in kwargs.items()},
    )
    return result


def _cast(func: Any, input: Tensor) -> Tensor:
    """A call's input as an autocast hands it on, for rules that take halves: cast here, so that it is cast only once."""
    kind = input.device.type
    if not RULES[func].halves or input.dtype != torch.float32 or not torch.is_autocast_enabled(kind):
        return input
    return input.to(torch.get_autocast_dtype(kind))


class Nudged(TorchFunctionMode):
    """Adds a given number to the output of each known call, and keeps the calls' inputs; without numbers, only looks."""

    def __init__(self, live: Mapping[str, Tensor], nudges: list[Tensor] | None = None):
        super().__init__()
        self.names = {id(parameter): name for name, parameter in live.items()}
        self.nudges = nudges
        self.calls: list[tuple[Any, Operands, dict[str, str]]] = []
        self.inputs: list[Tensor] = []
        self.outputs: list[tuple[torch.Size, torch.dtype, torch.device]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function; nudge its output if a rule exists and it uses a live parameter."""
        kwargs = kwargs or {}
        use = recognised(func, args, kwargs, self.names)
        if use is None or use.rows or not RULES[func].booked:
            return func(*args, **kwargs)
        output = func(*args, **kwargs)
        self.calls.append((func, use.operands, use.names))
        self.inputs.append(use.operands.input)
        self.outputs.append((output.shape, output.dtype, output.device))
        return output if self.nudges is None else output + self.nudges[len(self.calls) - 1]


class Tape(TorchFunctionMode):
    """Records the calls that use live parameters while it is active.

    Some functions are taken apart, so that rules explain what is in them: attention, and recurrent layers. Which of them does
    not depend on what is live, but on what can learn: passes must have the same operations whatever is frozen.
    """

    def __init__(self, live: Mapping[str, Tensor], proof: Proof):
        super().__init__()
        self.proof = proof
        self.live = live
        self.names = {id(parameter): name for name, parameter in live.items()}
        self._stand_ins = {id(p): p.detach().requires_grad_() for p in live.values() if not is_lent(p)}
        self.calls: list[Call] = []
        self._views: list[tuple[Tensor, int, dict[str, str]]] = []
        self._looked_up: dict[int, tuple[Tensor, int, Recognised]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function; record it if a rule exists and it uses a live parameter."""
        kwargs = kwargs or {}
        if func in EXITS and self.proof.holds_units(args[:1]):
            raise self.proof.fail(f"a tensor computed from the batch {EXITS[func]}")
        if func is F.one_hot:
            index, classes = args[0], kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
            if classes > 0:
                return self.proof.one_hot(func, index, classes)
        if not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:
                return ATTENTION(*args, **kwargs)
        if func in KINDS or func in CELLS:
            return self._recurrent(func, args, kwargs)
        if func in LAID_OVER or func in ONTO:
            return func(*self._laid_over(args, keep_first=func in ONTO), **kwargs)
        if func is torch.Tensor.expand and args[0].requires_grad:
            return self._widened(func, args, kwargs)
        use = recognised(func, args, kwargs, self.names)
        return func(*args, **kwargs) if use is None else self._record(func, args, kwargs, use)

    def _record(self, func: Any, args: Any, kwargs: Any, use: Recognised) -> Tensor:
        """Run a known call with stand-ins; on what is the same for all units, as it is, until it is laid over them."""
        operands, names, rows = use
        if not self.proof.holds_units([operands.input]) and not self.proof.alike_or_in_front(operands.input):
            result: Tensor = func(*args, **kwargs)
            if func is F.embedding and not rows:
                self._looked_up[id(result)] = (result, result._version, use)
            return result
        given = _cast(func, operands.input)
        output = with_stand_ins(func, args, kwargs, operands, names, self._stand_ins, given)
        operands = operands._replace(input=given)
        held = with_statistics(operands._replace(input=operands.input.detach()), output)
        if output._is_view():  # an in-place operation on it would take its place in the graph
            self._views.append((output, output._version, names))
        place, version = self._place(func, operands.input, output), operands.input._version
        self.calls.append(Call(func, held, names, get_gradient_edge(output), place, version, rows))
        return output

    def _place(self, func: Any, input: Tensor, output: Tensor) -> Place | None:
        """Where the unit runs in both, if that is the same place and one that the rule knows."""
        if output.dim() > 1 and self.proof.alike_or_in_front(input) and self.proof.in_front(output):
            return FRONT
        if self.proof.units == 1 or output.dim() < 2 or not self.proof.holds_units([input]):
            return None
        place = self.proof.place(input)
        known = place is not None and (RULES[func].positions or place.dim == 0)
        return place if known and self.proof.place(output) == place else None

    # ----------------------------------------------------------------------------------- what is the same for all units

    def _laid_over(self, args: Any, *, keep_first: bool) -> Any:
        """Arguments in which a tensor that can learn and is the same for all units is widened to them.

        Its gradient is then that of each unit. What else is done with the tensor still leads to its parameters in the
        autograd graph, and is found there.
        """
        if len(args) < 2 or not all(isinstance(arg, Tensor) for arg in args[:2]):
            return args
        for here, there in ((1, 0),) if keep_first else ((1, 0), (0, 1)):
            shared, units = args[here], args[there]
            if shared.requires_grad and self.proof.holds_units([units]) and not self.proof.holds_units([shared]):
                place = self.proof.place(units)
                ndim = max(shared.dim(), units.dim())
                if place is None or self.proof.units == 1:
                    return args
                place = place._replace(dim=place.dim + ndim - units.dim())
                shape = [1] * (ndim - shared.dim()) + list(shared.shape)
                if shape[place.dim] != 1:
                    return args
                shape[place.dim] = place.outer * self.proof.units * place.inner
                wide = shared.detach().requires_grad_().expand(shape)
                self._explain(shared, wide, place)
                return (*args[:here], wide, *args[here + 1 :])
        return args

    def _widened(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        """A tensor that can learn, widened to one copy for each unit: from here on it holds units, in rows of its own."""
        shared = args[0]
        plain: Tensor = func(*args, **kwargs)
        new = plain.dim() - shared.dim()
        front = plain.dim() > 1 and plain.shape[0] == self.proof.units > 1 and (new > 0 or shared.shape[0] == 1)
        if not front or self.proof.holds_units([shared]) or plain.numel() != shared.numel() * self.proof.units:
            return plain
        wide: Tensor = shared.detach().requires_grad_().expand(plain.shape).clone(memory_format=torch.contiguous_format)
        if not self.proof.in_front(wide):
            return plain
        self._explain(shared, wide, FRONT)
        return wide

    def _explain(self, shared: Tensor, wide: Tensor, place: Place) -> None:
        """Record what a shared tensor, widened to the units at `place`, was computed from."""
        edge = get_gradient_edge(wide)
        looked_up = self._looked_up.get(id(shared))
        if looked_up is not None and looked_up[1] == shared._version:
            operands, names, _ = looked_up[2]
            with self.proof.unwatched():
                index = operands.input.expand(wide.shape[:-1])
            held = operands._replace(input=index)
            self.calls.append(Call(F.embedding, held, names, edge, place, index._version, direct=False))
            return
        itself = self.names.get(id(shared), "")
        reached = {itself} if itself else unexplained(shared, self.live) if shared.grad_fn is not None else set()
        if not reached:
            return
        sources = {name: self.live[name] for name in sorted(reached)}
        made = None if itself else get_gradient_edge(shared)  # what is done to it later does not count
        settings = {"made": made, "shape": shared.shape, "dtype": shared.dtype, "parameters": sources}
        held = Operands(wide.detach(), None, None, settings)
        names = {name: name for name in sources}
        self.calls.append(Call(broadcast, held, names, edge, place, wide._version, direct=False))

    # ------------------------------------------------------------------------------------------------ recurrent layers

    def _recurrent(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A recurrent layer or cell, by its linear layers, where it can learn and holds units in the usual way."""
        if torch.is_autocast_enabled(args[0].device.type) or self.proof.units == 1:
            return func(*args, **kwargs)
        if func in CELLS:
            learns = not kwargs and any(weight is not None and weight.requires_grad for weight in args[2:])
            if not learns or len(args) != 6 or args[0].dim() != 2 or not self.proof.holds_units(args[:1]):
                return func(*args, **kwargs)
            with self:
                return run_cell(CELLS[func], args)
        layers = layers_of(args, kwargs)
        learning = [weight for weight in layers.weights if weight.requires_grad] if layers is not None else []
        if layers is None or not learning or not all(weight.is_leaf for weight in learning):
            return func(*args, **kwargs)  # weights that are computed lead back to parameters, and must go on doing so
        front = Place(0 if layers.batch_first else 1)
        if not self.proof.holds_units([layers.input]) or self.proof.place(layers.input) != front:
            return func(*args, **kwargs)
        if not all(self.proof.beside(part, Place(1)) for part in layers.hidden):
            return func(*args, **kwargs)
        with self:
            return run_layers(KINDS[func], layers, self._recurrence)

    def _recurrence(
        self, kind: str, gates: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, cell: Tensor | None
    ) -> tuple[Tensor, ...]:
        """One layer in one direction; its recurrent weights are recorded as a linear layer on the states before each time."""
        cells = [] if cell is None else [cell]
        biases = [] if bias is None else [bias]
        edges = []

        def run() -> tuple[Tensor, ...]:
            nudge = gates.new_zeros(()).expand(gates.shape).requires_grad_()
            edges.append(get_gradient_edge(nudge))
            fixed = (weight.detach(), None if bias is None else bias.detach())
            results = Recurrence.apply(kind, gates, nudge, *fixed, state, cell)  # type: ignore[no-untyped-call]
            return (*results, torch.cat([state.detach().unsqueeze(0), results[0].detach()[:-1]]))

        with torch._C.DisableTorchFunction():
            places = (Place(1), FRONT, *[FRONT for _ in cells], Place(1))
            *results, before = self.proof.as_one(
                f"recurrence {kind}", run, [gates, state, *cells], [weight, *biases], places
            )
        roles = {"weight": weight, "bias": bias}
        names = {role: self.names[id(value)] for role, value in roles.items() if id(value) in self.names}
        if names:
            operands = Operands(before, weight, bias)
            self.calls.append(Call(F.linear, operands, names, edges[0], Place(1), before._version, direct=False))
        return tuple(results)

    def overwritten(self) -> set[str]:
        """Parameters of calls whose output was changed in place though it is a view: its gradient cannot be asked for."""
        names = {
            name for output, version, roles in self._views if output._version != version for name in roles.values()
        }
        self._views.clear()
        return names


def unexplained(outputs: Tensor, live: Mapping[str, Tensor]) -> set[str]:
    """Live parameters that the autograd graph of `outputs` still reaches: used outside of recorded calls.

    Custom autograd functions end the proof: their backward pass may mix rows.
    Refuses reentrant checkpoints: they hide the parameters that they use, even from autograd.
    """
    names = {id(parameter): name for name, parameter in live.items()}
    missed: set[str] = set()
    seen: set[Node] = set()
    stack: list[Node] = [outputs.grad_fn] if outputs.grad_fn is not None else []
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        custom = isinstance(node, torch.autograd.function.BackwardCFunction) and type(node) not in _FOLLOWED
        if custom and "CheckpointFunction" not in node.name():
            raise NotProven(f"{node.name()} is a custom autograd function, whose backward pass cannot be followed")
        if "CheckpointFunction" in node.name():
            raise UnsupportedLayer(
                "a reentrant checkpoint hides which parameters it uses, so their gradients would be missed. "
                "Call torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
            )
        variable = getattr(node, "variable", None)  # only the graph's leaves have one
        if variable is not None and id(variable) in names:
            missed.add(names[id(variable)])
        stack.extend(next_node for next_node, _ in node.next_functions if next_node is not None)
    return missed


def misaligned(calls: Iterable[Call]) -> set[str]:
    """Parameters used by a call in which nobody knows where the units are."""
    return {name for call in calls if call.place is None for name in call.names.values()}
