"""The one door from private to public: what depends on records is a `Bounded`; only `release` opens it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from noisewise._moved import old_names
from noisewise.accounting import Ledger
from noisewise.accounting.events import gaussian, joint_multiplier, not_private
from noisewise.errors import ConfigError, PrivacyError
from noisewise.noise import Piece, add_noise, add_normals, for_the_grid, secure_answer, standard_normal
from noisewise.pieces import lying_together
from noisewise.randomness import Entropy
from noisewise.sampling import Sampler
from noisewise.support import encode

if TYPE_CHECKING:
    from noisewise.support import Support


@dataclass(frozen=True)
class Bounded:
    """A sum over private units that one unit changes by at most `sensitivity` in L2, all tensors together.

    It may be merged with sums over other units, and leaves only through `release`. Noise falls on `support` only.
    `pieces`: of tensors that processes keep in pieces, which one this is. Then the bound is that of all pieces together, and
    each process releases its own, with the noise of those coordinates.
    """

    _values: Mapping[str, Tensor] = field(repr=False)
    sensitivity: float
    support: Support = field(default_factory=dict, repr=False)
    pieces: Mapping[str, Piece] = field(default_factory=dict, repr=False)

    @property
    def coordinates(self) -> int:
        """Of all tensors together, as a whole."""
        return sum(self.pieces[n].whole if n in self.pieces else v.numel() for n, v in self._values.items())

    def __post_init__(self) -> None:
        """A bound is a number."""
        if not math.isfinite(self.sensitivity) or self.sensitivity <= 0:
            raise PrivacyError(f"sensitivity {self.sensitivity!r}: noise can be scaled to a finite bound above 0 only.")


def merge(parts: Iterable[Bounded]) -> Bounded:
    """The sum over disjoint sets of units: a unit is in one part only, so the bound stays the same."""
    rest = iter(parts)
    first = next(rest)
    values = dict(first._values)
    for number, other in enumerate(rest):
        same_support = other.support is first.support or encode(other.support) == encode(first.support)
        same_tensors = other._values.keys() == values.keys() and other.pieces == first.pieces
        if other.sensitivity != first.sensitivity or not same_tensors or not same_support:
            raise PrivacyError(
                "parts with different sensitivity, tensors or support cannot be merged: they answer different questions."
            )
        for name, value in values.items():
            more = other._values[name]
            values[name] = value.add_(more) if number else value + more
    return Bounded(values, first.sensitivity, first.support, first.pieces)


def release(
    parts: Mapping[str, tuple[Bounded, float]],
    *,
    sampler: Sampler,
    ledger: Ledger,
    entropy: Entropy,
    step: int,
    first_step: int = 0,
    owned: bool = False,
) -> dict[str, dict[str, Tensor]]:
    """Add Gaussian noise to everything drawn from one batch, write it into the ledger, and only then hand it out.

    `parts`: purpose -> (what to release, noise multiplier). `answer = value + multiplier * sensitivity * N(0, I)` on the
    supported coordinates. Guarantee: the event recorded is the sampler's event of one Gaussian mechanism with the joint
    multiplier; a multiplier of 0 is recorded as not private. `first_step`: ledger step of the plan's step 0.
    `owned`: nobody else has these sums, so noise is added in their memory, unless two of them share some.
    """
    _check_parts(parts)
    if not all(isinstance(bounded, Bounded) for bounded, _ in parts.values()):
        raise PrivacyError(
            "what is released must be a Bounded: a rank's part of a batch (distributed.Part) has no noise of its own. Join the "
            "parts of all ranks first, distributed.join."
        )
    event = gaussian(sampler, joint_multiplier(sigma for _, sigma in parts.values()))
    entropy.answer_once(first_step + step)
    purpose = " + ".join(parts)
    if step % sampler.steps_per_event == 0:
        ledger.record(event, purpose, first_step + step, reproducible=entropy.reproducible)
    elif not ledger.lines or ledger.lines[-1].event != event:
        raise PrivacyError(
            f"step {step} of an epoch whose release is not in the ledger: start epochs at multiples of "
            f"{sampler.steps_per_event} steps and keep the noise the same within one."
        )
    owned = owned and _apart([value for bounded, _ in parts.values() for value in bounded._values.values()])
    return {
        name: _with_noise(bounded, sigma * bounded.sensitivity, entropy, (first_step + step, part), owned=owned)
        for part, (name, (bounded, sigma)) in enumerate(parts.items())
    }


def _check_parts(parts: Mapping[str, tuple[Bounded, float]]) -> None:
    """Pairs of what to release and how much noise."""
    for purpose, part in parts.items():
        if not isinstance(part, tuple) or len(part) != 2:
            raise ConfigError(
                f"release of {purpose!r}: is a {type(part).__name__}, must be a pair of what to release and its noise "
                "multiplier, e.g. {'gradient': (clipped.grads, 1.0)}."
            )
        if isinstance(part[1], bool) or not isinstance(part[1], Real):
            raise ConfigError(f"release of {purpose!r}: noise multiplier {part[1]!r} must be a number, e.g. 1.0.")


def expose(
    values: Mapping[str, Tensor],
    std: float,
    support: Support,
    *,
    ledger: Ledger,
    entropy: Entropy,
    step: int,
    purpose: str,
) -> dict[str, Tensor]:
    """Hand out what no bound protects, with noise of `std` if any: the ledger's epsilon is infinite from here on."""
    ledger.record(not_private(), f"{purpose} (not private)", step, reproducible=entropy.reproducible)
    return _with_noise(Bounded(values, 1.0, support), std, entropy, (step, 0))


