"""Three ways to the same gradients: ghost (fast, where it is proven), dense (each unit alone, all at once), loop (one by one).

Dense and loop keep units apart by construction: the model sees one of them at a time. Ghost sees the whole batch, and only
where a proof (`proof`) shows, on this very batch, that every operation acts row by row.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from noisewise.batches import Nest, Views, leaves, map_tensors, take
from noisewise.errors import UnsupportedLayer, memory_ran_out
from noisewise.losses import unit_losses
from noisewise.persample.alike import is_small, measure_together
from noisewise.persample.blocks import measure_blocks
from noisewise.persample.chance import Drawing
from noisewise.persample.conditions import NotProven
from noisewise.persample.dispatched import StateChanged
from noisewise.persample.formed import Formed, Grouped, PerSample, Summable
from noisewise.persample.gradients import Outer, Recent
from noisewise.persample.held import changes, held, own_tensors, self_changing
from noisewise.persample.images import with_channels_last
from noisewise.persample.layers import at_least_float32
from noisewise.persample.layout import Layout
from noisewise.persample.lent import lending
from noisewise.persample.places import apart
from noisewise.persample.proof import Proof
from noisewise.persample.rounding import full_precision, shortened, uncut
from noisewise.persample.steady import NotSteady, is_steady
from noisewise.persample.tape import Call, Nudged, Tape, misaligned, unexplained
from noisewise.persample.trace import Trace
from noisewise.persample.units_alone import dense, each_alone, loop
from noisewise.persample.uses import Use, uses_of

Live = Mapping[str, nn.Parameter]
Masks = Mapping[str, Tensor]
Measured = dict[str, tuple[Tensor, Summable]]


def measure(
    model: nn.Module,
    loss_fn: Any,
    batch: Views,
    live: Live,
    masks: Masks,
    layout: Layout,
    engine: str,
    proofs: list[Proof] | None = None,
) -> Measured:
    """Squared norms `[batch]` of each live parameter's masked gradients, and those gradients ready to be summed.

    `proofs` gets the proof that was tried: when all that is given back is gone, nothing may be `kept`.
    """
    try:
        match engine:
            case "loop":
                with nothing_left_behind(model, loss_fn):
                    return _measure_formed(loop(model, loss_fn, batch, live), masks)
            case "dense":
                with nothing_left_behind(model, loss_fn):
                    return _measure_formed(dense(model, loss_fn, batch, live), masks)
            case _:
                strict = engine == "ghost" or lending() is not None
                return ghost(model, loss_fn, batch, live, masks, layout, strict=strict, proofs=proofs)
    except StateChanged as error:
        raise self_changing([str(error)]) from None


class Followed(NamedTuple):
    """A proven forward pass: losses, recorded calls, parameters that no rule explains, and the trace."""

    losses: Tensor
    calls: list[Call]
    fallback: set[str]
    trace: Trace


def follow(
    model: nn.Module,
    loss_fn: Any,
    rows: Nest,
    live: Live,
    *,
    against: Trace | None = None,
    strict: bool = False,
    copied: bool = False,
    channels_last: bool = False,
    proofs: list[Proof] | None = None,
) -> Followed:
    """One forward pass under proof and tape; `NotProven` if units are not shown to be separate."""
    inputs = map(with_channels_last, leaves(rows)) if channels_last else leaves(rows)
    parts = iter([t.clone() if copied else t for t in apart(inputs)])
    rows = map_tensors(lambda _: next(parts), rows)
    proof = Proof(list(leaves(rows)), own_tensors(model), against=against, strict=strict, copied=copied)
    if proofs is not None:
        proofs.append(proof)
    torch.clear_autocast_cache()  # a weight that an earlier pass has cast would be used without being seen
    try:
        with Tape(live, proof) as tape, proof:
            losses = unit_losses(model, loss_fn, rows)
    except RuntimeError:  # scripted code wraps what it meets
        if proof.failure is None:
            raise
        raise NotProven(proof.failure) from None
    finally:
        torch.clear_autocast_cache()  # nor must what a graph has cast be used outside of it
    trace = proof.conclude(losses)
    fallback = unexplained(losses, live) | tape.overwritten() | misaligned(tape.calls)
    return Followed(losses, tape.calls, fallback, trace)


def ghost(
    model: nn.Module,
    loss_fn: Any,
    batch: Views,
    live: Live,
    masks: Masks,
    layout: Layout,
    *,
    strict: bool,
    proofs: list[Proof] | None = None,
) -> Measured:
    """Book-keeping: one forward pass, gradients with respect to layer outputs only, norms from those and the inputs.

    Guarantee: used only if this pass is proven to act row by row, and to be the pass that was examined; otherwise every
    unit is evaluated alone. Parameters that no rule explains get their gradients from `dense`, or from `loop` where the
    examination found that the model cannot be vectorised; the others stay here.
    Reference: Bu et al. 2023, arXiv:2210.00038 (book-keeping). Deviation: see `gradients` for how norms are taken.
    """
    units, views = batch.weights.shape
    try:
        if layout.trace is None:
            raise NotProven(layout.reason or "the model was not examined")
        if units * views == 1:
            raise AnotherWay("a batch of one row may take another way than any other")
        try:
            followed = follow(
                model, loss_fn, batch.rows(), live, against=layout.trace, copied=layout.copies,
                channels_last=layout.channels_last, proofs=proofs,
            )  # fmt: skip
        except NotProven as error:
            raise AnotherWay(str(error)) from None
    except AnotherWay as error:
        if is_steady():
            raise NotSteady(str(error)) from None
        with nothing_left_behind(model, loss_fn):
            return filled_up(model, loss_fn, batch, live, masks, layout, strict=strict)
    except NotProven as error:
        if is_steady():
            raise NotSteady(str(error)) from None
        if strict:
            raise _no_proof(error) from None
        return alone(model, loss_fn, batch, live, masks, layout)
    fallback = live.keys() & (layout.fallback | followed.fallback)
    if strict and fallback:
        raise UnsupportedLayer(
            f"no ghost rule explains how {sorted(fallback)} are used, so their gradients would escape clipping. "
            "Use Runtime(engine='auto'), which computes these alone in the dense way, or freeze them with support=."
        )
    if fallback and is_steady():
        raise NotSteady(f"no ghost rule explains how {sorted(fallback)} are used")
    explained = {name: live[name] for name in live if name not in fallback}
    uses = uses_of(followed.losses, followed.calls, explained, batch.weights)
    del followed  # and with it every input that no use needs
    measured = _measure_uses(uses, explained, units, views, masks)
    if fallback:
        rest = {name: live[name] for name in live if name in fallback}
        measured |= _measure_formed(each_alone(model, loss_fn, batch, rest, layout), masks)
    return measured


class AnotherWay(NotProven):
    """A batch does not take the way that was examined: the model decides by the number of units, by chance or by a count."""


def _no_proof(reason: object) -> UnsupportedLayer:
    remedy = "Use Runtime(engine='auto'), which then evaluates every unit alone."
    if lending() is not None:
        remedy = "Parameters that are spread over processes have no other engine: train without fully_shard."
    return UnsupportedLayer(
        f"the fast engine needs a proof that units do not influence each other, and there is none: {reason}. {remedy}"
    )


def filled_up(
    model: nn.Module, loss_fn: Any, batch: Views, live: Live, masks: Masks, layout: Layout, *, strict: bool
) -> Measured:
    """A batch that takes another way than the examined one: each unit in a small batch that does not, with copies of itself.

    What a unit contributes must not depend on how many others there are, so it is computed by the proven function whatever
    the size of the batch, and measured as there: bounds on rounding of another engine would scale every unit otherwise, and
    with products that may be cut (TF32) even the kernel for another number of rows can round otherwise. If even
    a rehearsal takes another way, the model decides by chance or by a count, not by the units,
    and each of them is evaluated alone; so is a single unit whose own pass does. The rehearsal is thrown away: a way that was
    chosen by the passes of all units would be chosen more seldom the more of them there are.
    Slow, and rare: PyTorch itself takes another way for batches of one row.
    """
    explained = {name: live[name] for name in live if name not in layout.fallback}
    assert layout.trace is not None
    for size in (*_neighbouring(batch, live), 2, layout.trace.units):
        try:
            _in_company_of_itself(model, loss_fn, _one(batch, 0), live, explained, layout, size)
            break
        except NotProven as error:
            reason = str(error)  # the error itself would keep its frames, and with them what they computed
    else:
        if strict:
            raise _no_proof(reason) from None
        return alone(model, loss_fn, batch, live, masks, layout)
    views = batch.weights.shape[1]
    passes: dict[int, list[Use]] = {}
    strays: dict[int, Measured] = {}
    for number in range(len(batch.weights)):
        one = _one(batch, number)
        try:
            passes[number] = _in_company_of_itself(model, loss_fn, one, live, explained, layout, size)
        except NotProven as error:
            if strict:
                raise _no_proof(error) from None
            with nothing_left_behind(model, loss_fn):
                strays[number] = _measure_formed(each_alone(model, loss_fn, one, explained, layout), masks)
    groups = list(strays.values())
    if passes:
        groups.insert(0, _measure_uses(_stacked(list(passes.values())), explained, len(passes), views, masks))
    index = torch.tensor([*passes, *strays], device=batch.weights.device)
    measured = {name: _in_turn(groups, name, index) for name in explained} if strays else groups[0]
    rest = {name: live[name] for name in live if name not in explained}
    if rest:
        measured |= _measure_formed(each_alone(model, loss_fn, batch, rest, layout), masks)
    return measured


def _stacked(passes: list[list[Use]]) -> list[Use]:
    """The uses of a batch from those of its units: all passes have the same, since they follow the same trace."""
    return [
        uses[0]._replace(
            operands=uses[0].operands._replace(input=torch.cat([use.operands.input for use in uses])),
            grad=torch.cat([use.grad for use in uses]),
        )
        for uses in zip(*passes, strict=True)
    ]


def _in_turn(groups: list[Measured], name: str, index: Tensor) -> tuple[Tensor, Summable]:
    """Units that were measured in groups, as a batch in its own order: `index` has the unit of each place."""
    parts, start = [], 0
    squares = torch.cat([group[name][0] for group in groups])
    for group in groups:
        stop = start + len(group[name][0])
        parts.append((index[start:stop], group[name][1]))
        start = stop
    return torch.empty_like(squares).index_copy_(0, index, squares), Grouped(tuple(parts))


def _neighbouring(batch: Views, live: Live) -> list[int]:
    """Sizes of the batches that differ by one unit, where the settings let products be cut and the kernel decides on it."""
    units = len(batch.weights)
    cut = any(shortened(parameter, convolution=True) > 0 for parameter in live.values())
    return [size for size in (units + 1, units - 1) if cut and size > 1]


def _one(batch: Views, unit: int) -> Views:
    """One unit of a batch, as a batch."""
    one: Views = take(batch, slice(unit, unit + 1))
    return one


def _in_company_of_itself(
    model: nn.Module, loss_fn: Any, one: Views, live: Live, explained: Live, layout: Layout, size: int
) -> list[Use]:
    """The uses of one unit in a proven pass of `size` units, the others of which are copies that count nothing."""
    views = one.weights.shape[1]
    index = torch.arange(views, device=one.weights.device).repeat(size)
    real = torch.arange(size * views, device=index.device) < views
    weights = torch.where(real, one.weights[0, index], 0.0)
    rows = take(take(one.batch, 0), index)
    followed = follow(
        model, loss_fn, rows, live, against=layout.trace, copied=layout.copies, channels_last=layout.channels_last
    )
    if explained.keys() & followed.fallback:
        raise NotProven("a parameter is used in another way than in the examined pass")
    return [use.first(views) for use in uses_of(followed.losses, followed.calls, explained, weights, real)]


Pieces = list[tuple[slice | None, PerSample]]


def _pieces(uses: list[Use], live: Live, views: int, recent: Recent) -> dict[str, Pieces]:
    """The gradients of each parameter, one part for each of its uses, with the rows that it is of."""
    pieces: dict[str, Pieces] = {name: [] for name in live}
    for use in uses:
        gradients = use.gradients()
        for role, name in use.names.items():
            if name in live:
                gradient = gradients[role]()
                owned = views * use.spread
                gradient = gradient if owned == 1 else gradient.by_unit(owned)
                if isinstance(gradient, Outer):
                    gradient = replace(gradient, recent=recent)
                elif isinstance(gradient, Formed):
                    gradient = replace(gradient, recent=recent.squares)
                pieces[name].append((use.rows.get(role), gradient))
    return pieces


def _measure_uses(uses: list[Use], live: Live, units: int, views: int, masks: Masks) -> Measured:
    """Norms and gradients of parameters from their uses, all of which are known; inputs and gradients go when they can.

    `uses` is empty afterwards.
    """
    recent, measured = Recent(), dict[str, tuple[Tensor, Summable]]()
    pieces = _pieces(uses, live, views, recent)
    uses.clear()
    measured |= measure_together({name: small for name in live if (small := _small(pieces[name]))}, masks)
    for name, mask in masks.items() if is_steady() else ():
        if name not in measured and (formed := _formed(pieces.get(name, []))):
            recent.squares.expect(formed.rows, mask.flatten())
    for name, parameter in live.items():
        if name in measured:
            pass
        elif pieces[name]:
            with full_precision(parameter):
                measured[name] = measure_blocks(pieces[name], parameter, masks.get(name))
        else:  # not used by this batch's losses
            measured[name] = _measure_formed({name: parameter.new_zeros(units, parameter.numel())}, masks)[name]
        pieces[name].clear()
    recent.clear()
    return measured


def _small(pieces: Pieces) -> Formed | None:
    """The gradients of a parameter that has one small use."""
    gradient = _formed(pieces)
    return gradient if gradient is not None and is_small(gradient) else None


def _formed(pieces: Pieces) -> Formed | None:
    """The gradients of a parameter that has one use, which forms them."""
    if len(pieces) != 1:
        return None
    rows, gradient = pieces[0]
    return gradient if rows is None and isinstance(gradient, Formed) else None


def alone(model: nn.Module, loss_fn: Any, batch: Views, live: Live, masks: Masks, layout: Layout) -> Measured:
    """Every unit by itself, at once where the model can be vectorised."""
    measured: Measured = {}
    recorded = {name: live[name] for name in live if name in layout.recorded}
    with nothing_left_behind(model, loss_fn):
        if recorded and layout.vectorises:
            with suppress(Unrecorded):
                measured = booked(model, loss_fn, batch, recorded, masks)
        rest = {name: live[name] for name in live if name not in measured}
        if rest:
            measured |= _measure_formed(each_alone(model, loss_fn, batch, rest, layout), masks)
    return measured


@contextmanager
def nothing_left_behind(model: nn.Module, loss_fn: Any) -> Iterator[None]:
    """Without a proof nobody has seen every write: compare what model and loss hold before and after."""
    before = held(model, loss_fn)
    yield
    changed = changes(before, held(model, loss_fn))
    if changed:
        raise self_changing(changed)


class Unrecorded(Exception):
    """Book-keeping inside vmap does not fit this batch."""


def booked(model: nn.Module, loss_fn: Any, batch: Views, live: Live, masks: Masks) -> Measured:
    """Every unit alone by `vmap`, with book-keeping inside: no gradient of a parameter is formed that need not be.

    A zero is added to the output of every known call; the gradient with respect to these zeros is that of the outputs, and
    the calls' inputs are handed out beside it. Guarantee: as `dense`, the model sees one unit at a time. All uses of these
    parameters must be known calls (the examination finds which have no other).
    """
    units, views = batch.weights.shape
    first = Nudged(live)
    with torch.no_grad(), first:
        loss_fn(model, map_tensors(torch.clone, take(batch.batch, 0)))

    def loss_of_one(nudges: list[Tensor], rows: Nest, weights: Tensor) -> tuple[Tensor, list[Tensor]]:
        tape = Nudged(live, nudges)
        with tape:
            losses = loss_fn(model, rows)
        return (losses * weights.to(losses.dtype)).sum(), tape.inputs

    nudges = [torch.zeros(shape, dtype=kind, device=place) for shape, kind, place in first.outputs]
    fitting = all(given.dim() > 1 and len(given) == views == shape[0] for given, (shape, *_) in
                  zip(first.inputs, first.outputs, strict=True))  # fmt: skip
    if not nudges or not fitting:
        raise Unrecorded
    try:
        each = torch.func.vmap(torch.func.grad(loss_of_one, has_aux=True), in_dims=(None, 0, 0), randomness="different")
        with torch.no_grad(), warnings.catch_warnings(), Drawing(), uncut():
            warnings.filterwarnings("ignore", "There is a performance drop because we have not yet", UserWarning)
            grads, inputs = each(nudges, map_tensors(torch.clone, batch.batch), batch.weights)
    except (RuntimeError, ValueError, IndexError, NotProven) as error:
        if memory_ran_out(error):
            raise
        raise Unrecorded from error
    uses = [
        Use(function, operands._replace(input=given.flatten(0, 1)), names, grad.flatten(0, 1))
        for (function, operands, names), given, grad in zip(first.calls, inputs, grads, strict=True)
    ]
    return _measure_uses(uses, live, units, views, masks)


def _measure_formed(grads: Mapping[str, Tensor], masks: Masks) -> Measured:
    return {name: Formed(at_least_float32(grad)).measure(masks.get(name)) for name, grad in grads.items()}
