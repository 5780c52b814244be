"""What clipping rules promise, and how it is kept where somebody else wrote the rule.

A rule of the package is trusted with a whole batch. One's own rule is checked before it is used (`check_rule`), is given
copies, and sees one unit at a time, so that a factor or an answer cannot depend on other units whatever the rule computes.
No torch import: it is imported where tensors are made.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from noisewise.adaptive import RULES, Adaptive
from noisewise.clipping import Clip, PerLayer, Samples
from noisewise.errors import ConfigError, PrivacyError
from noisewise.schedule import Schedule, values

if TYPE_CHECKING:
    from torch import Tensor

TRUSTED = frozenset(RULES.values())
LEAST, MOST = 1e-30, 1e20  # of a sensitivity: beyond, float32 sums would be lost to under- or overflow
ROUNDING = 1e-6  # of a rule's own arithmetic, relative
NAMES = ("first.weight", "first.bias", "second.weight")
LABELS = 5  # groups of made-up units
_checked: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def own(rule: Clip) -> bool:
    """Is this rule, or a rule inside it, not one of the package's? A subclass may compute anything, so it is one's own."""
    return type(rule) not in TRUSTED or (isinstance(rule, PerLayer) and any(map(own, rule.rules.values())))


def check_own_rules(clip: Clip | Schedule[Clip], names: Sequence[str] = NAMES) -> None:
    """`check_rule` for each rule of one's own that a run will use; a rule object is checked once for the same names."""
    for rule in values(clip):
        if own(rule) and _checked.get(hash((id(rule), tuple(names)))) is not rule:
            check_rule(rule, names)
            try:
                _checked[hash((id(rule), tuple(names)))] = rule
            except TypeError:  # no weak reference to it can be had: it is checked every time
                continue


def blocks_of(rule: Clip, names: Iterable[str]) -> dict[str, int]:
    """The block of each parameter: every one has a whole number from 0, or its gradient would be in no norm."""
    names = list(names)
    blocks = rule.blocks(names)
    strays = [name for name in names if type(blocks.get(name)) is not int or blocks[name] < 0]
    if strays:
        raise PrivacyError(f"{rule!r}: blocks() places {strays} nowhere; each parameter needs a whole number from 0.")
    return blocks


def factors_of(rule: Clip, samples: Samples) -> Tensor:
    """`rule.factors`, for one's own rule unit by unit on copies, and held to the rule's sensitivity."""
    import torch

    if own(rule):
        parts = [asked_factors(rule, one) for one in _each(samples)]
        factors = torch.cat(parts, 1) if parts else torch.zeros_like(samples.norms)
    else:
        factors = asked_factors(rule, samples)
    if not bool(_within(rule, factors, samples).all()):
        raise broken(rule)
    return factors


def enforced_factors(rule: Clip, samples: Samples) -> tuple[Tensor, Tensor]:
    """`factors_of` for a rule of the package without waiting for the answer: a unit beyond the sensitivity adds nothing.

    Also whether there was one, as a tensor: whoever reads it says `broken`.
    """
    import torch

    factors = asked_factors(rule, samples)
    within = _within(rule, factors, samples)
    return torch.where(within, factors, torch.zeros_like(factors)), ~within.all()


def most_allowed(rule: Clip) -> float:
    """The most that a unit may contribute: the sensitivity, and the rounding of a rule's own arithmetic."""
    return rule.sensitivity * (1 + ROUNDING)


def _within(rule: Clip, factors: Tensor, samples: Samples) -> Tensor:
    """Which units contribute at most the rule's sensitivity."""
    import torch

    lengths = torch.linalg.vector_norm(factors * (samples.norms / rule.sensitivity), dim=0)
    within: Tensor = lengths <= 1 + ROUNDING
    return within


def broken(rule: Clip) -> PrivacyError:
    """The error for a rule that does not keep its promise."""
    return PrivacyError(
        f"{rule!r} lets a unit contribute more than its sensitivity {rule.sensitivity:g}; "
        "noisewise.testing.checks.check_clip(rule) tries norms from 0 to 1e12 and names those for which it does. (Which "
        "norm it was here is private.)"
    )


def query_of(rule: Adaptive, samples: Samples) -> dict[str, Tensor]:
    """`rule.query`, for one's own rule unit by unit: each answer held to `query_sensitivity`, then added up."""
    import torch

    if not own(rule):
        return rule.query(samples)
    label = None if samples.groups is None else samples.groups.new_zeros(1)
    nobody = Samples(samples.norms.new_zeros(samples.norms.shape[0], 1), label)  # gives the shapes for an empty batch
    total = {name: torch.zeros_like(value) for name, value in _answer(rule, nobody).items()}
    for one in _each(samples):
        answer = _answer(rule, one)
        if answer.keys() != total.keys() or any(answer[name].shape != total[name].shape for name in total):
            raise PrivacyError(f"{rule!r}: query() answers one unit with other entries or shapes than another.")
        total = {name: total[name] + answer[name] for name in total}
    return total