def _apart(values: Sequence[Tensor]) -> bool:
    """Does each lie in memory of its own? In shared memory two tensors would get each other's noise, and be equal."""
    spans = sorted(_span(value) for value in values if value.numel())
    return all(end <= start for (_, end), (start, _) in pairwise(spans))


def _span(value: Tensor) -> tuple[int, int]:
    """From its first byte to behind its last."""
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return value.data_ptr(), value.data_ptr() + (last + 1) * value.itemsize


def _with_noise(
    bounded: Bounded, std: float, entropy: Entropy, position: tuple[int, int], *, owned: bool = False
) -> dict[str, Tensor]:
    if entropy.secure:
        std *= for_the_grid(std / bounded.sensitivity, bounded.coordinates)
    if std and not entropy.secure and not bounded.pieces and all(value.is_cuda for value in bounded._values.values()):
        return _with_noise_at_once(bounded, std, entropy, position)
    answers = {}
    for k, (name, value) in enumerate(bounded._values.items()):
        if bounded.support.get(name, True) is False:  # a constant, whatever was computed
            answers[name] = torch.zeros_like(value)
        elif std and entropy.secure:
            answers[name] = secure_answer(value, std, entropy, (*position, k), bounded.pieces.get(name))
        elif owned and value.is_contiguous():
            answers[name] = value
        else:
            answers[name] = value.clone(memory_format=torch.contiguous_format)
    if std and not entropy.secure:
        _add_noise(answers, bounded, std, entropy, position)
    for name, answer in answers.items():
        if isinstance(mask := bounded.support.get(name), Tensor):
            answer.masked_fill_(~mask.to(answer.device), 0)
    return answers


def _add_noise(
    answers: Mapping[str, Tensor], bounded: Bounded, std: float, entropy: Entropy, position: tuple[int, int]
) -> None:
    """Noise for every tensor that is not a constant, each from its own place, in place: on a CPU for all of them at once."""
    places = {name: (*position, k) for k, name in enumerate(answers) if bounded.support.get(name, True) is not False}
    here = [name for name in places if answers[name].device.type == "cpu"]
    add_normals(
        [answers[name] for name in here],
        std,
        entropy,
        [places[name] for name in here],
        [bounded.pieces.get(name) for name in here],
    )
    for name in places.keys() - set(here):
        answers[name].add_(standard_normal(answers[name], entropy, places[name], bounded.pieces.get(name)), alpha=std)


def _with_noise_at_once(bounded: Bounded, std: float, entropy: Entropy, position: tuple[int, int]) -> dict[str, Tensor]:
    """The same on a GPU: noise for all tensors of one type is one vector."""
    answers: dict[str, Tensor] = {}
    loose = dict[str, Tensor]()  # of those a mask is laid on one by one
    kinds: dict[tuple[torch.dtype, torch.device], dict[str, Tensor]] = {}
    for name, value in bounded._values.items():
        kinds.setdefault((value.dtype, value.device), {})[name] = value
    for number, values in enumerate(kinds.values()):
        tensors = list(values.values())
        joint = _mask_of_all(tensors, [bounded.support.get(name) for name in values])
        if joint is None:
            loose.update(values)
        answers |= dict(zip(values, add_noise(tensors, std, entropy, (*position, number), joint), strict=True))
    for name in loose:
        answer = answers[name]
        mask = bounded.support.get(name, True)
        if mask is False:  # a constant, whatever was computed
            answer.zero_()
        elif isinstance(mask, Tensor):
            answer.masked_fill_(~mask.to(answer.device), 0)
    return {name: answers[name] for name in bounded._values}


def _mask_of_all(values: Sequence[Tensor], masks: Sequence[bool | Tensor | None]) -> Tensor | None:
    """All masks as the one vector that they are pieces of, where values are pieces of one as well; None elsewhere."""
    laid = [mask for mask in masks if isinstance(mask, Tensor)]
    fits = len(laid) == len(values) and all(m.shape == v.shape for m, v in zip(laid, values, strict=True))
    if not fits or any(mask.device != values[0].device or mask.dtype != torch.bool for mask in laid):
        return None
    return None if lying_together(values) is None else lying_together(laid)


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
