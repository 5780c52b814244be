"""Checks that a part of your own must pass before records depend on it; usable from a notebook.

`check_clip` and `check_support` return nothing when the part keeps its promise and raise an error that shows where it
does not. `check_model` describes a model in words and raises nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from noisewise import support as supports
from noisewise.bounded import Bounded
from noisewise.clipping import Clip, Samples
from noisewise.errors import PrivacyError
from noisewise.modelcheck import ModelCheck, check_model

__all__ = ["ModelCheck", "check_clip", "check_model", "check_support", "reveal"]

NAMES = ("first.weight", "first.bias", "second.weight")


def check_clip(rule: Clip, names: Sequence[str] = NAMES, *, seed: int = 0) -> None:
    """`||(factors * norms)[:, i]|| <= sensitivity` for norms from 0 to 1e12, alone and in company of others.

    `names`: parameters the rule can place in blocks. Also asked: factors are finite, have the norms' shape, and depend on
    the unit's own norms only.
    """
    blocks = rule.blocks(names)
    count = max(blocks.values()) + 1
    generator = torch.Generator().manual_seed(seed)
    grid = torch.cat([torch.zeros(1), torch.logspace(-12, 12, 241)]).double()
    mixed = 10 ** (24 * torch.rand(count, 2000, generator=generator, dtype=torch.float64) - 12)
    for norms in (grid.expand(count, -1), mixed):
        factors = rule.factors(Samples(norms))
        if factors.shape != norms.shape:
            raise PrivacyError(f"{rule!r}: factors have shape {list(factors.shape)}, norms {list(norms.shape)}.")
        if not bool(factors.isfinite().all()):
            raise PrivacyError(f"{rule!r}: not finite for norms {norms[:, ~factors.isfinite().all(0)][:, 0].tolist()}.")
        length = (factors * norms).square().sum(0).sqrt()
        worst = int(length.argmax())
        if bool(length[worst] > rule.sensitivity * (1 + 1e-9)):
            raise PrivacyError(
                f"{rule!r}: a unit with norms {norms[:, worst].tolist()} contributes {length[worst].item():.6g}, more than "
                f"the sensitivity {rule.sensitivity:g} that noise is scaled to."
            )
        order = torch.randperm(norms.shape[1], generator=generator)
        if not torch.equal(rule.factors(Samples(norms[:, order])), factors[:, order]):
            raise PrivacyError(f"{rule!r}: a unit's factor changes with the other units of the batch.")
        if not torch.equal(rule.factors(Samples(norms[:, :1])), factors[:, :1]):
            raise PrivacyError(f"{rule!r}: a unit's factor changes when the others are left out.")


def check_support(plan: Any, parameters: Mapping[str, Tensor], steps: int = 10, *, seed: int = 0) -> None:
    """A plan gives valid masks, the same ones for the same step, released values and public generator."""
    for step in range(steps):
        released = supports.Released(parameters)
        given = [plan.at(step, released, torch.Generator().manual_seed(seed + step)) for _ in range(2)]
        for support in given:
            supports.check(support, parameters)
        if supports.encode(given[0]) != supports.encode(given[1]):
            raise PrivacyError(
                f"{plan!r}: step {step} gives different masks for the same public inputs, so a resumed run would not be "
                "the run that was interrupted. Draw from the generator that is passed in."
            )


def reveal(bounded: Bounded) -> dict[str, Tensor]:
    """What a `Bounded` holds, without noise and without a ledger line: for tests on made-up data only."""
    return dict(bounded._values)
