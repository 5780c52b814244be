"""A sample of behaviour on made-up units: refuse models that mix units, change themselves or learn nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.batches import Nest, Views, leaves, length, map_tensors, take
from noisewise.errors import ConfigError, CoupledSamples, NoisewiseError, PrivacyError
from noisewise.persample.conditions import NotProven
from noisewise.persample.dispatched import RecordsRead, StateChanged
from noisewise.persample.held import changes, held, own_tensors, self_changing
from noisewise.persample.made_up import (
    UNITS,
    losses_of,
    synthetic,
    without_dropout,
)
from noisewise.persample.tape import unexplained
from noisewise.persample.units_alone import loop
from noisewise.persample.watch import Watch

MANY = 64  # units at the most in a batch of the expected size, as far as behaviour is looked at
TOLERANCE = 1e-5
ANOTHER_SIZE = 1e-2  # batches of another size are computed by other kernels, and TF32 rounds at 1e-3
BFLOAT16 = 8  # times as far: it has three bits less


def check_coupling(model: nn.Module, loss_fn: Any, units: Nest, others: Nest, seeds: Iterable[int] = (1,)) -> None:
    """Replacing, leaving out or reordering units must not move the loss of another."""
    count = length(units)
    for seed in seeds:
        before = losses_of(model, loss_fn, units, seed).detach()
        if not bool(before.isfinite().all()):
            raise PrivacyError(
                f"the losses of synthetic units are {before.tolist()}: whether units are independent cannot be seen. "
                "Pass example=, a made-up batch of three different units on which the loss is finite."
            )
        for i in range(count):
            rows = torch.arange(count)
            rows[i] += count
            after = losses_of(model, loss_fn, take(_stack(units, others), rows), seed).detach()
            _refuse_if_moved(
                before, after, [j for j in range(count) if j != i], "another unit of the batch was replaced"
            )
    for precision, tolerance in _precisions(model, loss_fn, units):
        with precision, without_dropout(model):
            _check_other_batches(model, loss_fn, units, tolerance)


def _check_other_batches(model: nn.Module, loss_fn: Any, units: Nest, tolerance: float) -> None:
    """Fewer units, each one alone, all of them in another order: their losses stay the same but for rounding."""
    count = length(units)
    alone = losses_of(model, loss_fn, units).detach()
    if not torch.equal(alone, losses_of(model, loss_fn, units, seed=2).detach()):
        return  # chance moves the losses too
    fewer = losses_of(model, loss_fn, take(units, slice(0, count - 1))).detach()
    _refuse_if_moved(alone, fewer, range(count - 1), "another unit was left out of the batch", tolerance)
    with suppress(NoisewiseError):  # a model that cannot take one unit is never asked to
        singles = [losses_of(model, loss_fn, take(units, slice(i, i + 1))).detach() for i in range(count)]
        fewer = torch.cat(singles)
    if len(fewer) == count:
        _refuse_if_moved(alone, fewer, range(count), "all other units were left out of the batch", tolerance)
    order = torch.arange(count - 1, -1, -1)
    turned = losses_of(model, loss_fn, take(units, order)).detach()[order]
    _refuse_if_moved(alone, turned, range(count), "the order of the units was reversed", tolerance)


def _precisions(model: nn.Module, loss_fn: Any, units: Nest) -> list[tuple[AbstractContextManager[Any], float]]:
    """In what precisions batches of other sizes are compared, and how far rounding alone may move losses in each.

    Under an autocast to bfloat16 that is eight times as far, more than many a model that mixes units: so it is asked without
    the autocast as well, with the usual tolerance. A model that cannot do without has that tolerance alone.
    """
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    if all(torch.get_autocast_dtype(kind) != torch.bfloat16 for kind in kinds):
        return [(nullcontext(), ANOTHER_SIZE)]
    try:
        with _without_autocast(kinds):
            losses_of(model, loss_fn, units)
    except PrivacyError:
        return [(nullcontext(), ANOTHER_SIZE)]
    return [(nullcontext(), BFLOAT16 * ANOTHER_SIZE), (_without_autocast(kinds), ANOTHER_SIZE)]


@contextmanager
def _without_autocast(kinds: Iterable[str]) -> Iterator[None]:
    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def check_sizes(model: nn.Module, loss_fn: Any, like: Nest, classes: int | None, size: int | None) -> None:
    """A batch of about the expected size, and one with an extreme unit: the losses of the others must not move."""
    many = synthetic(like, max(min(size or UNITS, MANY), UNITS), classes)
    for precision, tolerance in _precisions(model, loss_fn, many):
        with precision, without_dropout(model):
            _check_many(model, loss_fn, many, tolerance)


def _check_many(model: nn.Module, loss_fn: Any, many: Nest, tolerance: float) -> None:
    try:
        losses = losses_of(model, loss_fn, many).detach()
        if not torch.equal(losses, losses_of(model, loss_fn, many, seed=2).detach()):
            return  # chance moves the losses too
        few = losses_of(model, loss_fn, take(many, slice(0, UNITS))).detach()
        wild = map_tensors(torch.clone, many)
        for tensor in leaves(wild):
            if tensor.is_floating_point():
                tensor[-1] *= 300.0
        extreme = losses_of(model, loss_fn, wild).detach()
    except PrivacyError:
        return  # some inputs are out of the model's range: the units at hand were looked at
    if bool(losses.isfinite().all()) and bool(few.isfinite().all()):
        _refuse_if_moved(few, losses, range(UNITS), "more units were in the batch", tolerance)
        if bool(extreme[:-1].isfinite().all()):
            others = range(len(losses) - 1)
            _refuse_if_moved(losses, extreme, others, "another unit of the batch became extreme")


def _refuse_if_moved(
    before: Tensor, after: Tensor, units: Iterable[int], event: str, tolerance: float = TOLERANCE
) -> None:
    before, after = before.double(), after.double()
    for i in units:
        moved = (after[i] - before[i]).abs().item()
        if not moved <= tolerance * (1 + before[i].abs().item()):
            raise CoupledSamples(
                f"the loss of one unit moved by {moved:.3g} when {event}: units are not independent, so clipping cannot "
                "bound what one of them contributes. Remove what mixes units (BatchNorm in training mode, batch statistics, "
                "division by the batch size, in-batch negatives, recurrent or attention layers without batch_first=True); "
                "noisewise.models.convert.batchnorm_to_groupnorm(model) replaces BatchNorm by GroupNorm."
            )


def _stack(first: Nest, second: Nest) -> Nest:
    joined = iter([torch.cat(pair) for pair in zip(leaves(first), leaves(second), strict=True)])
    return map_tensors(lambda _: next(joined), first)


def steady(model: nn.Module, loss_fn: Any, units: Nest) -> bool:
    """Do the same units have the same losses in a second pass, with the same draws?"""
    first, second = (losses_of(model, loss_fn, units).detach().double() for _ in range(2))
    return bool(((second - first).abs() <= TOLERANCE * (1 + first.abs())).all())


def check_state(model: nn.Module, loss_fn: Any, units: Nest, others: Nest, like: Nest) -> None:
    """Two passes on different units must leave everything as it was, after a first one that may fill caches."""
    losses_of(model, loss_fn, units)
    before = held(model, loss_fn)
    losses_of(model, loss_fn, units)
    between = held(model, loss_fn)
    losses_of(model, loss_fn, others)
    after = held(model, loss_fn)
    changed = changes(before, between) + changes(between, after)
    counted = {name for name in after if type(after[name]) is int}
    uneven = [
        name for name in counted
        if type(before.get(name)) is int and type(between.get(name)) is int
        and after[name] - between[name] != between[name] - before[name]
    ]  # fmt: skip
    if changed or uneven:
        raise self_changing(sorted({*changed, *uneven}))
    _check_nothing_is_kept(model, loss_fn, units, like)


def _check_nothing_is_kept(model: nn.Module, loss_fn: Any, units: Nest, like: Nest) -> None:
    """What a pass computed must be gone when its losses are: whoever keeps it may use it for another unit.

    And the pass must compute with its units only: `like` is cut from the records, so that it shows where they lie.
    """
    watch = Watch(own_tensors(model), records=leaves(like))
    rows = map_tensors(torch.clone, units)
    watch.begin(leaves(rows))
    try:
        with watch:
            losses = losses_of(model, loss_fn, rows)
    except RecordsRead:
        raise CoupledSamples(
            "model or loss compute with the records themselves, besides the units of the batch: then every record is in the "
            "gradient of every unit, and clipping bounds nothing. Use the batch that is passed in only; what must be known of "
            "all records (means, neighbours, counts) has to be public, or released with noise."
        ) from None
    except StateChanged as error:
        raise self_changing([str(error)]) from None
    del losses, rows
    if watch.kept():
        gc.collect()
        if watch.kept():
            raise self_changing(["a tensor computed from the batch, which somebody keeps after the pass"])


def check_loop(model: nn.Module, loss_fn: Any, units: Nest) -> None:
    """Three units one by one: the loop's own watch refuses what one of them leaves to the next."""
    live = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    try:
        loop(model, loss_fn, Views.single(units), live)
    except StateChanged as error:
        raise self_changing([str(error)]) from None


def check_use(model: nn.Module, loss_fn: Any, units: Nest, live: Mapping[str, nn.Parameter]) -> None:
    """The losses must depend on a parameter that learns."""
    losses = losses_of(model, loss_fn, units)
    with suppress(NotProven):
        unexplained(losses, live)  # refuses reentrant checkpoints
    if losses.requires_grad:
        try:
            grads = torch.autograd.grad(losses.sum(), list(live.values()), allow_unused=True)
        except RuntimeError:  # an input that was changed in place: the engines say which
            return
        if any(grad is not None for grad in grads):
            return
    raise ConfigError(
        "the loss does not depend on any parameter that learns: the budget would be spent on noise alone. Compute it from "
        "this model's own output, without detach() and outside of torch.no_grad()."
    )
