"""Three ways to the same gradients: ghost (fast, where it is proven), dense (each unit alone, all at once), loop (one by one).

Dense and loop keep units apart by construction: the model sees one of them at a time. Ghost sees the whole batch, and only
where a proof (`proof`) shows, on this very batch, that every operation acts row by row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from noisewise.batches import Nest, Views, leaves, map_tensors, take
from noisewise.errors import DataError, UnsupportedLayer
from noisewise.persample.chance import Drawing
from noisewise.persample.conditions import NotProven
from noisewise.persample.dispatched import StateChanged
from noisewise.persample.formed import Formed, PerSample, Summable
from noisewise.persample.gradients import join
from noisewise.persample.held import changes, counts, held, own_tensors, self_changing
from noisewise.persample.layers import RULES, Operands
from noisewise.persample.layout import Layout
from noisewise.persample.losses import unit_losses
from noisewise.persample.proof import Proof, apart
from noisewise.persample.rounding import full_precision
from noisewise.persample.tape import Call, Nudged, Tape, misaligned, unexplained
from noisewise.persample.trace import Trace
from noisewise.persample.watch import Watch

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
                return ghost(model, loss_fn, batch, live, masks, layout, strict=engine == "ghost", proofs=proofs)
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
    proofs: list[Proof] | None = None,
) -> Followed:
    """One forward pass under proof and tape; `NotProven` if units are not shown to be separate."""
    parts = iter([t.clone() if copied else t for t in apart(leaves(rows))])
    rows = map_tensors(lambda _: next(parts), rows)
    proof = Proof(list(leaves(rows)), own_tensors(model), against=against, strict=strict, copied=copied)
    if proofs is not None:
        proofs.append(proof)
    try:
        with Tape(live, proof) as tape, proof:
            losses = unit_losses(model, loss_fn, rows)
    except RuntimeError:  # scripted code wraps what it meets
        if proof.failure is None:
            raise
        raise NotProven(proof.failure) from None
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
                model, loss_fn, batch.rows(), live, against=layout.trace, copied=layout.copies, proofs=proofs
            )
        except NotProven as error:
            raise AnotherWay(str(error)) from None
    except AnotherWay:
        with nothing_left_behind(model, loss_fn):
            return filled_up(model, loss_fn, batch, live, masks, layout, strict=strict)
    except NotProven as error:
        if strict:
            raise _no_proof(error) from None
        return alone(model, loss_fn, batch, live, masks, layout)
    fallback = live.keys() & (layout.fallback | followed.fallback)
    if strict and fallback:
        raise UnsupportedLayer(
            f"no ghost rule explains how {sorted(fallback)} are used, so their gradients would escape clipping. "
            "Use Runtime(engine='auto'), which computes these alone in the dense way, or freeze them with support=."
        )
    explained = {name: live[name] for name in live if name not in fallback}
    measured = _measure_uses(_uses(followed, explained, batch.weights), explained, units, views, masks)
    if fallback:
        rest = {name: live[name] for name in live if name in fallback}
        measured |= _measure_formed(_each(model, loss_fn, batch, rest, layout), masks)
    return measured


def memory_ran_out(error: BaseException | None) -> bool:
    """Did an allocator fail, here or in what caused this error?"""
    if error is None:
        return False
    text = str(error)
    allocator = isinstance(error, RuntimeError) and ("allocate memory" in text or "not enough memory" in text)
    return allocator or isinstance(error, MemoryError | torch.OutOfMemoryError) or memory_ran_out(error.__cause__)


class AnotherWay(NotProven):
    """A batch does not take the way that was examined: the model decides by the number of units, by chance or by a count."""


def _no_proof(reason: object) -> UnsupportedLayer:
    return UnsupportedLayer(
        f"the fast engine needs a proof that units do not influence each other, and there is none: {reason}. "
        "Use Runtime(engine='auto'), which then evaluates every unit alone."
    )


def filled_up(
    model: nn.Module, loss_fn: Any, batch: Views, live: Live, masks: Masks, layout: Layout, *, strict: bool
) -> Measured:
    """A batch that takes another way than the examined one: each unit in a small batch that does not, with copies of itself.

    What a unit contributes must not depend on how many others there are, so it is computed by the proven function whatever
    the size of the batch, and measured as there: bounds on rounding of another engine would scale every unit otherwise. If even
    a rehearsal takes another way, the model decides by chance or by a count, not by the units,
    and each of them is evaluated alone; so is a single unit whose own pass does. The rehearsal is thrown away: a way that was
    chosen by the passes of all units would be chosen more seldom the more of them there are.
    Slow, and rare: PyTorch itself takes another way for batches of one row.
    """
    explained = {name: live[name] for name in live if name not in layout.fallback}
    assert layout.trace is not None
    for size in (2, layout.trace.units):
        try:
            _in_company_of_itself(model, loss_fn, _one(batch, 0), live, explained, masks, layout, size)
            break
        except NotProven as error:
            reason = str(error)  # the error itself would keep its frames, and with them what they computed
    else:
        if strict:
            raise _no_proof(reason) from None
        return alone(model, loss_fn, batch, live, masks, layout)
    units = []
    for number in range(len(batch.weights)):
        one = _one(batch, number)
        try:
            units.append(_in_company_of_itself(model, loss_fn, one, live, explained, masks, layout, size))
        except NotProven as error:
            if strict:
                raise _no_proof(error) from None
            with nothing_left_behind(model, loss_fn):
                units.append(_measure_formed(_each(model, loss_fn, one, explained, layout), masks))
    measured: Measured = {
        name: (
            torch.cat([unit[name][0] for unit in units]),
            Formed(torch.cat([_at_least_float32(unit[name][1].formed()) for unit in units])),
        )
        for name in explained
    }
    rest = {name: live[name] for name in live if name not in explained}
    if rest:
        measured |= _measure_formed(_each(model, loss_fn, batch, rest, layout), masks)
    return measured


def _one(batch: Views, unit: int) -> Views:
    """One unit of a batch, as a batch."""
    one: Views = take(batch, slice(unit, unit + 1))
    return one


def _in_company_of_itself(
    model: nn.Module, loss_fn: Any, one: Views, live: Live, explained: Live, masks: Masks, layout: Layout, size: int
) -> Measured:
    """Norm and gradient of one unit from a proven pass of `size` units, the others of which are copies that count nothing."""
    views = one.weights.shape[1]
    index = torch.arange(views, device=one.weights.device).repeat(size)
    real = torch.arange(size * views, device=index.device) < views
    weights = torch.where(real, one.weights[0, index], 0.0)
    rows = take(take(one.batch, 0), index)
    followed = follow(model, loss_fn, rows, live, against=layout.trace, copied=layout.copies)
    if explained.keys() & followed.fallback:
        raise NotProven("a parameter is used in another way than in the examined pass")
    measured = _measure_uses(_uses(followed, explained, weights, real), explained, size, views, masks)
    one_of: Measured = {}
    for name, (squares, gradient) in measured.items():
        grads = gradient.formed()[:1].reshape(1, -1)
        one_of[name] = squares[:1], Formed(torch.where(masks[name].flatten(), grads, 0) if name in masks else grads)
    return one_of


class Use(NamedTuple):
    """One use of parameters by a function with a rule, and the gradient of its output; rows of all units in front."""

    function: Any
    operands: Operands
    names: Mapping[str, str]
    grad: Tensor


def _uses(followed: Followed, live: Live, weights: Tensor, real: Tensor | None = None) -> list[Use]:
    """The uses of live parameters in a pass, with the gradients of their outputs; rows that are not `real` have none."""
    calls = [call for call in followed.calls if not live.keys().isdisjoint(call.names.values())]
    for call in calls:
        call.check_unchanged()
    grads = _output_gradients(followed.losses, calls, weights)
    if real is not None:  # copies that only fill up: nothing of them counts, not even what is not finite
        grads = tuple(
            None if grad is None else torch.where(real.view(-1, *[1] * (grad.dim() - 1)), grad, 0) for grad in grads
        )
    return [
        Use(call.function, call.operands, call.names, grad)
        for call, grad in zip(calls, grads, strict=True)
        if grad is not None
    ]


def _pieces(uses: list[Use], live: Live, views: int) -> dict[str, list[PerSample]]:
    """The gradients of each parameter, one part for each of its uses."""
    pieces: dict[str, list[PerSample]] = {name: [] for name in live}
    for function, operands, names, grad in uses:
        if grad.dtype in (torch.bfloat16, torch.float16):
            grad, operands = grad.float(), operands._replace(input=_at_least_float32(operands.input))
        gradients = RULES[function].gradients(operands, grad)
        for role, name in names.items():
            if name in live:
                gradient = gradients[role]()
                pieces[name].append(gradient if views == 1 else gradient.by_unit(views))
    return pieces


def _measure_uses(uses: list[Use], live: Live, units: int, views: int, masks: Masks) -> Measured:
    """Norms and gradients of parameters from their uses, all of which are known."""
    pieces = _pieces(uses, live, views)
    measured: Measured = {}
    for name, parameter in live.items():
        if pieces[name]:
            with full_precision(parameter):
                measured[name] = join(pieces[name]).measure(masks.get(name))
        else:  # not used by this batch's losses
            measured[name] = _measure_formed({name: parameter.new_zeros(units, parameter.numel())}, masks)[name]
        pieces[name].clear()
    return measured


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
            measured |= _measure_formed(_each(model, loss_fn, batch, rest, layout), masks)
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
        with torch.no_grad(), warnings.catch_warnings(), Drawing():
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


def _each(model: nn.Module, loss_fn: Any, batch: Views, live: Live, layout: Layout) -> dict[str, Tensor]:
    if layout.vectorises:
        try:
            return dense(model, loss_fn, batch, live)
        except UnsupportedLayer as error:  # a branch that the examination did not see
            if memory_ran_out(error):
                raise
    return loop(model, loss_fn, batch, live)


def _output_gradients(losses: Tensor, calls: list[Call], weights: Tensor) -> tuple[Tensor | None, ...]:
    if not calls or not losses.requires_grad:
        return (None,) * len(calls)
    return torch.autograd.grad(
        losses, [call.edge for call in calls], weights.flatten().to(losses.dtype), allow_unused=True
    )


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _measure_formed(grads: Mapping[str, Tensor], masks: Masks) -> Measured:
    return {name: Formed(_at_least_float32(grad)).measure(masks.get(name)) for name, grad in grads.items()}


class _Loss(nn.Module):
    """The loss as a module, so that `functional_call` can exchange the model's parameters."""

    def __init__(self, model: nn.Module, loss_fn: Callable[[Any, Nest], Tensor]):
        super().__init__()
        self.model, self.loss_fn = model, loss_fn

    def forward(self, batch: Nest) -> Tensor:
        """One loss per unit."""
        return self.loss_fn(self.model, batch)


