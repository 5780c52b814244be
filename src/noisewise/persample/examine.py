"""Look at a model once, before it sees a record: are its units independent, and which parameters can go the fast way?

All questions are asked of behaviour on synthetic inputs, so that the answers depend on no record and on no list of names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.errors import CoupledSamples, NoisewiseError, PrivacyError
from noisewise.nest import Nest, Views, leaves, length, map_tensors, take
from noisewise.persample.engines import dense, ghost, loop
from noisewise.persample.losses import unit_losses
from noisewise.persample.tape import Tape, misaligned, unexplained

UNITS = 3
TOLERANCE = 1e-5
ANOTHER_SIZE = 1e-2  # batches of another size are computed by other kernels, and TF32 rounds at 1e-3
ROUNDING = 0.03  # dense against loop, relative: a bfloat16 has 8 bits; wrong gradients are wrong by more


@dataclass(frozen=True)
class Layout:
    """Parameters that need another engine: some use of them is unexplained, or does not have the unit in front.

    `examined`: the parameters that were looked at; None for all. `vectorises`: the dense engine computes the fallback
    parameters rightly; otherwise they are left to the loop, one unit at a time.
    """

    fallback: frozenset[str] = frozenset()
    examined: frozenset[str] | None = None
    vectorises: bool = True

    def covers(self, names: Iterable[str]) -> bool:
        """Were all of these looked at?"""
        return self.examined is None or self.examined.issuperset(names)


@torch.enable_grad()
def examine(model: nn.Module, loss_fn: Any, like: Nest, example: Nest = None) -> Layout:
    """Refuse coupled units and layers that change themselves; find the parameters without a ghost rule.

    `like` gives shapes and types only. `example` is a public or made-up batch of at least three different units, for
    models that cannot run on random numbers (integers are drawn from 0 and 1).

    - Coupling: replacing one unit, or leaving one out, must not move the loss of another.
    - State: a forward pass must change no buffer (running statistics) and no parameter: records would get out.
    - Rows: a layer's output row i must serve loss i alone: with losses weighted by v, its gradient must scale by v_i.
      Asked with two and with three units, so that a dimension that happens to equal the batch size is found out.
    - Sums: the units' gradients must add up to the gradient of the batch, parameter by parameter.
    """
    live = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with _as_found(model), torch.random.fork_rng(sorted({p.device.index or 0 for p in live.values() if p.is_cuda})):
        torch.manual_seed(0)
        units, others = _units(like, example)
        _check_coupling(model, loss_fn, units, others)
        fallback: set[str] = set()
        for count in (UNITS - 1, UNITS):
            fallback |= _fallback(model, loss_fn, take(units, slice(0, count)), live)
        fallback |= _wrong(model, loss_fn, units, {name: p for name, p in live.items() if name not in fallback})
        vectorises = not fallback or _vectorises(model, loss_fn, units, {name: live[name] for name in fallback})
    return Layout(frozenset(fallback), frozenset(live), vectorises)


def _units(like: Nest, example: Nest) -> tuple[Nest, Nest]:
    """Three units, and for each of them another one to be put in its place."""
    if example is None:
        both = synthetic(like, 2 * UNITS)
        return take(both, slice(0, UNITS)), take(both, slice(UNITS, None))
    if length(example) < UNITS:
        raise PrivacyError(f"example has {length(example)} units: the check needs at least {UNITS} different ones.")
    units, others = take(example, slice(0, UNITS)), take(example, (torch.arange(UNITS) + 1) % UNITS)
    same = [
        all(bool((a[i] == b[i]).all()) for a, b in zip(leaves(units), leaves(others), strict=True))
        for i in range(UNITS)
    ]
    if any(same):
        raise PrivacyError("example holds equal units: replacing one by another would show nothing. Make them differ.")
    return units, others


def synthetic(like: Nest, units: int) -> Nest:
    """Random units in the shapes and types of a batch: normal numbers, and 0 or 1 for integers and truth values."""

    def fill(tensor: Tensor) -> Tensor:
        shape = (units, *tensor.shape[1:])
        if tensor.is_floating_point() or tensor.is_complex():
            return torch.randn(shape, dtype=tensor.dtype, device=tensor.device)
        return torch.randint(0, 2, shape, device=tensor.device).to(tensor.dtype)

    return map_tensors(fill, like)


def _losses(model: nn.Module, loss_fn: Any, units: Nest, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)  # the same dropout in every pass
    try:
        return unit_losses(model, loss_fn, units)
    except NoisewiseError:
        raise
    except Exception as error:
        raise PrivacyError(
            f"the model could not be checked on synthetic inputs ({type(error).__name__}: {error}), so nothing is known "
            "about whether its units are independent. Pass example=, a made-up batch of three units that it accepts."
        ) from error


@torch.no_grad()
def _check_coupling(model: nn.Module, loss_fn: Any, units: Nest, others: Nest) -> None:
    before = _losses(model, loss_fn, units)
    if not bool(before.isfinite().all()):
        raise PrivacyError(
            f"the losses of synthetic units are {before.tolist()}: whether units are independent cannot be seen. "
            "Pass example=, a made-up batch of three different units on which the loss is finite."
        )
    for i in range(UNITS):
        rows = torch.arange(UNITS)
        rows[i] += UNITS
        after = _losses(model, loss_fn, take(_stack(units, others), rows))
        _refuse_if_moved(before, after, [j for j in range(UNITS) if j != i], "another unit of the batch was replaced")
    with _without_dropout(model):
        alone, fewer = _losses(model, loss_fn, units), _losses(model, loss_fn, take(units, slice(0, UNITS - 1)))
        again = _losses(model, loss_fn, units, seed=2)
    if torch.equal(alone, again):  # otherwise chance moves the losses too
        _refuse_if_moved(alone, fewer, range(UNITS - 1), "another unit was left out of the batch", ANOTHER_SIZE)


def _refuse_if_moved(
    before: Tensor, after: Tensor, units: Iterable[int], event: str, tolerance: float = TOLERANCE
) -> None:
    for i in units:
        moved = (after[i] - before[i]).abs().item()
        if not moved <= tolerance * (1 + before[i].abs().item()):
            raise CoupledSamples(
                f"the loss of one unit moved by {moved:.3g} when {event}: units are not independent, so clipping cannot "
                "bound what one of them contributes. Remove what mixes units (BatchNorm in training mode, batch statistics, "
                "division by the batch size, in-batch negatives); "
                "noisewise.convert.batchnorm_to_groupnorm(model) replaces BatchNorm by GroupNorm."
            )


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """In evaluation mode: dropout draws differently for another number of units."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _stack(first: Nest, second: Nest) -> Nest:
    joined = iter([torch.cat(pair) for pair in zip(leaves(first), leaves(second), strict=True)])
    return map_tensors(lambda _: next(joined), first)


