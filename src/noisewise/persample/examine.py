"""Look at a model once, before it sees a record: are its units separate, by proof or by construction, and which way is fast?

Two nets. The first is the proof (`proof`): the fast engine is used only where every operation acts row by row, everything else
is evaluated unit by unit, so the guarantee does not depend on what follows. The second is a sample of behaviour on made-up
inputs, which finds models that mean to mix units, so that they are refused and not quietly changed.
No question depends on a record or on a list of names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from noisewise._moved import old_names
from noisewise.batches import Nest, Views, leaves, map_tensors, take
from noisewise.errors import CoupledSamples, NoisewiseError, UnsupportedLayer, memory_ran_out
from noisewise.persample import kernels
from noisewise.persample.behaviour import check_coupling, check_loop, check_sizes, check_state, check_use, steady
from noisewise.persample.chance import random_state, reseed
from noisewise.persample.conditions import NotProven
from noisewise.persample.dispatched import BatchChanged, StateChanged
from noisewise.persample.engines import booked, follow, ghost
from noisewise.persample.held import own_tensors, self_changing
from noisewise.persample.images import convolves_images, draws, with_channels_last
from noisewise.persample.layers import RULES
from noisewise.persample.layout import Layout, situation
from noisewise.persample.lent import is_lent, lending, portions
from noisewise.persample.made_up import (
    batch_of,
    losses_of,
    nothing_changed,
    perturbed,
    units_and_others,
    without_dropout,
)
from noisewise.persample.proof import PRIMES
from noisewise.persample.rounding import uncut
from noisewise.persample.units_alone import dense, loop
from noisewise.persample.uses import in_front

ROUNDING = 0.03  # dense against loop, relative: a bfloat16 has 8 bits; wrong gradients are wrong by more


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
    for device in {parameter.device for parameter in live.values()}:
        kernels.get_ready(device)
    with _as_found(model), random_state(0):
        units, others = units_and_others(like, example, classes)
        _check_lent_weights(model, loss_fn, units)
        try:
            check_coupling(model, loss_fn, units, others)
        except CoupledSamples:
            if not steady(model, loss_fn, units):  # what changes itself moves losses too, and is named
                check_state(model, loss_fn, units, others, like)
            raise
        check_state(model, loss_fn, units, others, like)
        with perturbed(model):
            check_use(model, loss_fn, units, live)
            check_coupling(model, loss_fn, units, others, seeds=(2, 3))
            if example is None:
                check_sizes(model, loss_fn, like, classes, size)
        layout = _prove(model, loss_fn, like, example, classes, live)
        fallback = set(live)
        if layout.proven:
            fallback = _to_other_engines(model, loss_fn, units, live, layout)
        _check_lent(layout, fallback)
        if layout.proven and not fallback:
            layout = _for_images(model, loss_fn, like, example, classes, live, units, layout)
        rest = {name: live[name] for name in fallback}
        vectorises = not fallback or _vectorises(model, loss_fn, units, rest)
        recorded = _recorded(model, loss_fn, units, live) if vectorises and not layout.proven else frozenset()
        if not vectorises:
            check_loop(model, loss_fn, units)
    return replace(
        layout,
        fallback=frozenset(fallback),
        examined=frozenset(live),
        vectorises=vectorises,
        recorded=recorded,
        situation=situation(model, loss_fn, like),
    )


def _check_lent_weights(model: nn.Module, loss_fn: Any, units: Nest) -> None:
    """A weight that is lent must be used by a function that it is lent to: anything else computes with nothing."""
    if lending() is not None and not bool(losses_of(model, loss_fn, units).detach().isfinite().all()):
        raise UnsupportedLayer(
            "the losses of synthetic units are not finite: the model uses a parameter that is spread over processes otherwise "
            "than by linear, embedding, layer_norm, rms_norm or group_norm of torch.nn.functional, or its losses are not "
            "finite anyway. Use those layers in the usual way, train without fully_shard, or pass example= for the loss."
        )


def _check_lent(layout: Layout, fallback: set[str]) -> None:
    """Weights that are lent call by call have the fast engine only: the others would need all of them at once."""
    if lending() is None or (layout.proven and not fallback):
        return
    reason = layout.reason if not layout.proven else f"no ghost rule explains how {sorted(fallback)} are used"
    raise UnsupportedLayer(
        f"the model's parameters are spread over processes, where only the fast engine works, and it cannot be used: {reason}. "
        "Make the model of nn.Linear, nn.Embedding and norm layers, called in the usual way; or train it without fully_shard."
    )


def _prove(
    model: nn.Module,
    loss_fn: Any,
    like: Nest,
    example: Nest,
    classes: int | None,
    live: Mapping[str, nn.Parameter],
    *,
    last: bool = False,
) -> Layout:
    """Two made-up batches of prime sizes under proof; other sizes are tried where one of them is a size of the model too.

    `last`: images have their channels last in memory.
    """
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
                batch = batch_of(like, example, classes, units)
                while True:
                    reseed(seed)
                    try:
                        passes.append(
                            follow(model, loss_fn, batch, live, strict=True, copied=copied, channels_last=last)
                        )
                        break
                    except BatchChanged:
                        copied = True
            difference = passes[0].trace.difference(passes[1].trace)
            if difference is None:
                fallback = passes[0].fallback | passes[1].fallback
                return Layout(frozenset(fallback), trace=passes[0].trace, copies=copied, channels_last=last)
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


def _to_other_engines(
    model: nn.Module, loss_fn: Any, units: Nest, live: Mapping[str, nn.Parameter], layout: Layout
) -> set[str]:
    """Parameters that the fast engine does not explain, or not rightly, at the model's own and at other weights."""
    names = set(layout.fallback)
    for weights in (nothing_changed, perturbed):
        with weights(model), uncut():  # products cut to fewer bits would pass for mistakes where gradients cancel
            names |= _unaligned(model, loss_fn, units, live, layout)
            trusted = {name: p for name, p in live.items() if name not in names}
            names |= _wrong(model, loss_fn, units, trusted, layout)
    return names


