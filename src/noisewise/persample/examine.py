"""Look at a model once, before it sees a record: are its units separate, by proof or by construction, and which way is fast?

Two nets. The first is the proof (`proof`): the fast engine is used only where every operation acts row by row, everything else
is evaluated unit by unit, so the guarantee does not depend on what follows. The second is a sample of behaviour on made-up
inputs, which finds models that mean to mix units, so that they are refused and not quietly changed.
No question depends on a record or on a list of names.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.batches import Nest, Views, leaves, length, map_tensors, take
from noisewise.errors import ConfigError, CoupledSamples, NoisewiseError, PrivacyError
from noisewise.persample.chance import random_state, reseed
from noisewise.persample.conditions import NotProven
from noisewise.persample.dispatched import BatchChanged, RecordsRead, StateChanged
from noisewise.persample.engines import booked, dense, follow, ghost, loop, memory_ran_out
from noisewise.persample.held import changes, held, own_tensors, self_changing
from noisewise.persample.losses import unit_losses
from noisewise.persample.proof import PRIMES
from noisewise.persample.tape import unexplained
from noisewise.persample.trace import Trace
from noisewise.persample.watch import Watch

UNITS = 3
MANY = 64  # units at the most in a batch of the expected size, as far as behaviour is looked at
TOLERANCE = 1e-5
ANOTHER_SIZE = 1e-2  # batches of another size are computed by other kernels, and TF32 rounds at 1e-3
ROUNDING = 0.03  # dense against loop, relative: a bfloat16 has 8 bits; wrong gradients are wrong by more


@dataclass(frozen=True)
class Layout:
    """What the examination found.

    `trace`: the proven pass, which every later one must repeat; None if there is no proof, and then `reason` says why and every
    unit is evaluated alone. `fallback`: parameters that need another engine, since some use of them is unexplained or does not
    have the unit in front. `examined`: the parameters that were looked at; None for all. `vectorises`: the dense engine
    computes the fallback parameters rightly; otherwise they are left to the loop. `recorded`: without a proof, parameters whose
    gradients need not be formed although each unit is evaluated alone (`engines.booked`). `copies`: the model changes its
    input in place. `situation`: modes, types and loss for which all this was found.
    """

    fallback: frozenset[str] = frozenset()
    examined: frozenset[str] | None = None
    vectorises: bool = True
    trace: Trace | None = None
    reason: str | None = None
    recorded: frozenset[str] = frozenset()
    copies: bool = False
    situation: Any = None

    @property
    def proven(self) -> bool:
        """Is the fast engine allowed?"""
        return self.trace is not None

    def covers(self, names: Iterable[str], situation: Any = None) -> bool:
        """Were all of these looked at, in this situation?"""
        known = self.examined is None or self.examined.issuperset(names)
        return known and (situation is None or self.situation is None or situation == self.situation)


def situation(model: nn.Module, loss_fn: Any, like: Nest) -> Any:
    """What an examination depends on: modes, what learns, shapes and types of a unit, autocast, the loss."""
    shapes = tuple((tuple(tensor.shape[1:]), tensor.dtype, tensor.device.type) for tensor in leaves(like))
    autocast = tuple(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))
    modes = tuple(module.training for module in model.modules())
    types = tuple((p.dtype, p.device.type, p.requires_grad) for p in model.parameters())
    return (shapes, autocast, modes, types, loss_fn)


@torch.enable_grad()
def examine(
    model: nn.Module,
    loss_fn: Any,
    like: Nest,
    example: Nest = None,
    *,
    size: int | None = None,
    classes: int | None = None,
) -> Layout:
    """Prove that units are separate, or find that they must be evaluated alone; refuse what mixes units or changes itself.

    `like` gives shapes and types only. `example` is a public or made-up batch of at least three different units, for models
    that cannot run on random numbers (integers are drawn from 0 and 1, labels from `classes` where that is known). `size`: the
    expected batch size.

    - Proof: made-up batches of two sizes pass the table of operations, with equal traces.
    - State: a forward pass must change nothing that model or loss hold, and leave nothing behind: records would get out.
    - Coupling: replacing, leaving out or reordering units must not move the loss of another; asked at the model's own and at
      perturbed weights, for several draws, at several sizes, with one extreme unit.
    - Rows: a layer's output row i must serve loss i alone: with losses weighted by v, its gradient must scale by v_i.
    - Sums: the units' gradients must add up to the gradient of the batch, parameter by parameter.
    - Use: the losses must depend on the parameters that learn, or the budget would be spent on nothing.
    """
    live = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    devices = sorted({p.device.index or 0 for p in live.values() if p.is_cuda})
    with _as_found(model), random_state(devices, 0):
        units, others = _units(like, example, classes)
        _check_coupling(model, loss_fn, units, others)
        _check_state(model, loss_fn, units, others, like)
        with _perturbed(model):
            _check_use(model, loss_fn, units, live)
            _check_coupling(model, loss_fn, units, others, seeds=(2, 3))
            if example is None:
                _check_sizes(model, loss_fn, like, classes, size)
        layout = _prove(model, loss_fn, like, example, classes, live)
        if layout.proven:
            fallback = set(layout.fallback)
            for weights in (nothing_changed, _perturbed):
                with weights(model):
                    fallback |= _unaligned(model, loss_fn, units, live, layout)
                    trusted = {name: p for name, p in live.items() if name not in fallback}
                    fallback |= _wrong(model, loss_fn, units, trusted, layout)
        else:
            fallback = set(live)
        rest = {name: live[name] for name in fallback}
        vectorises = not fallback or _vectorises(model, loss_fn, units, rest)
        recorded = _recorded(model, loss_fn, units, live) if vectorises and not layout.proven else frozenset()
        if not vectorises:
            _check_loop(model, loss_fn, units)
    return replace(
        layout,
        fallback=frozenset(fallback),
        examined=frozenset(live),
        vectorises=vectorises,
        recorded=recorded,
        situation=situation(model, loss_fn, like),
    )


# ------------------------------------------------------------------------------------------------------- made-up units


def _units(like: Nest, example: Nest, classes: int | None) -> tuple[Nest, Nest]:
    """Three units, and for each of them another one to be put in its place."""
    if example is None:
        both = synthetic(like, 2 * UNITS, classes)
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


def synthetic(like: Nest, units: int, classes: int | None = None) -> Nest:
    """Random units in the shapes and types of a batch: normal numbers, and 0 or 1 for integers and truth values.

    Whole numbers with one entry for each unit are taken for labels: they are drawn from all `classes`, where given.
    """

    def fill(tensor: Tensor) -> Tensor:
        shape = (units, *tensor.shape[1:])
        if tensor.is_floating_point() or tensor.is_complex():
            return torch.randn(shape, dtype=tensor.dtype, device=tensor.device)
        high = classes if classes and tensor.dim() == 1 and tensor.dtype != torch.bool else 2
        return torch.randint(0, high, shape, device=tensor.device).to(tensor.dtype)

    return map_tensors(fill, like)


def _made_up(like: Nest, example: Nest, classes: int | None, units: int) -> Nest:
    if example is None:
        return synthetic(like, units, classes)
    return take(example, torch.arange(units) % length(example))


def _losses(model: nn.Module, loss_fn: Any, units: Nest, seed: int = 1) -> Tensor:
    reseed(seed)  # the same dropout in every pass
    try:
        return unit_losses(model, loss_fn, map_tensors(torch.clone, units))
    except (NoisewiseError, NotProven, StateChanged, RecordsRead):
        raise
    except Exception as error:
        raise PrivacyError(
            f"the model could not be checked on synthetic inputs ({type(error).__name__}: {error}), so nothing is known "
            "about whether its units are independent. Pass example=, a made-up batch of three units that it accepts."
        ) from error


@contextmanager
def nothing_changed(model: nn.Module) -> Iterator[None]:
    """The model as it is."""
    yield


@contextmanager
def _perturbed(model: nn.Module) -> Iterator[None]:
    """Weights moved a little, so that a layer that starts at zero hides nothing; put back bit for bit."""
    before = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
    generator = torch.Generator().manual_seed(7)
    try:
        with torch.no_grad():
            for parameter, _ in before:
                if parameter.is_floating_point() or parameter.is_complex():
                    scale = 0.1 * (1 + float(parameter.abs().float().mean()) if parameter.numel() else 1.0)
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.data.add_((scale * noise).to(parameter))
        yield
    finally:
        with torch.no_grad():
            for parameter, copy in before:
                parameter.data.copy_(copy)


# --------------------------------------------------------------------------------------------------------------- proof


def _prove(
    model: nn.Module, loss_fn: Any, like: Nest, example: Nest, classes: int | None, live: Mapping[str, nn.Parameter]
) -> Layout:
    """Two made-up batches of prime sizes under proof; other sizes are tried where one of them is a size of the model too."""
    sizes = {size for tensor in own_tensors(model).values() for size in tensor.shape}
    sizes |= {size for tensor in leaves(like) for size in tensor.shape[1:]}
    fitting = [prime for prime in PRIMES if not any(size and size % prime == 0 for size in sizes)]
    fitting += [prime for prime in PRIMES if prime not in fitting]
    reason, copied = "", False
    pairs = list(zip(fitting[0:6:2], fitting[1:6:2], strict=False))
    while pairs:
        first, second = pairs.pop(0)
        passes = []
        try:
            for seed, units in enumerate((first, second)):
                batch = _made_up(like, example, classes, units)
                while True:
                    reseed(seed)
                    try:
                        passes.append(follow(model, loss_fn, batch, live, strict=True, copied=copied))
                        break
                    except BatchChanged:
                        copied = True
            difference = passes[0].trace.difference(passes[1].trace)
            if difference is None:
                fallback = passes[0].fallback | passes[1].fallback
                return Layout(frozenset(fallback), trace=passes[0].trace, copies=copied)
            reason = reason or difference
        except NotProven as error:
            reason = reason or str(error)
        except NoisewiseError:
            raise
        except StateChanged as error:
            raise self_changing([str(error)]) from None
        except Exception as error:  # some models want sizes of their own
            if memory_ran_out(error):
                pairs = [(2, 3)] if first > 2 else []
            reason = reason or f"it failed on {first} or {second} made-up units: {type(error).__name__}: {error}"
    return Layout(reason=reason, copies=copied)


# --------------------------------------------------------------------------------------------------------------- state


def _check_state(model: nn.Module, loss_fn: Any, units: Nest, others: Nest, like: Nest) -> None:
    """Two passes on different units must leave everything as it was, after a first one that may fill caches."""
    _losses(model, loss_fn, units)
    before = held(model, loss_fn)
    _losses(model, loss_fn, units)
    between = held(model, loss_fn)
    _losses(model, loss_fn, others)
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
            losses = _losses(model, loss_fn, rows)
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


def _check_loop(model: nn.Module, loss_fn: Any, units: Nest) -> None:
    """Three units one by one: the loop's own watch refuses what one of them leaves to the next."""
    live = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    try:
        loop(model, loss_fn, Views.single(units), live)
    except StateChanged as error:
        raise self_changing([str(error)]) from None