def _fallback(model: nn.Module, loss_fn: Any, units: Nest, live: Mapping[str, nn.Parameter]) -> set[str]:
    count = length(units)
    with Tape(live) as tape:
        losses = _losses(model, loss_fn, units)
    found = unexplained(losses, live) | tape.overwritten() | misaligned(tape.calls, count)
    calls = [call for call in tape.calls if call.units == count]
    if not calls or not losses.requires_grad:
        return found
    edges = [call.edge for call in calls]
    weights = torch.linspace(1.0, 2.0, count, dtype=losses.dtype, device=losses.device)
    ones = torch.autograd.grad(losses, edges, torch.ones_like(losses), allow_unused=True, retain_graph=True)
    weighted = torch.autograd.grad(losses, edges, weights, allow_unused=True)
    for call, plain, scaled in zip(calls, ones, weighted, strict=True):
        if plain is None:
            continue
        expected = plain * weights.view(-1, *[1] * (plain.dim() - 1)).to(plain.dtype)
        error = (scaled - expected).nan_to_num(0.0).abs().max()
        if bool(error > 1e-3 * expected.nan_to_num(0.0).abs().max()):
            found.update(call.names.values())
    return found


def _wrong(model: nn.Module, loss_fn: Any, units: Nest, live: Mapping[str, nn.Parameter]) -> set[str]:
    """Parameters whose ghost gradients do not add up to the plain gradient: some use of them was hidden."""
    if not live:
        return set()
    torch.manual_seed(1)  # the same dropout as below
    measured = ghost(model, loss_fn, Views.single(units), live, {}, Layout(), strict=False)
    losses = _losses(model, loss_fn, units)
    if not losses.requires_grad:
        return set()
    plain = torch.autograd.grad(losses.sum(), list(live.values()), allow_unused=True)
    scale = _length(grad for grad in plain if grad is not None)
    found = set()
    for name, grad in zip(live, plain, strict=True):
        squares, gradient = measured[name]
        total = gradient.weighted_sum(torch.ones_like(squares)).reshape(live[name].shape)
        error = (total if grad is None else total - grad).double().norm()
        if bool(error > ROUNDING * squares.double().sqrt().sum() + 1e-5 * scale):
            found.add(name)
    return found