def _for_images(
    model: nn.Module,
    loss_fn: Any,
    like: Nest,
    example: Nest,
    classes: int | None,
    live: Mapping[str, nn.Parameter],
    units: Nest,
    layout: Layout,
) -> Layout:
    """The same with channels last in memory, where the model convolves images and this changes nothing but the order.

    Losses must be the same without dropout, whose draws follow the order in memory; gradients are compared with plain ones in
    the model's own order.
    """
    assert layout.trace is not None
    if not convolves_images(layout.trace, leaves(like)):
        return layout
    try:
        other = _prove(model, loss_fn, like, example, classes, live, last=True)
        with without_dropout(model):
            one, again = (losses_of(model, loss_fn, units, seed).detach() for seed in (1, 2))
            moved = losses_of(model, loss_fn, map_tensors(with_channels_last, units), 1).detach()
        near = torch.allclose(moved, one, rtol=1e-3, atol=1e-3 * float(one.abs().max()))
        same = other.trace is not None and not other.fallback and near and torch.equal(one, again)
        with uncut():
            if not same or (not draws(layout.trace) and _wrong(model, loss_fn, units, live, other)):
                return layout
    except (NoisewiseError, NotProven, RuntimeError, ValueError) as error:
        if memory_ran_out(error):
            raise
        return layout  # it asks for another order in memory
    return other


def _unaligned(
    model: nn.Module, loss_fn: Any, units: Nest, live: Mapping[str, nn.Parameter], layout: Layout
) -> set[str]:
    """Parameters of calls whose output row i does not serve loss i alone: a second look at what the proof says."""
    try:
        reseed(1)
        losses, calls, names, _ = follow(
            model, loss_fn, units, live, against=layout.trace, copied=layout.copies, channels_last=layout.channels_last
        )
    except NotProven:  # this size, or these weights, take another way: such batches are evaluated unit by unit
        return set()
    calls = [call for call in calls if call.place is not None]
    if not calls or not losses.requires_grad:
        return names
    for call in calls:
        call.check_unchanged()
    edges = [call.edge for call in calls]
    weights = torch.linspace(1.0, 2.0, len(losses), dtype=losses.dtype, device=losses.device)
    ones = torch.autograd.grad(losses, edges, torch.ones_like(losses), allow_unused=True, retain_graph=True)
    alike = torch.autograd.grad(losses, edges, torch.full_like(losses, 1.7), allow_unused=True, retain_graph=True)
    weighted = torch.autograd.grad(losses, edges, weights, allow_unused=True)
    for call, plain, even, scaled in zip(calls, ones, alike, weighted, strict=True):
        if plain is None:
            continue
        plain, even, scaled = (
            in_front(call, grad, len(losses)).reshape(len(losses), -1) for grad in (plain, even, scaled)
        )
        noise = (even - 1.7 * plain).nan_to_num(0.0).abs().max()  # weights that are all alike show rounding alone
        expected = plain * weights.view(-1, *[1] * (plain.dim() - 1)).to(plain.dtype)
        error = (scaled - expected).nan_to_num(0.0).abs().max()
        rounding = ROUNDING if plain.dtype in (torch.bfloat16, torch.float16) else 1e-3
        if bool(error > rounding * expected.nan_to_num(0.0).abs().max() + 4 * noise):
            names.update(call.names.values())
    return names