def _check_use(model: nn.Module, loss_fn: Any, units: Nest, live: Mapping[str, nn.Parameter]) -> None:
    losses = _losses(model, loss_fn, units)
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


# ------------------------------------------------------------------------------------------------- a sample of behaviour


def _check_coupling(model: nn.Module, loss_fn: Any, units: Nest, others: Nest, seeds: Iterable[int] = (1,)) -> None:
    count = length(units)
    for seed in seeds:
        before = _losses(model, loss_fn, units, seed).detach()
        if not bool(before.isfinite().all()):
            raise PrivacyError(
                f"the losses of synthetic units are {before.tolist()}: whether units are independent cannot be seen. "
                "Pass example=, a made-up batch of three different units on which the loss is finite."
            )
        for i in range(count):
            rows = torch.arange(count)
            rows[i] += count
            after = _losses(model, loss_fn, take(_stack(units, others), rows), seed).detach()
            _refuse_if_moved(
                before, after, [j for j in range(count) if j != i], "another unit of the batch was replaced"
            )
    with _without_dropout(model):
        alone = _losses(model, loss_fn, units).detach()
        if torch.equal(alone, _losses(model, loss_fn, units, seed=2).detach()):  # otherwise chance moves the losses too
            fewer = _losses(model, loss_fn, take(units, slice(0, count - 1))).detach()
            _refuse_if_moved(alone, fewer, range(count - 1), "another unit was left out of the batch", ANOTHER_SIZE)
            with suppress(NoisewiseError):  # a model that cannot take one unit is never asked to
                singles = [_losses(model, loss_fn, take(units, slice(i, i + 1))).detach() for i in range(count)]
                fewer = torch.cat(singles)
            if len(fewer) == count:
                _refuse_if_moved(alone, fewer, range(count), "all other units were left out of the batch", ANOTHER_SIZE)
            order = torch.arange(count - 1, -1, -1)
            turned = _losses(model, loss_fn, take(units, order)).detach()[order]
            _refuse_if_moved(alone, turned, range(count), "the order of the units was reversed", ANOTHER_SIZE)


