"""Look at a model once, before it sees a record: are its units independent, and which parameters can go the fast way?

All questions are asked of behaviour on synthetic inputs, so that the answers depend on no record and on no list of names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.errors import CoupledSamples, NoisewiseError, PrivacyError
from noisewise.nest import Nest, length, map_tensors, take
from noisewise.persample.losses import unit_losses
from noisewise.persample.tape import Tape, misaligned, unexplained

UNITS = 3
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Layout:
    """Parameters that need the dense engine: some use of them is unexplained, or does not have the unit in front."""

    fallback: frozenset[str] = frozenset()


def examine(
    model: nn.Module, loss_fn: Any, like: Nest, live: Mapping[str, nn.Parameter], example: Nest = None
) -> Layout:
    """Refuse coupled units and running statistics; find the parameters without a ghost rule.

    `like` gives shapes and types only. `example` is a public or made-up batch of at least three units, for models that
    cannot run on random numbers (integers are drawn from 0 and 1).

    - Coupling: replacing one unit must not move the loss of another.
    - Buffers: a forward pass in the current mode must not change any (running statistics would release records).
    - Rows: a layer's output row i must serve loss i alone: with losses weighted by v, its gradient must scale by v_i.
      Asked with two and with three units, so that a dimension that happens to equal the batch size is found out.
    """
    with _as_found(model), torch.random.fork_rng(sorted({p.device.index or 0 for p in live.values() if p.is_cuda})):
        torch.manual_seed(0)
        units = example if example is not None else synthetic(like, 2 * UNITS)
        if length(units) < UNITS:
            raise PrivacyError(f"example has {length(units)} units: the check needs at least {UNITS}.")
        others = take(units, slice(length(units) - UNITS, None))
        units = take(units, slice(0, UNITS))
        _check_coupling(model, loss_fn, units, others)
        fallback: set[str] = set()
        for count in (UNITS - 1, UNITS):
            fallback |= _fallback(model, loss_fn, take(units, slice(0, count)), live)
    return Layout(frozenset(fallback))


def synthetic(like: Nest, units: int) -> Nest:
    """Random units in the shapes and types of a batch: normal numbers, and 0 or 1 for integers and truth values."""

    def fill(tensor: Tensor) -> Tensor:
        shape = (units, *tensor.shape[1:])
        if tensor.is_floating_point() or tensor.is_complex():
            return torch.randn(shape, dtype=tensor.dtype, device=tensor.device)
        return torch.randint(0, 2, shape, device=tensor.device).to(tensor.dtype)

    return map_tensors(fill, like)


def _losses(model: nn.Module, loss_fn: Any, units: Nest) -> Tensor:
    torch.manual_seed(1)  # the same dropout in every pass
    try:
        return unit_losses(model, loss_fn, units)
    except NoisewiseError:
        raise
    except Exception as error:
        raise PrivacyError(
            f"the model could not be checked on synthetic inputs ({type(error).__name__}: {error}), so nothing is known "
            "about whether its units are independent. Pass example=, a made-up batch of three units that it accepts."
        ) from error


def _check_coupling(model: nn.Module, loss_fn: Any, units: Nest, others: Nest) -> None:
    with torch.no_grad():
        before = _losses(model, loss_fn, units)
        for i in range(UNITS):
            rows = torch.arange(UNITS)
            rows[i] += UNITS
            changed = take(_stack(units, others), rows)
            moved = (_losses(model, loss_fn, changed) - before).nan_to_num(0.0).abs()
            moved[i] = 0.0
            if bool((moved > TOLERANCE * (1 + before.nan_to_num(0.0).abs())).any()):
                raise CoupledSamples(
                    f"the loss of one unit moved by {moved.max().item():.3g} when another unit of the batch was replaced: "
                    "units are not independent, so clipping cannot bound what one of them contributes. Remove what mixes "
                    "units (BatchNorm in training mode, batch statistics, in-batch negatives); GroupNorm is a common "
                    "replacement for BatchNorm."
                )


def _stack(first: Nest, second: Nest) -> Nest:
    joined = iter([torch.cat(pair) for pair in zip(_flat(first), _flat(second), strict=True)])
    return map_tensors(lambda _: next(joined), first)


def _flat(nest: Nest) -> list[Tensor]:
    tensors: list[Tensor] = []
    map_tensors(tensors.append, nest)
    return tensors


def _fallback(model: nn.Module, loss_fn: Any, units: Nest, live: Mapping[str, nn.Parameter]) -> set[str]:
    count = length(units)
    with Tape(live) as tape:
        losses = _losses(model, loss_fn, units)
    found = unexplained(losses, live) | misaligned(tape.calls, count)
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


@contextmanager
def _as_found(model: nn.Module) -> Iterator[None]:
    """Put buffers back afterwards, and refuse if the passes inside changed one."""
    before = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    try:
        yield
    except BaseException:
        _restore(before)
        raise
    changed = _restore(before)
    if changed:
        raise PrivacyError(
            f"a forward pass changes the buffers {changed}: running statistics of private data would be released without "
            "noise. Switch these layers off (model.eval(), track_running_stats=False) or replace them by GroupNorm."
        )


@torch.no_grad()
def _restore(before: Mapping[str, tuple[Tensor, Tensor]]) -> list[str]:
    """Put copies back; the names of the buffers that had changed."""
    changed = [name for name, (buffer, copy) in before.items() if not torch.equal(buffer, copy)]
    for name in changed:
        before[name][0].copy_(before[name][1])
    return changed
