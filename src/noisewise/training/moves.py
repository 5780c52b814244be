"""From what was released to the weights: gradients for any torch optimizer, and SGD's own step as a CUDA graph.

Small models wait for Python, not for the GPU: an optimizer's step costs as much as all of theirs. A graph repeats what SGD did
with the same numbers, on the same memory; whatever is another (a learning rate, a buffer, a hook) makes an ordinary step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.distributed.sharding import is_sharded, like
from noisewise.mechanism import PURPOSE, RANKING
from noisewise.persample.replay import capturing
from noisewise.pieces import lying_together, pieces

ALIKE = 3  # steps with the same numbers before they are captured
MOST = 1 << 24  # weights up to which Python is what a step waits for

Weights = Mapping[str, nn.Parameter]


def write_gradients(weights: Weights, answers: Mapping[str, Mapping[str, Tensor]], size: float) -> None:
    """Sums become means over the expected batch, in place, and the gradient what the optimizer sees; the frozen have none."""
    grads = answers[PURPOSE]
    totals = [*grads.values(), *answers.get(RANKING, {}).values()]
    if totals:
        torch._foreach_div_(totals, size)
    for name, parameter in weights.items():
        parameter.grad = like(parameter, grads[name].to(parameter.dtype)) if name in grads else None


class Moves:
    """The steps of a run's optimizer: `move` makes one of what a step has released."""

    def __init__(self) -> None:
        self._known: Any = None  # the numbers and the memory of the last step
        self._alike = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._whole: Tensor | None = None  # gradients, where the graph reads them
        self._grads: list[Tensor] = []

    def move(
        self,
        weights: Weights,
        answers: Mapping[str, Mapping[str, Tensor]],
        size: float,
        optimizer: torch.optim.Optimizer,
        *,
        observed: bool = True,
    ) -> None:
        """Means over the expected batch become gradients, and the optimizer makes its step.

        `observed`: somebody looks at `answers` afterwards, which must be means then.
        """
        whole = self._captured_for(weights, answers, optimizer)
        if whole is None or self._whole is None or self._graph is None:
            write_gradients(weights, answers, size)
            optimizer.step()
            return
        torch.div(whole, size, out=self._whole)
        if observed:
            whole.copy_(self._whole)
        for parameter, grad in zip(weights.values(), self._grads, strict=True):
            parameter.grad = grad
        self._graph.replay()

    def _captured_for(
        self, weights: Weights, answers: Mapping[str, Mapping[str, Tensor]], optimizer: torch.optim.Optimizer
    ) -> Tensor | None:
        """The released vector, if the step that is due is the captured one; captures it when it has come often enough."""
        spread = any(map(is_sharded, weights.values()))
        whole = _one_vector(weights, answers) if _plain_sgd(optimizer) and not spread else None
        known = None if whole is None else (optimizer, _numbers(optimizer), _memory(weights, optimizer))
        if known is None or known != self._known:
            self._known, self._alike, self._graph = known, 0, None
            return None
        self._alike += 1
        if self._alike < ALIKE:
            return None
        if self._graph is None:
            assert whole is not None
            self._capture(weights, whole, optimizer)
        return whole

    def _capture(self, weights: Weights, whole: Tensor, optimizer: torch.optim.Optimizer) -> None:
        self._whole = torch.zeros_like(whole)
        self._grads = pieces(self._whole, list(weights.values()))
        for parameter, grad in zip(weights.values(), self._grads, strict=True):
            parameter.grad = grad
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, None, torch.cuda.Stream(whole.device)):
            optimizer.step()
        self._graph = graph


def _plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Torch's own SGD as it is: a subclass, a scheduler or a hook may do something else in each step."""
    if type(optimizer) is not torch.optim.SGD or "step" in vars(optimizer):
        return False
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    numbers = [value for group in _numbers(optimizer) for value in group]
    return not any(hooks) and all(value is None or isinstance(value, int | float) for value in numbers)


def _one_vector(weights: Weights, answers: Mapping[str, Mapping[str, Tensor]]) -> Tensor | None:
    """What was released for all weights, if it is one vector on the GPU, of their type, and all that was released."""
    grads = list(answers[PURPOSE].values())
    if len(grads) != len(weights) or RANKING in answers or not all(map(_on_gpu, grads)):
        return None
    if any(grad.dtype != parameter.dtype for grad, parameter in zip(grads, weights.values(), strict=True)):
        return None
    whole = lying_together(grads)
    return None if whole is None or len(whole) > MOST else whole


def _on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


def _numbers(optimizer: torch.optim.Optimizer) -> list[tuple[Any, ...]]:
    return [tuple(value for key, value in group.items() if key != "params") for group in optimizer.param_groups]


def _memory(weights: Weights, optimizer: torch.optim.Optimizer) -> list[int]:
    """Where weights and what the optimizer remembers of them lie."""
    moved = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    remembered = [
        value.data_ptr() if isinstance(value, Tensor) else 0
        for parameter in moved
        for value in optimizer.state.get(parameter, {}).values()
    ]
    return [*map(Tensor.data_ptr, moved), *map(Tensor.data_ptr, weights.values()), *remembered]