def _check_sizes(model: nn.Module, loss_fn: Any, like: Nest, classes: int | None, size: int | None) -> None:
    """A batch of about the expected size, and one with an extreme unit: the losses of the others must not move."""
    count = min(size or UNITS, MANY)
    with _without_dropout(model):
        many = synthetic(like, max(count, UNITS), classes)
        try:
            losses = _losses(model, loss_fn, many).detach()
            if not torch.equal(losses, _losses(model, loss_fn, many, seed=2).detach()):
                return  # chance moves the losses too
            few = _losses(model, loss_fn, take(many, slice(0, UNITS))).detach()
            wild = map_tensors(torch.clone, many)
            for tensor in leaves(wild):
                if tensor.is_floating_point():
                    tensor[-1] *= 300.0
            extreme = _losses(model, loss_fn, wild).detach()
        except PrivacyError:
            return  # some inputs are out of the model's range: the units at hand were looked at
    if bool(losses.isfinite().all()) and bool(few.isfinite().all()):
        _refuse_if_moved(few, losses, range(UNITS), "more units were in the batch", ANOTHER_SIZE)
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
                "division by the batch size, in-batch negatives); "
                "noisewise.models.convert.batchnorm_to_groupnorm(model) replaces BatchNorm by GroupNorm."
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


