"""What may be said of a run: whether it is private, summary.json, and what its updates weigh on the wire."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from noisewise.accounting import spent
from noisewise.accounting.events import not_private
from noisewise.errors import ConfigError
from noisewise.mechanism import RANKING
from noisewise.runs.folder import Status
from noisewise.support import Fixed
from noisewise.training.ablation import Ablation
from noisewise.training.state import State
from noisewise.wording import strength

VALUE_BITS = 32
SEED_BITS = 64

REPRODUCIBLE = "noise reproducible: do not publish"


def status_of(state: State, ablation: Ablation) -> Status:
    """Is what this run releases private, and if not, why?"""
    if ablation != "private":
        return Status("not-private", f"ablation {ablation}: gradients without clipping or without noise")
    if RANKING in state.mechanism.beside():
        return Status("not-private", "masks are ranked by gradients without noise")
    if any(not line.event_is_private for line in state.mechanism.lines()):
        return Status("not-private", "a noise multiplier of 0 adds no noise")
    open_lines = [line for line in state.before if not line.event_is_private]
    if open_lines:
        return Status("not-private", f"released before on the same data, without privacy: {open_lines[0].purpose}")
    if state.entropy.reproducible or state.ledger.reproducible:  # now, or in an earlier phase
        return Status("not-private", REPRODUCIBLE)
    return Status("private", "every release is in the ledger")


def summary(state: State, status: Status, delta: float, about: Mapping[str, Any], coordinates: int) -> dict[str, Any]:
    """summary.json, format 1: what was spent, and what the caller says `about` the task, the data and the model.

    Its epsilon is that of this run's ledger; other runs on the same people add to it.
    """
    mechanism, sigma = state.mechanism, state.mechanism.noise_multiplier
    open_before = any(not line.event_is_private for line in state.before)  # no plan makes up for it
    plan_epsilon = None if sigma is None else math.inf if open_before else mechanism.epsilon(delta)
    readings = spent(
        [(not_private(), 1)] if status.status == "not-private" else state.ledger.events(), delta, mechanism.adjacency
    )
    return {
        "format": 1,
        "privacy": {
            "epsilon": readings.epsilon,
            "plan_epsilon": plan_epsilon,
            "delta": delta,
            "adjacency": mechanism.adjacency,
            "unit": mechanism.unit,
            "sampler": mechanism.sampler.kind,
            "accountant": "pld",
            "noise_multiplier": sigma if isinstance(sigma, float | int) else mechanism.to_dict()["noise_multiplier"],
            "steps": mechanism.steps,
            "rate": mechanism.sampler.rate,
            "rdp_epsilon": readings.rdp_epsilon,
            "gdp_epsilon": readings.gdp_epsilon,
            "status": status.status,
            "reason": status.reason,
            "strength": strength(readings.epsilon, delta, mechanism.sampler.n, status.status),
        },
        "task": about.get("task"),
        "data": {**about.get("data", {}), "n": mechanism.sampler.n},
        "model": about.get("model"),
        "repairs": list(about.get("repairs", [])),
        "communication": _communication(state, coordinates),
        "seed": state.seed,
    }


def _communication(state: State, coordinates: int) -> dict[str, Any]:
    """What the run's updates weigh on the wire."""
    course = state.course
    whole = [
        isinstance(plan, Fixed) and all(isinstance(mask, bool) for mask in plan.support.values())
        for plan in course.plans
    ]
    seeded = all(plan.seeded or known for plan, known in zip(course.plans, whole, strict=True))
    return asdict(
        payload(
            coordinates, state.step, values=course.values, indices=course.indices, masks=course.masks, seeded=seeded
        )
    )


@dataclass(frozen=True)
class Payload:
    """Bits that a worker sends over a whole run, by the way masks are told.

    dense: every coordinate in every step. values: the kept coordinates alone, where the receiver knows the mask. indices:
    the positions of the kept coordinates, `ceil(log2 P)` bits each, once for every mask. seeds: one number for every mask
    instead; None where masks do not follow from a seed. share: values over dense.
    """

    dense: int
    values: int
    indices: int
    seeds: int | None
    share: float


def payload(
    coordinates: int,
    steps: int,
    *,
    values: int,
    indices: int,
    masks: int,
    seeded: bool = True,
    value_bits: int = VALUE_BITS,
) -> Payload:
    """Payload of `steps` updates of a model with P coordinates.

    values: kept coordinates, summed over steps. indices: kept coordinates, summed over masks. With gradual cooling to r*, the
    share of values is about 1 - r* / 2. A model without any mask sends no index. Reference: Zhu & Blaschko 2023,
    arXiv:2112.00845, section 5.

    >>> payload(1000, 10, values=6500, indices=6500, masks=10)
    Payload(dense=320000, values=208000, indices=65000, seeds=640, share=0.65)
    """
    if (
        coordinates < 1
        or steps < 0
        or not 0 <= values <= coordinates * steps
        or not 0 <= indices <= coordinates * masks
    ):
        raise ConfigError(
            f"{values} values in {steps} steps and {indices} indices in {masks} masks of {coordinates} coordinates: more are "
            "kept than there are."
        )
    dense = coordinates * steps * value_bits
    whole = indices == coordinates * masks
    each = 0 if whole else math.ceil(math.log2(coordinates)) if coordinates > 1 else 1
    return Payload(
        dense=dense,
        values=values * value_bits,
        indices=indices * each,
        seeds=(0 if whole else masks * SEED_BITS) if seeded else None,
        share=values / (coordinates * steps) if steps else 1.0,
    )