def check_rule(rule: Clip, names: Sequence[str] = NAMES, *, seed: int = 0) -> None:
    """`||(factors * norms)[:, i]|| <= sensitivity` for norms from 0 to 1e12, alone and in company, in both precisions.

    `names`: parameters the rule can place in blocks. Also asked: factors are finite, have the norms' shape, type and device
    (negative ones are allowed: |factor| norm counts), are the same when asked twice, and depend on the unit's own norms and
    group only; the norms themselves stay as they are; one unit's answer to `query` is at most `query_sensitivity` long.
    """
    import torch

    count = max(blocks_of(rule, names).values()) + 1
    if not LEAST <= rule.sensitivity <= MOST:
        raise ConfigError(f"{rule!r}: sensitivity {rule.sensitivity!r} must be a number from {LEAST:g} to {MOST:g}.")
    generator = torch.Generator().manual_seed(seed)
    grid = torch.cat([torch.zeros(1), torch.logspace(-12, 12, 241)]).double().expand(count, -1)
    mixed = 10 ** (24 * torch.rand(count, 2000, generator=generator, dtype=torch.float64) - 12)
    for norms in (grid, mixed, grid.float(), mixed.float()):
        labels = torch.randint(0, LABELS, norms.shape[1:], generator=generator)
        for samples in _with_and_without(rule, Samples(norms, labels)):
            _check_factors(rule, samples, generator)
            if isinstance(rule, Adaptive):
                query_of(rule, _units(samples, slice(0, None, 40)))


def answers_of(clip: Clip | Schedule[Clip], names: Sequence[str]) -> list[list[float]]:
    """What each rule of one's own says of a few made-up norms, up to rounding: two runs of the same code say the same."""
    import torch

    said = []
    for rule in values(clip):
        if not own(rule):
            continue
        count = max(blocks_of(rule, names).values()) + 1
        norms = torch.stack([torch.logspace(-3, 3, 25).double().roll(5 * block) for block in range(count)])
        samples = Samples(norms, torch.arange(25) % LABELS)
        told = [factors_of(rule, samples)] + (
            list(query_of(rule, samples).values()) if isinstance(rule, Adaptive) else []
        )
        said.append([float(f"{value:.5g}") for tensor in told for value in tensor.flatten().tolist()])
    return said


def _check_factors(rule: Clip, samples: Samples, generator: Any) -> None:
    import torch

    norms, rounding = samples.norms, 1e-9 if samples.norms.dtype == torch.float64 else ROUNDING
    given = _copy(samples)
    factors = rule.factors(given)
    if not isinstance(factors, torch.Tensor) or factors.shape != norms.shape:
        shape = list(factors.shape) if isinstance(factors, torch.Tensor) else type(factors).__name__
        raise PrivacyError(f"{rule!r}: factors have shape {shape}, norms {list(norms.shape)}.")
    if factors.dtype != norms.dtype or factors.device != norms.device:
        raise PrivacyError(
            f"{rule!r}: factors are {factors.dtype} on {factors.device}, norms {norms.dtype} on {norms.device}. "
            "Compute them from samples.norms."
        )
    if not torch.equal(given.norms, norms):
        raise PrivacyError(f"{rule!r}: factors() changes the norms it is given. Work on a copy, samples.norms.clone().")
    if not bool(factors.isfinite().all()):
        raise PrivacyError(f"{rule!r}: not finite for norms {norms[:, ~factors.isfinite().all(0)][:, 0].tolist()}.")
    length = (factors.double() * norms.double()).square().sum(0).sqrt()
    worst = int(length.argmax())
    if bool(length[worst] > rule.sensitivity * (1 + rounding)):
        raise PrivacyError(
            f"{rule!r}: a unit with norms {norms[:, worst].tolist()} contributes {length[worst].item():.6g}, more than "
            f"the sensitivity {rule.sensitivity:g} that noise is scaled to."
        )
    if not torch.equal(rule.factors(_copy(samples)), factors):
        raise PrivacyError(f"{rule!r}: asked twice, it gives other factors. A rule may keep no state and draw nothing.")
    order = torch.randperm(norms.shape[1], generator=generator)
    if not torch.equal(rule.factors(_units(samples, order)), factors[:, order]):
        raise PrivacyError(f"{rule!r}: a unit's factor changes with the other units of the batch.")
    for i in {0, worst, norms.shape[1] - 1}:
        if not torch.equal(rule.factors(_units(samples, slice(i, i + 1))), factors[:, i : i + 1]):
            raise PrivacyError(f"{rule!r}: a unit's factor changes when the others are left out.")


def _with_and_without(rule: Clip, samples: Samples) -> Iterator[Samples]:
    """With group labels, and without where the rule does not need them."""
    yield samples
    try:
        rule.factors(_copy(Samples(samples.norms)))
    except ConfigError:
        return
    yield Samples(samples.norms)


def asked_factors(rule: Clip, samples: Samples) -> Tensor:
    """What a rule says, in the norms' type; whether it keeps its promise is asked elsewhere."""
    factors = rule.factors(samples)
    if factors.shape != samples.norms.shape:
        shapes = f"factors {list(factors.shape)} for norms {list(samples.norms.shape)}"
        raise ConfigError(f"{rule!r} returned {shapes}: must be equal.")
    return factors.to(samples.norms)


def _answer(rule: Adaptive, one: Samples) -> dict[str, Tensor]:
    """What a rule asks of one unit, in the norms' type, no longer than promised."""
    answer: Mapping[str, Tensor] = rule.query(one)
    moved = {name: value.to(one.norms) for name, value in answer.items()}
    length = math.hypot(*(float(value.double().norm()) for value in moved.values()))
    if not length <= rule.query_sensitivity * (1 + ROUNDING):
        raise PrivacyError(
            f"{rule!r}: a unit moves the answer to query() by {length:.6g}, more than the query_sensitivity "
            f"{rule.query_sensitivity:g} that noise is scaled to."
        )
    return moved


def _units(samples: Samples, index: Any) -> Samples:
    """Copies of some units."""
    return Samples(samples.norms[:, index].clone(), None if samples.groups is None else samples.groups[index].clone())


def _copy(samples: Samples) -> Samples:
    return _units(samples, slice(None))


def _each(samples: Samples) -> Iterator[Samples]:
    return (_units(samples, slice(i, i + 1)) for i in range(samples.norms.shape[1]))