def _unaligned(
    model: nn.Module, loss_fn: Any, units: Nest, live: Mapping[str, nn.Parameter], layout: Layout
) -> set[str]:
    """Parameters of calls whose output row i does not serve loss i alone: a second look at what the proof says."""
    try:
        reseed(1)
        losses, calls, found, _ = follow(model, loss_fn, units, live, against=layout.trace, copied=layout.copies)
    except NotProven:  # this size, or these weights, take another way: such batches are evaluated unit by unit
        return set()
    calls = [call for call in calls if call.aligned]
    if not calls or not losses.requires_grad:
        return found
    for call in calls:
        call.check_unchanged()
    edges = [call.edge for call in calls]
    weights = torch.linspace(1.0, 2.0, len(losses), dtype=losses.dtype, device=losses.device)
    ones = torch.autograd.grad(losses, edges, torch.ones_like(losses), allow_unused=True, retain_graph=True)
    weighted = torch.autograd.grad(losses, edges, weights, allow_unused=True)
    for call, plain, scaled in zip(calls, ones, weighted, strict=True):
        if plain is None:
            continue
        expected = plain * weights.view(-1, *[1] * (plain.dim() - 1)).to(plain.dtype)
        error = (scaled - expected).nan_to_num(0.0).abs().max()
        rounding = ROUNDING if plain.dtype in (torch.bfloat16, torch.float16) else 1e-3
        if bool(error > rounding * expected.nan_to_num(0.0).abs().max()):
            found.update(call.names.values())
    return found


def _wrong(model: nn.Module, loss_fn: Any, units: Nest, live: Mapping[str, nn.Parameter], layout: Layout) -> set[str]:
    """Parameters whose ghost gradients do not add up to the plain gradient: some use of them was hidden."""
    if not live:
        return set()
    reseed(1)  # the same dropout as below
    measured = ghost(model, loss_fn, Views.single(units), live, {}, layout, strict=False)
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


def _recorded(model: nn.Module, loss_fn: Any, units: Nest, live: Mapping[str, nn.Parameter]) -> frozenset[str]:
    """Parameters all of whose uses are known calls of a lone unit, and whose gradients from these are those of the loop."""
    views = Views.single(units)
    try:
        one = follow(model, loss_fn, take(units, slice(0, 1)), live)
        for call in one.calls:
            call.check_unchanged()
        known = {name: parameter for name, parameter in live.items() if name not in one.fallback}
        with _without_dropout(model):
            if not known or not torch.equal(*(_losses(model, loss_fn, units, seed) for seed in (1, 2))):
                return frozenset()  # random in evaluation mode too: gradients cannot be compared
            measured, expected = booked(model, loss_fn, views, known, {}), loop(model, loss_fn, views, known)
    except Exception:  # whatever stops it, the other engines are right
        return frozenset()
    scale = _length(expected.values())
    return frozenset(
        name
        for name, grads in expected.items()
        if bool(
            (
                measured[name][1].weighted_sum(torch.ones_like(measured[name][0])).flatten() - grads.sum(0).flatten()
            ).norm()
            <= ROUNDING * grads.norm() + 1e-5 * scale
        )
    )


@contextmanager
def _as_found(model: nn.Module) -> Iterator[None]:
    """Put parameters and buffers back afterwards, and refuse if the passes inside changed one."""
    before = {name: (tensor, tensor.detach().clone()) for name, tensor in own_tensors(model).items()}
    try:
        yield
    except BaseException:
        _restore(model, before)
        raise
    changed = _restore(model, before)
    if changed:
        raise self_changing(changed)


@torch.no_grad()
def _restore(model: nn.Module, before: Mapping[str, tuple[Tensor, Tensor]]) -> list[str]:
    """Put copies back; the names of the tensors that had changed, in place or by assignment."""
    now = own_tensors(model)
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
        self.seen = {name: (tensor, tensor._version) for name, tensor in own_tensors(model).items()}

    def check(self, model: nn.Module) -> None:
        """Refuse if one changed since."""
        now = own_tensors(model)
        changed = [name for name, (tensor, version) in self.seen.items()
                   if now.get(name) is not tensor or tensor._version != version]  # fmt: skip
        if changed:
            raise self_changing(changed)
