"""The claimed epsilon, and beside it what attacks on the same mechanism have proven."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from noisewise.audits.engine_epsilon import EngineEpsilon
from noisewise.audits.one_run import OneRun
from noisewise.report.subject import power
from noisewise.wording import at_least, at_most, level

if TYPE_CHECKING:
    from noisewise.audits import Result

MISSING = ("one noisy step", "noisewise audit DIR --only engine-epsilon")


class Measured(NamedTuple):
    """Of what, the claimed epsilon, both in short, what was proven at least, the verdict; `kept`: it is not exceeded."""

    what: str
    claimed: str
    short: str
    proven: str
    verdict: str
    kept: bool


def measured(results: Sequence[Result]) -> list[Measured]:
    """A row for each audit that measured an epsilon."""
    rows = []
    for result in results:
        if isinstance(result, EngineEpsilon):
            estimate, what = result.headline["empirical epsilon"], "one noisy step"
        elif isinstance(result, OneRun):
            estimate, what = result.headline["lower bound"], "a run with canaries"
        else:
            continue
        verdict = "more than claimed: do not publish" if result.exceeds else "not exceeded"
        low = at_least(estimate.low) if math.isfinite(estimate.low) else "–"
        rows.append(
            Measured(
                what,
                f"{at_most(result.claimed)} at δ = {power(result.settings['delta'])}",
                f"Tested by an attack on {what}: ε = {at_most(result.claimed)} is claimed for it, the attack proved {low}",
                f"at least {low} ({level(estimate)} sure)",
                verdict,
                not result.exceeds,
            )
        )
    return rows
