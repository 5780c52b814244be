"""A score that was released with noise after a run had ended: `scores.json`, with the ledger that holds its release."""

from __future__ import annotations

import math
from dataclasses import dataclass

from noisewise.accounting import Ledger
from noisewise.accounting.events import check_keys
from noisewise.errors import RunError
from noisewise.runs.files import read_json, write_json
from noisewise.runs.folder import RunFolder

FORMAT = 1
SPREAD = 1.96  # deviations of noise on either side


@dataclass(frozen=True)
class NoisedScore:
    """A noised share of right answers on held-out units, the deviation of its noise, and what its release cost."""

    share: float
    deviation: float
    units: int
    ledger: Ledger

    @property
    def shown(self) -> tuple[float, float, float]:
        """The share, and both ends within which noise stays 95 % of the time; in per cent, none below 0 or above 100."""
        ends = (self.share - SPREAD * self.deviation, self.share + SPREAD * self.deviation)
        share, low, high = (100 * min(max(value, 0.0), 1.0) for value in (self.share, *ends))
        return share, low, high


def write_score(folder: RunFolder, score: NoisedScore) -> None:
    """Keep a released score beside the run, under its seal."""
    content = {"share": score.share, "deviation": score.deviation, "units": score.units}
    write_json(folder.scores, {"format": FORMAT, **content, "ledger": score.ledger.to_dict()})
    folder.seal(folder.scores)


def read_score(folder: RunFolder) -> NoisedScore | None:
    """The score that was released for a run; None where there is none."""
    if not folder.scores.exists():
        return None
    raw = read_json(folder.scores)
    try:
        check_keys(raw, "format", "share", "deviation", "units", "ledger")
        score = NoisedScore(float(raw["share"]), float(raw["deviation"]), raw["units"], Ledger.from_dict(raw["ledger"]))
        if (
            raw["format"] != FORMAT
            or type(score.units) is not int
            or not all(map(math.isfinite, (score.share, score.deviation)))
        ):
            raise ValueError("numbers out of range")
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder.scores} is damaged ({error}): restore it from a copy.") from None
    return score
