"""Uses of parameters in a proven pass, with the gradients of their outputs: one backward pass for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from noisewise.persample import kernels
from noisewise.persample.formed import PerSample
from noisewise.persample.layers import RULES, Operands, at_least_float32, broadcast, in_rows
from noisewise.persample.places import FRONT
from noisewise.persample.steady import is_steady
from noisewise.persample.tape import Call


class Use(NamedTuple):
    """One use of parameters by a function with a rule, and the gradient of its output; rows of all units in front.

    rows: which rows of a parameter play a role, where not all do. spread: rows of input and gradient for each of the batch.
    formed: the gradients by role, if they were formed during the backward pass; input and gradient of the output are gone.
    """

    function: Any
    operands: Operands
    names: Mapping[str, str]
    grad: Tensor
    rows: Mapping[str, slice] = {}  # never written to
    spread: int = 1
    formed: Mapping[str, PerSample] | None = None

    def first(self, rows: int) -> Use:
        """The first rows of a batch."""
        number = rows * self.spread
        return self._replace(
            operands=self.operands._replace(input=self.operands.input[:number]), grad=self.grad[:number]
        )

    def gradients(self) -> Mapping[str, Callable[[], PerSample]]:
        """The gradients of its parameters by role, formed when they are asked for."""
        if self.formed is not None:
            return {role: partial(self.formed.__getitem__, role) for role in self.formed}
        grad, operands, rule = self.grad, self.operands, RULES[self.function]
        if grad.dtype in kernels.HALVES and not rule.halves:
            grad, operands = grad.float(), operands._replace(input=at_least_float32(operands.input))
        return rule.gradients(operands, grad)


def in_front(call: Call, tensor: Tensor, units: int) -> Tensor:
    """A call's input or gradient with the units in front."""
    assert call.place is not None
    if call.place == FRONT:
        return tensor
    rows = in_rows(tensor, call.place, units)
    beside = call.place.outer * call.place.inner
    if beside > 1 and call.function is broadcast:
        return rows.sum(call.place.dim + 1)  # the same tensor was laid over each
    return rows if beside == 1 or RULES[call.function].positions else rows.flatten(0, 1)


def uses_of(
    losses: Tensor, calls: list[Call], live: Mapping[str, nn.Parameter], weights: Tensor, real: Tensor | None = None
) -> list[Use]:
    """The uses of live parameters in a pass, with the gradients of their outputs; rows that are not `real` have none.

    `calls` is empty afterwards.
    """
    used = [call for call in calls if not live.keys().isdisjoint(call.names.values())]
    calls.clear()
    for call in used:
        call.check_unchanged()
    early = Early(used, live, len(losses)) if real is None and not is_steady() else None
    asked = {k: call for k, call in enumerate(used) if early is None or k not in early.waiting}
    used.clear()
    try:
        grads = output_gradients(losses, list(asked.values()), weights)
    finally:
        uses = {} if early is None else early.end()
    for (k, call), grad in zip(asked.items(), grads, strict=True):
        if grad is not None:
            uses[k] = _use(call, grad, len(losses), real)
    return [uses[k] for k in sorted(uses)]


def _use(call: Call, grad: Tensor, units: int, real: Tensor | None = None) -> Use:
    grad, input = in_front(call, grad, units), in_front(call, call.operands.input, units)
    spread = len(grad) // units
    if real is not None:  # copies that only fill up: nothing of them counts, not even what is not finite
        grad = torch.where(real.repeat_interleave(spread).view(-1, *[1] * (grad.dim() - 1)), grad, 0)
    return Use(call.function, call.operands._replace(input=input), call.names, grad, call.rows, spread)


class Early:
    """Gradients of norms, formed while the backward pass goes through them.

    Inputs of norms and gradients of their outputs are as large as those of all other layers together, and what is formed of
    them is small: so they need not be kept until all is known. Only where a norm has what another call has put out, whose
    own gradient is asked for: then the pass must go through.
    """

    def __init__(self, calls: list[Call], live: Mapping[str, nn.Parameter], units: int):
        self.uses: dict[int, Use] = {}
        others = {call.edge.node for call in calls if not RULES[call.function].adds}
        self.waiting = {
            k: call
            for k, call in enumerate(calls)
            if RULES[call.function].adds and call.edge.node.next_functions[0][0] in others
        }
        for k, call in self.waiting.items():
            call.edge.node.register_prehook(partial(self._form, k, call.edge.output_nr, live, units))

    def end(self) -> dict[int, Use]:
        """The uses of norms that play a part. Nothing is held any longer, since the graph holds this."""
        uses, self.uses = self.uses, {}
        self.waiting.clear()
        return uses

    def _form(self, k: int, output: int, live: Mapping[str, nn.Parameter], units: int, grads: Any) -> None:
        """Called with the gradients of all that the norm has put out; nobody holds its input afterwards."""
        call, grad = self.waiting.pop(k), grads[output]
        if grad is None:
            return
        use = _use(call, grad, units)
        formed = {role: form() for role, form in use.gradients().items() if use.names.get(role) in live}
        nothing = grad.new_empty(0)
        self.uses[k] = use._replace(operands=Operands(nothing, None, None, {}), grad=nothing, formed=formed)


def output_gradients(losses: Tensor, calls: list[Call], weights: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of what these calls have put out, of the weighted sum of losses; None where they play no part."""
    if not calls or not losses.requires_grad:
        return (None,) * len(calls)
    return torch.autograd.grad(
        losses, [call.edge for call in calls], weights.flatten().to(losses.dtype), allow_unused=True
    )
