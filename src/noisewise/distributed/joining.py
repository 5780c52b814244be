"""Sums of parts become the sum of the batch: only then can there be a release.

What a rank computes of its units is a `Part`, which `release` does not take. `join` adds the parts of all ranks, after all
of them have shown that they speak of the same step, batch, rule, masks and noise. With masks only kept coordinates travel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from noisewise.bounded import Bounded
from noisewise.distributed.team import Team
from noisewise.errors import PrivacyError
from noisewise.persample import ClippedBatch
from noisewise.randomness import Entropy

if TYPE_CHECKING:
    from noisewise.support import Support

PACKED_BELOW = 0.9  # share of kept coordinates from which on packing costs more than it saves


@dataclass(frozen=True)
class Part:
    """What one rank adds to the sum of a batch: no `Bounded`, so nothing can release it before `join` has opened it."""

    _clipped: ClippedBatch = field(repr=False)


class Occasion(NamedTuple):
    """What all ranks must agree on before their parts are added: the step, the whole batch, and where noise comes from."""

    step: int
    units: Tensor  # of the whole batch
    noise: Entropy


def join(part: Part, team: Team, occasion: Occasion, *, norms: bool = False) -> ClippedBatch:
    """The clipped sum of the whole batch, from this rank's part of it and those of the others.

    Guarantee: parts are of disjoint units (`Team.part`), so one unit changes the sum by as much as its own part, at most the
    sensitivity; ranks that disagree about step, batch, sensitivity, masks or the root of the noise stop before anything is
    added. `norms`: hand out those of the whole batch too, for recorders; else there are none.
    """
    clipped = part._clipped
    if not team.several:
        return clipped
    _check_same(team, occasion, _fingerprint(clipped, team, occasion))
    pieces = clipped.grads.pieces  # which were added up when they were made
    apart = {name: value for name, value in clipped.grads._values.items() if name not in pieces}
    sums = {**clipped.grads._values, **total(apart, clipped.grads.support, team)}
    grads = Bounded(sums, clipped.grads.sensitivity, clipped.grads.support, pieces)
    query = clipped.query
    if query is not None:
        query = Bounded(total(query._values, {}, team), query.sensitivity, query.support)
    return ClippedBatch(grads, _all_norms(clipped.norms, team, len(occasion.units) if norms else 0), query)


def agree_on_step(team: Team, occasion: Occasion, *facts: Any) -> None:
    """Refuse, before anything is computed, ranks that would make other passes in this step: they would wait for each other."""
    if team.several:
        _check_same(team, occasion, _keyed(occasion, repr(facts)))


def _check_same(team: Team, occasion: Occasion, fingerprint: int) -> None:
    if not team.same(fingerprint):
        raise PrivacyError(
            f"ranks disagree about step {occasion.step} (which batch, rule, masks or noise): their sums do not belong "
            "together, and nothing was released. All ranks need the same plan, optimizer settings and number of steps."
        )


def total(values: Mapping[str, Tensor], support: Support, team: Team) -> dict[str, Tensor]:
    """Sums over all ranks by name; tensors of one type and device travel as one vector, of masked ones what is kept.

    What is masked out comes back as 0.
    """
    if not team.several:
        return dict(values)
    kept = _kept(support, team).places
    flat = {name: value.reshape(-1) for name, value in values.items()}
    short = {name: value.index_select(0, kept[name]) if name in kept else value for name, value in flat.items()}
    kinds: dict[tuple[torch.dtype, torch.device], list[str]] = {}
    for name, value in short.items():
        kinds.setdefault((value.dtype, value.device), []).append(name)
    answers: dict[str, Tensor] = {}
    for names in kinds.values():
        vector = torch.cat([short[name] for name in names])
        team.add(vector)
        pieces = vector.split([short[name].numel() for name in names])
        answers |= dict(zip(names, pieces, strict=True))
    for name in answers.keys() & kept.keys():
        answers[name] = torch.zeros_like(flat[name]).index_copy_(0, kept[name], answers[name])
    return {name: answers[name].view(value.shape) for name, value in values.items()}


class _Kept(NamedTuple):
    """Where kept coordinates lie in the tensors that travel packed, and a digest of all masks."""

    support: Support
    places: Mapping[str, Tensor]
    digest: str


def _kept(support: Support, team: Team) -> _Kept:
    """Found once for each set of masks: a course hands out the same object until it changes."""
    if not isinstance(team.packed, _Kept) or team.packed.support is not support:
        masks = {name: mask.reshape(-1) for name, mask in support.items() if isinstance(mask, Tensor)}
        places = {name: mask.nonzero().squeeze(1) for name, mask in masks.items()}
        packed = {name: where for name, where in places.items() if len(where) <= PACKED_BELOW * masks[name].numel()}
        digest = hashlib.blake2b(repr(sorted((n, m) for n, m in support.items() if isinstance(m, bool))).encode())
        for name in sorted(places):
            digest.update(name.encode() + places[name].cpu().numpy().tobytes())
        team.packed = _Kept(support, packed, digest.hexdigest())
    return team.packed


def _all_norms(norms: Tensor, team: Team, count: int) -> Tensor:
    """Norms of the whole batch of `count` units, in its order; padding has none."""
    every = norms.new_zeros(norms.shape[0], count)
    if count:
        own = team.part(torch.arange(count))
        every[:, own] = norms[:, : len(own)]
        team.add(every)
    return every


def _fingerprint(clipped: ClippedBatch, team: Team, occasion: Occasion) -> int:
    """63 bits of all that must be the same, under the key of the secret root: they tell nobody else anything."""
    bounded = [clipped.grads] if clipped.query is None else [clipped.grads, clipped.query]
    forms = [(b.sensitivity, [(n, str(v.dtype), _form(b, n)) for n, v in b._values.items()]) for b in bounded]
    return _keyed(occasion, f"{forms} {_kept(clipped.grads.support, team).digest}")


def _form(bounded: Bounded, name: str) -> list[int]:
    """Of a tensor in pieces what they have in common: how many numbers it has as a whole."""
    return [bounded.pieces[name].whole] if name in bounded.pieces else list(bounded._values[name].shape)


def _keyed(occasion: Occasion, said: str) -> int:
    key = occasion.noise.key(b"joining", f"{occasion.step} {said}".encode(), occasion.units.numpy().tobytes())
    return int.from_bytes(key[:8], "little") >> 1
