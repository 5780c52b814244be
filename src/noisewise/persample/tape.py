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
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode

from noisewise.errors import DataError, UnsupportedLayer
from noisewise.persample.conditions import NotProven
from noisewise.persample.layers import RULES, Operands, with_statistics
from noisewise.persample.proof import Proof

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


@dataclass(frozen=True)
class Call:
    """One use of parameters by a function with a rule."""

    function: Callable[..., Tensor]
    operands: Operands
    names: dict[str, str]  # role (weight, bias) -> name of the live parameter that plays it
    edge: GradientEdge
    aligned: bool  # row i of input and output is unit i's, by proof
    version: int

    def check_unchanged(self) -> None:
        """The input must still be what the function saw."""
        if self.operands.input._version != self.version:
            raise DataError(
                f"the input of the layer with {sorted(self.names.values())} was changed in place after it was used, so "
                "its gradient cannot be computed. Replace the in-place operation (x += y) by x = x + y."
            )


def recognised(
    func: Any, args: Any, kwargs: Any, parameters: Mapping[int, str]
) -> tuple[Operands, dict[str, str]] | None:
    """Operands of a call with an exact rule, and which of `parameters` (by id) play which role; None for any other call."""
    rule = RULES.get(func)
    if rule is None:
        return None
    operands = rule.operands(*args, **kwargs)
    names = {
        role: parameters[id(value)]
        for role in ("weight", "bias")
        if (value := getattr(operands, role)) is not None and id(value) in parameters
    }
    return (operands, names) if names and rule.exact(operands) else None


def with_stand_ins(
    func: Any, args: Any, kwargs: Any, operands: Operands, names: Mapping[str, str], made: Mapping[int, Tensor]
) -> Tensor:
    """The call with its parameters replaced by detached ones, so that no gradient goes that way.

    `made`: by the parameters' ids; not used for one whose memory was exchanged since.
    """
    parameters = [getattr(operands, role) for role in names]
    stand_ins = {
        id(parameter): stand_in
        if (stand_in := made[id(parameter)]).data_ptr() == parameter.data_ptr()
        else parameter.detach().requires_grad_()
        for parameter in parameters
    }
    result: Tensor = func(
        *(stand_ins.get(id(arg), arg) for arg in args),
        **{key: stand_ins.get(id(arg), arg) for key, arg in kwargs.items()},
    )
    return result


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
        if use is None:
            return func(*args, **kwargs)
        output = func(*args, **kwargs)
        self.calls.append((func, *use))
        self.inputs.append(use[0].input)
        self.outputs.append((output.shape, output.dtype, output.device))
        return output if self.nudges is None else output + self.nudges[len(self.calls) - 1]


class Tape(TorchFunctionMode):
    """Records the calls that use live parameters while it is active."""

    def __init__(self, live: Mapping[str, Tensor], proof: Proof):
        super().__init__()
        self.proof = proof
        self.names = {id(parameter): name for name, parameter in live.items()}
        self._stand_ins = {id(parameter): parameter.detach().requires_grad_() for parameter in live.values()}
        self.calls: list[Call] = []
        self._views: list[tuple[Tensor, int, dict[str, str]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function; record it if a rule exists and it uses a live parameter."""
        kwargs = kwargs or {}
        if func in EXITS and self.proof.holds_units(args[:1]):
            raise self.proof.fail(f"a tensor computed from the batch {EXITS[func]}")
        if func is F.one_hot:
            index, classes = args[0], kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
            if classes > 0:
                return self.proof.one_hot(func, index, classes)
        use = recognised(func, args, kwargs, self.names) if torch.is_grad_enabled() else None
        if use is None:
            return func(*args, **kwargs)
        operands, names = use
        output = with_stand_ins(func, args, kwargs, operands, names, self._stand_ins)
        held = with_statistics(operands._replace(input=operands.input.detach()), output)
        aligned = output.dim() > 1 and self.proof.alike_or_in_front(operands.input) and self.proof.in_front(output)
        if output._is_view():  # an in-place operation on it would take its place in the graph
            self._views.append((output, output._version, names))
        self.calls.append(Call(func, held, names, get_gradient_edge(output), aligned, operands.input._version))
        return output

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
        if isinstance(node, torch.autograd.function.BackwardCFunction) and "CheckpointFunction" not in node.name():
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
    """Parameters used by a call whose first dimension is not the unit (broadcast, time first, flattened)."""
    return {name for call in calls if not call.aligned for name in call.names.values()}