def _length(tensors: Iterable[Tensor]) -> float:
    return math.hypot(*(float(tensor.double().norm()) for tensor in tensors))


def _vectorises(model: nn.Module, loss_fn: Any, units: Nest, live: Mapping[str, nn.Parameter]) -> bool:
    """Does the dense engine run, and does it agree with the loop where nothing is left to chance?"""
    views = Views.single(units)
    try:
        dense(model, loss_fn, views, live)
        with _without_dropout(model):
            if not torch.equal(_losses(model, loss_fn, units, seed=1), _losses(model, loss_fn, units, seed=2)):
                return True  # random in evaluation mode too: gradients cannot be compared
            found, expected = dense(model, loss_fn, views, live), loop(model, loss_fn, views, live)
    except Exception:  # whatever stops it, the loop is right
        return False
    scale = _length(expected.values())
    return all(
        bool((found[name] - grad).double().norm() <= ROUNDING * grad.double().norm() + 1e-5 * scale)
        for name, grad in expected.items()
    )


@contextmanager
def _as_found(model: nn.Module) -> Iterator[None]:
    """Put parameters and buffers back afterwards, and refuse if the passes inside changed one."""
    before = {name: (tensor, tensor.detach().clone()) for name, tensor in _tensors(model).items()}
    try:
        yield
    except BaseException:
        _restore(model, before)
        raise
    changed = _restore(model, before)
    if changed:
        raise self_changing(changed)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def self_changing(names: list[str]) -> PrivacyError:
    """The error for layers that a forward pass changes."""
    return PrivacyError(
        f"a forward pass changes {names}: running statistics or renormed weights would let records out without noise. "
        "Switch this off (model.eval(), track_running_stats=False, max_norm=None) or replace BatchNorm "
        "by GroupNorm with noisewise.convert.batchnorm_to_groupnorm(model)."
    )


@torch.no_grad()
def _restore(model: nn.Module, before: Mapping[str, tuple[Tensor, Tensor]]) -> list[str]:
    """Put copies back; the names of the tensors that had changed, in place or by assignment."""
    now = _tensors(model)
    changed = [name for name, (tensor, copy) in before.items()
               if now.get(name) is not tensor or not torch.equal(tensor, copy)]  # fmt: skip
    for name in changed:
        tensor, copy = before[name]
        tensor.copy_(copy)
        owner, _, key = name.rpartition(".")
        module = model.get_submodule(owner)
        if key in module._buffers:
            module._buffers[key] = tensor
    return changed


class Versions:
    """Notices, at the price of a few comparisons, whether a pass changed a parameter or buffer."""

    def __init__(self, model: nn.Module):
        self.seen = {name: (tensor, tensor._version) for name, tensor in _tensors(model).items()}

    def check(self, model: nn.Module) -> None:
        """Refuse if one changed since."""
        now = _tensors(model)
        changed = [name for name, (tensor, version) in self.seen.items()
                   if now.get(name) is not tensor or tensor._version != version]  # fmt: skip
        if changed:
            raise self_changing(changed)
