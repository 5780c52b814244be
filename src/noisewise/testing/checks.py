"""Checks that a part of your own must pass before records depend on it; usable from a notebook.

`check_clip` and `check_support` return nothing when the part keeps its promise and raise an error that shows where it
does not; so does `check_audit`. `check_model` describes a model in words and raises nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from noisewise import support as supports
from noisewise.bounded import Bounded
from noisewise.clipping import Clip
from noisewise.errors import PrivacyError
from noisewise.promises import NAMES, check_rule


def check_clip(rule: Clip, names: Sequence[str] = NAMES, *, seed: int = 0) -> None:
    """Does a rule keep its promise? See `noisewise.promises.check_rule`, which runs by itself before one's own rule is used.

    `names`: parameters the rule can place in blocks.
    """
    check_rule(rule, names, seed=seed)


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
