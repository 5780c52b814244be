"""Clipped sums of per-unit gradients: exact, one forward pass, no trace left on the model."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from noisewise import support as supports
from noisewise.adaptive import Adaptive
from noisewise.batches import Nest, Padded, Views, leaves, length, take
from noisewise.bounded import Bounded, merge
from noisewise.clipping import Clip, Samples
from noisewise.errors import ConfigError
from noisewise.losses import LossFn
from noisewise.persample import engines, kernels
from noisewise.persample.alike import sums_together
from noisewise.persample.chance import random_state
from noisewise.persample.examine import Versions, examine
from noisewise.persample.formed import Summable
from noisewise.persample.gradients import Outer
from noisewise.persample.held import self_changing
from noisewise.persample.layout import Layout, situation
from noisewise.persample.lent import Sums, nothing_for, pieces
from noisewise.persample.proof import Proof
from noisewise.persample.rounding import full_precision
from noisewise.persample.sparing import sparing
from noisewise.persample.steady import is_steady
from noisewise.promises import (
    LEAST,
    MOST,
    asked_factors,
    blocks_of,
    check_own_rules,
    enforced_factors,
    factors_of,
    most_allowed,
    query_of,
)
from noisewise.runtime import Runtime
from noisewise.support import live_parameters

if TYPE_CHECKING:
    from noisewise.support import Support


class ClippedBatch(NamedTuple):
    """The clipped sum (`Bounded`: opened by `release` only) and the norms `[blocks, batch]`, which are as private."""

    grads: Bounded
    norms: Tensor
    query: Bounded | None = None  # what an adaptive rule asks of the same units


def clipped_sum(
    model: nn.Module,
    loss_fn: LossFn,
    batch: Nest,
    clip: Clip,
    support: Support | None = None,
    runtime: Runtime | None = None,
    *,
    layout: Layout | None = None,
    groups: Tensor | None = None,
    seed: int | None = None,
) -> ClippedBatch:
    """`sum_i factor_i * (m * g_i)` over the units of a batch, with factors from the norms of the masked gradients.

    `loss_fn(model, batch)` returns one loss per unit, `[batch]`; for `Views` it is given rows and returns one loss per row.
    Units whose norm is not finite, and padding, add nothing; an empty batch gives zeros. The mask comes before the norm.

    Guarantee: adding or removing one unit moves the sum by at most `clip.sensitivity` in L2 (up to rounding). The model
    is as before: no attributes, hooks or patches, `.grad`, buffers, training mode and random state untouched.
    `layout` is what `examine` found (made on the spot if not given, on synthetic inputs); `groups [batch]` are labels for
    rules that look at them; `seed` gives random layers
    (dropout) a state of their own, without it they draw from the current one, which is put back; Python's and NumPy's too.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"the model is a {type(model).__name__}: must be a torch.nn.Module. Arguments are clipped_sum(model, loss_fn, "
            "batch, clip)."
        )
    if isinstance(clip, type) or not isinstance(clip, Clip):
        raise ConfigError(f"clip={clip!r}: a rule needs blocks, factors and sensitivity; e.g. clipping.Flat(1.0).")
    runtime, support = runtime or Runtime(), support or {}
    parameters = dict(model.named_parameters())
    supports.check(support, parameters)
    live = live_parameters(model, support)
    masks = {name: mask.to(live[name].device) for name in live if isinstance(mask := support.get(name), Tensor)}
    batch, present = batch if isinstance(batch, Padded) else (batch, None)
    units = length(batch)
    views = batch if isinstance(batch, Views) else Views.single(batch)
    versions = Versions(model)
    _check_clip(clip, live)
    with random_state(seed), torch.enable_grad():
        if units == 0:
            return _nobody(live, clip, support, groups)
        rows = views.rows()
        if layout is None or not layout.covers(live, situation(model, loss_fn, rows)):
            layout = examine(model, loss_fn, rows)
        del rows
        size = runtime.units_at_once(units)
        holders = holders_of(views)
        norms: list[Tensor] = []
        queries: list[Bounded] = []
        sums: dict[str, Tensor] = {}
        for first in range(0, units, size):
            part = slice(first, first + size)
            with nothing_kept(views, holders) as proofs, sparing(runtime.memory == "small"):
                measured = engines.measure(
                    model, loss_fn, take(views, part), live, masks, layout, runtime.engine, proofs
                )
                here = None if present is None else present[part]
                labels = None if groups is None else groups[part]
                clipped = _clip_and_add(measured, live, clip, support, here, labels, before=sums)
            norms.append(clipped.norms)
            if clipped.query is not None:
                queries.append(clipped.query)
            sums = dict(clipped.grads._values)
    versions.check(model)
    return ClippedBatch(clipped.grads, torch.cat(norms, 1), merge(queries) if queries else None)


@contextmanager
def nothing_kept(batch: Views, holders: list[int] | None = None) -> Iterator[list[Proof]]:
    """Refuse a pass after which somebody holds the batch or what was computed from it: another step would see it.

    Gives the list that the proofs of the pass go into. `holders`: of the batch before anything was taken of it.
    """
    before, proofs = holders_of(batch) if holders is None else holders, list[Proof]()
    yield proofs
    if _is_kept(proofs, batch, before):
        gc.collect()
        if _is_kept(proofs, batch, before):
            raise self_changing(["the batch or a tensor computed from it, which somebody keeps after the pass"])


def holders_of(batch: Views) -> list[int]:
    """How many tensors use the memory of each part of a batch."""
    return [torch._C._storage_Use_Count(part.untyped_storage()._cdata) for part in leaves(batch)]