def dense(model: nn.Module, loss_fn: Any, batch: Views, live: Live) -> dict[str, Tensor]:
    """Per-unit gradients `[batch, *parameter]` by `torch.func.vmap`: any layer that it can vectorise."""
    wrapped = _Loss(model, loss_fn)

    def loss_of_one(parameters: Mapping[str, Tensor], rows: Nest, weights: Tensor) -> Tensor:
        losses: Tensor = torch.func.functional_call(
            wrapped, {f"model.{name}": p for name, p in parameters.items()}, (rows,)
        )
        if losses.shape != weights.shape:
            raise DataError(
                f"the loss of a batch of {len(weights)} unit(s) has shape {list(losses.shape)}: must be [{len(weights)}]."
            )
        return (losses * weights.to(losses.dtype)).sum()

    try:
        per_unit = torch.func.vmap(torch.func.grad(loss_of_one), in_dims=(None, 0, 0), randomness="different")
        # no_grad: or the parameters that are not asked for would keep a graph alive
        with torch.no_grad(), warnings.catch_warnings(), Drawing():
            warnings.filterwarnings("ignore", "There is a performance drop because we have not yet", UserWarning)
            rows = map_tensors(torch.clone, batch.batch)  # the model may change its input in place
            grads: dict[str, Tensor] = per_unit({name: p.detach() for name, p in live.items()}, rows, batch.weights)
            return grads
    except (RuntimeError, ValueError, NotProven) as error:
        raise UnsupportedLayer(
            f"the dense engine cannot vectorise this model for {sorted(live)}: {str(error).rstrip('.')}. "
            "Use Runtime(engine='loop'), which is slow and always right, or freeze these parameters with support=."
        ) from error