def _wrong(model: nn.Module, loss_fn: Any, units: Nest, live: Mapping[str, nn.Parameter], layout: Layout) -> set[str]:
    """Parameters whose ghost gradients do not add up to the plain gradient: some use of them was hidden."""
    if not live:
        return set()
    reseed(1)  # the same dropout as below
    measured = ghost(model, loss_fn, Views.single(units), live, {}, layout, strict=False)
    lengths, errors = list[float](), dict[str, float]()
    for some in portions(live):
        losses = losses_of(model, loss_fn, units)
        if not losses.requires_grad:
            return set()
        plain = torch.autograd.grad(losses.sum(), list(some.values()), allow_unused=True)
        lengths.append(_length(grad for grad in plain if grad is not None))
        for name, grad in zip(some, plain, strict=True):
            squares, gradient = measured[name]
            total = gradient.weighted_sum(torch.ones_like(squares)).reshape(live[name].shape)
            error = (total if grad is None else total - grad).double().norm()
            errors[name] = float((error - ROUNDING * squares.double().sqrt().sum()).detach())
    room = 1e-5 * math.hypot(*lengths)
    suspects = [name for name, error in errors.items() if error > room]
    # whole weights come from all processes: each must ask for as many, whatever rounding was there
    asked = live if lending() is not None else {name: live[name] for name in suspects}
    noise = {name: size for some in portions(asked) for name, size in _noise(model, loss_fn, units, some).items()}
    return {name for name in suspects if errors[name] > room + 4 * noise[name]}


def _noise(model: nn.Module, loss_fn: Any, units: Nest, some: Mapping[str, nn.Parameter]) -> dict[str, float]:
    """How far plain gradients move by rounding alone: those of losses times 1.7, divided by it.

    Where they cancel (keys' biases, which attention does not feel) rounding in half precision is all there is of them. Where
    1.7 times as much is not finite any more, nothing is known of rounding, and nothing is excused by it.
    """
    if not some:
        return {}
    losses = losses_of(model, loss_fn, units)
    one, other = (
        torch.autograd.grad(
            losses, list(some.values()), torch.full_like(losses, scale), allow_unused=True, retain_graph=True
        )
        for scale in (1.0, 1.7)
    )
    pairs = zip(some, one, other, strict=True)
    noise = {name: 0.0 if a is None or b is None else float((b / 1.7 - a).double().norm()) for name, a, b in pairs}
    return {name: size if math.isfinite(size) else 0.0 for name, size in noise.items()}


def _length(tensors: Iterable[Tensor]) -> float:
    return math.hypot(*(float(tensor.double().norm()) for tensor in tensors))


def _vectorises(model: nn.Module, loss_fn: Any, units: Nest, live: Mapping[str, nn.Parameter]) -> bool:
    """Does the dense engine run, and does it agree with the loop where nothing is left to chance?"""
    views = Views.single(units)
    try:
        dense(model, loss_fn, views, live)
        with without_dropout(model):
            if not torch.equal(losses_of(model, loss_fn, units, seed=1), losses_of(model, loss_fn, units, seed=2)):
                return True  # random in evaluation mode too: gradients cannot be compared
            got, expected = dense(model, loss_fn, views, live), loop(model, loss_fn, views, live)
    except Exception:  # whatever stops it, the loop is right
        return False
    scale = _length(expected.values())
    return all(
        bool((got[name] - grad).double().norm() <= ROUNDING * grad.double().norm() + 1e-5 * scale)
        for name, grad in expected.items()
    )


def _recorded(model: nn.Module, loss_fn: Any, units: Nest, live: Mapping[str, nn.Parameter]) -> frozenset[str]:
    """Parameters all of whose uses are known calls of a lone unit, and whose gradients from these are those of the loop."""
    views = Views.single(units)
    try:
        one = follow(model, loss_fn, take(units, slice(0, 1)), live)
        for call in one.calls:
            call.check_unchanged()
        others = {name for call in one.calls if not call.direct or call.rows or not RULES[call.function].booked
                  for name in call.names.values()}  # fmt: skip
        known = {name: parameter for name, parameter in live.items() if name not in one.fallback | others}
        with without_dropout(model):
            if not known or not torch.equal(*(losses_of(model, loss_fn, units, seed) for seed in (1, 2))):
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
    own = {name: tensor for name, tensor in own_tensors(model).items() if not is_lent(tensor)}
    before = {name: (tensor, tensor.detach().clone()) for name, tensor in own.items()}
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


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