def _is_kept(proofs: list[Proof], batch: Views, holders: list[int]) -> bool:
    """Does somebody hold the batch, or what a pass computed from it? A model may use it for others, in another step."""
    return any(proof.kept(leaves(batch)) for proof in proofs) or holders_of(batch) != holders


def _check_clip(clip: Clip, live: Mapping[str, nn.Parameter]) -> None:
    """Sums are float32 or better: bounds that under- or overflow there are refused. One's own rule must keep its promise."""
    check_own_rules(clip, tuple(live))
    if not LEAST <= clip.sensitivity <= MOST:
        raise ConfigError(
            f"{clip!r}: the sensitivity {clip.sensitivity:g} is outside {LEAST:g} to {MOST:g}, where sums under- or "
            "overflow. Scale the loss, and the bound with it."
        )


def _sum_type(parameter: Tensor) -> torch.dtype:
    """Sums are float32 at least, whatever the batch: the type of a release must not tell an empty one."""
    return torch.promote_types(parameter.dtype, torch.float32)


def _nobody(live: Mapping[str, nn.Parameter], clip: Clip, support: Support, groups: Tensor | None) -> ClippedBatch:
    """An empty batch: zeros in the shapes, types and places of any other."""
    zeros = {name: nothing_for(name, parameter, _sum_type(parameter)) for name, parameter in live.items()}
    blocks = max(blocks_of(clip, live).values()) + 1
    norms = torch.zeros(blocks, 0, dtype=torch.float64, device=next(iter(live.values())).device)
    nobody = Samples(norms, None if groups is None else groups[:0].to(norms.device))
    return ClippedBatch(Bounded(zeros, clip.sensitivity, support, pieces(live)), norms, _ask(clip, nobody))


def _ask(clip: Clip, samples: Samples) -> Bounded | None:
    return Bounded(query_of(clip, samples), clip.query_sensitivity) if isinstance(clip, Adaptive) else None


@torch.no_grad()
def _clip_and_add(
    measured: dict[str, tuple[Tensor, Summable]],
    live: Mapping[str, nn.Parameter],
    clip: Clip,
    support: Support,
    present: Tensor | None,
    groups: Tensor | None,
    broken: Tensor | None = None,
    before: Mapping[str, Tensor] | None = None,
    out: Mapping[str, Tensor] | None = None,
) -> ClippedBatch:
    """Norms per block, factors, and the weighted sum of each parameter. Norms and factors are float64.

    `measured` is empty afterwards: gradients go as soon as they are added up. `broken`: where it is written down, without
    waiting, that the rule did not keep its promise. `before`: sums over other units, in whose memory these are added up.
    `out`: memory that sums are to lie in, where a product can be written there.
    """
    blocks = blocks_of(clip, live)
    squares = {name: measured[name][0] for name in live}
    groups = None if groups is None else groups.to(next(iter(squares.values())).device)
    norms, factors, keep = _judge(squares, blocks, clip, present, groups, broken)
    sums = Sums(before)
    together = sums_together({name: measured[name][1] for name in live}, factors, blocks) if is_steady() else {}
    for name, parameter in live.items():
        gradient = measured.pop(name)[1]
        if name in together:
            total = together[name]
        else:
            gradient = gradient if keep is None else gradient.where(keep)
            with full_precision(parameter):
                if isinstance(gradient, Outer) and gradient.left.dtype == _sum_type(parameter):
                    there = None if out is None else out[name]
                    total = gradient.weighted_sum(factors[blocks[name]], into=sums.taken(name), out=there)
                else:
                    total = gradient.weighted_sum(factors[blocks[name]])
        sums.add(name, total.reshape(parameter.shape).to(_sum_type(parameter)))
        del total
    answer = None
    if isinstance(clip, Adaptive):
        some = slice(None) if keep is None else keep
        answer = _ask(clip, Samples(norms[:, some], None if groups is None else groups[some]))
    return ClippedBatch(Bounded(sums.all(), clip.sensitivity, support, pieces(live)), norms, answer)


def _judge(
    squares: Mapping[str, Tensor],
    blocks: Mapping[str, int],
    clip: Clip,
    present: Tensor | None,
    groups: Tensor | None,
    broken: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Norms and factors `[blocks, batch]`, and which units count: present, with a finite norm; None if all of them do.

    For a rule with one block, in a captured step, by two kernels in place of twenty operations, where there are any.
    """
    by_kernels = not any(blocks.values()) and kernels.usable(*squares.values(), kind=torch.float64)
    if broken is not None and present is not None and by_kernels:
        norms, counted, keep = kernels.totals(torch.stack(list(squares.values())), present)
        factors = asked_factors(clip, Samples(counted, groups))
        return norms, kernels.held(factors, counted, keep, most_allowed(clip), broken), keep
    norms = torch.stack([_total(squares, blocks, block) for block in range(max(blocks.values()) + 1)]).sqrt()
    keep = norms.isfinite().all(0)
    if present is not None:
        keep = keep & present.to(keep.device).bool()
    everybody = not is_steady() and bool(keep.all())
    norms_kept = norms if everybody else torch.where(keep, norms, torch.zeros_like(norms))
    if broken is None:
        factors = factors_of(clip, Samples(norms_kept, groups))
    else:
        factors, failed = enforced_factors(clip, Samples(norms_kept, groups))
        broken.logical_or_(failed)
    return (norms, factors, None) if everybody else (norms, torch.where(keep, factors, torch.zeros_like(factors)), keep)


def _total(squares: Mapping[str, Tensor], blocks: Mapping[str, int], block: int) -> Tensor:
    """Squared norms of a block's parameters together; 0 for a block without any."""
    parts = [square for name, square in squares.items() if blocks[name] == block]
    return torch.stack(parts).sum(0) if parts else torch.zeros_like(next(iter(squares.values())))