def _no_gradient(error: RuntimeError) -> Exception:
    """What autograd itself cannot do, in words; anything else as it is."""
    if "inplace operation" not in str(error):
        return error
    return DataError(
        f"a tensor that a gradient needs was changed in place after it was used ({str(error).partition('. Hint')[0]}). "
        "Replace the in-place operation (x += y) by x = x + y."
    )


def loop(model: nn.Module, loss_fn: Any, batch: Views, live: Live) -> dict[str, Tensor]:
    """Per-unit gradients `[batch, *parameter]`, one unit at a time: the definition."""
    units = []
    watch, before = Watch(own_tensors(model)), counts(model, loss_fn)
    advance: dict[int, dict[str, int]] = {}  # by how much a pass of so many rows counts on
    for i, weights in enumerate(batch.weights):
        kept = weights > 0
        grads: tuple[Tensor | None, ...] = (None,) * len(live)
        if bool(kept.any()):  # a unit without rows is padding
            rows = take(take(batch.batch, i), kept)
            watch.begin(leaves(rows))
            with watch:
                losses = unit_losses(model, loss_fn, rows)
            after = counts(model, loss_fn)
            advanced = {name: number - before.get(name, number) for name, number in after.items()}
            if advance.setdefault(len(losses), advanced) != advanced:
                raise StateChanged("a whole number, by more for one unit than for another")
            before = after
            if i == 0:
                with suppress(NotProven):
                    unexplained(losses, live)  # refuses reentrant checkpoints
            if losses.requires_grad:
                total = (losses * weights[kept].to(losses.dtype)).sum()
                try:
                    grads = torch.autograd.grad(total, list(live.values()), allow_unused=True)
                except RuntimeError as error:
                    raise _no_gradient(error) from error
        units.append([torch.zeros_like(p) if g is None else g for p, g in zip(live.values(), grads, strict=True)])
    return {name: torch.stack([unit[k] for unit in units]) for k, name in enumerate(live)}
