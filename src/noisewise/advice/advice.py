"""One piece of advice: what is wrong, how that is known, what to try, what it gained elsewhere and what it costs."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, dataclass

from noisewise.advice.evidence import Evidence
from noisewise.wording import at_most


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to try next.

    Args:
        diagnosis: name of the rule, e.g. `noise-bound`.
        advice: what to do, in a sentence.
        evidence: the figures that speak for it.
        aim: what it is meant to improve: accuracy, calibration, the smallest class, the twin.
        gain: what it gained where it was measured, with an interval; or that it was not measured.
        command: to try it.
        privacy: what trying it costs.
    """

    diagnosis: str
    advice: str
    evidence: str
    aim: str
    gain: str
    command: str
    privacy: str

    def to_dict(self) -> dict[str, str]:
        """JSON form; the report reads it."""
        return asdict(self)


def rerun(evidence: Evidence, name: str, *changes: str) -> str:
    """The command that trains the run's config anew with some changes, at the same epsilon, beside it."""
    folder = evidence.folder.rstrip("/")
    budget = () if evidence.settings.get("epsilon") else ("--epsilon", f"{evidence.epsilon:.6g}")
    words = ("noisewise", "train", "--config", f"{folder}/config.toml", *changes, *budget, "--out", f"{folder}-{name}")
    return shlex.join(words)


def another_run(evidence: Evidence) -> str:
    """What a further run on the same people costs."""
    if math.isinf(evidence.epsilon):
        return "This run is not private, and neither would another be that is made like it."
    return (
        f"Another run on the same people: epsilon {at_most(evidence.epsilon)} each, {at_most(evidence.twice)} for both "
        "together if both are seen or the better one is chosen."
    )


FREE = "None: the twin is never released."
